# SPDX-License-Identifier: Apache-2.0
"""What secure sums cost a site and the server, and what they do to the model.

    python benchmarks/secure_sum.py [--sites 20] [--rounds 3] [--toy]

First the sum of four numbers per site, by masks and by CKKS (skipped without TenSEAL); then masking ResNet-18's update
at one of 20 and of 100 sites, with all pairs and with the neighbours of ``mask_neighbours=auto``,
and adding such updates, beside one training step of that network on 32 images of 224 pixels and a plain mean; then
whole rounds of FedISM+ in this process with and without secure sums; then final models without and with
masks. Times are this process's CPU time, medians of interleaved repetitions; rounds also in wall time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.networks import builtin as networks
from fairflare.privacy import secure_sums as masks
from fairflare.privacy.secure_sums import Credentials, number_scheme
from fairflare.privacy.sum_keys import SEALED, SHARE, PairwiseKeys, SelfMasks, recover, stream_of, threshold
from fairflare.privacy.sum_protocol import SumOrder, graph_of
from fairflare.privacy.sum_total import combine_updates
from fairflare_lab.privacy import encrypted_sums

VALUES = [3e-7, 0.05, 0.0, 1.0]


def main() -> None:
    """Measure and print."""
    options = parse()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.machine()}, 1 thread, {options.sites} sites")
    keys = {name: PairwiseKeys(name, "run") for name in (f"site-{k}" for k in range(options.sites))}
    order = SumOrder(1, 0, {name: own.statement() for name, own in keys.items()})
    numbers("masks", [masks.MaskedSums(own) for own in keys.values()], order, masks.combine)
    if find_spec("tenseal"):
        own, public = encrypted_sums.new_contexts()
        members = [number_scheme("ckks", one, Credentials(ckks=lambda: own)) for one in keys.values()]
        numbers(
            "ckks", members, order, lambda sealed: encrypted_sums.combine(dict(zip(keys, sealed, strict=True)), public)
        )
    updates(options)
    for count in (options.sites,) if options.toy else (20, 100):
        self_masks(count)
    rounds(options)
    models(options)


def numbers(scheme: str, members: list, order: SumOrder, combine: Callable) -> None:
    """Seconds per site and at the server, and bytes per site."""
    site, sealed = timed(lambda: [member.seal(VALUES, order)["sum"] for member in members])
    server, _ = timed(lambda: combine(sealed))
    print(
        f"numbers, {scheme}: {1e3 * site / len(members):.2f} ms per site, {1e3 * server:.2f} ms at the server, ", end=""
    )
    print(f"{len(sealed[0])} bytes per site")


def updates(options: argparse.Namespace) -> None:
    """Masking and adding updates, as multiples of all pairs, a training step and a plain mean."""
    network = networks.build("small-cnn" if options.toy else "resnet18", 3, 5)
    like = {key: value.detach() for key, value in network.state_dict().items() if value.is_floating_point()}
    update = {key: 1e-3 * torch.randn_like(value) for key, value in like.items()}
    batch, size = (4, 32) if options.toy else (32, 224)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 5, (batch,))
    print(f"updates of {sum(v.numel() for v in like.values()) / 1e6:.1f} M entries")
    for count in (options.sites,) if options.toy else (20, 100):
        ways, sizes = {}, {}
        for how in ("all", "auto"):
            members = {n: PairwiseKeys(n, "run", graph=graph_of(how, count)) for n in map(str, range(count))}
            order = SumOrder(1, 0, {name: own.statement() for name, own in members.items()})
            name = f"{how} ({len(members['0'].neighbours(order))} neighbours)"
            ways[name] = partial(self_masked, members["0"], update, order)
            sizes[name] = sum(v.nbytes for v in ways[name]().values()) / sum(v.nbytes for v in update.values())
        ways["step"] = lambda: nn.functional.cross_entropy(network(images), labels).backward()
        seconds = medians(ways, 1 if options.toy else 3)
        for name, bytes in sizes.items():
            ratio, step = seconds[name] / seconds[next(iter(ways))], seconds[name] / seconds["step"]
            print(f"  {count} sites, {name}: {seconds[name]:.3f} CPU s per site, / all {ratio:.2f}, ", end="")
            print(f"/ training step {step:.2f}, bytes / plain {bytes:.2f}")
    alone = PairwiseKeys("alone", "run")
    nothing = {key: torch.zeros_like(value) for key, value in like.items()}
    masked = [self_masked(alone, nothing, SumOrder(1, 0, {"alone": alone.statement()}))] * options.sites
    both = {"sum": partial(added, masked, like), "mean": partial(mean, [update] * options.sites)}
    found = medians(both, 1 if options.toy else 3)
    print(f"  at the server: sum / plain mean {found['sum'] / found['mean']:.2f}")


def self_masked(*content: Any) -> dict:
    """What a site does with its update."""
    return masks.mask_update(*content, self_mask=stream_of(bytes(31)))


def self_masks(count: int) -> None:
    """Sharing out the seed of a self-mask, handing out the shares of everyone's, and recovering all seeds."""
    names = [f"{k:04}" for k in range(count)]
    keys = {name: PairwiseKeys(name, "run") for name in names}
    order = SumOrder(1, 0, {name: own.statement() for name, own in keys.items()})
    halves = {name: SelfMasks(own, "update") for name, own in keys.items()}
    share, sealed = timed(lambda: [half.draw(order, count)[1] for half in halves.values()])

    def hand_out(holder: int) -> bytes:
        at = {author: holder - (holder > author) for author in range(count) if author != holder}
        own = {names[author]: sealed[author][place * SEALED : (place + 1) * SEALED] for author, place in at.items()}
        return halves[names[holder]].hand_out(order, own)

    give, given = timed(lambda: [hand_out(holder) for holder in range(count)])
    shares = [{h + 1: given[h][k * SHARE : (k + 1) * SHARE] for h in range(count)} for k in range(count)]
    server, _ = timed(lambda: recover(shares, threshold(count)))
    print(f"self-masks, {count} sites: {1e3 * (share + give) / count:.1f} ms per site and sum, ", end="")
    print(f"{1e3 * server:.1f} ms at the server, {len(sealed[0]) + len(given[0])} bytes per site")


def added(masked: list, like: dict) -> object:
    """What the server does; adding takes the same time whatever is added."""
    return combine_updates(masked, like, [stream_of(bytes(31)) for _ in masked])


def medians(ways: dict[str, Callable], repetitions: int) -> dict[str, float]:
    """Name -> CPU seconds, measured one after the other, again and again."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, work in ways.items():
            found[name].append(timed(work)[0])
    return {name: statistics.median(all_of) for name, all_of in found.items()}


def mean(found: list) -> dict:
    """The mean of updates."""
    total = {key: torch.zeros_like(value) for key, value in found[0].items()}
    for one in found:
        for key, value in one.items():
            total[key].add_(value, alpha=1 / len(found))
    return total


def rounds(options: argparse.Namespace) -> None:
    """Whole runs, the second of each pair counted."""
    seconds, wall, task = {}, {}, "support2" if options.toy else "ich-phantom:small"
    for scheme in ("none", "masks", "none", "masks"):
        started = time.perf_counter()
        seconds[scheme], _ = timed(partial(run, task, options.rounds, {"secure_sum": scheme}))
        wall[scheme] = time.perf_counter() - started
    print(
        f"{task}, {options.rounds} rounds: masks / none {seconds['masks'] / seconds['none']:.3f} in CPU time, ", end=""
    )
    print(f"{wall['masks'] / wall['none']:.3f} in wall time")


def models(options: argparse.Namespace) -> None:
    """Mean and worst site's test metric of the final model, and how far models lie from that with masks."""
    ways = {
        "none": {},
        "masks": {"secure_sum": "masks"},
    }
    tasks = [("support2", 40, {}, "auc"), ("support2:dirichlet", 20, {"n_sites": 40}, "auc")]
    tasks += [("digits:small", 20, {}, "accuracy")]
    for task, count, values, metric in tasks[:1] if options.toy else tasks:
        for seed in range(1 if options.toy or task == "digits:small" else 3):
            found = {
                name: run(task, 1 if options.toy else count, {**values, **more}, seed) for name, more in ways.items()
            }
            like = found["masks"][0]
            for name, (model, sites) in found.items():
                off = max(float((model[k] - v).abs().max()) for k, v in like.items() if v.is_floating_point())
                scores = [site["test"][metric] for site in sites.values() if metric in site["test"]]
                print(
                    f"{task} {values or ''}, seed {seed}, {name}: {metric} mean {statistics.mean(scores):.5f}, ", end=""
                )
                print(f"worst {min(scores):.5f}, largest difference of a weight {off:.1e}")


def run(task: str, count: int, values: dict, seed: int = 0) -> tuple[dict, dict]:
    """The final model of FedISM+ and every site's results of it."""
    config = make_config("fedism-plus", task, rounds=count, values=values, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        model = run_local(config, Path(folder))
        lines = [json.loads(line) for line in (Path(folder) / "audit.jsonl").read_text().splitlines()]
    return model, next(line["sites"] for line in lines if line["event"] == "evaluation")


def timed(work: Callable) -> tuple[float, object]:
    """CPU seconds and result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, which say nothing about speed")
    options = parser.parse_args()
    if options.toy:
        options.sites, options.rounds = 3, 1
    return options


if __name__ == "__main__":
    main()
