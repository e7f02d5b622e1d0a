# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/which-method-when.md and of the five methods' cards from ``results``.

python lab/regimes/regime_page.py
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import regime_list as regimes
from regime_list import CEILING, EQUAL, FEDAVG, Regime
from scipy import stats

from fairflare.report.advice import NOTHING, TRY, Signs, advised
from fairflare.report.clinical import wilson
from fairflare.report.fairness import holm, paired

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "which-method-when.md"
CARDS = ("fedism-plus", "fedheal", "fedce", "fedlwr", "fedufo")
START, END = "<!-- results: lab/regimes/regime_page.py -->", "<!-- end of results -->"
SIGNS = {
    "site_gap": ("site", "+.0%"),
    "group_gap": ("group", "+.0%"),
    "agreement": ("agreement", ".2f"),
    "similarity": ("CKA", ".2f"),
}
"""Sign -> its word in tables and its form."""
ARM_OF = {"equal": EQUAL, "sites": "rival", "own": "ditto", "groups": "dro"}
"""Advice -> the arm that it names, in a regime that has it."""
FEWER = 0.05
"""Share of FedAvg's loss from which on an arm gains in a random federation."""
CONFIRMED, CONTRADICTED, UNDECIDED, NO_ROOM = "confirmed", "contradicted", "not shown", "no room shown"
ROUNDS, PASSES = "equal rounds", "equal passes"
HEADS = ["regime", "seed", "arm", "rounds", "primary", "second", "guard", "validation", "cpu_seconds", "config"]


@lru_cache(maxsize=4)
def lines_of(name: str) -> pd.DataFrame:
    """The lines of a file of ``RESULTS``; none where it is missing."""
    path = RESULTS / f"{name}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=HEADS)


def values() -> pd.DataFrame:
    return lines_of("values")


def of(regime: Regime, arm: str, rounds: int, column: str = "primary") -> np.ndarray:
    """(seeds,) of an endpoint after so many rounds; higher is better."""
    rows = values().query("regime == @regime.key and arm == @arm and rounds == @rounds").sort_values("seed")
    return rows[column].to_numpy(float)


def ran(regime: Regime) -> int:
    """Seeds that all arms have."""
    return len(of(regime, FEDAVG, regime.rounds))


def mdd(differences: np.ndarray) -> float:
    """The smallest mean difference that so many seeds find with 80 % power at 5 %: 3.145 sd / sqrt(10) for ten."""
    n = len(differences)
    power = stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)
    return float(power * differences.std(ddof=1) / math.sqrt(n))


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
            about = [f"{regime.key}: {regime.title}", regime.arms[arm].words, f"{regime.arms[arm].passes:g} x"]
            if ran(regime) < 2:
                lines.append([*about, "not run", "", "", "", "", shown(regime)])
                continue
            against, gap = comparisons(regime), room(regime)
            cells = [f"{verdict(regime, arm, one)}: {points(against[arm, one])}" for one in (ROUNDS, PASSES)]
            equal = paired(of(regime, EQUAL, regime.rounds) - of(regime, FEDAVG, regime.rounds))
            lines.append([*about, str(ran(regime)), *cells, points(equal), points(paired(gap)), shown(regime)])
    gains = [f"over FedAvg, {one}" for one in (ROUNDS, PASSES)]
    return drawn(["regime", "method", "cost", "seeds", *gains, "equal weights alone", "room", "signs"], lines)


def shown(regime: Regime) -> str:
    """Medians over seeds of the signs that ``--advise`` measures there."""
    rows = signs().query("regime == @regime.key")
    parts = [f"{words} {rows[name].median():{form}}" for name, (words, form) in SIGNS.items() if len(rows)]
    return ", ".join(parts) or "not measured"


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


def signs() -> pd.DataFrame:
    """Signs by regime and seed."""
    return lines_of("signs") if "site_gap" in lines_of("signs") else pd.DataFrame(columns=["regime", *SIGNS])


def hits() -> list[tuple[str, str, bool]]:
    """Federation, its advice, and whether that was right, by the rule of ``regime_advice``."""
    found, names = [], [one.name for one in fields(Signs)]
    for row in lines_of("advice").to_dict("records"):
        if "agreement" in row:
            gains = {what: row[what] >= FEWER for what in ARM_OF}
            found.append((f"table {row['seed']}", advised(Signs(**{name: row[name] for name in names})), gains))
    for regime in regimes.REGIMES:
        rows = signs().query("regime == @regime.key").to_dict("records")
        if rows and ran(regime) > 1:
            base = of(regime, FEDAVG, regime.rounds)
            arms = {what: arm for what, arm in ARM_OF.items() if arm in regime.arms}
            gains = {what: paired(of(regime, arm, regime.rounds) - base)["low"] > 0 for what, arm in arms.items()}
            advice = Counter(advised(Signs(**{name: row[name] for name in names})) for row in rows)
            found.append((regime.key, advice.most_common(1)[0][0], gains))
    return [(of, what, gains.get(what, what == NOTHING and not any(gains.values()))) for of, what, gains in found]


def rates(of: Sequence[tuple[str, str, bool]]) -> dict[str, tuple[int, ...]]:
    """Advice -> how often it was right and given, on tables and in regimes."""
    found = {}
    for what in TRY:
        given = [(name in regimes.BY_KEY, right) for name, advice, right in of if advice == what]
        parts = [[right for of_regime, right in given if of_regime == one] for one in (False, True)]
        found[what] = tuple(n for part in parts for n in (sum(part), len(part)))
    return found


def hit_table() -> str:
    """A line per advice, and their sum, over random federations and regimes."""
    found, lines = hits(), []
    for name, some in {**{what: [one for one in found if one[1] == what] for what in TRY}, "all": found}.items():
        right, n = sum(one[2] for one in some), len(some)
        low, high = wilson(right, n)
        of_regimes = ", ".join(f"{one[0]}{'' if one[2] else ' (wrong)'}" for one in some if one[0] in regimes.BY_KEY)
        lines.append([name, f"{right} of {n}", f"[{low:.0%}, {high:.0%}]" if n else "", of_regimes])
    tables = [row for row in lines_of("advice").to_dict("records") if "agreement" in row]
    usual = {what: sum(row[what] >= FEWER for row in tables) for what in ARM_OF}
    always = ", ".join(f"{what} {right}" for what, right in usual.items())
    table = drawn(["advice", "right", "95 % interval", "regimes among them"], lines)
    return f"{table}\n\nOf the {len(tables)} tables an arm gained without any sign in: {always}."


def sections() -> str:
    """The regimes that have run, an arm a line."""
    parts, chosen = [], lines_of("chosen")
    for regime in (one for one in regimes.REGIMES if ran(one) > 1):
        against = comparisons(regime)
        least = ", ".join(f"{regime.arms[arm].words} {100 * against[arm, ROUNDS]['mdd']:.1f}" for arm in regime.judged)
        trials = int(chosen.query("regime == @regime.key")["trials"].min())
        said = (
            f"{regime.setting}. {regime.rounds} rounds, {ran(regime)} seeds, {trials} trials an arm. "
            f"Smallest difference that these seeds find: {least}; ceiling {100 * mdd(room(regime)):.1f} points."
        )
        parts.append(f"### {regime.key}: {regime.title}\n\n{said}\n\n{table(regime)}")
    return "\n\n".join(parts)


def made() -> str:
    """What the page's results are."""
    advice = f"### Advice\n\n{hit_table()}"
    return "\n\n".join(filter(None, [summary(), advice, sections()]))


def between(text: str, new: str) -> str:
    """``text`` with what stands between the two marks replaced."""
    head, _, rest = text.partition(START)
    return f"{head}{START}\n\n{new}\n\n{END}{rest.partition(END)[2]}"


def on_card(method: str) -> str:
    """What a method's card says of the bench."""
    lines = []
    for regime in (one for one in regimes.REGIMES if ran(one) > 1):
        against = comparisons(regime)
        for arm in (arm for arm, (card, *_) in regime.judged.items() if card == method):
            cells = [f"{verdict(regime, arm, one)}: {points(against[arm, one])}" for one in (ROUNDS, PASSES)]
            lines.append([regime.title, regime.primary.words, *cells])
    page = os.path.relpath(PAGE, card_of(method).parent)
    heads = [f"[bench of regimes]({page}), `robust=off`", "endpoint", ROUNDS, PASSES]
    return drawn(heads, lines) if lines else f"No regime of the [bench]({page}) has run yet."


def card_of(method: str) -> Path:
    return PAGE.parent / "methods" / f"{method}.md"


def main() -> None:
    """Write page and cards."""
    PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), made()), encoding="utf-8")
    for method in CARDS:
        card = card_of(method)
        card.write_text(between(card.read_text(encoding="utf-8"), on_card(method)), encoding="utf-8")


if __name__ == "__main__":
    main()
