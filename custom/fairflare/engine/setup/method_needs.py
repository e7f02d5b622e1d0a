# SPDX-License-Identifier: Apache-2.0
"""What a method costs, sends and cannot do without: for whoever chooses one."""

from __future__ import annotations

from typing import Any

import torch

from fairflare.aggregators.base import Rule
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.types import Offer, Training
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.probes.base import Probe
from fairflare.trainers.base import Trainer

LACKING = [Offer("", ("accuracy", "dice", "loss"), "accuracy", *of) for of in ((("a", "b"), False), ((), True))]
"""A task without classes, and one without groups: what methods say that they miss is what they need."""


def effort(entry: Method) -> dict[str, Any]:
    """Passes over a site's training data per round at one local epoch, and exchanges of models per round."""
    _, *parts = registry.parts_of(entry)
    passes = {way: sum(getattr(part.cost, way) for part in parts) for way in ("forward", "backward")}
    rule = registry.get_rule(entry.rule)
    several, second = rule.anchors is not Rule.anchors, rule.anchor is not Rule.anchor
    return {"passes": passes, "exchanges": "several" if several else 2 if second else 1}


def received_by(entry: Method) -> list[dict[str, str]]:
    """The tensors that sites are sent beside the model."""
    made = default_parts(entry)
    parts: tuple[Trainer | Probe, ...] = (made.trainer, *made.probes)
    return [{"tensors": one.name, "meaning": one.meaning} for part in parts for one in part.receives]


def needs_of(entry: Method) -> list[str]:
    """What a method cannot do without, in sentences: of the data, of the task, of the network and of the training."""
    made = default_parts(entry)
    pieces: tuple[Rule | Trainer | Probe, ...] = (made.rule, made.trainer, *made.probes)
    found = [f"{need.split}: {need.least} examples: {need.reason}" for piece in pieces for need in piece.needs]
    found += [text for offer in LACKING for piece in pieces if (text := piece.missing(offer))]
    found += [made.trainer.unsuited_to(Training(optimizer="adam")), _of_network(made.trainer)]
    return list(dict.fromkeys(filter(None, found)))


def _of_network(trainer: Trainer) -> str:
    """What is wrong with a network of a single layer."""
    plain = torch.nn.Linear(2, 2)
    try:
        trainer.personal_entries(plain.state_dict())
    except UserError as error:
        return str(error)
    return trainer.unsuited(plain)
