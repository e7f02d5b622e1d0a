# SPDX-License-Identifier: Apache-2.0
"""What the federation costs beside its forward and backward passes.

    python benchmarks/round_overhead.py [--rounds 5] [--repeats 7] [--images 1200] [--size 48] [--sites 8] [--simulator]

``--toy`` runs the same code at a size that says nothing about speed, as the tests do.

1. In process, one thread: process CPU time of what ``fairflare run`` does (preflight, rounds, gate, rule, audit log,
   checkpoint, final evaluation, model file) over a bare loop that knows nothing of this package: its own network of the
   same architecture, images that lie ready as normalised tensors, fused Adam, the same training steps, validation
   passes and, for FedISM+, GSAM's second passes and the probe's. The two take turns, and the ratio is the median over
   pairs. Before that, both run once under a counter: they must pass the same number of images forward and backward.
   Rendering and shared test sets, which only simulated tasks have, are in neither.
2. FLARE's simulator (``--simulator``): seconds per round of the tiny MLP with 2 and with 8 sites, less the in-process
   run's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.engine.files import AUDIT
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation, build_site
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.site import Site

GOAL_LOCAL, GOAL_SIMULATOR = 1.05, 0.7
METHODS = ("fedavg", "fedism-plus")
PROBE_BATCH = 64
State = dict[str, Tensor]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=1200, help="of all sites together")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--simulator", action="store_true", help="part 2 as well")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in process only")
    options = parser.parse_args()
    if options.toy:
        options.rounds, options.repeats, options.images, options.size, options.sites = 1, 1, 80, 32, 2
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread")
    for method in METHODS:
        run_against_bare_loop(method, options)
    if options.simulator:
        for sites in (2, 8):
            simulator_overhead(sites)


def run_against_bare_loop(method: str, options: argparse.Namespace) -> None:
    """Part 1: pairs of a run and a bare loop."""
    values = {"images": options.images, "size": options.size, "corrupted": 1, "site_test_images": 0}
    config = make_config(method, "ich-phantom:small", rounds=options.rounds, sites=options.sites, values=values)
    parts = build_parts(config)
    ready, initial = ready_images(config, parts), dict(parts.model)
    bare = Bare(config, initial)
    variants = {"run": lambda: run(config, parts), "bare": lambda: bare.run(ready)}
    check_passes(variants, (parts.network, bare.network))
    cpu, wall = measure(variants, options.repeats)
    shape = f"{method}, small CNN, {options.sites} sites, {options.images} images of {options.size} px"
    print(f"{shape}, {options.rounds} rounds: CPU s of a run {median(cpu, 'run'):.2f}, bare {median(cpu, 'bare'):.2f}")
    ratio = statistics.median(a / b for a, b in zip(cpu["run"], cpu["bare"]))
    by_wall = statistics.median(a / b for a, b in zip(wall["run"], wall["bare"]))
    print(f"{method}: run / bare loop: CPU {ratio:.3f}, wall {by_wall:.3f}   (goal: at most {GOAL_LOCAL})")


def median(seconds: dict[str, list[float]], name: str) -> float:
    """Of one variant."""
    return statistics.median(seconds[name])


def measure(variants: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, list[float]], ...]:
    """CPU and wall seconds of every variant in every repeat; who goes first changes with every repeat."""
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    wall: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats):
        for name in list(variants)[:: -1 if repeat % 2 else 1]:
            began, started = time.process_time(), time.perf_counter()
            variants[name]()
            cpu[name].append(time.process_time() - began)
            wall[name].append(time.perf_counter() - started)
    return cpu, wall


def check_passes(variants: dict[str, Callable[[], object]], networks: tuple[nn.Module, ...]) -> None:
    """Run every variant once, which is also its warm-up; raises SystemExit where their passes differ."""
    found = []
    for variant, network in zip(variants.values(), networks, strict=True):
        passed = {"forward": 0, "backward": 0}

        def count(module: nn.Module, inputs: object, output: Tensor, passed: dict[str, int] = passed) -> None:
            passed["forward"] += len(output)
            if output.requires_grad:
                passed["backward"] += len(output)

        hook = network.register_forward_hook(count)
        variant()
        hook.remove()
        found.append(passed)
    if found[0] != found[1]:
        raise SystemExit(f"images passed by the run: {found[0]}, by the bare loop: {found[1]}")
    print(f"images passed by either: {found[0]['forward']} forward, {found[0]['backward']} of them backward")


def run(config: RunConfig, parts: Parts) -> State:
    """What ``fairflare run`` does in process, once imports, task and network are there."""
    sites: dict[str, Site] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in parts.task.sites():
            sites[name] = build_site(config, parts, name, memory=Path(folder, f"{name}.safetensors"))
            data = DATA[id(parts), name]
            sites[name].look = lambda data=data: ([], data)
        federation = build_federation(config, parts, InProcess(sites), Path(folder), "local")
        federation.score = None
        return federation.run(parts.model)


DATA: dict[tuple[int, str], object] = {}
"""The sites' data as they are after preflight, so that no run renders."""


@dataclass(frozen=True)
class Ready:
    """A site's images as the network takes them, and their classes."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def ready_images(config: RunConfig, parts: Parts) -> list[Ready]:
    """Every site's splits as tensors."""
    ready = []
    for name in parts.task.sites():
        _, data = build_site(config, parts, name).look()
        DATA[id(parts), name] = data
        splits = {}
        for split in ("train", "val", "test"):
            inputs, targets, _ = zip(*data.fixed(split, 1024))
            splits[split] = torch.cat(inputs), torch.cat(targets)
        ready.append(Ready(**splits))
    return ready


class Bare:
    """The loop that a script would be: torch alone, and numbers for its settings."""

    def __init__(self, config: RunConfig, initial: State) -> None:
        training, settings = config.training, config.settings
        self.rounds, self.batch, self.epochs = training.rounds, training.batch_size, training.epochs
        self.lr, self.decay, self.tau = training.lr, training.weight_decay, training.logit_tau
        self.plus = config.method == "fedism-plus"
        self.rho, self.alpha = (float(settings.get(name, 0.0)) for name in ("rho_max", "gsam_alpha"))
        self.initial = initial
        self.network = SmallCNN(next(iter(initial.values())).shape[1], list(initial.values())[-1].shape[0])
        self.names = dict(zip(self.network.state_dict(), initial, strict=True))

    def run(self, sites: list[Ready]) -> State:
        """Rounds of training and averaging, then the final model on every site's images."""
        model = {own: self.initial[name].clone() for own, name in self.names.items()}
        total = sum(len(site.train[1]) for site in sites)
        for number in range(1, self.rounds + 1):
            rho = self.rho * (number / self.rounds) ** 0.5
            average = {key: torch.zeros_like(value) for key, value in model.items()}
            for site in sites:
                self.network.load_state_dict(model)
                self.evaluate(*site.val)
                if self.plus:
                    self.probe(*site.train, rho)
                self.train(*site.train, rho)
                for key, value in self.network.state_dict().items():
                    average[key].add_(value, alpha=len(site.train[1]) / total)
            model = average
        for site in sites:
            self.network.load_state_dict(model)
            self.evaluate(*site.val)
            self.evaluate(*site.test)
        return model

    def train(self, x: Tensor, y: Tensor, rho: float) -> None:
        """Epochs of Adam or GSAM steps with logit adjustment."""
        self.network.train()
        parameters = list(self.network.parameters())
        adam = torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.decay, fused=True)
        counts = torch.bincount(y, minlength=self.network.head.out_features)
        shift = self.tau * torch.log(counts / counts.sum())
        for _ in range(self.epochs):
            rows = list(torch.randperm(len(y)).split(self.batch))
            if len(rows) > 1 and len(rows[-1]) == 1:
                rows[-2:] = [torch.cat(rows[-2:])]
            for some in rows:
                inputs, targets = x[some], y[some]
                self.backward(inputs, targets, shift)
                if self.plus:
                    self.second_pass(parameters, inputs, targets, shift, rho)
                adam.step()

    def backward(self, inputs: Tensor, targets: Tensor, shift: Tensor) -> None:
        """A fresh gradient."""
        self.network.zero_grad(set_to_none=True)
        F.cross_entropy(self.network(inputs) + shift, targets).backward()

    def second_pass(self, parameters: list[Tensor], inputs: Tensor, targets: Tensor, shift: Tensor, rho: float) -> None:
        """GSAM's direction in place of the gradient."""
        first = [p.grad for p in parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(first)))
        with torch.no_grad():
            step = torch._foreach_mul(first, rho / (norm + 1e-12))
            torch._foreach_add_(parameters, step)
        self.backward(inputs, targets, shift)
        with torch.no_grad():
            torch._foreach_sub_(parameters, step)
            second = [p.grad for p in parameters]
            inner = sum(torch.dot(a.flatten(), b.flatten()) for a, b in zip(first, second))
            other = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(second)))
            scale = 1 + self.alpha * inner / (norm * other + 1e-12) * norm / (other + 1e-12)
            torch._foreach_mul_(second, scale)
            torch._foreach_add_(second, first, alpha=-self.alpha)

    def probe(self, x: Tensor, y: Tensor, rho: float) -> float:
        """Sharpness over all of a site's training images: gradient, ascent, loss there."""
        self.network.eval()
        self.network.zero_grad(set_to_none=True)
        parameters = list(self.network.parameters())
        loss = 0.0
        for inputs, targets in zip(x.split(PROBE_BATCH), y.split(PROBE_BATCH)):
            found = F.cross_entropy(self.network(inputs), targets, reduction="sum")
            found.backward()
            loss -= float(found.detach())
        gradients = [p.grad for p in parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        with torch.no_grad():
            torch._foreach_add_(parameters, torch._foreach_mul(gradients, rho / (norm + 1e-12)))
            for inputs, targets in zip(x.split(PROBE_BATCH), y.split(PROBE_BATCH)):
                loss += float(F.cross_entropy(self.network(inputs), targets, reduction="sum"))
            torch._foreach_sub_(parameters, torch._foreach_mul(gradients, rho / (norm + 1e-12)))
        return loss / len(y)

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Accuracy and loss."""
        self.network.eval()
        outputs = torch.cat([self.network(part) for part in x.split(self.batch)])
        return float((outputs.argmax(1) == y).float().mean()), float(F.cross_entropy(outputs, y))


class SmallCNN(nn.Module):
    """Four blocks of convolution, group normalisation, ReLU and pooling, the mean over the image, a linear head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = (channels, 16, 32, 64, 128)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(narrow, wide, kernel, padding=kernel // 2, bias=False),
                    nn.GroupNorm(8, wide),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                )
                for narrow, wide, kernel in zip(widths, widths[1:], (5, 3, 3, 3))
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images -> logits."""
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


def simulator_overhead(n_sites: int, rounds: int = 12) -> None:
    """Part 2: median seconds per round after the first two, which hold process start and data."""
    from fairflare.flare.simulate import run_simulator

    config = make_config("fedavg", "support2:dirichlet", rounds=rounds, sites=n_sites)
    parts = build_parts(config)
    sites = {name: build_site(config, parts, name) for name in parts.task.sites()}
    with tempfile.TemporaryDirectory() as local, tempfile.TemporaryDirectory() as flare:
        build_federation(config, parts, InProcess(sites), Path(local), "local").run(parts.model)
        run_simulator(config, Path(flare), list(sites))
        inside, outside = seconds_per_round(Path(local)), seconds_per_round(Path(flare))
    print(
        f"simulator, tiny MLP, {n_sites} sites: {outside:.2f} s per round, {inside:.2f} s in process, "
        f"overhead {outside - inside:.2f} s   (goal: at most {GOAL_SIMULATOR})"
    )


def seconds_per_round(folder: Path) -> float:
    """Median of exchange plus aggregation from the audit log."""
    entries = [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]
    rounds = [sum(e["seconds"].values()) for e in entries if e["event"] == "round"]
    return statistics.median(rounds[2:])


if __name__ == "__main__":
    main()
