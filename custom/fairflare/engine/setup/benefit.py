# SPDX-License-Identifier: Apache-2.0
"""Whether a run says what joining gives each site, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fairflare.core import registry
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config_checks import checked_config
from fairflare.engine.setup.method_parts import method_parts
from fairflare.privacy.secure_sum.schemes import NONE
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.own.script import Script

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig


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
