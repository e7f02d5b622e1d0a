# SPDX-License-Identifier: Apache-2.0
"""Scores on the shared test sets: off the rounds' path, once for each of the last five rounds, of that very model."""

import gc
import json
import threading
import time
import weakref

import pytest

from cases import each
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine import best, loop
from fairflare.engine.audit import AuditLog, verify
from fairflare.engine.best import UNSCORED, Backlog, Beside, Unscored
from fairflare.engine.files import read_tensors, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import read_history
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site, scorer
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.report.audit_reader import read_trail
from helpers import initial_model, make_federation, make_sites

LIMIT = 30
"""Seconds after which something that waits is stuck."""


SMALL = {"images_per_site": 24, "test_images": 20, "site_test_images": 10, "n_sites": 4}


@pytest.mark.slow
def test_test_sets_are_scored_side_by_side_to_the_same_bits():
    """Two threads wait for one another inside a set, so that neither could have been alone."""
    parts, both = build_parts(make_config("fedavg", "digits:small", values=SMALL)), threading.Barrier(2, timeout=LIMIT)
    alone = scorer(parts, 16)(parts.model, True, lambda: None)
    assert len(alone) > 1
    met = threading.local()

    def meet():
        if not hasattr(met, "once"):
            met.once = both.wait()

    together = scorer(parts, 16, 2)
    assert together(parts.model, True, meet) == alone
    changed = {key: value + 0.1 for key, value in parts.model.items()}
    assert together(changed, True, lambda: None) == scorer(parts, 16)(changed, True, lambda: None) != alone


class Dies(BaseException):
    """The process is killed."""


def score(model, final, before_batch):
    """Another number for every other model, and how many sets are asked for."""
    before_batch()
    found = {"clean": {"corrupted": False, "n": 4, "metrics": {"auc": float(int(model_hash(model)[:6], 16))}}}
    return found | {"noise": found["clean"]} if final else found


def scored_run(folder, transport=None, rounds=3, beside=Beside.NOTHING, score=score):
    folder.mkdir(exist_ok=True)
    federation = make_federation(folder, transport, rounds=rounds)
    federation.score, federation.beside = score, beside
    return federation


def entries(folder, event):
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == event]


def scores(folder):
    """Round -> what the log says of its model, which it says once."""
    found = [(e["round"], (e["model_sha256"], e["test_sets"])) for e in entries(folder, "scores")]
    assert len(dict(found)) == len(found)
    return dict(found)


class Waiting(InProcess):
    """Before sites train or evaluate, ``wait(task, round)`` is called."""

    def __init__(self, wait):
        super().__init__(make_sites())
        self.wait = wait

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        self.wait(one.task, one.round.number)
        return super().exchange(instructions)


class Failing(InProcess):
    """Nobody answers in one round."""

    def __init__(self, round):
        super().__init__(make_sites())
        self.round = round

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        return [] if (one.task, one.round.number) == ("train", self.round) else super().exchange(instructions)


@pytest.mark.parametrize("beside", Beside)
def test_each_of_the_last_five_rounds_is_scored_once(beside, tmp_path):
    scored_run(tmp_path, rounds=7, beside=beside).run(initial_model())
    rounds = entries(tmp_path, "round")
    assert [bool(e.get("unscored")) for e in rounds] == [False] * 2 + [True] * 5
    assert not any("test_sets" in e for e in rounds) and not (tmp_path / UNSCORED).exists()
    found = scores(tmp_path)
    assert {n: sha256 for n, (sha256, _) in found.items()} == {e["round"]: e["model_sha256"] for e in rounds[2:]}
    assert [list(sets) for _, sets in found.values()] == [["clean"]] * 4 + [["clean", "noise"]]
    for sha256, sets in found.values():
        assert sets["clean"]["metrics"]["auc"] == int(sha256[:6], 16)


@pytest.mark.parametrize("beside", Beside)
def test_no_round_waits_for_a_score(beside, tmp_path):
    """A score takes until the sites evaluate, or, in their process, until they have."""
    evaluating = threading.Event()

    def slow(model, final, before_batch):
        assert evaluating.wait(LIMIT), "a round waits for a score"
        return score(model, final, before_batch)

    transport = Waiting(lambda task, round: evaluating.set() if task == "evaluate" else None)
    scored_run(tmp_path, transport, 6, beside, slow).run(initial_model())
    assert list(scores(tmp_path)) == [2, 3, 4, 5, 6]


def test_what_is_found_while_sites_train_is_logged_when_the_round_ends(tmp_path):
    done = []

    def noted(model, final, before_batch):
        done.append(model_hash(model))
        return score(model, final, before_batch)

    def until_all_are_scored(task, round):
        until = time.monotonic() + LIMIT
        while task == "train" and len(list(tmp_path.glob(f"{UNSCORED}/*.safetensors"))) > 0 and len(done) < round - 1:
            assert time.monotonic() < until
            time.sleep(0.001)

    scored_run(tmp_path, Waiting(until_all_are_scored), 5, Beside.ROUNDS, noted).run(initial_model())
    order = [(e["event"], e.get("round")) for e in verify(tmp_path / "audit.jsonl")]
    assert len(done) == 5 and order.index(("scores", 1)) < order.index(("round", 4))


def test_between_exchanges_the_thread_waits(tmp_path):
    batches = []

    def endless(model, final, before_batch):
        while True:
            batches.append(1)
            before_batch()

    scoring = Backlog(tmp_path, 1, endless, Beside.ROUNDS)
    model = initial_model()
    scoring.owe(1, model, model_hash(model))
    with scoring.while_sites(Beside.ROUNDS):
        until = time.monotonic() + LIMIT
        while len(batches) < 3 and time.monotonic() < until:
            time.sleep(0.001)
    time.sleep(0.02)  # for the batch that it is at
    before = len(batches)
    time.sleep(0.05)
    assert before >= 3 and len(batches) == before
    scoring.close()


def test_one_model_is_in_memory_at_a_time(tmp_path, monkeypatch):
    living, most = [], []
    original = best.read_model

    def read(path):
        gc.collect()
        most.append(sum(reference() is not None for reference in living))
        found = original(path)
        living.append(weakref.ref(next(iter(found.values()))))
        return found

    monkeypatch.setattr(best, "read_model", read)
    scored_run(tmp_path, rounds=5).run(initial_model())
    assert most == [0] * 5


MOMENTS = {
    "before a model is written": (Unscored, "write", False),
    "after a model is written": (Unscored, "write", True),
    "before a checkpoint": (loop, "save_checkpoint", False),
    "after a checkpoint": (loop, "save_checkpoint", True),
    "before a model is read": (Unscored, "read", False),
    "before a file goes": (Unscored, "clear", False),
    "after a file has gone": (Unscored, "clear", True),
    "before a line": (AuditLog, "append", False),
    "after a line": (AuditLog, "append", True),
    "before the model": (loop, "save_tensors", False),
}


@pytest.mark.slow
@each("beside", [Beside.NOTHING, Beside.ROUNDS])
@each("moment", MOMENTS)
def test_killed_at_any_moment_the_same_scores_stand_once(moment, beside, tmp_path, monkeypatch):
    """A kill at each call in turn: before it, and again in the run that goes on."""
    final = scored_run(tmp_path / "whole", rounds=2).run(initial_model())
    wanted, (place, name, after) = scores(tmp_path / "whole"), MOMENTS[moment]
    original, calls = getattr(place, name), []

    def dies(at):
        def patched(*args, **kwargs):
            calls.append(name)
            if len(calls) - 1 == at and not after:
                raise Dies
            found = original(*args, **kwargs)
            if len(calls) - 1 == at:
                raise Dies
            return found

        return patched

    for number in range(20):
        folder, died = tmp_path / str(number), 0
        for at in (number, 1, None):
            calls.clear()
            monkeypatch.setattr(place, name, dies(at))
            try:
                found = scored_run(folder, rounds=2, beside=beside).run(initial_model())
                break
            except Dies:
                died += 1
        assert model_hash(found) == model_hash(final) and scores(folder) == wanted
        assert not (folder / UNSCORED).exists() and read_history(verify(folder / "audit.jsonl")).completed
        if not died:
            break
    assert 0 < number < 19


def test_a_repeated_round_owes_its_own_scores(tmp_path, monkeypatch):
    """Killed between file and checkpoint, and the round that is repeated leaves another model: that one is scored."""
    original = loop.save_checkpoint

    def dies(path, checkpoint):
        if checkpoint.round == 2:
            raise Dies
        original(path, checkpoint)

    monkeypatch.setattr(loop, "save_checkpoint", dies)
    with pytest.raises(Dies):
        scored_run(tmp_path).run(initial_model())
    monkeypatch.undo()
    sites = make_sites()
    sites["site-3"].seed = 6  # as after an update that did not come
    scored_run(tmp_path, InProcess(sites)).run(initial_model())
    rounds = [(e["round"], e["model_sha256"]) for e in entries(tmp_path, "round")]
    assert [n for n, _ in rounds] == [1, 2, 2, 3] and rounds[1] != rounds[2]
    assert {n: sha256 for n, (sha256, _) in scores(tmp_path).items()} == dict(rounds)


def _changed(path):
    model = read_tensors(path)
    next(iter(model.values())).view(-1)[0] += 1
    save_tensors(path, model)


def _swapped(path):
    for one, other in (("1.safetensors", "x"), ("2.safetensors", "1.safetensors"), ("x", "2.safetensors")):
        (path.parent / one).rename(path.parent / other)


TAMPERED = {
    "altered": (_changed, "is not the model that audit.jsonl says round 1 left"),
    "another round's": (_swapped, "is not the model that audit.jsonl says round 1 left"),
    "missing": (lambda path: path.unlink(), "is missing"),
    "no tensors": (lambda path: path.write_bytes(b"\x80\x04\x95"), "expected tensors"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "expected a file"),
    "of a round that was not": (
        lambda path: (path.parent / "3.safetensors").write_bytes(path.read_bytes()),
        "says nothing",
    ),
    "of no round": (lambda path: (path.parent / "01.safetensors").write_bytes(path.read_bytes()), "says nothing"),
    "a stranger's": (lambda path: (path.parent / "notes.txt").write_text("mine"), "says nothing"),
    "a link for a folder": (
        lambda path: (path.parent.rename(path.parents[1] / "x"), path.parent.symlink_to(path.parents[1] / "x")),
        "expected a folder",
    ),
}


@each("how", TAMPERED)
def test_another_file_is_refused_and_never_scored(how, tmp_path):
    def dies(task, round):
        if (task, round) == ("train", 3):
            raise Dies

    with pytest.raises(Dies):
        scored_run(tmp_path, Waiting(dies)).run(initial_model())
    tamper, said = TAMPERED[how]
    tamper(tmp_path / UNSCORED / "1.safetensors")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    seen = []
    with pytest.raises(UserError, match=said):
        scored_run(tmp_path, score=lambda *args: seen.append(args)).run(initial_model())
    assert not seen and before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_file_that_is_changed_while_the_run_goes_on_is_not_scored(tmp_path):
    def tamper(task, round):
        if (task, round) == ("train", 3):
            _changed(tmp_path / UNSCORED / "1.safetensors")

    with pytest.raises(RunFailed, match="1.safetensors: is not the model"):
        scored_run(tmp_path, Waiting(tamper)).run(initial_model())
    last = verify(tmp_path / "audit.jsonl")[-1]
    assert last["status"] == "failed" and "1.safetensors: is not the model" in last["reason"] and scores(tmp_path) == {}


@pytest.mark.parametrize("beside", Beside)
def test_a_failed_run_says_what_its_models_got(beside, tmp_path):
    with pytest.raises(RunFailed, match="round 3: 0 accepted sites"):
        scored_run(tmp_path, Failing(3), 4, beside).run(initial_model())
    found, last = scores(tmp_path), verify(tmp_path / "audit.jsonl")[-1]
    assert list(found) == [1, 2] and (last["event"], list(last["test_sets"])) == ("finish", ["clean", "noise"])
    assert last["test_sets"]["clean"] == found[2][1]["clean"]
    scored_run(tmp_path, rounds=4, beside=beside).run(initial_model())
    assert list(scores(tmp_path)) == [1, 2, 3, 4] and scores(tmp_path)[1] == found[1]


@pytest.mark.parametrize("beside", Beside)
def test_where_scoring_fails_the_models_stay_for_the_run_that_goes_on(beside, tmp_path):
    """The line that says why the run failed is written all the same."""

    def broken(model, final, before_batch):
        raise MemoryError

    with pytest.raises(RunFailed, match="round 3: 0 accepted sites"):
        scored_run(tmp_path, Failing(3), 3, beside, broken).run(initial_model())
    last = verify(tmp_path / "audit.jsonl")[-1]
    assert (last["event"], last["test_sets"], scores(tmp_path)) == ("finish", {}, {})
    with pytest.raises(MemoryError):
        scored_run(tmp_path, rounds=3, beside=beside, score=broken).run(initial_model())
    assert verify(tmp_path / "audit.jsonl")[-1]["reason"] == "internal error: MemoryError"
    assert sorted(path.name for path in (tmp_path / UNSCORED).iterdir()) == [
        "1.safetensors",
        "2.safetensors",
        "3.safetensors",
    ]
    scored_run(tmp_path, rounds=3, beside=beside).run(initial_model())
    scored_run(tmp_path.parent / "whole", rounds=3).run(initial_model())
    assert scores(tmp_path) == scores(tmp_path.parent / "whole") and not (tmp_path / UNSCORED).exists()


def _without(found, number):
    return [e for e in found if (e["event"], e.get("round")) != ("scores", number)]


LOGS = {
    "a score twice": lambda found: [*found[:-1], found[-2], found[-1]],
    "a score is missing": lambda found: _without(found, 2),
    "a score of another model": lambda found: [
        {**e, "model_sha256": "0" * 64} if e["event"] == "scores" else e for e in found
    ],
    "a score before its round": lambda found: [found[0], found[-2], *found[1:-2], found[-1]],
    "a score after the end": lambda found: [*found[:-2], found[-1], found[-2]],
    "a score in words": lambda found: [{**e, "test_sets": {"clean": "good"}} for e in found],
    "a round that says something else of it": lambda found: [
        {**e, "unscored": 1} if e["event"] == "round" else e for e in found
    ],
}


@each("how", LOGS)
def test_a_log_that_tells_it_otherwise_is_refused(how, tmp_path):
    scored_run(tmp_path).run(initial_model())
    found = verify(tmp_path / "audit.jsonl")
    read_history(found)
    with pytest.raises(UserError, match="line \\d"):
        read_history(LOGS[how](found))


def as_format_2(found):
    """The log as the version before wrote it: scores in the rounds' own lines, {} where there were none."""
    sets = {e["round"]: e["test_sets"] for e in found if e["event"] == "scores"}
    lines = [{**e, "test_sets": sets.get(e["round"], {})} if e["event"] == "round" else e for e in found]
    lines = [{k: v for k, v in e.items() if k != "unscored"} for e in lines if e["event"] != "scores"]
    return [{**lines[0], "log_format": 2}, *lines[1:]]


def test_a_log_of_the_format_before_is_read_alike(tmp_path):
    scored_run(tmp_path, rounds=7).run(initial_model())
    found = verify(tmp_path / "audit.jsonl")
    old = as_format_2(found)
    course = read_history(old)
    assert course.completed and not course.left
    new_trail, old_trail = read_trail(found), read_trail(old)
    assert [r.get("test_sets") or {} for r in new_trail.rounds] == [r["test_sets"] for r in old_trail.rounds]
    assert new_trail.test_sets() == old_trail.test_sets() != {}


def test_a_run_of_the_format_before_goes_on(tmp_path):
    """Its first rounds' scores stay where they are, and those of the others follow in lines of their own."""

    def dies(task, round):
        if (task, round) == ("train", 3):
            raise Dies

    with pytest.raises(Dies):
        scored_run(tmp_path, Waiting(dies)).run(initial_model())
    log = tmp_path / "audit.jsonl"
    found = as_format_2([json.loads(line) for line in log.read_text().splitlines()])
    log.unlink()
    for path in (tmp_path / UNSCORED).iterdir():
        path.unlink()
    for entry in found:
        content = {k: v for k, v in entry.items() if k not in ("seq", "time", "event", "prev", "hash")}
        last = AuditLog(log).append(entry["event"], **content)
    checkpoint = read_tensors(tmp_path / "checkpoint.safetensors")
    save_tensors(tmp_path / "checkpoint.safetensors", checkpoint | {"entry": last["hash"]})
    scored_run(tmp_path).run(initial_model())
    assert list(scores(tmp_path)) == [3] and read_history(verify(log)).completed


@pytest.mark.slow
@pytest.mark.parametrize("env", ["sim", "flare"])
def test_a_tasks_models_get_the_same_scores_whoever_scores_them(env, tmp_path):
    """The task's own network and test sets, where server and sites have a network each as in FLARE's processes."""
    values = {"images": 72, "size": 32, "test_images": 20, "site_test_images": 0}
    config = make_config("fedavg", "ich-phantom:small", rounds=3, sites=3, values=values)
    found = []
    for where in ("local", env):
        at_sites, at_server = build_parts(config), build_parts(config)
        sites = {name: build_site(config, at_sites, name) for name in at_sites.task.sites()}
        (tmp_path / where).mkdir()
        federation = build_federation(config, at_server, InProcess(sites), tmp_path / where, where)
        found.append((model_hash(federation.run(at_server.model)), scores(tmp_path / where)))
    assert found[0] == found[1] and list(found[0][1]) == [1, 2, 3]
    assert all({"clean", "noise 3"} <= set(sets) for _, sets in found[0][1].values())
