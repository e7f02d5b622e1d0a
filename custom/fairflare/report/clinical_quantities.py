# SPDX-License-Identifier: Apache-2.0
"""What a comparison of methods says of calibration, without what it takes to compute it."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
SUMMARISED = ("calibration", "brier", "ece")
QUANTITIES = {
    "calibration_worst": "worst site's calibration in the large, absolute",
    "brier_worst": "worst site's Brier score",
    "ece_worst": "worst site's expected calibration error",
    "calibration_mean": "mean over sites of calibration in the large, absolute",
    "brier_mean": "mean over sites of the Brier score",
    "ece_mean": "mean over sites of the expected calibration error",
}
"""What a comparison of methods says of it, of the model as the sites use it; lower is better of all."""


def clinical_quantities(run: Json) -> dict[str, float | None]:
    """The values of ``QUANTITIES`` in one run's summary; None where it has none."""
    found = run.get("clinical") or {}
    summary = (found.get("summary") or {}).get(found.get("in_use")) or {}
    return {f"{name}_{over}": (summary.get(name) or {}).get(over) for over in ("worst", "mean") for name in SUMMARISED}
