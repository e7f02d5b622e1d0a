# SPDX-License-Identifier: Apache-2.0
"""The contract kit: every part of the package passes it, and each check refuses a part that breaks it."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from cases import each
from fairflare.core import metric, registry
from fairflare.core.types import Cost, Number, TensorSpec
from fairflare.probes.base import Probe
from fairflare.testing import check_metric, check_probe, check_rule, check_task, check_trainer, laws, probes, trainers
from fairflare.testing.example import TRAINING, outline
from fairflare.trainers.base import PlainTrainer

SENT = Number("n", 0.0, 1.0, "a number")
ORDERS = {"leave-one-out": {"coefficient": 0.3}, "weighted": {"weight": 0.5, "weight/a": 0.2, "relative": 1.0}}

SETTINGS = {"dp-sgd": {"draws": "seed"}}


@each("id", registry.trainers())
def test_every_trainer_passes(id):
    check_trainer(id, orders=ORDERS.get(id), **SETTINGS.get(id, {}))


@pytest.mark.parametrize("steps", [3, 11])
def test_a_trainer_passes_with_local_steps(steps):
    check_trainer("sgd", training=dataclasses.replace(TRAINING, local_steps=steps))


@each("id", registry.probes())
def test_every_probe_passes(id):
    check_probe(id, orders=ORDERS.get(id))


@each("id", registry.parts("rule"))
def test_every_rule_passes(id):
    check_rule(id)


@pytest.mark.parametrize("name", [name for name, one in metric.metrics().items() if one.kind])
def test_every_metric_passes(name):
    check_metric(name)


@pytest.mark.parametrize("name", ["support2", "heart"])
def test_a_task_of_the_package_passes(name):
    check_task(name)


def test_a_metric_needs_a_way_to_be_computed_and_a_range():
    with pytest.raises(ValueError, match="benefit: expected each or weighted"):
        metric.Metric("one", value=lambda cases: 0.5, benefit=True)
    with pytest.raises(ValueError, match="expected a range low < high"):
        metric.Metric("one", low=1.0)


def test_settings_reach_the_part():
    assert trainers.check_trainer("weighted", orders=ORDERS["weighted"], weight_sum="batch") is None
    assert trainers.check_trainer("weighted", orders=ORDERS["weighted"] | {"sampled": 0.5}) is None
    check_probe("layer-similarity", similarity="cosine", scope="last_encoder")
    assert laws.method_around("fedism", q=0.5).settings == {"q": 0.5}
    assert laws.method_around("fedism").probes == ("sharpness",)


@dataclass(frozen=True)
class Sending(PlainTrainer):
    """Trains plainly and sends ``numbers`` and ``tensors``."""

    sends: ClassVar = (SENT, TensorSpec("c", lambda outline: {"x": (2,)}, "a tensor"))

    def numbers(self):
        return {"n": 0.5}

    def tensors(self):
        return {"c": {"x": torch.ones(2)}}

    def finish(self, work):
        work.send_numbers.update(self.numbers())
        work.send_tensors.update(self.tensors())


def trained(**methods):
    """A case of a trainer that has ``methods`` in place of ``Sending``'s."""
    cls = dataclass(frozen=True)(type("Broken", (Sending,), methods))
    return trainers.Case("broken", cls())


class Counter:
    n = 0

    @classmethod
    def next(cls):
        cls.n += 1
        return cls.n


def frozen_weights(self, work, optimizer, objective, batch):
    return torch.zeros(())


def no_number(self, work, optimizer, objective, batch):
    return torch.tensor(float("nan"))


def other_bits(self, work, optimizer, objective, batch):
    with torch.no_grad():
        next(work.network.parameters()).add_(Counter.next())
    return torch.ones(())


def into_received(self, work):
    work.received["0.weight"].add_(1)


def into_tensors(self, work):
    for entries in work.tensors.values():
        for value in entries.values():
            value.add_(1)


def forgets(self, work):
    work.memory["kept"] = torch.ones(2, dtype=torch.float64)
    if work.memory.get("again") is not None and not isinstance(work.memory["again"], _Local):
        work.network[0].weight.data.add_(1)
    work.memory["again"] = _Local()


class _Local:
    """What a site's memory file cannot hold."""


BROKEN_TRAINERS = {
    "training_moves_the_model": [{"step": frozen_weights}, {"step": no_number}],
    "training_repeats": [{"step": other_bits}],
    "what_was_received_stays": [
        {"finish": into_received},
        {"finish": into_tensors, "receives": (TensorSpec("c", lambda outline: {"x": (2,)}, "a tensor"),)},
    ],
    "what_is_sent_is_declared": [
        {"numbers": lambda self: {"other": 0.5}},
        {"numbers": lambda self: {"n": 2.0}},
        {"numbers": lambda self: {"n": float("nan")}},
        {"numbers": lambda self: {"n": torch.tensor(0.5)}},
        {"tensors": lambda self: {"d": {"x": torch.ones(2)}}},
        {"tensors": lambda self: {"c": {"y": torch.ones(2)}}},
        {"tensors": lambda self: {"c": {"x": torch.ones(3)}}},
        {"tensors": lambda self: {"c": {"x": torch.ones(2).double()}}},
        {"tensors": lambda self: {"c": {"x": torch.full((2,), float("inf"))}}},
        {"tensors": lambda self: {"c": {"x": torch.full((2,), 1e7)}}},
        {"sends": (SENT, SENT)},
        {"numbers": lambda self: {}, "sends": (dataclasses.replace(SENT, required=True),), "tensors": lambda self: {}},
    ],
    "steps_are_counted": [{"finish": lambda self, work: setattr(work, "steps", 1)}],
    "memory_survives_a_restart": [{"finish": forgets}],
    "personal_parts_are_whole": [
        {"personal_entries": lambda self, model: frozenset({"no such"})},
        {"personal_entries": lambda self, model: frozenset(model)},
        {"keeps_personal_model": True},
    ],
    "a_run_can_be_stopped": [{"train": lambda self, work: 0.0}],
    "the_server_half_is_pure": [
        {"collect": lambda self, model, replies, state, info: {"n": Counter.next()}},
        {"collect": lambda self, model, replies, state, info: {"n": {1, 2}}},
        {"collect": lambda self, model, replies, state, info: {"n": replies[0].update["0.weight"].add_(1)}},
        {"correct": lambda self, model, combined, state, info: {}},
        {"correct": lambda self, model, combined, state, info: {k: v + 1 for k, v in combined.items()}},
        {"correct": lambda self, model, combined, state, info: {k: v / 0 for k, v in combined.items()}},
        {"correct": lambda self, model, combined, state, info: combined | {"5.bias": combined["5.bias"].add_(1)}},
        {"tensors_for": lambda self, state, site, info: {"d": {"x": torch.ones(2)}}},
        {"orders": lambda self, state, site, info: {"n": float("inf")}},
    ],
    "parameters_are_json": [{"cost": Cost()}],
}


@each("check, methods", [(check, one) for check, all_of in BROKEN_TRAINERS.items() for one in all_of])
def test_each_check_of_a_trainer_can_fail(check, methods):
    check = getattr(trainers, check)
    check(trained())
    with pytest.raises(Exception) as error:
        check(trained(**methods))
    if not isinstance(error.value, AssertionError):  # the site's own code refused it
        assert check.__name__ in ("memory_survives_a_restart", "what_is_sent_is_declared", "the_server_half_is_pure")


def test_the_lists_name_every_check():
    assert {check.__name__ for check in trainers.CHECKS} == set(BROKEN_TRAINERS)
    assert {check.__name__ for check in probes.CHECKS} == set(BROKEN_PROBES)


@dataclass(frozen=True)
class Quiet(Probe):
    """Reports one number."""

    cost: ClassVar = Cost(forward=1)
    reports: ClassVar = (SENT, Number("of/a", 0.0, 1.0, "a group's"))

    def measure(self, work):
        return {"n": 0.5}


def measured(**methods):
    return probes.Case("broken", dataclass(frozen=True)(type("Broken", (Quiet,), methods))())


def moves(self, work):
    with torch.no_grad():
        work.network[0].weight.mul_(1.01)
    return {"n": 0.5}


def updates_statistics(self, work):
    work.network.train()
    work.network(torch.randn(4, 1, 8, 8))
    return {"n": 0.5}


def leaves_a_hook(self, work):
    work.network[0].register_forward_hook(lambda *_: None)
    return {"n": 0.5}


def freezes(self, work):
    work.network.requires_grad_(False)
    return {"n": 0.5}


def changes_received(self, work):
    work.received["0.weight"].add_(1)
    return {"n": 0.5}


def remembers_more(self, work):
    work.memory["again"] = _Local()


BROKEN_PROBES = {
    "parameters_are_json": [{"when": property(lambda self: "later")}, {"cost": Cost(forward=-1)}],
    "it_reports_something": [{"measure": lambda self, work: {}}, {"reports": ()}],
    "what_is_sent_is_declared": [
        {"measure": lambda self, work: {"other": 0.5}},
        {"measure": lambda self, work: {"n": 1.5}},
        {"measure": lambda self, work: work.send_numbers.update(n=0.5) or {"n": 0.5}},
        {"measure": lambda self, work: work.send_tensors.update(c={"x": torch.ones(2)}) or {"n": 0.5}},
    ],
    "the_network_stays": [
        {"measure": moves},
        {"measure": updates_statistics},
        {"measure": leaves_a_hook},
        {"measure": freezes},
    ],
    "what_was_received_stays": [{"measure": changes_received}],
    "measuring_repeats": [{"measure": lambda self, work: {"n": 1 / (1 + Counter.next())}}],
    "small_groups_stay": [{"measure": lambda self, work: {"n": 0.5, "of/a": 0.5}}],
    "memory_survives_a_restart": [{"remember": remembers_more}],
}


@each("check, methods", [(check, one) for check, all_of in BROKEN_PROBES.items() for one in all_of])
def test_each_check_of_a_probe_can_fail(check, methods):
    check = getattr(probes, check)
    check(measured())
    with pytest.raises(Exception) as error:
        check(measured(**methods))
    if not isinstance(error.value, AssertionError):
        assert check.__name__ == "memory_survives_a_restart"


def test_a_rule_that_wants_what_nobody_reports_is_refused(monkeypatch):
    monkeypatch.setattr(registry.get_rule("fedism"), "wanted", property(lambda self: ("no such",)))
    with pytest.raises(AssertionError, match="wants"):
        check_rule("fedism")


def test_the_example_s_outline_is_its_network_s():
    assert outline().features == 4 and outline().groups == ("a", "b") and outline().classes == 2
