# SPDX-License-Identifier: Apache-2.0
"""Modules that take long to import, put off until something of them is used."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Later(ModuleType):
    """Stands for a module, which is imported when an attribute of it is asked for.

    ``importlib.util.LazyLoader`` imports the module as soon as a second file imports it, too.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = find_spec(name)

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def put_off(*names: str) -> None:
    """From here on modules that have not been imported yet are only imported once they are used."""
    for name in set(names) - set(sys.modules):
        sys.modules[name] = Later(name)
