# SPDX-License-Identifier: Apache-2.0
"""A run beside what it is held against: every site alone, and one model on the data of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fairflare.app.runs import default_folder
from fairflare.core.settings import owned
from fairflare.engine.setup.assembly import trains_alone
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.config_checks import checked_config

SOLO, POOLED = "solo", "pooled"
ALIKE = ("training", "threads", "group_by", "min_count", "leave_out", "clients", "accept", "code", "max_norm_ratio")
"""What a reference has of the run, beside task, data, seed and trainer."""


def with_references(config: RunConfig, names: Sequence[str]) -> list[tuple[str, RunConfig]]:
    """(folder name, run) of a run and of its references, on the same data, from the same first model, equally long.

    Args:
        config: the run.
        names: "solo" and "pooled", or one of them.

    Raises:
        UserError: a reference cannot be: the data of these sites may not be pooled.
    """
    own = default_folder(config).name.partition(f"-{config.task}-")[0]
    return same_headline([(own, config), *((name, reference_of_run(config, name)) for name in names)])


def same_headline(found: list[tuple[str, RunConfig]]) -> list[tuple[str, RunConfig]]:
    """Final models of all runs where one of them cannot choose among its rounds: a choice would favour the others."""
    if len({config.headline for _, config in found}) < 2:
        return found
    return [(name, dataclasses.replace(config, headline="final")) for name, config in found]


def reference_of_run(config: RunConfig, name: str) -> RunConfig:
    """The run of the method ``name`` that goes with ``config``; raises UserError where there can be none."""
    trainer = trains_alone(config.trainer)
    settings = owned(config.settings, "trainer") if trainer == config.trainer else {}
    values = {f"task.{key}": value for key, value in config.options.items()}
    values |= {"trainer": trainer, **{f"trainer.{key}": value for key, value in settings.items()}}
    made = make_config(name, f"{config.task}:{config.preset}", seed=config.seed, values=values)
    alike: dict[str, Any] = {key: getattr(config, key) for key in ALIKE}
    alike |= {"min_sites": config.min_sites} if name == SOLO else {}
    return checked_config(dataclasses.replace(made, **alike))
