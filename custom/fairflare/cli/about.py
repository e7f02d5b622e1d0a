# SPDX-License-Identifier: Apache-2.0
"""Commands that say what there is."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import click

from fairflare.cli import console
from fairflare.cli.options import Told, as_json, json_option


@click.command("list")
@click.option("--parts", is_flag=True, help="The parts instead: selectors, trainers, probes, rules, server optimizers.")
@json_option
def list_methods(parts: bool, as_json: bool) -> None:
    """Methods: what they are for, what they cost, and their parameters with defaults."""
    put_off()
    from fairflare.studies import describe

    if parts:
        rows = describe.part_rows()
        console.dump(rows) if as_json else console.parts(rows)
    elif as_json:
        console.dump(describe.method_rows())
    else:
        console.methods(describe.listed_rows())


@click.command("tasks")
@as_json
def list_tasks() -> Told:
    """Tasks and presets: sites, sizes, metrics, what is real and what is simulated."""
    put_off()
    from fairflare.studies.describe import task_rows

    return (rows := task_rows()), partial(console.tasks, rows)


@click.command()
@click.argument("name", metavar="METHOD|TASK[:PRESET]|OWNER|KEY")
@as_json
def describe(name: str) -> Told:
    """Settings with owner, default, range and meaning: of a METHOD's parts, of a TASK and its training, of all parts of
    an OWNER (rule, trainer, train, run, after, ...), or every setting that is called KEY.

    The default is the one that the method or the task's preset has; a name of several settings is listed with each.
    """
    put_off()
    from fairflare.studies.describe import about

    return (found := about(name)), partial(console.settings, found)


OWN = ("fairflare.networks.builtin", "fairflare.networks.images", "fairflare.networks.volumes")
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
