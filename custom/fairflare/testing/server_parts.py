# SPDX-License-Identifier: Apache-2.0
"""``check_selector("my-selector")`` and ``check_server_optimizer("my-optimizer")``: what both have to hold."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairflare.core import registry
from fairflare.core.types import Round, StateDict
from fairflare.engine.state import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.participation.base import Selector
from fairflare.server_optimizers.base import ServerOptimizer
from fairflare.testing.parts import is_json

COUNTS = (1, 2, 5, 20)
"""Numbers of sites that a selector is asked to choose from."""
ROUNDS, SEEDS = 4, (0, 7)
TRAINABLE = frozenset({"weight", "half"})


def check_selector(id: str, among: Sequence[str] = (), **settings: Any) -> None:
    """Ask selector ``id`` in several rounds who of one, two, five and twenty sites takes part.

    It must choose among the sites that are there, each once and in their order, only such as it may ever select, no
    fewer than the round needs where that many are there, and the same again when it is asked again.

    Args:
        id: the selector's.
        among: names to choose from in place of made-up ones, for a selector that knows names.
        settings: parameters that differ from their defaults.

    Raises:
        AssertionError: it does not hold, and which.
        UserError: there is no such selector.
    """
    cls = registry.get_part("selector", id)
    is_json(id, cls(**settings))
    groups = [tuple(among)] if among else [tuple(f"site-{k:02d}" for k in range(1, count + 1)) for count in COUNTS]
    usable = [group for group in groups if not cls(**settings).missing(group)]
    assert usable, f"{id}: {cls(**settings).missing(groups[-1])}"
    for group in usable:
        for number in range(1, ROUNDS + 1):
            for seed in SEEDS:
                for least in (1, 2):
                    _selects(id, (cls(**settings), cls(**settings)), group, Round(number, ROUNDS), seed, least)


def _selects(
    id: str, made: tuple[Selector, Selector], sites: tuple[str, ...], round: Round, seed: int, least: int
) -> None:
    given = list(sites)
    chosen = made[0].select(given, round, seed, least)
    where = f"{id}: round {round.number} of {len(sites)} sites"
    assert tuple(given) == sites, f"{where}: changes the list of sites that it was given"
    assert isinstance(chosen, tuple), f"{where}: expected a tuple, got a {type(chosen).__name__}"
    assert chosen == tuple(site for site in sites if site in chosen), f"{where}: not among the sites, or not in order"
    fewest = 1 if made[0].pools else min(least, len(sites))
    assert set(chosen) <= set(made[0].ever(sites)), f"{where}: chooses sites that it may never select (ever)"
    assert len(chosen) >= fewest, f"{where}: expected at least {fewest}, got {len(chosen)}"
    assert made[1].select(sites, round, seed, least) == chosen, f"{where}: chooses others when it is asked again"


def check_server_optimizer(id: str, **settings: Any) -> None:
    """Let server optimizer ``id`` step along updates of usual size, of zero and of a large size.

    It must step trainable entries alone, keep shapes and types, stay finite, leave what it was given as it was, do the
    same again when it is asked again, and go on from its saved state as from the state itself.

    Args:
        id: the server optimizer's.
        settings: parameters that differ from their defaults.

    Raises:
        AssertionError: it does not hold, and which.
        UserError: there is no such server optimizer.
    """
    cls = registry.get_part("server optimizer", id)
    is_json(id, cls(**settings))
    generator = torch.Generator().manual_seed(1)
    model, state = _model(generator), dict[str, Any]()
    for scale in (0.1, 0.0, 1e4, 0.1):
        model, state = _steps(id, (cls(**settings), cls(**settings)), model, _combined(model, scale, generator), state)
        state = _saved(model, state)


def _model(generator: torch.Generator) -> StateDict:
    """Trainable entries of two types, a running mean and a counter."""
    weight, mean = torch.randn(3, 4, generator=generator), torch.randn(4, generator=generator)
    return {
        "weight": weight,
        "half": weight[0].to(torch.bfloat16),
        "running_mean": mean,
        "num_batches_tracked": torch.tensor(3),
    }


def _combined(model: StateDict, scale: float, generator: torch.Generator) -> StateDict:
    """What a rule has made of a round: every entry but the counter has moved by about ``scale``."""
    moved = {
        key: value + (scale * torch.randn(value.shape, generator=generator)).to(value.dtype)
        for key, value in model.items()
        if value.is_floating_point()
    }
    return {**moved, "num_batches_tracked": model["num_batches_tracked"] + 1}


def _steps(
    id: str, made: tuple[ServerOptimizer, ServerOptimizer], model: StateDict, combined: StateDict, state: Any
) -> tuple[StateDict, Any]:
    """One step, twice; returns model and state after it."""
    before = [_copied(one) for one in (model, combined, state)]
    stepped, after = made[0].step(model, combined, state, TRAINABLE)
    again, after_again = made[1].step(model, combined, state, TRAINABLE)
    for was, now in zip(before, (model, combined, state), strict=True):
        assert _same(was, now), f"{id}: changes what it was given"
    assert list(stepped) == list(combined), f"{id}: expected the entries {list(combined)}, got {list(stepped)}"
    for key, value in stepped.items():
        whole = value.shape == model[key].shape and value.dtype == model[key].dtype and bool(value.isfinite().all())
        assert whole, f"{id}: {key}: expected finite values of shape {tuple(model[key].shape)} and {model[key].dtype}"
        kept = key in TRAINABLE or torch.equal(value, combined[key])
        assert kept, f"{id}: {key}: is no trainable entry and was stepped"
    assert _same(stepped, again) and _same(after, after_again), f"{id}: another step when it is asked again"
    return stepped, after


def _saved(model: StateDict, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as a checkpoint brings it back."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "checkpoint.safetensors", Checkpoint(1, model, server=state))
        found = load_checkpoint(Path(folder) / "checkpoint.safetensors").server
    assert _same(found, state), "the state does not survive a checkpoint"
    return dict(found)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(one: Any, other: Any) -> bool:
    """Equal bit for bit, with the same keys in the same order."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
