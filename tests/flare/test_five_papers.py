# SPDX-License-Identifier: Apache-2.0
"""Every paper's method in FLARE's simulator: the same final model, bit for bit, as in one process.

test_own_data_sim.py has FedCE, FedLWR, FedISM+ and FedUFO in every run of the tests, on a hospital's own data.
"""

import json

import pytest

from cases import each
from fairflare.app.cli import main
from fairflare.engine.audit import verify

METHODS = {
    "fedce": (),
    "fedlwr": (),
    "fedheal": ("--set", "tau=0.6"),
    "fedism-plus": (),
    "fedufo": ("--set", "level=multi"),
}


def run(method, env, out, extra):
    command = ["run", method, "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--env", env]
    with pytest.raises(SystemExit) as end:
        main([*command, "--out", str(out), *extra, "--json"])
    assert end.value.code == 0
    return verify(out / "audit.jsonl")


@each("method", METHODS, short=["fedheal"])
def test_local_and_simulator_agree(method, tmp_path, capsys):
    local, sim = (run(method, env, tmp_path / env, METHODS[method]) for env in ("local", "sim"))
    rounds = [[e for e in entries if e["event"] == "round"] for entries in (local, sim)]
    assert len(rounds[0]) == len(rounds[1]) == 2
    for one, other in zip(*rounds):
        assert one["weights"] == other["weights"] and one["notes"] == other["notes"]
        assert one["model_sha256"] == other["model_sha256"]
        scalars = [{site: answer["scalars"] for site, answer in entry["accepted"].items()} for entry in (one, other)]
        assert scalars[0] == scalars[1]
        if method == "fedlwr":
            layers = {f"similarity/{layer}" for layer in other["notes"]["layer_weights"]}
            assert layers and all(set(found) == layers for found in scalars[1].values()), "a second exchange's numbers"
    assert local[-1]["model_sha256"] == sim[-1]["model_sha256"] and not rounds[1][0]["rejected"]
    reports = [json.loads((tmp_path / env / "report.json").read_text()) for env in ("local", "sim")]
    assert reports[1]["status"] == "completed"
    assert reports[0]["fairness"] == reports[1]["fairness"] and reports[0]["sites"] == reports[1]["sites"]
