# SPDX-License-Identifier: Apache-2.0
"""Does FedISM+ do what it says? Its parts, alone and together, where sites have equal label distributions and not.

    python docs/results/study/ablations.py FOLDER [--only equal] [--workers 2] [--seeds 0,1,2,3,4,5,6,7] [--rounds N]
    python docs/results/study/ablations.py FOLDER --plan matched [--only equal] [--workers 2]
    python docs/results/study/ablations.py FOLDER --plan long [--only equal] [--workers 2]

For each of the presets ``ich-phantom:equal`` and ``ich-phantom:skewed`` this is a ``fairflare compare`` of ``ARMS``,
kept in FOLDER/PRESET: the same command goes on with what is missing. Its tables go to docs/results/fedism-PRESET, which
must not be there yet. There ``shares.csv`` says what part of the aggregation weights the corrupted sites had in every
round, and what part of the examples they have, and ``parts.csv`` what each part of the method changes (``PARTS``). With
``--rounds`` or other seeds nothing is written there: these are trials. Two further plans have ``parts.csv`` alone:
``matched`` sets two of these arms, whose runs it takes from FOLDER/PRESET, beside plain averaging with as many passes
as the dearer one has (docs/results/fedism-PRESET-matched), and ``long`` gives these arms as many rounds as that
(fedism-PRESET-long).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plan

from fairflare.engine.files import AUDIT
from fairflare.engine.setup import tasks
from fairflare.report.fairness import holm, paired, verdict
from fairflare.studies.labels import folder_name

RESULTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(RESULTS))

import kept  # noqa: E402

DIFFERENCES = ("endpoint", "part", "arm", "versus", "mean", "low", "high", "p", "p_holm", "verdict")
ARMS = {
    "fedavg": "plain averaging",
    "fedavg:weighting=uniform": "equal weights",
    "fedism-plus:weighting=examples": "flat training alone (SALT)",
    "fedism-plus:trainer=sgd": "weights alone (SAGA)",
    "fedism-plus": "both, sharpness",
    "fedism-plus:state=L": "both, perturbed loss",
    "fedism-plus:probe_loss=logit_adjusted": "both, sharpness of the loss that is trained",
    "fedism-plus:state=L,probe_loss=logit_adjusted": "both, perturbed loss of the loss that is trained",
    "fedism-plus:rho_max=0": "no radius: plain training, and equal weights because no place is sharper than another",
}
"""METHOD of ``fairflare compare`` -> what it is. The paper probes plain cross-entropy; ``logit_adjusted`` is ours."""
SHARES = ("seed", "round", "corrupted_examples", *ARMS)
PRESETS = ("equal", "skewed")
PARTS = {
    "flat training": ("fedism-plus:weighting=examples", "fedavg"),
    "weights": ("fedism-plus:trainer=sgd", "fedavg:weighting=uniform"),
    "weights on top of flat training": ("fedism-plus", "fedism-plus:weighting=examples"),
    "flat training on top of weights": ("fedism-plus", "fedism-plus:trainer=sgd"),
    "both, from plain averaging": ("fedism-plus", "fedavg"),
    "both, from equal weights": ("fedism-plus", "fedavg:weighting=uniform"),
    "the radius": ("fedism-plus", "fedism-plus:rho_max=0"),
    "perturbed loss in place of sharpness": ("fedism-plus:state=L", "fedism-plus"),
    "the trained loss probed, sharpness": ("fedism-plus:probe_loss=logit_adjusted", "fedism-plus"),
    "the trained loss probed, perturbed loss": (
        "fedism-plus:state=L,probe_loss=logit_adjusted",
        "fedism-plus:state=L",
    ),
}
"""What -> (arm with it, arm without it): differences that were asked for before any run."""
ENDPOINTS = {"corrupted": True, "clean": True, "mean": True, "worst": True, "std": False}
"""Balanced accuracy on the shared corrupted images, the primary endpoint; on clean ones; of sites: mean, worst and
standard deviation. Each with whether more is better."""
MANY = f"train.rounds={round(40 * plan.SLOWEST)}"
LONGER = f"fedavg:{MANY}"
"""Plain averaging with the compute of FedISM+, of which 40 rounds are compared."""
MATCHED = (LONGER, "fedism-plus:weighting=examples", "fedism-plus")
MATCHED_PARTS = {
    "both, at equal compute": ("fedism-plus", LONGER),
    "flat training, at less compute": ("fedism-plus:weighting=examples", LONGER),
}
"""Asked for after the first preset's runs: they had left open whether passes alone would do as much."""
LONG = (LONGER, f"fedism-plus:weighting=examples,{MANY}", f"fedism-plus:{MANY}")
LONG_PARTS = {
    "both, all with 133 rounds": (LONG[2], LONGER),
    "flat training, all with 133 rounds": (LONG[1], LONGER),
    "weights on top of flat training, all with 133 rounds": (LONG[2], LONG[1]),
}
"""Asked for after ``matched``, before its own runs: what is left of the method's gain, and of its smaller spread over
sites, when all arms have trained for as long."""


@dataclass(frozen=True)
class Plan:
    """Arms that are compared, and differences between them that are asked for.

    Attributes:
        arms: METHOD of ``fairflare compare``; the first is the reference.
        parts: what -> (arm with it, arm without it).
        suffix: of the folder of its tables.
        shares: whether the corrupted sites' weights are added up.
    """

    arms: tuple[str, ...]
    parts: Mapping[str, tuple[str, str]]
    suffix: str = ""
    shares: bool = False


PLANS = {
    "parts": Plan(tuple(ARMS), PARTS, shares=True),
    "matched": Plan(MATCHED, MATCHED_PARTS, "-matched"),
    "long": Plan(LONG, LONG_PARTS, "-long"),
}


def main() -> None:
    """Compare, then add up weights and take differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PRESETS)
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--seeds", default=",".join(map(str, plan.SEEDS)))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--plan", choices=PLANS, default="parts")
    options = parser.parse_args()
    trial = options.rounds is not None or options.seeds != parser.get_default("seeds")
    asked = PLANS[options.plan]
    for preset in (options.only,) if options.only else PRESETS:
        folder, tables = options.folder / preset, None if trial else RESULTS / f"fedism-{preset}{asked.suffix}"
        words = command(preset, options.seeds, tables, asked.arms)
        words += ["--rounds", str(options.rounds)] if options.rounds else []
        more = ["--out", str(folder), "--workers", options.workers]
        subprocess.run([sys.executable, "-m", *words, *more], check=True)
        if asked.shares:
            write((tables or folder) / "shares.csv", SHARES, shares(folder, preset, options.seeds))
        if tables:
            kept.keep(tables)
            write(tables / "parts.csv", DIFFERENCES, parts(kept.comparison(tables), asked))


def command(preset: str, seeds: str, tables: Path | None, arms: Iterable[str] = ARMS) -> list[str]:
    """The words of the comparison, from "fairflare" on."""
    found = ["fairflare", "compare", *arms, "--task", f"ich-phantom:{preset}", "--seeds", seeds, "--set", "robust=off"]
    return found + (["--tables", str(tables.relative_to(RESULTS.parent.parent))] if tables else [])


def parts(comparison: Mapping[str, Any], asked: Plan) -> list[list[object]]:
    """A line per endpoint and difference that is asked for; Holm's p over those of an endpoint."""
    runs = {arm: method["runs"] for arm, method in zip(asked.arms, comparison["methods"], strict=True)}
    rows: list[list[object]] = []
    for endpoint, higher in ENDPOINTS.items():
        found = {
            what: paired([own[endpoint] - other[endpoint] for own, other in zip(runs[arm], runs[versus], strict=True)])
            for what, (arm, versus) in asked.parts.items()
        }
        adjusted = holm({what: one["p"] for what, one in found.items()})
        for what, one in found.items():
            numbers = [*(one[key] for key in ("mean", "low", "high", "p")), adjusted[what]]
            written = ["" if value is None else f"{value:.6f}" for value in numbers]
            rows.append([endpoint, what, *asked.parts[what], *written, verdict(one, higher_is_better=higher)])
    return rows


def shares(folder: Path, preset: str, seeds: str) -> list[list[object]]:
    """A line per seed and round: the corrupted sites' share of the examples, and with each arm their summed weight."""
    poor = {site for site, kind in tasks.load("ich-phantom", preset).sites().items() if kind != "clean"}
    rows: dict[tuple[int, int], list[object]] = {}
    for arm in ARMS:
        for seed in seeds.split(","):
            for entry in rounds(folder / f"{folder_name(arm)}-seed{seed}"):
                examples = {site: said["n_examples"] for site, said in entry["accepted"].items()}
                total = sum(examples.values())
                weight, of_all = (
                    sum(value for site, value in found.items() if site in poor)
                    for found in (entry["weights"], {site: n / total for site, n in examples.items()})
                )
                row = rows.setdefault((int(seed), entry["round"]), [int(seed), entry["round"], f"{of_all:.4f}"])
                row.append(f"{weight:.4f}")
    return list(rows.values())


def rounds(run: Path) -> list[dict]:
    """The log's lines of a run's rounds."""
    lines = map(json.loads, (run / AUDIT).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["event"] == "round"]


def write(path: Path, heads: Sequence[str], rows: list[list[object]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
