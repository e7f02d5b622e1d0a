# SPDX-License-Identifier: Apache-2.0
"""Content of a decision.json with one hospital, as its sheet reads it."""


def decided(verdict="join", participation="joining adds", site="a", share=0.4):
    def intervals(step):
        values = {"U": 0.0, "J": step, "D": 2 * step}
        return {key: {"value": one, "low": one - 0.0123, "high": one + 0.0456} for key, one in values.items()}

    row = {
        "patients": 120,
        "verdict": verdict,
        "participation": participation,
        "reason_code": "",
        "reason_value": 0.0,
        "estimands": intervals(0.01),
        "net_benefit": intervals(0.002),
        "mix": {"share": share},
        "minimum_patients": {"needed": 900},
    }
    further = {"log_ratio": {"next_low": -0.5, "next_high": 0.5}}
    about = {"title": "A & B", "threshold": 0.2, "calibration": further, "versions": "fairflare 1"}
    return {**about, "sites": {site: row}}
