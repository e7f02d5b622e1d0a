# SPDX-License-Identifier: Apache-2.0
"""The audit chain: any change of an earlier line shows."""

import json
import os
import random
import resource
import string
import struct
import tracemalloc
import zlib

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.validation import misfit
from fairflare.engine import audit
from fairflare.engine.audit import GENESIS, AuditLog, Entries, Tail, entry_hash, verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import SHAPES
from fairflare.privacy import log_verifier
from fairflare.privacy.log_files import columns_of, log_files, pack, segment, unpack


def random_text(length):
    generator = random.Random(0)
    return "".join(generator.choices(string.ascii_letters + string.digits, k=length))


def of_round(number, sites=300):
    """A round's content as a method writes it; some sites lack a number, some a metric."""
    generator = random.Random(number)
    names = [f"hospital-{k:03}" for k in range(sites)]
    accepted = {
        name: {"n_examples": k, "scalars": {}, "metrics": {"auc": generator.random(), "loss": 1.0}}
        for k, name in enumerate(names)
    }
    for name in names[::3]:
        del accepted[name]["metrics"]["loss"]
    notes = {"kappa": {name: -generator.random() for name in names}, "none": None, "list": [1, 2.5, "a"], "empty": {}}
    weights = {name: generator.random() for name in names}
    return {"round": number, "accepted": accepted, "rejected": {}, "weights": weights, "notes": notes}


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A log of three segments with columns, and what was written."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(audit, "MAX_SEGMENT", 60_000)
    log = AuditLog(tmp_path / "audit.jsonl")
    written = [log.append("round", **of_round(number)) for number in range(1, ROUNDS + 1)]
    assert [one.name for one in log_files(log.path)] == FILES
    return log.path, written


ROUNDS = 18
FILES = [f"audit{k}.{end}" for k in ("", "-2", "-3") for end in ("jsonl", "columns")]


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


@pytest.mark.parametrize("parts", [{"text": random_text(90_000)}, {f"k{k}": "x" * 900 for k in range(100)}])
def test_a_line_that_finds_no_room_leaves_nothing_of_itself(path, parts):
    """A limit on the file's size stands for the disk's: the begin of a long line is taken, the rest refused."""
    log = AuditLog(path)
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            log.append("round", **parts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and sum(one.stat().st_size for one in log_files(path)) == len(before)
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


def test_segments_and_columns_hold_what_was_written(wide):
    path, written = wide
    assert verify(path) == written == list(log_verifier.Log(path))
    line = json.loads(path.read_text().splitlines()[0])
    assert set(line) == {"seq", "time", "event", "round", "rejected", "columns", "prev", "hash"}
    second = json.loads(segment(path, 2).read_text().splitlines()[0])
    assert second["prev"] == json.loads(path.read_text().splitlines()[-1])["hash"] and second["seq"] > 0


def test_a_log_is_read_from_the_disk_each_time(wide):
    path, written = wide
    entries = Entries(path)
    assert list(entries) == written and entries[-1] == written[-1] and entries[3:5] == written[3:5]
    assert (
        list(reversed(entries)) == written[::-1] and entries.last("round") == ROUNDS - 1 and entries.last("end") is None
    )
    assert len(entries.without("round")) == 0 and entries.hashes == [one["hash"] for one in written]
    data = columns_of(path).read_bytes()
    columns_of(path).write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(UserError):
        entries[0]


def test_a_log_in_segments_is_continued(wide):
    path, written = wide
    log = AuditLog(path)
    assert log.first == written[0] and log.last == written[-1]
    written += [log.append("round", **of_round(number)) for number in range(ROUNDS, 2 * ROUNDS)]
    assert verify(path) == written and len(log_files(path)) > len(FILES)


def test_a_long_log_is_read_within_bounds(wide):
    path, _ = wide
    log = AuditLog(path)
    for number in range(ROUNDS, 200):
        log.append("round", **of_round(number))
    tracemalloc.start()
    assert sum(len(entry["accepted"]) for entry in Entries(path)) == 200 * 300
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6, "of one round, whatever their number"


def test_a_tail_follows_from_segment_to_segment(wide):
    path, written = wide
    tail, log = Tail(path), AuditLog(path)
    assert list(tail.new()) == written and list(tail.new()) == []
    more = [log.append("round", **of_round(number)) for number in range(ROUNDS, 2 * ROUNDS)]
    with log_files(path)[-2].open("ab") as file:
        file.write(b'{"seq": 3')
    assert list(tail.new()) == more and list(tail.new()) == []


TAMPERED = {
    "a bit of a column": lambda at: change(at("audit-2.columns"), lambda data: data[:99] + b"?" + data[100:]),
    "columns cut": lambda at: change(at("audit-2.columns"), lambda data: data[:-1]),
    "columns too long": lambda at: change(at("audit-2.columns"), lambda data: data + b"x"),
    "columns missing": lambda at: at("audit-2.columns").unlink(),
    "two columns files swapped": lambda at: swap(at("audit.columns"), at("audit-2.columns")),
    "two segments swapped": lambda at: [swap(at(f"audit.{e}"), at(f"audit-2.{e}")) for e in ("jsonl", "columns")],
    "the first segment missing": lambda at: at("audit.jsonl").unlink(),
    "a segment missing": lambda at: [at(f"audit-2.{e}").unlink() for e in ("jsonl", "columns")],
    "the last segment's lines missing": lambda at: at("audit-3.jsonl").unlink(),
    "the last segment empty": lambda at: at("audit-3.jsonl").write_bytes(b""),
    "a last line cut": lambda at: change(at("audit-3.jsonl"), lambda data: data[:-9]),
    "a segment's last line gone": lambda at: change(
        at("audit.jsonl"), lambda data: b"".join(data.splitlines(True)[:-1])
    ),
    "a segment too many": lambda at: at("audit-5.jsonl").write_bytes(at("audit-3.jsonl").read_bytes()),
    "columns too many": lambda at: at("audit-4.columns").write_bytes(b"x"),
    "another block of the right size": lambda at: other_block(at),
}


def change(path, how):
    path.write_bytes(how(path.read_bytes()))


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second), other.write_bytes(first)


def other_block(at):
    """A block of other numbers, with its size and hash in a line that has a hash of its own."""
    lines = at("audit-3.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    size, packed = line["columns"]["bytes"], pack({key: {} for key in line["columns"]["names"]})
    change(at("audit-3.columns"), lambda data: data[:-size] + packed)
    line["columns"] |= {"bytes": len(packed)}
    line["hash"] = entry_hash(line)
    at("audit-3.jsonl").write_text("\n".join([*lines[:-1], json.dumps(line)]) + "\n")


@pytest.mark.parametrize("how", TAMPERED)
def test_whatever_is_done_to_segments_and_columns_is_found(how, wide):
    path, _ = wide
    TAMPERED[how](lambda name: path.with_name(name))
    with pytest.raises(UserError):
        verify(path)
    with pytest.raises((log_verifier.Wrong, ValueError, OSError)):
        list(log_verifier.Log(path))


@pytest.mark.parametrize("left", ["a block", "a block of a new segment", "an empty segment", "half a line"])
def test_what_a_kill_leaves_is_refused_by_verify_and_cut_off_by_the_next_entry(left, wide):
    path, written = wide
    log = AuditLog(path)
    if left == "a block":
        change(columns_of(segment(path, 3)), lambda data: data + b"half a block")
    if left == "half a line":
        change(segment(path, 3), lambda data: data + b'{"seq": %d, "ti' % len(written))
    while "segment" in left and columns_of(segment(path, 3)).stat().st_size <= audit.MAX_SEGMENT:
        written.append(log.append("round", **of_round(len(written) + 1)))
    if left == "a block of a new segment":
        columns_of(segment(path, 4)).write_bytes(b"half a block")
    if left == "an empty segment":
        segment(path, 4).touch()
    with pytest.raises(UserError):
        verify(path)
    again = AuditLog(path)
    assert list(again.entries) == written
    written.append(again.append("round", **of_round(77)))
    assert verify(path) == written


def test_an_entry_that_could_not_be_read_again_is_not_written(path, monkeypatch):
    log, before = AuditLog(path), path.read_bytes()
    monkeypatch.setattr(audit, "MAX_LINE", 50_000)
    with pytest.raises(UserError, match="50000 bytes in a line"):
        log.append("round", **{f"k{k}": "x" * 900 for k in range(100)})
    with pytest.raises(UserError, match="cannot be written"):
        monkeypatch.setattr("fairflare.privacy.log_files.MAX_CELLS", 200)
        log.append("round", **of_round(1))
    with pytest.raises(ValueError):
        log.append("round", **{**of_round(1), "seconds": {"train": float("nan")}})
    assert path.read_bytes() == before and log_files(path) == [path]
    assert log.append("end")["seq"] == 3


FORGED = [
    lambda made: zlib.compress(b"x" * 100),
    lambda made: made[:-3],
    lambda made: made + b"x",
    lambda made: zlib.compress(b'[[["a"]],{"w":[0,[]]}]\n'),
    lambda made: zlib.compress(b'[[["a"]],{"w":[7,[1]]}]\n'),
    lambda made: zlib.compress(b'[[["a"]],{"w":[-1,[1]]}]\n'),
    lambda made: zlib.compress(b'[[["a"]],{"w":[0,"floats"]}]\n1234567'),
    lambda made: zlib.compress(b'[[["a"]],{"w":[0,"floats"]}]\n12345678more'),
    lambda made: zlib.compress(b'[[["a","b"]],{"w":[0,{"which":[0],"of":[]}]}]\n'),
    lambda made: zlib.compress(b'[[["a"]],{"w":[0,{"which":0}]}]\n'),
    lambda made: zlib.compress(b'[[["a"]],{"w":3}]\n'),
    lambda made: zlib.compress(b"[" * 100_000),
    lambda made: zlib.compress(b'[[[],%s],{"w":[%s]}]\n' % (b'["a"]', b"1," * 3_000_000 + b"1")),
]


@pytest.mark.parametrize("number", range(len(FORGED)))
def test_a_block_that_pack_does_not_make_is_refused(number):
    with pytest.raises(ValueError):
        unpack(FORGED[number](pack({"weights": {"a": 0.5, "b": 1.0}})))


def test_a_small_block_does_not_stand_for_a_large_one(monkeypatch):
    """Empty mappings cost no bytes, so they are counted; zeros shrink, so unpacking stops at the limit."""
    names = json.dumps([f"s{k}" for k in range(10_000)])
    tables = ",".join(['[0,{"which":1,"of":[]}]'] * 1_000)
    made = f'[[{names},[]],{{"w":[0,{{"each":[{tables}]}}]}}]\n'
    with pytest.raises(ValueError):
        unpack(zlib.compress(made.encode()))
    monkeypatch.setattr("fairflare.privacy.log_files.MAX_BLOCK", 10_000)
    with pytest.raises(ValueError):
        unpack(zlib.compress(b"0" * 1_000_000))


def test_a_block_gives_the_same_bits():
    floats = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]
    parts = {
        "floats": dict(zip("abcde", floats)),
        "rows": {k: {"x": v, "y": {"z": [v, k]}} for k, v in zip("abcde", floats)},
        "other": {"a": {"x": 1}, "b": {}, "c": {"y": True}, "d": {"x": 1.0, "y": None}},
        "mixed": {"a": 1, "b": 1.0, "c": "é\n", "d": None, "e": {"": {}}},
        "no mapping": [[], {}, "x"],
        "empty": {},
    }
    again = unpack(pack(parts))
    assert json.dumps(again) == json.dumps(parts)
    assert [struct.pack("d", value) for value in again["floats"].values()] == [struct.pack("d", v) for v in floats]


@pytest.mark.parametrize("seed", range(20))
def test_any_json_survives_a_block(seed):
    generator = random.Random(seed)

    def value(depth):
        kind = generator.randrange(4 if depth else 3)
        if kind == 3:
            return {generator.choice("abcdef"): value(depth - 1) for _ in range(generator.randrange(5))}
        return generator.choice([generator.random(), 3, None, "t", [1.5], True])

    for _ in range(100):
        parts = {str(k): value(4) for k in range(generator.randrange(1, 6))}
        assert json.dumps(unpack(pack(parts))) == json.dumps(parts)
