# SPDX-License-Identifier: Apache-2.0
"""``check_selector("my-selector")`` and ``check_server_optimizer("my-optimizer")``: what both have to hold; and the
server half of every trainer, on a few rounds of made-up replies in which sites come and go."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from fairflare.core import registry
from fairflare.core.types import Info, Reply, Round, StateDict, TensorSpec, Training
from fairflare.engine.checkpoint import Checkpoint
from fairflare.testing.example import copied, example_of, is_json, made_up, outline, restarted, same, tensors_fit
from fairflare.trainers.base import ServerState, Trainer

COUNTS = (1, 2, 5, 20)
"""Numbers of sites that a selector is asked to choose from."""
ROUNDS, SEEDS = 4, (0, 7)
TRAINABLE = frozenset({"weight", "half"})


def check_selector(id: str, among: Sequence[str] = (), **settings: Any) -> None:
    """Ask selector ``id`` in several rounds who of 1, 2, 5 and 20 sites takes part; raises AssertionError.

    It must choose among the sites that are there, each once and in their order, only such as it may ever select, no
    fewer than the round needs where that many are there, and the same again when it is asked again. ``among``: names to
    choose from in place of made-up ones; ``settings``: parameters that differ from their defaults.
    """
    cls = registry.get_part("selector", id)
    is_json(id, cls(**settings))
    groups = [tuple(among)] if among else [tuple(f"site-{k:02d}" for k in range(1, count + 1)) for count in COUNTS]
    usable = [group for group in groups if not cls(**settings).missing(group)]
    assert usable, f"{id}: {cls(**settings).missing(groups[-1])}"
    for group, number, seed, least in product(usable, range(1, ROUNDS + 1), SEEDS, (1, 2)):
        made = (cls(**settings), cls(**settings))
        round = Round(number, ROUNDS)
        given = list(group)
        chosen = made[0].select(given, round, seed, least)
        where = f"{id}: round {round.number} of {len(group)} sites"
        assert tuple(given) == group, f"{where}: changes the list of sites that it was given"
        assert isinstance(chosen, tuple), f"{where}: expected a tuple, got a {type(chosen).__name__}"
        assert chosen == tuple(site for site in group if site in chosen), (
            f"{where}: not among the sites, or not in order"
        )
        fewest = 1 if made[0].pools else min(least, len(group))
        assert set(chosen) <= set(made[0].ever(group)), f"{where}: chooses sites that it may never select (ever)"
        assert len(chosen) >= fewest, f"{where}: expected at least {fewest}, got {len(chosen)}"
        assert made[1].select(group, round, seed, least) == chosen, f"{where}: chooses others when it is asked again"


def check_server_optimizer(id: str, **settings: Any) -> None:
    """Let server optimizer ``id`` step along updates of usual, zero and large size; raises AssertionError.

    It must step trainable entries alone, keep shapes and types, stay finite, leave what it was given as it was, do the
    same again when it is asked again, and go on from its saved state as from the state itself. ``settings``: parameters
    that differ from their defaults.
    """
    cls = registry.get_part("server optimizer", id)
    is_json(id, cls(**settings))
    generator = torch.Generator().manual_seed(1)
    weight, mean = torch.randn(3, 4, generator=generator), torch.randn(4, generator=generator)
    half, seen = weight[0].to(torch.bfloat16), torch.tensor(3)
    model, state = {"weight": weight, "half": half, "running_mean": mean, "num_batches_tracked": seen}, dict[str, Any]()
    for scale in (0.1, 0.0, 1e4, 0.1):
        made = (cls(**settings), cls(**settings))
        combined = _combined(model, scale, generator)
        before = copy.deepcopy((model, combined, state))
        stepped, after = made[0].step(model, combined, state, TRAINABLE)
        again, after_again = made[1].step(model, combined, state, TRAINABLE)
        for was, now in zip(before, (model, combined, state), strict=True):
            assert same(was, now), f"{id}: changes what it was given"
        assert list(stepped) == list(combined), f"{id}: expected the entries {list(combined)}, got {list(stepped)}"
        for key, value in stepped.items():
            whole = value.shape == model[key].shape and value.dtype == model[key].dtype and bool(value.isfinite().all())
            assert whole, (
                f"{id}: {key}: expected finite values of shape {tuple(model[key].shape)} and {model[key].dtype}"
            )
            kept = key in TRAINABLE or torch.equal(value, combined[key])
            assert kept, f"{id}: {key}: is no trainable entry and was stepped"
        assert same(stepped, again) and same(after, after_again), f"{id}: another step when it is asked again"
        model, state = stepped, after
        found = restarted(Checkpoint(1, model, server=state)).server
        assert same(found, state), f"{id}: the state does not survive a checkpoint"
        state = dict(found)


def _combined(model: StateDict, scale: float, generator: torch.Generator) -> StateDict:
    """What a rule has made of a round: every entry but the counter has moved by about ``scale``."""
    moved = {
        key: value + (scale * torch.randn(value.shape, generator=generator)).to(value.dtype)
        for key, value in model.items()
        if value.is_floating_point()
    }
    return {**moved, "num_batches_tracked": model["num_batches_tracked"] + 1}


ANSWERING = (("site-1", "site-2"), ("site-2",), ("site-1", "site-2", "site-3"))
"""The sites that answer in each round."""


def check_server_half(id: str, trainer: Trainer, training: Training) -> None:
    """Raise AssertionError, with the trainer's id, where one of these does not hold.

    The same round twice gives the same state and the same model, and changes nothing that was passed in; what sites are
    sent is declared and finite; the corrected model has the model's entries, finite, and its counters; the state
    survives a checkpoint; a site may be away in a round.
    """
    network = example_of(trainer)[0]
    model, state = copied(network), dict[str, Any]()
    for number, sites in enumerate(ANSWERING, start=1):
        info = Info(Round(number, len(ANSWERING)), lr=training.lr, known_sites=3, steps=dict.fromkeys(sites, 2))
        for site in sites:
            _sends_what_it_declares(id, trainer, state, site, info)
        replies = [_reply(trainer, model, site, number) for site in sites]
        given = (model, state, [dict(reply.update) for reply in replies], [dict(reply.tensors) for reply in replies])
        kept = copy.deepcopy(given)
        first, second = (trainer.collect(model, replies, state, info) for _ in range(2))
        assert same(first, second), f"{id}: collect gave two states of one round"
        combined = {key: value + 0.01 if value.is_floating_point() else value for key, value in model.items()}
        before, after = copy.deepcopy(combined), copy.deepcopy(first)
        once, twice = (trainer.correct(model, combined, first, info) for _ in range(2))
        assert same(once, twice), f"{id}: correct gave two models of one round"
        assert same(given, kept) and same(combined, before) and same(first, after), f"{id}: an argument was changed"
        _is_a_model(id, once, model)
        state = dict(restarted(Checkpoint(1, model, trainer=first)).trainer)
        assert same(state, after), f"{id}: the state is another one after a restart"


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
