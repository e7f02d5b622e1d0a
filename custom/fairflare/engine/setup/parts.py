# SPDX-License-Identifier: Apache-2.0
"""The objects that a configuration names, at the server and on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from fairflare.aggregators.bounded import bounded
from fairflare.core.errors import UserError
from fairflare.core.execution import default_device
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import Parts, chosen_probes, site_parts
from fairflare.engine.setup.weights import Origin, start_from
from fairflare.trainers.base import Trainer

__all__ = ["Parts", "build_parts", "chosen_probes", "stacks_well", "without_folders"]


def build_parts(config: RunConfig, *, at_site: bool = False) -> Parts:
    """``site_parts`` with the rule within the run's bounds; ``at_site``: they start from no given weights."""

    def begin(network: nn.Module, trainer: Trainer) -> Origin | None:
        if not config.init_from:
            return None
        return start_from(config.init_from, network, trainer.personal_entries(network.state_dict()))

    found = site_parts(config, None if at_site else begin)
    parts = replace(found, rule=bounded(found.rule, config.bounds))
    if config.stacked:
        from fairflare.trainers.vmap_training import unstackable

        if reason := unstackable(parts.network, parts.trainer, config.training, default_device()):
            raise UserError(f"stacked: {reason}")
    return parts


def stacks_well(parts: Parts, config: RunConfig) -> bool:
    """Whether the steps of several sites of a stacked run cost little more than those of one."""
    from fairflare.trainers.vmap_training import are_products

    return are_products(parts.network, parts.task.kind.family, config.training)


def without_folders(options: Mapping[str, Any]) -> dict[str, Any]:
    """Task options without the folder that a researcher's datalists lie in: in a federation each site has its own."""
    return {key: "" if key == "datalists" else value for key, value in options.items()}
