# SPDX-License-Identifier: Apache-2.0
"""Makes the study's files from the predictions that ``run.py`` has kept, and its tables in STUDY.md.

    python docs/results/study/tables.py FOLDER     # values.csv, differences.csv, joining.csv and the tables
    python docs/results/study/tables.py            # the tables alone, from the files

A difference is taken per seed, arm minus reference, on the same patients. Its two intervals are Student's t over seeds
and a bootstrap over seeds and test patients; "better" and "worse" need both on one side of zero. Where splits are
natural all seeds have the same test patients, and a draw of the bootstrap resamples these once for all of its seeds.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import answers
import numpy as np
import plan

from fairflare.core.seeds import derive
from fairflare.report.paired import hierarchical, holm, paired
from fairflare.report.values import signed, text, with_interval

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "STUDY.md"
VALUES, DIFFERENCES, JOINING = HERE / "values.csv", HERE / "differences.csv", HERE / "joining.csv"
METRICS = {"accuracy": True, "auc": True, "brier": False, "calibration": False}
"""Name -> whether more is better; calibration is in the large, without its sign, see ``answers.excess``."""
WORDS = {"accuracy": "accuracy", "auc": "AUC", "brier": "Brier score", "calibration": "calibration error"}
RESAMPLES = 1000
"""Of the test patients."""
VERSUS = ("fedavg", "solo")
BLOCK = re.compile(r"(<!-- study: (?P<kind>[a-z]+) (?P<task>[\w-]+) -->\n)(.*?)(<!-- end of study -->)", re.S)
Scored = dict[str, np.ndarray]
"""Metric -> (1 + RESAMPLES,): of the patients as they are, then of each resample."""
Rows = list[dict[str, str]]


def main() -> None:
    """Files, if a folder is given, and tables."""
    if len(sys.argv) > 1:
        write_files(Path(sys.argv[1]))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def write_files(folder: Path) -> None:
    """What the predictions of every task say, in place of the task's old lines."""
    for study in plan.STUDIES:
        scored = {arm.key: found for arm in study.arms() if (found := of_arm(study, arm, folder))}
        if "solo" in scored and "fedavg" in scored:
            differences, joining = compared(study, scored)
            replace(VALUES, study.key, values(study, scored))
            replace(DIFFERENCES, study.key, differences)
            replace(JOINING, study.key, joining)


def of_arm(study: plan.Study, arm: plan.Arm, folder: Path) -> dict[int, dict[str, dict[str, Any]]]:
    """Seed -> site -> what ``scores`` says; {} unless every seed is there."""
    files = [folder / study.key / "predictions" / f"{arm.key}-seed{seed}.npz" for seed in plan.SEEDS]
    if not all(file.is_file() for file in files):
        return {}
    found = {}
    for seed, file in zip(plan.SEEDS, files):
        with np.load(file) as kept:
            sites = dict.fromkeys(name.split("/")[0] for name in kept.files)
            found[seed] = {
                site: scores(kept[f"{site}/test/z"], kept[f"{site}/test/y"], drawn(study, seed, site)) for site in sites
            }
    return found


def drawn(study: plan.Study, seed: int, site: str) -> np.random.Generator:
    """Whose patients a resample takes: the same for all arms, and for all seeds where these have the same patients."""
    return np.random.default_rng(derive(0 if study.natural else seed, "study", study.key, site))


def scores(z: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """n, positives, the signed calibration and every metric, see ``Scored``."""
    n = len(y)
    counts = np.vstack([np.ones(n), rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)]).astype(np.float32)
    each = {
        "accuracy": answers.correct(z, y),
        "brier": answers.squared(z, y),
        "signed": answers.excess(z, y),
    }
    means = {name: (counts @ value.astype(np.float64)) / n for name, value in each.items()}
    found = {"n": n, "positives": int((y > 0).sum()), "signed": float(means["signed"][0])}
    auc = areas(z, y > 0, counts) if z.ndim == 1 else np.full(1 + RESAMPLES, np.nan)
    return found | {
        "accuracy": means["accuracy"], "auc": auc, "brier": means["brier"], "calibration": np.abs(means["signed"])
    }  # fmt: skip


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


def compared(study: plan.Study, scored: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Lines of ``differences.csv`` and of ``joining.csv``, each below a header."""
    sites = list(scored["solo"][plan.SEEDS[0]])
    header = "task arm versus over metric value sd mean low high patients_low patients_high p p_holm g verdict"
    rows: list[list[Any]] = [header.split()]
    joining: list[list[Any]] = [["task", "arm", "metric", "gains", "cannot_be_told", "loses", "lower", "of"]]
    quantities = {
        (over, metric): {arm: quantity(found, over, metric) for arm, found in scored.items()}
        for over in ("mean", "worst", *sites)
        for metric in study.metrics
    }
    for versus in VERSUS:
        for (over, metric), of_arms in quantities.items():
            if over in sites and versus != "solo":
                continue
            told = {
                arm: difference(own, of_arms[versus], metric, study.natural)
                for arm, own in of_arms.items()
                if arm != versus
            }
            adjusted = holm({arm: one["p"] for arm, one in told.items()})
            for arm, one in told.items():
                own = np.array([found[0] for found in of_arms[arm].values()])
                known = [own.mean(), own.std(ddof=1), one["mean"], one["low"], one["high"]]
                known += [one["patients"]["low"], one["patients"]["high"], one["p"], adjusted[arm], one["g"]]
                rows.append([study.key, arm, versus, over, metric, *map(figure, known), one["verdict"]])
    for arm in scored:
        for metric in study.metrics:
            own_rows = [r for r in rows if r[1] == arm and r[2] == "solo" and r[3] in sites and r[4] == metric]
            if own_rows:
                joining.append([study.key, arm, metric, *counted(own_rows, METRICS[metric]), len(own_rows)])
    return rows, joining


def counted(rows: Sequence[Sequence[Any]], higher: bool) -> list[int]:
    """Sites that gain, cannot tell, lose; and those whose mean is on the losing side, whatever the intervals say."""
    verdicts = [row[-1] for row in rows]
    wrong = sum(bool(row[7]) and (float(row[7]) < 0 if higher else float(row[7]) > 0) for row in rows)
    return [verdicts.count("better"), verdicts.count("cannot be told"), verdicts.count("worse"), wrong]


def quantity(seeds: Mapping[int, Any], over: str, metric: str) -> dict[int, np.ndarray]:
    """Seed -> (1 + RESAMPLES,) of a site, or of mean or worst over sites where the metric is defined as it is."""
    found = {}
    for seed, sites in seeds.items():
        if over in sites:
            found[seed] = sites[over][metric]
            continue
        known = np.stack([s[metric] for s in sites.values() if np.isfinite(s[metric][0])])
        worst = known.min(axis=0) if METRICS[metric] else known.max(axis=0)
        found[seed] = known.mean(axis=0) if over == "mean" else worst
    return found


def difference(
    own: Mapping[int, np.ndarray], reference: Mapping[int, np.ndarray], metric: str, natural: bool
) -> dict[str, Any]:
    """What ``paired`` says of the patients as they are, the bootstrap's interval, and what both say together."""
    found = paired([float(own[seed][0] - reference[seed][0]) for seed in own])
    resampled = [{seed: list(one[seed][1:]) for seed in one} for one in (own, reference)]
    again = hierarchical(*resampled, crossed=natural)
    return {**found, "patients": again, "verdict": verdict([found, again], METRICS[metric])}


def verdict(intervals: Iterable[Mapping[str, Any]], higher: bool) -> str:
    """By both intervals."""
    sides = {
        0 if one["low"] is None or one["low"] <= 0 <= one["high"] else (1 if one["low"] > 0 else -1)
        for one in intervals
    }
    if len(sides) > 1 or 0 in sides:
        return "cannot be told"
    return "better" if (sides == {1}) == higher else "worse"


def figure(value: float | None) -> str:
    """As it stands in the files."""
    return "" if value is None or not np.isfinite(value) else f"{value:.6f}"


def replace(path: Path, task: str, rows: Sequence[Sequence[Any]]) -> None:
    """``rows`` below their header, with the other tasks' old lines."""
    old = [[row.get(name, "") for name in rows[0]] for row in read(path) if row["task"] != task]
    order = [study.key for study in plan.STUDIES]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows(sorted([*old, *rows[1:]], key=lambda row: order.index(row[0])))


def read(path: Path) -> Rows:
    """Its lines; none if it is not there."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def filled(page: str) -> str:
    """The page with its tables as the files have them."""
    kinds = {"endpoints": endpoints, "joining": joined, "sites": sites_of, "chosen": chosen}
    rows = {path: read(path) for path in (DIFFERENCES, JOINING, VALUES, HERE / "chosen.csv")}

    def table(found: re.Match[str]) -> str:
        study = next(study for study in plan.STUDIES if study.key == found["task"])
        own = {path: [row for row in lines if row["task"] == study.key] for path, lines in rows.items()}
        return found[1] + "\n" + "\n".join(kinds[found["kind"]](study, own)) + "\n\n" + found[5]

    return BLOCK.sub(table, page)


def endpoints(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """A line per arm: the primary endpoints with their differences from FedAvg and from solo."""
    secondary = [plan.Endpoint("auc", "mean"), plan.Endpoint("brier", "mean"), plan.Endpoint("calibration", "worst")]
    shown = [*study.primary, *[s for s in secondary if s not in study.primary and s.metric in study.metrics]]
    heads = ["arm"]
    for one in shown:
        what = f"{one.over} {WORDS[one.metric]}"
        heads += [f"**{what}**", "minus FedAvg", "minus solo"] if one in study.primary else [what, "minus FedAvg"]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    index = {(r["arm"], r["versus"], r["over"], r["metric"]): r for r in rows[DIFFERENCES]}
    for arm in study.arms():
        if not any(key[0] == arm.key for key in index):
            continue
        line = [arm.title]
        for one in shown:
            found = {versus: index.get((arm.key, versus, one.over, one.metric)) for versus in VERSUS}
            line.append(text(float(next(r for r in found.values() if r)["value"])))
            wanted = VERSUS if one in study.primary else VERSUS[:1]
            line += [told(found[versus]) for versus in wanted]
        lines.append(line)
    return [f"| {' | '.join(line)} |" for line in lines]


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
    many = next(iter(found.values()))["of"]
    heads = [f"of {many} sites, against solo"]
    for metric in study.metrics:
        heads.append(f"{WORDS[metric]}: gain / cannot be told / lose (mean on the losing side)")
    lines = [heads, ["---", *["--:"] * len(study.metrics)]]
    for arm in study.arms():
        if (arm.key, "brier") in found:
            cells = [found[arm.key, metric] for metric in study.metrics]
            counts = [f"{c['gains']} / {c['cannot_be_told']} / {c['loses']} ({c['lower']})" for c in cells]
            lines.append([arm.title, *counts])
    return [f"| {' | '.join(line)} |" for line in lines]


def sites_of(study: plan.Study, rows: Mapping[Path, Rows]) -> list[str]:
    """A line per site: the benefit metric alone, and what joining gives under some arms."""
    of_benefit = [row for row in rows[DIFFERENCES] if row["versus"] == "solo" and row["metric"] == study.benefit]
    index = {(row["arm"], row["over"]): row for row in of_benefit}
    alone = [row for row in rows[VALUES] if row["arm"] == "solo"]
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
