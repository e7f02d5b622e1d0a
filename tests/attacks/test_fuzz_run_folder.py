# SPDX-License-Identifier: Apache-2.0
"""Random changes of a run's files: ``verify`` notices them or they change nothing that is read, and no command breaks.

Not covered by ``verify``, and left alone here: ``log.txt``, TensorBoard's events and the sites' own memories.
"""

import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairflare.core.errors import UserError
from fairflare.engine import files
from fairflare.engine.audit import GENESIS, entry_hash
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import state_hash
from fairflare.report.write import verify_run
from run_folders import call, make_folders

TENSORS = ("checkpoint.safetensors", "model.safetensors")
NAMES = ("audit.jsonl", "config.json", "report.json", "report.html", *TENSORS)
FUZZ = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("fuzz"), only=("done", "cut"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "run"


def fresh(root, base, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(root / base, scratch)
    return scratch


def is_noticed(folder):
    """Whether ``verify`` refuses the folder; anything but its own error fails the test."""
    try:
        verify_run(folder)
    except UserError as error:
        assert "\n" not in str(error).strip()
        return True
    return False


def meaning(path):
    """What a file of tensors holds, however its archive is laid out."""
    return state_hash(read_tensors(path))


@st.composite
def byte_changes(draw):
    """A function that changes bytes somewhere: some replaced, put in, taken out, or the rest cut off."""
    where = draw(st.floats(0, 1, exclude_max=True))
    new = draw(st.binary(min_size=0, max_size=4))
    gone = draw(st.sampled_from([0, 1, 4, 10**9]))

    def change(data):
        start = int(where * len(data))
        return data[:start] + new + data[start + gone :]

    return change


@settings(FUZZ, max_examples=150)
@given(base=st.sampled_from(["done", "cut"]), name=st.sampled_from(NAMES), change=byte_changes())
def test_bytes(root, scratch, base, name, change):
    folder = fresh(root, base, scratch)
    path = folder / name
    if not path.exists():
        return
    before = path.read_bytes()
    path.write_bytes(change(before))
    same = path.read_bytes() == before
    assert is_noticed(folder) or same or (name in TENSORS and meaning(path) == meaning(root / base / name))


def places(value, path=()):
    """Paths to everything below a JSON value."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(item, (*path, key))


def put(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


@settings(FUZZ, max_examples=120)
@given(base=st.sampled_from(["done", "cut"]), data=st.data(), anew=st.booleans())
def test_lines(root, scratch, base, data, anew):
    """A value in the log, in half of the cases with the chain computed anew from there on."""
    folder = fresh(root, base, scratch)
    entries = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    number = data.draw(st.integers(0, len(entries) - 1))
    path = data.draw(st.sampled_from(sorted(places(entries[number]), key=str)))
    before = json.dumps(entries[number])
    put(entries[number], path, data.draw(ODD))
    if json.dumps(entries[number]) == before:
        return
    head = GENESIS
    for entry in entries if anew else ():
        entry["prev"] = head
        entry["hash"] = head = entry_hash(entry)
    (folder / "audit.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    # The last line is the one that nothing else names: whoever changes it alone needs the head kept elsewhere.
    last = anew and number == len(entries) - 1
    rehashed = anew and path in (("prev",), ("hash",))
    assert is_noticed(folder) or last or rehashed


@settings(FUZZ, max_examples=60)
@given(base=st.sampled_from(["done", "cut"]), name=st.sampled_from(TENSORS), data=st.data())
def test_tensors(root, scratch, base, name, data):
    """A value in a file of tensors, of its own kind or of another."""
    folder = fresh(root, base, scratch)
    if not (folder / name).exists():
        return
    content = read_tensors(folder / name)
    path = data.draw(st.sampled_from(sorted(places(content), key=str)))
    like = st.sampled_from([torch.zeros(0), torch.ones(3, 2), torch.tensor(1), torch.zeros(2, dtype=torch.bool)])
    put(content, path, data.draw(st.one_of(ODD, like)))
    files.save_tensors(folder / name, content)
    assert is_noticed(folder) or meaning(folder / name) == meaning(root / base / name)


@settings(FUZZ, max_examples=12)
@given(base=st.sampled_from(["done", "cut"]), name=st.sampled_from(NAMES), change=byte_changes(), anew=st.booleans())
def test_no_command_breaks(root, scratch, base, name, change, anew):
    """report, verify and resume end with 0 or with 2 and one line, whatever lies there."""
    for command in ("report", "verify", "resume"):
        folder = fresh(root, base, scratch)
        path = folder / name
        path.write_bytes(change(path.read_bytes() if path.exists() else b"{}"))
        assert call(command, folder) in (0, 2), command


@settings(FUZZ, max_examples=20)
@given(data=st.data())
def test_no_log_breaks_a_report(root, scratch, data):
    """Values of any type in a chain that holds, and a checkpoint that names it: who can write all of it."""
    folder = fresh(root, "cut", scratch)
    entries = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    number = data.draw(st.integers(0, len(entries) - 1))
    put(entries[number], data.draw(st.sampled_from(sorted(places(entries[number]), key=str))), data.draw(ODD))
    head = GENESIS
    for entry in entries:
        entry["prev"] = head
        entry["hash"] = head = entry_hash(entry)
    (folder / "audit.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    content = read_tensors(folder / "checkpoint.safetensors")
    files.save_tensors(folder / "checkpoint.safetensors", {**content, "entry": head})
    assert load_checkpoint(folder / "checkpoint.safetensors").entry == head
    assert call("report", folder) in (0, 2)
