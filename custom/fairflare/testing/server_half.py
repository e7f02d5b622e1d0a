# SPDX-License-Identifier: Apache-2.0
"""What the server half of every trainer obeys, on a few rounds of made-up replies in which sites come and go."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairflare.core import registry
from fairflare.core.types import Info, Reply, Round, StateDict, TensorSpec, Training
from fairflare.engine.state import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.testing.example import copied, example_of, made_up, outline
from fairflare.testing.parts import tensors_fit
from fairflare.trainers.base import ServerState, Trainer

ROUNDS = (("site-1", "site-2"), ("site-2",), ("site-1", "site-2", "site-3"))
"""The sites that answer in each round."""


def check_server_half(id: str, trainer: Trainer, training: Training) -> None:
    """Raise AssertionError, with the trainer's id, where one of these does not hold.

    The same round twice gives the same state and the same model, and changes nothing that was passed in; what sites are
    sent is declared and finite; the corrected model has the model's entries, finite, and its counters; the state
    survives a checkpoint; a site may be away in a round.
    """
    network = example_of(trainer)[0]
    model, state = copied(network), dict[str, Any]()
    for number, sites in enumerate(ROUNDS, start=1):
        info = Info(Round(number, len(ROUNDS)), lr=training.lr, known_sites=3, steps=dict.fromkeys(sites, 2))
        for site in sites:
            _sends_what_it_declares(id, trainer, state, site, info)
        replies = [_reply(trainer, model, site, number) for site in sites]
        given = (model, state, [dict(reply.update) for reply in replies], [dict(reply.tensors) for reply in replies])
        kept = copy.deepcopy(given)
        first, second = (trainer.collect(model, replies, state, info) for _ in range(2))
        assert _same(first, second), f"{id}: collect gave two states of one round"
        combined = {key: value + 0.01 if value.is_floating_point() else value for key, value in model.items()}
        before, after = copy.deepcopy(combined), copy.deepcopy(first)
        once, twice = (trainer.correct(model, combined, first, info) for _ in range(2))
        assert _same(once, twice), f"{id}: correct gave two models of one round"
        assert _same(given, kept) and _same(combined, before) and _same(first, after), f"{id}: an argument was changed"
        _is_a_model(id, once, model)
        state = _restarted(model, first)
        assert _same(state, after), f"{id}: the state is another one after a restart"


def _sends_what_it_declares(id: str, trainer: Trainer, state: ServerState, site: str, info: Info) -> None:
    tensors_fit(id, trainer.receives, trainer.tensors_for(state, site, info))
    for name, value in trainer.orders(state, site, info).items():
        assert isinstance(value, float) and math.isfinite(value), f"{id}: the order {name} is {value}"


def _is_a_model(id: str, found: StateDict, model: StateDict) -> None:
    assert found.keys() == model.keys(), f"{id}: the corrected model has other entries"
    for key, value in model.items():
        assert found[key].dtype == value.dtype and found[key].shape == value.shape, f"{id}: {key} changed its form"
        assert bool(found[key].isfinite().all()), f"{id}: {key} of the corrected model is not finite"
        assert value.is_floating_point() or torch.equal(found[key], value), f"{id}: the counter {key} was changed"


def _reply(trainer: Trainer, model: StateDict, site: str, number: int) -> Reply:
    """An accepted answer with small values, other ones for every site and round."""
    generator = torch.Generator().manual_seed(100 * number + int(site.rpartition("-")[2]))
    update = {
        key: 0.01 * torch.rand(value.shape, generator=generator)
        for key, value in model.items()
        if value.is_floating_point()
    }
    probes = [registry.get_probe(probe)() for probe in trainer.probes]
    numbers = [spec for probe in probes for spec in probe.scalars(outline())]
    numbers += [spec for spec in trainer.sends if not isinstance(spec, TensorSpec)]
    sent = [spec for spec in trainer.sends if isinstance(spec, TensorSpec)]
    return Reply(
        site,
        update,
        10 * number,
        scalars={spec.name: spec.low + min(1.0, spec.high - spec.low) * 0.5 for spec in numbers},
        trainable=frozenset(name for name, _ in example_of(trainer)[0].named_parameters()),
        tensors={spec.name: {key: value / number for key, value in made_up(spec).items()} for spec in sent},
    )


def _restarted(model: StateDict, state: ServerState) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(path, Checkpoint(1, model, trainer=state))
        return dict(load_checkpoint(path).trainer)


def _same(a: Any, b: Any) -> bool:
    """Equal nested mappings and sequences of numbers, strings and tensors."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else bool(a == b)
