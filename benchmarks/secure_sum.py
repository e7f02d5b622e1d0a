# SPDX-License-Identifier: Apache-2.0
"""What secure sums cost a site and the server.

    python benchmarks/secure_sum.py [--sites 20] [--rounds 3] [--toy]

First the sum of four numbers per site, by masks and by CKKS (skipped without TenSEAL); then the sum of ResNet-18's
updates, beside one training step of that network on 32 images of 224 pixels; then whole rounds of FedISM+ in this
process with and without secure sums.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from fairflare.build.assembly import run_local
from fairflare.build.config import make_config
from fairflare.clinic import networks
from fairflare.privacy.secure_sum import checked, ckks
from fairflare.privacy.secure_sum import pairwise as masks
from fairflare.privacy.secure_sum.keys import PairwiseKeys
from fairflare.privacy.secure_sum.protocol import SumOrder
from fairflare.privacy.secure_sum.schemes import Credentials, number_scheme

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
        own, public = ckks.new_contexts()
        members = [number_scheme("ckks", one, Credentials(ckks=lambda: own)) for one in keys.values()]
        numbers("ckks", members, order, lambda sealed: checked.combine(dict(zip(keys, sealed, strict=True)), public))
    updates(list(keys.values()), order, options)
    rounds(options)


def numbers(scheme: str, members: list, order: SumOrder, combine: Callable) -> None:
    """Seconds per site and at the server, and bytes per site."""
    site, sealed = timed(lambda: [member.seal(VALUES, order)["sum"] for member in members])
    server, _ = timed(lambda: combine(sealed))
    print(
        f"numbers, {scheme}: {1e3 * site / len(members):.2f} ms per site, {1e3 * server:.2f} ms at the server, ", end=""
    )
    print(f"{len(sealed[0])} bytes per site")


def updates(keys: list[PairwiseKeys], order: SumOrder, options: argparse.Namespace) -> None:
    """Masking and adding updates, as multiples of a training step and of a plain mean."""
    network = networks.build("small-cnn" if options.toy else "resnet18", 3, 5)
    like = {key: value.detach() for key, value in network.state_dict().items() if value.is_floating_point()}
    update = {key: 1e-3 * torch.randn_like(value) for key, value in like.items()}
    site, first = timed(lambda: masks.mask_update(keys[0], update, order))
    # Adding takes the same time whatever is added.
    server, _ = timed(lambda: added([first] * len(keys), like))
    plain, _ = timed(lambda: mean([update] * len(keys)))
    batch, size = (4, 32) if options.toy else (32, 224)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 5, (batch,))
    step, _ = timed(lambda: nn.functional.cross_entropy(network(images), labels).backward())
    print(f"updates of {sum(v.numel() for v in like.values()) / 1e6:.1f} M entries: ", end="")
    print(f"mask / training step {site / step:.2f}, sum / plain mean {server / plain:.2f}, bytes / plain 2")


def added(masked: list, like: dict) -> object:
    """What ``combine_updates`` does, whose check these masks of one site would fail."""
    largest, masks.LARGEST = masks.LARGEST, float("inf")
    try:
        return masks.combine_updates(masked, like)
    finally:
        masks.LARGEST = largest


def mean(found: list) -> dict:
    """The mean of updates."""
    total = {key: torch.zeros_like(value) for key, value in found[0].items()}
    for one in found:
        for key, value in one.items():
            total[key].add_(value, alpha=1 / len(found))
    return total


def rounds(options: argparse.Namespace) -> None:
    """Whole runs, the second of each pair counted."""
    seconds, task = {}, "support2" if options.toy else "ich-phantom:small"
    for scheme in ("none", "masks", "none", "masks"):
        config = make_config("fedism-plus", task, rounds=options.rounds, values={"secure_sum": scheme})
        with tempfile.TemporaryDirectory() as folder:
            seconds[scheme], _ = timed(partial(run_local, config, Path(folder)))
    print(f"{task}, {options.rounds} rounds: masks / none {seconds['masks'] / seconds['none']:.3f}")


def timed(work: Callable) -> tuple[float, object]:
    """Seconds and result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


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
