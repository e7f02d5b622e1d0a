# SPDX-License-Identifier: Apache-2.0
"""Counters in a file: the same values, the same next rounds and the same checkpoint as in memory."""

import copy
import os
from pathlib import Path

import pytest
import torch

from fairflare.aggregators.fedheal import FedHEAL
from fairflare.core.tensor_files import Entries
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.engine.hashes import model_hash, state_hash
from fairflare.functional import consistency

ROUNDS = 6


def lies_in_a_file(counters):
    return counters.untyped_storage().filename is not None


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
    assert not any(map(lies_in_a_file, in_memory["history"].values()))
    assert all(map(lies_in_a_file, in_file["history"].values()))
    copied = copy.deepcopy(in_file["history"]["site-0"])
    assert not lies_in_a_file(copied) and torch.equal(copied, in_memory["history"]["site-0"])


def test_a_file_of_counters_has_no_name_and_goes_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(consistency.tempfile, "tempdir", str(tmp_path))
    counters = consistency._zeros(5000, torch.int16, in_file=True)
    counters += 7
    assert not list(tmp_path.iterdir()) and str(tmp_path) in Path("/proc/self/maps").read_text()
    assert counters.tolist() == [7] * 5000
    del counters
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_small_counters_stay_in_memory():
    *_, state = rounds(lambda t: True, "paper")
    assert not any(map(lies_in_a_file, state["history"].values()))


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

    def full(file, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    *found, state = rounds(lambda t: True, "paper")
    assert found == expected and not any(map(lies_in_a_file, state["history"].values()))


def test_counters_in_a_file_widen_after_255_rounds(monkeypatch):
    monkeypatch.setattr(consistency, "LARGE", 0)
    update = {"w": torch.ones(5)}
    reply = Reply("site-1", Entries(update, {"w": torch.float32}), 1, trainable=frozenset("w"))
    found = torch.full((5,), 255, dtype=torch.uint8)
    state = {"history": {"site-1": found}, "rounds": {"site-1": 255}}
    after = FedHEAL().aggregate({"w": torch.zeros(5)}, [reply], state, Info(Round(256, 300))).state
    counters = after["history"]["site-1"]
    assert lies_in_a_file(counters) and counters.tolist() == [256] * 5 and counters.dtype == torch.int16
