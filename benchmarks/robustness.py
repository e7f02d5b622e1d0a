# SPDX-License-Identifier: Apache-2.0
"""What do one and two lying sites of eight cost the honest ones, by attack, method and level of ``robust``?

    nice python benchmarks/robustness.py [--seeds 5] [--liars 1,2] [--methods fedavg,moon]
        # goes on with what docs/benchmarks/robustness.csv lacks, then writes the tables of docs/robustness.md
    python benchmarks/robustness.py --tables    # these alone
    nice python benchmarks/robustness.py --honest [--seeds 8]    # nobody lies, on the house's other tasks
    python benchmarks/robustness.py --named [--first-seed 5]    # whose numbers reports call unlike the others'

Endpoint, written before the measurement (level "bounded", the default; every method of METHODS, every attack of
JUDGED): the mean over five seeds of the AUC that honest sites lose is at most .03 with one liar and .06 with two;
where nobody lies, the mean AUC of the eight sites is at most .004 below that of ``robust=off``; and the report names an
honest site in at most 1 % of the honest runs. AUC lost is against the run of the same seed with ``robust=off`` and
without liars, on the same sites.

Liars know all honest updates of the round and act together. All but those of "label flip" and "mimic" also say of
themselves what wins the method's weight. AUC is the mean over honest sites of the final model's on their test patients
(where sites have own models or layers, of these); weight is the largest share of one liar in a round, from the log.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from fairflare.aggregators.bounded import FAR, FAR_COSINE
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.robust import LEAST, slope_of, spread_of
from fairflare.report.audit_reader import read_trail
from fairflare.report.numbers import unlike

ROOT = Path(__file__).resolve().parents[1]
CSV, PAGE = ROOT / "docs" / "benchmarks" / "robustness.csv", ROOT / "docs" / "robustness.md"
HONEST_CSV = CSV.with_name("robustness_honest.csv")
HONEST_COLUMNS = ("task", "seed", "method", "level", "metric", "mean", "worst", "named", "code")
MEASURES = ("auc", "dice", "balanced_accuracy")
"""Of these the first that all sites have; of survival the C-index, of the sites that have one."""
KEY = ("task", "seed", "liars", "attack", "method", "level")
COLUMNS = (*KEY, "auc", "weight", "worst", "named", "wrongly", "code")
"""worst: of the honest sites' AUC; named: liars, and wrongly: honest sites, that the report names; code: the commit."""
METHODS = ("fedism-plus", "fedlwr", "fedheal", "fedce", "fedufo", "fedavg")
METHODS += ("fedism", "qffl", "fedprox", "fedadam", "fedavgm", "moon", "ditto", "fedper", "fedrep", "scaffold")
METHODS += ("median", "trimmed-mean", "multi-krum")
SETTINGS = {"scaffold": {"estimate": "gradient"}}
"""Method -> settings without which it does not run on this task (trained with Adam)."""
HONEST = {
    "tcga-brca": (5, 15, ("fedavg", "fedadam", "scaffold")),
    "heart": (15, 5, ("fedavg", "fedadam", "fedprox")),
    "covid-brazil:regions": (20, 3, ("fedavg", "fedufo")),
    "heart:full": (20, 8, (*METHODS[:8], "multi-krum")),
    "support2": (8, 5, (*METHODS[:8], "multi-krum")),
    "ist:countries": (5, 5, (*METHODS[:8], "multi-krum")),
    "digits:small": (20, 1, ("fedavg", "fedheal", "moon")),
    "brain-seg:small": (12, 1, ("fedavg", "fedlwr", "fedce")),
    "ich-phantom:small": (4, 2, ("fedavg", "fedism-plus", "multi-krum")),
}
"""Task -> rounds, seeds and methods of the runs where nobody lies; the first three as their published tables have them.
"""
MIXED = (*METHODS[:6], *METHODS[-3:])
"""Those that were measured with "mixed", too."""
TELLING = ("fedism-plus", "fedlwr", "fedce", "fedufo")
"""Those whose sites say numbers of themselves, which weigh them."""
WITHIN = "within"
"""As "sideways", with lies that are not far: sharpness times 2.9, losses times 1.5, half the similarity."""
AS_LARGE = "none (turned roles)"
"""In place of an attack: an honest run without its largest sites."""
Attack = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
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


def times(factor: float) -> Attack:
    """Its own update, so many times as long."""
    return lambda honest, own: factor * own


def min_max(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """mean - gamma mean / ||mean||, gamma the largest with which it is no further from any honest update than the two
    furthest of these are from each other (Shejwalkar & Houmandsadr, NDSS 2021)."""
    mean, most = honest.mean(0), torch.pdist(honest).max()
    away, low, high = mean / mean.norm(), 0.0, 10 * float(most)
    for _ in range(50):
        middle = (low + high) / 2
        fits = bool((honest - (mean - middle * away)).norm(dim=1).max() <= most)
        low, high = (middle, high) if fits else (low, middle)
    return mean - low * away


def adaptive(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Against the honest mean direction, as long as an update of a usual opposed site may be without being clipped."""
    mean = honest.mean(0)
    return -mean / mean.norm() * honest.norm(dim=1).median() * 0.99


def sideways(honest: torch.Tensor, own: torch.Tensor, depth: float = 0.5) -> torch.Tensor:
    """Against the honest mean direction by ``depth`` of what stands out in this round, and as long as is never clipped.

    Up to a depth of a half it costs no weight.
    """
    others = 8 - 1
    liars = 8 - len(honest)
    units = honest / honest.norm(dim=1, keepdim=True)
    mean = units.mean(0)
    drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(1), dtype=own.dtype)
    aside = drawn - (drawn @ mean) / (mean @ mean) * mean

    def made(against: float) -> torch.Tensor:
        return -against * mean / mean.norm() + (1 - against**2) ** 0.5 * aside / aside.norm()

    def stands_out(against: float) -> bool:
        every = torch.cat([units, made(against).expand(liars, -1)])
        cosines = ((every @ every.T).sum(1) - 1) / others
        centre = cosines.median() if len(cosines) % 2 else cosines.sort().values[3:5].mean()
        scale = max(FAR * spread_of((cosines - centre).tolist()), FAR_COSINE)
        return bool(cosines[-1] < centre - 0.99 * depth * scale)

    low, high = -0.99, 0.99
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if stands_out(middle) else (middle, high)
    return made(low) * honest.norm(dim=1).median() * LEAST * 0.99


def noise(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Normal, of five times its own update's norm."""
    drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(1), dtype=own.dtype)
    return drawn * (5 * own.norm() / drawn.norm())


def flipped(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return -own


def as_trained(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return own


def further(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Further than ``sideways``, and heard less."""
    return sideways(honest, own, 0.75)


def furthest(honest: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """As far as does not stand out in a single round."""
    return sideways(honest, own, 1.0)


NUMBERS, TURNED, LARGEST, FURTHER, LATE = (
    "numbers",
    "turned roles",
    "largest sideways",
    "largest further",
    "largest late",
)
"""Attacks of sites that lie in their numbers alone; of the largest sites in place of the last, as "lie"; and of these,
as "within", the same further against the others, and furthest after an honest round."""
SHORT, IN_TURNS = "largest short", "largest in turns"
"""Of the largest, too: half as long as "largest sideways", and the same in every second round with honest rounds
between: both leave the shared model nearer to what sites had last, which MOON's rule looks at."""
BY_LARGEST = (TURNED, LARGEST, FURTHER, LATE, SHORT, IN_TURNS)
ATTACKS: dict[str, Attack] = {
    "none": as_trained,
    "lie": flipped,
    "times -5": times(-5),
    "times -10": times(-10),
    "times -90": times(-90),
    "min-max": min_max,
    NUMBERS: as_trained,
    TURNED: flipped,
    LARGEST: sideways,
    FURTHER: further,
    LATE: furthest,
    SHORT: lambda honest, own: sideways(honest, own) / 2,
    IN_TURNS: sideways,
    "adaptive": adaptive,
    "sideways": sideways,
    WITHIN: sideways,
    "inner product": inner_product,
    "alie": alie,
    "sign flip": sign_flip,
    "label flip": as_trained,
    "mimic": mimic,
    "noise": noise,
}
JUDGED = (
    "times -5",
    "times -10",
    "times -90",
    "min-max",
    "alie",
    "mimic",
    "label flip",
    NUMBERS,
    TURNED,
    LARGEST,
    FURTHER,
    LATE,
    "adaptive",
)
JUDGED += ("sideways", WITHIN)
"""Sign flip with scaling, min-max, ALIE, mimic, label flip, lies in numbers, turned roles, and six attacks that know
the bounds."""
OWN = {"moon": (SHORT, IN_TURNS)}
"""Method -> attacks that know what it does under bounds, beside ``JUDGED``."""


COSTLY = ((2, FURTHER), (2, LARGEST), (1, "adaptive"), (1, TURNED))
"""Liars and attacks that cost most methods most: with every seed, before the others."""
KNOWING = ("adaptive", "sideways", WITHIN, *BY_LARGEST[1:])
"""Attacks whose updates are as long as the bounds allow at the liar's number of examples."""


class Hostile(InProcess):
    """Sites of which the last ones answer to "train" together, when all others have."""

    def __init__(self, sites, liars: int, attack: str) -> None:
        super().__init__(sites)
        self.liars, self.attack, self._flipped = sorted(sites)[len(sites) - liars :], attack, set()
        self._trained = 0

    def exchange(self, instructions) -> Iterator:
        for site in self.members():
            site.trivial = lambda data: {}
            flips = self.attack == "label flip" and site.name in self.liars and site.name not in self._flipped
            if flips and site.data:
                train = site.data.splits["train"]
                site.data.splits["train"] = dataclasses.replace(train, targets=1 - train.targets)
                self._flipped.add(site.name)
        answers = list(super().exchange(instructions))
        if self.attack in ("none", "label flip"):
            yield from answers
            return
        training = [a for a in answers if a.update]
        if self.attack in BY_LARGEST and training:
            largest = sorted(training, key=lambda answer: (answer.n_examples, answer.site))
            self.liars = [answer.site for answer in largest[len(largest) - len(self.liars) :]]
        self._trained += bool(training)
        if (self.attack == LATE and self._trained < 2) or (self.attack == IN_TURNS and self._trained % 2 == 0):
            yield from answers
            return
        keys = sorted(training[0].update) if training else []
        updates = {a.site: torch.cat([a.update[key].double().reshape(-1) for key in keys]) for a in training}
        honest = [u for site, u in updates.items() if site not in self.liars]
        sizes = torch.tensor([float(a.n_examples) for a in training if a.site not in self.liars]).double()
        slope = slope_of(sizes.log().numpy(), torch.stack(honest).norm(dim=1).log().numpy()) if honest else 0.0
        for answer in answers:
            if answer.site in self.liars:
                if self.attack != "mimic":
                    lies = _lied_little if self.attack in (WITHIN, *BY_LARGEST[1:]) else _lied
                    answer = dataclasses.replace(answer, scalars=lies(answer.scalars))
                if answer.update:
                    made = ATTACKS.get(self.attack, as_trained)(torch.stack(honest), updates[answer.site])
                    if self.attack in KNOWING:
                        made = made * (answer.n_examples / float(sizes.median())) ** slope
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


def _lied_little(scalars):
    times = {"sharpness": 2.9, "loss": 1.5, "group_loss": 1.5, "similarity": 0.5}
    return {name: value * times.get(name.split("/")[0], 1.0) for name, value in scalars.items()}


def _split(vector: torch.Tensor, like, keys: Sequence[str]):
    parts = vector.split([like[key].numel() for key in keys])
    return {key: part.view_as(like[key]).to(like[key].dtype) for key, part in zip(keys, parts)}


def log_of(
    task: str, method: str, attack: str, level: str, liars: int, seed: int, values
) -> tuple[list[dict], list[str]]:
    """The audit log of one run, and who lied."""
    config = make_config(
        method, task, seed=seed, rounds=5, values={**SETTINGS.get(method, {}), **values, "robust": level}
    )
    with tempfile.TemporaryDirectory() as where:
        folder, parts = Path(where), build_parts(config)
        with LocalSites(config, folder, parts) as sites:
            hostile = Hostile({site.name: site for site in sites.transport.members()}, liars, attack)
            sites.transport = hostile
            run_local(config, folder, parts=parts, sites=sites)
        return list(verify(folder / "audit.jsonl")), hostile.liars


def measured(task: str, method: str, attack: str, level: str, liars: int, seed: int, values) -> list[tuple]:
    """Rows of liars, attack, and what COLUMNS say beside the key.

    An honest run has rows for the sites that would be left out with one and two liars, the last and the largest.
    """
    log, lying = log_of(task, method, attack, level, liars, seed, values)
    found = next(entry for entry in log if entry["event"] == "evaluation")["sites"]
    aucs = {site: of.get("personal", of)["test"]["auc"] for site, of in found.items()}
    called = {row["site"] for row in unlike(read_trail(log))}
    sizes = {site: of["n_examples"] for e in log if e["event"] == "round" for site, of in e["accepted"].items()}
    cases = [(liars, attack, lying)]
    if attack == "none":
        orders = {"none": sorted(sizes), AS_LARGE: sorted(sizes, key=lambda site: (sizes[site], site))}
        cases += [(n, name, order[-n:]) for name, order in orders.items() for n in (1, 2)]
    rows = []
    for count, name, left in cases:
        weights = [e["weights"].get(site, 0.0) for e in log if e["event"] == "round" for site in left]
        honest = [auc for site, auc in aucs.items() if site not in left]
        told = (f"{statistics.mean(honest):.4f}", f"{max(weights, default=0.0):.4f}", f"{min(honest):.4f}")
        rows.append((count, name, *told, len(called & set(lying)), len(called - set(lying))))
    return rows


def named(task: str, seeds: Sequence[int], liars: Sequence[int]) -> Iterator[str]:
    """For each method whose sites tell numbers: liars and honest sites that the report names, of how many."""
    yield "| method | attack | liars | liars named | honest sites named |"
    yield "|---|---|---|---|---|"
    for method, (attack, count) in product(TELLING, [("none", 0), *product(("lie", NUMBERS), liars)]):
        right, wrong, sites = 0, 0, 0
        for seed in seeds:
            log, lying = log_of(task, method, attack, "off", count, seed, {})
            names = next(entry for entry in log if entry["event"] == "evaluation")["sites"]
            found = {row["site"] for row in unlike(read_trail(log))}
            right += len(found & set(lying))
            wrong += len(found - set(lying))
            sites += len(names) - count
        yield f"| {method} | {attack} | {count} | {right} of {count * len(seeds)} | {wrong} of {sites} |"


def wanted(seeds: Sequence[int], liars: Sequence[int]) -> Iterator[tuple[int, int, str, str, str]]:
    """Seed, liars, attack, method, level: what the endpoint judges comes first, the papers' methods before others.

    Honest runs and the costliest attacks come with all seeds; then a seed whole before the next.
    """
    groups = (METHODS[:6], METHODS[6:])
    for methods, seed in product(groups, seeds):
        yield from ((seed, 0, "none", *of) for of in product(methods, ("off", "bounded")))
        yield from ((seed, *of, method, "bounded") for of, method in product(COSTLY, methods) if of[0] in liars)
        for count, method in product(liars, methods):
            yield from ((seed, count, attack, method, "bounded") for attack in OWN.get(method, ()))
    for seed, methods in product(seeds, groups):
        yield from ((seed, *of, "bounded") for of in product(liars, JUDGED, methods) if of[:2] not in COSTLY)
    yield from ((seed, 0, "none", method, "mixed") for seed, method in product(seeds, MIXED))
    for seed, count, attack, method in product(seeds, liars, [one for one in ATTACKS if one != "none"], MIXED):
        if attack not in (NUMBERS, *BY_LARGEST):
            yield from ((seed, count, attack, method, level) for level in ("off", "mixed"))


def honest_runs(path: Path, seeds: Sequence[int]) -> None:
    """Add to ``path`` what honest runs reach with and without the default's bounds, on every task of ``HONEST``."""
    have, code = {tuple(row.values())[:4] for row in stored(path)}, commit()
    for task, (rounds, most, methods) in HONEST.items():
        every = product([seed for seed in seeds if seed < most], methods, ("off", "bounded"))
        todo = [(seed, *of) for seed, *of in every if (task, str(seed), *of) not in have]
        for seed, method, level in todo:
            _honest_run(path, code, task, rounds, seed, method, level)


def _honest_run(path: Path, code: str, task: str, rounds: int, seed: int, method: str, level: str) -> None:
    values = {**(SETTINGS.get(method, {}) if task != "tcga-brca" else {}), "robust": level}
    config = make_config(method, task, seed=seed, rounds=rounds, values=values)
    with tempfile.TemporaryDirectory() as where:
        run_local(config, Path(where))
        log = list(verify(Path(where) / "audit.jsonl"))
    sites = [of["test"] for of in next(entry for entry in log if entry["event"] == "evaluation")["sites"].values()]
    metric = next((one for one in MEASURES if all(one in of for of in sites)), "harrell_c")
    found = [of[metric] for of in sites if metric in of]
    named = len({row["site"] for row in unlike(read_trail(log))})
    row = (task, seed, method, level, metric, f"{statistics.mean(found):.4f}", f"{min(found):.4f}", named, code)
    print(*row, flush=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([HONEST_COLUMNS, row] if new else [row])


def stored(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def commit() -> str:
    return subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], text=True).strip()


def fill(
    path: Path, task: str, seeds: Sequence[int], liars: Sequence[int], methods: Sequence[str], values, most: int = 10**6
) -> None:
    """Run what ``path`` lacks, one after the other, and add each to it."""
    have, code = {tuple(row[key] for key in KEY) for row in stored(path)}, commit()
    every = (one for one in wanted(seeds, liars) if one[3] in methods)
    todo = [one for one in every if (task, *map(str, one)) not in have]
    for seed, count, attack, method, level in todo[:most]:
        found = measured(task, method, attack, level, count, seed, values)
        rows = [(task, seed, left, name, method, level, *told, code) for left, name, *told in found]
        print(*rows, sep="\n", flush=True)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([COLUMNS, *rows] if new else rows)


def lost(rows: Sequence[dict[str, str]]) -> dict[tuple[str, str, str, int], list[float]]:
    """(level, attack, method, liars) -> AUC that the same sites lose against the honest run without bounds, by seed."""
    honest = {AS_LARGE: TURNED}
    base = {
        (honest.get(r["attack"], ""), r["method"], r["seed"], r["liars"]): float(r["auc"])
        for r in rows
        if r["level"] == "off" and r["attack"] in ("none", AS_LARGE)
    }
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for row in [one for one in rows if one["attack"] != AS_LARGE]:
        kind = TURNED if row["attack"] in BY_LARGEST else ""
        if (like := base.get((kind, row["method"], row["seed"], row["liars"]))) is not None:
            key = row["level"], row["attack"], row["method"], int(row["liars"])
            found.setdefault(key, []).append(like - float(row["auc"]))
    return found


def table(rows: Sequence[dict[str, str]], level: str) -> Iterator[str]:
    """For each method what honest sites lose: the mean over seeds, of the attack that costs most.

    Methods of which no attack was measured are left out.
    """
    found = lost(rows)
    yield "| method | seeds | nobody lies | one liar | attack | attacks | two liars | attack | attacks |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for method in METHODS:
        honest = found.get((level, "none", method, 0))
        cells: list[str] = []
        for count in (1, 2):
            of = {
                attack: values
                for attack in (*JUDGED, *OWN.get(method, ()))
                if (values := found.get((level, attack, method, count)))
            }
            attack = max(of, key=lambda one: statistics.mean(of[one]), default="-")
            cells += [f"{statistics.mean(of[attack]):.3f}" if of else "-", attack, str(len(of))]
        if honest and cells[1::3] != ["-", "-"]:
            yield f"| {method} | {len(honest)} | {statistics.mean(honest):.3f} | {' | '.join(cells)} |"


def honest_table(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """For each task the methods whose mean over seeds changes most either way, and the runs that name a site."""
    yield "| task | rounds | methods | seeds | lowest change | highest change | runs | that name a site |"
    yield "|---|---|---|---|---|---|---|---|"
    for task, (rounds, *_) in HONEST.items():
        of = {(r["method"], r["level"], r["seed"]): r for r in rows if r["task"] == task}
        changes: dict[str, list[float]] = {}
        for method, level, seed in of:
            if level == "bounded" and (off := of.get((method, "off", seed))):
                changes.setdefault(method, []).append(float(of[method, level, seed]["mean"]) - float(off["mean"]))
        if changes:
            means = sorted((statistics.mean(values), method) for method, values in changes.items())
            ends = " | ".join(f"{change:+.4f} ({method})" for change, method in (means[0], means[-1]))
            seeds = dict.fromkeys(sorted(len(values) for values in changes.values()))
            runs = [int(row["named"]) for (_, level, _), row in of.items() if level == "bounded"]
            span = " to ".join(map(str, [*seeds][:: max(len(seeds) - 1, 1)]))
            counts = f"{len(runs)} | {sum(map(bool, runs))}"
            yield f"| `{task}` | {rounds} | {len(means)} | {span} | {ends} | {counts} |"


def with_tables(text: str) -> str:
    """The page with the tables of what is stored, between their marks."""
    tables = {"bounded": table(stored(CSV), "bounded"), "honest": honest_table(stored(HONEST_CSV))}
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, _, rest = text.partition(begin)
        text = head + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="support2:dirichlet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--liars", default="1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--toy", action="store_true")
    asked = parser.parse_args()
    liars = [int(one) for one in asked.liars.split(",")]
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.named:
        for line in named(asked.task, seeds, liars):
            print(line, flush=True)
        return
    if asked.honest:
        honest_runs(HONEST_CSV, seeds)
    if asked.toy:
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / "toy.csv"
            fill(path, asked.task, [0], (1,), METHODS, {"n_sites": 4, "batch_size": 512}, most=2)
        return
    if not (asked.tables or asked.honest):
        fill(CSV, asked.task, seeds, liars, asked.methods.split(","), {})
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
