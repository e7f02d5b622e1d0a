# SPDX-License-Identifier: Apache-2.0
"""Configurations changed at random: each is either read and written back unchanged, or refused in one line."""

import copy
import json
import tracemalloc

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import each
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.settings import flat
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RUN_KEYS, RunConfig, make_config
from fairflare.engine.setup.method_parts import PART_KEYS, method_parts

BOUNDED = settings(
    derandomize=True, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck), database=None
)
MOST_MEMORY = 32 * 2**20
"""Bytes that a check may take; a configuration of the largest size has 4 MiB."""
ODD = [
    *(0, 1, -1, 2, 10, 2**31, 2**53, 2**63, 10**30, 0.0, 0.5, -1e-9, 1e-320, 1e12, 1e308, float("nan"), float("inf")),
    *("", "none", "NaN", "../../x", "/etc/passwd", "a/b", "\0", "\ud800", "²", "9" * 30, "a" * 5000, "{", "[" * 3000),
    *(
        "1,2,3",
        "a,b,c",
        "label",
        "label+sex",
        "sex=f|m",
        '{"class_path": "os.system"}',
        "true",
        " ",
        "\u202e",
        "site-1",
    ),
    *(None, True, False, [], {}, [[]], {"a": {"a": {}}}, ["site-1", "site-2", "site-3", "site-4"], {"x": "0" * 64}),
]
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    ),
)
STEPS = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "remove", "add"]), VALUES), max_size=4)


def configurations():
    """Every kind of task and of rule, once."""
    own = {"site_names": "a,b,c"}
    return [
        make_config("fedism-plus", "support2"),
        make_config("fedufo", "ich-phantom:small", values={"group_by": "label"}),
        make_config("fedce", "brain-seg:small"),
        make_config("fedavg", "tabular", values=own | {"features": "x,y", "attribute_values": "sex=f|m"}),
        make_config("fedheal", "classification", values=own | {"labels": "cold,flu"}),
        make_config("fedlwr", "segmentation", values=own | {"labels": "lesion", "clients": "u,v,w"}),
        make_config("fedavg", "seer-prostate"),
        make_config("fedism", "support2:dirichlet", values={"secure_sum": "masks"}),
        make_config("fedavg", "support2", values={"selector": "share", "server_optimizer": "yogi"}),
    ]


VALID = [config.to_json() for config in configurations()]


def places(content):
    """(container, key) of every value, depth first."""
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from places(content[key])


def changed(content, steps):
    found = copy.deepcopy(content)
    for where, what, value in steps:
        spots = list(places(found))
        holder, key = spots[where % len(spots)]
        if what == "set":
            holder[key] = copy.deepcopy(value)
        elif what == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[str(value)[:50]] = copy.deepcopy(value)
        if not found:
            break
    return found


def outcome(make, measured=True):
    """The configuration, or None where it is refused; anything else than a line of refusal fails the test."""
    if measured:  # which takes time
        tracemalloc.start()
    try:
        config = make()
    except UserError as error:
        text = str(error)
        assert text and "\n" not in text and len(text) < 3000, text[:300]
        config = None
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
    assert peak < MOST_MEMORY, f"the check took {peak / 2**20:.0f} MiB"
    return config


def assert_sane(config):
    """What is accepted can be built, and neither its names nor its numbers do harm."""
    task = tasks.load(config.task, config.preset, **config.options)
    assert 1 <= config.min_sites <= len(task.sites()) <= 10_000
    assert len(task.grouping(config.group_by).names) <= 10_000
    entry = registry.get_method(config.method)
    assert method_parts(entry, config.settings, **config.parts) == config.components
    for name in (config.federation, config.leave_out, *config.clients, *config.code, *task.sites()):
        assert not {*name} & {*"/\\\0"} and not name.startswith(".") and len(name) <= 64
    assert all(len(fingerprint) == 64 for fingerprint in config.code.values())
    for value in leaves(config.to_json()):
        assert not isinstance(value, (int, float)) or abs(value) <= 2**53
        assert not isinstance(value, str) or len(value) <= 2**20


def leaves(value):
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield value


def assert_round_trip(config):
    assert_sane(config)
    text = json.dumps(config.to_json(), allow_nan=False)
    again = RunConfig.from_json(json.loads(text))
    assert again == config and again.sha256() == config.sha256()
    assert json.dumps(again.to_json(), allow_nan=False) == text


@each("content", VALID, ids=lambda content: f"{content['method']}-{content['task']}")
def test_what_is_changed_from_is_valid(content):
    assert_round_trip(outcome(lambda: RunConfig.from_json(content)))


@BOUNDED
@given(which=st.integers(0, len(VALID) - 1), steps=STEPS)
def test_a_changed_configuration_is_read_or_refused(which, steps):
    content = changed(VALID[which], steps)
    config = outcome(lambda: RunConfig.from_json(content))
    if config is not None:
        assert_round_trip(config)


@BOUNDED
@given(which=st.integers(0, len(VALID) - 1), place=st.integers(0, 10**6), value=VALUES)
def test_one_changed_value_is_read_or_refused(which, place, value):
    content = changed(VALID[which], [(place, "set", value)])
    config = outcome(lambda: RunConfig.from_json(content))
    if config is not None:
        assert_round_trip(config)


@BOUNDED
@given(content=VALUES)
def test_anything_else_is_refused(content):
    assert outcome(lambda: RunConfig.from_json(content)) is None


def _names(values):
    """Names of settings, which have owners in format 2."""
    return flat(values) if values and all(isinstance(own, dict) for own in values.values()) else values


KEYS = sorted(
    {key for content in VALID for part in ("settings", "options", "training") for key in _names(content[part])}
)


@BOUNDED
@given(
    which=st.integers(0, len(VALID) - 1),
    values=st.dictionaries(st.sampled_from([*KEYS, *RUN_KEYS, "n_sites", "trainer"]), VALUES, max_size=2),
    task=st.sampled_from(["", ":", ":small", ":x", "\0"]),
)
def test_settings_of_the_command_line_are_read_or_refused(which, values, task):
    """Each as text, as ``--set`` has them, or as Python's callers write them."""
    start = VALID[which]
    known = {*_names(start["settings"]), *start["options"], *start["training"], *RUN_KEYS, *PART_KEYS}
    needed = {"site_names": "a,b,c"} if start["options"].get("site_names") else {}
    name = start["task"] + (task or f":{start['preset']}")
    values = {key: value for key, value in values.items() if key in known}  # the others are refused by name
    as_text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    for chosen in (values, as_text):
        config = outcome(
            lambda chosen=chosen: make_config(start["method"], name, values=needed | chosen), measured=False
        )
        if config is not None:
            assert_round_trip(config)
