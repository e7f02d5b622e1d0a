# SPDX-License-Identifier: Apache-2.0
"""Laws that every trainer obeys: ``check_trainer("my-trainer")`` runs them all on one small site.

Each check raises AssertionError with the trainer's id and what is at fault.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fairflare.core import registry
from fairflare.core.schema import flat
from fairflare.core.types import LocalWork, TensorSpec, Training
from fairflare.testing import example as kit
from fairflare.testing.server_parts import check_server_half
from fairflare.trainers.base import Trainer


@dataclass(frozen=True)
class Case:
    """A trainer of the name ``id``, the numbers that a rule would send to its site, and local training settings."""

    id: str
    trainer: Trainer
    orders: Mapping[str, float] = field(default_factory=dict)
    training: Training = kit.TRAINING

    def work(self, t: int, memory: dict[str, Any] | None = None) -> LocalWork:
        """The site's round ``t`` before it trains."""
        example, receives = kit.example_of(self.trainer), self.trainer.receives
        work = kit.work_of_round(
            t, memory=memory, orders=self.orders, receives=receives, training=self.training, example=example
        )
        work.data = self.trainer.site_data(work.data)
        return work

    def round(self, t: int, memory: dict[str, Any] | None = None) -> LocalWork:
        """The site's round ``t``, trained."""
        work = self.work(t, memory)
        work.received = self.trainer.site_model(work.received, work.memory)
        work.network.load_state_dict(work.received)
        loss = self.trainer.train(work)
        told = self.trainer.private or math.isfinite(loss)  # a private one's does not leave
        assert isinstance(loss, float) and told, f"{self.id}: train returned {loss}"
        if entries := self.trainer.personal_entries(work.received):
            work.personal = {key: value for key, value in kit.copied(work.network).items() if key in entries}
        return work


def check_trainer(
    id: str, *, orders: Mapping[str, float] | None = None, training: Training = kit.TRAINING, **settings: Any
) -> None:
    """Run every check on trainer ``id``; AssertionError where one fails.

    ``orders``: name -> number that its rule sends to every site; ``training``: local settings, for a trainer that only
    some of them suit; ``settings``: parameters that differ from their defaults.
    """
    case = Case(id, registry.get_trainer(id)(**settings), orders or {}, training)
    for check in CHECKS:
        check(case)


def training_moves_the_model(case: Case) -> None:
    """After a round the weights are finite, of the same shapes, and some of them, or of the personal model, changed."""
    work, before = case.round(1), kit.copied(kit.example_of(case.trainer)[0])
    after = kit.copied(work.network)
    shapes = [{name: value.shape for name, value in model.items()} for model in (before, after)]
    assert shapes[0] == shapes[1], f"{case.id}: the model has other entries"
    assert all(bool(v.isfinite().all()) for v in after.values()), f"{case.id}: the model is not finite"
    trained = (after, work.personal) if case.trainer.keeps_personal_model else (after,)
    names = list(after) if case.trainer.sums_only else [name for name, _ in work.network.named_parameters()]
    moved = (not torch.equal(before[name], model.get(name, before[name])) for model in trained for name in names)
    assert any(moved), f"{case.id}: no parameter has changed"
    assert all(p.requires_grad for p in work.network.parameters()), f"{case.id}: froze a parameter and left it so"


def training_repeats(case: Case) -> None:
    """The same round twice gives the same bits: what is random follows from ``work.seed``."""
    first, second = case.round(2), case.round(2)
    same = kit.equal(kit.copied(first.network), kit.copied(second.network))
    assert same, f"{case.id}: the same round gave two models"
    assert first.send_numbers == second.send_numbers, f"{case.id}: {first.send_numbers}, then {second.send_numbers}"
    same = kit.equal(flat(first.send_tensors), flat(second.send_tensors))
    assert same, f"{case.id}: the same round sent two sets of tensors"


def what_was_received_stays(case: Case) -> None:
    """The received model, the received tensors and the numbers that the rule sent are left alone."""
    fresh, work = case.work(1), case.round(1)
    kit.arguments_stay(case.id, work, fresh)


def what_is_sent_is_declared(case: Case) -> None:
    """Numbers and tensors that leave are those of ``sends``: names, ranges, shapes, float32, finite."""
    memory: dict[str, Any] = {}
    for t in (1, 2):
        work = case.round(t, memory)
        memory = dict(work.memory)
        tensors = [one for one in case.trainer.sends if isinstance(one, TensorSpec)]
        numbers = [one for one in case.trainer.sends if not isinstance(one, TensorSpec)]
        kit.numbers_fit(case.id, numbers, work.send_numbers)
        kit.tensors_fit(case.id, tensors, work.send_tensors)


def steps_are_counted(case: Case) -> None:
    """``work.steps`` is the number of batches of all epochs, or of local steps; ``work.scratch`` is left empty."""
    work = case.round(1)
    epochs = case.training.epochs * len(list(kit.SmallData().training(case.training.batch_size, 0)))
    expected = 1 if case.trainer.model == "regression" else case.training.local_steps or epochs
    # A private trainer draws its samples: as many as full batches and a rest would be.
    expected = case.trainer.private and work.steps or expected
    assert work.steps == expected, f"{case.id}: counts {work.steps} steps, expected {expected}"
    assert not work.scratch, f"{case.id}: left {sorted(work.scratch)} in work.scratch"


def memory_survives_a_restart(case: Case) -> None:
    """What is kept for the next round can be written to the site's file, and read back changes nothing."""
    after, resumed = (kit.copied(case.round(2, memory).network) for memory in kit.kept(case.round(1).memory))
    assert kit.equal(after, resumed), f"{case.id}: another model after a restart"


def personal_parts_are_whole(case: Case) -> None:
    """Personal entries are entries of the model, and a personal model has all of them and differs from the shared."""
    trainer, model = case.trainer, kit.copied(kit.example_of(case.trainer)[0])
    entries = trainer.personal_entries(model)
    assert entries <= set(model), f"{case.id}: personal entries {sorted(entries - set(model))} are none of the model's"
    assert entries != set(model), f"{case.id}: all entries are personal, so that sites share nothing"
    assert trainer.personal_entries(model) == entries, f"{case.id}: personal entries change from call to call"
    work = case.round(1)
    if trainer.keeps_personal_model:
        assert work.personal.keys() == model.keys(), f"{case.id}: finish left no whole model in work.personal"
    own = trainer.personal_model(work.received, work.memory)
    assert (own is not None) == (bool(entries) or trainer.keeps_personal_model), f"{case.id}: personal_model says {own}"
    assert own is None or own.keys() == model.keys(), f"{case.id}: the personal model has other entries"
    assert trainer.site_model(model, work.memory).keys() == model.keys(), f"{case.id}: site_model has other entries"


def a_run_can_be_stopped(case: Case) -> None:
    """When the federation ends early, training ends with it, and its scratch is emptied."""
    work = case.work(1)
    calls = iter(range(1000))

    def stop() -> None:
        if next(calls) == 1:
            raise _Stopped

    work.stop_if_aborted = stop
    with contextlib.suppress(_Stopped):
        case.trainer.train(work)
        raise AssertionError(f"{case.id}: trained on after the federation had ended")
    assert not work.scratch, f"{case.id}: left {sorted(work.scratch)} in work.scratch"


def the_server_half_is_pure(case: Case) -> None:
    """See ``server_parts.check_server_half``; a trainer without such a half has nothing to check."""
    if case.trainer.has_server_half:
        check_server_half(case.id, case.trainer, case.training)


def parameters_are_json(case: Case) -> None:
    """The trainer can be rebuilt from its parameters as JSON, and its cost is that of one epoch at least."""
    kit.is_json(case.id, case.trainer)
    cost = case.trainer.cost
    assert cost.forward >= 1 and cost.backward >= 1, f"{case.id}: cost {cost} of an epoch"


CHECKS = (
    parameters_are_json,
    training_moves_the_model,
    training_repeats,
    what_was_received_stays,
    what_is_sent_is_declared,
    steps_are_counted,
    memory_survives_a_restart,
    personal_parts_are_whole,
    a_run_can_be_stopped,
    the_server_half_is_pure,
)


class _Stopped(Exception):
    """Raised where a federation would end."""
