# SPDX-License-Identifier: Apache-2.0
"""The network that a task's option ``model`` names: one of the package's by name, or a class, see ``own_class``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torch import nn

from fairflare.core.validation import expected as expect
from fairflare.networks import builtin as networks

SHAPE = '{"class_path": "module.Name", "args": {...}}'
OWN_CLASS = "fairflare.networks.own_class"
"""What builds classes: by a name that no reader of imports follows, as a job whose network is none does without."""


def is_own(model: str) -> bool:
    return model.lstrip().startswith("{")


def check_model(model: str, names: Sequence[str]) -> None:
    """Raise UserError unless ``model`` is one of ``names`` or the JSON of a class that may be named.

    Nothing is imported; whether a class of the user's own is there comes out when it is built.
    """
    if is_own(model):
        importlib.import_module(OWN_CLASS).check(model)
    else:
        expect("model", model in names, f"one of {', '.join(names)}, or {SHAPE}", model)


def build(
    model: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *, cuts: int = 0, **options: object
) -> nn.Module:
    """The network that ``model`` names, by name or by class, for examples and outputs of these shapes, channels first.

    ``cuts`` are those of ``builtin.Ordered``, 0: none; ``options`` those of a network by name. UserError where a class
    cannot be imported or built, is no ``torch.nn.Module``, or gives another output.
    """
    if not is_own(model):
        return networks.build(model, inputs[0], outputs[0], **options, **({"cuts": cuts} if cuts else {}))
    classes: Any = importlib.import_module(OWN_CLASS)
    network: nn.Module = classes.build(model, inputs, outputs)
    return networks.Ordered(network, cuts).train() if cuts else network
