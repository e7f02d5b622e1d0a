# SPDX-License-Identifier: Apache-2.0
"""Content of a decision.json with one hospital, as its sheet reads it."""


def interval(value):
    ends = {"value": value, "low": value - 0.0123, "high": value + 0.0456}
    return {**ends, **{f"own_{key}": 0.0 for key in ("low", "high")}, "own": 0.0, "p_below_zero": 0.1}


def decided(verdict="join", participation="joining adds", site="a", share=0.4):
    row = {
        "patients": 120,
        "verdict": verdict,
        "participation": participation,
        "reason_code": "",
        "reason_value": 0.0,
        "estimands": {key: interval(0.01 * k) for k, key in enumerate(("U", "J", "D"))},
        "net_benefit": {key: interval(0.002 * k) for k, key in enumerate(("U", "J", "D"))},
        "mix": {"share": share},
        "minimum_patients": {"needed": 900},
    }
    further = {"log_ratio": {"next_low": -0.5, "next_high": 0.5}}
    about = {"title": "A & B", "threshold": 0.2, "calibration": further, "versions": "fairflare 1"}
    return {**about, "averages": {}, "sites": {site: row}}
