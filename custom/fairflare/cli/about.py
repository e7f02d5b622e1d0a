# SPDX-License-Identifier: Apache-2.0
"""Commands that say what there is, and write a part to begin with."""

from __future__ import annotations

import importlib
import keyword
import re
import sys
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from fairflare.cli import console
from fairflare.cli.options import PATH, Told, as_json, json_option
from fairflare.core.errors import UserError
from fairflare.core.validation import shown

KINDS = ("rule", "trainer", "probe")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
TEMPLATES = Path(__file__).parent / "templates"


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


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Where to write; the current folder by default.")
@as_json
def new(kind: str, name: str, out: Path) -> Told:
    """Write a working rule, trainer or probe NAME as a plugin of one file, with its test and its card.

    No file is overwritten. The example is a method of its own at once: run it, then change it.
    """
    put_off()
    files = write_part(kind, name, out)
    return {"files": [str(path) for path in files]}, partial(console.written, files, name)


def write_part(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the plugin ``name``, its test and its card into ``folder``, which is made if need be; return the files.

    UserError, and nothing is written, where the name cannot be an id and a module, is taken, or such a file is there.
    """
    from fairflare.engine.files import save_text

    module = _checked(kind, name)
    texts = _texts(kind, name, module)
    paths = {folder / file: text for file, text in texts.items()}
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UserError(f"new: {path}: is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        save_text(path, text)
    return list(paths)


def _checked(kind: str, name: str) -> str:
    """The module of a new part; UserError where the name does not fit or is taken."""
    from fairflare.core import registry

    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(module):
        words = f"lower-case words of letters and digits joined by hyphens, at most {LONGEST} characters"
        raise UserError(f"new: expected a name of {words}, got {shown(name)}")
    for taken, known in ((kind, list(registry.parts(kind))), ("method", list(registry.methods()))):
        if name in known:
            raise UserError(f"new: there is a {taken} {name!r} already; known: {', '.join(known)}")
    return module


def _texts(kind: str, name: str, module: str) -> dict[str, str]:
    import yaml
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from fairflare.core import registry

    files = {f"{module}.py": f"{kind}.py.j2", f"test_{module}.py": "test.py.j2", f"{name}.md": "card.md.j2"}
    words = name.split("-")
    values = {
        **yaml.safe_load((TEMPLATES / "cards.yaml").read_text(encoding="utf-8"))[kind],
        "kind": kind,
        "id": name,
        "module": module,
        "name": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
        "number": f"{module}_loss",
        "probe": "loss" if "loss" in registry.parts("probe") else "group-loss",
        "card": f"{name}.md",
        "year": date.today().year,
    }
    # Not HTML: these are Python and Markdown, and the one value that comes from outside is a checked name.
    made = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True)
    return {file: made.get_template(template).render(values).rstrip("\n") + "\n" for file, template in files.items()}


OWN = ("fairflare.networks.builtin", "fairflare.networks.volumes")
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
