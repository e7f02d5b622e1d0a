# SPDX-License-Identifier: Apache-2.0
"""Scores on the shared test sets: once for each of the last five rounds, of that very model."""

import threading

import pytest

from cases import each
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine import loop
from fairflare.engine.audit import AuditLog, verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import read_history
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site, scorer
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from helpers import initial_model, make_federation, make_sites

LIMIT = 30
"""Seconds after which something that waits is stuck."""


SMALL = {"images_per_site": 24, "test_images": 20, "site_test_images": 10, "n_sites": 4}


@pytest.mark.slow
def test_test_sets_are_scored_side_by_side_to_the_same_bits(monkeypatch):
    """Two threads wait for one another inside a set, so that neither could have been alone."""
    parts, both = build_parts(make_config("fedavg", "digits:small", values=SMALL)), threading.Barrier(2, timeout=LIMIT)
    alone = scorer(parts, 16)(parts.model, True)
    assert len(alone) > 1
    met, shared = threading.local(), type(parts.trainer).shared_batches

    def meet(trainer, batches):
        if not hasattr(met, "once"):
            met.once = both.wait()
        return shared(trainer, batches)

    together = scorer(parts, 16, 2)
    monkeypatch.setattr(type(parts.trainer), "shared_batches", meet)
    assert together(parts.model, True) == alone
    changed = {key: value + 0.1 for key, value in parts.model.items()}
    monkeypatch.undo()
    assert together(changed, True) == scorer(parts, 16)(changed, True) != alone


class Dies(BaseException):
    """The process is killed."""


def score(model, final):
    """Another number for every other model, and how many sets are asked for."""
    found = {"clean": {"corrupted": False, "n": 4, "metrics": {"auc": float(int(model_hash(model)[:6], 16))}}}
    return found | {"noise": found["clean"]} if final else found


def scored_run(folder, transport=None, rounds=3, score=score):
    folder.mkdir(exist_ok=True)
    federation = make_federation(folder, transport, rounds=rounds)
    federation.score = score
    return federation


def entries(folder, event):
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == event]


def scores(folder):
    """Round -> what the log says of its model, which it says once."""
    found = [(e["round"], (e["model_sha256"], e["test_sets"])) for e in entries(folder, "scores")]
    assert len(dict(found)) == len(found)
    return dict(found)


class Failing(InProcess):
    """Nobody answers in one round."""

    def __init__(self, round):
        super().__init__(make_sites())
        self.round = round

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        return [] if (one.task, one.round.number) == ("train", self.round) else super().exchange(instructions)


def test_each_of_the_last_five_rounds_is_scored_once(tmp_path):
    scored_run(tmp_path, rounds=7).run(initial_model())
    rounds = entries(tmp_path, "round")
    assert [bool(e.get("unscored")) for e in rounds] == [False] * 2 + [True] * 5
    assert not any("test_sets" in e for e in rounds)
    found = scores(tmp_path)
    assert {n: sha256 for n, (sha256, _) in found.items()} == {e["round"]: e["model_sha256"] for e in rounds[2:]}
    assert [list(sets) for _, sets in found.values()] == [["clean"]] * 4 + [["clean", "noise"]]
    for sha256, sets in found.values():
        assert sets["clean"]["metrics"]["auc"] == int(sha256[:6], 16)


MOMENTS = {
    "before a checkpoint": (loop, "save_checkpoint", False),
    "after a checkpoint": (loop, "save_checkpoint", True),
    "before a line": (AuditLog, "append", False),
    "after a line": (AuditLog, "append", True),
    "before the model": (loop, "save_tensors", False),
}


@pytest.mark.slow
@each("moment", MOMENTS)
def test_killed_at_any_moment_the_same_scores_stand_once(moment, tmp_path, monkeypatch):
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
                found = scored_run(folder, rounds=2).run(initial_model())
                break
            except Dies:
                died += 1
        assert model_hash(found) == model_hash(final) and scores(folder) == wanted
        assert read_history(verify(folder / "audit.jsonl")).completed
        if not died:
            break
    assert 0 < number < 19


def test_a_repeated_round_owes_its_own_scores(tmp_path, monkeypatch):
    """Killed before the checkpoint, and the round that is repeated leaves another model: that one is scored."""
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


def test_a_failed_run_says_what_its_models_got(tmp_path):
    with pytest.raises(RunFailed, match="round 3: 0 accepted sites"):
        scored_run(tmp_path, Failing(3), 4).run(initial_model())
    found, last = scores(tmp_path), verify(tmp_path / "audit.jsonl")[-1]
    assert list(found) == [1, 2] and (last["event"], list(last["test_sets"])) == ("finish", ["clean", "noise"])
    assert last["test_sets"]["clean"] == found[2][1]["clean"]
    scored_run(tmp_path, rounds=4).run(initial_model())
    assert list(scores(tmp_path)) == [1, 2, 3, 4] and scores(tmp_path)[1] == found[1]


def test_where_scoring_fails_the_run_that_goes_on_scores_the_checkpoints_model(tmp_path):
    """The line that says why the run failed is written all the same."""

    def broken(model, final):
        raise MemoryError

    with pytest.raises(MemoryError):
        scored_run(tmp_path, score=broken).run(initial_model())
    last = verify(tmp_path / "audit.jsonl")[-1]
    assert (last["reason"], last["test_sets"], scores(tmp_path)) == ("internal error: MemoryError", {}, {})
    scored_run(tmp_path).run(initial_model())
    scored_run(tmp_path.parent / "whole").run(initial_model())
    assert scores(tmp_path) == scores(tmp_path.parent / "whole") and list(scores(tmp_path)) == [1, 2, 3]


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
