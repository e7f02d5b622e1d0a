# SPDX-License-Identifier: Apache-2.0
"""Runs whose models are used, and the files that they are used on."""

import csv
import gc
import json
import multiprocessing
import os
import sys

import numpy as np

from command_line import call as call
from command_line import succeed
from fairflare.datasets import heart

FORK = multiprocessing.get_context("fork")


def run(folder, *arguments):
    """A run without the sites' own models."""
    succeed("run", *arguments, "--no-solo", "--out", folder)
    return folder


def rows(folder):
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def reported(folder, site, split="test"):
    site = json.loads((folder / "report.json").read_text())["sites"][site]
    return site["metrics" if split == "test" else "val_metrics"]


def write_patients(path, site, split="test"):
    """A hospital's patients of one split as a table with the data set's own columns; returns their labels."""
    from fairflare.engine.setup import tasks

    task = tasks.load("heart", "full")
    first = {name: 0 for name in heart.FILES}
    start = 0
    for name in heart.FILES:
        first[name] = start
        start += len(heart.patients(name)["num"])
    places = task.rows(site)[split] - first[site]
    columns = heart.patients(site)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heart.COLUMNS[:-1])
        for place in places:
            cells = [columns[name][place] for name in heart.COLUMNS[:-1]]
            writer.writerow(["" if np.isnan(cell) else f"{cell:g}" for cell in cells])
    return heart.diseased(site)[places]


def run_bundle(bundle, inputs, out):
    """What ``python -m monai.bundle run`` does, in a fork of this process that cannot import this package."""
    from monai.bundle import run  # takes seconds, which not every process of the tests is to spend

    def alone():
        gc.freeze()
        os.chdir(bundle)
        sys.path.insert(0, str(bundle))
        ours = ("fairflare", "fairflare_lab", "scripts")
        for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(dict.fromkeys(ours[:2]))  # an import of either fails
        run(config_file="configs/inference.json", inputs=str(inputs), output_dir=str(out))

    child = FORK.Process(target=alone)
    child.start()
    child.join(300)
    assert child.exitcode == 0
    return out
