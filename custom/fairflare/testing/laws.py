# SPDX-License-Identifier: Apache-2.0
"""Laws that every method obeys: ``check_method("my-rule")`` runs them all, for a plugin as for the package's own, and
``check_rule`` on a rule alone, with the probes and the trainer that it needs.

Each check raises AssertionError with the method's id and the numbers at fault.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from fairflare.aggregators.base import Rule, State, WeighingRule
from fairflare.core import registry, types
from fairflare.core.registry import Method
from fairflare.core.schema import flat, nested, slots_of, wrong_tensors
from fairflare.engine.checkpoint import Checkpoint
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.testing.example import GROUPS, ROUNDS, equal, outline, restarted, same

TOLERANCE = 1e-9


def check_method(id: str) -> None:
    """Run every check on method ``id``."""
    entry = registry.get_method(id)
    for check in CHECKS:
        check(entry)


def weights_are_a_distribution(entry: Method) -> None:
    """Non-negative, finite, one per accepted site, summing to 1, in every round."""
    rule, state = _rule(entry), _no_state()
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
    rule, state = _rule(entry), _no_state()
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
        ends = [{s.name: s.low + end * (s.high - s.low) for s in scalars} for end in (high, low, low)]
        replies = [dataclasses.replace(r, scalars=e) for r, e in zip(_replies(entry, 3, seed=5), ends, strict=True)]
        rule, state = _rule(entry), _no_state()
        for t in range(1, ROUNDS + 1):
            weights, state = _weigh(rule, replies, state, t)
            assert all(math.isfinite(w) and w >= 0 for w in weights.values()), f"{entry.id}: {weights}"
            assert abs(sum(weights.values()) - 1) < TOLERANCE, f"{entry.id}: {weights}"
            orders = [rule.orders(state, r.site, _info(t)) for r in replies]
            assert all(math.isfinite(v) for order in orders for v in order.values()), f"{entry.id}: {orders}"


def a_site_may_miss_a_round(entry: Method) -> None:
    """A site that is away and returns leaves a distribution over those present, each time."""
    rule, state = _rule(entry), _no_state()
    for t, present in enumerate(([0, 1, 2], [0, 2], [0, 1, 2, 3]), 1):
        replies = [r for k, r in enumerate(_replies(entry, 4, seed=t)) if k in present]
        weights, state = _weigh(rule, replies, state, t)
        assert set(weights) == {r.site for r in replies}, f"{entry.id}: {weights}"
        assert abs(sum(weights.values()) - 1) < TOLERANCE, f"{entry.id}: {weights}"


def rounds_are_pure(entry: Method) -> None:
    """The same round twice gives the same; received model, replies and a state that is not donated are not changed."""
    rule, model, replies = _rule(entry), _model(), _replies(entry, 3, seed=11)
    state = rule.aggregate(model, _replies(entry, 3, seed=10), {}, _info(1)).state
    kept = copy.deepcopy(state)
    first, second = (
        rule.aggregate(model, replies, copy.deepcopy(state) if rule.donates else state, _info(2)) for _ in range(2)
    )
    assert first.weights == second.weights, f"{entry.id}: {first.weights} became {second.weights}"
    assert equal(first.model, second.model), f"{entry.id}: the same state gave two models"
    assert same(first.state, second.state), f"{entry.id}: the same state gave two states after it"
    assert same(state, kept), f"{entry.id}: the state was changed; a rule that uses it up says donates = True"
    before = {k: v.clone() for k, v in model.items()}
    sent = [{k: v.clone() for k, v in r.update.items()} for r in replies]
    once, twice = (rule.aggregate(model, replies, {}, _info(1)) for _ in range(2))
    assert equal(once.model, twice.model), f"{entry.id}: the same round gave two models"
    assert equal(model, before), f"{entry.id}: the received model was changed"
    assert all(equal(r.update, s) for r, s in zip(replies, sent)), f"{entry.id}: a reply was changed"
    assert set(once.model) == set(model), f"{entry.id}: the model's keys changed"
    assert torch.equal(once.model["steps"], model["steps"]), f"{entry.id}: an integer buffer was changed"
    assert all(bool(torch.isfinite(v).all()) for v in once.model.values()), f"{entry.id}: the model is not finite"


def weighing_is_pure(entry: Method) -> None:
    """``weigh`` leaves the state alone, twice gives the same, and ``aggregate`` after it weighs as ``weigh`` says."""
    rule, model = _rule(entry), _model()
    if not isinstance(rule, WeighingRule):
        return
    state: State = {}
    for t in range(1, ROUNDS + 1):
        replies, kept = _replies(entry, 3, seed=20 + t), copy.deepcopy(state)
        (first, after), (second, again) = (rule.weigh(replies, state, _info(t)) for _ in range(2))
        assert same(state, kept), f"{entry.id}: weigh changed the state that it was given"
        assert first == second and same(after, again), f"{entry.id}: weigh gave {first}, then {second}"
        outcome = rule.aggregate(model, replies, state, _info(t))
        alone = rule.aggregate(model, replies, kept, _info(t))
        assert outcome.weights == first, f"{entry.id}: weigh gave {first}, aggregate {outcome.weights}"
        assert same(outcome.state, after), f"{entry.id}: weigh and aggregate give two states"
        assert equal(outcome.model, alone.model), f"{entry.id}: weigh before aggregate changed its model"
        state = outcome.state


def notes_are_declared(entry: Method) -> None:
    """A round's notes hold nothing but what the rule declares, in the declared shape, and can be written as JSON."""
    rule, state = _rule(entry), _no_state()
    declared = {note.name: note for note in rule.notes}
    assert len(declared) == len(rule.notes), f"{entry.id}: two notes of one name"
    for t in range(1, ROUNDS + 1):
        outcome = rule.aggregate(_model(), _replies(entry, 3, seed=30 + t), state, _info(t))
        state = outcome.state
        assert set(outcome.notes) <= set(declared), f"{entry.id}: undeclared {set(outcome.notes) - set(declared)}"
        wrong = [text for name, value in outcome.notes.items() if (text := declared[name].misfit(value))]
        assert not wrong, f"{entry.id}: note {wrong[0]}"
        json.dumps(outcome.notes, allow_nan=False)


def own_models_are_whole(entry: Method) -> None:
    """Only a rule that says ``own_models`` gives sites models of their own: finite, with the shared one's entries."""
    rule, model = _rule(entry), _model()
    replies = _replies(entry, 3, seed=40)
    outcome = rule.aggregate(model, replies, {}, _info(1))
    again = dataclasses.replace(_info(2), models=outcome.models)
    for found in (outcome, rule.aggregate(outcome.model, replies, outcome.state, again)):
        assert rule.own_models or not found.models, f"{entry.id}: gives models of their own, own_models is False"
        for site, own in found.models.items():
            shapes = ({k: (v.shape, v.dtype) for k, v in one.items()} for one in (own, model))
            assert next(shapes) == next(shapes), f"{entry.id}: the model of {site} has other entries"
            assert all(bool(torch.isfinite(v).all()) for v in own.values()), f"{entry.id}: that of {site} is not finite"


def sent_tensors_are_declared(entry: Method) -> None:
    """What the rule sends beside the model is what the trainer or a probe receives: names, shapes, finite numbers."""
    rule, state = _rule(entry), _no_state()
    slots = slots_of((spec for piece in _parts(entry) for spec in piece.receives), _outline())
    for t in range(1, ROUNDS + 1):
        replies = _replies(entry, 3, seed=50 + t)
        for site in ("site-0", "newcomer"):
            wrong = wrong_tensors(flat(rule.tensors_for(state, site, _info(t))), slots)
            assert wrong is None, f"{entry.id}: round {t}: tensors for {site}: {wrong}"
        state = rule.aggregate(_model(), replies, state, _info(t)).state


def state_survives_a_restart(entry: Method) -> None:
    """Saving the state to a file and reading it back changes nothing in the next round."""
    rule, model, replies = _rule(entry), _model(), _replies(entry, 3, seed=13)
    outcome = rule.aggregate(model, replies, {}, _info(1))
    found = restarted(Checkpoint(1, outcome.model, outcome.state))
    again = _replies(entry, 3, seed=14)
    straight = rule.aggregate(outcome.model, again, outcome.state, _info(2))
    resumed = rule.aggregate(found.model, again, found.state, _info(2))
    assert straight.weights == resumed.weights, f"{entry.id}: {straight.weights} became {resumed.weights}"
    assert equal(straight.model, resumed.model), f"{entry.id}: another model after a restart"


def parameters_are_json(entry: Method) -> None:
    """Every part can be rebuilt from its parameters as JSON, so that a job file holds the whole method."""
    for cls in registry.owners(entry).values():
        built = cls()
        assert cls(**json.loads(json.dumps(dataclasses.asdict(built)))) == built, f"{entry.id}: {cls.__name__}"


def wanted_scalars_are_reported(entry: Method) -> None:
    """What the rule wants, some probe of the method reports."""
    reported = {number.name for number in _scalars(entry)}
    reported |= {spec.name for piece in _parts(entry) for spec in types.tensors_of(piece)}
    assert set(_rule(entry).wanted) <= reported, f"{entry.id}: wants {_rule(entry).wanted}, probes report {reported}"


CHECKS = (
    weights_are_a_distribution,
    names_do_not_matter,
    identical_sites_weigh_the_same,
    one_site_weighs_everything,
    extreme_scalars_stay_finite,
    a_site_may_miss_a_round,
    rounds_are_pure,
    weighing_is_pure,
    notes_are_declared,
    own_models_are_whole,
    sent_tensors_are_declared,
    state_survives_a_restart,
    parameters_are_json,
    wanted_scalars_are_reported,
)


def _rule(entry: Method) -> Rule:
    return default_parts(entry).rule


def _no_state() -> State:
    return {}


def _info(t: int) -> types.Info:
    steps = {name: 3 for k in range(10) for name in (f"site-{k}", f"z{k}")}
    return types.Info(types.Round(t, ROUNDS), lr=0.1, steps=steps, known_sites=10)


def _weigh(rule: Rule, replies: Sequence[types.Reply], state: State, t: int) -> tuple[types.Weights, State]:
    outcome = rule.aggregate(_model(), replies, state, _info(t))
    return outcome.weights, outcome.state


def _parts(entry: Method) -> list[Any]:
    """The method's trainer and probes."""
    made = default_parts(entry)
    return [made.trainer, *made.probes]


def _outline() -> types.Outline:
    return types.Outline(_model(), GROUPS, len(GROUPS))


def _scalars(entry: Method) -> list[types.Number]:
    """The numbers that the method's parts send on ``_model``, first and second exchange together."""
    trainer, *probes = _parts(entry)
    return [*types.numbers_of(trainer), *(number for probe in probes for number in probe.scalars(_outline()))]


def _model() -> types.StateDict:
    return {"weight": torch.linspace(-1, 1, 6).reshape(2, 3), "mean": torch.zeros(2), "steps": torch.tensor(3)}


def _replies(entry: Method, count: int, seed: int) -> list[types.Reply]:
    """Made-up accepted answers: everyday numbers and tensors, two updated entries of which one is trainable."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(count, len(_scalars(entry)) + 1, generator=generator).tolist()
    slots = slots_of((spec for piece in _parts(entry) for spec in types.tensors_of(piece)), _outline())
    return [
        types.Reply(
            site=f"site-{k}",
            update={
                "weight": torch.randn(2, 3, generator=generator) * 0.1,
                "mean": torch.rand(2, generator=generator),
            },
            n_examples=int(10 + 90 * draws[k][0]),
            scalars={s.name: min(max(d, s.low), s.high) for s, d in zip(_scalars(entry), draws[k][1:])},
            trainable=frozenset({"weight"}),
            tensors=nested({name: torch.randn(slot.shape, generator=generator) for name, slot in slots.items()}),
        )
        for k in range(count)
    ]


def check_rule(id: str, **settings: Any) -> None:
    """Run every law on rule ``id``, fed with the numbers of the registered probes and trainers that report them.

    ``settings``: parameters that differ from their defaults. AssertionError where a law fails, or nobody reports a
    number that the rule wants.
    """
    entry = method_around(id, **settings)
    for check in (wanted_scalars_are_reported, *CHECKS):  # first what the other laws cannot do without
        check(entry)


def method_around(id: str, **settings: Any) -> Method:
    """An unregistered method of rule ``id`` alone: the trainer and the probes that report what it wants or uses."""
    rule = registry.get_rule(id)(**settings)
    asked = {*rule.wanted, *rule.useful}
    probes = tuple(name for name, cls in registry.probes().items() if asked & _names(cls()))
    senders = [name for name, cls in registry.trainers().items() if asked & {_family(one.name) for one in cls.sends}]
    kinds = (senders[0] if senders else "sgd", probes, "all", "none")
    return Method(id, id, "", id, *kinds, types.Paper("", "", "", 0, ""), settings, {})


def _names(probe: Any) -> set[str]:
    found = {one.name for one in (*probe.scalars(outline()), *probe.sends) if not isinstance(one, types.TensorSpec)}
    return found | {_family(name) for name in found}


def _family(name: str) -> str:
    return name.partition("/")[0]
