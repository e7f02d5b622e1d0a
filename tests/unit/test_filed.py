# SPDX-License-Identifier: Apache-2.0
"""Counters in a file: the same values, the same next rounds and the same checkpoint as in memory."""

import copy
import gc
import os
import weakref

import numpy as np
import pytest
import torch

from fairflare.aggregators.fedheal import FedHEAL
from fairflare.core.tensor_files import Entries
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.engine.hashes import model_hash, state_hash
from fairflare.functional import consistency
from fairflare.functional.consistency import Filed, Room

ROUNDS = 6


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_values_are_read_and_changed_block_by_block(dtype):
    room = Room()
    before = (torch.arange(70_000) % 200).to(dtype)
    first, second = Filed.of(room, before, dtype), Filed(room, 70_000, dtype)
    assert torch.equal(first.tensor(), before) and first.tensor().dtype == dtype
    found = first.read(65_536, np.empty(70_000 - 65_536, before.numpy().dtype))
    first.write(65_536, found + 1)
    assert torch.equal(first.tensor()[65_536:], before[65_536:] + 1)
    assert torch.equal(first.tensor()[:65_536], before[:65_536]) and not second.tensor().any()


def test_a_copy_lies_in_memory():
    filed = Filed.of(Room(), torch.ones(3), torch.uint8)
    copied = copy.deepcopy({"history": filed})["history"]
    assert type(copied) is torch.Tensor and state_hash({"history": copied}) == state_hash({"history": filed})
    copied += 1
    assert filed.tensor().tolist() == [1, 1, 1]


def test_the_file_goes_with_the_last_that_lies_in_it():
    room = Room()
    filed, number = Filed(room, 3, torch.uint8), room.number
    del room
    gc.collect()
    assert os.fstat(number).st_nlink == 0
    del filed
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(number)


def test_one_site_is_in_memory_while_they_are_written(tmp_path, monkeypatch):
    room, arrays, read = Room(), [], Filed.tensor

    def counted(self):
        arrays.append(weakref.ref(found := read(self)))
        assert sum(one() is not None for one in arrays) <= 2
        return found

    monkeypatch.setattr(Filed, "tensor", counted)
    history = {f"site-{k}": Filed(room, 1 << 20, torch.uint8) for k in range(8)}
    save_checkpoint(tmp_path / "c", Checkpoint(1, {"w": torch.zeros(2)}, {"history": history}))
    assert len(arrays) == 8 and (tmp_path / "c").stat().st_size > 8 << 20


def rounds(kept, variant, again=None):
    """Rounds of FedHEAL on drawn updates, one site away in the third; ``kept``: how an update lies, by round."""
    draw = torch.Generator().manual_seed(5)
    model = {"w": torch.randn(300, 301, generator=draw), "b": torch.randn(7, generator=draw), "m": torch.zeros(3)}
    rule, state, dtypes = FedHEAL(variant=variant), {}, {key: value.dtype for key, value in model.items()}
    for t in range(1, ROUNDS + 1):
        updates = [{k: torch.randn(v.shape, generator=draw) * 0.01 for k, v in model.items()} for _ in range(4)]
        replies = [
            Reply(f"site-{k}", Entries(u, dtypes) if kept(t) else u, 10 + k, trainable=frozenset("wb"))
            for k, u in enumerate(updates)
            if (t, k) != (3, 3)
        ]
        outcome = rule.aggregate(model, replies, state, Info(Round(t, ROUNDS)))
        model, state = outcome.model, again(t, outcome) if again else outcome.state
    return model_hash(model), state_hash(state), outcome.weights, outcome.notes, state


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_fedheal_makes_the_same_model_wherever_its_counters_lie(variant, monkeypatch):
    monkeypatch.setattr(consistency, "LARGE", 0)
    *expected, in_memory = rounds(lambda t: False, variant)
    *found, in_file = rounds(lambda t: True, variant)
    *mixed, _ = rounds(lambda t: t in (2, 5), variant)
    assert found == expected and mixed == expected
    assert {type(one) for one in in_memory["history"].values()} == {torch.Tensor}
    assert {type(one) for one in in_file["history"].values()} == {Filed}


def test_small_counters_stay_in_memory():
    *_, state = rounds(lambda t: True, "paper")
    assert {type(one) for one in state["history"].values()} == {torch.Tensor}


def test_checkpoints_are_alike_and_rounds_go_on_from_them(tmp_path, monkeypatch):
    monkeypatch.setattr(consistency, "LARGE", 0)

    def saved(folder):
        def again(t, outcome):
            save_checkpoint(tmp_path / f"{folder}-{t}", Checkpoint(t, outcome.model, outcome.state))
            return load_checkpoint(tmp_path / f"{folder}-{t}").state

        return again

    *expected, _ = rounds(lambda t: False, "paper")
    for folder, kept in (("memory", lambda t: False), ("file", lambda t: True)):
        *found, _ = rounds(kept, "paper", saved(folder))
        assert found == expected
    for t in range(1, ROUNDS + 1):
        sizes = [(tmp_path / f"{folder}-{t}").stat().st_size for folder in ("memory", "file")]
        assert sizes[0] * 0.99 < sizes[1] <= sizes[0], sizes  # a record for each site, not for each entry of it
        one, other = (load_checkpoint(tmp_path / f"{folder}-{t}").state for folder in ("memory", "file"))
        assert state_hash(one) == state_hash(other)


def test_on_a_full_disk_counters_stay_in_memory(monkeypatch):
    monkeypatch.setattr(consistency, "LARGE", 0)
    *expected, _ = rounds(lambda t: False, "paper")

    def full(room, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Room, "take", full)
    *found, state = rounds(lambda t: True, "paper")
    assert found == expected and {type(one) for one in state["history"].values()} == {torch.Tensor}


def test_counters_in_a_file_widen_after_255_rounds(monkeypatch):
    monkeypatch.setattr(consistency, "LARGE", 0)
    update = {"w": torch.ones(5)}
    reply = Reply("site-1", Entries(update, {"w": torch.float32}), 1, trainable=frozenset("w"))
    found = torch.full((5,), 255, dtype=torch.uint8)
    state = {"history": {"site-1": Filed.of(Room(), found, torch.uint8)}, "rounds": {"site-1": 255}}
    after = FedHEAL().aggregate({"w": torch.zeros(5)}, [reply], state, Info(Round(256, 300))).state
    counters = after["history"]["site-1"]
    assert isinstance(counters, Filed) and counters.tensor().tolist() == [256] * 5 and counters.dtype == torch.int16
