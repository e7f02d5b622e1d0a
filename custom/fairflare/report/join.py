# SPDX-License-Identifier: Apache-2.0
"""Should a hospital join, and with which model: the answer from risks out of fold, and the page that tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairflare.functional import decision
from fairflare.functional.decision import Array, Design
from fairflare.functional.exchange import LEAST_SITES, PLACES, Deployed, Hospital, Known, added
from fairflare.report.templates import rendered
from fairflare.report.values import likely, signed

Json = dict[str, Any]
OWN, MIX = "own", "mix"
MOST_MORE = 10
"""Times a hospital's patients up to which a number of further ones is named."""
SEPARATELY = "fewer than four hospitals: each is judged by its own patients alone, and none by the others"


@dataclass(frozen=True)
class OutOfFold:
    """A hospital's patients, tested out of fold.

    Attributes:
        labels: (n,) 0 or 1.
        risks: (1 + C, R, n): the own model's, then those of the candidates.
        deployed: with it the hospital's regression says how far models are from the true risks (``slopes``), not its
            outcomes alone.
        folds: (R, n) in which each patient is tested; for scores over pairs.
    """

    labels: Array
    risks: Array
    deployed: Deployed | None = None
    folds: Array | None = None

    def at_hand(self) -> Hospital:
        """As the exchange takes it."""
        labels = np.broadcast_to(self.labels, self.risks.shape[1:])
        return Hospital(labels, self.risks, self.deployed, exact=True)


def answers(
    sites: Mapping[str, OutOfFold], candidates: Sequence[str], design: Design, margin: float, new_size: int = 100
) -> Json:
    """What is said to every hospital and of the federation, by the Brier score: the exchange, with all at hand.

    Args:
        sites: hospitals with patients enough.
        candidates: names of the candidates, in the order of the risks.
        design: how patients were tested.
        margin: a loss that does not matter, for the mix of models; 0: strict.
        new_size: patients of a hospital that is not in the federation.

    Returns:
        design, candidates: name -> average, between_sd, new_hospital, weights (of the candidates in the mix), and
        sites: name -> n, by ("regression" or "outcomes"), answer (a sentence), mix (share, p_harm, benefit with its
        interval) and candidates.
    """
    hospitals = {site: one.at_hand() for site, one in sites.items()}
    width = max(one.deployed.x.shape[1] if one.deployed else 0 for one in sites.values())
    known = in_place(hospitals.values(), Known(len(candidates), design, width))
    rows = {}
    for site, one in hospitals.items():
        row = known.answer(one.told(known), candidates, margin, one.by_regression(known, margin))
        rows[site] = {**row, "answer": sentence(row, candidates, known.weights)}
    about = {"score": "brier", "folds": design.folds, "repeats": design.repeats, "kappa": design.kappa}
    mixed = dict(zip(candidates, (float(w) for w in known.weights), strict=True))
    together = known.together(candidates, new_size)
    note = SEPARATELY if len(sites) < LEAST_SITES else ""
    return {**about, "margin": margin, "candidates": together, "weights": mixed, "sites": rows, "note": note}


def in_place(hospitals: Iterable[Hospital], known: Known) -> Known:
    """``known`` with all sums, of hospitals at hand."""
    everyone = list(hospitals)
    while known.next < PLACES:
        known = known.after(added(one.terms(known) for one in everyone))
    return known


def choice(row: Mapping[str, Any], candidates: Sequence[str]) -> tuple[str, str]:
    """Which answer a hospital gets ("join", "join_with", "stay", "same", "needs_more" or "needs_many"), and the
    candidate of which it speaks."""
    each: Mapping[str, Json] = row["candidates"]
    gains = [name for name in candidates if each[name]["verdict"] == decision.GAINS]
    best = max(gains or candidates, key=lambda name: each[name]["shrunken"])
    verdicts = {one["verdict"] for one in each.values()}
    if gains:
        return ("join" if best == candidates[0] else "join_with"), best
    if verdicts in ({decision.LOSES}, {decision.SAME}):
        return ("stay" if decision.LOSES in verdicts else "same"), best
    more = each[best]["more_patients"]
    return ("needs_more" if more is not None and more <= MOST_MORE * row["n"] else "needs_many"), best


def sentence(row: Mapping[str, Any], candidates: Sequence[str], weights: Array | None = None) -> str:
    """The answer to one hospital, in words; without ``weights`` there is no mix."""
    kind, name = choice(row, candidates)
    one, mix = row["candidates"][name], "" if weights is None else f" {mixed(row, candidates, weights)}"
    if kind in ("join", "join_with"):
        words = "Join" if kind == "join" else f"Join with this model: {name}"
        return f"{words} (benefit {_interval(one)}, probability of harm {likely(one['p_harm'])}).{mix}"
    if kind == "stay":
        return f"Stay alone: every candidate is worse than the own model (the best by {_interval(one)})."
    if kind == "same":
        return f"No difference that matters: no candidate is far from the own model.{mix}"
    few = kind == "needs_more"
    needs = f"needs about {rounded(one['more_patients']):,} more" if few else f"needs over {MOST_MORE} times the"
    return f"Cannot be told: {name} {needs} patients (benefit {_interval(one)}).{mix}"


def rounded(many: int) -> int:
    """To two figures."""
    return round(many, 2 - len(str(many)))


def mixed(row: Mapping[str, Any], candidates: Sequence[str], weights: Array) -> str:
    """Which mix of models is safe."""
    share = row[MIX]["share"]
    if not share:
        return "No mix with the own model is safe enough."
    parts = [f"{share * w:.0%} {name}" for name, w in zip(candidates, weights, strict=True) if share * w >= 0.005]
    return f"Safe mix: {1 - share:.0%} own, {', '.join(parts)} (benefit {_interval(row[MIX])})."


def _interval(one: Mapping[str, Any]) -> str:
    value = one.get("shrunken", one["benefit"])
    return f"{signed(value, 4)} [{signed(one['low'], 4)}, {signed(one['high'], 4)}]"


def page(found: Mapping[str, Any]) -> str:
    """``join.html``: the federation, then a sheet for every hospital, each on a printed page of its own."""
    return rendered("join", found=found)
