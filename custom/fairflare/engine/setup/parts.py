# SPDX-License-Identifier: Apache-2.0
"""The objects that a configuration names, at the server and on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fairflare.aggregators.bounded import bounded
from fairflare.core.errors import UserError
from fairflare.core.execution import default_device
from fairflare.core.types import FROZEN
from fairflare.engine.files import read_model
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import Parts, chosen_probes, site_parts
from fairflare.engine.setup.weights import Origin, start_from
from fairflare.trainers.base import Trainer

__all__ = ["Parts", "build_parts", "chosen_probes", "stacks_well", "without_folders"]


def build_parts(config: RunConfig, *, at_site: bool = False, start: Path | None = None) -> Parts:
    """``site_parts`` with the rule within the run's bounds; ``at_site``: they start from no given weights.

    ``start``: at a server without the frozen body, the file with the initial values of what trains.
    """

    def begin(network: nn.Module, trainer: Trainer) -> Origin | None:
        if not config.init_from or start:
            return None
        return start_from(config.init_from, network, trainer.personal_entries(network.state_dict()))

    found = site_parts(config, None if at_site else begin)
    parts = replace(found, rule=bounded(found.rule, config.bounds))
    if start:
        parts.network.load_state_dict(read_model(start))
        _forget_body(parts.network)
        parts = replace(parts, model={key: value.clone() for key, value in parts.network.state_dict().items()})
    if config.stacked:
        from fairflare.trainers.vmap_training import unstackable

        drawn = "expected mixing=mean" if "sampled" in parts.rule.heeded else ""
        if reason := drawn or unstackable(parts.network, parts.trainer, config.training, default_device()):
            raise UserError(f"stacked: {reason}")
    return parts


def _forget_body(network: nn.Module) -> None:
    """Let go of the frozen values and keep their shapes: what a server needs, which computes nothing with them."""
    for module in network.modules():
        for name in getattr(module, FROZEN, ()):
            module._buffers[name] = module.get_buffer(name).to("meta")


def is_scored(parts: Parts) -> bool:
    """Whether the server scores models itself, on test sets that all sites share."""
    return parts.task.has_test_sets and not parts.counts_own


def stacks_well(parts: Parts, config: RunConfig) -> bool:
    """Whether the steps of several sites of a stacked run cost little more than those of one."""
    from fairflare.trainers.vmap_training import are_products

    return are_products(parts.network, parts.task.kind.family, config.training)


def without_folders(options: Mapping[str, Any]) -> dict[str, Any]:
    """Task options without the folder that a researcher's datalists lie in: in a federation each site has its own."""
    return {key: "" if key == "datalists" else value for key, value in options.items()}
