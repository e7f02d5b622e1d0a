# SPDX-License-Identifier: Apache-2.0
"""Tunes and runs what is missing of ``regime_list``, and keeps scores.

    FAIRFLARE_DATA=FOLDER python lab/regimes/regime_run.py RUNS [--only U1,Q1] [--seeds 0,1,2] [--until 17:05]
    python lab/regimes/regime_run.py RUNS --collect         # the scores as lab/regimes/results

RUNS keeps a file for each run that has ended; the same command goes on with what is missing. Another folder goes on
from the trials that the results hold. FOLDER holds ``ham10000`` and ``office_caltech_10``. ``regime_page.py`` writes
the page from the results.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import regime_list as regimes
import regime_rules
import torch
from regime_list import Arm, Regime
from regime_page import HEADS
from regime_tasks import VAL

from fairflare.core.manifest import all_versions
from fairflare.engine.audit import verify
from fairflare.engine.files import AUDIT
from fairflare.engine.setup.assembly import save_config
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.report.frames import machine
from fairflare.studies.study import config_of

RESULTS = Path(__file__).resolve().parent / "results"
DIGITS = 5
TRIALS = "tuning/"
KEPT = RESULTS / "trials.csv"
TRIAL = ["regime", "arm", "rate", "own", "seed", "value"]
Run = Mapping[str, Any]
"""Content of a kept file: "scores" set -> metric -> a value per round, "records" as ``regime_rules.RECORDS``."""
Settings = Mapping[str, Any]


class Late(Exception):
    """No run is begun after the time that was given."""


class Bench:
    """The runs of a folder.

    Args:
        folder: where files of runs that have ended lie.
        until: HH:MM after which none is begun; "": no limit.
    """

    def __init__(self, folder: Path, until: str = "") -> None:
        self.folder, self.until = folder, until
        self.kept = {tuple(row[:5]): float(row[5]) for row in rows_of(KEPT)}

    def run(self, regime: Regime, key: str, seed: int, settings: Settings, name: str) -> Run:
        """The content of the file ``name``, made where it is missing or has other settings."""
        path = self.folder / regime.key / f"{name}-seed{seed}.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if kept and kept["settings"] == settings:
            return kept
        if self.until and time.strftime("%H:%M") >= self.until:
            raise Late
        arm, began = regime.arms[key], time.process_time()
        label = arm.label.replace("{seed}", str(seed))
        rounds = regime.rounds if name.startswith(TRIALS) else regime.length(arm)
        if arm.after:
            regime_rules.RECORDS["other"] = self.judged(regime, arm.after, seed)["records"]
            label = label.replace("{run}", "other")
        scored = "last" if name.startswith(TRIALS) else "all"  # a trial's value is of its last rounds alone
        values = {"score_rounds": scored, "robust": "off", "min_sites": 1, **regime.values}
        config = config_of(
            label,
            regime.task,
            seed,
            {"rounds": rounds, "values": values},
            draw=True,
            over={**arm.over, **settings},
        )
        place = self.folder / regime.key / f"running-{os.getpid()}"
        lines = executed(config, place)
        content = {
            "config": config.sha256()[:12],
            "settings": dict(settings),
            "cpu_seconds": round(time.process_time() - began, 2),
            **read(lines),
        }
        keep(path, content)
        shutil.rmtree(place)
        print(time.strftime("%H:%M:%S"), path.relative_to(self.folder), content["cpu_seconds"], flush=True)
        return content

    def judged(self, regime: Regime, key: str, seed: int) -> Run:
        """An arm's run with the settings that its tuning chose."""
        return self.run(regime, key, seed, self.tuned(regime)[key], key)

    def tuned(self, regime: Regime) -> dict[str, Settings]:
        """Arm -> the settings that its trials chose, by the rule of ``regime_list``."""
        path = tuned_file(self.folder, regime)
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        first, *others = regimes.TUNING_SEEDS
        rates, arms = list(regime.rates), {k: arm for k, arm in regime.arms.items() if not arm.after}
        ratio = rates[-1] / rates[-2]
        for _ in range(regimes.EXTENSIONS + 1):
            trials = {k: self.trials(regime, k, rates, (first,)) for k in arms}
            best = {max(of, key=lambda one: of[one])[0] for of in trials.values()}
            longer = [rates[0] / ratio] * (rates[0] in best) + [rates[-1] * ratio] * (rates[-1] in best)
            if not longer or len(rates) >= len(regime.rates) + regimes.EXTENSIONS:
                break
            rates = sorted([*rates, *(round(rate, 8) for rate in longer)])
        chosen: dict[str, Settings] = {}
        for key, of in trials.items():
            last = sorted(of, key=lambda one: -of[one])[: regimes.FINALISTS]
            more = self.trials(regime, key, rates, others, last)
            winner = max(last, key=lambda one: of[one] + (len(others) * more[one]))
            chosen[key] = {"lr": winner[0], regime.arms[key].own[0]: winner[1]}
        for key, arm in regime.arms.items():
            if arm.after:
                chosen[key] = {name: v for name, v in chosen[arm.after].items() if name in ("lr", arm.own[0])}
        path.write_text(json.dumps(chosen, indent=1), encoding="utf-8")
        return chosen

    def trials(
        self, regime: Regime, key: str, rates: Sequence[float], seeds: Sequence[int], only: Sequence[Any] = ()
    ) -> dict[tuple[float, Any], float]:
        """(rate, own parameter) -> the mean over the seeds of what trials are valued by."""
        arm, values = regime.arms[key], {}
        for rate, own in only or [(rate, own) for rate in rates for own in arm.own[1]]:
            scores = [self.trial(regime, key, rate, own, seed) for seed in seeds]
            values[rate, own] = sum(scores) / len(scores)
        return values

    def trial(self, regime: Regime, key: str, rate: float, own: Any, seed: int) -> float:
        """The value of one trial."""
        row = (regime.key, key, f"{rate:g}", f"{own:g}", str(seed))
        if row not in self.kept:
            settings = {"lr": rate, regime.arms[key].own[0]: own}
            run = self.run(regime, key, seed, settings, f"{TRIALS}{key}-{rate:g}-{own:g}")
            self.kept[row] = regime.tuned_by.value(run["scores"], regime.rounds, VAL)
        return self.kept[row]


def tuned_file(folder: Path, regime: Regime) -> Path:
    """Named by what trials are valued by: another rule tunes anew."""
    return folder / regime.key / f"tuned-{regime.tuned_by.metric}.json"


def executed(config: RunConfig, place: Path) -> list[Mapping[str, Any]]:
    """The log's lines of a run in the new folder ``place``."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    built = build_parts(config)
    save_config(config, built, place, "local")
    with LocalSites(config, place, built) as sites, contextlib.redirect_stderr(None):
        run_local(config, place, parts=built, sites=sites)
    return verify(place / AUDIT)


def keep(path: Path, content: Any) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (scratch := path.with_suffix(".part")).write_text(json.dumps(content), encoding="utf-8")
    os.replace(scratch, path)


def score(value: float | None, metric: str) -> float:
    """A diverged model, which has none, gets the worst that there is."""
    return round(value, DIGITS) if value is not None else math.inf if metric == "loss" else 0.0


def read(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """ "scores" and "records" of a log's lines."""
    scored = sorted((line for line in lines if line["event"] == "scores"), key=lambda line: line["round"])
    sets = {
        name: {
            metric: [math.nan] * (scored[0]["round"] - 1)
            + [score(row["test_sets"][name]["metrics"].get(metric), metric) for row in scored]
            for metric in of["metrics"]
        }
        for name, of in scored[-1]["test_sets"].items()
    }
    records = []
    for line in (line for line in lines if line["event"] == "round"):
        notes = line.get("notes", {})
        groups = {"groups": notes["group_lambda"]} if "group_lambda" in notes else {}
        records.append({"": line["weights"], **notes.get("layer_weights", {}), **groups})
    return {"scores": sets, "records": records}


def main() -> None:
    """Run or collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(regimes.BY_KEY))
    parser.add_argument("--seeds", default=",".join(map(str, regimes.SEEDS)))
    parser.add_argument("--until", default="", help="HH:MM after which no run is begun")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("FAIRFLARE_REGIMES", str(options.folder))
    if options.collect:
        return collect(options.folder)
    bench = Bench(options.folder, options.until)
    with contextlib.suppress(Late):
        for regime in (regimes.BY_KEY[key] for key in options.only.split(",")):
            for seed in map(int, options.seeds.split(",")):
                for key in regime.arms:
                    bench.judged(regime, key, seed)
    return None


def complete(folder: Path, regime: Regime) -> Iterator[tuple[int, str, Run]]:
    """Seed, arm and run, of the seeds that all arms have."""
    for seed in regimes.SEEDS:
        paths = {key: folder / regime.key / f"{key}-seed{seed}.json" for key in regime.arms}
        if all(path.is_file() for path in paths.values()):
            for key, path in paths.items():
                yield seed, key, json.loads(path.read_text(encoding="utf-8"))


def rounds_of(regime: Regime, arm: Arm) -> list[int]:
    """The rounds up to which an arm is read: those of all arms, of equal passes, and a quarter before the end."""
    end = regime.length(arm)
    wanted = {regime.rounds, end - max(regimes.LAST, end // 4), *map(regime.equal_passes, regime.judged)}
    return sorted(point for point in wanted if regimes.LAST <= point <= end)


def collect(folder: Path) -> None:
    """What has ended in ``folder``, beside what the results hold of other regimes and seeds.

    ``values.csv`` (endpoints), ``sets.csv`` (every set at the common round), ``chosen.csv`` and ``trials.csv``.
    """
    values, sets, chosen, trials = [], [], [], []
    for regime in regimes.REGIMES:
        for seed, key, run in complete(folder, regime):
            for point in rounds_of(regime, regime.arms[key]):
                ends = (regime.primary, regime.second, regime.guard)
                found = [f"{one.value(run['scores'], point):.5f}" for one in ends]
                found.append(f"{regime.primary.value(run['scores'], point, VAL):.5f}")
                values.append([regime.key, seed, key, point, *found, run["cpu_seconds"], run["config"]])
            for name, of in run["scores"].items():
                last = {metric: of[metric][regime.rounds - regimes.LAST : regime.rounds] for metric in of}
                means = [f"{sum(rows) / len(rows):.5f}" for rows in last.values()]
                sets += [[regime.key, seed, key, name, *means]] if not name.startswith(VAL) else []
        for path in sorted((folder / regime.key / TRIALS).glob("*.json")):
            run, (start, seed) = json.loads(path.read_text(encoding="utf-8")), path.stem.rsplit("-seed", 1)
            key = max((k for k in regime.arms if start.startswith(f"{k}-")), key=len)
            rate, own = (f"{run['settings'][name]:g}" for name in ("lr", regime.arms[key].own[0]))
            value = regime.tuned_by.value(run["scores"], regime.rounds, VAL)
            trials.append([regime.key, key, rate, own, seed, repr(value)])
        if (path := tuned_file(folder, regime)).is_file():
            first = str(regimes.TUNING_SEEDS[0])
            for key, of in json.loads(path.read_text(encoding="utf-8")).items():
                n = sum(row[:2] == [regime.key, key] and row[4] == first for row in merged(KEPT, 5, trials))
                chosen.append([regime.key, key, n or "", *[f"{name}={value}" for name, value in of.items()]])
    for name, heads, of_key, rows in (
        ("values", HEADS, 2, values),
        ("sets", ["regime", "seed", "arm", "set", "score", "loss"], 2, sets),
        ("chosen", ["regime", "arm", "trials", "rate", "own"], 1, chosen),
        ("trials", TRIAL, 5, trials),
    ):
        write(path := RESULTS / f"{name}.csv", heads, merged(path, of_key, rows))
    text = json.dumps({"versions": all_versions(), "machine": machine()}, indent=1)
    (RESULTS / "about.json").write_text(text + "\n", encoding="utf-8")


def merged(path: Path, of_key: int, rows: Sequence[Sequence[object]]) -> list[list[str]]:
    """The new rows and those of a file whose first ``of_key`` cells no new row has, by regime."""
    new = [[str(cell) for cell in row] for row in rows]
    keys = {tuple(row[:of_key]) for row in new}
    order = list(regimes.BY_KEY)
    left = [row for row in rows_of(path) if tuple(row[:of_key]) not in keys]
    return sorted([*left, *new], key=lambda row: order.index(row[0]))


def rows_of(path: Path) -> list[list[str]]:
    """A CSV file's rows below its head; none where it is missing."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def write(path: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([heads, *rows])


if __name__ == "__main__":
    main()
