# SPDX-License-Identifier: Apache-2.0
"""Site files of random bytes and structures: each is either read, with values in their bounds, or refused in a line."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import each
from fairflare.core.errors import UserError
from fairflare.data.site_config import SiteConfig, read_site_config

BOUNDED = settings(
    derandomize=True, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck), database=None
)
KEYS = [
    "data_root",
    "datalist",
    "gpu",
    "batch_size",
    "num_workers",
    "cache_rate",
    "cache_folder",
    "min_count",
    "secure_sum",
    "site",
]
PIECES = [
    *("data_root: x\n", "datalist: a.json\n", "gpu: 0\n", "min_count: 30\n", "secure_sum: true\n", "cache_rate: .5\n"),
    *("{", "}", "[", "]", ":", "- ", "&a ", "*a", "!!python/object:x ", "!!binary ", "<<: ", "? ", "|\n", "\t", "\0"),
    *(
        "0x" + "f" * 3000,
        "9" * 5000,
        "1e999",
        ".nan",
        ".inf",
        "2026-13-45",
        "1:60:60",
        "~",
        "---\n",
        "...\n",
        "%YAML 9\n",
    ),
    *("../../x", "/", "/etc/passwd", "a" * 300, "\\ud800", '"\\0"', "é", "\ufeff", "\u2028", "#", "'", '"'),
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.dates(), st.binary(max_size=9)
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["../x", "/etc", "a\0b", "x" * 5000, -1, 2**70, 0.5, 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("site") / "site.yaml"


def assert_read_or_refused(file, content):
    file.write_bytes(content)
    try:
        own = read_site_config(file)
    except UserError as error:
        text = str(error)
        assert text.startswith("site configuration site.yaml: ") and "\n" not in text and len(text) < 1000
        assert str(file.parent) not in text
        return None
    assert type(own) is SiteConfig and own.site == ""
    assert own.gpu is None or type(own.gpu) is int and 0 <= own.gpu < 1024
    assert own.batch_size is None or type(own.batch_size) is int and 2 <= own.batch_size <= 65_536
    assert own.num_workers is None or type(own.num_workers) is int and 0 <= own.num_workers <= 1024
    assert type(own.cache_rate) is float and 0 <= own.cache_rate <= 1
    assert own.min_count is None or type(own.min_count) is int and 0 <= own.min_count <= 10**6
    assert type(own.secure_sum) is bool
    if own.data_root and own.datalist:
        home = Path(own.data_root)
        assert home.is_absolute() and (home / own.datalist).resolve().is_relative_to(home)
    return own


@BOUNDED
@given(content=st.binary(max_size=300))
def test_bytes(file, content):
    assert_read_or_refused(file, content)


@BOUNDED
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_pieces_of_yaml(file, pieces):
    assert_read_or_refused(file, "".join(pieces).encode("utf-8", "surrogatepass"))


@BOUNDED
@given(content=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9) | st.integers(), VALUES, max_size=5))
def test_structures(file, content):
    assert_read_or_refused(file, yaml.safe_dump(content).encode("utf-8", "surrogatepass"))
    assert_read_or_refused(file, json.dumps(content, default=str).encode())


@BOUNDED
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_one_value(file, key, value):
    content = {"data_root": "here", "datalist": "a.json"} | {key: value}
    assert_read_or_refused(file, yaml.safe_dump(content).encode("utf-8", "surrogatepass"))


def test_a_good_file_is_read(file):
    own = assert_read_or_refused(file, b"{data_root: here, datalist: a.json, gpu: 1, batch_size: 8, min_count: null}")
    assert own.datalist == "a.json" and (own.gpu, own.batch_size, own.min_count) == (1, 8, None)


LEVELS = "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'x'}]\n" for n in range(9))
HOSTILE = {
    "a billion laughs": LEVELS,
    "a circle": "data_root: &a [*a]",
    "deep lists": "data_root: " + "[" * 1200,
    "deep JSON": '{"data_root": ' * 1200,
    "code": "data_root: !!python/object/apply:os.system ['true']",
    "a large file": "data_root: x # " + "y" * 70_000,
    "a large number": "gpu: 0x" + "f" * 5000,
    "digits": "gpu: " + "9" * 5000,
    "a key of a key": "? {a: b}\n: 1",
    "not a number": "cache_rate: .nan",
    "true as a number": "gpu: true",
    "out of the root": "{data_root: x, datalist: ../../etc/passwd}",
}


@each("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(file, text):
    assert assert_read_or_refused(file, text.encode()) is None


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "folder", "loop", "gone", "x" * 300, "a\0b"):
        with pytest.raises(UserError, match="expected a YAML or JSON file"):
            read_site_config(tmp_path / name)
    with pytest.raises(UserError, match="expected a YAML or JSON file"):
        read_site_config(Path("/dev/zero"))
