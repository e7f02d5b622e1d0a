# SPDX-License-Identifier: Apache-2.0
"""Every paper's method in FLARE's simulator: the same final model, bit for bit, as in one process."""

import json

import pytest

from fairflare.app.cli import main
from fairflare.federation.audit import verify

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


@pytest.mark.parametrize("method", METHODS)
def test_local_and_simulator_agree(method, tmp_path, capsys):
    local, sim = (run(method, env, tmp_path / env, METHODS[method]) for env in ("local", "sim"))
    rounds = [[e for e in entries if e["event"] == "round"] for entries in (local, sim)]
    assert len(rounds[0]) == len(rounds[1]) == 2
    for one, other in zip(*rounds):
        assert one["weights"] == other["weights"] and one["notes"] == other["notes"]
        assert one["model_sha256"] == other["model_sha256"]
        assert {s: a["scalars"] for s, a in one["accepted"].items()} == {
            s: a["scalars"] for s, a in other["accepted"].items()
        }
    assert local[-1]["model_sha256"] == sim[-1]["model_sha256"] and not rounds[1][0]["rejected"]
    assert json.loads((tmp_path / "sim" / "report.json").read_text())["status"] == "completed"


def test_the_second_exchange_brings_one_number_per_layer(tmp_path, capsys):
    entries = run("fedlwr", "sim", tmp_path / "run", ())
    round = next(e for e in entries if e["event"] == "round")
    layers = round["notes"]["layer_weights"]
    for answer in round["accepted"].values():
        assert set(answer["scalars"]) == {f"similarity/{layer}" for layer in layers}
