# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR's second exchange at a site: time against two plain forward passes, memory against one training step.

    python benchmarks/cka.py [--size 384] [--images 16] [--batch 8] [--repeats 3] [--device cuda] [--toy]

The papers' U-Net (41 layers, 7.76 M parameters) on random images. Each repeat times two evaluation passes over the
probe set and then the probe on the same images; memory is the rise of the peak over what the process holds already, in
a process of its own per kind of work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from aggregation import peak, reset_peak

from fairflare.core.execution import Execution
from fairflare.core.types import Batch, LocalWork, Round, Training
from fairflare.functional.blocks import layers_of
from fairflare.networks import builtin as networks
from fairflare.probes.cka import LayerSimilarity

GOAL = 1.15


class RandomImages:
    """A site's data: standard normal images in stored order."""

    def __init__(self, images: int, size: int) -> None:
        self.inputs = torch.randn(images, 1, size, size, generator=torch.Generator().manual_seed(0))
        self.class_counts = torch.empty(0)

    def size(self, split: str) -> int:
        """Images of any split."""
        return len(self.inputs)

    def fixed(self, split: str, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """All of them, whatever the split."""
        for part in self.inputs.split(batch_size):
            yield Batch(part, torch.zeros(len(part)), torch.zeros(len(part), dtype=torch.int64))


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in one process")
    parser.add_argument("--only", choices=["probe", "forward", "step"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.toy:
        options.size, options.images, options.batch, options.repeats = 32, 8, 4, 1
    torch.set_num_threads(1)
    if options.only:
        print(json.dumps(memory_of(options)))
        return
    work = make_work(options)
    probe = LayerSimilarity(cka_examples=0, cka_batch=options.batch)
    n_layers = len(layers_of(work.received))
    forwards(work, options.batch)
    ratios = []
    for _ in range(options.repeats):
        plain = timed(lambda: [forwards(work, options.batch) for _ in range(2)], options.device)
        ratios.append(timed(lambda: probe.measure(work), options.device) / plain)
    print(f"U-Net, {n_layers} layers, {options.images} x {options.size} px, batch {options.batch}, {options.device}")
    print(f"CKA exchange / two forward passes: {statistics.median(ratios):.3f}   (goal: at most {GOAL})")
    rise = {kind: memory(kind, options) for kind in ("probe", "forward", "step")}
    gib = {kind: value / 2**30 for kind, value in rise.items()}
    print(
        f"peak memory: probe {gib['probe']:.2f} GiB, forward pass {gib['forward']:.2f}, training step {gib['step']:.2f}"
    )
    extra = (rise["probe"] - rise["forward"]) / max(rise["step"], 1)
    print(f"what the probe adds to a forward pass / a training step's activations: {extra:.3f}   (goal: below 1)")


def make_work(options: argparse.Namespace) -> LocalWork:
    """A site that has trained one model and received another, both randomly initialised."""
    torch.manual_seed(1)
    anchor = networks.build("unet", 1, 3).state_dict()
    torch.manual_seed(0)
    network = networks.build("unet", 1, 3).to(options.device)
    data = RandomImages(options.images, options.size)
    device = torch.device(options.device)
    return LocalWork(network, data, Training(), Round(1, 1), seed=0, received=anchor, execution=Execution(device))


@torch.no_grad()
def forwards(work: LocalWork, batch: int) -> None:
    """One evaluation pass over the probe set."""
    work.network.eval()
    for part in work.data.fixed("train", batch):
        work.network(part.inputs.to(work.device))


def step(work: LocalWork, batch: int) -> None:
    """One forward and backward pass in training mode on one batch."""
    work.network.train()
    inputs = next(work.data.fixed("train", batch)).inputs.to(work.device)
    work.network(inputs).square().mean().backward()


def memory_of(options: argparse.Namespace) -> int:
    """Bytes by which one kind of work raises the peak."""
    work = make_work(options)
    kinds: dict[str, Callable[[], object]] = {
        "probe": lambda: LayerSimilarity(cka_examples=0, cka_batch=options.batch).measure(work),
        "forward": lambda: forwards(work, options.batch),
        "step": lambda: step(work, options.batch),
    }
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kinds[options.only]()
        return torch.cuda.max_memory_allocated() - before
    before = reset_peak()
    kinds[options.only]()
    return peak() - before


def memory(kind: str, options: argparse.Namespace) -> int:
    """``memory_of`` in a fresh process, at toy size in this one."""
    if options.toy:
        options.only = kind
        return memory_of(options)
    command = [sys.executable, __file__, "--only", kind, *sys.argv[1:]]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds of one call, the device's queue included."""
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
