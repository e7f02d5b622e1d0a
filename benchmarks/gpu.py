# SPDX-License-Identifier: Apache-2.0
"""What a training step costs on a GPU by number format, layout and compiler, and what a whole run costs there.

    python benchmarks/gpu.py [--networks small-cnn resnet18 small-unet] [--batch 32] [--size 224] [--repeats 20] [--toy]

Steps of all kinds take turns; printed is each kind's median over that of float32 as the network has it, the largest
memory of a step, and what ``fairflare run`` on the GPU takes beside one on this machine's CPU (wall). Without a GPU the
script says so and ends; ``--toy`` then runs the same steps on the CPU, at a size that says nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from fairflare.core.execution import Execution
from fairflare.networks import builtin

Step = Callable[[], tuple[float, int]]
"""Makes a step: its wall seconds, and the most bytes that the GPU held."""
KINDS = {
    "float32": Execution(layout="contiguous"),
    "float32, channels last": Execution(layout="channels_last"),
    "bfloat16, channels last": Execution(layout="channels_last", precision="bfloat16"),
    "bfloat16, channels last, inductor": Execution(layout="channels_last", precision="bfloat16", compiler="inductor"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["small-cnn", "resnet18", "small-unet"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--toy", action="store_true", help="one small step of each kind, on the CPU if need be")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU")
        if not options.toy:
            return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.toy:
        options.networks, options.batch, options.size, options.repeats = ["small-cnn"], 4, 16, 1
    kinds = {kind: made for kind, made in KINDS.items() if not (options.toy and made.compiler != "none")}
    for network in options.networks:
        steps(network, {kind: timed_step(network, made, device, options) for kind, made in kinds.items()}, options)
    if not options.toy:
        runs()


def steps(network: str, timed: dict[str, Step], options: argparse.Namespace) -> None:
    """Print a network's ratios."""
    for step in timed.values():  # what compiles and what warms up
        step(), step(), step()
    found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in timed}
    for _ in range(options.repeats):
        for kind, step in timed.items():
            found[kind].append(step())
    usual = statistics.median(seconds for seconds, _ in found["float32"])
    print(f"{network}, {options.batch} x {options.size} px: float32 {1000 * usual:.2f} ms")
    for kind, some in found.items():
        ratio, most = statistics.median(seconds for seconds, _ in some) / usual, max(peak for _, peak in some)
        print(f"  {kind}: {ratio:.2f}, {most / 2**20:.0f} MiB")


def timed_step(name: str, execution: Execution, device: torch.device, options: argparse.Namespace) -> Step:
    """A training step of the network ``name`` as ``execution`` computes it."""
    torch.manual_seed(0)
    execution = Execution(device, execution.precision, layout=execution.layout, compiler=execution.compiler)
    network = builtin.build(name, 3, 2).train()
    execution.place(network)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    images = torch.randn(options.batch, 3, options.size, options.size, device=device)
    with torch.no_grad():
        targets = torch.zeros_like(network(images[:2])).repeat(options.batch // 2, *[1] * (network(images).dim() - 1))

    def loss_of(outputs: torch.Tensor, rows: slice) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets[rows], reduction="sum") / targets.numel()

    def step() -> tuple[float, int]:
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        execution.backward(network, images, loss_of)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter() - started, torch.cuda.max_memory_allocated(device) if on_gpu else 0

    return step


def runs() -> None:
    """Print what a run of two rounds takes on the GPU beside the CPU; the first, which renders, is not counted."""
    command = [sys.executable, "-m", "fairflare", "run", "fedavg", "--task", "ich-phantom:small", "--rounds", "2"]
    seconds = {}
    for place in ("GPU", "CPU", "GPU"):
        env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if place == "CPU" else {})}
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            subprocess.run([*command, "--out", f"{folder}/run"], check=True, stdout=subprocess.DEVNULL, env=env)
            seconds[place] = time.perf_counter() - started
    print(f"run of ich-phantom:small, GPU / CPU: {seconds['GPU'] / seconds['CPU']:.2f}")


if __name__ == "__main__":
    main()
