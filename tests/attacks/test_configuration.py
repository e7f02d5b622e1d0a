# SPDX-License-Identifier: Apache-2.0
"""Configurations that a job, a file or a plugin may bring: refused in one line, before anything is built from them."""

import contextlib
import copy
import json
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases import each
from fairflare.core.errors import DataError, UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, make_config

HUGE = 999_999_999_999
SPARE = 256 * 2**20


@contextlib.contextmanager
def little_memory():
    """This process may grow by 256 MiB and no more: who allocates by an unchecked number gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def changed(content, path, value):
    found = copy.deepcopy(content)
    *folders, last = path.split("/")
    where = found
    for name in folders:
        where = where[name]
    where[last] = value
    return found


@pytest.fixture(scope="module")
def table():
    return make_config("fedism-plus", "support2").to_json()


@pytest.fixture(scope="module")
def own():
    values = {"site_names": "a,b,c", "features": "x,y", "attribute_values": "sex=f|m"}
    return make_config("fedavg", "tabular", values=values).to_json()


DEEP = json.loads("[" * 500 + "]" * 500)
ATTACKS = [
    ("federation", "../../x", "federation: expected the id of an earlier job"),
    ("federation", "/tmp/x", "federation"),
    ("federation", "a\n", "federation"),
    ("federation", "a" * 65, "federation"),
    ("federation", None, "federation: expected text"),
    ("clients", ["../a", "b", "c", "d"], "clients: expected a name of letters"),
    ("clients", ["a/b", "b", "c", "d"], "clients"),
    ("clients", ["a", "A", "c", "d"], "clients: expected 4 different names"),
    ("clients", ["a"] * 20_000, "clients: expected at most 10000 entries"),
    ("clients", "abcd", "clients: expected a list"),
    ("leave_out", "../site-1", "leave_out: expected a site of task"),
    ("method", "../fedavg", "method: expected a name"),
    ("method", "nosuch", "unknown method"),
    ("trainer", "os.system", "trainer: expected a name"),
    ("task", "nosuch", "unknown task"),
    ("preset", "nosuch", "unknown preset"),
    ("seed", True, "seed: expected a whole number, got True"),
    ("seed", -1, "seed: expected a whole number from 0"),
    ("seed", 1.0, "seed: expected a whole number, got 1.0"),
    ("seed", 10**400, "config: expected numbers of at most 64 bits"),
    ("min_sites", 0, "min_sites: expected a whole number from 1"),
    ("min_sites", 5, "min_sites: expected at most the task's 4 sites"),
    ("require", 5, "require: expected at most the 4 sites that the run names, got 5"),
    ("threads", 10**6, "threads: expected a whole number from 1 to 1024"),
    ("threads", -1, "threads"),
    ("task_timeout", 10**8, "task_timeout: expected a whole number from 1 to 2592000"),
    ("task_timeout", "3600", "task_timeout: expected a whole number, got '3600'"),
    ("min_count", -5, "min_count: expected a whole number from 0 to 1000000"),
    ("min_count", 0.5, "min_count: expected a whole number"),
    ("group_by", "label+" * 900, "group_by: expected at most 4096 characters"),
    ("group_by", "label+label", "group_by: expected different attributes"),
    ("secure_sum", "rot13", "secure_sum: expected one of none, masks, ckks"),
    ("code", {"../../x": "0" * 64}, "code: expected names of modules"),
    ("code", {"my_net": "abc"}, "code: my_net: expected a SHA-256"),
    ("code", {"fairflare": "0" * 64}, "code: expected names of modules"),
    ("code", {f"m{k}": "0" * 64 for k in range(101)}, "code: expected at most 100 entries"),
    ("code", ["my_net"], "code: expected keys and values"),
    ("settings", {}, "settings: expected a value for"),
    ("settings/rule/nosuch", 1, "settings: unknown key 'rule.nosuch'"),
    ("settings/nosuch", 1, "settings: nosuch: expected names and values, got 1"),
    ("settings/nosuch", {"x": 1}, "settings: unknown key 'nosuch.x'"),
    ("settings/rule/q", float("nan"), "config: expected finite numbers, got nan"),
    ("settings/rule/q", float("inf"), "config: expected finite numbers, got inf"),
    ("settings/rule/q", "2", "q: expected a number, got '2'"),
    ("settings/rule/q", 1e300, "q: expected a number from"),
    ("settings/rule/q", DEEP, "config: expected at most 8 levels"),
    ("settings/probe/sharpness/probe_batch", HUGE, "probe_batch"),
    ("settings/rule/state", ["S"], "state: expected one of S, L"),
    ("training/rounds", 10**7, "rounds: expected a whole number from 1 to 1000000"),
    ("training/epochs", 10**5, "epochs: expected a whole number from 1 to 10000"),
    ("training/batch_size", HUGE, "batch_size: expected a whole number from 2 to 65536"),
    ("training/lr", 1e30, "lr: expected a number from 0 to 1000000"),
    ("training/keep_optimizer", 1, "keep_optimizer: expected true or false"),
    ("training/extra", 1, "training: unknown key 'extra'"),
    ("options/n_sites", HUGE, "n_sites"),
    ("options/model", "x\0y", "config: expected text without control characters"),
    ("options/label", "\ud800", "config: expected text without control characters"),
    ("options/extra", 1, "options: unknown key 'extra'"),
    ("options/alpha", True, "alpha: expected a number, got True"),
    ("surprise", 1, "config: unknown key 'surprise'"),
    ("title", "x" * (5 * 2**20), "config: expected at most 4194304 characters"),
    ("title", list(range(200_000)), "config: expected at most 100000 values"),
    ("format", True, "config: expected format 2, got True"),
]


@each("path, value, message", ATTACKS, ids=[f"{k}-{path}" for k, (path, *_) in enumerate(ATTACKS)])
def test_a_configuration_with_one_bad_value_is_refused_in_a_line(table, path, value, message):
    content = changed(table, path, value)
    with little_memory(), pytest.raises(UserError) as error:
        RunConfig.from_json(content)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 1000


OWN = [
    ("options/labels", str(HUGE), "labels: expected at most 1000 classes"),
    ("options/labels", "9" * 5000, "labels: expected at most 1000 classes"),
    ("options/labels", ",".join(map(str, range(2000))), "labels: expected at most 1000 classes"),
    ("options/site_names", "../a,b,c", "site_names: expected names of letters"),
    ("options/site_names", "a/b,b,c", "site_names: expected names of letters"),
    ("options/site_names", ".hidden,b,c", "site_names: expected names of letters"),
    ("options/site_names", "a" * 300 + ",b,c", "site_names: expected names of letters"),
    ("options/site_names", "", "name its sites"),
    ("options/site_names", "a," * 10**6, "site_names: expected at most 1048576 characters"),
    ("options/attribute_values", "sex", "attribute_values: expected NAME=VALUE"),
    ("options/attribute_values", "sex=" + "|".join(map(str, range(9000))), "attribute_values: expected at most 4096"),
]


@each("path, value, message", OWN, ids=[f"{k}-{path}" for k, (path, *_) in enumerate(OWN)])
def test_a_job_on_the_sites_own_data_is_refused_as_well(own, path, value, message):
    with little_memory(), pytest.raises(UserError) as error:
        RunConfig.from_json(changed(own, path, value))
    assert message in str(error.value) and len(str(error.value)) < 1000


def test_groups_are_counted_before_they_are_made(own):
    """Three attributes of 300 values each would be 27 million groups."""
    values = "|".join(map(str, range(300)))
    content = changed(own, "options/attribute_values", f"a={values};b={values};c={values}")
    with little_memory(), pytest.raises(UserError, match="group_by: expected at most 10000 groups"):
        RunConfig.from_json(changed(content, "group_by", "a+b+c"))


def test_the_number_of_classes_is_bounded_on_the_command_line_too():
    with little_memory(), pytest.raises(UserError, match="labels: expected at most 1000 classes"):
        tasks.load("classification", labels=str(HUGE), site_names="a,b")
    with pytest.raises(UserError, match="labels: expected at least 2 classes"):
        tasks.load("classification", labels="²", site_names="a,b")


@each("content", [None, [], "x", 3, {}, {"format": 1}, {1: 2}])
def test_what_is_no_configuration_is_refused(content):
    with pytest.raises(UserError):
        RunConfig.from_json(content)


def test_no_state_lies_outside_the_workspace(tmp_path):
    """A second lock behind the validator's."""
    from fairflare.flare.paths import memory_file, server_folder

    workspace = SimpleNamespace(get_root_dir=lambda: str(tmp_path))
    context = SimpleNamespace(
        get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace),
        get_identity_name=lambda: "site-1",
        get_prop=lambda key, default=None: default,
    )
    for place in (lambda name, at: memory_file(name, "0" * 64, at), server_folder):
        with pytest.raises(UserError, match="federation"):
            place("../../x", context)
        assert place("a-job", context).is_relative_to(tmp_path)


@pytest.mark.parametrize("simulated", [True, False])
def test_the_job_of_a_real_federation_names_no_folder_of_data(own, simulated, monkeypatch):
    """It would be read where a site has configured no list of its own."""
    from fairflare.flare.paths import RUN_FOLDER, job_config

    monkeypatch.delenv(RUN_FOLDER, raising=False)
    context = SimpleNamespace(get_prop=lambda key, default=None: simulated)
    content = changed(own, "options/datalists", "/home/another/data")
    if simulated:
        assert job_config(content, context).options["datalists"] == "/home/another/data"
        return
    with pytest.raises(DataError, match="datalists") as error:
        job_config(content, context)
    assert error.value.code == "configuration"


def test_what_the_package_writes_is_read_back(table):
    """With everything that ``config.json`` describes beside the choices."""
    about = {"title": "t", "paper": "p", "probes": ["x"], "normalisation": "batch", "env": "local", "versions": {}}
    assert RunConfig.from_json({**table, **about}).to_json() == table


def test_long_names_of_groups_are_refused_before_they_are_multiplied(own):
    values = "|".join(str(k) for k in range(70))
    options = {"labels": ",".join(("x" * 2_000, "y" * 2_000)), "attribute_values": f"a={values};b={values}"}
    with little_memory(), pytest.raises(UserError, match="group_by: expected names of at most 200 characters") as error:
        RunConfig.from_json({**own, "group_by": "label+a+b", "options": {**own["options"], **options}})
    assert len(str(error.value)) < 400


def test_more_images_than_a_machine_can_hold_are_refused():
    """Each number is in its own range."""
    huge = {"images": 100_000, "test_images": 100_000, "site_test_images": 100_000, "size": 512}
    with pytest.raises(UserError, match="images: expected at most 15258 of 512 pixels, those for testing included"):
        tasks.load("ich-phantom", "small", **huge)
    with pytest.raises(UserError, match="images: expected at most"):
        tasks.load("brain-seg", "small", images=100_000, site_test_images=100_000, size=512)
    for preset in type(tasks.load("ich-phantom", "small")).presets:
        tasks.load("ich-phantom", preset)
