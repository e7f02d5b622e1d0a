# SPDX-License-Identifier: Apache-2.0
"""The trainer dp-sgd over FLARE's messages: the bits of a local run where its draws come from the seed."""

import pytest
from test_privacy_filters import federate

from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local

pytestmark = pytest.mark.flare
VALUES = {"n_sites": 3, "trainer": "dp-sgd", "draws": "seed", "noise": 1.5, "epsilon": 100, "local_steps": 3}


def test_flares_messages_change_no_bit(tmp_path):
    task, rounds = "support2:dirichlet", 2
    run_local(make_config("fedavg", task, rounds=rounds, values=VALUES), tmp_path)
    local, flare = verify(tmp_path / "audit.jsonl"), federate(None, "fedavg", task, rounds, **VALUES).entries
    for mine, theirs in zip(of(local), of(flare), strict=True):
        assert mine["model_sha256"] == theirs["model_sha256"]
        for site, answer in mine["accepted"].items():
            assert answer["scalars"] == theirs["accepted"][site]["scalars"] != {}


def of(entries):
    return [entry for entry in entries if entry["event"] == "round"]
