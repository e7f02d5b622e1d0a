# SPDX-License-Identifier: Apache-2.0
"""What a secure sum costs a site and the server, and how well weights can be guessed from what remains visible.

    python benchmarks/secure_sum.py [--sites 20] [--rounds 6] [--task support2]

First part: one sum of three numbers per site, masks and CKKS (skipped without TenSEAL). Second part: FedISM+ with
masked sums; a site's weight is guessed as its share of the norms of the weighted updates, which the server sees.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from fairflare.assembly import build_federation, build_parts, build_site, site_names
from fairflare.config import make_config
from fairflare.federation.in_process import InProcess
from fairflare.federation.messages import Answer, Instruction
from fairflare.federation.site import Site
from fairflare.privacy import ckks, masks
from fairflare.privacy.sums import SumOrder

VALUES = [3e-7, 0.05, 0.0]


def main() -> None:
    """Measure and print."""
    options = parse()
    print(f"{platform.machine()}, {options.sites} sites")
    names = [f"site-{k}" for k in range(options.sites)]
    show("masks", {name: masks.MaskedSums(name, "run") for name in names}, masks.combine)
    if find_spec("tenseal"):
        own, public = ckks.new_contexts()
        members = {name: ckks.EncryptedSums(name, own) for name in names}
        show("ckks", members, lambda sealed: ckks.combine(sealed, public))
    guess(options.task, options.rounds)


def show(scheme: str, members: dict, combine) -> None:
    """Seconds per site and at the server, and bytes per site."""
    order = SumOrder(1, 0, {name: member.statement() for name, member in members.items()})
    started = time.perf_counter()
    sealed = [member.seal(VALUES, order)["sum"] for member in members.values()]
    between = time.perf_counter()
    combine(sealed)
    site, server = (between - started) / len(members), time.perf_counter() - between
    print(f"{scheme:6} {1e3 * site:8.2f} ms per site {1e3 * server:8.2f} ms at the server {len(sealed[0]):8} bytes")


class Watched(Site):
    """Notes each weight beside the norm that the server sees."""

    seen: list[tuple[int, float, float]] = []

    def _weigh(self, instruction: Instruction, seed: int) -> Answer:
        plain = norm(self.sums._held.update)
        answer = super()._weigh(instruction, seed)
        self.seen.append((answer.round, norm(answer.update) / plain, norm(answer.update)))
        return answer


def guess(task: str, rounds: int) -> None:
    """Print how far the guessed weights are off."""
    config = make_config("fedism-plus", task, rounds=rounds, values={"secure_sum": "masks"})
    parts = build_parts(config)
    sites = {name: build_site(config, parts, name) for name in site_names(config)}
    for site in sites.values():
        site.__class__ = Watched
    with tempfile.TemporaryDirectory() as folder:
        build_federation(config, parts, InProcess(sites), Path(folder), "local").run(dict(parts.model))
    errors = []
    for number in range(1, rounds + 1):
        row = [(weight, visible) for at, weight, visible in Watched.seen if at == number]
        total = sum(visible for _, visible in row)
        errors += [abs(visible / total - weight) / weight for weight, visible in row]
    print(f"{task}: weights guessed from norms are off by {statistics.median(errors):.0%} (median), {max(errors):.0%}")


def norm(update: dict) -> float:
    """L2 norm over all entries."""
    return math.sqrt(sum(float(value.double().norm()) ** 2 for value in update.values()))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--task", default="support2")
    return parser.parse_args()


if __name__ == "__main__":
    main()
