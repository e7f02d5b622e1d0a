# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of lab/docs/leaderboard.md from ``results``.

python lab/leaderboard/board_page.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import board_list as board
import pandas as pd
from board_list import ARMS, FEDAVG, JUDGED

from fairflare.report.fairness import holm, paired

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "leaderboard.md"
START, END = "<!-- results: lab/leaderboard/board_page.py -->", "<!-- end of results -->"
ENDPOINTS = ("worst", "mean")
HEAD = (
    "| arm | worst site | against FedAvg | mean | against FedAvg | calibration error | AUC | log loss | CPU s | tuned |"
)
LEVEL = 0.05


@cache
def lines_of(name: str) -> pd.DataFrame:
    return pd.read_csv(HERE / "results" / f"{name}.csv")


def of_seeds(source: str) -> dict[str, pd.DataFrame]:
    """Arm -> a row per seed that every arm which ran has: the endpoints (Brier score x 100) and the other columns."""
    rows = lines_of("values").query("task == @source")
    arms = [arm for arm in ARMS if (rows["arm"] == arm).any()]
    shared = set.intersection(*(set(rows.loc[rows["arm"] == arm, "seed"]) for arm in arms)) if arms else set()
    found = {}
    for arm in arms:
        by_seed = rows[(rows["arm"] == arm) & rows["seed"].isin(shared)].groupby("seed")
        brier = by_seed["brier"]
        others = by_seed[["calibration", "auc", "loss", "cpu_seconds"]].mean()
        found[arm] = others.assign(
            worst=100 * brier.max(), mean=100 * brier.mean(), calibration=100 * others.calibration
        )
    return found


def against(source: str, endpoint: str) -> dict[str, dict[str, Any]]:
    """Arm -> ``paired`` of its difference to FedAvg, with Holm's p over the task's arms and what is said of it."""
    runs = of_seeds(source)
    found = {arm: paired((of[endpoint] - runs[FEDAVG][endpoint]).tolist()) for arm, of in runs.items() if arm != FEDAVG}
    adjusted = holm({arm: one["p"] for arm, one in found.items()})
    return {arm: {**one, "p_holm": adjusted[arm], "said": said(one, adjusted[arm])} for arm, one in found.items()}


def said(one: Mapping[str, Any], p: float | None) -> str:
    """By the rule of ``board_list``."""
    if p is None or p > LEVEL or one["n"] < len(board.SEEDS):
        return ""
    return "better" if one["mean"] < 0 else "worse"


def signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def cell(one: Mapping[str, Any]) -> str:
    text = f"{signed(one['mean'])} [{signed(one['low'])}, {signed(one['high'])}]"
    return f"{text} **{one['said']}**" if one["said"] else text


def table(source: str) -> list[str]:
    """The lines of a task's table."""
    runs, tried = of_seeds(source), lines_of("tried").query("task == @source and chosen == 1").set_index("arm")["value"]
    seeds = len(runs[FEDAVG])
    differences = {endpoint: against(source, endpoint) for endpoint in ENDPOINTS}
    lines = [f"### {JUDGED[source].title}", "", f"{sites_of(source)}; {seeds} seeds.", "", HEAD, "|---|" + "--:|" * 9]
    for arm, of in runs.items():
        cells = [ARMS[arm].words]
        for endpoint in ENDPOINTS:
            cells += [f"{of[endpoint].mean():.1f}", "" if arm == FEDAVG else cell(differences[endpoint][arm])]
        cells += [f"{of['calibration'].mean():.1f}", f"{of['auc'].mean():.3f}", f"{of['loss'].mean():.3f}"]
        lines.append("| " + " | ".join([*cells, f"{of['cpu_seconds'].mean():.2f}", f"{tried[arm]:g}"]) + " |")
    return [*lines, ""]


def sites_of(source: str) -> str:
    return "Sites: " + ", ".join(sorted(set(lines_of("values").query("task == @source")["site"].astype(str))))


def summary(sources: list[str]) -> list[str]:
    """A line per endpoint: in how many tasks each arm is better and worse than FedAvg."""
    lines = ["| arm | " + " | ".join(f"{endpoint}: better, worse" for endpoint in ENDPOINTS) + " |", "|---|--:|--:|"]
    verdicts = {endpoint: [against(source, endpoint) for source in sources] for endpoint in ENDPOINTS}
    for arm in (arm for arm in ARMS if arm != FEDAVG):
        cells = []
        for endpoint in ENDPOINTS:
            words = [of[arm]["said"] for of in verdicts[endpoint] if arm in of]
            cells.append(f"{words.count('better')}, {words.count('worse')} of {len(words)}")
        lines.append(f"| {ARMS[arm].words} | {' | '.join(cells)} |")
    return [*lines, ""]


def made() -> str:
    """What stands between the marks of the page."""
    about = json.loads((HERE / "results" / "about.json").read_text(encoding="utf-8"))
    ran = set(lines_of("values")["task"])
    sources = [source for source in JUDGED if source in ran]
    versions = ", ".join(f"{name} {of[:12]}" for name, of in about["versions"].items())
    lines = ["", *summary(sources), *(line for source in sources for line in table(source))]
    runs = lines_of("values").drop_duplicates(["task", "arm", "seed"])
    trials, judged = (of["cpu_seconds"].sum() / 60 for of in (lines_of("tried"), runs))
    lines += [f"Commit of the protocol {about['commit']}; {versions}; {about['machine']}."]
    lines += [f"Trials took {trials:.1f} CPU minutes, judged runs {judged:.1f}.", ""]
    return "\n".join(lines)


def between(page: str, text: str) -> str:
    """``page`` with ``text`` between its marks."""
    before, rest = page.split(START)
    return f"{before}{START}\n{text}{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(between(page, made()), encoding="utf-8")


if __name__ == "__main__":
    main()
