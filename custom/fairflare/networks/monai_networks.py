# SPDX-License-Identifier: Apache-2.0
"""MONAI's networks that a job may name: a closed list of classes, each with the plain arguments that it declares.

A configuration comes from whoever submits a job. The modules of ``monai.networks.nets`` hold much besides networks,
even functions that download and unpickle a file, so nothing there is found by name: what is not in ``NETWORKS`` cannot
be asked for. No argument takes a path, a URL, a module or a callable, and pretrained weights are always off.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from fairflare.core.errors import UserError
from fairflare.core.extras import need
from fairflare.core.validation import expected, shown, unlisted

LIBRARY = "monai.networks.nets"
MAX_NUMBERS = 150_000_000
"""Numbers that a network may hold, parameters and buffers together: 600 MB as float32."""
MAX_VALUE, MAX_ENTRIES, MAX_DEPTH = 8192, 16, 3
"""Of a number, of a list, and of lists in lists."""
NAME = re.compile(r"[A-Za-z][\w-]{0,23}")
"""A text that an argument may be, such as a layer's name: neither a path nor a module's member."""
PLAIN = f"a truth value, a number from 0 to {MAX_VALUE}, a plain name, none, or a list of up to {MAX_ENTRIES} such"
NOT_PLAIN = frozenset(
    [
        "url",
        "weights",
        "file",
        "module",
        "callable",
        "params",
        "preprocess",
        "layer",
        "progress",
        "self",
        "args",
        "kwargs",
    ]
)
"""Words of an argument's name that no job may give."""
SENETS = ("SENet154", "SEResNet50", "SEResNet101", "SEResNet152", "SEResNext50", "SEResNext101")
NETWORKS = {
    **{name: name.lower() for name in ("AttentionUnet", "Classifier", "DenseNet", "DynUNet", "FullyConnectedNet")},
    **{name: name.lower() for name in ("HighResNet", "Regressor", "ResNet", "SegResNet", "UNETR", "UNet", "VNet")},
    **{f"DenseNet{n}": "densenet" for n in (121, 169, 201, 264)},
    **dict.fromkeys(SENETS, "senet"),
    **{"BasicUNet": "basic_unet", "EfficientNetBN": "efficientnet", "FlexibleUNet": "flexible_unet"},
    **{"SegResNetDS": "segresnet_ds", "SwinUNETR": "swin_unetr"},
}
"""Class -> the module that defines it below ``LIBRARY``."""


def is_listed(dotted: str) -> bool:
    """Whether ``dotted`` is in MONAI's name space, which this list alone decides about."""
    return dotted.split(".")[0] == LIBRARY.split(".")[0]


def checked(dotted: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name in ``NETWORKS`` and arguments as the class takes them; MONAI is imported for plain arguments alone.

    Raises:
        UserError: ``dotted`` is not on the list, or an argument is unknown or not plain.
    """
    name = dotted.rpartition(".")[2]
    file = NETWORKS.get(name, "")
    if not file or dotted not in (f"{LIBRARY}.{name}", f"{LIBRARY}.{file}.{name}"):
        known = ", ".join(NETWORKS)
        raise UserError(f"model: expected a network that {LIBRARY} defines, got {shown(dotted)}; known: {known}")
    for key, value in args.items():
        expected(f"model: {name}: {key[:80]}", _is_plain(value), PLAIN, value)
    parameters = _parameters(_class(name))
    for key in args:
        if key not in parameters:
            raise UserError(f"model: {name}: {unlisted('argument', key, sorted(parameters))}")
    if "pretrained" in parameters:
        expected(f"model: {name}: pretrained", not args.get("pretrained"), "false", args.get("pretrained"))
    taken = {key: _as_tuple(value) for key, value in args.items()}
    return name, taken | ({"pretrained": False} if "pretrained" in parameters else {})


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        return NAME.fullmatch(value) is not None
    if isinstance(value, list):
        return len(value) <= MAX_ENTRIES and depth < MAX_DEPTH and all(_is_plain(one, depth + 1) for one in value)
    if isinstance(value, dict):  # of a layer, as in ["group", {"num_groups": 2}]
        return depth == 1 and all(NAME.fullmatch(key) and _is_plain(one, depth + 1) for key, one in value.items())
    return value is None or (isinstance(value, int | float) and 0 <= value <= MAX_VALUE)


def _as_tuple(value: Any) -> Any:
    """A JSON value with tuples in place of lists."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _class(name: str) -> type[nn.Module]:
    need("images", f"model {name}")
    module = importlib.import_module(f"{LIBRARY}.{NETWORKS[name]}")
    cls = getattr(module, name, None)
    if not (inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__ == module.__name__):
        raise UserError(f"model: {name} is no network of the MONAI that is installed here")
    return cls


def _parameters(cls: type[nn.Module]) -> set[str]:
    """The arguments of the class, and of its parents where it passes on what it does not name."""
    names: set[str] = set()
    for one in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        found = inspect.signature(vars(one)["__init__"]).parameters if "__init__" in vars(one) else {}
        names |= {key for key in found if not NOT_PLAIN & set(key.split("_"))}
        if found and not any(value.kind is value.VAR_KEYWORD for value in found.values()):
            break
    return names


def build(dotted: str, args: Mapping[str, Any]) -> nn.Module:
    """The network ``dotted`` with ``args``; weights come from torch's global generator.

    Raises:
        UserError: see ``checked``; or it would hold more than ``MAX_NUMBERS`` numbers.
        Exception: MONAI's own, where the arguments do not fit together.
    """
    name, taken = checked(dotted, args)
    with _counted(name):
        return _class(name)(**taken)


@contextmanager
def _counted(name: str) -> Iterator[None]:
    """Stop a construction at ``MAX_NUMBERS`` numbers: torch tells of each tensor before it is filled."""
    held = 0

    def count(module: nn.Module, key: str, tensor: Tensor | None) -> None:
        nonlocal held
        held += 0 if tensor is None else tensor.numel()
        if held > MAX_NUMBERS:
            raise UserError(f"model: {name}: expected at most {MAX_NUMBERS:,} parameters, got more")

    with ExitStack() as held_hooks:
        held_hooks.callback(hooks.register_module_parameter_registration_hook(count).remove)
        held_hooks.callback(hooks.register_module_buffer_registration_hook(count).remove)
        yield
