# SPDX-License-Identifier: Apache-2.0
"""A network class in place of a network's name, as FLARE names components: {"class_path": "my_net.Net", "args": {...}}.

It is a class of the user's own files (``user_code``), one of MONAI's on a closed list (``monai_networks``), or a
network of Hugging Face's ``transformers`` by its configuration (``hugging_face``).
"""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.user_code import check_name, load_object
from fairflare.core.validation import expected as expect
from fairflare.core.validation import unlisted
from fairflare.networks.own import SHAPE, is_own

MONAI = "fairflare.networks.monai_networks"
"""By a name that no reader of imports follows: a job whose network is no class does without (``staging``)."""
HUGGING_FACE = "fairflare.networks.hugging_face"
"""Likewise."""
LONGEST = 10_000
"""Characters of a class's JSON."""


def is_hugging_face(dotted: str) -> bool:
    """Whether ``dotted`` is in the name space of ``transformers``, of which configurations alone are built."""
    return dotted.split(".")[0] == "transformers"


def class_path(model: str) -> str:
    """The class that ``model`` names; empty where it is a network's name. Raises UserError."""
    return _parsed(model)[0] if is_own(model) else ""


def check(model: str) -> None:
    """Raise UserError unless the JSON ``model`` is of a class that may be named; nothing is imported."""
    dotted, args = _parsed(model)
    if _monai().is_listed(dotted):
        _monai().checked(dotted, args)
    elif is_hugging_face(dotted):
        importlib.import_module(HUGGING_FACE).checked(args)
    else:
        check_name(dotted, "model")


def build(model: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> nn.Module:
    """The network of the class that ``model`` names, see ``own.build``."""
    dotted, args = _parsed(model)
    listed = _monai().is_listed(dotted)
    kind = None if listed or is_hugging_face(dotted) else load_object(dotted, "model", _is_network, "a torch.nn.Module")
    try:
        if kind or listed:
            network = kind(**args) if kind else _monai().build(dotted, args)
        else:
            network = importlib.import_module(HUGGING_FACE).build(args, inputs[0], outputs[0])
        got = tuple(network.eval()(torch.zeros(2, *inputs)).shape)
    except UserError:
        raise
    except Exception as error:  # user's code runs here
        text = " ".join(str(error).split())[:300]
        raise UserError(f"model: {dotted} failed on two examples of shape {inputs} ({text})") from error
    expect(f"model: {dotted}: output of two examples", got == (2, *outputs), f"shape {(2, *outputs)}", got)
    network.made_of = {"class_path": dotted, "args": args}
    made: nn.Module = network.train()
    return made


def _monai() -> Any:
    return importlib.import_module(MONAI)


def _is_network(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module)


def _parsed(model: str) -> tuple[str, dict[str, object]]:
    if len(model) > LONGEST:
        raise UserError(f"model: expected at most {LONGEST} characters, got {len(model)}")
    try:
        content = json.loads(model)
    except (ValueError, RecursionError) as error:
        raise UserError(f"model: expected {SHAPE}, got no JSON ({error})") from None
    unknown = sorted(set(content) - {"class_path", "args"})
    if unknown:
        raise UserError(f"model: {unlisted('key', unknown[0], ('class_path', 'args'))}")
    path, args = content.get("class_path"), content.get("args", {})
    if not isinstance(path, str) or not isinstance(args, dict):
        raise UserError(f"model: expected {SHAPE}, got {model}")
    return path, args
