# SPDX-License-Identifier: Apache-2.0
"""The lines of an audit log: its format, its events, and what the line of each holds at least."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
FORMAT = 3
"""Of the log; in format 2 a round's own line held its model's scores."""
READABLE = (2, FORMAT)
"""Format 1 had none written down, and bound neither rule state nor reports."""
REPORT, COUNTERSIGNED, COMPLETED = "report", "countersigned", "completed"
"""Events of lines that record a report, and sites' signatures of the log; the status of a run that came to its end."""

NUMBER = (int, float)
NUMBERS = {str: NUMBER}
COUNTS = {str: int}
TRUTH = bool
REJECTED = {str: {"code": str, "detail": str}}
LEFT = {"model_sha256": str, "state_sha256": str, "declared": COUNTS}
SHAPES: dict[str, dict[Any, Any]] = {
    "start": {"log_format": int, "rounds": int, "sites": [str], "preflight": {str: dict}, "rejected": REJECTED, **LEFT},
    "resume": {"from_round": int, "preflight": {str: dict}, "rejected": REJECTED, **LEFT},
    "round": {
        "round": int,
        "rounds": int,
        "accepted": {str: {"n_examples": int, "scalars": NUMBERS, "metrics": NUMBERS}},
        "rejected": REJECTED,
        "weights": NUMBERS,
        "notes": dict,
        "site_seconds": {str: NUMBERS},
        "seconds": NUMBERS,
        **LEFT,
    },
    "round_failed": {"round": int, "rejected": REJECTED, "model_sha256": str},
    "scores": {"round": int, "model_sha256": str, "test_sets": {str: {"metrics": NUMBERS}}, "seconds": NUMBERS},
    "evaluation": {"sites": {str: dict}, "rejected": REJECTED, "model_sha256": str},
    "best": {
        "by": str,
        "weight": NUMBER,
        "metric": str,
        "higher": TRUTH,
        "own": TRUTH,
        "round": int,
        "values": {str: NUMBERS},
        "sites": {str: dict},
        "rejected": REJECTED,
        "model_sha256": str,
    },
    "after": {"step": str, "by": str, "split": str, "sites": {str: NUMBERS}, "rejected": REJECTED, "model_sha256": str},
    "benefit": {
        "trainer": str,
        "draws": int,
        "level": NUMBER,
        "sites": {str: NUMBERS},
        "rejected": REJECTED,
        "model_sha256": str,
    },
    "risk": {"shadows": int, "level": NUMBER, "sites": {str: NUMBERS}, "rejected": REJECTED, "model_sha256": str},
    "finish": {"status": str, "reason": str, "model_sha256": str},
    COUNTERSIGNED: {"of": str, "signed": {str: dict}},
    REPORT: {"of": str, "status": str, "model_sha256": str, "files": {str: str}},
}
"""Event -> what its line holds at least."""


def events(entries: Sequence[Entry]) -> list[Entry]:
    """What happened in the federation: all lines but those that record reports and signatures of it."""
    return [entry for entry in entries if entry.get("event") not in (REPORT, COUNTERSIGNED)]


def misfit(value: Any, shape: Any, name: str = "") -> str:
    """The first name under which ``value`` lacks what ``shape`` asks for; empty when there is none.

    A shape is a type or several; [shape] a list of such values, {str: shape} a mapping of them; {name: shape, ...} what
    it holds at least.
    """
    if isinstance(shape, list):
        return "" if isinstance(value, list) and not any(misfit(item, shape[0], name) for item in value) else name
    if not isinstance(shape, dict):
        return "" if isinstance(value, shape) and isinstance(value, bool) == (shape is TRUTH) else name
    if not isinstance(value, dict):
        return name
    wanted = {key: shape[str] for key in value} if str in shape else shape
    return next((wrong for key in wanted if (wrong := misfit(value.get(key), wanted[key], str(key)[:40]))), "")


def alike(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
