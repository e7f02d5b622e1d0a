# SPDX-License-Identifier: Apache-2.0
"""A user's own network class, named as FLARE names components: {"class_path": "my_net.Net", "args": {"width": 16}}."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import nn

from fairflare.clinic import networks
from fairflare.clinic.checks import expect
from fairflare.errors import UserError
from fairflare.user_code import load_object

SHAPE = '{"class_path": "module.Name", "args": {...}}'


def is_own(model: str) -> bool:
    """Whether ``model`` is the JSON of a class rather than the name of a network."""
    return model.lstrip().startswith("{")


def check_model(model: str, names: Sequence[str]) -> None:
    """Raise UserError unless ``model`` is one of ``names`` or the JSON of a class."""
    if is_own(model):
        _parsed(model)
    else:
        expect("model", model in names, f"one of {', '.join(names)}, or {SHAPE}", model)


def build(model: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **options: object) -> nn.Module:
    """The network that ``model`` names, by name or by class.

    Args:
        model: see above.
        inputs: shape of one example, channels or features first.
        outputs: shape of its output, classes or structures first.
        options: of a network by name, e.g. norm; a class has its own.

    Raises:
        UserError: the class cannot be imported or built, is no ``torch.nn.Module``, or gives another output.
    """
    if not is_own(model):
        return networks.build(model, inputs[0], outputs[0], **options)
    dotted, args = _parsed(model)
    kind = load_object(dotted, "model")
    try:
        network = kind(**args)
        got = tuple(network.eval()(torch.zeros(2, *inputs)).shape) if isinstance(network, nn.Module) else None
    except Exception as error:  # user's code runs here
        raise UserError(f"model: {dotted} failed on two examples of shape {inputs} ({error})") from error
    if got is None:
        raise UserError(f"model: {dotted} is no torch.nn.Module")
    expect(f"model: {dotted}: output of two examples", got == (2, *outputs), f"shape {(2, *outputs)}", got)
    return network.train()


def _parsed(model: str) -> tuple[str, dict[str, object]]:
    try:
        content = json.loads(model)
    except ValueError as error:
        raise UserError(f"model: expected {SHAPE}, got no JSON ({error})") from None
    unknown = sorted(set(content) - {"class_path", "args"})
    if unknown:
        raise UserError(f"model: unknown key {unknown[0]!r}; known: class_path, args")
    path, args = content.get("class_path"), content.get("args", {})
    if not isinstance(path, str) or not isinstance(args, dict):
        raise UserError(f"model: expected {SHAPE}, got {model}")
    return path, args
