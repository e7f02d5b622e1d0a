# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of ``plateau_regimes.py`` that are missing, a seed after the other, and keeps scores.

    python lab/plateau/plateau_run.py FOLDER [--only quality,looks] [--seeds 0,1,2] [--until 17:05]
    python lab/plateau/plateau_run.py FOLDER --collect      # FOLDER's scores as lab/plateau/results

FOLDER keeps a file for each run that has ended; the same command goes on with what is missing, also beside another one
that has other regimes. Scans are read from the folder that FAIRFLARE_DATA names. ``plateau_page.py`` writes the page
from the results.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import plateau_page as page
import plateau_parts  # noqa: F401  # registers its tasks and rules
import plateau_regimes as regimes
import torch
from plateau_regimes import Arm, Regime

from fairflare.core.manifest import all_versions
from fairflare.engine.files import AUDIT
from fairflare.engine.setup.assembly import save_config
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.report.frames import machine
from fairflare.studies.study import config_of

RESULTS = Path(__file__).resolve().parent / "results"
DIGITS = 4
RUN = tuple(regime for regime in regimes.REGIMES if not regime.rows)


def main() -> None:
    """Run or collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="keys of regimes")
    parser.add_argument("--seeds", default=",".join(map(str, regimes.SEEDS)))
    parser.add_argument("--until", help="HH:MM after which no seed is begun")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.collect:
        return collect(options.folder)
    for seed in map(int, options.seeds.split(",")):
        for regime in (r for r in RUN if options.only is None or r.key in options.only.split(",")):
            if options.until and time.strftime("%H:%M") >= options.until:
                return None
            for arm in regime.arms:
                make(regime, arm, seed, options.folder)
    return None


def configured(regime: Regime, arm: Arm, seed: int) -> RunConfig:
    """The run of an arm with a seed."""
    label = arm.label.replace("{seed}", str(seed))
    values = {"score_rounds": "all", "robust": "off", **regime.values}  # as the papers' methods are
    return config_of(
        label,
        regime.task,
        seed,
        {"rounds": round(arm.times * regime.rounds), "values": values},
        draw=True,
        over=arm.over,
    )


def make(regime: Regime, key: str, seed: int, folder: Path) -> None:
    """One run into a folder that goes when it has ended; what is kept is its curve and its last weights."""
    kept = folder / regime.key / f"{key}-seed{seed}.json"
    if kept.is_file():
        return
    config, place = configured(regime, regime.arms[key], seed), folder / f"{regime.key}-running"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    began, built = time.process_time(), build_parts(config)
    save_config(config, built, place, "local")
    with LocalSites(config, place, built) as sites:
        run_local(config, place, parts=built, sites=sites)
    lines = [json.loads(line) for line in (place / AUDIT).read_text(encoding="utf-8").splitlines()]
    found = read(lines, config.training.rounds)
    kept.parent.mkdir(parents=True, exist_ok=True)
    said = {"config_sha256": config.sha256(), "cpu_seconds": round(time.process_time() - began, 2), **found}
    (scratch := kept.with_suffix(".part")).write_text(json.dumps(said), encoding="utf-8")
    os.replace(scratch, kept)
    shutil.rmtree(place)
    print(time.strftime("%H:%M:%S"), kept.relative_to(folder), said["cpu_seconds"], flush=True)


def read(lines: Sequence[Mapping[str, Any]], rounds: int) -> dict[str, Any]:
    """ "scores": set -> metric -> a value per round; "weights": site -> that of the last round; "notes" and
    "examples" of that round. A rule that gives each site a model of its own has no scores on shared test sets. The set
    "own SITE" is a site's own test, of its own model after the last round or else of the shared one; "updates" is the
    mean cosine of the rounds' updates."""
    scored = {line["round"]: line["test_sets"] for line in lines if line["event"] == "scores"}
    assert len(scored) in (0, rounds), f"expected a score of each of {rounds} rounds, got {len(scored)}"
    sets = {
        name: {
            metric: [round(scored[t][name]["metrics"][metric], DIGITS) for t in sorted(scored)]
            for metric in first["metrics"]
        }
        for name, first in scored.get(rounds, {}).items()
    }
    for site, one in next(line for line in lines if line["event"] == "evaluation")["sites"].items():
        if test := one.get("personal", one)["test"]:
            sets[f"own {site}"] = {metric: [round(value, DIGITS)] for metric, value in test.items()}
    turns = [line for line in lines if line["event"] == "round"]
    if told := [line["notes"]["agreement"].values() for line in turns if "agreement" in line["notes"]]:
        sets["updates"] = {COSINE: [round(sum(of) / len(of), DIGITS) for of in told]}
    last = turns[-1]
    return {
        "scores": sets,
        "weights": last["weights"],
        "notes": last.get("notes", {}),
        "examples": {k: one["n_examples"] for k, one in last["accepted"].items()},
    }


COALITIONS, EXAMPLES, COSINE = "coalition-", "examples", "cosine"


def score(of: Mapping[str, Sequence[float]], metric: str) -> str:
    """The mean of the last rounds; "" where a set has no such metric."""
    values = of.get(metric, ())[-regimes.LAST :]
    return f"{sum(values) / len(values):.5f}" if values else ""


def kept_runs(folder: Path, regime: Regime) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Arm, seed and content of each run of a regime that has ended, of the seeds that all arms have."""
    files = {path.stem: path for path in (folder / regime.key).glob("*.json")}
    for seed in regimes.SEEDS:
        names = {arm: f"{arm}-seed{seed}" for arm in regime.arms}
        if all(name in files for name in names.values()):
            for arm, name in names.items():
                yield arm, seed, json.loads(files[name].read_text(encoding="utf-8"))


def collect(folder: Path) -> None:
    """``values.csv``, ``curves.csv``, ``contribution.csv`` and ``about.json`` of what has ended.

    Seeds that a regime has in the files and not in the folder stay as they are.
    """
    values: list[list[object]] = []
    curves: list[list[object]] = []
    worth: list[list[object]] = []
    for regime in RUN:
        for arm, seed, found in kept_runs(folder, regime):
            chosen = sum(found["weights"].get(site, 0.0) for site in regime.chosen)
            weight = f"{chosen:.4f}" if regime.chosen else ""
            about = [regime.key, seed, arm, found["config_sha256"][:12], found["cpu_seconds"], weight]
            if not found["scores"]:
                values.append([*about, "", "", ""])
            for name, of in found["scores"].items():
                metric = COSINE if COSINE in of else regime.metric
                values.append([*about, name, score(of, metric), score(of, "loss")])
                if not arm.startswith(COALITIONS):
                    points = range(regime.curve, len(of[metric]) + 1, regime.curve)
                    curves += [[regime.key, seed, arm, t, name, of[metric][t - 1]] for t in points]
            if regime.key == regimes.CONTRIBUTION:
                said = {arm: estimated(found)} | ({EXAMPLES: found["examples"]} if arm == regime.method else {})
                worth += [[regime.key, seed, k, site, one] for k, of in said.items() for site, one in of.items()]
    heads = ["config", "cpu_seconds", "chosen_weight", "set", "score", "loss"]
    merged("values.csv", ["regime", "seed", "arm", *heads], values)
    merged("curves.csv", ["regime", "seed", "arm", "round", "set", "score"], curves)
    merged("contribution.csv", ["regime", "seed", "arm", "site", "estimate"], worth)
    text = json.dumps({"versions": all_versions(), "machine": machine()}, indent=1)
    (RESULTS / "about.json").write_text(text + "\n", encoding="utf-8")


def merged(name: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A file of results with these rows in place of old ones of the same regime and seed."""
    new = {(str(row[0]), str(row[1])) for row in rows}
    old = [list(row.values()) for row in page.read(name) if (row["regime"], row["seed"]) not in new]
    order = [regime.key for regime in regimes.REGIMES]
    write(RESULTS / name, heads, sorted([*old, *rows], key=lambda row: (order.index(str(row[0])), int(str(row[1])))))


def estimated(found: Mapping[str, Any]) -> Mapping[str, float]:
    """What a method of contribution says of each site after the last round; nothing of plain averaging."""
    notes = found["notes"]
    return next((notes[name] for name in ("contribution", "reputation", "gamma") if name in notes), {})


def write(path: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([heads, *rows])


if __name__ == "__main__":
    main()
