# SPDX-License-Identifier: Apache-2.0
"""Jobs of FLARE's own integration tests with ``FairAggregator`` in place of FLARE's aggregator, in FLARE's simulator.

``python tests/flare_jobs.py CHECKOUT`` takes a git repository of NVFlare, runs each job as it is and with the
aggregator exchanged, and compares the models. Nothing else in a job is changed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

DATA = "tests/integration_test/data"
JOBS = ("apps/np_sag", "apps/np_sag_weights_diff", "jobs/hello-numpy-sag", "jobs/hello-numpy-cross-val")
OURS = {"path": "fairflare.flare.aggregator.FairAggregator", "args": {"method": "fedavg"}}
SITES = 2


def exchanged(job):
    """Put ``FairAggregator`` into a job's folder in place of the component that its workflow calls its aggregator."""
    for file in job.rglob("config_fed_server.json"):
        config = json.loads(file.read_text())
        ids = {one["args"]["aggregator_id"] for one in config["workflows"] if "aggregator_id" in one["args"]}
        assert ids, file
        for one in config["components"]:
            if one["id"] in ids:
                one.update(OURS)
        file.write_text(json.dumps(config))


def simulated(job, workspace):
    """The model that a job's simulation has left."""
    local = workspace / "local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text('{"format_version": 2, "class_allow_list": ["nvflare.", "fairflare."]}')
    command = [sys.executable, "-m", "nvflare.cli", "simulator", job, "-w", workspace, "-n", SITES, "-t", SITES]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240)
    found = sorted(workspace.rglob("server.npy"))
    assert done.returncode == 0 and found, (done.stdout + done.stderr)[-3000:]
    return np.load(found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout
    with tempfile.TemporaryDirectory() as scratch:
        for name in JOBS:
            folder = Path(scratch, name.replace("/", "_"))
            folder.mkdir()
            archive = subprocess.run(
                ["git", "-C", checkout, "archive", "HEAD", f"{DATA}/{name}"], capture_output=True, check=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            job = folder / DATA / name
            theirs = simulated(job, folder / "theirs")
            exchanged(job)
            ours = simulated(job, folder / "ours")
            log = (folder / "ours" / "server" / "log.txt").read_text()
            assert "round 3 weights: {'site-1': 0.5, 'site-2': 0.5}" in log, log[-3000:]
            same = np.array_equal(ours, theirs)
            print(
                f"{name:32} model of {theirs.size} entries: {'equal' if same else f'{ours} for {theirs}'}", flush=True
            )
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
