# SPDX-License-Identifier: Apache-2.0
"""What a round leaves: its line in the audit log, and an outcome that may become the federation's next model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fairflare.aggregators.base import Outcome, without_negative_variances
from fairflare.core.errors import RunFailed
from fairflare.core.schema import Answer, audited
from fairflare.core.types import Round, StateDict
from fairflare.engine.checks import Rejection, checked_seconds
from fairflare.engine.gate import Verdict
from fairflare.privacy.egress import all_finite

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


def usable(outcome: Outcome, model: StateDict, round: Round) -> Outcome:
    """The outcome without negative variances.

    Raises:
        RunFailed: a model of it is not finite, or has other entries than ``model``.
    """
    shared = without_negative_variances(outcome.model)
    own = {site: without_negative_variances(outcome.models[site]) for site in sorted(outcome.models)}
    for site, found in {"": shared, **own}.items():
        whose = f"round {round.number}: the rule's model" + (f" for site {site}" if site else "")
        if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in model.items()}:
            raise RunFailed(f"{whose} has other entries than the one that was sent; the one before it was kept")
        if not all(all_finite(value) for value in found.values()):
            raise RunFailed(f"{whose} is not finite; the one before it was kept")
    return dataclasses.replace(outcome, model=shared, models=own)
