# SPDX-License-Identifier: Apache-2.0
"""Which software a run's numbers depend on, and whether two machines have the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import fairflare
from fairflare import __version__
from fairflare.core.manifest import CUSTOM, NAME, entry_of, is_code, read_manifest

PACKAGES = ("torch", "nvflare", "monai", "numpy")
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

    Args:
        package: its folder.
        left_out: name -> SHA-256 of those; None: as the manifest of the job says whose copy this is, if it is one.
    """
    hashes = dict(_left_out(package) if left_out is None else left_out)
    hashes |= {name: entry_of(path)["sha256"] for name, path in package_files(package).items()}
    content = "".join(f"{name}\0{hashes[name]}\n" for name in sorted(hashes))
    return hashlib.sha256(content.encode()).hexdigest()


def package_files(package: Path) -> dict[str, Path]:
    """Name -> path of every file below the package's folder that belongs to it."""
    found = [path for path in package.rglob("*") if path.is_file() and is_code(path)]
    return {path.relative_to(package).as_posix(): path for path in found}


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
    """Names whose versions differ: those of this package, which nothing mends, and the others; builds are no matter."""
    differing = [name for name in NAMES if _public(here.get(name, "")) != _public(there.get(name, ""))]
    own = [name for name in differing if name in ("fairflare", PACKAGE)]
    return own, [name for name in differing if name not in own]


def _public(version: str) -> str:
    """2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]
