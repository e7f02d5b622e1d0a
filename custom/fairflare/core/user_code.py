# SPDX-License-Identifier: Apache-2.0
"""A user's own Python files, such as a network or a data set: named once, imported here, shipped with jobs.

``FAIRFLARE_CODE`` (on the command line ``--code``) names files or package folders, separated as in ``PATH``. Only what
it names can be imported through it, so that what works here is what a job carries, whose files lie in ``app/custom``.

A configuration comes from whoever submits a job, and FLARE's class allow-list does not see the names in it. So nothing
is imported by name but modules that are declared for it: the user's files, and what lies in a job's ``app/custom``,
which takes the right to bring code, or in a site's ``local/custom``. Of these, only what they define themselves can be
named: what they import from elsewhere cannot, and this package is never among them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fairflare.core.errors import DataError, UserError

VARIABLE = "FAIRFLARE_CODE"
PACKAGE = "fairflare"
INIT = "__init__.py"
LONGEST = 200
"""Characters of a name."""

_vouched: list[Path] = []
_found: set[str] = set()


def code_files() -> tuple[Path, ...]:
    """The files and folders that ``FAIRFLARE_CODE`` names; UserError when one is neither module nor package."""
    paths = tuple(Path(p).resolve() for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p)
    for path in paths:
        fits = path.suffix == ".py" and path.is_file() or (path / INIT).is_file()
        if not fits or not path.stem.isidentifier():
            raise UserError(f"code: expected a .py file or a folder with {INIT}, got {path}")
        if path.stem == PACKAGE:
            raise UserError(f"code: {path.name}: the name {PACKAGE!r} is this package's; rename the file")
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


def check_name(dotted: str, key: str) -> str:
    """The top-level module of ``dotted``, which is spelt as a declared name may be; nothing is imported.

    UserError, which starts with ``key``: no module.Name, a part that is no plain identifier, or this package.
    """
    parts = dotted.split(".")
    if len(parts) < 2 or len(dotted) > LONGEST or not all(p.isidentifier() and p.isascii() for p in parts):
        raise UserError(f"{key}: expected module.Name, got {dotted[:LONGEST]!r}")
    if any(part.startswith("__") for part in parts):
        raise UserError(f"{key}: expected a name without leading underscores, got {dotted!r}")
    if parts[0] == PACKAGE:
        raise UserError(f"{key}: expected a name in a file of yours, got {dotted!r}, which is this package's")
    return parts[0]


def load_object(dotted: str, key: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """What ``dotted`` ("module.Name") names, which a declared module defines.

    Args:
        fits: whether an object is of the kind that ``key`` takes.
        expected: that kind in words, e.g. "a function".

    Raises:
        UserError: starts with ``key`` and says what could not or must not be imported.
    """
    top = check_name(dotted, key)
    module, _, name = dotted.rpartition(".")
    _listen()
    try:
        if not _is_declared(top):
            raise ModuleNotFoundError(f"{module} is none of your files")
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # user's code runs here
        hint = "" if code_files() else "; name the file with --code"
        raise UserError(f"{key}: {dotted} cannot be imported ({type(error).__name__}: {error}){hint}") from error
    if not fits(found):
        raise UserError(f"{key}: {dotted} is no {expected.partition(' ')[2]}")
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or home.partition(".")[0] != top:
        raise UserError(f"{key}: expected {expected} that {top} defines, got {dotted}, which it only imports")
    return found


def _is_declared(module: str) -> bool:
    """Whether the top-level ``module`` is a file or package that ``FAIRFLARE_CODE`` names or a vouched folder holds."""
    origin = _origin(module)
    if origin is None:
        return False
    home = origin.parent if origin.name == INIT else origin
    return home in code_files() or home.parent in _vouched


def declared_file(module: str) -> Path | None:
    """The file of the top-level ``module``, a package's ``__init__`` for one; None where it is not declared."""
    _listen()
    return _origin(module) if module.isidentifier() and _is_declared(module) else None


def _origin(module: str) -> Path | None:
    """The file that an import of the top-level ``module`` would run, or has run."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module that says nothing of itself, such as __main__
        return None
    return Path(spec.origin).resolve() if spec and spec.origin and spec.has_location else None


def fingerprints() -> dict[str, str]:
    """Module -> SHA-256 of the files that ``FAIRFLARE_CODE`` names, for a run's configuration."""
    return {path.stem: _fingerprint(path) for path in code_files()}


def check(expected: Mapping[str, str]) -> None:
    """Raise DataError "code" unless the modules that can be imported here are those of ``expected``.

    Only declared modules are looked at: a job learns nothing of what else is installed, and imports none of it.
    """
    _listen()
    for name, fingerprint in expected.items():
        origin = _origin(name) if name.isidentifier() and _is_declared(name) else None
        if origin is None:
            hint = f"which is not here; name its file with --code or in {VARIABLE}"
            raise DataError("code", f"code: the run needs the module {name[:LONGEST]!r}, {hint}")
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
        file = next((one for one in code_files() if one.stem == fullname), None)
        if file is None:
            return None
        _found.add(fullname)
        where, start = ([str(file)], file / INIT) if file.is_dir() else (None, file)
        return importlib.util.spec_from_file_location(fullname, start, submodule_search_locations=where)


_FINDER = _Finder()


def _listen() -> None:
    """Have the declared files found, and forget those of the same names that were declared before."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for path in code_files():
        file = getattr(sys.modules.get(path.stem), "__file__", None)
        if path.stem in _found and file and Path(file).resolve() not in (path, path / INIT):
            for name in [name for name in sys.modules if name.partition(".")[0] == path.stem]:
                del sys.modules[name]
