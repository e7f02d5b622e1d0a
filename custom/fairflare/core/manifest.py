# SPDX-License-Identifier: Apache-2.0
"""``MANIFEST.json`` of a job's app, and the versions and hashes of the software that a run's numbers depend on.

The manifest lists every file of code that the app brings, with hash and lines, and where running begins. The app's
folder holds it beside ``custom/`` and ``config/``. ``flare/staging.py`` writes it last, so that a job without one is
not whole; sites check it before anything of the job is built, and ``fairflare inspect`` shows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fairflare
from fairflare import __version__
from fairflare.core.errors import DataError
from fairflare.core.validation import misfit, shown

NAME = "MANIFEST.json"
CUSTOM = "custom"
"""FLARE's folder for the code of an app."""
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""Files that FLARE puts into every folder of a job when it is submitted."""
COMPILED = "__pycache__"
FORMAT = 1
LARGEST = 1 << 22
"""Bytes of a manifest."""
FILE = {"sha256": str, "lines": (int, type(None))}
SHAPE: dict[str, Any] = {"format": int, "read_by": str, "entry_point": str, "components": [str], "files": {str: FILE}}
SHAPE |= {"package": {"version": str, "sha256": str}, "left_out": {str: str}}


def code_of(app: Path) -> Iterator[tuple[str, Path]]:
    """The files of code in an app's folder by path below ``custom/``, sorted. Raises DataError: a link lies there."""
    custom = app / CUSTOM
    for path in sorted(custom.rglob("*")):
        name = path.relative_to(custom).as_posix()
        if path.is_symlink():
            raise DataError("code", f"{NAME}: expected files, got a link: {shown(name)}")
        if path.is_file() and path.name not in SIGNATURES and not _is_cache(path):
            yield name, path


def _is_cache(path: Path) -> bool:
    """Whether Python compiled this file while the job ran: it holds such a file against its source's time and size.

    Compiled files that it would run in place of their source, or without one, are code like any other (PEP 552).
    """
    if path.parent.name != COMPILED or path.suffix != ".pyc":
        return False
    with path.open("rb") as file:
        return file.read(8)[4:] == bytes(4)


def entry_of(path: Path) -> dict[str, Any]:
    """SHA-256 of a file, and its number of lines; None of a file that is no text."""
    content, lines = path.read_bytes(), None
    with contextlib.suppress(UnicodeDecodeError):
        lines = len(content.decode("utf-8").splitlines())
    return {"sha256": hashlib.sha256(content).hexdigest(), "lines": lines}


def read_manifest(app: Path) -> dict[str, Any]:
    """The manifest of an app's folder; DataError "code" where it is not there or not as an export writes it."""
    path = app / NAME
    if path.is_symlink() or not path.is_file():
        raise DataError("code", f"{NAME}: expected one beside {CUSTOM}/, got none; export the job with this version")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    try:
        found: Any = json.loads(content) if len(content) <= LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if misfit(found, SHAPE, NAME) or found["format"] != FORMAT or set(found) != set(SHAPE):
        raise DataError("code", f"{NAME}: expected what an export writes there, in format {FORMAT}")
    return dict(found)


def mismatch(app: Path, manifest: Mapping[str, Any]) -> str:
    """What of an app's code is not as its manifest says, in one line, empty: nothing; DataError: a link lies there."""
    listed, here = manifest["files"], dict(code_of(app))
    if missing := sorted(set(listed) - set(here)):
        return f"{NAME} lists {shown(missing[0])}, which is not there"
    for name, path in here.items():
        if name not in listed:
            return f"{shown(name)} is not listed in {NAME}"
        if entry_of(path)["sha256"] != listed[name]["sha256"]:
            return f"{shown(name)} is not the file that {NAME} lists"
    return ""


def check_code(app: Path, *, fresh: bool = False) -> None:
    """Raise DataError "code" unless the code in an app's folder, if there is any, is what its manifest lists.

    ``fresh``: nothing of it has run yet, so that Python has compiled nothing there.
    """
    if not (app / CUSTOM).is_dir():
        return
    if fresh and (compiled := next((app / CUSTOM).rglob(COMPILED), None)):
        where = shown(f"{compiled.parent.name}/{COMPILED}")
        raise DataError("code", f"{NAME}: expected nothing compiled in a job, got {where}")
    if wrong := mismatch(app, read_manifest(app)):
        raise DataError("code", wrong)


FLARE = "nvflare"
PACKAGES = ("torch", FLARE, "monai", "numpy")
PACKAGE = "package_sha256"
NAMES = ("fairflare", *PACKAGES, PACKAGE)
TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
"""What a version may look like on its way from a site."""


_installed = cache(importlib.metadata.version)  # parsing metadata takes milliseconds, and every preflight asks for four


def versions() -> dict[str, str]:
    return {"fairflare": __version__, **{name: _installed(name) for name in PACKAGES}}


@cache
def package_sha256() -> str:
    """Hash of this package's files, so that one version number cannot stand for two programs.

    A job's copy of the package (``flare/staging.py``) has the hash of the package that it was made from.
    """
    return sha256_of(Path(fairflare.__file__).parent)


def sha256_of(package: Path, left_out: Mapping[str, str] | None = None) -> str:
    """Hash of the names and hashes of all files of a package, also of those that a job's copy lacks.

    ``left_out``: name -> SHA-256 of those; None: as the manifest of the job says whose copy this is, if it is one.
    """
    hashes = dict(_left_out(package) if left_out is None else left_out)
    hashes |= {name: entry_of(path)["sha256"] for name, path in package_files(package).items()}
    content = "".join(f"{name}\0{hashes[name]}\n" for name in sorted(hashes))
    return hashlib.sha256(content.encode()).hexdigest()


def package_files(package: Path) -> dict[str, Path]:
    """Name -> path of a package's files, but those that Python has compiled and FLARE's signatures."""
    found = [path for path in package.rglob("*") if path.is_file() and path.name not in SIGNATURES]
    own = [path for path in found if COMPILED not in path.parts and path.suffix != ".pyc"]
    return {path.relative_to(package).as_posix(): path for path in own}


def _left_out(package: Path) -> Mapping[str, str]:
    """Files that a job's copy lacks, with their SHA-256; nothing of a package that is installed."""
    app = package.parents[1]
    if package.parent.name != CUSTOM or not (app / NAME).is_file():
        return {}
    found: dict[str, str] = read_manifest(app)["left_out"]
    return found


def all_versions() -> dict[str, str]:
    """What a site tells the server before the first round."""
    return {**versions(), PACKAGE: package_sha256()}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Names whose versions differ: those that cannot work together, and the others; builds are no matter.

    This package works with itself alone. FLARE's messages and task loop change between release series (2.8, 2.9).
    """
    differing = [name for name in NAMES if _public(here.get(name, "")) != _public(there.get(name, ""))]
    own = [name for name in differing if name in ("fairflare", PACKAGE)]
    if _series(here.get(FLARE, "")) != _series(there.get(FLARE, "")):
        own.append(FLARE)
    return own, [name for name in differing if name not in own]


def _series(version: str) -> list[str]:
    """["2", "9"] of 2.9.1rc2."""
    return _public(version).split(".")[:2]


def _public(version: str) -> str:
    """2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]
