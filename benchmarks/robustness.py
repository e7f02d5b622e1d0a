# SPDX-License-Identifier: Apache-2.0
"""What do one and two lying sites of eight cost the honest ones, by attack, method and defence?

    nice python benchmarks/robustness.py [--seeds 5] [--liars 1,2]
        # goes on with what docs/benchmarks/robustness.csv lacks, then writes the tables of docs/robustness.md
    python benchmarks/robustness.py --tables    # these alone
    python benchmarks/robustness.py --named [--first-seed 5]    # whose numbers reports call unlike the others'

Liars know all honest updates of the round and act together. All but those of "label flip" and "mimic" also say of
themselves what wins the method's weight; "lie" does so and turns its update round. AUC is the mean over honest sites of
the final model's on their test patients; weight is the largest share of one liar in a round, from the log.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from fairflare.cli.options import ROBUST
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.report.audit_reader import read_trail
from fairflare.report.rows import unlike

ROOT = Path(__file__).resolve().parents[1]
CSV, PAGE = ROOT / "docs" / "benchmarks" / "robustness.csv", ROOT / "docs" / "robustness.md"
COLUMNS = ("task", "seed", "liars", "attack", "method", "defence", "auc", "weight")
METHODS = ("fedism-plus", "fedlwr", "fedheal", "fedce", "fedavg", "fedufo", "median", "trimmed-mean", "multi-krum")
TELLING = ("fedism-plus", "fedlwr", "fedce", "fedufo")
"""Those whose sites say numbers of themselves, which weigh them."""
DEFENCES = ("none", "robust")
LIES = {
    "sharpness": 10.0,
    "similarity": -1.0,
    "minus_error": 1.0,
    "trained_error": 0.0,
    "loss": 10.0,
    "group_loss": 10.0,
}
"""Family of numbers -> what a liar says (sharpness and losses: times)."""


def sign_flip(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """-mean of the honest updates, (K, N) -> (N,); ``own`` is what the liar would have sent."""
    return -honest.mean(0)


def inner_product(honest: torch.Tensor, own: torch.Tensor, tau: float = 2.0) -> torch.Tensor:
    """-tau mean (Xie et al., UAI 2019)."""
    return -tau * honest.mean(0)


def alie(honest: torch.Tensor, own: torch.Tensor, tau: float = 1.5) -> torch.Tensor:
    """mean + tau standard deviations (Baruch et al., NeurIPS 2019)."""
    return honest.mean(0) + tau * honest.std(0)


def mimic(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The first honest site's (Karimireddy et al., ICLR 2022)."""
    return honest[0].clone()


def times_minus_5(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return -5 * own


def noise(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Normal, of five times its own update's norm."""
    drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(1), dtype=own.dtype)
    return drawn * (5 * own.norm() / drawn.norm())


def flipped(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return -own


def as_trained(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return own


NUMBERS = "numbers"
"""An attack that lies in its numbers alone, for ``named``."""
Attack = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ATTACKS: dict[str, Attack] = {
    "none": as_trained,
    "lie": flipped,
    "times -5": times_minus_5,
    "inner product": inner_product,
    "alie": alie,
    "sign flip": sign_flip,
    "label flip": as_trained,
    "mimic": mimic,
    "noise": noise,
}


class Hostile(InProcess):
    """Sites of which the last ones answer to "train" together, when all others have."""

    def __init__(self, sites, liars: int, attack: str) -> None:
        super().__init__(sites)
        self.liars, self.attack, self._flipped = sorted(sites)[len(sites) - liars :], attack, set()

    def exchange(self, instructions) -> Iterator:
        for site in self.members():
            site.trivial = lambda data: {}
            if self.attack == "label flip" and site.name in self.liars and site.name not in self._flipped and site.data:
                train = site.data.splits["train"]
                site.data.splits["train"] = dataclasses.replace(train, targets=1 - train.targets)
                self._flipped.add(site.name)
        answers = list(super().exchange(instructions))
        if self.attack in ("none", "label flip"):
            yield from answers
            return
        training = [a for a in answers if a.update]
        keys = sorted(training[0].update) if training else []
        updates = {a.site: torch.cat([a.update[key].double().reshape(-1) for key in keys]) for a in training}
        honest = [u for site, u in updates.items() if site not in self.liars]
        for answer in answers:
            if answer.site in self.liars:
                if self.attack != "mimic":
                    answer = dataclasses.replace(answer, scalars=_lied(answer.scalars))
                if answer.update:
                    made = ATTACKS.get(self.attack, as_trained)(torch.stack(honest), updates[answer.site])
                    answer = dataclasses.replace(answer, update=_split(made, answer.update, keys))
            yield answer


def _lied(scalars):
    """A liar's numbers."""
    times = ("sharpness", "loss", "group_loss")
    return {
        name: (value * LIES[family] if family in times else LIES[family])
        if (family := name.split("/")[0]) in LIES
        else value
        for name, value in scalars.items()
    }


def _split(vector: torch.Tensor, like, keys: Sequence[str]):
    parts = vector.split([like[key].numel() for key in keys])
    return {key: part.view_as(like[key]).to(like[key].dtype) for key, part in zip(keys, parts)}


def log_of(task: str, method: str, attack: str, defence: str, liars: int, seed: int, values) -> list[dict]:
    """The audit log of one run."""
    chosen = {**values, **(ROBUST if defence == "robust" else {})}
    config = make_config(method, task, seed=seed, rounds=5, values=chosen)
    with tempfile.TemporaryDirectory() as where:
        folder, parts = Path(where), build_parts(config)
        with LocalSites(config, folder, parts) as sites:
            hostile = Hostile({site.name: site for site in sites.transport.members()}, liars, attack)
            sites.transport = hostile
            run_local(config, folder, parts=parts, sites=sites)
        return list(verify(folder / "audit.jsonl"))


def measured(
    task: str, method: str, attack: str, defence: str, liars: int, seed: int, values
) -> dict[int, tuple[float, float]]:
    """Last sites left out -> mean test AUC of the others, and the largest weight of one of those in any round.

    Of an honest run that is for none, one and two, of others for the liars.
    """
    log = log_of(task, method, attack, defence, liars, seed, values)
    found = next(entry for entry in log if entry["event"] == "evaluation")["sites"]
    names = sorted(found)
    result = {}
    for count in (0, 1, 2) if attack == "none" else (liars,):
        last = names[len(names) - count :]
        weights = [e["weights"].get(site, 0.0) for e in log if e["event"] == "round" for site in last]
        aucs = [of["test"]["auc"] for site, of in found.items() if site not in last]
        result[count] = statistics.mean(aucs), max(weights, default=0.0)
    return result


def named(task: str, seeds: Sequence[int], liars: Sequence[int]) -> Iterator[str]:
    """For each method whose sites tell numbers: liars and honest sites that the report names, of how many."""
    yield "| method | attack | liars | liars named | honest sites named |"
    yield "|---|---|---|---|---|"
    for method, (attack, count) in product(TELLING, [("none", 0), *product(("lie", NUMBERS), liars)]):
        right, wrong, sites = 0, 0, 0
        for seed in seeds:
            log = log_of(task, method, attack, "none", count, seed, {})
            names = sorted(next(entry for entry in log if entry["event"] == "evaluation")["sites"])
            found = {row["site"] for row in unlike(read_trail(log))}
            right += len(found & set(names[len(names) - count :]))
            wrong += len(found & set(names[: len(names) - count]))
            sites += len(names) - count
        yield f"| {method} | {attack} | {count} | {right} of {count * len(seeds)} | {wrong} of {sites} |"


def wanted(seeds: int, liars: Sequence[int]) -> Iterator[tuple[int, int, str, str, str]]:
    """Seed, liars, attack, method, defence: what says most comes first."""
    papers, others = METHODS[:5], METHODS[5:]
    yield from ((seed, 0, "none", *of) for seed in range(seeds) for of in product(papers, DEFENCES))
    for seed in range(seeds):
        for methods in (papers, others):
            for attack in ATTACKS:
                for count, method in product((0,) if attack == "none" else liars, methods):
                    if attack != "none" or methods is others:
                        yield from ((seed, count, attack, method, defence) for defence in DEFENCES)


def stored(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fill(path: Path, task: str, seeds: int, liars: Sequence[int], values, most: int = 10**6) -> None:
    """Run what ``path`` lacks, one after the other, and add each to it."""
    have = {tuple(row[key] for key in COLUMNS[:-2]) for row in stored(path)}
    todo = [one for one in wanted(seeds, liars) if (task, *map(str, one)) not in have]
    for seed, count, attack, method, defence in todo[:most]:
        found = measured(task, method, attack, defence, count, seed, values)
        rows = [
            (task, seed, left, attack, method, defence, f"{auc:.4f}", f"{weight:.4f}")
            for left, (auc, weight) in found.items()
        ]
        print(*rows, sep="\n", flush=True)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([COLUMNS, *rows] if new else rows)


def table(rows: Sequence[dict[str, str]], liars: int) -> Iterator[str]:
    """For each method and attack what the same sites lose of their AUC in the honest run without defence, and weights.

    Means over seeds that have all of it; of an honest run the change that the defence makes.
    """
    yield "| method | attack | seeds | AUC lost | weight | AUC lost with `--robust` | weight |"
    yield "|---|---|---|---|---|---|---|"
    of = {
        tuple(r[key] for key in ("method", "attack", "defence", "seed")): (float(r["auc"]), float(r["weight"]))
        for r in rows
        if r["liars"] == str(liars)
    }
    for method, attack in product(METHODS, ATTACKS):
        seeds = sorted({seed for *_, seed in of})
        seeds = [s for s in seeds if all((method, a, d, s) in of for a, d in product(("none", attack), DEFENCES))]
        cells = []
        for defence in DEFENCES:
            lost = [of[method, "none", "none", s][0] - of[method, attack, defence, s][0] for s in seeds]
            taken = [of[method, attack, defence, s][1] for s in seeds]
            cells += [f"{statistics.mean(lost):.3f}", f"{statistics.mean(taken):.2f}"] if seeds else []
        if seeds:
            yield f"| {method} | {attack} | {len(seeds)} | {' | '.join(cells)} |"


def write_page(rows: Sequence[dict[str, str]], page: Path) -> None:
    """Replace the tables of ``page``, between its marks."""
    text = page.read_text()
    for liars in (1, 2):
        begin, end = f"<!-- liars {liars}: begin -->\n", f"<!-- liars {liars}: end -->"
        head, _, rest = text.partition(begin)
        text = head + begin + "\n".join(table(rows, liars)) + "\n" + end + rest.partition(end)[2]
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="support2:dirichlet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--liars", default="1,2")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--first-seed", type=int, default=0, help="of --named")
    parser.add_argument("--toy", action="store_true")
    asked = parser.parse_args()
    liars = [int(one) for one in asked.liars.split(",")]
    if asked.named:
        for line in named(asked.task, range(asked.first_seed, asked.first_seed + asked.seeds), liars):
            print(line, flush=True)
        return
    if asked.toy:
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / "toy.csv"
            fill(path, asked.task, 1, (1,), {"n_sites": 4, "batch_size": 512}, most=2)
        return
    if not asked.tables:
        fill(CSV, asked.task, asked.seeds, liars, {})
    write_page(stored(CSV), PAGE)


if __name__ == "__main__":
    main()
