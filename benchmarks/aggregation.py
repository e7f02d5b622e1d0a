# SPDX-License-Identifier: Apache-2.0
"""The server's step of every rule, 20 sites x a ResNet-18 (11 M parameters), as ratios in one run.

    python benchmarks/aggregation.py [--sites 20] [--repeats 5] [--toy]

Each rule's third round is timed, when histories are full, against (a) reading the updates and the rule's own tensors
once and (b) a plain weighted mean, ``total.add_(update, alpha=weight)`` per site and tensor. Memory is the rise of the
process's peak resident size during the step, over what model, replies and state hold already, in models.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairflare.build.method_parts import default_parts
from fairflare.clinic import networks
from fairflare.core import registry
from fairflare.core.types import Info, Outline, Reply, Round, StateDict
from fairflare.rules.base import State

GOAL_MEAN, GOAL_READ, GOAL_MEMORY = 1.5, 8.0, 1.0
BY_SCALARS = ("fedavg", "fedism", "fedism-plus", "fedufo")


def main() -> None:
    """Measure every method in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in one process")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.only, options.sites, options.repeats)))
        return
    if options.toy:
        options.sites, options.repeats = 3, 1
    network = "a small CNN" if options.toy else "ResNet-18"
    print(f"{options.sites} sites x {network}, torch {torch.__version__}, 1 thread; medians of {options.repeats}\n")
    print("| method | step / read once | step / plain mean | peak memory, models |")
    print("|---|---|---|---|")
    for id in registry.methods():
        row = measured(id, options.sites, options.repeats, "small-cnn") if options.toy else in_child(id, options)
        print(f"| {id} | {row['read']:.2f} | {row['mean']:.2f} | {row['memory']:.2f} |", flush=True)
    print(
        f"\ngoals: {', '.join(BY_SCALARS)}: at most {GOAL_MEAN} plain means; fedheal: at most {GOAL_READ} reads; ",
        end="",
    )
    print(f"memory at most {GOAL_MEMORY} model. fedce also compares all updates with each other.")


def in_child(id: str, options: argparse.Namespace) -> dict[str, float]:
    """``measured`` in a process of its own."""
    command = [sys.executable, __file__, "--only", id, "--sites", str(options.sites)]
    command += ["--repeats", str(options.repeats)]
    # Large freed blocks go back to the system at once, so that a peak is this step's and no earlier one's.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def measured(id: str, sites: int, repeats: int, network_name: str = "resnet18") -> dict[str, float]:
    """Ratios of one method's step, each repeat against its own neighbours."""
    torch.set_num_threads(1)
    network = networks.build(network_name, 3, 5)
    model = {key: value.detach().clone() for key, value in network.state_dict().items()}
    rule = default_parts(id).rule
    trainable = frozenset(name for name, _ in network.named_parameters())
    replies = [made_up(id, model, trainable, k) for k in range(sites)]
    state: State = {}
    for t in (1, 2):
        state = rule.aggregate(model, replies, state, Info(Round(t, 100))).state
    size = sum(value.numel() * value.element_size() for value in model.values())
    seconds: dict[str, list[float]] = {"read": [], "mean": [], "step": []}
    memory = None
    for _ in range(repeats):
        seconds["read"].append(timed(lambda: read_once(replies, state)))
        seconds["mean"].append(timed(lambda: plain_mean(model, replies)))
        before = reset_peak()
        seconds["step"].append(timed(lambda: rule.aggregate(model, replies, state, Info(Round(3, 100)))))
        memory = peak() - before if memory is None else memory
    ratios = {k: [s / other for s, other in zip(seconds["step"], seconds[k])] for k in ("read", "mean")}
    return {**{k: statistics.median(v) for k, v in ratios.items()}, "memory": memory / size}


def made_up(id: str, model: StateDict, trainable: frozenset[str], k: int) -> Reply:
    """A reply with random updates and mid-range scalars."""
    generator = torch.Generator().manual_seed(k)
    update = {
        key: torch.randn(value.shape, generator=generator) * 0.01
        for key, value in model.items()
        if value.is_floating_point()
    }
    outline = Outline(model, ("a", "b"))
    names = [s.name for probe in default_parts(id).probes for s in probe.scalars(outline)]
    scalars = {name: 0.3 + 0.02 * ((k + len(name)) % 7) for name in names}
    return Reply(f"site-{k:02d}", update, 100 + k, scalars, trainable=trainable)


def plain_mean(model: StateDict, replies: list[Reply]) -> StateDict:
    """What a script would write."""
    total = {key: value.clone() for key, value in model.items()}
    for reply in replies:
        for key, value in reply.update.items():
            total[key].add_(value, alpha=1 / len(replies))
    return total


def read_once(replies: list[Reply], state: Any) -> float:
    """Touch every update and every tensor of the state."""
    return sum(float(t.max()) for t in [*(v for r in replies for v in r.update.values()), *tensors(state)])


def tensors(state: Any) -> Iterator[torch.Tensor]:
    """All tensors of nested dicts."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def reset_peak() -> int:
    """Forget the peak where the kernel lets us; returns bytes resident now."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) * 1024


def peak() -> int:
    """Highest resident size since the last reset, in bytes."""
    with open("/proc/self/status") as file:
        found = next((int(line.split()[1]) for line in file if line.startswith("VmHWM")), None)
    return (found or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


if __name__ == "__main__":
    main()
