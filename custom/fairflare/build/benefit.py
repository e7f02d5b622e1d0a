# SPDX-License-Identifier: Apache-2.0
"""The two sides of a configuration that says what joining gives each site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairflare.build import tasks
from fairflare.build.config_checks import checked_config
from fairflare.build.method_parts import method_parts
from fairflare.clinic.kinds.own import OwnData
from fairflare.clinic.tasks.script import Script
from fairflare.core import registry
from fairflare.core.types import Number
from fairflare.federation.benefit.alone import SHARE, Alone
from fairflare.federation.benefit.measured import reports
from fairflare.federation.benefit.server import Benefit
from fairflare.federation.early_end import EarlyEnd
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE
from fairflare.trainers.base import Trainer
from fairflare.trainers.sgd import PlainTrainer

if TYPE_CHECKING:
    from fairflare.build.config import RunConfig
    from fairflare.build.parts import Parts

PLAIN = "sgd"
"""The trainer of a site alone where the run's own exchanges more than models."""


def asks_by_itself(config: RunConfig) -> bool:
    """Whether a run on this machine says what joining gives where no setting decides.

    It does in the clear, on tables and on a user's own data: a site alone takes the run's local steps once more,
    without its scoring, exchanges and probes, and so less than the run.
    """
    task = tasks.load(config.task, config.preset, **config.options)
    own = isinstance(task, OwnData) and not isinstance(task, Script)
    if not (task.quick or own) or config.secure_sum != NONE:
        return False
    return can_ask(config)


def can_ask(config: RunConfig) -> bool:
    """Whether a run can say what joining gives: not one that is itself what others are held against."""
    parts = method_parts(registry.get_method(config.method), config.settings, **config.parts)
    chosen = config.headline == "best" and not parts.trainer.is_shared
    return not (parts.rule.alone or parts.selector.pools or chosen)


def words(config: RunConfig) -> str:
    """What it costs that sites also train alone without being asked to, for whoever starts the run; "" on tables."""
    if not config.solo or tasks.load(config.task, config.preset, **config.options).quick:
        return ""
    rounds = config.training["rounds"]
    cost = f"{rounds} rounds without exchange, up to as long as the run itself"
    return f"each site also trains alone: {cost} (--no-solo leaves it out)"


def with_benefit(config: RunConfig, solo: bool) -> RunConfig:
    """``config`` with the question or without it; raises UserError where no site could answer it."""
    return config if solo == config.solo else checked_config(replace(config, solo=solo))


def trains_alone(trainer: str) -> str:
    """Id of the trainer with which a site trains by itself: the run's own where that exchanges nothing else."""
    return trainer if registry.get_trainer(trainer)().is_alone else PLAIN


def at_server(config: RunConfig, parts: Parts) -> Benefit | None:
    """The server's side; None where the run does not ask."""
    if not config.solo:
        return None
    task, ends = parts.task, EarlyEnd(config.min_responses, config.grace)
    return Benefit(_reports(parts), trains_alone(config.trainer), task.measures, task.group_measures, ends)


def at_site(config: RunConfig, parts: Parts, memory: Path | None) -> Alone | None:
    """A site's side.

    Args:
        config: the run.
        parts: its objects.
        memory: the file in which the site keeps its memory; None keeps the model in the process.
    """
    if not config.solo:
        return None
    trainer: Trainer = parts.trainer if parts.trainer.is_alone else PlainTrainer()
    return Alone(trainer, config.training["rounds"], memory, SHARE * config.task_timeout)


def may_leave(config: RunConfig, parts: Parts, egress: Egress) -> Egress:
    """``egress`` with what a site says of its benefit."""
    return replace(egress, benefit=_reports(parts)) if config.solo else egress


def _reports(parts: Parts) -> tuple[Number, ...]:
    task = parts.task
    return reports(task.measures, task.group_measures, parts.grouping.names, lambda name: task.metric(name).range)
