# SPDX-License-Identifier: Apache-2.0
"""What the server holds at most while FLARE carries models to its sites and updates back, in models.

    python benchmarks/transport_memory.py [--sites 8] [--network resnet18] [--rounds 2] [--toy]

A FedAvg run in FLARE's simulator, whose server is a process of its own; a plugin in it looks at its resident size every
two milliseconds, pages of files left out, from before the first round is sent. The figure is the highest size less that
first one, which has the initial model in it, over the model's bytes. Sites train for one step: how long they take does
not matter.

``--toy`` runs a small network with two sites in process, which says nothing about memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from fairflare.engine.files import MODEL, read_model

PLUGIN = Path(__file__).parent / "plugins" / "watched.py"
GOAL = 5.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.toy:
        options.sites, options.network, options.rounds = 2, "small-cnn", 1
    options.env = "local" if options.toy else "sim"
    with tempfile.TemporaryDirectory() as folder:
        measured = run(Path(folder), options)
        model = read_model(Path(folder) / "run" / MODEL)
    size = sum(value.nbytes for value in model.values())
    print(f"{options.network}, {size / 1e6:.1f} MB, its largest tensor {largest(model) / 1e6:.1f} MB; "
          f"{options.sites} sites, {options.rounds} rounds")  # fmt: skip
    print(f"server with FLARE's transport: {(measured[-1] - measured[0]) / size:.1f} models   (goal: {GOAL:g})")


def run(folder: Path, options: argparse.Namespace) -> list[int]:
    """Bytes resident at the beginning, and every new peak; raises SystemExit where the run fails."""
    said = folder / "memory.txt"
    task = {"model": options.network, "images": 40 * options.sites, "test_images": 20, "site_test_images": 0}
    task |= {"size": 32, "local_steps": 1, "batch_size": 4, "corrupted": 1}
    words = ["run", "watched", "--task", "ich-phantom:small", "--env", options.env]
    words += ["--sites", str(options.sites)]
    words += [
        "--rounds",
        str(options.rounds),
        "--out",
        str(folder / "run"),
        *(f"--set={k}={v}" for k, v in task.items()),
    ]
    named = {"FAIRFLARE_PLUGINS": str(PLUGIN), "FAIRFLARE_WATCHED_MEMORY": str(said)}
    done = subprocess.run(
        [sys.executable, "-m", "fairflare", *words], env={**os.environ, **named}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [int(line) for line in said.read_text().split()]


def largest(model: dict[str, torch.Tensor]) -> int:
    """Bytes of the largest tensor."""
    return max(value.nbytes for value in model.values())


if __name__ == "__main__":
    main()
