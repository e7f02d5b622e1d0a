# SPDX-License-Identifier: Apache-2.0
"""What a line of the audit log says of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairflare.aggregators.base import Outcome
from fairflare.core.schema import Answer, audited
from fairflare.core.types import Round
from fairflare.engine.checks import Rejection, checked_seconds
from fairflare.engine.gate import Verdict

SAME = 1e-12
"""Weights that differ by less are noted as uniform."""


def round_entry(round: Round, verdict: Verdict, outcome: Outcome, answers: Sequence[Answer]) -> dict[str, Any]:
    """What the log keeps of a round beside hashes and seconds of the server."""
    notes = dict(outcome.notes)
    if len(outcome.weights) > 1 and max(outcome.weights.values()) - min(outcome.weights.values()) < SAME:
        notes["weights"] = "uniform"
    return {
        "round": round.number,
        "rounds": round.total,
        "accepted": {r.site: audited({**vars(r), **r.measured}) for r in verdict.replies},
        "rejected": by_site(verdict.rejections),
        "flags": verdict.flags,
        "norms": {site or "sum": sizes for site, sizes in verdict.norms.items()},
        "weights": dict(outcome.weights),
        "notes": notes,
        "site_seconds": site_seconds(answers),
    }


def site_seconds(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Site -> phase -> seconds over the round's exchanges."""
    seconds: dict[str, dict[str, float]] = {}
    for answer in answers:
        phases = seconds.setdefault(answer.site, {})
        for phase, spent in checked_seconds(answer.seconds).items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return seconds


def by_site(rejections: Sequence[Rejection]) -> dict[str, dict[str, str]]:
    """Site -> code and detail of its rejection."""
    return {r.site: {"code": r.code, "detail": r.detail} for r in rejections}


def too_few(round: int, accepted: int, needed: int, rejections: Sequence[Rejection]) -> str:
    """Why a round ends the run, with every rejected site's reason."""
    reasons = "; ".join(f"{r.site}: {r.code} ({r.detail})" for r in rejections)
    return f"round {round}: {accepted} accepted sites, {needed} needed; {reasons or 'no other site'}"
