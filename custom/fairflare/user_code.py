# SPDX-License-Identifier: Apache-2.0
"""A user's own Python files, such as a network or a data set: named once, imported here, shipped with jobs.

``FAIRFLARE_CODE`` (on the command line ``--code``) names files or package folders, separated as in ``PATH``. Only what
it names can be imported through it, so that what works here is what a job carries, whose files lie in ``app/custom``.

A configuration comes from whoever submits a job, and FLARE's class allow-list does not see the names in it. So nothing
is imported by name but the user's files, those in folders that FLARE or the site's administrator vouches for, and
MONAI's networks.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fairflare.errors import DataError, UserError

VARIABLE = "FAIRFLARE_CODE"
INIT = "__init__.py"
LIBRARY = "monai.networks.nets."
"""Prefix of the classes that may be named without a file of the user's."""

_vouched: list[Path] = []


def code_files() -> tuple[Path, ...]:
    """The files and folders that ``FAIRFLARE_CODE`` names; UserError when one is neither module nor package."""
    paths = tuple(Path(p).resolve() for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p)
    for path in paths:
        fits = path.suffix == ".py" and path.is_file() or (path / INIT).is_file()
        if not fits or not path.stem.isidentifier():
            raise UserError(f"code: expected a .py file or a folder with {INIT}, got {path}")
        if path.stem == __package__:
            raise UserError(f"code: {path.name}: the name {__package__!r} is this package's; rename the file")
    names = [path.stem for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"code: two files define the module {name!r}")
    return paths


def use(paths: Sequence[Path]) -> None:
    """Name ``paths`` for this process and those that it starts."""
    if paths:
        os.environ[VARIABLE] = os.pathsep.join(str(path.resolve()) for path in paths)
    code_files()


def vouch(folders: Iterable[Path]) -> None:
    """Let modules in ``folders`` be imported by name: a job's ``app/custom``, which takes the right to bring code."""
    _vouched.extend(folder.resolve() for folder in folders if folder.resolve() not in _vouched)


def load_object(dotted: str, key: str) -> Any:
    """What ``dotted`` ("module.Name") names, from the user's files or MONAI's networks.

    Raises:
        UserError: starts with ``key`` and says what could not or must not be imported.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise UserError(f"{key}: expected module.Name, got {dotted!r}")
    _listen()
    try:
        if not (dotted.startswith(LIBRARY) or _is_vouched(module.partition(".")[0])):
            raise ModuleNotFoundError(f"{module} is none of your files")
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # user's code runs here
        hint = "" if code_files() else "; name the file with --code"
        raise UserError(f"{key}: {dotted} cannot be imported ({type(error).__name__}: {error}){hint}") from error


def _is_vouched(module: str) -> bool:
    """Whether the top-level ``module`` is a file or package of the user's, or lies in a folder that is vouched for."""
    if module in {path.stem for path in code_files()}:
        return True
    spec = importlib.util.find_spec(module)
    origin = Path(spec.origin).resolve() if spec and spec.origin and spec.has_location else None
    return origin is not None and any(origin.is_relative_to(folder) for folder in _vouched)


def fingerprints() -> dict[str, str]:
    """Module -> SHA-256 of the files that ``FAIRFLARE_CODE`` names, for a run's configuration."""
    return {path.stem: _fingerprint(path) for path in code_files()}


def check(expected: Mapping[str, str]) -> None:
    """Raise DataError "code" unless the modules that can be imported here are those of ``expected``."""
    _listen()
    for name, fingerprint in expected.items():
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec and spec.origin else None
        if origin is None:
            expected = f"which is not here; name its file with --code or in {VARIABLE}"
            raise DataError("code", f"code: the run needs the module {name!r}, {expected}")
        if _fingerprint(origin.parent if origin.name == INIT else origin) != fingerprint:
            raise DataError("code", f"code: the module {name!r} is not the one that the run was made with")


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        digest.update(file.relative_to(path.parent).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds exactly the modules that ``FAIRFLARE_CODE`` names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for file in code_files():
            if file.stem == fullname and file.is_dir():
                where = [str(file)]
                return importlib.util.spec_from_file_location(fullname, file / INIT, submodule_search_locations=where)
            if file.stem == fullname:
                return importlib.util.spec_from_file_location(fullname, file)
        return None


_FINDER = _Finder()


def _listen() -> None:
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
