# SPDX-License-Identifier: Apache-2.0
"""What every paper's method sends, as FLARE's messages between executors and through filters: the bits of a local run.

FLARE's own functions in this process carry it; test_own_data_sim.py has its processes. ``solo``, ``scaffold`` and
``fedproto`` send nothing, tensors and classes' means beside a model, ``glm`` sums over patients in place of one.
"""

import pytest
from test_privacy_filters import federate

from cases import each
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local

pytestmark = pytest.mark.flare
METHODS = {
    "fedce": {},
    "fedlwr": {},
    "fedheal": {"tau": 0.6},
    "fedism-plus": {},
    "fedufo": {"level": "multi"},
    "solo": {},
    "scaffold": {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0},
    "fedproto": {},
    "glm": {"intercept": "site"},
}
TASK, ROUNDS = "support2:dirichlet", 2


def rounds_of(entries):
    return [entry for entry in entries if entry["event"] == "round"]


@each("method", METHODS)
def test_flares_messages_change_no_bit(method, tmp_path):
    values = {"n_sites": 3, "solo": False, **METHODS[method]}
    run_local(make_config(method, TASK, rounds=ROUNDS, values=values), tmp_path)
    local = verify(tmp_path / "audit.jsonl")
    flare = federate(None, method, TASK, ROUNDS, **values).entries
    assert len(rounds_of(local)) == len(rounds_of(flare)) == ROUNDS
    for one, other in zip(rounds_of(local), rounds_of(flare)):
        assert one["weights"] == other["weights"] and one["notes"] == other["notes"]
        assert one["model_sha256"] == other["model_sha256"] and one["state_sha256"] == other["state_sha256"]
        scalars = [{site: answer["scalars"] for site, answer in entry["accepted"].items()} for entry in (one, other)]
        assert scalars[0] == scalars[1] and not other["rejected"]
        if method == "fedlwr":
            layers = {f"similarity/{layer}" for layer in other["notes"]["layer_weights"]}
            assert layers and all(set(found) == layers for found in scalars[1].values()), "a second exchange's numbers"
    results = [next(e for e in entries if e["event"] == "evaluation")["sites"] for entries in (local, flare)]
    assert results[0] == results[1] and flare[-1]["status"] == "completed"
