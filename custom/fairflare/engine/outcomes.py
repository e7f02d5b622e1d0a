# SPDX-License-Identifier: Apache-2.0
"""What a rule's outcome must be before it becomes the federation's next model."""

from __future__ import annotations

import dataclasses

from fairflare.aggregators.base import Outcome
from fairflare.core.errors import RunFailed
from fairflare.core.types import Round, StateDict
from fairflare.functional.variances import without_negative_variances
from fairflare.privacy.egress import all_finite


def usable(outcome: Outcome, model: StateDict, round: Round) -> Outcome:
    """The outcome without negative variances.

    Args:
        model: w^t, which fixes names and shapes of the entries.

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
