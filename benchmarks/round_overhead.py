# SPDX-License-Identifier: Apache-2.0
"""What the federation costs beside its forward and backward passes.

    python benchmarks/round_overhead.py [--rounds 3] [--images 1400] [--size 64] [--model resnet18] [--skip-simulator]

``--toy`` runs the same code at a size that says nothing about speed, as the tests do.

1. In process: seconds per round of a ``local`` FedAvg run (gate, rule, audit log, checkpoint and model
   file included) over a bare loop with the same networks, data, batches, optimizer and validation passes. The two take
   turns, and the ratio is the median over pairs.
2. FLARE's simulator: seconds per round of the tiny MLP with 2 and with 8 sites, less the in-process run's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from fairflare.build.assembly import build_federation, build_parts, build_site
from fairflare.build.config import RunConfig, make_config
from fairflare.core.objectives import local_objective
from fairflare.core.seeds import derive, seed_everything
from fairflare.federation.evaluation import predict
from fairflare.federation.in_process import InProcess
from fairflare.federation.loop import AUDIT
from fairflare.federation.site import Site
from fairflare.trainers.base import make_optimizer

GOAL_LOCAL, GOAL_SIMULATOR = 1.05, 0.7


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1400)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--model", choices=["resnet18", "small-cnn"], default="resnet18")
    parser.add_argument("--skip-simulator", action="store_true")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in process only")
    options = parser.parse_args()
    if options.toy:
        options.rounds, options.images, options.size = 1, 80, 32
        options.model, options.skip_simulator = "small-cnn", True
    print(f"torch {torch.__version__}, {torch.get_num_threads()} cores, 1 thread per process")
    local_against_bare_loop(options)
    if not options.skip_simulator:
        for sites in (2, 8):
            simulator_overhead(sites)


def local_against_bare_loop(options: argparse.Namespace) -> None:
    """Part 1: pairs of one federation and one bare loop, each of one round."""
    values = {"model": options.model, "images": options.images, "size": options.size, "corrupted": 1, "batch_size": 32}
    values |= {"test_images": 400, "site_test_images": 0}  # as when the figures in docs/benchmarks were taken
    config = make_config("fedavg", "ich-phantom:small", rounds=1, sites=2, values=values)
    parts = build_parts(config)
    initial = parts.model
    sites = {name: build_site(config, parts, name) for name in parts.task.sites()}
    ratios, seconds = [], []
    for repeat in range(options.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            federation = build_federation(config, parts, InProcess(sites), Path(folder), "local")
            federation.score = lambda model, final: {}  # the bare loop has no shared test sets either
            started = time.perf_counter()
            federation.run(initial)
            middle = time.perf_counter()
        bare_round(config, sites, initial)
        ended = time.perf_counter()
        if repeat:
            ratios.append((middle - started) / (ended - middle))
            seconds.append((middle - started, ended - middle))
    run, bare = (statistics.median(s[k] for s in seconds) for k in (0, 1))
    shape = f"{options.model}, 2 sites, {sum(s.data.size('train') for s in sites.values())} images, {options.size} px"
    print(f"{shape}: local run {run:.2f} s, bare loop {bare:.2f} s")
    print(f"local run / bare loop: {statistics.median(ratios):.3f}   (goal: at most {GOAL_LOCAL})")


def bare_round(config: RunConfig, sites: dict[str, Site], initial: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One round of FedAvg and the final evaluation as a script would write them."""
    total = sum(site.data.size("train") for site in sites.values())
    average = {key: torch.zeros_like(value, dtype=torch.float32) for key, value in initial.items()}
    for site in sites.values():
        seed_everything(0)
        network = site.network
        network.load_state_dict(initial)
        evaluate(site, "val")
        network.train()
        optimizer = make_optimizer(network, site.training)
        objective = local_objective(site.data.class_counts, site.training.logit_tau)
        for batch in site.data.training(site.training.batch_size, derive(0, "epoch", 0)):
            optimizer.zero_grad(set_to_none=True)
            objective(network(batch.inputs), batch.targets).backward()
            optimizer.step()
        for key, value in network.state_dict().items():
            average[key] += value * (site.data.size("train") / total)
    for site in sites.values():
        site.network.load_state_dict(average)
        for split in ("val", "test"):
            evaluate(site, split)
    return average


def evaluate(site: Site, split: str) -> dict[str, float]:
    """The task's metrics of a site's network on one split."""
    batches = site.data.fixed(split, site.training.batch_size)
    return site.scoring.evaluate(*predict(site.network, batches, site.execution.device, site.scoring.condense)[:2])


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
