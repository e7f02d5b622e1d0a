# SPDX-License-Identifier: Apache-2.0
"""Which software a run's numbers depend on, and whether two machines have the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fairflare import __version__

PACKAGES = ("torch", "nvflare", "monai", "numpy")
PACKAGE = "package_sha256"
NAMES = ("fairflare", *PACKAGES, PACKAGE)
TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
"""What a version may look like on its way from a site."""


def versions() -> dict[str, str]:
    """Versions of this package and of what its numbers depend on."""
    return {"fairflare": __version__, **{name: importlib.metadata.version(name) for name in PACKAGES}}


@cache
def package_sha256() -> str:
    """Hash of this package's files, so that one version number cannot stand for two programs."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
