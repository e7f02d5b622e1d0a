# SPDX-License-Identifier: Apache-2.0
"""``make demo``: FedAvg and a fair method at four real hospitals, in FLARE's simulator; then one hospital's decision.

python jobs/demo.py FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import RunFailed
from fairflare.report.compare_page import method_points
from fairflare.report.values import drawn, rendered_from

METHODS = ("fedavg", "fedism-plus")
ROUNDS = "20"
SEEDS = "0,1,2,3,4,5,6,7,8,9"
HOSPITAL = "Cleveland"
ROWS = {"mean": "mean of hospitals", "worst": "worst hospital", "std": "spread (standard deviation)"}
Json = Mapping[str, Any]


def main(folder: Path) -> None:
    say(f"Heart disease at four real hospitals: 920 patients (UCI, CC BY 4.0). Two methods, {ROUNDS} rounds each.\n")
    fair, decision = folder / "fair", folder / "decision"
    same = ["compare", *METHODS, "--task", "heart:full", "--rounds", ROUNDS, "--force", "--out"]
    say("1. Train FedAvg and FedISM+ in NVIDIA FLARE's simulator.")
    ran([*same, str(folder / "flare"), "--env", "sim"])
    say("2. The same with ten first models in one process, to know what is chance.")
    ran([*same, str(fair), "--seeds", SEEDS, "--resample", "50"])
    comparison = json.loads((fair / "compare.json").read_text(encoding="utf-8"))
    rows = table(comparison)
    say(f"\n   {'patients classified right, of 100':34}{'FedAvg':>8}{'FedISM+':>9}   change [95 % interval]")
    for name, before, after, change, words in rows:
        say(f"   {name:34}{before:8.1f}{after:9.1f}   {change}{f': {words}' if words else ''}")
    say("   Intervals: over first models and patients. FedISM+ takes 3.3 times FedAvg's computing.\n")
    say(f"3. Should {HOSPITAL} be alone, use the others' model, or join?")
    said = ran(["join", "decide", "--task", "heart:full", "--force", "--out", str(decision)])
    answer = next(line for line in said.splitlines() if line.startswith(HOSPITAL)).partition("  U ")[0]
    before, after, _, words = next(one for name, *one in rows if name == ROWS["worst"])
    gain = f"At the worst hospital FedISM+ classifies {after:.0f} of 100 patients right, FedAvg {before:.0f}: {words}."
    page = folder / "index.html"
    values = {"rows": rows, "answer": answer, "gain": gain, "picture": drawn([method_points(comparison)])}
    page.write_text(rendered_from(Path(__file__).parent, "demo", **values), encoding="utf-8")
    say(f"\n{gain}\n{answer}.\npage: {page}")


def table(comparison: Json) -> list[tuple[str, float, float, str, str]]:
    """Row -> its name, FedAvg's and FedISM+'s value of 100, the difference with its interval, and what that shows."""
    plain, fair = comparison["methods"]
    rows = []
    for site in plain["detail"]["sites"]["accuracy"]:
        before, after = (100 * one["detail"]["sites"]["accuracy"][site]["mean"] for one in (plain, fair))
        rows.append((site, before, after, f"{after - before:+.1f}", ""))
    for key, name in ROWS.items():
        paired = fair["versus_first"][key]
        low, high = (100 * paired["bootstrap"][end] for end in ("low", "high"))
        words = {"better": "better", "worse": "worse"}.get(paired["verdict"], "too few patients to tell")
        change = f"{100 * paired['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"
        rows.append((name, 100 * plain[key]["mean"], 100 * fair[key]["mean"], change, words))
    return rows


def ran(words: list[str]) -> str:
    """What a command of this package prints; the command itself is shown, as one would type it."""
    say(f"   $ fairflare {' '.join(word for word in words if word != '--force')}")
    found = subprocess.run([sys.executable, "-m", "fairflare", *words], capture_output=True, text=True)
    if found.returncode:
        raise RunFailed(f"fairflare {words[0]} ended with code {found.returncode}: {found.stderr.strip()[-500:]}")
    return found.stdout


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
