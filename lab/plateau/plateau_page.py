# SPDX-License-Identifier: Apache-2.0
"""Writes docs/which-method-when.md, a table of each method's card, and shown.csv, every table, from ``results``.

python lab/plateau/plateau_page.py
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plateau_regimes as regimes
from plateau_regimes import CONTRIBUTION, SEEDS, SITES, Regime
from scipy.stats import kendalltau

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "results"))

from kept import write_shown  # noqa: E402

from fairflare.report.fairness import corrected, holm, paired  # noqa: E402
from fairflare_lab.functional import shapley  # noqa: E402

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE, SHOWN = HERE.parents[1] / "docs" / "which-method-when.md", RESULTS / "shown.csv"
CARD_FOLDERS = (PAGE.parent / "methods", HERE.parent / "cards")
COALITIONS = "coalition-"
CHANCE = 0.1
"""What nobody's model scores; the same for all sites' Shapley values, so that no rank depends on it."""
CONFIRMED, CONTRADICTED, UNDECIDED, NO_ROOM = "confirmed", "contradicted", "not shown", "no room shown"
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
    return CONTRADICTED if any(one["high"] < regime.matters for one in found) else UNDECIDED


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
    return "\n\n".join([HEAD, summary(), READING, own_summary(), RULE]) + "\n"


def shown() -> str:
    """Every regime's tables as Markdown, of which ``shown.csv`` is made."""
    return "\n\n".join(part for regime in regimes.REGIMES for part in section(regime)) + "\n"


def own_summary() -> str:
    """Own models: the best baselines of each regime, by the gain over training alone."""
    lines = []
    for regime in (one for one in regimes.REGIMES if one.baselines):
        values = endpoint(regime)
        if values:
            found = held(regime, values)
            ranked = sorted(regime.baselines, key=lambda arm: -found[arm, "solo"]["mean"])
            for arm in ranked[:3]:
                gains = [difference(found[arm, than], 100.0) for than in ("fedavg", "solo")]
                lines.append([regime.title, regime.arms[arm].words, *gains])
    return drawn(["regime, three best of its methods", "method", "over FedAvg", "over training alone"], lines)


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
BENCH = "[plateau bench]"


def on_card(method: str) -> str:
    """What a method's card says of the bench: a table with a line per regime."""
    by_key, lines = {regime.key: regime for regime in regimes.REGIMES}, []
    for regime in (by_key[key] for key in CARDS[method]):
        values = endpoint(regime)
        if not values and regime not in regimes.FIRST:
            continue
        if regime.baselines:
            found = held(regime, values)
            where = "accuracy, worst site" if regime.worst else "accuracy, spoilt sites"
            both = [(found[method, than], corrected(found[method, than], True)) for than in ("fedavg", "solo")]
            cells = [f"{said.replace('cannot be told', UNDECIDED)}: {difference(one, 100.0)}" for one, said in both]
            lines.append([regime.title, where, *cells, f"{len(values[method])}"])
            continue
        base, metric = ("examples", "tau, over n_k") if regime.key == CONTRIBUTION else ("fedavg", regime.metric)
        gain = difference(compared(regime, values)[base], factor(regime)) if values else ""
        n = len(values[regime.method]) if values else 0
        lines.append([regime.title, metric, f"{verdict(regime, values)}: {gain}" if values else "not run", "", f"{n}"])
    page = os.path.relpath(PAGE, card_of(method).parent)
    heads = [f"{BENCH}({page})", "quantity", "over FedAvg, equal rounds", "over training alone", "seeds"]
    return drawn(heads, lines) if lines else ""


def with_bench(text: str, method: str) -> str:
    """A card whose last table, above its attribution, is ``on_card``."""
    paragraphs = [one for one in text.split("\n\n") if not one.startswith(f"| {BENCH}")]
    place = next(k for k, one in enumerate(paragraphs) if one.startswith("**Attribution."))
    return "\n\n".join([*paragraphs[:place], *filter(None, [on_card(method)]), *paragraphs[place:]])


HEAD = """# Which method when

Twelve kinds of federation, each made so that one paper's mechanism should work. The table says what the mechanism
gained over FedAvg, and at what cost. A ceiling shows what knowing the truth would give. A placebo is the method with
its weights shuffled.

| your federation | try first | then |
|---|---|---|
| groups of patients with another prevalence, at several sites | [FedUFO](methods/fedufo.md) | [prior correction](after.md) alone |
| some sites with noisy or blurred images | FedAvg with more rounds | [FedISM+](methods/fedism-plus.md) if rounds are limited, passes are not |
| sites whose images look different | FedAvg with more rounds, or own layers: [FedPer](methods/fedper.md), [FedBN](methods/fedbn.md) | [FedHEAL](methods/fedheal.md), [Fed-LWR](methods/fedlwr.md) |
| outcomes more frequent at some sites | an intercept per site ([recalibrate](after.md)) | [Ditto](methods/ditto.md) |
| a regression on a table | [glm](methods/glm.md), exact | [SCAFFOLD](methods/scaffold.md) |
| sites that may send wrong updates | [trimmed mean](methods/trimmed-mean.md), [median](methods/median.md) | [robustness](robustness.md) |
| who contributed how much? | leave a site out: `fairflare contribution` | [FedCE](methods/fedce.md) |

Networks have about 24,000 parameters and real handwriting at 16 x 16 pixels. *Quality shift of scans* has 66,000 and
real scans at 28 x 28. `python lab/plateau/plateau_page.py` writes this page from
[the results](../lab/plateau/results). Regimes, endpoints and the rule were
[written down](../lab/plateau/plateau_regimes.py) before the runs.
[Every arm of every regime](../lab/plateau/results/shown.csv)."""  # noqa: E501
READING = """Gains are points of the regime's endpoint, in *contribution* Kendall's tau over n_k. Intervals are 95 %
over seeds. A verdict holds for the mechanism in this federation, not for another one.

- **FedISM+** gains at equal rounds in each quality regime. FedAvg with as many passes gains as much or more.
- **FedUFO** gains in subpopulations at equal rounds and at equal passes. It is judged by the worst group, without a
  bound on what the majority loses.
- **FedHEAL, FedCE and Fed-LWR** are contradicted here, or the regime shows no room.

## Own models

Methods that leave each site a model of its own, with their defaults and FedAvg's learning rate. Accuracy in points, at
the worst site or at the spoilt sites."""
RULE = """## The rule

All differences are paired by seed. A seed draws data, sites, first model and order.

- **There is room** where the interval of the ceiling minus FedAvg lies above 0. Without room a regime decides nothing.
- **Confirmed**: there is room. The method beats FedAvg at equal rounds, FedAvg with as many passes, and its placebo.
  Each interval lies above 0, and each of Holm's p is at most .05.
- **Contradicted**: there is room, and the upper end of one of these intervals lies below what matters. This is one
  point of accuracy or Dice, .1 of Kendall's tau. There is no correction for two or three intervals.
- **Not shown**: anything else, for instance too few seeds.

All arms have the rounds after which FedAvg's validation loss stood still on seed 100, which is not reported. An arm's
value is the mean of its last five rounds. All arms have FedAvg's learning rate. Seed 100 also chose the method's radius
and the ceiling's weight. Regimes that were added later are declared in the same file.

## What this cannot show

- Networks and images are small, and there is one learning rate.
- FedAvg was not watched for 100 rounds after its plateau. In *quality*, accuracy on spoilt images still rose.
- What is wrong at the sites is planted. Whether `preflight` or `join` could detect a regime was not measured.
- Clock time ended the first two regimes of *layers*. There, *feature shift in late layers* has no room and FedAvg is
  far from a plateau. *Two pixels* is that shift made stronger.
- In seven regimes, three to seven seeds had been seen before the others were made. Rounds of *contribution* and
  *layers* were guessed. *Scans* has 30 rounds, which are not a plateau.
- *Subpopulations* uses `min_count=1`, where sites otherwise do not report groups below ten.
- Before the reported runs sizes, looks and the optimizer were changed, and a first batch was discarded unseen."""


def drawn(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    edge = " | ".join(["---", *["--:"] * (len(heads) - 1)])
    return "\n".join(f"| {row} |" for row in (" | ".join(heads), edge, *(" | ".join(line) for line in lines)))


def card_of(method: str) -> Path:
    """The card of a method of the house, or of the lab."""
    return next(one for folder in CARD_FOLDERS if (one := folder / f"{method}.md").is_file())


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    write_shown(SHOWN, shown())
    for name in CARDS:
        card = card_of(name)
        card.write_text(with_bench(card.read_text(encoding="utf-8"), name), encoding="utf-8")
