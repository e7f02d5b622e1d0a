# SPDX-License-Identifier: Apache-2.0
"""Volumes in FLARE's simulator: the patches, and so the bits, of the run in process."""

from importlib.util import find_spec

import pytest
from test_simulator import call, model_of

from fairflare.engine.hashes import model_hash

pytestmark = [
    pytest.mark.flare,
    pytest.mark.skipif(find_spec("nilearn") is None, reason="needs the demo extra (nilearn)"),
]
TINY = ["images=64", "site_test_images=0", "size=32", "patch=16", "patches=1", "solo=false"]
SET = [word for pair in TINY for word in ("--set", pair)]


@pytest.mark.long  # Fed-LWR's second exchange over FLARE is in test_deploy_poc.py, volumes in test_volume_runs.py
def test_fedlwr_on_volumes_has_the_bits_of_the_run_in_process(tmp_path):
    hashes = {}
    for env in ("local", "sim"):
        call("run", "fedlwr", "--task", "brain-seg3d:small", *SET, "--rounds", 2, "--env", env, "--out", tmp_path / env)
        hashes[env] = model_hash(model_of(tmp_path / env))
    assert hashes["local"] == hashes["sim"], hashes
