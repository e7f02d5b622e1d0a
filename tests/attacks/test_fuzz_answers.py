# SPDX-License-Identifier: Apache-2.0
"""Arbitrary answers to every method: the gate always has a verdict, and whatever it accepts leaves a usable model."""

import math
import random
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import each
from fairflare.core import registry
from fairflare.core.findings import KINDS
from fairflare.core.manifest import all_versions
from fairflare.core.metric import LARGEST_LOSS, named
from fairflare.core.schema import Answer, Slot
from fairflare.core.types import MOST_EXAMPLES, Info, Outline, Round
from fairflare.engine.gate import Gate, inspect_evaluation, site_seconds
from fairflare.engine.norms import remembered
from fairflare.engine.preflight import inspect_preflight, refusal, turned_away
from fairflare.engine.setup.method_defaults import default_parts

ROUNDS = 3
SITES = ("site-1", "site-2", "site-3")
GROUPS = ("female", "male")
DECLARED = dict.fromkeys(SITES, 1000)
VERSIONS = all_versions()


class Explodes:
    """No comparison, hash or text of it can be had."""

    def __eq__(self, other):
        raise RuntimeError("boom")

    __hash__ = object.__hash__

    def __repr__(self):
        raise RuntimeError("boom")


class Lies(dict):
    """A mapping whose keys are not there when they are asked for."""

    def __getitem__(self, key):
        raise KeyError(key)


def small_model():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    return {k: v.detach().clone() for k, v in network.state_dict().items()}, frozenset(
        name for name, _ in network.named_parameters()
    )


MODEL, TRAINABLE = small_model()
SIZES = (0.0, -0.0, 1e-45, 1e-30, 1e-6, 0.01, -0.01, 1.0, -1.0, 30.0, 1e3, -1e6, 1e19, 1e30, -3.4e38, 3.4e38)
NUMBERS = (0, 1, -1, 7, 0.5, -0.5, 1e-300, 5e-324, 1e6, 1e12, 1e300, -1e300, math.nan, math.inf, -math.inf, True, False)
NUMBERS += (2**40, 10**8, -(2**70), 10**400, 10**5000, np.int64(3), np.float32(math.nan), np.float64(0.5))
STRANGE = (None, "", "0.5", "x" * 10_000, "a\nb\x1b[31m", "\ud800", b"ab", 1j, Explodes(), Lies(a=1), np.array(["a"]))
STRANGE += (np.array([0.5, 1.0]), torch.tensor(0.5), torch.ones(2), object, range(3), {1}, float)
KEYS = ("auc", "loss", "dice", "val", "test", "n", "value", "groups", "female", "a", "train", "x" * 80, "", 7, None)
KEYS += (10**5000, (1, 2), b"a", 0.5, "\ud800")
Pick = random.Random
"""What is random in an answer; the seed comes from Hypothesis, which reports one that fails."""


def anything(pick: Pick, depth=3):
    kind = pick.choice(("number", "number", "strange", "list", "mapping", "mapping"))
    if kind == "number":
        return pick.choice((*NUMBERS, pick.uniform(-2, 2), pick.randrange(2000)))
    if kind == "strange" or not depth:
        return pick.choice(STRANGE)
    inside = range(pick.randrange(4))
    if kind == "list":
        return [anything(pick, depth - 1) for _ in inside]
    return {pick.choice(KEYS): anything(pick, depth - 1) for _ in inside}


def perhaps(pick, value, of_ten=7):
    """``value``, and in three of ten cases something else."""
    return value if pick.randrange(10) < of_ten else anything(pick)


def tensor(pick, like):
    """What may stand where a tensor is expected: often one of the right shape and the wrong size."""
    kind = pick.choice(("scaled", "scaled", "scaled", "entry", "noise", "double", "shape", "strange"))
    size = pick.choice((*SIZES, math.nan, math.inf, -math.inf))
    if kind == "scaled":
        return torch.full_like(like, size)
    if kind == "entry":
        value = torch.full_like(like, 0.001)
        value.view(-1)[pick.randrange(like.numel())] = size
        return value
    if kind == "noise":
        return torch.randn(like.shape, generator=torch.Generator().manual_seed(pick.randrange(99))) * size
    if kind == "double":
        return torch.full(like.shape, pick.choice((1e300, -1e300, 1e-300, 1.0)), dtype=torch.float64)
    if kind == "shape":
        return torch.zeros(pick.choice(((), (0,), (1,), (6, 4), (2, 6, 1))))
    ones = torch.ones_like(like)
    made = (
        lambda: ones.to(torch.int64),
        lambda: ones.to(torch.complex64),
        lambda: ones.to(torch.float16),
        lambda: ones.to_sparse(),
        lambda: torch.empty(like.shape, device="meta"),
        lambda: np.ones(tuple(like.shape), dtype=np.longdouble),
        lambda: np.ones(tuple(like.shape), dtype=">f4"),
        lambda: np.full(tuple(like.shape), 0.01),
        lambda: [0.0],
        Explodes,
    )
    return pick.choice(made)()


def update(pick):
    """An honest update with some of its entries replaced, dropped or added."""
    found = {k: torch.full_like(v, 0.01) for k, v in MODEL.items() if v.is_floating_point()}
    for key in pick.sample(sorted(found), pick.choice((0, 1, 1, 2, len(found)))):
        found[key] = tensor(pick, MODEL[key])
    if not pick.randrange(12):
        found.pop(pick.choice(sorted(found)))
    if not pick.randrange(12):
        found[pick.choice(KEYS)] = torch.ones(2)
    return found


def numbers(pick, specs):
    """The probes' numbers: anywhere in their ranges and at their ends, sometimes missing or something else."""
    found = {}
    for spec in specs:
        value = pick.choice((spec.low, spec.high, min(spec.high, 1.0), pick.uniform(spec.low, spec.high)))
        value = pick.choice((value, max(spec.low, 5e-324)))
        found[spec.name] = float(pick.randrange(400)) if spec.name.startswith("group_count/") else value
        if spec.of_examples and pick.randrange(12):
            found[spec.name] = possible(spec)
        if not pick.randrange(8 * len(specs)):
            found[spec.name] = anything(pick)
        if not pick.randrange(8 * len(specs)):
            del found[spec.name]
    return perhaps(pick, found, 9)


def possible(spec):
    """A count that goes with the others: 50 seen, 40 of them right, 12 in each group."""
    family = spec.name.partition("/")[0]
    return {"seen": 50.0, "correct": 40.0, "positives": 5.0, "negatives": 7.0}.get(family, 3.0)


def hostile(pick, site, specs):
    """An answer of which any part may be anything."""
    answer = Answer(
        site,
        1,
        update=perhaps(pick, update(pick), 9),
        n_examples=perhaps(pick, pick.randrange(1, 1000), 9),
        scalars=numbers(pick, specs),
        steps=perhaps(pick, pick.randrange(50), 9),
        metrics=perhaps(pick, {"auc": 0.5}, 5),
        seconds=perhaps(pick, {"train": 1.0}, 5),
    )
    if not pick.randrange(10):
        answer = replace(answer, **{pick.choice(("round", "update_kind", "error")): anything(pick)})
    return answer


def evaluation(pick):
    def metrics():
        return perhaps(pick, {name: perhaps(pick, 0.5, 4) for name in ("auc", "loss", "dice")}, 8)

    def cells():
        cell = {name: {"n": perhaps(pick, 12), "value": perhaps(pick, 0.5)} for name in (*GROUPS, "x")}
        return perhaps(pick, {name: perhaps(pick, told) for name, told in cell.items()}, 8)

    sizes = {split: perhaps(pick, pick.randrange(60)) for split in ("val", "test")}
    groups = perhaps(pick, {"val": cells(), "test": cells()}, 9)
    told = {"val": metrics(), "test": metrics(), "n": perhaps(pick, sizes, 9), "groups": groups}
    return perhaps(pick, told, 9)


def statement(pick):
    kinds = pick.sample(sorted(KINDS), pick.randrange(4))
    findings = {kind: perhaps(pick, pick.randrange(20), 9) for kind in kinds}
    if not pick.randrange(5):
        findings[pick.choice(KEYS)] = pick.randrange(5)
    versions = dict(VERSIONS)
    if not pick.randrange(4):
        versions[pick.choice((*versions, *KEYS))] = anything(pick)
    return perhaps(pick, {"findings": perhaps(pick, findings, 9), "versions": perhaps(pick, versions, 9)}, 9)


def honest(site, specs):
    update = {k: torch.full_like(v, 0.02) for k, v in MODEL.items() if v.is_floating_point()}
    scalars = {s.name: min(max(0.5, s.low), s.high) for s in specs}
    scalars |= {s.name: 10.0 for s in specs if s.name.startswith("group_count/")}
    scalars |= {s.name: possible(s) for s in specs if s.of_examples}
    return Answer(site, 1, update, n_examples=100, steps=5, scalars=scalars)


def parts_of(method):
    entry = registry.get_method(method)
    rule, probes = default_parts(entry).rule, default_parts(entry).probes
    outline = Outline(MODEL, GROUPS)
    said = [[s for p in probes if (p.when == "anchored") == when for s in p.scalars(outline)] for when in (False, True)]
    return rule, Gate(TRAINABLE, tuple(said[0]), rule.wanted, tuple(said[1]))


def few(examples):
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


seeds = st.integers(0, 2**64 - 1).map(random.Random)


@each("method", registry.methods())
def test_whatever_sites_answer_the_next_model_is_finite_and_weights_are_shares(method):
    rule, gate = parts_of(method)
    counted = dict.fromkeys(("accepted", "rejected"), 0)

    @few(100)
    @given(seeds)
    def run(pick):
        model, state, history = MODEL, {}, {}
        for number in range(1, ROUNDS + 1):
            n_bad = pick.randint(1, len(SITES))
            answers = [hostile(pick, site, gate.scalars) for site in SITES[:n_bad]]
            answers += [honest(site, gate.scalars) for site in SITES[n_bad:]]
            answers = [replace(a, round=number) if type(a.round) is int and a.round == 1 else a for a in answers]
            verdict = gate.inspect(answers, model, number, DECLARED, history)
            accepted, rejected = {r.site for r in verdict.replies}, {r.site for r in verdict.rejections}
            assert accepted | rejected == set(SITES) and not accepted & rejected
            assert n_bad > 1 or set(SITES[1:]) <= accepted, verdict.rejections  # one alone evicts nobody
            assert all(r.detail.isprintable() and len(r.detail) <= 200 for r in verdict.rejections)
            assert all(type(name) is str for phases in site_seconds(answers).values() for name in phases)
            counted["accepted"] += len(accepted & set(SITES[:n_bad]))
            counted["rejected"] += len(rejected)
            replies = _answered_twice(rule, gate, pick, model, verdict.replies, state, number)
            if not replies:
                return
            outcome = rule.aggregate(model, replies, state, Info(Round(number, ROUNDS), lr=0.1))
            assert all(bool(torch.isfinite(value).all()) for value in outcome.model.values())
            assert bool((outcome.model["1.running_var"] >= 0).all())
            assert set(outcome.weights) == {r.site for r in replies}
            assert all(0 <= w <= 1 + 1e-9 for w in outcome.weights.values()), outcome.weights
            assert math.isclose(sum(outcome.weights.values()), 1.0, abs_tol=1e-6)
            model, state, history = outcome.model, outcome.state, remembered(history, verdict.norms)

    run()
    assert min(counted.values()) > 20, counted  # the fuzzer reaches both sides of the gate


SLOTS = {"proto/a": Slot((3,), required=True, bound=10.0), "proto/b": Slot((2, 2), bound=10.0)}


@few(300)
@given(seeds)
def test_whatever_tensors_sites_send_the_rule_gets_what_was_declared(pick):
    def sent():
        found = {name: tensor(pick, torch.ones(slot.shape)) for name, slot in SLOTS.items()}
        found |= {name: torch.full(slot.shape, 0.5) for name, slot in SLOTS.items() if pick.randrange(2)}
        if not pick.randrange(6):
            found[pick.choice(KEYS)] = torch.ones(2)
        return perhaps(pick, found, 9)

    gate = Gate(TRAINABLE, tensors=SLOTS)
    good = replace(honest("site-3", ()), tensors={"proto/a": torch.ones(3)})
    answers = [replace(honest(site, ()), tensors=sent()) for site in SITES[:2]] + [good]
    verdict = gate.inspect(answers, MODEL, 1, DECLARED)
    assert {r.site for r in verdict.replies} | {r.site for r in verdict.rejections} == set(SITES)
    assert "site-3" in {r.site for r in verdict.replies}
    assert all(r.detail.isprintable() and len(r.detail) <= 200 for r in verdict.rejections)
    for reply in verdict.replies:
        assert set(reply.tensors) == {"proto"} and "a" in reply.tensors["proto"]
        for entry, value in reply.tensors["proto"].items():
            assert value.shape == SLOTS[f"proto/{entry}"].shape and value.dtype == torch.float32
            assert bool(torch.isfinite(value).all()) and float(value.abs().max()) <= 10


def _answered_twice(rule, gate, pick, model, replies, state, number):
    """The replies after a second exchange, where the rule has one."""
    anchor = rule.anchor(model, replies, state, Info(Round(number, ROUNDS))) if replies else None
    if anchor is None:
        return replies
    assert all(bool(torch.isfinite(v).all()) for v in anchor.values())
    second = [Answer(r.site, number, scalars=numbers(pick, gate.anchored)) for r in replies]
    told, refused = gate.inspect_second(second, number)
    assert set(told) | {r.site for r in refused} == {r.site for r in replies}
    return [replace(r, scalars={**r.scalars, **told[r.site]}) for r in replies if r.site in told]


@few(300)
@given(seeds)
def test_whatever_sites_answer_to_an_evaluation_its_figures_are_in_range(pick):
    answers = [Answer(site, 2, metrics=evaluation(pick)) for site in SITES]
    found, refused = inspect_evaluation(answers, 2, GROUPS)
    assert set(found) | {r.site for r in refused} == set(SITES)
    for splits in found.values():
        assert all(0 <= n <= MOST_EXAMPLES and n == int(n) for n in splits["n"].values())
        for split in ("val", "test"):
            for name, value in splits[split].items():
                low, high = named(name).range
                assert low <= value <= high <= LARGEST_LOSS
            cells = splits["groups"][split]
            assert all(0 <= cell["value"] <= 1 and cell["n"] >= 1 for cell in cells.values())
            assert sum(cell["n"] for cell in cells.values()) <= splits["n"].get(split, 0)


@few(300)
@given(seeds)
def test_whatever_sites_say_in_preflight_the_server_knows_every_word_of_it(pick):
    answers = [
        Answer(site, perhaps(pick, 1), n_examples=perhaps(pick, pick.randrange(1, 10**9)), metrics=statement(pick))
        for site in SITES
    ]
    found, refused = inspect_preflight(answers, VERSIONS, {"site-9": 50}, ["few_examples"])
    assert set(found) | {r.site for r in refused} == set(SITES)
    for text in (refusal(found, refused), *(r.detail for r in turned_away(found, refused).values())):
        assert text.isprintable()
    for said in found.values():
        assert said.n_examples is None or 1 <= said.n_examples <= MOST_EXAMPLES
        assert all(set(f) == {"level", "code", "split", "count"} for f in said.to_json()["findings"])
