# SPDX-License-Identifier: Apache-2.0
"""Which software a run's numbers depend on, and whether two machines have the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import fairflare
from fairflare import __version__

PACKAGES = ("torch", "nvflare", "monai", "numpy")
PACKAGE = "package_sha256"
LEFT_OUT = "left_out.json"
"""In a job's copy of the package: the files that it lacks, with their SHA-256."""
NAMES = ("fairflare", *PACKAGES, PACKAGE)
TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
"""What a version may look like on its way from a site."""


def versions() -> dict[str, str]:
    """Versions of this package and of what its numbers depend on."""
    return {"fairflare": __version__, **{name: _installed(name) for name in PACKAGES}}


@cache  # parsing a package's metadata takes milliseconds, and every preflight asks for four
def _installed(package: str) -> str:
    return importlib.metadata.version(package)


@cache
def package_sha256() -> str:
    """Hash of this package's files, so that one version number cannot stand for two programs.

    A job's copy of the package (``flare/staging.py``) has the hash of the package that it was made from.
    """
    return _sha256(Path(fairflare.__file__).parent)


def leave_out(package: Path, paths: Iterable[Path]) -> None:
    """Delete files of a copy of this package that a job does not need; their hashes stay, in ``LEFT_OUT``.

    Args:
        package: the copy's folder.
        paths: files in it.
    """
    left_out = {path.relative_to(package).as_posix(): _file_sha256(path) for path in paths}
    for name in left_out:
        (package / name).unlink()
    for folder in sorted((path for path in package.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    if left_out:
        (package / LEFT_OUT).write_text(json.dumps(left_out, indent=1), encoding="utf-8")


def _sha256(package: Path) -> str:
    """Hash of every file's name and hash, also of those that this copy of the package lacks."""
    names = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = {path.relative_to(package).as_posix(): path for path in names if "__pycache__" not in path.parts}
    listed = files.pop(LEFT_OUT, None)
    hashes = json.loads(listed.read_text(encoding="utf-8")) if listed else {}
    hashes |= {name: _file_sha256(path) for name, path in files.items()}
    content = "".join(f"{name}\0{hashes[name]}\n" for name in sorted(hashes))
    return hashlib.sha256(content.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def all_versions() -> dict[str, str]:
    """What a site tells the server before the first round."""
    return {**versions(), PACKAGE: package_sha256()}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Names whose versions differ: those of this package, which nothing mends, and the others; builds are no matter."""
    differing = [name for name in NAMES if _public(here.get(name, "")) != _public(there.get(name, ""))]
    own = [name for name in differing if name in ("fairflare", PACKAGE)]
    return own, [name for name in differing if name not in own]


def _public(version: str) -> str:
    """2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]
