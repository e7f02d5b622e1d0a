# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare prepare`` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.cli.console import say, show_table

SPLITS = ("train", "val", "test")


def prepared(found: Mapping[str, Any], dest: Path) -> None:
    """What ``fairflare prepare`` wrote, and the command that runs on it."""
    rows = [
        (name, str(about.get("kind", "shared test set")), *(str(about.get(split, "")) for split in SPLITS))
        for kind in ("sites", "shared")
        for name, about in found[kind].items()
    ]
    show_table(f"{found['task']} in {dest}", ("site or test set", "what it is", *SPLITS), rows, left=2)
    say(f"run it: fairflare run METHOD --datalists {shlex.quote(str(dest))}")
