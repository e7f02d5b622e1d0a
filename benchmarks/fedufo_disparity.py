# SPDX-License-Identifier: Apache-2.0
"""FedUFO against FedAvg on two real tables: disparity over groups and over sites, three matched seeds.

    FAIRFLARE_DATA=DIR python benchmarks/fedufo_disparity.py

DIR holds covid_brazil.csv; without it only SUPPORT2 is run. Prints the tables of docs/methods/fedufo.md. Both data sets
are public, so that groups of any size are counted (min_count=0).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from fairflare.assembly import run_local
from fairflare.config import make_config
from fairflare.federation.audit import verify

SEEDS = (0, 1, 2)
PAPER_FEATURES = {"features": "paper", "optimizer": "adam", "lr": 0.019}
CASES = {
    "SUPPORT2, four disease classes": ("support2", "label+sex", {}),
    "COVID-19 Brazil, five regions": ("covid-brazil:regions", "label+white", {}),
    "COVID-19 Brazil, two Dirichlet sites": ("covid-brazil:dirichlet", "label+white", {}),
    "COVID-19 Brazil, five regions, the paper's features and optimizer": (
        "covid-brazil:regions",
        "label+white",
        PAPER_FEATURES,
    ),
    "COVID-19 Brazil, two Dirichlet sites, the paper's features and optimizer": (
        "covid-brazil:dirichlet",
        "label+white",
        PAPER_FEATURES,
    ),
}
METHODS = {
    "FedAvg": ("fedavg", {}),
    "FedUFO client": ("fedufo", {"level": "client"}),
    "FedUFO attribute": ("fedufo", {"level": "attribute"}),
    "FedUFO multi": ("fedufo", {"level": "multi"}),
    "FedUFO unknown": ("fedufo", {"level": "unknown"}),
}


def main() -> None:
    """Print one table per case."""
    for title, (task, group_by, values) in CASES.items():
        if task.startswith("covid") and not os.environ.get("FAIRFLARE_DATA"):
            continue
        print(f"\n{title} (`{task}`, group_by={group_by}{', ' if values else ''}{_spelt(values)})\n")
        print("| method | disparity over groups | worst group | disparity over sites | accuracy | AUC | less in |")
        print("|---|---|---|---|---|---|---|")
        base: list[dict[str, float]] = []
        for label, (method, own) in METHODS.items():
            shared = {"group_by": group_by, "min_count": 0, **values}
            rows = [scores(method, task, seed, {**shared, **own}) for seed in SEEDS]
            base = base or rows
            less = sum(row["groups"] < other["groups"] for row, other in zip(rows, base))
            cells = [f"{statistics.mean(r[k] for r in rows):.3f}" for k in ("groups", "worst", "sites", "all", "auc")]
            print(f"| {label} | {' | '.join(cells)} | {f'{less} of 3' if rows is not base else ''} |", flush=True)


def scores(method: str, task: str, seed: int, values: dict) -> dict[str, float]:
    """Sample standard deviations of accuracies, of the final model on the sites' test splits."""
    with tempfile.TemporaryDirectory() as folder:
        run_local(make_config(method, task, seed=seed, values=values), Path(folder))
        entries = verify(Path(folder) / "audit.jsonl")
    sites = next(e["sites"] for e in entries if e["event"] == "evaluation")
    cells = [(g, cell["n"], cell["value"]) for s in sites.values() for g, cell in s["groups"]["test"].items()]
    groups = {
        group: sum(n * v for g, n, v in cells if g == group) / sum(n for g, n, _ in cells if g == group)
        for group in {g for g, _, _ in cells}
    }
    return {
        "groups": statistics.stdev(groups.values()),
        "worst": min(groups.values()),
        "sites": statistics.stdev(s["test"]["accuracy"] for s in sites.values()),
        "all": sum(n * v for _, n, v in cells) / sum(n for _, n, _ in cells),
        "auc": statistics.mean(s["test"]["auc"] for s in sites.values()),
    }


def _spelt(values: dict) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


if __name__ == "__main__":
    main()
