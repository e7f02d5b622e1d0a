# SPDX-License-Identifier: Apache-2.0
"""The audit chain: any change of an earlier line shows."""

import json
import os
import resource
import tracemalloc

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.validation import misfit
from fairflare.engine.audit import GENESIS, AuditLog, entry_hash, verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import SHAPES


@pytest.fixture
def path(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(3):
        log.append("round", round=number, weights={"site-1": 0.5})
    return log.path


def rewrite(path, change):
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")


def edited(lines):
    entry = json.loads(lines[1])
    entry["weights"]["site-1"] = 0.9
    return [lines[0], json.dumps(entry), lines[2]]


def forged(lines):
    """The same, with a hash of its own that fits."""
    entry = json.loads(edited(lines)[1])
    entry["hash"] = entry_hash(entry)
    return [lines[0], json.dumps(entry), lines[2]]


def test_a_whole_chain_verifies(path):
    entries = verify(path)
    assert [e["seq"] for e in entries] == [0, 1, 2] and entries[0]["prev"] == GENESIS
    assert all(b["prev"] == a["hash"] for a, b in zip(entries, entries[1:]))


@pytest.mark.parametrize(
    "change, line",
    [
        (edited, 2),
        (forged, 3),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [lines[0], lines[0], *lines[1:]], 2),
        (lambda lines: lines[1:], 1),
    ],
)
def test_any_change_is_found(path, change, line):
    rewrite(path, change)
    with pytest.raises(UserError, match=f"line {line}"):
        verify(path)


def test_garbage_is_named(path):
    with path.open("a") as file:
        file.write("not json\n")
    with pytest.raises(UserError, match="line 4 is not JSON"):
        verify(path)


def test_opening_again_continues_the_chain_and_cuts_a_torn_line(path):
    with path.open("a") as file:
        file.write('{"seq": 3, "event": "rou')
    AuditLog(path).append("resume", from_round=2)
    assert [e["event"] for e in verify(path)] == ["round"] * 3 + ["resume"]


def test_a_long_log_is_continued_without_holding_it(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: None)
    log = AuditLog(path)
    for number in range(3, 500):
        log.append("round", round=number, weights=dict.fromkeys(map(str, range(300)), 0.5))
    tracemalloc.start()
    again, peak = AuditLog(path), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4 and again.head() == log.head()
    assert (again.first["round"], again.last["round"]) == (0, 499)


def test_a_broken_chain_is_not_continued(path):
    rewrite(path, edited)
    with pytest.raises(UserError):
        AuditLog(path)


def test_a_line_that_finds_no_room_leaves_nothing_of_itself(path):
    """A limit on the file's size stands for the disk's: the begin of a long line is taken, the rest refused."""
    log = AuditLog(path)
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            log.append("round", text="x" * 90_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert log.append("end")["seq"] + 1 == len(verify(path))


def test_nan_is_never_written(path):
    with pytest.raises(ValueError):
        AuditLog(path).append("round", loss=float("nan"))
    assert len(verify(path)) == 3


def test_model_hash_tells_bits_types_shapes_and_names_apart():
    base = {"w": torch.zeros(2, 3), "n": torch.tensor(1)}
    others = [
        {"w": torch.zeros(3, 2), "n": torch.tensor(1)},
        {"w": torch.zeros(2, 3, dtype=torch.float64), "n": torch.tensor(1)},
        {"w": -torch.zeros(2, 3), "n": torch.tensor(1)},
        {"v": torch.zeros(2, 3), "n": torch.tensor(1)},
        {"w": torch.zeros(2, 3), "n": torch.tensor(2)},
    ]
    assert len({model_hash(m) for m in [base, *others]}) == 6
    assert model_hash(base) == model_hash({"n": torch.tensor(1), "w": torch.zeros(3, 2).T})


def test_what_lies_under_an_empty_name_is_looked_at_too():
    accepted = SHAPES["round"]["accepted"]
    assert misfit({"": "text"}, accepted) and misfit({"": {"n_examples": "1"}}, accepted)
    assert misfit({1: 2}, {str: int}, "counts") == "counts" and not misfit({"": 1}, {str: int})
