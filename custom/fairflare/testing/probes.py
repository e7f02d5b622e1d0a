# SPDX-License-Identifier: Apache-2.0
"""Laws that every probe obeys: ``check_probe("my-probe")`` runs them all on one small site.

Each check raises AssertionError with the probe's id and what is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fairflare.core import registry
from fairflare.core.types import LocalWork, StateDict
from fairflare.probes.base import Probe
from fairflare.testing import example as kit
from fairflare.trainers.base import PlainTrainer

MOMENTS = ("received", "trained", "anchored")
TOLERANCE = 1e-5
"""How far a weight may be from what it was, relative to the largest: a perturbation that is taken back rounds."""


class Measured(NamedTuple):
    """One measurement: the site's work, its model before, and the numbers."""

    work: LocalWork
    before: StateDict
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """A probe of the name ``id``, and the numbers that a rule would send to its site."""

    id: str
    probe: Probe
    orders: Mapping[str, float] = field(default_factory=dict)

    def round(self, t: int, memory: dict[str, Any] | None = None, min_count: int | None = 5) -> Measured:
        """Round ``t`` of a site that trains plainly, up to the moment when the probe measures."""
        work = kit.work_of_round(
            t, memory=memory, orders=self.orders, receives=self.probe.receives, min_count=min_count
        )
        if self.probe.when != "received":
            PlainTrainer().train(work)
            work.send_numbers.clear()
        if self.probe.when == "anchored":
            anchor = {name: value * 1.1 for name, value in kit.small_network().state_dict().items()}
            work.received = {name: value.to(work.received[name].dtype) for name, value in anchor.items()}
        before = kit.copied(work.network)
        return Measured(work, before, self.probe.measure(work))

    def rounds(self, min_count: int | None = 5) -> Iterator[Measured]:
        """Two rounds, the second with what the probe has kept of the first."""
        memory: dict[str, Any] = {}
        for t in (1, 2):
            found = self.round(t, memory, min_count)
            yield found
            self.probe.remember(found.work)
            memory = dict(found.work.memory)


def check_probe(id: str, *, orders: Mapping[str, float] | None = None, **settings: Any) -> None:
    """Run every check on probe ``id``; AssertionError where one fails.

    ``orders``: name -> number that its rule sends to every site; ``settings``: parameters that differ from their
    defaults.
    """
    case = Case(id, registry.get_probe(id)(**settings), orders or {})
    for check in CHECKS:
        check(case)


def it_reports_something(case: Case) -> None:
    """Some number is declared and some of the declared ones, or tensors, come within two rounds."""
    assert case.probe.scalars(kit.outline()) or case.probe.sends, f"{case.id}: declares no number and no tensor"
    sent = [found.numbers or found.work.send_tensors for found in case.rounds()]
    assert any(sent), f"{case.id}: reports nothing; if it needs numbers of its rule, pass orders="


def what_is_sent_is_declared(case: Case) -> None:
    """Numbers are those of ``scalars`` and tensors those of ``sends``: names, ranges, shapes, finite."""
    declared, again = (case.probe.scalars(kit.outline()) for _ in range(2))
    assert declared == again, f"{case.id}: declares other numbers at each call"
    for found in case.rounds():
        kit.numbers_fit(case.id, declared, found.numbers)
        kit.tensors_fit(case.id, case.probe.sends, found.work.send_tensors)
        assert not found.work.send_numbers, f"{case.id}: fills work.send_numbers, which is a trainer's"


def the_network_stays(case: Case) -> None:
    """Weights are back within rounding, buffers exactly, and every parameter still trains."""
    for found in case.rounds():
        after, network = kit.copied(found.work.network), found.work.network
        weights = {name for name, _ in network.named_parameters()}
        for name, value in found.before.items():
            away = float((after[name] - value).abs().max()) if name in weights else 0.0
            assert away <= TOLERANCE * max(1.0, float(value.abs().max())), f"{case.id}: moved {name} by {away:g}"
            assert name in weights or torch.equal(after[name], value), f"{case.id}: changed the buffer {name}"
        assert all(p.requires_grad for p in network.parameters()), f"{case.id}: froze a parameter and left it so"
        hooks = [name for name, module in network.named_modules() if module._forward_hooks]
        assert not hooks, f"{case.id}: left a hook on {hooks}"


def what_was_received_stays(case: Case) -> None:
    for found in case.rounds():
        fresh = kit.work_of_round(found.work.round.number, orders=case.orders, receives=case.probe.receives)
        kit.arguments_stay(case.id, found.work, fresh, received=case.probe.when != "anchored")


def measuring_repeats(case: Case) -> None:
    first, second = ([found.numbers for found in case.rounds()] for _ in range(2))
    assert first == second, f"{case.id}: {first}, then {second}"


def small_groups_stay(case: Case) -> None:
    """Where no group's numbers may leave the site (``min_count`` is None), none does."""
    for found in case.rounds(min_count=None):
        groups = [name for name in found.numbers if name.rpartition("/")[2] in kit.GROUPS]
        assert not groups, f"{case.id}: sends {groups} of groups too small to leave; see privacy.counts.released"


def memory_survives_a_restart(case: Case) -> None:
    """What is kept for the next round can be written to the site's file, and read back changes nothing."""
    found = case.round(1)
    case.probe.remember(found.work)
    straight, resumed = (case.round(2, memory).numbers for memory in kit.kept(found.work.memory))
    assert straight == resumed, f"{case.id}: {straight} became {resumed} after a restart"


def parameters_are_json(case: Case) -> None:
    """The probe can be rebuilt from its parameters as JSON, and says when it measures and what that costs."""
    kit.is_json(case.id, case.probe)
    assert case.probe.when in MOMENTS, f"{case.id}: when: expected one of {MOMENTS}, got {case.probe.when!r}"
    cost = case.probe.cost
    assert cost.forward >= 0 and cost.backward >= 0, f"{case.id}: cost {cost}"


CHECKS = (
    parameters_are_json,
    it_reports_something,
    what_is_sent_is_declared,
    the_network_stays,
    what_was_received_stays,
    measuring_repeats,
    small_groups_stay,
    memory_survives_a_restart,
)
