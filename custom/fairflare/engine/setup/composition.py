# SPDX-License-Identifier: Apache-2.0
"""Whether a rule, a trainer and a server optimizer make one method, and where they do not, why."""

from __future__ import annotations

from collections.abc import Mapping

from fairflare.aggregators.base import Rule
from fairflare.aggregators.bounds import Bounds, Combining
from fairflare.core.errors import UserError
from fairflare.trainers.base import Trainer

AVERAGING = "fedavg"
"""The rule that is as good as any where all updates are zero."""
NONE = "none"


def refuse_misfits(ids: Mapping[str, str], rule: Rule, trainer: Trainer) -> None:
    """Raise UserError, in one line, where the parts of a method do not go together.

    Args:
        ids: "method", "rule", "trainer" and "server_optimizer" -> their ids.
        rule: the object of that id.
        trainer: the object of that id.
    """
    if reason := misfit(ids, rule, trainer):
        raise UserError(reason)


def misfit(ids: Mapping[str, str], rule: Rule, trainer: Trainer) -> str:
    """Why these parts do not go together, in one line; empty where they do. Arguments as for ``refuse_misfits``."""
    method, steps = ids["method"], ids["server_optimizer"] != NONE
    by, under = f"trainer {ids['trainer']}", f"rule {ids['rule']}"
    unheeded = [name for name in rule.heeded if name not in trainer.heeds]
    reasons = (
        (
            rule.own_models and steps,
            f"server_optimizer: expected none, for {method} gives sites models of their own",
        ),
        (bool(unheeded), f"{under}: expected a trainer that heeds its orders ({', '.join(unheeded)}), got {by}"),
        (
            rule.alone and (trainer.has_server_half or bool(trainer.receives)),
            f"{under}: expected a trainer that exchanges nothing, since every site is alone, got {by}",
        ),
        (
            rule.own_models and trainer.corrects,
            f"{by}: corrects the shared model at the server, but {under} gives sites models of their own",
        ),
        (
            isinstance(rule, Combining) and trainer.collects,
            f"{by}: its server half takes up what every site sends, so that {under} would protect from nobody",
        ),
        (
            not trainer.shares_model and ids["rule"] != AVERAGING,
            f"{by}: leaves the models at the sites, so that {under} has no updates to weigh",
        ),
        (
            not trainer.shares_model and steps,
            f"{by}: leaves the models at the sites, so that server optimizer {ids['server_optimizer']} never moves",
        ),
    )
    return next((words for holds, words in reasons if holds), "")


def refuse_bounds(bounds: Bounds, trainer: str, part: Trainer) -> None:
    """Raise UserError where bounds on single sites would not hold for what a trainer's server half takes up.

    Args:
        bounds: of the run.
        trainer: its trainer's id.
        part: the object of that id.
    """
    if not part.collects or bounds == Bounds():
        return
    key = "clip_updates" if bounds.clip else "cap_weights"
    raise UserError(f"{key}: does not bound what the server half of trainer {trainer} takes up; leave it out")


def refuse_sums(method: str, trainer: Trainer) -> None:
    """Raise UserError where the server half of a trainer needs single sites' answers, which secure sums hide."""
    if trainer.has_server_half:
        raise UserError(f"secure_sum: the server half of {method}'s trainer needs more than sums over the sites")
