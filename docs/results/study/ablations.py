# SPDX-License-Identifier: Apache-2.0
"""Does FedISM+ do what it says? Its parts, alone and together, where sites have equal label distributions and not.

    python docs/results/study/ablations.py FOLDER [--only equal] [--workers 2] [--seeds 0,1,2,3,4,5,6,7] [--rounds N]

For each of the presets ``ich-phantom:equal`` and ``ich-phantom:skewed`` this is a ``fairflare compare`` of ``ARMS``,
kept in FOLDER/PRESET: the same command goes on with what is missing. Its tables go to docs/results/fedism-PRESET, and
there ``shares.csv`` says what part of the aggregation weights the corrupted sites had in every round, and what part of
the examples they have. Nothing is written there with ``--rounds`` or other seeds: these are trials.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import plan

from fairflare.app.arguments import folder_name
from fairflare.build import tasks
from fairflare.federation.files import AUDIT

RESULTS = Path(__file__).resolve().parent.parent
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
PRESETS = ("equal", "skewed")


def main() -> None:
    """Compare, then add up weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PRESETS)
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--seeds", default=",".join(map(str, plan.SEEDS)))
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    trial = options.rounds is not None or options.seeds != parser.get_default("seeds")
    for preset in (options.only,) if options.only else PRESETS:
        words = command(preset, options.seeds, None if trial else RESULTS / f"fedism-{preset}")
        words += ["--rounds", str(options.rounds)] if options.rounds else []
        folder = options.folder / preset
        more = ["--out", str(folder), "--workers", options.workers]
        subprocess.run([sys.executable, "-m", *words, *more], check=True)
        rows = shares(folder, preset, options.seeds)
        write(folder / "shares.csv" if trial else RESULTS / f"fedism-{preset}" / "shares.csv", rows)


def command(preset: str, seeds: str, tables: Path | None) -> list[str]:
    """The words of the comparison, from "fairflare" on."""
    found = ["fairflare", "compare", *ARMS, "--task", f"ich-phantom:{preset}", "--seeds", seeds]
    return found + (["--tables", str(tables.relative_to(RESULTS.parent.parent))] if tables else [])


def shares(folder: Path, preset: str, seeds: str) -> list[list[object]]:
    """A line per arm, seed and round: the corrupted sites' summed weight, and their share of the examples."""
    task = tasks.load("ich-phantom", preset)
    poor = {site for site, kind in task.sites().items() if kind != "clean"}
    rows: list[list[object]] = []
    for arm in ARMS:
        for seed in seeds.split(","):
            run = folder / f"{folder_name(arm)}-seed{seed}"
            for entry in rounds(run):
                examples = {site: said["n_examples"] for site, said in entry["accepted"].items()}
                total = sum(examples.values())
                weight, of_all = (
                    sum(value for site, value in found.items() if site in poor)
                    for found in (entry["weights"], {site: n / total for site, n in examples.items()})
                )
                rows.append([arm, int(seed), entry["round"], f"{weight:.6f}", f"{of_all:.6f}"])
    return rows


def rounds(run: Path) -> list[dict]:
    """The log's lines of a run's rounds."""
    lines = map(json.loads, (run / AUDIT).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["event"] == "round"]


def write(path: Path, rows: list[list[object]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "seed", "round", "corrupted_weight", "corrupted_examples"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
