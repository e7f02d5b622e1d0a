# SPDX-License-Identifier: Apache-2.0
"""What runs took on this machine, kept beside the papers' tables for later estimates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairflare.papers.estimate import Speed, machine_factor, took

PAPERS, TIMES = "papers", "times.json"
"""Below the folder of the runs: the folder of what is written, and what runs took."""
Known = dict[str, dict[str, list[float]]]


def speed_of(folder: Path) -> Speed:
    """What finished runs below ``folder`` took, and how fast this machine is."""
    known = {task: {k: (v[0], v[1]) for k, v in found.items()} for task, found in known_times(folder).items()}
    return Speed(machine_factor(), known)


def known_times(folder: Path) -> Known:
    """Task -> METHOD label -> [seconds per round, seconds beside the rounds]; {} where nothing readable is kept."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, IndexError):
        found = json.loads((folder / PAPERS / TIMES).read_text(encoding="utf-8"))
        return {
            str(task): {str(label): [float(pair[0]), float(pair[1])] for label, pair in labels.items()}
            for task, labels in found.items()
        }
    return {}


def remember(folder: Path, reports: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Keep what runs took: (task, METHOD label, report) each."""
    from fairflare.engine.state import save_json

    known = known_times(folder)
    for task, label, report in reports:
        if (found := took(report)) is not None:
            known.setdefault(task, {})[label] = list(found)
    (folder / PAPERS).mkdir(parents=True, exist_ok=True)
    save_json(folder / PAPERS / TIMES, known)
