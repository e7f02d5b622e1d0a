# SPDX-License-Identifier: Apache-2.0
"""Updates that do not fit into memory wait in a file, and make the same model from there."""

import contextlib
import dataclasses
import gc
import os

import pytest
import torch

from fairflare.core.schema import Answer, Instruction
from fairflare.core.tensor_files import Entries, Stored
from fairflare.core.types import Info, Reply, Round
from fairflare.engine import loop
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.engine.traffic import Spooled
from helpers import initial_model, make_federation, make_sites
from runs import bits, run

TRAIN = Instruction("train", Round(1, 1), {})


class Answers:
    """A transport whose answers are given."""

    def __init__(self, *updates):
        self.updates = {f"site-{k}": update for k, update in enumerate(updates)}

    def sites(self):
        return list(self.updates)

    def exchange(self, instructions):
        return (Answer(site, 1, self.updates[site]) for site in instructions)


def spooled(*updates, room):
    transport = Answers(*updates)
    return list(Spooled(transport, lambda: room).exchange(dict.fromkeys(transport.sites(), TRAIN)))


UPDATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(2.0, dtype=torch.float64), "c": torch.zeros(0, 4)}


def test_what_fits_stays_in_memory_and_the_rest_goes_into_the_file():
    first, *rest = spooled(UPDATE, UPDATE, UPDATE, room=40)
    assert first.update is UPDATE
    for answer in rest:
        assert all(isinstance(value, Stored) for value in answer.update.values()) and list(answer.update) == list(
            UPDATE
        )
        for key, value in UPDATE.items():
            found = answer.update[key].materialize()
            assert torch.equal(found, value) and found.dtype == value.dtype


def test_tensors_beside_the_update_count_and_go_into_the_file_too():
    class Beside(Answers):
        def exchange(self, instructions):
            for answer in super().exchange(instructions):
                yield dataclasses.replace(answer, tensors={"c/a": torch.arange(8.0), "c/b": "x"})

    size = sum(value.nbytes for value in UPDATE.values())
    asked = dict.fromkeys(("site-0", "site-1"), Instruction("train", Round(1, 1), UPDATE))
    first, second = Spooled(Beside(UPDATE, UPDATE), lambda: 2 * size + 40).exchange(asked)
    assert torch.equal(first.tensors["c/a"], torch.arange(8.0)) and isinstance(second.tensors["c/a"], Stored)
    assert torch.equal(second.tensors["c/a"].materialize(), torch.arange(8.0)) and second.tensors["c/b"] == "x"
    assert all(isinstance(value, Stored) for value in second.update.values())


def test_a_control_change_from_a_file_makes_the_same_model(tmp_path, monkeypatch):
    values = {"n_sites": 3, "batch_size": 64, "optimizer": "sgd", "lr": 0.01}
    found = [bits(run("scaffold", tmp_path / "memory", values, rounds=2))]
    monkeypatch.setattr(loop, "Spooled", lambda transport: Spooled(transport, lambda: 0))
    found.append(bits(run("scaffold", tmp_path / "file", values, rounds=2)))
    assert found[0] == found[1]


STRANGE = [None, 7, [torch.ones(3)], {"a": "x", "b": torch.ones(3).to_sparse()}, {"a": torch.ones(1).expand(9)}]


@pytest.mark.parametrize("update", STRANGE, ids=range(len(STRANGE)))
def test_what_is_no_plain_tensor_is_for_the_gate(update):
    (answer,) = spooled(update, room=0)
    assert answer.update is update


def test_on_a_full_disk_updates_stay_in_memory(monkeypatch):
    class Full:
        def seek(self, *place):
            return 0

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairflare.engine.traffic._opened", Full)
    assert spooled(UPDATE, room=0)[0].update is UPDATE


def unnamed():
    """Files that this process has open and that have no name."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.endswith("(deleted)")]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")
def test_the_file_has_no_name_and_is_gone_with_its_last_entry():
    before = len(unnamed())
    answers = spooled(UPDATE, UPDATE, room=0)
    assert len(unnamed()) == before + 1
    kept = answers[1].update["a"]
    del answers
    gc.collect()
    assert len(unnamed()) == before + 1 and torch.equal(kept.materialize(), UPDATE["a"])
    del kept
    gc.collect()
    assert len(unnamed()) == before


def test_a_federation_makes_the_same_model_from_files(tmp_path, monkeypatch):
    finals = []
    for name, room in (("memory", 1 << 40), ("file", 0)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(loop, "Spooled", lambda transport, room=room: Spooled(transport, lambda: room))
        federation = make_federation(tmp_path / name, InProcess(make_sites()))
        finals.append(model_hash(federation.run(initial_model())))
    assert finals[0] == finals[1]
    logs = [
        [e for e in verify(tmp_path / name / "audit.jsonl") if e["event"] == "round"] for name in ("memory", "file")
    ]
    for key in ("norms", "weights", "bytes", "state_sha256", "accepted"):
        assert [e[key] for e in logs[0]] == [e[key] for e in logs[1]]


@pytest.mark.parametrize("method", ["fedavg", "fedce", "fedheal", "fedlwr"])
def test_rules_do_not_see_where_an_update_lies(method, tmp_path):
    """Entries longer than a block, of which the last is not whole, and one that is mapped."""
    draw = torch.Generator().manual_seed(3)
    model = {"l.w": torch.randn(400, 401, generator=draw), "l.b": torch.randn(7, generator=draw)}
    updates = [{k: torch.randn(v.shape, generator=draw) * 0.01 for k, v in model.items()} for _ in range(4)]
    rule, outcomes = default_parts(method).rule, []
    for kept in (updates, [a.update for a in spooled(*updates, room=0)]):
        dtypes = {key: value.dtype for key, value in model.items()}
        held = [u if u is kept[k] and kept is updates else Entries(u, dtypes) for k, u in enumerate(kept)]
        replies = [Reply(f"site-{k}", u, 10 + k, trainable=frozenset(model)) for k, u in enumerate(held)]
        state = {}
        for t in (1, 2):
            outcome = rule.aggregate(model, replies, state, Info(Round(t, 5)))
            state = outcome.state
        outcomes.append(outcome)
    assert outcomes[0].weights == outcomes[1].weights
    assert model_hash(outcomes[0].model) == model_hash(outcomes[1].model)
