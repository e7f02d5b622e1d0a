# SPDX-License-Identifier: Apache-2.0
"""Makes the study's files from the predictions that ``run.py`` has kept, and ``shown.csv``, its tables.

    python docs/results/study/tables.py FOLDER [--only ist]   # values, differences, joining, floors, and the tables
    python docs/results/study/tables.py                       # shown.csv alone, from the files
    python docs/results/study/tables.py --differences FILE    # every paired difference as one CSV file

``values.csv`` and ``bootstrap.csv`` have a column per arm. A difference, its interval over seeds, Hedges' g, Holm's p
and the verdict follow from them and are computed when they are asked for. ``bootstrap.csv`` keeps what does not follow:
the interval over patients, how many of the ``FLIPS`` patterns of signs give at least this difference (p times
``FLIPS``), and "better" or "worse" where the intervals that hold for all sites together say so. ``splits.csv`` counts
patients over all seeds.

A difference is taken per seed, arm minus reference, on the same patients. Its two intervals are Student's t over seeds
and a bootstrap over seeds and test patients; "better" and "worse" need both on one side of zero. A draw of the
bootstrap resamples each site's patients once, for all seeds that test on them. Where each seed deals the same patients
out anew, Student's t is wider by the factor of ``widening``. Of the worst site, of the calibration error and of the
area under the curve, which are no means over patients, the bootstrap's interval must lie on one side of zero when it
is turned around the estimate, too.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import answers
import numpy as np
import plan

sys.path.append(str(Path(__file__).resolve().parents[1]))

from kept import SHOWN_TABLES, write_shown  # noqa: E402

from fairflare.core.seeds import derive  # noqa: E402
from fairflare.engine.setup import tasks  # noqa: E402
from fairflare.report.fairness import effect_size, hierarchical, holm, mean_ci, paired  # noqa: E402
from fairflare.report.fairness import verdict as paired_verdict  # noqa: E402
from fairflare.report.values import signed, text, with_interval  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGES = (ROOT / "STUDY.md", *sorted(HERE.glob("*.md")))
VALUES, DIFFERENCES, JOINING = HERE / "values.csv", HERE / "differences.csv", HERE / "joining.csv"
FLOORS = HERE / "floors.csv"
BOOTSTRAP, SPLITS = HERE / "bootstrap.csv", HERE / "splits.csv"
"""``DIFFERENCES`` is no file: ``read`` computes it from ``VALUES``, ``BOOTSTRAP`` and ``SPLITS``."""
OF_VALUES = ("task", "site", "seed", "n", "positives"), ("accuracy", "auc", "brier", "calibration")
OF_BOOTSTRAP = ("task", "versus", "over", "metric"), ("low", "high", "flips", "together")
"""Keys of a line of the file, and the figures of which each has a line with a column per arm."""
FLIPS = 2 ** len(plan.SEEDS)
HEADER = ["task", "arm", "versus", "over", "metric", "value", "sd", "mean", "low", "high", "patients_low"]
HEADER += ["patients_high", "p", "p_holm", "g", "verdict", "together"]
METRICS = {"accuracy": True, "auc": True, "brier": False, "calibration": False}
"""Name -> whether more is better; calibration is in the large, without its sign, see ``answers.excess``."""
WORDS = {"accuracy": "accuracy", "auc": "AUC", "brier": "Brier score", "calibration": "calibration error"}
RESAMPLES = 1000
"""Of the test patients."""
LEAST = 5
"""Test patients of either class that an area under the curve needs, with every seed."""
CHANCE = 250
"""Outcomes drawn per seed for ``floor``."""
LEVEL = 0.95
CANNOT = "cannot be told"
VERSUS = ("fedavg", "solo", "longer", "twice")
OVERALL = {"mean": "mean", "worst": "worst", "worst kind": "worst look's", "patients": "all patients'"}
"""Over sites, each counting the same; the worst of them; of kinds of sites; over patients."""
LINEAR = ("accuracy", "brier")
"""Metrics that are means over patients."""
Scored = dict[str, np.ndarray]
"""Metric -> (1 + RESAMPLES,): of the patients as they are, then of each resample."""
Rows = list[dict[str, str]]


def main() -> None:
    """Files, if a folder is given, and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", help="keys of tasks")
    parser.add_argument("--differences", type=Path, metavar="FILE", help="write every paired difference there")
    options = parser.parse_args()
    if options.differences:
        return write(options.differences, HEADER, [list(row.values()) for row in read(DIFFERENCES)])
    if options.folder:
        write_files(options.folder, options.only.split(",") if options.only else [study.key for study in plan.STUDIES])
    write_shown(HERE / SHOWN_TABLES, "\n".join(shown()))


def write_files(folder: Path, keys: Sequence[str]) -> None:
    """What the predictions of every task of ``keys`` say, in place of the task's old lines."""
    for study in (study for study in plan.STUDIES if study.key in keys):
        scored = {arm.key: found for arm in study.arms() if (found := of_arm(study, arm, folder))}
        if "solo" in scored and "fedavg" in scored:
            test, train = dealt(predictions(study, "fedavg", folder))
            differences, joining = compared(study, scored, 1.0 if study.natural else widening(test / train))
            replace(VALUES, study.key, values(study, scored))
            replace(BOOTSTRAP, study.key, not_computed(differences))
            replace(JOINING, study.key, joining)
            replace(SPLITS, study.key, [["task", "test", "train"], [study.key, test, train]])
            likely = "fedavg+intercept-train" if "fedavg+intercept-train" in scored else "fedavg"
            replace(FLOORS, study.key, floor(study, predictions(study, likely, folder)))


def predictions(study: plan.Study, arm: str, folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """Seed -> what ``run.py`` has kept of its test patients; {} unless every seed is there."""
    files = [folder / study.key / "predictions" / f"{arm}-seed{seed}.npz" for seed in plan.SEEDS]
    if not all(file.is_file() for file in files):
        return {}
    found = {}
    for seed, file in zip(plan.SEEDS, files):
        with np.load(file) as kept:
            found[seed] = dict(kept)
    return found


def sites_in(predicted: Mapping[str, np.ndarray]) -> list[str]:
    """The sites of one seed's predictions."""
    return list(dict.fromkeys(name.split("/")[0] for name in predicted))


def dealt(predicted: Mapping[int, Mapping[str, np.ndarray]]) -> tuple[int, int]:
    """Test patients and training patients, over all sites and seeds."""
    parts = [
        [one[f"{site}/test/y"].size, one[f"{site}/train/n"]] for one in predicted.values() for site in sites_in(one)
    ]
    test, train = np.sum(parts, axis=0)
    return int(test), int(train)


def widening(ratio: float) -> float:
    """Factor of Student's interval where J seeds deal the same patients out anew: sqrt(1 + J n_test / n_train).

    Such seeds share patients, so that their differences vary less than those of other patients would. Nadeau and
    Bengio, Machine Learning 52, 2003, section 3: the corrected resampled t-test.
    """
    return float(np.sqrt(1 + len(plan.SEEDS) * ratio))


def of_arm(study: plan.Study, arm: plan.Arm, folder: Path) -> dict[int, dict[str, dict[str, Any]]]:
    """Seed -> site -> what ``scores`` says; {} unless every seed is there."""
    predicted = predictions(study, arm.key, folder)
    found: dict[int, dict[str, dict[str, Any]]] = {seed: {} for seed in predicted}
    for site in sites_in(next(iter(predicted.values()), {})):
        counts = drawn(study, site, predicted)
        few = min(min(np.bincount(one[f"{site}/test/y"] > 0, minlength=2)) for one in predicted.values()) < LEAST
        for seed, one in predicted.items():
            found[seed][site] = scores(one[f"{site}/test/z"], one[f"{site}/test/y"], counts[seed], ranked=not few)
    return found


def drawn(study: plan.Study, site: str, predicted: Mapping[int, Mapping[str, np.ndarray]]) -> dict[int, np.ndarray]:
    """Seed -> (1 + RESAMPLES, n), how often each test patient of the site is there; first, each once.

    The same for all arms. A patient whom several seeds test on is there as often in the k-th resample of each, where
    it can be known again: by its place where all seeds have the same patients, by its row in the table elsewhere.
    """
    sizes = {seed: one[f"{site}/test/y"].size for seed, one in predicted.items()}
    if not study.known_again:
        rngs = {seed: np.random.default_rng(derive(seed, "study", study.key, site)) for seed in sizes}
        return {
            seed: with_all(rngs[seed].multinomial(n, np.full(n, 1 / n), size=RESAMPLES)) for seed, n in sizes.items()
        }
    rows = {seed: np.arange(n) if study.natural else predicted[seed][f"{site}/test/id"] for seed, n in sizes.items()}
    pool = np.unique(np.concatenate(list(rows.values())))
    rng = np.random.default_rng(derive(0, "study", study.key, site))
    times = rng.multinomial(len(pool), np.full(len(pool), 1 / len(pool)), size=RESAMPLES)
    return {seed: with_all(times[:, np.searchsorted(pool, of_seed)]) for seed, of_seed in rows.items()}


def with_all(counts: np.ndarray) -> np.ndarray:
    """Below a row in which each is there once."""
    return np.vstack([np.ones(counts.shape[1]), counts]).astype(np.float32)


def scores(z: np.ndarray, y: np.ndarray, counts: np.ndarray, ranked: bool = True) -> dict[str, Any]:
    """n, positives, the signed calibration and every metric, see ``Scored``.

    Args:
        z: outputs, see ``answers``.
        y: classes (n,).
        counts: (1 + RESAMPLES, n), see ``drawn``.
        ranked: whether there are patients enough of both classes for an area under the curve.
    """
    each = {
        "accuracy": answers.correct(z, y),
        "brier": answers.squared(z, y),
        "signed": answers.excess(z, y),
    }
    means = {name: (counts @ value.astype(np.float64)) / counts.sum(1) for name, value in each.items()}
    found = {"n": len(y), "positives": int((y > 0).sum()), "signed": float(means["signed"][0])}
    auc = areas(z, y > 0, counts) if z.ndim == 1 and ranked else np.full(len(counts), np.nan)
    return found | {
        "accuracy": means["accuracy"], "auc": auc, "brier": means["brier"], "calibration": np.abs(means["signed"])
    }  # fmt: skip


def floor(study: plan.Study, predicted: Mapping[int, Mapping[str, np.ndarray]]) -> list[list[Any]]:
    """The worst site's calibration error if every risk were right: chance alone, in test sets of these sizes."""
    rng, worst = np.random.default_rng(derive(0, "study", study.key, "floor")), []
    for one in predicted.values():
        of_sites = [chance(one[f"{site}/test/z"], rng) for site in sites_in(one)]
        worst += list(np.max(of_sites, axis=0))
    low, high = np.quantile(worst, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [["task", "mean", "low", "high"], [study.key, *map(figure, (float(np.mean(worst)), low, high))]]


def chance(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(CHANCE,) calibration errors of one site when outcomes are drawn from the risks themselves."""
    sure = answers.risk(z) if z.ndim == 1 else answers.shares(z).max(1)
    happened = rng.random((CHANCE, len(sure))) < sure
    return np.asarray(np.abs(sure.mean() - happened.mean(1)))


def areas(z: np.ndarray, positive: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """AUC of every row of ``counts``, how often each patient is there; equal scores count half, nan with one class."""
    order = np.argsort(z, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(z[order]) > 0])
    here, yes = counts[:, order].astype(np.float64), positive[order]
    ones = np.add.reduceat(here * yes, starts, axis=1)
    others = np.add.reduceat(here * ~yes, starts, axis=1)
    below = np.cumsum(others, axis=1) - others / 2
    pairs = ones.sum(1) * others.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (ones * below).sum(1) / pairs, np.nan)


def values(study: plan.Study, scored: Mapping[str, Any]) -> list[list[Any]]:
    """A line per arm, seed and site."""
    rows: list[list[Any]] = [
        ["task", "arm", "seed", "site", "n", "positives", "accuracy", "auc", "brier", "calibration"]
    ]
    for arm, seeds in scored.items():
        for seed, sites in seeds.items():
            for site, s in sites.items():
                known = [s["accuracy"][0], s["auc"][0], s["brier"][0], s["signed"]]
                rows.append([study.key, arm, seed, site, s["n"], s["positives"], *map(figure, known)])
    return rows


def compared(study: plan.Study, scored: Mapping[str, Any], wider: float) -> tuple[list[list[Any]], list[list[Any]]]:
    """Every paired difference and the lines of ``joining.csv``, each below a header."""
    sites = list(scored["solo"][plan.SEEDS[0]])
    rows: list[list[Any]] = [HEADER]
    counts = "gains cannot_be_told loses lower gains_together loses_together of"
    joining: list[list[Any]] = [["task", "arm", "metric", *counts.split()]]
    kind_of = kinds(study)
    for versus, over, metric in compared_quantities(study, scored):
        of_arms = {arm: quantity(found, over, metric, kind_of) for arm, found in scored.items()}
        of_all = 1 - (1 - LEVEL) / len(sites) if over in sites else None
        judge = Judge(metric, over, study.known_again, wider)
        told = {arm: judge(own, of_arms[versus], of_all) for arm, own in of_arms.items() if arm != versus}
        adjusted = holm({arm: one["p"] for arm, one in told.items()})
        for arm, one in told.items():
            own = np.array([found[0] for found in of_arms[arm].values()])
            known = [own.mean(), own.std(ddof=1), one["mean"], one["low"], one["high"]]
            patients = map(signed_end, (one["patients"]["low"], one["patients"]["high"]))
            tests, said = [one["p"], adjusted[arm], one["g"]], [one["verdict"], one["together"]]
            rows.append([study.key, arm, versus, over, metric, *map(figure, [*known, *patients, *tests]), *said])
    for arm in scored:
        for metric in study.metrics:
            own_rows = [r for r in rows if r[1] == arm and r[2] == "solo" and r[3] in sites and r[4] == metric]
            if own_rows:
                joining.append([study.key, arm, metric, *counted(own_rows, METRICS[metric]), len(own_rows)])
    return rows, joining


def counted(rows: Sequence[Sequence[Any]], higher: bool) -> list[int]:
    """Sites that gain, cannot tell, lose; those whose mean is on the losing side, whatever the intervals say; and those
    that gain and that lose by intervals that hold for all sites together."""
    verdicts, together = [row[-2] for row in rows], [row[-1] for row in rows]
    wrong = sum(bool(row[7]) and (float(row[7]) < 0 if higher else float(row[7]) > 0) for row in rows)
    told = [verdicts.count("better"), verdicts.count("cannot be told"), verdicts.count("worse")]
    return [*told, wrong, together.count("better"), together.count("worse")]


def kinds(study: plan.Study) -> dict[str, str]:
    """Site -> its kind."""
    return tasks.load(*study.task.split(":")).sites() if study.kinds else {}


def quantity(seeds: Mapping[int, Any], over: str, metric: str, kind_of: Mapping[str, str]) -> dict[int, np.ndarray]:
    """Seed -> (1 + RESAMPLES,) of a site, or over the sites where the metric is defined, see ``OVERALL``."""
    found = {}
    for seed, sites in seeds.items():
        if over in sites:
            found[seed] = sites[over][metric]
            continue
        defined = {site: s for site, s in sites.items() if np.isfinite(s[metric][0])}
        known, of = np.stack([s[metric] for s in defined.values()]), [kind_of.get(site, site) for site in defined]
        if over == "worst kind":
            known = np.stack([known[[kind == one for kind in of]].mean(axis=0) for one in dict.fromkeys(of)])
        if over.startswith("worst"):
            found[seed] = known.min(axis=0) if METRICS[metric] else known.max(axis=0)
        else:
            weights = [s["n"] if over == "patients" else 1 for s in defined.values()]
            found[seed] = np.average(known, axis=0, weights=weights)
    return found


class Judge:
    """Says of an arm and a reference whether they differ in one metric."""

    def __init__(self, metric: str, over: str, crossed: bool, wider: float) -> None:
        """
        Args:
            metric: see ``METRICS``.
            over: see ``OVERALL``, or a site.
            crossed: whether the k-th resample is the same for all seeds.
            wider: factor of Student's interval, see ``widening``.
        """
        self._higher, self._crossed, self._wider = METRICS[metric], crossed, wider
        self._linear = metric in LINEAR and not over.startswith("worst")

    def __call__(
        self, own: Mapping[int, np.ndarray], reference: Mapping[int, np.ndarray], of_all: float | None
    ) -> dict[str, Any]:
        """What ``paired`` says of the patients as they are, the bootstrap's interval, and what both say together.

        Args:
            own: of the arm, see ``quantity``.
            reference: of the reference.
            of_all: level of the intervals that hold for all sites together (Bonferroni); None: of no site.
        """
        differences = [float(own[seed][0] - reference[seed][0]) for seed in own]
        found = {**paired(differences), **over_seeds(differences, LEVEL, self._wider)}
        resampled = [{seed: list(one[seed][1:]) for seed in one} for one in (own, reference)]
        again = hierarchical(*resampled, crossed=self._crossed, level=LEVEL)
        said, together = self.said(found, again), ""
        if of_all:
            many = hierarchical(*resampled, crossed=self._crossed, level=of_all) if said != CANNOT else again
            together = self.said(over_seeds(differences, of_all, self._wider), many) if said != CANNOT else CANNOT
        return {**found, "patients": again, "verdict": said, "together": together}

    def said(self, found: Mapping[str, Any], again: Mapping[str, Any]) -> str:
        """The verdict by the interval over seeds and the bootstrap's."""
        turned = []
        if not self._linear and again["low"] is not None:
            turned = [{"low": 2 * found["mean"] - again["high"], "high": 2 * found["mean"] - again["low"]}]
        return verdict([found, again, *turned], self._higher)


def over_seeds(differences: Sequence[float], level: float, wider: float) -> dict[str, Any]:
    """Mean and Student's interval over seeds, ``wider`` times as wide."""
    found = dict(mean_ci(differences, level))
    if found["low"] is None or found["mean"] is None:
        return found
    half = (found["mean"] - found["low"]) * wider
    return {**found, "low": found["mean"] - half, "high": found["mean"] + half}


def verdict(intervals: Iterable[Mapping[str, Any]], higher: bool) -> str:
    """What all intervals say alike."""
    told = {paired_verdict(one, higher) for one in intervals}
    return told.pop() if len(told) == 1 else CANNOT


def figure(value: float | None) -> str:
    """As it stands in the files."""
    return "" if value is None or not np.isfinite(value) else f"{value:.6f}"


def not_computed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Of the lines of ``compared`` what ``differences`` cannot compute, below a header."""
    names = ("task", "arm", *OF_BOOTSTRAP[0][1:])
    found: list[list[Any]] = [[*names, *OF_BOOTSTRAP[1]]]
    for row in (dict(zip(rows[0], line)) for line in rows[1:]):
        flips = str(round(float(row["p"]) * FLIPS)) if row["p"] else ""
        together = row["together"] if row["together"] != CANNOT else ""
        found.append([*(row[name] for name in names), row["patients_low"], row["patients_high"], flips, together])
    return found


def signed_end(value: float | None) -> float | None:
    """An interval's end, moved to the nearest figure of its sign where it would be written as zero and is not."""
    return value if not value or abs(value) >= 1e-6 else float(np.copysign(1e-6, value))


def replace(path: Path, task: str, rows: Sequence[Sequence[Any]]) -> None:
    """``rows`` below their header, with the other tasks' old lines."""
    heads = list(rows[0])
    old = [[row.get(name, "") for name in heads] for row in LONG.get(path, plain)(path) if row["task"] != task]
    order = [study.key for study in plan.STUDIES]
    lines = sorted([*old, *rows[1:]], key=lambda row: order.index(row[0]))
    if path in SHAPES:
        heads, lines = by_arm([dict(zip(heads, map(str, line))) for line in lines], *SHAPES[path])
    write(path, heads, lines)


def write(path: Path, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(lines)


def by_arm(rows: Rows, keys: Sequence[str], figures: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and lines with a column per arm; a line per key and figure, none where no arm has the figure."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        for name in figures:
            lines.setdefault((*(row[key] for key in keys), name), {})[row["arm"]] = row[name]
    heads = [*keys, "figure", *arms]
    return heads, [[*key, *(found.get(arm, "") for arm in arms)] for key, found in lines.items() if any(found.values())]


def of_arms(path: Path) -> Rows:
    """The lines of a file that ``by_arm`` has shaped, one per arm again."""
    keys, figures = SHAPES[path]
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for line in plain(path):
        for arm in list(line)[len(keys) + 1 :]:
            if line[arm]:
                found.setdefault((*(line[key] for key in keys), arm), {})[line["figure"]] = line[arm]
    return [
        {**dict(zip(keys, key)), "arm": key[-1], **{name: one.get(name, "") for name in figures}}
        for key, one in found.items()
    ]


def plain(path: Path) -> Rows:
    """The lines of a file; none if it is not there."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def differences() -> Rows:
    """Every paired difference, computed from the files."""
    values, kept = of_arms(VALUES), of_arms(BOOTSTRAP)
    return [row for study in plan.STUDIES for row in differences_of(study, values, kept)]


def differences_of(study: plan.Study, values: Rows, kept: Rows) -> Rows:
    """Those of one task; ``p_holm`` is over the arms of a table."""
    scored, kind_of, sizes = scored_again(study, values), kinds(study), {row["task"]: row for row in plain(SPLITS)}
    if not scored:
        return []
    wider = 1.0 if study.natural else widening(int(sizes[study.key]["test"]) / int(sizes[study.key]["train"]))
    keys = ("arm", *OF_BOOTSTRAP[0][1:])
    by_key = {tuple(row[key] for key in keys): row for row in kept if row["task"] == study.key}
    rows = []
    for versus, over, metric in compared_quantities(study, scored):
        of_arms = {arm: quantity(found, over, metric, kind_of) for arm, found in scored.items()}
        seeds = {arm: np.array([found[0] for found in own.values()]) for arm, own in of_arms.items()}
        lines = {arm: by_key.get((arm, versus, over, metric), {}) for arm in scored if arm != versus}
        p_of = {arm: int(line["flips"]) / FLIPS if line.get("flips") else None for arm, line in lines.items()}
        adjusted, judge = holm(p_of), Judge(metric, over, study.known_again, wider)
        for arm, line in lines.items():
            taken = list(seeds[arm] - seeds[versus])
            found = over_seeds(taken, LEVEL, wider)
            again = {end: float(text) if (text := line.get(end)) else None for end in ("low", "high")}
            known = [seeds[arm].mean(), seeds[arm].std(ddof=1), found["mean"], found["low"], found["high"]]
            known += [again["low"], again["high"], p_of[arm], adjusted[arm], effect_size(taken)["g"]]
            together = line.get("together") or ("" if versus != "solo" or over in OVERALL else CANNOT)
            cells = [study.key, arm, versus, over, metric, *map(figure, known), judge.said(found, again), together]
            rows.append(dict(zip(HEADER, cells)))
    return rows


def compared_quantities(study: plan.Study, scored: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(reference, over, metric) of every table of differences."""
    sites = list(scored["solo"][plan.SEEDS[0]])
    overs = [over for over in OVERALL if over != "worst kind" or study.kinds]
    return [
        (versus, over, metric)
        for versus in VERSUS
        if versus in scored
        for over in (*overs, *(sites if versus == "solo" else ()))
        for metric in (LINEAR if over in ("patients", "worst kind") else study.metrics)
    ]


def scored_again(study: plan.Study, values: Rows) -> dict[str, dict[int, dict[str, Any]]]:
    """Arm -> seed -> site -> what ``scores`` said of the patients as they are."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in values:
        if row["task"] == study.key:
            known = {name: np.array([float(row[name] or "nan")]) for name in OF_VALUES[1]}
            site = {"n": int(row["n"]), **known, "calibration": np.abs(known["calibration"])}
            found.setdefault(row["arm"], {}).setdefault(int(row["seed"]), {})[row["site"]] = site
    return found


SHAPES = {VALUES: OF_VALUES, BOOTSTRAP: OF_BOOTSTRAP}
LONG = dict.fromkeys(SHAPES, of_arms)


def read(path: Path) -> Rows:
    """A line per arm and so on of a file, or of ``DIFFERENCES``; none if it is not there."""
    return differences() if path == DIFFERENCES else LONG.get(path, plain)(path)


def shown() -> list[str]:
    """Every table of every task, under its title."""
    files = {path: read(path) for path in (DIFFERENCES, JOINING, VALUES, FLOORS, HERE / "chosen.csv")}
    lines = []
    for study in plan.STUDIES:
        own = {path: [row for row in rows if row["task"] == study.key] for path, rows in files.items()}
        for make in (endpoints, joined, sites_of, chosen):
            lines += [f"## {study.key}: {make.__name__.removesuffix('_of')}", "", *make(study, own), ""]
    return lines


def endpoints(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """A line per arm: the primary endpoints with their differences from FedAvg and from solo."""
    secondary = [plan.Endpoint("auc", "mean"), plan.Endpoint("brier", "mean"), plan.Endpoint("brier", "patients")]
    secondary += [plan.Endpoint("calibration", "worst")]
    shown = [*study.primary, *[s for s in secondary if s not in study.primary and s.metric in study.metrics]]
    heads, chance_alone = ["arm"], ["Every risk right: chance alone (95 %)"]
    for one in shown:
        what = f"{OVERALL[one.over]} {WORDS[one.metric]}"
        wanted = ["minus FedAvg", "minus solo"] if one in study.primary else ["minus FedAvg"]
        heads += [f"**{what}**" if one in study.primary else what, *wanted]
        chance_alone += [least(rows[FLOORS]) if one.metric == "calibration" else "", *[""] * len(wanted)]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *([chance_alone] if rows[FLOORS] else [])]
    index = {(r["arm"], r["versus"], r["over"], r["metric"]): r for r in rows[DIFFERENCES]}
    for arm in study.arms():
        if not any(key[0] == arm.key for key in index):
            continue
        line = [arm.title]
        for one in shown:
            found = {versus: index.get((arm.key, versus, one.over, one.metric)) for versus in VERSUS[:2]}
            line.append(text(float(next(r for r in found.values() if r)["value"])))
            wanted = VERSUS[:2] if one in study.primary else VERSUS[:1]
            line += [told(found[versus]) for versus in wanted]
        lines.append(line)
    return [f"| {' | '.join(line)} |" for line in lines]


def least(rows: Rows) -> str:
    """A task's line of ``floors.csv``; nothing where it has none."""
    if not rows:
        return ""
    mean, low, high = (text(float(rows[0][key])) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def told(row: Mapping[str, str] | None) -> str:
    """A difference with its t-interval over seeds and its interval over patients, marked where both exclude zero."""
    if row is None:
        return ""
    mark = {"better": " +", "worse": " −"}.get(row["verdict"], "")
    over_seeds = with_interval({key: float(row[key]) for key in ("mean", "low", "high")})
    return f"{over_seeds} ({signed(float(row['patients_low']))}, {signed(float(row['patients_high']))}){mark}"


def joined(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """A line per arm: how many sites gain and lose against solo."""
    found = {(row["arm"], row["metric"]): row for row in rows[JOINING]}
    if not found:
        return [NOT_RUN]
    many = next(iter(found.values()))["of"]
    heads = [f"of {many} sites, against solo", *(WORDS[metric] for metric in study.metrics)]
    lines = [heads, ["---", *["--:"] * len(study.metrics)]]
    for arm in study.arms():
        cells = [found.get((arm.key, metric)) for metric in study.metrics]
        if any(cells):
            lines.append([arm.title, *(of_sites(cell) if cell else "" for cell in cells)])
    return [f"| {' | '.join(line)} |" for line in lines]


def of_sites(row: Mapping[str, str]) -> str:
    """Gain / cannot be told / lose (gain, lose by intervals for all sites together; means on the losing side)."""
    together = f"{row['gains_together']}, {row['loses_together']}"
    return f"{row['gains']} / {row['cannot_be_told']} / {row['loses']} ({together}; {row['lower']})"


NOT_RUN = "Not run."


def sites_of(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """A line per site: the benefit metric alone, and the benefit of joining under some arms."""
    of_benefit = [row for row in rows[DIFFERENCES] if row["versus"] == "solo" and row["metric"] == study.benefit]
    index = {(row["arm"], row["over"]): row for row in of_benefit}
    alone = [row for row in rows[VALUES] if row["arm"] == "solo"]
    if not alone:
        return [NOT_RUN]
    shown = [arm for arm in study.arms() if arm.key in study.shown and (arm.key, alone[0]["site"]) in index]
    heads = ["site", "test patients", f"{WORDS[study.benefit]} alone", *[arm.title for arm in shown]]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for site in dict.fromkeys(row["site"] for row in alone):
        own = [row for row in alone if row["site"] == site]
        sizes = sorted({int(row["n"]) for row in own})
        size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        mean = text(float(np.mean([float(row[study.benefit]) for row in own])))
        lines.append([site, size, mean, *[told_by_patients(index[arm.key, site]) for arm in shown]])
    return [f"| {' | '.join(line)} |" for line in lines]


def told_by_patients(row: Mapping[str, str]) -> str:
    """A site's difference with its interval over patients and seeds."""
    mark = {"better": " +", "worse": " −"}.get(row["verdict"], "")
    between = {"mean": float(row["mean"]), "low": float(row["patients_low"]), "high": float(row["patients_high"])}
    return f"{with_interval(between)}{mark}"


def chosen(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """What each arm was run with."""
    picked = [row for row in rows[HERE / "chosen.csv"] if row["chosen"] == "True"]
    titles = {arm.key: arm.title for arm in study.arms()}
    return ["| arm | run as |", "| --- | --- |", *[f"| {titles[r['arm']]} | `{r['candidate']}` |" for r in picked]]


if __name__ == "__main__":
    main()
