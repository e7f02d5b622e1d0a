# SPDX-License-Identifier: Apache-2.0
"""Modules that take long to import, put off until something of them is used."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

OWN = ("fairflare.core.tensor_files", "fairflare.networks.builtin", "fairflare.networks.volumes")
"""Modules that use PyTorch as soon as they are imported, where the tasks are read."""
HEAVY = ("torch", "torch.nn", "torch.nn.functional", "numpy", *OWN)
"""A package stands before its modules."""


class _IsTensor(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, importlib.import_module("torch").Tensor)


class Tensor(metaclass=_IsTensor):
    """Stands for ``torch.Tensor`` in annotations, and in ``isinstance``."""


class Later(ModuleType):
    """Stands for a module, which is imported when an attribute of it is asked for.

    ``importlib.util.LazyLoader`` imports the module as soon as a second file imports it, too.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = find_spec(name)
        self.__path__ = (self.__spec__ and self.__spec__.submodule_search_locations) or []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # who asks every module for its file uses nothing of it
        if isinstance(within := sys.modules.get(f"{self.__name__}.{name}"), Later):
            return within
        if (self.__name__, name) == ("torch", "Tensor") and sys.modules.get("torch") is self:
            return Tensor
        package = self.__name__.partition(".")[0]
        for key, module in list(sys.modules.items()):
            if isinstance(module, Later) and key.partition(".")[0] == package:
                del sys.modules[key]
        return getattr(importlib.import_module(self.__name__), name)


def put_off() -> None:
    """From here on the modules of ``HEAVY`` are only imported once they are used, unless PyTorch is there already."""
    if "torch" not in sys.modules:
        for name in HEAVY:
            if name not in sys.modules:
                sys.modules[name] = Later(name)
