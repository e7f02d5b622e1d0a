# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""One thread of torch, OpenBLAS and OpenMP, here and in what tests start: small arrays gain nothing from more, and
where several processes share a core, threads that wait for each other burn more than they compute.

Rendered data are kept for the session, in a folder that its processes share; tests of rendering itself turn that off.
SIGTERM ends the session, and whatever its tests have started, at once.
"""

import contextlib
import gc
import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # read at import

import shutil
import signal
import sys
import tempfile
import threading
import time
from xml.etree import ElementTree

import psutil
import pytest
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG

from fairflare.core import plugins, registry

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it starts with "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to what they start
os.fsync = lambda file: None  # a process that is killed loses nothing that it has written; no test cuts the power
os.environ.setdefault("FAIRFLARE_WORKERS", "1")  # tests replace what sites do; test_workers.py has workers
CACHE = "FAIRFLARE_CACHE"
COSTS = {  # CPU seconds of a file's tests and of what they start, roughly; a file that is not here costs less than five
    "test_staging": 35,
    "test_own_data_sim": 65,
    "test_parallel": 58,
    "test_random_kills": 65,
    "test_printed_commands": 90,
    "test_decide_sim": 30,
    "test_bundle": 45,
    "test_tuning": 45,
    "test_evaluate": 40,
    "test_estimators": 37,
    "test_inspection": 38,
    "test_benchmarks": 37,
    "test_tuning_sim": 35,
    "test_demo": 36,
    "test_simulator": 50,
    "test_windows": 22,
    "test_product": 36,
    "test_volume_runs": 50,
    "test_exact_regression": 36,
    "test_workers": 36,
    "test_export_model": 30,
    "test_decision_job": 32,
    "test_stratified_cox": 24,
    "test_plugins_sim": 18,
    "test_distribution": 40,
    "test_run_ends": 40,
    "test_personal_flare": 38,
    "test_heartbeat": 20,
    "test_stock_recipe": 28,
    "test_run_life": 30,
    "test_jobs": 30,
    "test_recipe_helpers": 26,
    "test_init": 30,
    "test_faults": 30,
    "test_secure_federation": 28,
    "test_flamby_heart": 27,
    "test_notebooks": 25,
    "test_report_section_pages": 24,
    "test_task_contract": 23,
    "test_resume": 10,
    "test_privacy_filters": 20,
    "test_ten_questions": 30,
    "test_site": 16,
    "test_bits": 20,
    "test_plugin": 20,
    "test_absences": 18,
    "test_client_script": 15,
    "test_five_papers": 15,
    "test_contribution": 15,
    "test_cache": 12,
    "test_own_data": 11,
    "test_seer_prostate": 9,
    "test_cli": 8,
    "test_report_alone": 7,
    "test_prostate": 7,
    "test_report_page": 6,
    "test_architecture": 6,
    "test_personal_runs": 5,
}
DEPLOYED = {
    "poc": "poc",
    "filters": "poc",
    "faults": "poc",
    "provisioned": "hospitals",
    "relay": "hospitals",
    "page": "hospitals",
    "cut": "hospitals",
    "life": "lives",
    "five": "lives",
}
"""The files test_deploy_*, in the order in which they come, before all others: file -> group, which one worker runs.

Those of "poc" share a federation. The groups mostly wait for FLARE; meanwhile other workers compute. A relay's return
needs a machine that is not full: it comes when "lives" are over.
"""


def pytest_addoption(parser):
    parser.addoption(
        "--only", default="", help="cases of a test that goes through many: those whose name contains this"
    )
    parser.addoption("--long", action="store_true", help="tests marked long go through all of their cases")


def pytest_configure(config):
    rendered = None
    if not hasattr(config, "workerinput"):  # workers have the folder of the session
        rendered = config.rendered = tempfile.mkdtemp(prefix="fairflare_tests_cache.")
        config.before, os.environ[CACHE] = os.environ.get(CACHE), rendered
    signal.signal(signal.SIGTERM, lambda *ignored: _end(rendered))
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _end(rendered):
    """No test is waited for, since one in a command would take the signal for its own, and none that follows begins.

    FLARE's daemons are nobody's children; what they have of the session is its environment. They go before what they
    would start again.
    """
    until = time.monotonic() + 6
    while (left := _started(rendered)) and time.monotonic() < until:
        for process in sorted(left, key=lambda one: one.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
    if rendered:
        shutil.rmtree(rendered, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)


def _started(rendered):
    """What this process has started and, of the session's first process, what has the session's folder."""
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter() if rendered else ():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(CACHE) == rendered:
                found.add(process)
    return [process for process in found if _is_alive(process)]


def _is_alive(process):
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def pytest_unconfigure(config):
    if hasattr(config, "rendered"):
        os.environ.pop(CACHE, None)
        os.environ.update({CACHE: config.before} if config.before is not None else {})
        shutil.rmtree(config.rendered, ignore_errors=True)


@pytest.fixture
def forks(monkeypatch):
    """Workers are forked whatever other files have imported or left running."""
    monkeypatch.delitem(sys.modules, "tenseal", raising=False)
    left = {*threading.enumerate()} - {threading.main_thread()}
    monkeypatch.setattr(threading, "active_count", lambda: len({*threading.enumerate()} - left))


@pytest.fixture(autouse=True, scope="module")
def process_of_a_file(tmp_path_factory):
    """What a file's tests leave in their process is gone for the next file's.

    That is: variables, as a command sets with ``--code``; modules that the tests wrote; plugins' methods and parts; the
    folder; torch's threads.
    """
    before, modules, here = dict(os.environ), set(sys.modules), os.getcwd()
    tables = (registry._methods, *registry._parts.values())
    registered = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, registered):
        for id in table.keys() - old.keys():
            if not getattr(table[id], "home", table[id].__module__).startswith(("fairflare.", "fairflare_lab.")):
                del table[id]
                registry._whole.discard(id)
    plugins._done.clear()
    os.chdir(here)
    torch.set_num_threads(1)
    written = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]
    for name in [name for name in os.environ if name.startswith("FAIRFLARE_") and name not in before]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name.startswith("FAIRFLARE_")})


@pytest.fixture(autouse=True)
def signals_of_a_test():
    """Whoever takes a signal in a test has it until the test ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


MANY, SECONDS = 20, 30
"""A test of more cases has so many seconds for each of them; others have the time of setup.cfg."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where tests run side by side (``-n``), a file stays on one worker, and so does a group of ``DEPLOYED``."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return DEPLOYED.get(_deployed(file), file)

    config.option.loadscopereorder = False
    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What collecting makes stays to the end: no search for garbage goes through it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """The files that take longest come first, so that workers finish together; a file's tests stay together."""
    items.sort(key=lambda item: -_cost(item.nodeid.partition("::")[0]))
    for item in items:
        if not (hasattr(item.function, "cases") or item.config.getoption("--long")) and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="make test-long runs it"))
        _, cases = getattr(item.function, "cases", (None, ()))
        if len(cases) > MANY and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS * len(cases)))


def _cost(file):
    if name := _deployed(file):
        return 1000 - list(DEPLOYED).index(name)
    return COSTS.get(os.path.basename(file).removesuffix(".py"), 0)


def _deployed(file):
    _, found, name = file.partition("tests/flare/test_deploy_")
    return found and name.removesuffix(".py")


@pytest.fixture(autouse=True)
def nobody_waits(request, monkeypatch):
    """Commands in this process say nothing of the time they take: on a busy machine no test expects such lines."""
    if request.path.stem != "test_waiting":
        from fairflare.studies import display

        monkeypatch.setattr(display, "SILENCE", 3600.0)


LAID_OUT = (
    "tests/unit/report/",
    "tests/unit/papers/",
    "tests/unit/test_benefit.py",
    "tests/attacks/test_fuzz_",
    "tests/docs/test_results.py",
)
"""Where pages and pictures are what is tested, or may be what breaks."""


LAYS_OUT = FigureCanvasSVG.print_svg


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Elsewhere what a page's figures show is drawn and not laid out, which takes half of a small run's time.

    So it is for a test and for all fixtures that are made for it.
    """
    FigureCanvasSVG.print_svg = LAYS_OUT if item.nodeid.startswith(LAID_OUT) else _save_words


def _save_words(canvas, file, **options):
    file.write(_words_of(canvas.figure))


def _words_of(figure):
    """An SVG of what stands on a figure, but for its axes' numbers."""
    svg = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox="0 0 1 1")
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)]
    for text in (*figure.texts, *texts):
        ElementTree.SubElement(svg, "text").text = "".join(filter(str.isprintable, text.get_text()))
    return ElementTree.tostring(svg)


@pytest.fixture
def browser():
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def axe():
    """Page of a browser -> names of axe's rules that it breaks."""
    checker = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return lambda page: [one["id"] for one in checker.run(page).response["violations"]]
