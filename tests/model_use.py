# SPDX-License-Identifier: Apache-2.0
"""Runs whose models are used, and the files that they are used on."""

import csv
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fairflare.cli.main import main
from fairflare.datasets import heart


def call(capsys, *arguments):
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code, *capsys.readouterr()


def run(folder, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["run", *map(str, arguments), "--workers", "1", "--out", str(folder)])
    assert stop.value.code == 0
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
    """MONAI's own runner in a process that knows nothing of this package."""
    arguments = ["--config_file", "configs/inference.json", "--inputs", str(inputs), "--output_dir", str(out)]
    if importlib.util.find_spec("fire"):
        command = [sys.executable, "-m", "monai.bundle", "run", *arguments]
    else:  # what `python -m monai.bundle` calls once fire has read the command line
        given = dict(zip((a[2:] for a in arguments[::2]), arguments[1::2]))
        text = f"from monai.bundle import run; run(**{given!r}); import sys; assert 'fairflare' not in sys.modules"
        command = [sys.executable, "-c", text]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=bundle, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return out
