# SPDX-License-Identifier: Apache-2.0
"""Writes docs/which-method-when.md, and a paragraph of each method's card, from the files in ``results``.

python lab/plateau/plateau_page.py
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plateau_regimes as regimes
from plateau_regimes import CONTRIBUTION, SEEDS, SITES, Regime
from scipy.stats import kendalltau

from fairflare.report.fairness import corrected, holm, paired
from fairflare_lab.functional import shapley

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "which-method-when.md"
CARD_FOLDERS = (PAGE.parent / "methods", HERE.parent / "cards")
COALITIONS = "coalition-"
CHANCE = 0.1
"""What nobody's model scores; the same for all sites' Shapley values, so that no rank depends on it."""
CONFIRMED, REFUTED, UNDECIDED, NO_ROOM = "confirmed", "refuted", "undecided", "no room shown"
Values = dict[str, np.ndarray]
"""Arm -> (seeds,) of an endpoint."""
EXTRA = {
    "examples": "n_k, the number of examples",
    "loo": "leaving a site out (7 trainings)",
    "placebo": "placebo: shares shuffled over sites (0 by symmetry)",
    "ceiling": "ceiling: Shapley values of one half of the test images, of those of the other",
}


def read(name: str) -> list[dict[str, str]]:
    """The lines of a file of results."""
    path = RESULTS / name
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows_of(regime: Regime) -> list[dict[str, str]]:
    """The lines of ``values.csv`` that a regime reads."""
    key = regime.rows or regime.key
    return [row for row in read("values.csv") if row["regime"] == key and row["arm"] in regime.arms]


def scored(regime: Regime, sets: Sequence[str], worst: bool, column: str = "score") -> Values:
    """The mean, or the worst, of a regime's sets per arm and seed."""
    rows = [row for row in rows_of(regime) if row["set"] in sets]
    cells: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        cells.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(float(row[column]))
    join = (max if column == "loss" else min) if worst else (lambda of: sum(of) / len(of))
    return {arm: np.array([join(seeds[seed]) for seed in sorted(seeds, key=int)]) for arm, seeds in cells.items()}


def taus(regime: Regime) -> Values:
    """Kendall's tau-b of what each method says last with the exact Shapley values, per seed."""
    halves = [{arm: of for arm, of in scored(regime, (name,), False).items()} for name in regime.endpoint]
    if not halves[0]:
        return {}
    n = len(halves[0][regime.method])
    both = {arm: (halves[0][arm] + halves[1][arm]) / 2 for arm in halves[0]}
    said: dict[str, dict[str, dict[str, float]]] = {}
    for row in read("contribution.csv"):
        said.setdefault(row["arm"], {}).setdefault(row["seed"], {})[row["site"]] = float(row["estimate"])
    found: dict[str, list[float]] = {}
    for k, seed in enumerate(sorted(next(iter(said.values())), key=int)):
        true, first, second = (worth(of, k) for of in (both, *halves))
        estimates = {arm: [of[seed][site] for site in SITES] for arm, of in said.items()}
        everyone = both[name_of(frozenset(SITES))][k]
        estimates["loo"] = [everyone - both[name_of(frozenset(SITES) - {site})][k] for site in SITES]
        for arm, estimate in estimates.items():
            found.setdefault(arm, []).append(tau(estimate, true))
        found.setdefault("ceiling", []).append(tau(first, second))
        found.setdefault("placebo", []).append(0.0)
    assert all(len(of) == n for of in found.values())
    return {arm: np.array(of) for arm, of in found.items()}


def name_of(team: frozenset[str]) -> str:
    return COALITIONS + "".join(site[-1] for site in SITES if site in team)


def worth(values: Mapping[str, np.ndarray], k: int) -> list[float]:
    """Exact Shapley values of the sites, of the k-th seed."""
    utility = {team: float(values[name_of(team)][k]) for team in shapley.coalitions(SITES)}
    exact = shapley.exact(SITES, {**utility, frozenset(): CHANCE})
    return [exact[site] for site in SITES]


def tau(one: Sequence[float], other: Sequence[float]) -> float:
    found = float(kendalltau(one, other).statistic)
    return found if np.isfinite(found) else 0.0  # all alike: they rank nothing


def endpoint(regime: Regime) -> Values:
    return taus(regime) if regime.key == CONTRIBUTION else scored(regime, regime.endpoint, regime.worst)


def compared(regime: Regime, values: Values) -> dict[str, dict[str, Any]]:
    """What the method is held against -> ``paired`` of it minus that, with Holm's p over the regime's comparisons."""
    found = {arm: paired(values[regime.method] - values[arm]) for arm in regime.comparisons}
    for arm, p in holm({arm: one["p"] for arm, one in found.items()}).items():
        found[arm]["p_holm"] = p
    return found


def room(regime: Regime, values: Values) -> dict[str, Any]:
    """``paired`` of the ceiling minus FedAvg, or minus numbers of examples."""
    return paired(values[regime.ceiling] - values["examples" if regime.key == CONTRIBUTION else "fedavg"])


def verdict(regime: Regime, values: Values) -> str:
    """By the rule in ``plateau_regimes``."""
    found, ceiling = compared(regime, values).values(), room(regime, values)
    if len(values[regime.method]) < 2 or not ceiling["low"] > 0:
        return NO_ROOM if len(values[regime.method]) >= 2 else UNDECIDED
    if all(corrected(one, True) == "better" for one in found):
        return CONFIRMED
    return REFUTED if any(one["high"] < regime.matters for one in found) else UNDECIDED


def difference(found: Mapping[str, Any], factor: float) -> str:
    """Mean and interval."""
    if found["low"] is None:
        return f"{factor * found['mean']:+.{PLACES[factor]}f} (one seed, no interval)"
    low, high = (f"{factor * found[end]:+.{PLACES[factor]}f}" for end in ("low", "high"))
    return f"{factor * found['mean']:+.{PLACES[factor]}f} [{low}, {high}]"


PLACES = {100.0: 1, 1.0: 2}


def section(regime: Regime) -> list[str]:
    """A regime's part of the page."""
    head = [f"## {regime.title}", f"{regime.setting[0].upper()}{regime.setting[1:]}. {regime.rounds} rounds."]
    head.append(f"*How a federation recognises it* (not measured here): {regime.sign}.")
    values = endpoint(regime)
    if not values:
        return [*head, f"**Not run**: no seed of it has ended; nothing is said here. {GO_ON.format(key=regime.key)}"]
    others = scored(regime, regime.others, False) if regime.others else {}
    of = f"{regime.metric} {'of the worst of' if regime.worst else 'on'} {', '.join(regime.endpoint)}, %"
    of = "cosine of a site's update with the others', x 100" if regime.metric == "cosine" else of
    if regime.baselines:
        return [*head, own_table(regime, values, others), seeds_told(regime, values)]
    heads = ["arm", "Kendall's tau" if regime.key == CONTRIBUTION else of]
    heads += [f"mean of {', '.join(regime.others)}, %"] if others else []
    heads += ["passes", f"{regime.arms[regime.method].words} minus it", "Holm's p", ""]
    arms = [arm for arm in regime.arms if not arm.startswith(COALITIONS)]
    arms += [arm for arm in EXTRA if arm in values and arm not in arms]
    table = drawn(heads, [line(regime, arm, values, others) for arm in arms])
    return [*head, table, told(regime, values)]


def held(regime: Regime, values: Values) -> dict[tuple[str, str], dict[str, Any]]:
    """(baseline, what it is held against) -> ``paired``, with Holm's p over all of a regime of own models."""
    pairs = [(arm, than) for arm in regime.baselines for than in ("fedavg", "solo")]
    found = {pair: paired(values[pair[0]] - values[pair[1]]) for pair in pairs}
    for pair, p in holm({pair: one["p"] for pair, one in found.items()}).items():
        found[pair]["p_holm"] = p
    return found


def own_table(regime: Regime, values: Values, others: Values) -> str:
    """A line per arm; baselines with their differences from FedAvg and from training alone."""
    compare = held(regime, values)
    sites = "worst" if regime.worst else "spoilt"
    heads = ["arm", f"accuracy at the {sites} site{'' if regime.worst else 's'}, %", "mean of the others' own, %"]
    heads[2] = "mean of all sites, %" if regime.others == regime.endpoint else "mean of clean sites, %"
    heads += ["passes", "minus FedAvg", "Holm's p", "", "minus training alone", "Holm's p", ""]
    lines = []
    for arm, known in regime.arms.items():
        found = [known.words, f"{100 * values[arm].mean():.1f}", f"{100 * others[arm].mean():.1f}"]
        found.append(f"{known.times * known.passes:g} x")
        for than in ("fedavg", "solo"):
            one = compare.get((arm, than))
            p = f"{one['p_holm']:.3f}" if one and one["p_holm"] is not None else ""
            found += [difference(one, 100.0), p, corrected(one, True)] if one else ["", "", ""]
        lines.append(found)
    return drawn(heads, lines)


def seeds_told(regime: Regime, values: Values) -> str:
    n = len(values["fedavg"])
    said = f"{n} of {len(SEEDS)} seeds; {len(regime.baselines) * 2} comparisons."
    return said if n == len(SEEDS) else f"{said} {GO_ON.format(key=regime.key)}"


def factor(regime: Regime) -> float:
    """Points of per cent, but of tau."""
    return 1.0 if regime.key == CONTRIBUTION else 100.0


def line(regime: Regime, arm: str, values: Values, others: Values) -> list[str]:
    """An arm's row of a regime's table."""
    known, scale, compare = regime.arms.get(arm), factor(regime), compared(regime, values)
    found = [known.words if known else EXTRA[arm], f"{scale * values[arm].mean():.{PLACES[scale]}f}"]
    found += [f"{100 * others[arm].mean():.1f}"] if others else []
    found.append(f"{known.times * known.passes:g} x" if known else "")
    if arm == regime.method:
        return [*found, "", "", ""]
    if arm not in compare:
        return [*found, difference(paired(values[regime.method] - values[arm]), scale), "", ""]
    one = compare[arm]
    p = f"{one['p_holm']:.3f}" if one["p_holm"] is not None else ""
    return [*found, difference(one, scale), p, corrected(one, True)]


def told(regime: Regime, values: Values) -> str:
    """The verdict, and on how many seeds it rests."""
    n, base = len(values[regime.method]), "n_k" if regime.key == CONTRIBUTION else "FedAvg"
    found = [f"**{regime.arms[regime.method].words}: {verdict(regime, values)}.** {n} of {len(SEEDS)} seeds."]
    found.append(f"Room (ceiling minus {base}): {difference(room(regime, values), factor(regime))}.")
    found += weights(regime)
    if regime.others:
        others = scored(regime, regime.others, False)
        cost = difference(paired(others[regime.method] - others["fedavg"]), factor(regime))
        found.append(f"Mean of {', '.join(regime.others)}: {cost} against FedAvg.")
    if "passes" in values:
        found += plateau(regime)
    return " ".join(found if n == len(SEEDS) else [*found, GO_ON.format(key=regime.key)])


GO_ON = "`python lab/plateau/plateau_run.py FOLDER --only {key} --seeds N,...`, then `--collect`, adds seeds."


def plateau(regime: Regime) -> list[str]:
    """How FedAvg's validation loss went on, and whether it had stood still."""
    loss, times = scored(regime, ("validation",), False, "loss"), regime.arms["passes"].times
    said = f"FedAvg's validation loss is {loss['fedavg'].mean():.3f}, and {loss['passes'].mean():.3f} after {times:g} "
    high = paired(loss["passes"] - loss["fedavg"])["high"]
    fell = "It had not stood still: what more passes gain here is, at least in part, training for longer."
    return [f"{said}times the rounds.", *([fell] if high is not None and high < 0 else [])]


def weights(regime: Regime) -> list[str]:
    """What the chosen sites weigh together in the method's last round."""
    if not regime.chosen:
        return []
    rows = {(r["seed"], r["arm"]): float(r["chosen_weight"]) for r in rows_of(regime)}
    arms = ("fedavg", regime.method)
    found = {arm: np.mean([w for (_, a), w in rows.items() if a == arm]) for arm in arms}
    names = ", ".join(site.removeprefix("site-") for site in regime.chosen)
    return [f"Sites {names} weigh {found[regime.method]:.2f} together, under FedAvg {found['fedavg']:.2f}."]


def summary() -> str:
    """A line per regime."""
    lines = []
    for regime in (one for one in regimes.REGIMES if not one.baselines):
        values, arm = endpoint(regime), regime.arms[regime.method]
        if not values:
            lines.append([regime.title, arm.words, "not run", "", "", ""])
            continue
        found = compared(regime, values)
        gains = [difference(found[k], factor(regime)) for k in ("fedavg", "examples", "passes") if k in found]
        same = "no other passes" if regime.key == CONTRIBUTION else "the same: it has FedAvg's passes"
        lines.append(
            [
                regime.title,
                arm.words,
                verdict(regime, values),
                *gains,
                *([same] * (2 - len(gains))),
                f"{arm.passes:g} x",
            ]
        )
    return drawn(["regime", "method", "verdict", "gain at equal rounds", "gain at equal passes", "passes"], lines)


def written() -> str:
    """The page."""
    page = [
        HEAD,
        summary(),
        UNITS,
        *(part for regime in regimes.REGIMES for part in section(regime)),
        "## The rule",
        rule(),
        regimes.ADDED,
        LIMITS,
    ]
    return "\n\n".join(page) + "\n"


CARDS = {
    "fedism-plus": ("quality", "quality-20", "quality-20-skew", "quality-scans"),
    "fedheal": ("looks", "looks-sgd", "looks-conflict"),
    "fedufo": ("subgroups",),
    "fedce": (CONTRIBUTION,),
    "fedlwr": ("layers-early", "layers-late", "layers-late-wide"),
    **{arm: ("looks-own",) for arm in regimes.LOOKS_OWN.baselines},
    **{arm: ("looks-own", "quality-own") for arm in regimes.FOUR},
}
"""Method -> the regimes that are about it."""
BENCH = "**In the plateau bench**"


def on_card(method: str) -> str:
    """What a method's card says of the bench: a paragraph of one line."""
    by_key, said = {regime.key: regime for regime in regimes.REGIMES}, []
    for regime in (by_key[key] for key in CARDS[method]):
        values = endpoint(regime)
        if not values and regime not in regimes.FIRST:
            continue
        if regime.baselines:
            said.append(of_own(regime, method, values))
            continue
        text = f"{regime.title.lower()}, " + (verdict(regime, values) if values else "not run")
        if values:
            found, base = compared(regime, values), "examples" if regime.key == CONTRIBUTION else "fedavg"
            over = "n_k in Kendall's tau" if regime.key == CONTRIBUTION else f"FedAvg in points of {regime.metric}"
            over = over.replace("points of cosine", "hundredths of the updates' cosine")
            n = len(values[regime.method])
            text += f": {difference(found[base], factor(regime))} over {over}, {n} of {len(SEEDS)} seeds"
        said.append(text)
    page = os.path.relpath(PAGE, card_of(method).parent)
    return f"{BENCH} ([which method when]({page})): {'; '.join(said)}." if said else ""


def of_own(regime: Regime, arm: str, values: Values) -> str:
    """A baseline's differences in a regime of own models."""
    found, n = held(regime, values), len(values[arm])
    where = "the worst site" if regime.worst else "the spoilt sites"
    parts = [
        f"{difference(found[arm, than], 100.0)} {words}"
        for than, words in (("fedavg", "over FedAvg"), ("solo", "over training alone"))
    ]
    return f"{regime.title.lower()}, points of accuracy at {where}: {' and '.join(parts)}, {n} of {len(SEEDS)} seeds"


def with_bench(text: str, method: str) -> str:
    """A card whose first paragraph is ``on_card``."""
    title, *paragraphs = text.split("\n\n")
    found = filter(None, [on_card(method)])
    return "\n\n".join([title, *found, *(one for one in paragraphs if not one.startswith(BENCH))])


def rule() -> str:
    return (regimes.__doc__ or "").strip().replace("``", "`")


HEAD = """# Which method when

Kinds of federation, each made so that one of the five papers' mechanisms should work: what it gained over FedAvg,
at what cost, and beside it a ceiling (what knowing the truth would give) and a placebo (the method with its weights
shuffled). Networks of about 24,000 parameters and real handwriting at 16 x 16 pixels, but for *quality shift of scans*
(66,000, real scans at 28 x 28). This page is written by
`python lab/plateau/plateau_page.py` from [the results](../lab/plateau/results); regimes, endpoints and
the rule were [written down](../lab/plateau/plateau_regimes.py) before the runs."""
UNITS = """Gains are points of the regime's endpoint (of Kendall's tau in *contribution*, over n_k), with 95 % intervals
over seeds. A verdict is about the mechanism in this federation; it is no promise for another one."""
LIMITS = """## What this cannot show

Small networks and images, and one learning rate, FedAvg's, from one seed. FedAvg was not watched for 100 rounds after
its plateau; where there is an arm with more passes, the page says how its validation loss went on. What is wrong at the
sites is planted. The signs by which a federation would recognise its regime are what was planted; how well `preflight`
or `join` could measure them was not looked at. Fewer seeds than ten decide less, and intervals say how much less; the
clock ended the runs of the first two regimes of *layers*. *Feature shift in late layers* says nothing of Fed-LWR: no
room is shown, and FedAvg is far from a plateau; *two pixels* is that shift made stronger. In *quality*, *domain skew*,
*domain skew under the paper's training*, *the planted conflict*, *two pixels*, *subpopulations* and *quality shift of
scans* the first three to seven seeds had been looked at before the others that the declaration asks for were made. A
refutation needs one of two or three intervals, without a correction for their number.

Changed before the runs that are reported: *quality* has 10 sites of 120 images and no longer 20 of 60, *domain skew*
one site of each look with ink and paper swapped in place of photographs and print, which networks of this size did not
learn, and SGD .001 gave way to Adam: two shared cores allow no more rounds (20 sites and SGD .001 are among what was
added). The runs were made before convolutions on CPUs had channels last: the same runs now differ by rounding. A first
batch of runs kept no scores and was thrown away unseen.

Rounds of *contribution* and *layers* were guessed. In *quality* the validation loss stood still, but accuracy on the
spoilt images went on rising, so that FedISM+'s gain at equal rounds is one that more rounds of FedAvg give too; its
ceiling, of one weight that was tried, lies below the method. *Subpopulations* is judged by accuracy of the worst group
without a bound on what the majority loses, and with `min_count=1`, where sites otherwise say nothing of groups below
ten. In *contribution* leaving a site out is scored on the test images of the Shapley values that it is held against."""


def drawn(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    edge = " | ".join(["---", *["--:"] * (len(heads) - 1)])
    return "\n".join(f"| {row} |" for row in (" | ".join(heads), edge, *(" | ".join(line) for line in lines)))


def card_of(method: str) -> Path:
    """The card of a method of the house, or of the lab."""
    return next(one for folder in CARD_FOLDERS if (one := folder / f"{method}.md").is_file())


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    for name in CARDS:
        card = card_of(name)
        card.write_text(with_bench(card.read_text(encoding="utf-8"), name), encoding="utf-8")
