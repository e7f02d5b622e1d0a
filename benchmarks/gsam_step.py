# SPDX-License-Identifier: Apache-2.0
"""What a GSAM step costs: in plain Adam steps, and its vector arithmetic beside a per-tensor loop with clones.

    python benchmarks/gsam_step.py [--network resnet18] [--device cpu|cuda] [--batch 32] [--size 64] [--bf16]
                                   [--threads 1] [--repeats 25] [--toy]

Every repeat times both variants in turn, so that a drift of the machine's speed touches them alike, and who goes first
changes; ratios are medians over repeats, of process CPU time and of wall time (on a GPU only the latter says anything).
Beside other work, which slows single steps, the ratio of the fastest ones says more.
The plain step's Adam is fused, as the GSAM step's own base optimizer is, so that the ratio compares the steps and not
two optimizers; memory is kept between steps as in a run. Two forward-backward passes and one update are the floor of
any GSAM step.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch
from torch import nn

from fairflare.core.execution import keep_freed_memory
from fairflare.core.types import Training
from fairflare.functional.perturbation import frozen_running_statistics, global_norm, perturbed
from fairflare.networks.builtin import build
from fairflare.trainers.base import make_optimizer
from fairflare.trainers.gsam import _subtract_gap, gsam_step

RHO, ALPHA, CLASSES = 0.05, 0.1, 5


def main() -> None:
    """Measure and print."""
    options = parse()
    device = torch.device(options.device)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    keep_freed_memory()
    torch.manual_seed(0)
    network = build(options.network, 3, CLASSES).to(device).train()
    x = torch.randn(options.batch, 3, options.size, options.size, device=device)
    y = torch.randint(CLASSES, (options.batch,), device=device)
    if options.channels_last or options.bf16:
        network, x = network.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    training = Training(optimizer="adam", lr=3e-4, weight_decay=5e-4)
    plain, optimizer = make_optimizer(network, training), make_optimizer(network, training)

    def closure() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        return loss

    def adam() -> None:
        plain.zero_grad(set_to_none=True)
        closure()
        plain.step()

    steps = {"adam": adam, "gsam": lambda: gsam_step(network, optimizer, closure, RHO, ALPHA)}
    adam()
    first = [torch.randn_like(p) for p in network.parameters()]
    second = [torch.randn_like(p) for p in network.parameters()]
    parameters = list(network.parameters())
    vectors = {
        "foreach": lambda: foreach_arithmetic(network, parameters, first, second),
        "loop": lambda: loop_arithmetic(network, parameters, first, second),
    }
    measured = [measure(variants, options.repeats, device) for variants in (steps, vectors)]
    report(options, device, *({**one, **other} for one, other in zip(*measured)))


def foreach_arithmetic(network, parameters, first, second) -> None:
    """The arithmetic of ``gsam_step`` without its passes and its update."""
    norm = global_norm(first)
    with perturbed(parameters, first, RHO, norm), frozen_running_statistics(network):
        pass
    _subtract_gap(first, norm, second, ALPHA)


@torch.no_grad()
def loop_arithmetic(network, parameters, first, second) -> None:
    """The same arithmetic tensor by tensor, with cloned weights and gradients and both norms taken at the end."""
    saved = [p.clone() for p in parameters]
    old = [g.clone() for g in first]
    norm = torch.norm(torch.stack([g.norm(p=2) for g in old]))
    for p, g in zip(parameters, old):
        p.add_(g * (RHO / (norm + 1e-12)))
    for p, s in zip(parameters, saved):
        p.copy_(s)
    inner = sum((a * b).sum() for a, b in zip(old, second))
    second_norm = torch.norm(torch.stack([g.norm(p=2) for g in second]))
    old_norm = torch.norm(torch.stack([g.norm(p=2) for g in old]))
    cosine = inner / (old_norm * second_norm + 1e-12)
    for a, b in zip(old, second):
        vertical = a - cosine * old_norm * b / (second_norm + 1e-12)
        b.sub_(vertical * ALPHA)


def measure(variants, repeats: int, device: torch.device) -> tuple[dict[str, list[float]], ...]:
    """CPU and wall seconds of every variant in every repeat, after one warm-up of each."""
    cpu, wall = ({name: [] for name in variants} for _ in range(2))
    for repeat in range(repeats + 1):
        for name in list(variants)[:: -1 if repeat % 2 else 1]:
            synchronise(device)
            began, started = time.process_time(), time.perf_counter()
            variants[name]()
            synchronise(device)
            if repeat:
                cpu[name].append(time.process_time() - began)
                wall[name].append(time.perf_counter() - started)
    return cpu, wall


def synchronise(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def ratio(times, over: str, under: str) -> float:
    """Median over repeats of one variant's time divided by another's in the same repeat."""
    return statistics.median(a / b for a, b in zip(times[over], times[under]))


def report(options, device, cpu, wall) -> None:
    """Print medians and ratios."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    precision = "bf16, channels_last" if options.bf16 else "float32"
    print(
        f"{options.network}, batch {options.batch}, {options.size} px, {precision}, {name}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    for variant, seconds in wall.items():
        print(f"  {variant:8s} {1e3 * statistics.median(seconds):9.1f} ms")
    for name, times in (("CPU", cpu), ("wall", wall)):
        print(f"{name}: GSAM step / Adam step:              {ratio(times, 'gsam', 'adam'):.3f}   (goal: at most 2.05)")
        print(f"{name}: fastest GSAM step / fastest Adam step: {min(times['gsam']) / min(times['adam']):.3f}")
        print(
            f"{name}: vector arithmetic, foreach / loop:  {ratio(times, 'foreach', 'loop'):.3f}   (goal: at most 0.333)"
        )


def parse() -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=["resnet18", "small-cnn", "small-cnn-bn"], default="resnet18")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="torch threads; torch's default without it")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast and channels_last")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, which say nothing about speed")
    options = parser.parse_args()
    if options.toy:
        options.network, options.batch, options.size, options.repeats = "small-cnn", 4, 16, 1
    return options


if __name__ == "__main__":
    main()
