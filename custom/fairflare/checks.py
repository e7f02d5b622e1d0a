# SPDX-License-Identifier: Apache-2.0
"""Laws that every method obeys: ``check_method("my-rule")`` runs them all, for a plugin as for the package's own.

Each check raises AssertionError with the method's id and the numbers at fault.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fairflare import registry
from fairflare.config import part
from fairflare.contracts import Outline, Reply, Round, Scalar, StateDict, Weights
from fairflare.federation.state import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.registry import Method
from fairflare.rules.base import Rule, State

TOLERANCE = 1e-9
ROUNDS = 4
GROUPS = ("a", "b")


def check_method(id: str) -> None:
    """Run every check on method ``id``."""
    entry = registry.get_method(id)
    for check in CHECKS:
        check(entry)


def weights_are_a_distribution(entry: Method) -> None:
    """Non-negative, finite, one per accepted site, summing to 1, in every round."""
    rule, state = _rule(entry), {}
    for t in range(1, ROUNDS + 1):
        replies = _replies(entry, 5, seed=t)
        weights, state = _weigh(rule, replies, state, t)
        assert list(weights) == [r.site for r in replies], f"{entry.id}: weights of {list(weights)}"
        assert all(math.isfinite(w) and w >= 0 for w in weights.values()), f"{entry.id}: {weights}"
        assert abs(sum(weights.values()) - 1) < TOLERANCE, f"{entry.id}: weights sum to {sum(weights.values())}"


def names_do_not_matter(entry: Method) -> None:
    """Giving the sites other names, in another order, gives their weights the same names."""
    replies = _replies(entry, 5, seed=7)
    renamed = sorted((dataclasses.replace(r, site=f"z{9 - k}") for k, r in enumerate(replies)), key=lambda r: r.site)
    plain, _ = _weigh(_rule(entry), replies, {}, 1)
    other, _ = _weigh(_rule(entry), renamed, {}, 1)
    for k, reply in enumerate(replies):
        assert abs(plain[reply.site] - other[f"z{9 - k}"]) < TOLERANCE, f"{entry.id}: {plain} became {other}"


def identical_sites_weigh_the_same(entry: Method) -> None:
    """Sites that send the same answer get the same weight."""
    rule, state = _rule(entry), {}
    for t in range(1, ROUNDS + 1):
        first = _replies(entry, 1, seed=t)[0]
        weights, state = _weigh(rule, [dataclasses.replace(first, site=f"site-{k}") for k in range(4)], state, t)
        assert all(abs(w - 0.25) < TOLERANCE for w in weights.values()), f"{entry.id}: {weights}"


def one_site_weighs_everything(entry: Method) -> None:
    """K = 1 gives weight 1."""
    weights, _ = _weigh(_rule(entry), _replies(entry, 1, seed=3), {}, 1)
    assert list(weights.values()) == [1.0], f"{entry.id}: {weights}"


def extreme_scalars_stay_finite(entry: Method) -> None:
    """The ends of every probe's range, alone and together, give a distribution."""
    scalars = _scalars(entry)
    for low, high in ((0.0, 0.0), (1.0, 1.0), (0.0, 1.0)):
        replies = [
            dataclasses.replace(r, scalars={s.name: _between(s, high if k == 0 else low) for s in scalars})
            for k, r in enumerate(_replies(entry, 3, seed=5))
        ]
        rule, state = _rule(entry), {}
        for t in range(1, ROUNDS + 1):
            weights, state = _weigh(rule, replies, state, t)
            assert all(math.isfinite(w) and w >= 0 for w in weights.values()), f"{entry.id}: {weights}"
            assert abs(sum(weights.values()) - 1) < TOLERANCE, f"{entry.id}: {weights}"
            orders = [rule.orders(state, r.site, Round(t, ROUNDS)) for r in replies]
            assert all(math.isfinite(v) for order in orders for v in order.values()), f"{entry.id}: {orders}"


def a_site_may_miss_a_round(entry: Method) -> None:
    """A site that is away and returns leaves a distribution over those present, each time."""
    rule, state = _rule(entry), {}
    for t, present in enumerate(([0, 1, 2], [0, 2], [0, 1, 2, 3]), 1):
        replies = [r for k, r in enumerate(_replies(entry, 4, seed=t)) if k in present]
        weights, state = _weigh(rule, replies, state, t)
        assert set(weights) == {r.site for r in replies}, f"{entry.id}: {weights}"
        assert abs(sum(weights.values()) - 1) < TOLERANCE, f"{entry.id}: {weights}"


def rounds_are_pure(entry: Method) -> None:
    """The same round twice, from copies of one state, gives the same; received model and replies are not changed."""
    rule, model, replies = _rule(entry), _model(), _replies(entry, 3, seed=11)
    state = rule.aggregate(model, _replies(entry, 3, seed=10), {}, Round(1, ROUNDS)).state
    first, second = (rule.aggregate(model, replies, copy.deepcopy(state), Round(2, ROUNDS)) for _ in range(2))
    assert first.weights == second.weights, f"{entry.id}: {first.weights} became {second.weights}"
    assert _equal(first.model, second.model), f"{entry.id}: the same state gave two models"
    before = {k: v.clone() for k, v in model.items()}
    sent = [{k: v.clone() for k, v in r.update.items()} for r in replies]
    once, twice = (rule.aggregate(model, replies, {}, Round(1, ROUNDS)) for _ in range(2))
    assert _equal(once.model, twice.model), f"{entry.id}: the same round gave two models"
    assert _equal(model, before), f"{entry.id}: the received model was changed"
    assert all(_equal(r.update, s) for r, s in zip(replies, sent)), f"{entry.id}: a reply was changed"
    assert set(once.model) == set(model), f"{entry.id}: the model's keys changed"
    assert torch.equal(once.model["steps"], model["steps"]), f"{entry.id}: an integer buffer was changed"
    assert all(bool(torch.isfinite(v).all()) for v in once.model.values()), f"{entry.id}: the model is not finite"


def state_survives_a_restart(entry: Method) -> None:
    """Saving the state to a file and reading it back changes nothing in the next round."""
    rule, model, replies = _rule(entry), _model(), _replies(entry, 3, seed=13)
    outcome = rule.aggregate(model, replies, {}, Round(1, ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        save_checkpoint(path, Checkpoint(1, outcome.model, outcome.state))
        found = load_checkpoint(path)
    again = _replies(entry, 3, seed=14)
    straight = rule.aggregate(outcome.model, again, outcome.state, Round(2, ROUNDS))
    resumed = rule.aggregate(found.model, again, found.state, Round(2, ROUNDS))
    assert straight.weights == resumed.weights, f"{entry.id}: {straight.weights} became {resumed.weights}"
    assert _equal(straight.model, resumed.model), f"{entry.id}: another model after a restart"


def parameters_are_json(entry: Method) -> None:
    """Every part can be rebuilt from its parameters as JSON, so that a job file holds the whole method."""
    for cls in (entry.rule, registry.get_trainer(entry.trainer), *map(registry.get_probe, entry.probes)):
        built = cls()
        assert cls(**json.loads(json.dumps(dataclasses.asdict(built)))) == built, f"{entry.id}: {cls.__name__}"


def wanted_scalars_are_reported(entry: Method) -> None:
    """What the rule wants, some probe of the method reports."""
    reported = {s.name for s in _scalars(entry)}
    assert set(_rule(entry).wanted) <= reported, f"{entry.id}: wants {_rule(entry).wanted}, probes report {reported}"


CHECKS = (
    weights_are_a_distribution,
    names_do_not_matter,
    identical_sites_weigh_the_same,
    one_site_weighs_everything,
    extreme_scalars_stay_finite,
    a_site_may_miss_a_round,
    rounds_are_pure,
    state_survives_a_restart,
    parameters_are_json,
    wanted_scalars_are_reported,
)


def _rule(entry: Method) -> Rule:
    return part(entry.rule, entry.settings)


def _weigh(rule: Rule, replies: Sequence[Reply], state: State, t: int) -> tuple[Weights, State]:
    outcome = rule.aggregate(_model(), replies, state, Round(t, ROUNDS))
    return outcome.weights, outcome.state


def _scalars(entry: Method) -> list[Scalar]:
    """The numbers that the method's probes report on ``_model``, first and second exchange together."""
    probes = [part(registry.get_probe(id), entry.settings) for id in entry.probes]
    return [s for probe in probes for s in probe.scalars(Outline(_model(), GROUPS))]


def _between(spec: Scalar, share: float) -> float:
    return spec.low + share * (spec.high - spec.low)


def _model() -> StateDict:
    return {"weight": torch.linspace(-1, 1, 6).reshape(2, 3), "mean": torch.zeros(2), "steps": torch.tensor(3)}


def _replies(entry: Method, count: int, seed: int) -> list[Reply]:
    """Made-up accepted answers: everyday scalar values, two updated entries of which one is trainable."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(count, len(_scalars(entry)) + 1, generator=generator).tolist()
    return [
        Reply(
            site=f"site-{k}",
            update={
                "weight": torch.randn(2, 3, generator=generator) * 0.1,
                "mean": torch.rand(2, generator=generator),
            },
            n_examples=int(10 + 90 * draws[k][0]),
            scalars={s.name: min(max(d, s.low), s.high) for s, d in zip(_scalars(entry), draws[k][1:])},
            trainable=frozenset({"weight"}),
        )
        for k in range(count)
    ]


def _equal(a: StateDict, b: StateDict) -> bool:
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)
