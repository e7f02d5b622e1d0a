# SPDX-License-Identifier: Apache-2.0
"""One torch thread, as in every run: small tensors gain nothing from more, and lose much on a busy machine.

Rendered data are kept for the session, in a folder that its processes share; tests of rendering itself turn that off.
"""

import os
import shutil
import tempfile

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("FAIRFLARE_WORKERS", "1")  # tests replace what sites do; test_workers.py has workers
CACHE = "FAIRFLARE_CACHE"
COSTS = {  # CPU seconds of a file's tests that are not slow, roughly; a file that is not here costs less than five
    "test_secure_federation": 25,
    "test_report_section_pages": 24,
    "test_task_contract": 23,
    "test_faults": 17,
    "test_bits": 17,
    "test_contribution": 14,
    "test_staging": 14,
    "test_cache": 12,
    "test_own_data": 11,
    "test_plugin": 11,
    "test_absences": 9,
    "test_seer_prostate": 9,
    "test_cli": 8,
    "test_report_alone": 7,
    "test_prostate": 7,
    "test_report_page": 6,
    "test_architecture": 6,
    "test_personal_runs": 5,
    "test_benchmarks": 5,
}
FLARE = 100  # a file that starts FLARE's processes waits more than it computes: all of them come first
DEPLOYED = ("poc", "filters", "faults", "provisioned", "relay")
"""The files test_deploy_*, in the order in which they come; the first three share a federation."""


def pytest_addoption(parser):
    parser.addoption(
        "--only", default="", help="cases of a test that goes through many: those whose name contains this"
    )
    parser.addoption("--long", action="store_true", help="tests marked long go through all of their cases")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # workers have the folder of the session
        config.rendered, config.before = tempfile.mkdtemp(prefix="fairflare_tests_cache."), os.environ.get(CACHE)
        os.environ[CACHE] = config.rendered


def pytest_unconfigure(config):
    if hasattr(config, "rendered"):
        os.environ.pop(CACHE, None)
        os.environ.update({CACHE: config.before} if config.before is not None else {})
        shutil.rmtree(config.rendered, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def variables_of_a_file():
    """What a file's tests put into the environment, as a command does with ``--code``, is gone for the next file's."""
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name.startswith("FAIRFLARE_") and name not in before]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name.startswith("FAIRFLARE_")})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where tests run side by side (``-n``), a file stays on one worker; federations of FLARE's POC stay on one."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return "deployed" if "test_deploy_" in file else file

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_collection_modifyitems(items):
    """The files that take longest come first, so that workers finish together; a file's tests stay together."""
    items.sort(key=lambda item: -_cost(item.nodeid.partition("::")[0]))


def _cost(file):
    if "test_deploy_" in file:
        return 3 * FLARE - DEPLOYED.index(os.path.basename(file).removeprefix("test_deploy_").removesuffix(".py"))
    if "tests/flare/" in file or "test_printed_commands" in file:
        return FLARE
    return COSTS.get(os.path.basename(file).removesuffix(".py"), 0)


@pytest.fixture(autouse=True)
def nobody_waits(request, monkeypatch):
    """Commands in this process say nothing of the time they take: on a busy machine no test expects such lines."""
    if request.path.stem != "test_waiting":
        from fairflare.app import waiting

        monkeypatch.setattr(waiting, "SOON", 3600.0)
