# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/which-method-when.md and of the five methods' cards from ``results``.

python lab/regimes/regime_page.py
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import regime_list as regimes
from regime_list import CEILING, EQUAL, FEDAVG, Regime

from fairflare.report.fairness import holm, paired

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "which-method-when.md"
CARDS = ("fedism-plus", "fedheal", "fedce", "fedlwr", "fedufo")
START, END = "<!-- results -->", "<!-- end of results -->"
CONFIRMED, CONTRADICTED, UNDECIDED, NO_ROOM = "confirmed", "contradicted", "not shown", "no room shown"
ROUNDS, PASSES = "equal rounds", "equal passes"
HEADS = ["regime", "seed", "arm", "rounds", "primary", "second", "guard", "validation", "cpu_seconds", "config"]
POWER = 3.145
"""Of the smallest difference that ten seeds find: t(.975, 9) + t(.8, 9)."""


@lru_cache(maxsize=1)
def values() -> pd.DataFrame:
    """The lines of ``values.csv``; empty where there is none."""
    path = RESULTS / "values.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=HEADS)


def of(regime: Regime, arm: str, rounds: int, column: str = "primary") -> np.ndarray:
    """(seeds,) of an endpoint after so many rounds; higher is better."""
    rows = values().query("regime == @regime.key and arm == @arm and rounds == @rounds").sort_values("seed")
    return rows[column].to_numpy(float)


def ran(regime: Regime) -> int:
    """Seeds that all arms have."""
    return len(of(regime, FEDAVG, regime.rounds))


def mdd(differences: np.ndarray) -> float:
    """The smallest mean difference that ten seeds find with 80 % power at 5 %."""
    return POWER * float(differences.std(ddof=1)) / math.sqrt(10)


def room(regime: Regime) -> np.ndarray:
    """(seeds,) the better of the ceilings minus FedAvg, both after the regime's rounds."""
    ceilings = [of(regime, key, regime.rounds) for key in (CEILING, "copies") if key in regime.arms]
    return max(ceilings, key=lambda one: one.mean()) - of(regime, FEDAVG, regime.rounds)


def comparisons(regime: Regime) -> dict[tuple[str, str], dict[str, Any]]:
    """(judged arm, what it is held against) -> ``paired`` of the difference, with Holm's p over the regime and MDD."""
    found = {}
    for arm, (_, placebo, _) in regime.judged.items():
        here, n = of(regime, arm, regime.rounds), regime.rounds
        others = {
            ROUNDS: (FEDAVG, n),
            PASSES: (FEDAVG, regime.equal_passes(arm)),
            EQUAL: (EQUAL, n),
            placebo: (placebo, n),
        }
        for name, (other, rounds) in others.items():
            differences = here - of(regime, other, rounds)
            found[arm, name] = {**paired(differences), "mdd": mdd(differences)}
    adjusted = holm({pair: one["p"] for pair, one in found.items()})
    return {pair: {**one, "p_holm": adjusted[pair]} for pair, one in found.items()}


def verdict(regime: Regime, arm: str, horizon: str) -> str:
    """By the rule of ``regime_list``."""
    if ran(regime) < len(regimes.SEEDS):
        return "not run" if not ran(regime) else UNDECIDED
    gap, against = room(regime), comparisons(regime)
    if gap.mean() < 2 * mdd(gap):
        return NO_ROOM
    one = against[arm, horizon]
    needed = [one, against[arm, EQUAL], against[arm, regime.judged[arm][1]]]
    lost = of(regime, arm, regime.rounds, "guard") - of(regime, FEDAVG, regime.rounds, "guard")
    if all(each["low"] > 0 and each["p_holm"] <= 0.05 for each in needed) and lost.mean() >= -regime.slack:
        return CONFIRMED
    third = gap.mean() / 3
    return CONTRADICTED if one["high"] < third and one["mdd"] < third else UNDECIDED


def rising(regime: Regime, arm: str) -> bool:
    """Whether an arm's validation value was still better at the end than a quarter of the run before."""
    end = regime.length(regime.arms[arm])
    before, last = (of(regime, arm, at, "validation") for at in (end - max(regimes.LAST, end // 4), end))
    return bool(len(last) > 1 and paired(last - before)["low"] > 0)


def points(one: Mapping[str, Any]) -> str:
    """Mean and 95 % interval in points."""
    return f"{100 * one['mean']:+.1f} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"


def drawn(heads: list[str], lines: list[list[str]]) -> str:
    edge = " | ".join(["---", *["--:"] * (len(heads) - 1)])
    return "\n".join(f"| {row} |" for row in (" | ".join(heads), edge, *(" | ".join(line) for line in lines)))


def summary() -> str:
    """A line per regime and judged arm."""
    lines = []
    for regime in regimes.REGIMES:
        for arm in regime.judged:
            name = f"{regime.key}: {regime.title}"
            if not ran(regime):
                lines.append([name, regime.arms[arm].words, "not run", "not run", "", ""])
                continue
            against, gap = comparisons(regime), room(regime)
            cells = [f"{verdict(regime, arm, one)}: {points(against[arm, one])}" for one in (ROUNDS, PASSES)]
            equal = paired(of(regime, EQUAL, regime.rounds) - of(regime, FEDAVG, regime.rounds))
            lines.append([name, regime.arms[arm].words, *cells, points(equal), points(paired(gap))])
    heads = ["regime", "method", f"over FedAvg, {ROUNDS}", f"over FedAvg, {PASSES}", "equal weights alone", "room"]
    return drawn(heads, lines)


def table(regime: Regime) -> str:
    """Every arm of a regime: primary, second and guard, passes, trials, and the difference to FedAvg."""
    lines, base = [], of(regime, FEDAVG, regime.rounds)
    for key, arm in regime.arms.items():
        cells = [f"{100 * abs(of(regime, key, regime.rounds, name).mean()):.1f}" for name in ("primary", "guard")]
        cells.insert(1, f"{abs(of(regime, key, regime.rounds, 'second').mean()):.3f}")
        gain = "" if key == FEDAVG else points(paired(of(regime, key, regime.rounds) - base))
        lines.append([arm.words + (", still rising" if rising(regime, key) else ""), *cells, gain, f"{arm.passes:g} x"])
    heads = ["arm", regime.primary.words, regime.second.words, regime.guard.words, "better than FedAvg by", "passes"]
    return drawn(heads, lines)


def sections() -> str:
    """The regimes that have run, an arm a line."""
    parts = []
    for regime in filter(ran, regimes.REGIMES):
        against = comparisons(regime)
        least = ", ".join(f"{regime.arms[arm].words} {100 * against[arm, ROUNDS]['mdd']:.1f}" for arm in regime.judged)
        said = (
            f"{regime.setting}. {regime.rounds} rounds, {ran(regime)} seeds. Smallest difference found: {least} points."
        )
        parts.append(f"### {regime.key}: {regime.title}\n\n{said}\n\n{table(regime)}")
    return "\n\n".join(parts)


def between(text: str, new: str) -> str:
    """``text`` with what stands between the two marks replaced."""
    head, _, rest = text.partition(START)
    return f"{head}{START}\n\n{new}\n\n{END}{rest.partition(END)[2]}"


def on_card(method: str) -> str:
    """What a method's card says of the bench."""
    lines = []
    for regime in filter(ran, regimes.REGIMES):
        against = comparisons(regime)
        for arm in (arm for arm, (card, *_) in regime.judged.items() if card == method):
            cells = [f"{verdict(regime, arm, one)}: {points(against[arm, one])}" for one in (ROUNDS, PASSES)]
            lines.append([regime.title, regime.primary.words, *cells])
    page = os.path.relpath(PAGE, card_of(method).parent)
    heads = [f"[bench of regimes]({page})", "endpoint", ROUNDS, PASSES]
    return drawn(heads, lines) if lines else f"No regime of the [bench]({page}) has run yet."


def card_of(method: str) -> Path:
    return PAGE.parent / "methods" / f"{method}.md"


def main() -> None:
    """Write page and cards."""
    PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), f"{summary()}\n\n{sections()}"), encoding="utf-8")
    for method in CARDS:
        card = card_of(method)
        card.write_text(between(card.read_text(encoding="utf-8"), on_card(method)), encoding="utf-8")


if __name__ == "__main__":
    main()
