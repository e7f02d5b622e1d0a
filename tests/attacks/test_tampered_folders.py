# SPDX-License-Identifier: Apache-2.0
"""A run's folder that somebody changed: ``verify`` notices it, ``resume`` refuses it, and neither touches a file."""

import copy
import json
import shutil
import struct

import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.engine import loop
from fairflare.engine.audit import AuditLog, verify
from fairflare.engine.files import read_tensors, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.report import write
from run_folders import (
    call,
    edit_bytes,
    edit_json,
    edit_tensors,
    entries_of,
    files,
    huge,
    instead,
    killed,
    loop_of_links,
    make_folders,
    put_entries,
)

LOG, CHECKPOINT, MODEL, CONFIG, REPORT, PAGE = (
    "audit.jsonl",
    "checkpoint.safetensors",
    "model.safetensors",
    "config.json",
    "report.json",
    "report.html",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("tampered"))


def lines(change, *, anew=False):
    """Change the list of the log's entries, in place or by returning another."""

    def apply(folder, root):
        found = entries_of(folder)
        put_entries(folder, changed if (changed := change(found)) is not None else found, anew=anew)

    return apply


def at(number, anew=False, **values):
    return lines(lambda found: found[number].update(values), anew=anew)


def tensors(name, change):
    return lambda folder, root: edit_tensors(folder / name, change)


def values(name, change):
    return lambda folder, root: edit_json(folder / name, change)


def raw(name, change):
    return lambda folder, root: edit_bytes(folder / name, change)


def placed(name, make):
    return lambda folder, root: instead(folder / name, make)


def removed(*names):
    def apply(folder, root):
        for name in names:
            (folder / name).unlink()

    return apply


def of(other, *names):
    """Files of another run of the same shape."""

    def apply(folder, root):
        for name in names:
            shutil.copy(root / other / name, folder / name)

    return apply


def appended(event, **content):
    """One more line that the chain holds with, as only who can write the folder can add."""

    def apply(folder, root):
        last = [e for e in entries_of(folder) if "state_sha256" in e][-1]
        told = {key: value(last) if callable(value) else value for key, value in content.items()}
        AuditLog(folder / LOG).append(event, **told)

    return apply


def resumed(**changes):
    shared = {
        "from_round": lambda e: e.get("round", 0),
        "preflight": {},
        "rejected": {},
        "model_sha256": lambda e: e["model_sha256"],
        "state_sha256": lambda e: e["state_sha256"],
        "declared": lambda e: e["declared"],
    }
    return appended("resume", **{**shared, **changes})


def negated(content):
    model = content.get("model", content)
    model.update({key: -value for key, value in model.items()})


def bumped(content):
    """The first number below ``content``, however deep, a little larger."""
    for key, value in content.items():
        if isinstance(value, dict) and bumped(value):
            return True
        if isinstance(value, (int, float)):
            content[key] = value + 1
            return True
        if isinstance(value, torch.Tensor) and value.numel():
            value.view(-1)[0] += 1
            return True
    return False


def within(key, change):
    return lambda content: (change(content[key]), None)[1]


def first_entry(change):
    """Put ``change`` of the model's first entry in its place."""

    def apply(content):
        model = content.get("model", content)
        key = next(iter(model))
        model[key] = change(model[key])

    return apply


class Opens:
    def __reduce__(self):
        return open, ("opened", "w")


def pickled(path):
    """The same content as earlier versions wrote it, under the new name."""
    content = read_tensors(path)
    torch.save(content, path)


def headed(change):
    """Another header, and the tensors as they are."""

    def apply(data):
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        text = json.dumps(changed if (changed := change(header)) is not None else header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return apply


def described(change):
    """What the header says of the content beside the tensors, changed as JSON's text."""

    def apply(header):
        about, before = header["__metadata__"], header["__metadata__"]["fairflare"]
        about["fairflare"] = change(before)
        assert about["fairflare"] != before

    return headed(apply)


def named_so(header):
    """Two entries of the same size under each other's name: another program's reader finds them swapped."""
    one, other = (f"state/rule/history/site-{number}" for number in (1, 2))
    header[one], header[other] = header[other], header[one]


def enlarged(header):
    next(value for key, value in header.items() if key != "__metadata__")["shape"] = [2**20, 2**20]


def hidden(data):
    """A tensor that the content does not tell of: another program's reader would find it."""
    (length,) = struct.unpack("<Q", data[:8])
    end = len(data) - 8 - length
    return (
        headed(lambda h: h.update(more={"dtype": "U8", "shape": [4], "data_offsets": [end, end + 4]}))(data) + b"more"
    )


DEEP = "[" * 100_000 + "]" * 100_000
MANY = '{"map":[["round",' + "[" + "0," * 1_000_001 + "0]]]}"


def rounds(count):
    """Keep the log up to the end of that round."""

    def cut(found):
        seen = [k for k, e in enumerate(found) if e["event"] == "round"]
        return found[: seen[count - 1] + 1] if count else found[:1]

    return lines(cut)


def without(*events, anew=False):
    return lines(lambda found: [e for e in found if e["event"] not in events], anew=anew)


LOGS = {
    "the last line is dropped": ("done", lines(lambda e: e[:-1])),
    "the last lines are dropped": ("done", lines(lambda e: e[:-2])),
    "shortened to its rounds": ("plus", rounds(3)),
    "shortened by a round": ("cut", rounds(1)),
    "shortened by a round, finished": ("heal", rounds(2)),
    "shortened to its start": ("early", rounds(0)),
    "shortened in the window": ("window", rounds(0)),
    "no evaluation": ("done", without("evaluation", anew=True)),
    "no finish": ("done", without("finish", anew=True)),
    "no finish and no report": ("done", without("finish", "report", anew=True)),
    "no failed round's end": ("failed", lines(lambda e: [x for x in e if x["event"] != "finish"], anew=True)),
    "no start": ("cut", lines(lambda e: e[1:])),
    "no start, hashes anew": ("cut", lines(lambda e: e[1:], anew=True)),
    "emptied": ("done", raw(LOG, lambda data: b"")),
    "emptied while it goes on": ("cut", raw(LOG, lambda data: b"")),
    "missing": ("done", removed(LOG)),
    "missing while it goes on": ("early", removed(LOG)),
    "two lines swapped": ("cut", lines(lambda e: [e[0], e[2], e[1]])),
    "two lines swapped, hashes anew": ("cut", lines(lambda e: [e[0], e[2], e[1]], anew=True)),
    "a line twice": ("cut", lines(lambda e: [*e, e[-1]])),
    "a line twice, hashes anew": ("cut", lines(lambda e: [*e, copy.deepcopy(e[-1])], anew=True)),
    "a report's line twice, hashes anew": (
        "done",
        lines(lambda e: [*e[:-2], *map(copy.deepcopy, e[-1:] * 2)], anew=True),
    ),
    "CRLF": ("done", raw(LOG, lambda data: data.replace(b"\n", b"\r\n"))),
    "CR": ("done", raw(LOG, lambda data: data.replace(b"\n", b"\r"))),
    "CR while it goes on": ("cut", raw(LOG, lambda data: data.replace(b"\n", b"\r"))),
    "LFCR": ("early", raw(LOG, lambda data: data.replace(b"\n", b"\n\r"))),
    "a byte order mark": ("done", raw(LOG, lambda data: b"\xef\xbb\xbf" + data)),
    "UTF-16": ("cut", raw(LOG, lambda data: data.decode().encode("utf-16"))),
    "garbage behind": ("done", raw(LOG, lambda data: data + b"x")),
    "garbage behind while it goes on": ("cut", raw(LOG, lambda data: data + b"\x00" * 20)),
    "a blank line": ("cut", raw(LOG, lambda data: data + b"\n")),
    "no last line end": ("done", raw(LOG, lambda data: data[:-1])),
    "no last line end while it goes on": ("cut", raw(LOG, lambda data: data[:-1])),
    "an extra key": ("cut", at(1, extra=1)),
    "an extra key, hashes anew": ("cut", at(1, extra=1, anew=True)),
    "a number": ("done", at(1, weights={"site-1": 1.0})),
    "a number, hashes anew": ("done", at(1, weights={"site-1": 1.0}, anew=True)),
    "a number while it goes on, hashes anew": ("early", at(2, weights={"site-1": 1.0}, anew=True)),
    "another type, hashes anew": ("early", at(2, accepted=[], anew=True)),
    "a failed run that completed, hashes anew": ("failed", at(-2, status="completed", anew=True)),
    "another round, hashes anew": ("cut", at(2, round=3, anew=True)),
    "another number of rounds, hashes anew": ("cut", at(0, rounds=2, anew=True)),
    "another run's": ("done", of("plus", LOG)),
    "an end is added": (
        "cut",
        appended("finish", status="completed", reason="", model_sha256=lambda e: e["model_sha256"]),
    ),
    "a round is added": ("done", appended("round", round=4)),
    "an unknown line is added": ("cut", appended("blessing")),
    "a line without its hash": ("cut", lines(lambda e: e[-1].pop("hash") and None)),
    "deeply nested": (
        "cut",
        raw(LOG, lambda data: data + b'{"seq": 3, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    ),
    "huge": ("done", placed(LOG, huge)),
    "a folder": ("done", placed(LOG, lambda path: path.mkdir())),
    "a loop of links": ("cut", placed(LOG, loop_of_links)),
}

LAUNDERED = {
    "resumed from another model": ("cut", resumed(model_sha256="0" * 64)),
    "resumed from another state": ("cut", resumed(state_sha256="0" * 64)),
    "resumed from an earlier round": ("cut", resumed(from_round=1)),
    "resumed from a later round": ("early", resumed(from_round=3)),
    "resumed with other counts": ("early", resumed(declared={"site-1": 1})),
    "resumed from another model after a failure": ("failed", resumed(model_sha256="0" * 64)),
    "resumed after its end from another state": ("done", resumed(state_sha256="0" * 64)),
}

CHECKPOINTS = {
    "a negated model": ("cut", tensors(CHECKPOINT, negated)),
    "a negated model, finished": ("done", tensors(CHECKPOINT, negated)),
    "a negated model in the window": ("window", tensors(CHECKPOINT, negated)),
    "a negated model after a failure": ("failed", tensors(CHECKPOINT, negated)),
    "one weight": (
        "early",
        tensors(CHECKPOINT, within("model", lambda m: next(iter(m.values())).view(-1)[:1].add_(1e-6))),
    ),
    "another state of FedHEAL": ("cut", tensors(CHECKPOINT, within("state", bumped))),
    "another state of FedISM+": ("early", tensors(CHECKPOINT, within("state", bumped))),
    "no state": ("cut", tensors(CHECKPOINT, within("state", dict.clear))),
    "a state in another order": (
        "cut",
        tensors(CHECKPOINT, lambda c: {**c, "state": dict(reversed(c["state"].items()))}),
    ),
    "more state": ("early", tensors(CHECKPOINT, within("state", lambda s: s.update(more=1.0)))),
    "other norms": ("early", tensors(CHECKPOINT, within("history", dict.clear))),
    "an earlier round": ("cut", tensors(CHECKPOINT, lambda c: c.update(round=1))),
    "a later round": ("early", tensors(CHECKPOINT, lambda c: c.update(round=3))),
    "a round that is no number": ("early", tensors(CHECKPOINT, lambda c: c.update(round=2.0))),
    "other counts": ("cut", tensors(CHECKPOINT, within("declared", bumped))),
    "counts of other types": (
        "cut",
        tensors(CHECKPOINT, lambda c: c.update(declared={k: float(v) for k, v in c["declared"].items()})),
    ),
    "no counts": ("early", tensors(CHECKPOINT, within("declared", dict.clear))),
    "an extra key": ("cut", tensors(CHECKPOINT, lambda c: c.update(extra=1))),
    "a key less": ("cut", tensors(CHECKPOINT, lambda c: c.pop("declared") and None)),
    "another precision": ("cut", tensors(CHECKPOINT, first_entry(torch.Tensor.double))),
    "another shape": ("cut", tensors(CHECKPOINT, first_entry(lambda t: t.reshape(1, -1)))),
    "an entry that is no tensor": ("cut", tensors(CHECKPOINT, first_entry(lambda t: 1.0))),
    "an entry of 2^40 numbers": ("cut", raw(CHECKPOINT, headed(enlarged))),
    "names changed round": ("cut", raw(CHECKPOINT, headed(named_so))),
    "a tensor that nothing tells of": ("cut", raw(CHECKPOINT, hidden)),
    "a tensor told of twice": (
        "cut",
        raw(CHECKPOINT, described(lambda t: t.replace('["entry"', '["more",{"tensor":0}],["entry"', 1))),
    ),
    "a key twice": ("cut", raw(CHECKPOINT, described(lambda t: t.replace('["round",', '["round",1],["round",', 1)))),
    "content without end": ("cut", raw(CHECKPOINT, described(lambda t: DEEP))),
    "a million values": ("cut", raw(CHECKPOINT, described(lambda t: MANY))),
    "content of another kind": ("cut", raw(CHECKPOINT, described(lambda t: '{"call":"os.system"}'))),
    "content that is no JSON": ("cut", raw(CHECKPOINT, described(lambda t: "{"))),
    "NaN in its content": ("cut", raw(CHECKPOINT, described(lambda t: t.replace('["round",2]', '["round",NaN]', 1)))),
    "no content": ("cut", raw(CHECKPOINT, headed(lambda h: h["__metadata__"].pop("fairflare") and None))),
    "a header longer than the file": ("cut", raw(CHECKPOINT, lambda data: b"\xff" * 7 + b"\x00" + data[8:])),
    "an entry more": ("cut", tensors(CHECKPOINT, within("model", lambda m: m.update(more=torch.zeros(1))))),
    "an entry less": ("cut", tensors(CHECKPOINT, within("model", dict.popitem))),
    "a pickle": ("cut", lambda folder, root: pickled(folder / CHECKPOINT)),
    "a program": ("cut", placed(CHECKPOINT, lambda path: torch.save({"round": 2, "model": Opens()}, path))),
    "a list": ("cut", placed(CHECKPOINT, lambda path: save_tensors(path, [1]))),
    "emptied": ("cut", raw(CHECKPOINT, lambda data: b"")),
    "cut in half": ("early", raw(CHECKPOINT, lambda data: data[: len(data) // 2])),
    "text": ("cut", raw(CHECKPOINT, lambda data: b"{}")),
    "missing": ("cut", removed(CHECKPOINT)),
    "missing, finished": ("done", removed(CHECKPOINT)),
    "of another run": ("cut", of("early", CHECKPOINT)),
    "of the whole run": ("cut", of("heal", CHECKPOINT)),
    "huge": ("cut", placed(CHECKPOINT, huge)),
    "a folder": ("early", placed(CHECKPOINT, lambda path: path.mkdir())),
    "a loop of links": ("early", placed(CHECKPOINT, loop_of_links)),
}

MODELS = {
    "negated": ("done", tensors(MODEL, negated)),
    "negated after a failure": ("failed", tensors(MODEL, negated)),
    "of another run": ("done", of("plus", MODEL)),
    "of a run that has not ended": ("cut", of("heal", MODEL)),
    "an entry more": ("done", tensors(MODEL, lambda m: m.update(more=torch.zeros(1)))),
    "no entries": ("done", tensors(MODEL, dict.clear)),
    "an entry of 2^40 numbers": ("done", raw(MODEL, headed(enlarged))),
    "a tensor that nothing tells of": ("done", raw(MODEL, hidden)),
    "emptied": ("done", raw(MODEL, lambda data: b"")),
    "of no type": ("done", raw(MODEL, lambda data: data.replace(b'"F32"', b'"Q32"'))),
    "a pickle": ("done", lambda folder, root: pickled(folder / MODEL)),
    "a program": ("failed", placed(MODEL, lambda path: torch.save(Opens(), path))),
    "a folder": ("done", placed(MODEL, lambda path: path.mkdir())),
}

CONFIGS = {
    "the seed": ("cut", values(CONFIG, lambda c: c.update(seed=9))),
    "the title": ("done", values(CONFIG, lambda c: c.update(title="Better"))),
    "the versions": ("cut", values(CONFIG, lambda c: c["versions"].clear())),
    "where it ran": ("early", values(CONFIG, lambda c: c.update(env="sim"))),
    "a space": ("done", raw(CONFIG, lambda data: data + b" ")),
    "CRLF": ("cut", raw(CONFIG, lambda data: data.replace(b"\n", b"\r\n"))),
    "a byte order mark": ("done", raw(CONFIG, lambda data: b"\xef\xbb\xbf" + data)),
    "deeply nested": ("done", raw(CONFIG, lambda data: b"[" * 100_000 + b"]" * 100_000)),
    "a list": ("done", raw(CONFIG, lambda data: b"[]")),
    "emptied": ("cut", raw(CONFIG, lambda data: b"")),
    "missing": ("done", removed(CONFIG)),
    "of another run": ("done", of("plus", CONFIG)),
    "a folder": ("cut", placed(CONFIG, lambda path: path.mkdir())),
    "a loop of links": ("cut", placed(CONFIG, loop_of_links)),
}

REPORTS = {
    "a number": ("done", values(REPORT, lambda r: r["fairness"].update(worst=1.0))),
    "a number after a failure": ("failed", values(REPORT, lambda r: r.update(rounds=3))),
    "the status": ("failed", values(REPORT, lambda r: r.update(status="completed"))),
    "a space": ("plus", raw(REPORT, lambda data: data + b" ")),
    "emptied": ("done", raw(REPORT, lambda data: b"")),
    "deeply nested": ("failed", raw(REPORT, lambda data: b"[" * 100_000)),
    "of another run": ("done", of("plus", REPORT, PAGE)),
    "a folder": ("done", placed(REPORT, lambda path: path.mkdir())),
    "a page's number": ("done", raw(PAGE, lambda data: data.replace(b"0.", b"1.", 1))),
    "a page's number after a failure": ("failed", raw(PAGE, lambda data: data.replace(b"0.", b"1.", 1))),
    "a page with more": ("heal", raw(PAGE, lambda data: data + b"<script></script>")),
    "of a run that has not ended": ("cut", of("heal", REPORT, PAGE)),
}

ALL = {
    f"{file}: {name}": what
    for file, group in (
        (LOG, LOGS),
        (f"{LOG}, laundered", LAUNDERED),
        (CHECKPOINT, CHECKPOINTS),
        (MODEL, MODELS),
        (CONFIG, CONFIGS),
        (REPORT, REPORTS),
    )
    for name, what in group.items()
}


@each("name", ALL)
def test_a_tampered_folder_is_noticed_and_not_continued(name, root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base, change = ALL[name]
    folder = tmp_path / "run"
    shutil.copytree(root / base, folder)
    untouched = files(folder)
    change(folder, root)
    before = files(folder)
    assert before != untouched or not (folder / LOG).is_file(), "nothing was changed"
    for command in ("verify", "resume"):
        capsys.readouterr()
        code = call(command, folder)
        out, err = capsys.readouterr()
        assert code == 2, (command, code, out, err)
        assert err.startswith("fairflare: ") and err.count("\n") == 1 and "internal error" not in err and not out
        assert "is complete" not in err, err
        assert files(folder) == before, f"{command} changed a file"
    assert not (tmp_path / "opened").exists(), "a pickle ran"


def test_there_are_enough():
    assert len(ALL) >= 60 and {base for base, _ in ALL.values()} == {
        "done",
        "plus",
        "heal",
        "cut",
        "early",
        "window",
        "failed",
    }


@each("name", ["done", "plus", "heal", "cut", "early", "window", "failed"])
def test_an_untampered_folder_is_accepted(name, root, tmp_path, capsys):
    """And what was cut short ends in the very model of the run that was not."""
    folder = tmp_path / "run"
    shutil.copytree(root / name, folder)
    before = files(folder)
    assert call("verify", folder) == 0
    assert files(folder) == before
    whole = {"cut": "heal", "early": "plus", "window": "done", "failed": "done"}.get(name)
    if whole is None:
        assert call("resume", folder) == 2 and "complete" in capsys.readouterr().err
        return
    assert call("resume", folder) == 0
    assert call("verify", folder) == 0
    models = [read_tensors(place / MODEL) for place in (folder, root / whole)]
    assert model_hash(models[0]) == model_hash(models[1])
    assert "resume" in [e["event"] for e in verify(folder / LOG)]


def test_a_kept_head_shows_a_folder_made_anew(root, tmp_path, capsys):
    """Chain, checkpoint and record made to fit by who can write all of it: only the head kept elsewhere tells."""
    folder = tmp_path / "run"
    shutil.copytree(root / "cut", folder)
    kept = entries_of(folder)[-1]["hash"]
    at(1, weights={"site-1": 1.0}, anew=True)(folder, root)
    head = entries_of(folder)[-1]["hash"]
    edit_tensors(folder / CHECKPOINT, lambda c: c.update(entry=head))
    assert call("verify", folder) == 0 and call("verify", folder, "--head", head) == 0
    assert call("verify", folder, "--head", kept) == 2 and "head was kept" in capsys.readouterr().err
    assert call("verify", root / "cut", "--head", kept) == 0


KILLS = {
    "before the model": (loop, "save_tensors", lambda path, model: True),
    "before the report": (write, "summarise", lambda *arguments: True),
}


@pytest.mark.parametrize("name", KILLS)
def test_a_kill_at_the_end_is_resumed(name, root, tmp_path):
    folder = tmp_path / "run"
    killed("fedavg", folder, *KILLS[name])
    assert call("resume", folder) == 0 and call("verify", folder) == 0
    models = [read_tensors(place / MODEL) for place in (folder, root / "done")]
    assert model_hash(models[0]) == model_hash(models[1])


def test_a_kill_between_record_and_report(tmp_path, capsys):
    folder = tmp_path / "run"
    killed("fedavg", folder, write, "save_text", lambda path, text: path.name == PAGE)
    assert call("verify", folder) == 2 and "writes it anew" in capsys.readouterr().err
    assert call("resume", folder) == 0 and call("verify", folder) == 0


@pytest.mark.parametrize("name", [REPORT, PAGE])
def test_a_report_that_is_gone_is_noticed_and_written_anew(name, root, tmp_path, capsys):
    """Nothing false was left, so that the log and the model, which are checked, are enough."""
    folder = tmp_path / "run"
    shutil.copytree(root / "done", folder)
    before = files(folder)
    (folder / name).unlink()
    assert call("verify", folder) == 2 and f"{name}: is missing" in capsys.readouterr().err
    assert call("resume", folder) == 0 and files(folder) == before
    assert call("verify", folder) == 0


@pytest.mark.parametrize("length", [1, 9, 40, 300])
def test_a_line_that_was_not_written_to_its_end_is_cut_off(root, tmp_path, length):
    folder = tmp_path / "run"
    shutil.copytree(root / "early", folder)
    line = json.dumps(
        {"seq": 3, "time": "2026-01-01", "event": "round", "weights": {"site-1": 0.25}, "more": "x" * 400}
    )
    edit_bytes(folder / LOG, lambda data: data + line[:length].encode())
    assert call("verify", folder) == 2 and call("resume", folder) == 0 and call("verify", folder) == 0
    assert model_hash(read_tensors(folder / MODEL)) == entries_of(root / "plus")[-1]["model_sha256"]


def test_a_log_that_changes_under_a_run_is_not_written_to(tmp_path):
    log = AuditLog(tmp_path / LOG)
    log.append("start")
    AuditLog(tmp_path / LOG).append("finish")
    before = (tmp_path / LOG).read_bytes()
    with pytest.raises(UserError, match="changed by somebody else"):
        log.append("round")
    assert (tmp_path / LOG).read_bytes() == before


def test_a_report_written_again_is_recorded_and_keeps_its_head(root, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(root / "done", folder)
    before = files(folder)
    assert call("report", folder) == 0 and files(folder) == before, "the same report needs no second line"
    (folder / PAGE).write_text("<html></html>")
    assert call("verify", folder) == 2 and call("report", folder) == 0 and call("verify", folder) == 0
    found = entries_of(folder)
    assert [e["event"] for e in found[-2:]] == ["finish", "report"]
    head = json.loads((folder / REPORT).read_text())["detail"]["provenance"]["chain_head"]
    assert head == found[-2]["hash"] == found[-1]["of"]


def test_a_log_of_the_version_before_is_named_as_that(root, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(root / "cut", folder)
    new = ("log_format", "state_sha256")
    put_entries(folder, [{k: v for k, v in e.items() if k not in new} for e in entries_of(folder)], anew=True)
    for command in ("verify", "resume", "report"):
        assert call(command, folder) == 2 and "older version" in capsys.readouterr().err


@pytest.mark.parametrize("values", [{"preflight": {"site-1": {"findings": 1}}}, {"versions": 3}, {"sites": [None]}])
def test_a_log_of_which_no_report_can_be_made(values, root, tmp_path, capsys):
    """By who can write chain and checkpoint: one line all the same."""
    folder = tmp_path / "run"
    shutil.copytree(root / "cut", folder)
    at(0, anew=True, **values)(folder, root)
    edit_tensors(folder / CHECKPOINT, lambda c: c.update(entry=entries_of(folder)[-1]["hash"]))
    code = call("report", folder)
    err = capsys.readouterr().err
    assert code in (0, 2) and "internal error" not in err and len(err.splitlines()) <= 1


def test_a_comparison_does_not_reuse_a_tampered_run(root, tmp_path, capsys):
    command = ["compare", "fedavg", "--task", "support2", "--rounds", "1", "--set", "model=linear", "--out", tmp_path]
    assert call(*command) == 0 and call(*command) == 0 and "reused" in capsys.readouterr().err
    (folder,) = (p for p in tmp_path.iterdir() if p.is_dir())
    edit_json(folder / REPORT, lambda r: r["fairness"].update(worst=1.0))
    assert call(*command) == 2
    assert "report.json: is not the report" in capsys.readouterr().err


GONE = {
    "the record and both reports": ("done", lambda e: e["event"] == "report", (REPORT, PAGE)),
    "everything after the rounds": ("done", lambda e: e["event"] in ("report", "finish"), (REPORT, PAGE, MODEL)),
    "a failed run's record and reports": ("failed", lambda e: e["event"] == "report", (REPORT, PAGE)),
}
LACKS = {
    "the record and both reports": (1, ["no report"]),
    "everything after the rounds": (0, ["not ended", "no report"]),
    "a failed run's record and reports": (0, ["no report"]),
}


@pytest.mark.parametrize("name", GONE)
def test_verify_names_what_is_absent(name, root, tmp_path, capsys):
    """Dropping the last lines and their files leaves a chain that holds: verify says how far it goes."""
    base, dropped, names = GONE[name]
    folder = tmp_path / "run"
    shutil.copytree(root / base, folder)
    put_entries(folder, [e for e in entries_of(folder) if not dropped(e)])
    removed(*names)(folder, root)
    code, lacks = LACKS[name]
    before = files(folder)
    capsys.readouterr()
    assert call("verify", folder) == code
    out, err = capsys.readouterr()
    line = " ".join(out.split()).partition(" nobody vouches for this log")[0]
    assert line.startswith("verified: ") == (code == 0) and line.endswith("; " + "; ".join(lacks)) and not err
    assert call("verify", folder, "--json") == code
    said = json.loads(capsys.readouterr().out)
    assert said["verified"] == (code == 0) and said["absent"] == lacks and said["ended"] == ("not ended" not in lacks)
    assert said["entries"] == len(entries_of(folder)) and said["head"] == entries_of(folder)[-1]["hash"]
    assert files(folder) == before


@pytest.mark.parametrize("name", ["done", "plus", "failed", "cut", "window"])
def test_verify_says_whether_a_run_has_ended(name, root, capsys):
    capsys.readouterr()
    assert call("verify", root / name) == 0
    line = " ".join(capsys.readouterr().out.split())
    cut = name in ("cut", "window")
    assert line.startswith("verified: ") and ("not ended" in line) == cut and ("no report" in line) == cut


def test_a_record_of_no_files_is_no_report(root, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(root / "done", folder)
    put_entries(folder, [{**e, "files": {}} if e["event"] == "report" else e for e in entries_of(folder)], anew=True)
    removed(REPORT, PAGE)(folder, root)
    edit_tensors(folder / CHECKPOINT, lambda c: c.update(entry=entries_of(folder)[-4]["hash"]))
    capsys.readouterr()
    assert call("verify", folder) == 2
    out, err = capsys.readouterr()
    assert err.startswith("fairflare: ") and REPORT in err and err.count("\n") == 1 and not out
