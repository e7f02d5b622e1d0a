# SPDX-License-Identifier: Apache-2.0
"""The objects that a configuration names, as a site builds them: it bounds no update and reads no given weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from fairflare.aggregators.base import Rule
from fairflare.core import registry, user_code
from fairflare.core.errors import UserError
from fairflare.core.metric import LOSSES
from fairflare.core.schema import Slot, slots_of
from fairflare.core.seeds import forget_seeds, seed_everything
from fairflare.core.types import Need, Number, Outline, StateDict, numbers_of, tensors_of
from fairflare.data.tensors import Grouping
from fairflare.engine.setup import tasks
from fairflare.participation import All, Selector
from fairflare.privacy.disclosure import Budget
from fairflare.probes.base import Probe
from fairflare.server_optimizers.base import Add, ServerOptimizer
from fairflare.tasks.base import Task
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.setup.run_config import RunConfig
    from fairflare.engine.setup.weights import Origin


FOLDS = "fairflare.tasks.folds"
"""What deals patients into folds: by a name that no reader of imports follows, as few runs need it."""
TUNING = "fairflare.engine.setup.tuning"
"""What freezes a network's body: likewise."""
FEATURES = "fairflare.engine.setup.feature_cache"
"""What runs a frozen body once per image: likewise."""
Begin = Callable[[nn.Module, Trainer], "Origin | None"]


@dataclass(frozen=True)
class Parts:
    """The objects that a configuration names."""

    task: Task
    rule: Rule
    trainer: Trainer
    probes: tuple[Probe, ...]
    network: nn.Module
    model: StateDict
    """The initial model w^0."""
    grouping: Grouping
    selector: Selector = field(default_factory=All)
    server_optimizer: ServerOptimizer = field(default_factory=Add)
    origin: Origin | None = None
    """What the initial model has of a file that was given."""

    @property
    def outline(self) -> Outline:
        """What server and sites know alike."""
        return Outline(self.model, self.grouping.names, len(self.task.classes))

    def scalars(self, *, anchored: bool) -> tuple[Number, ...]:
        """The numbers that sites may report in a round's first exchange, or in its second."""
        probes = [p for p in self.probes if (p.when == "anchored") == anchored]
        found = {s.name: s for probe in probes for s in probe.scalars(self.outline)}
        return tuple((found if anchored else found | {s.name: s for s in numbers_of(self.trainer)}).values())

    @property
    def sent_tensors(self) -> dict[str, Slot]:
        """The tensors that sites may send beside their updates; those that the rule wants must be there."""
        parts = (self.trainer, *(probe for probe in self.probes if probe.when != "anchored"))
        return slots_of((s for part in parts for s in tensors_of(part)), self.outline, self.rule.wanted)

    @property
    def received_tensors(self) -> dict[str, Slot]:
        """The tensors that the rule may send beside the model."""
        parts: tuple[Trainer | Probe, ...] = (self.trainer, *self.probes)
        return slots_of((s for part in parts for s in part.receives), self.outline)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the method needs of every site's data."""
        parts: tuple[Rule | Trainer | Probe, ...] = (self.rule, *self.probes, self.trainer)
        return tuple(need for part in parts for need in part.needs)

    @property
    def metrics(self) -> dict[str, tuple[float, float]]:
        """The metrics that sites may report, with their ranges."""
        return {name: self.task.metric(name).range for name in (*self.task.metrics, *LOSSES)}

    @property
    def personal(self) -> frozenset[str]:
        """The model's entries that stay at the sites.

        Raises:
            UserError: the trainer finds none to keep, names others than the model's, or would leave none to share.
        """
        entries = self.trainer.personal_entries(self.model)
        shared = [key for key, value in self.model.items() if value.is_floating_point() and key not in entries]
        if not entries <= set(self.model) or not shared or (entries and self.trainer.keeps_personal_model):
            raise UserError(f"trainer {type(self.trainer).__name__}: personal entries: expected a part of the model's")
        return entries

    @property
    def has_personal(self) -> bool:
        """Whether sites have personal models, be it in some entries alone."""
        return self.trainer.keeps_personal_model or bool(self.personal)

    @property
    def counts_own(self) -> bool:
        """Whether sites use models of their own, so that the results of the run are those of these."""
        return self.rule.counts_own or bool(self.personal) or not self.trainer.shares_model

    @property
    def shared(self) -> StateDict:
        """The initial model without the entries that stay at the sites."""
        personal = self.personal
        return {key: value for key, value in self.model.items() if key not in personal}

    def budget_of(self, config: RunConfig) -> Budget:
        """Whom the run's privacy budget protects."""
        return "hospital" if config.site_epsilon else "record" if self.trainer.private else ""

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the trainable parameters."""
        return frozenset(name for name, p in self.network.named_parameters() if p.requires_grad)


def site_parts(config: RunConfig, begin: Begin | None = None) -> Parts:
    """Task, rule, the probes that the rule wants, and the network.

    Args:
        begin: called with the fresh network and the trainer before the initial model is taken from it, at the server
            and on one machine; None: the network only ever holds received models, and given weights, which are a file
            of the server's machine, are not looked for.
    """
    torch.set_num_threads(config.threads)
    user_code.check(config.code)
    method = registry.get_method(config.method)
    task = tasks.load(config.task, config.preset, **config.options)
    task = importlib.import_module(FOLDS).folded(task, config.fold) if config.fold else task
    made = config.components
    seed_everything(task.initial_seed(config.seed))
    network = task.network()
    forget_seeds()  # FLARE draws ports from Python's generator: two servers must not draw the same ones
    origin = begin(network, made.trainer) if begin else None
    if config.tune != "all":
        network = importlib.import_module(TUNING).begun(network, config, at_site=begin is None)
    model = {key: value.detach().clone() for key, value in network.state_dict().items()}
    grouping = task.grouping(config.group_by)
    outline = Outline(model, grouping.names, len(task.classes))
    chosen = chosen_probes(made.rule, made.probes, outline, made.trainer)
    start, others = (network, model, grouping), (made.selector, made.server_optimizer)
    parts = Parts(task, made.rule, made.trainer, chosen, *start, *others, origin)
    parts.personal  # noqa: B018  (whatever is wrong with it is said before anything starts)
    sent = [*parts.sent_tensors, *(s.name for when in (False, True) for s in parts.scalars(anchored=when))]
    beside = [name for name in sent if name not in {spec.name for spec in made.trainer.sends}]
    if made.trainer.private and beside:
        raise UserError(f"trainer {config.trainer}: {config.method} sends {beside[0]}, which no privacy budget covers")
    if config.site_epsilon and beside:
        raise UserError(f"site_epsilon: {config.method} sends {beside[0]}, which no privacy budget covers")
    statistics = sorted({key for key, value in model.items() if value.is_floating_point()} - parts.trainable)
    if config.site_epsilon and statistics:
        raise UserError(f"site_epsilon: {statistics[0]} is a statistic of patients (choose another normalisation)")
    if task.by_script and parts.has_personal:
        raise UserError(f"trainer {config.trainer}: keeps layers at the sites, which a script does not")
    if reason := made.trainer.unsuited(network):
        raise UserError(f"trainer {config.trainer or method.trainer}: {reason}")
    return parts


def chosen_probes(rule: Rule, probes: Sequence[Probe], outline: Outline, trainer: Trainer) -> tuple[Probe, ...]:
    """Those of a method's ``probes`` that report something the rule or the trainer's server half uses.

    Raises:
        UserError: something that the rule wants is reported by none, nor sent by the trainer, or a second exchange
            would report nothing.
    """
    sent = [spec.name for spec in trainer.sends]
    reported = {probe: {s.name for s in probe.scalars(outline)} | {s.name for s in probe.sends} for probe in probes}
    missing = [name for name in rule.wanted if name not in sent and not any(name in n for n in reported.values())]
    if missing:
        raise UserError(f"rule {type(rule).__name__}: neither trainer nor probes of the method report {missing[0]!r}")
    if any(probe.when == "anchored" and not names for probe, names in reported.items()):
        where = "its outermost module holds all parameters"
        raise UserError(f"rule {type(rule).__name__}: expected a network with layers to compare, got none: {where}")
    used = {*rule.wanted, *rule.useful}
    own = tuple(registry.get_probe(id) for id in trainer.probes)
    return tuple(
        p for p in probes if isinstance(p, own) or any(n in used or n.partition("/")[0] in used for n in reported[p])
    )
