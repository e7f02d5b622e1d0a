# SPDX-License-Identifier: Apache-2.0
"""Should a hospital join, and with which model: the answer from risks out of fold, and the pages that tell it.

The decision sheet tells one hospital on one page, made of ``join.json`` alone; its texts are in
``sheet_texts/LANGUAGE.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.engine.setup.join_plan import INTERCEPT
from fairflare.functional import decision
from fairflare.functional.decision import Array, Design, Owners
from fairflare.functional.exchange import LEAST_SITES, Deployed, Hospital, Known, in_place
from fairflare.report.decision import with_figures
from fairflare.report.values import likely, rendered, signed

Json = dict[str, Any]
OWN, MIX = "own", "mix"
MOST_MORE = 10
"""Times a hospital's patients up to which a number of further ones is named."""
SEPARATELY = "fewer than four hospitals: each is judged by its own patients alone, and none by the others"


@dataclass(frozen=True)
class OutOfFold:
    """A hospital's patients, tested out of fold.

    Attributes:
        labels: (N,) 0 or 1, of each row.
        risks, deployed: as of ``Hospital``.
        folds: (R, N) in which each row is tested; for scores over pairs.
        patients: (N,) whose row each is; None: each row is another patient.
    """

    labels: Array
    risks: Array
    deployed: Deployed | None = None
    folds: Array | None = None
    patients: Owners | None = None

    @property
    def n(self) -> int:
        """Patients."""
        return len(self.labels) if self.patients is None else len(np.unique(self.patients))

    def at_hand(self) -> Hospital:
        """As the exchange takes it."""
        labels = np.broadcast_to(self.labels, self.risks.shape[1:])
        patients = None if self.patients is None else np.broadcast_to(self.patients, labels.shape)
        return Hospital(labels, self.risks, self.deployed, True, patients)


def answers(
    sites: Mapping[str, OutOfFold], candidates: Sequence[str], design: Design, margin: float, new_size: int = 100
) -> Json:
    """What is said to every hospital and of the federation, by the Brier score: the exchange, with all at hand.

    Args:
        sites: hospitals with patients enough.
        candidates: names of the candidates, in the order of the risks.
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
    drawn = {**found, "decision": with_figures(found["decision"])} if "decision" in found else found
    return rendered("join", found=drawn)


FORMAT = 1
TEXTS = Path(__file__).parent / "sheet_texts"
LANGUAGES = ("en", "de", "fr")
TABLE_MODELS = ("regression", "trees")
BRIER = "brier"
MOST_NAMES = 20
"""Hospitals that a sheet names."""


@cache
def texts(language: str) -> Mapping[str, Any]:
    """The catalogue of a language, one of ``LANGUAGES``."""
    import yaml

    found: Json = yaml.safe_load((TEXTS / f"{language}.yaml").read_text(encoding="utf-8"))
    return found


def sheet(found: Mapping[str, Any], site: str, leaves: Sequence[Mapping[str, str]], language: str = "en") -> Json:
    """The content of a hospital's sheet, from ``join.json``.

    Args:
        leaves: what leaves a hospital: name, meaning and exchanges, from the schema of what travels.
        language: of the sentences; numbers stay as they are.

    Returns:
        format, language, site, title, task, score; sites, refused (names), patients; answer: kind, candidate, sentence;
        mix, with its sentence; candidates: rows as in join.json; groups: those of the answer's candidate;
        leaves; privacy: epsilon and delta by method and whose they are, with sentences.
    """
    words, row, candidates = texts(language), found["sites"][site], list(found["candidates"])
    kind, name = choice(row, candidates)
    values = {**_numbers(row["candidates"][name], words), "name": model(name, words), "site": site}
    if kind == "needs_more":
        values["more"] = str(rounded(row["candidates"][name]["more_patients"]))
    kinds = found.get("own_models", {}).get(site, {})
    return {
        "format": FORMAT,
        "language": language,
        "site": site,
        "title": found["title"],
        "task": found["task"],
        "score": found.get("score", BRIER),
        "sites": list(found["sites"]),
        "refused": list(found.get("refused", {})),
        "patients": row["n"],
        "folds": found["folds"],
        "repeats": found["repeats"],
        "own_model": {one: kinds.get(one, 0) for one in TABLE_MODELS} if set(kinds) & set(TABLE_MODELS) else None,
        "answer": {"kind": kind, "candidate": name, "sentence": words["answers"][kind].format(**values)},
        MIX: {**row[MIX], "sentence": _mix(row[MIX], found, words)},
        "candidates": row["candidates"],
        "groups": {group: {"n": one["n"], **one["candidates"][name]} for group, one in row.get("groups", {}).items()},
        "privacy": {"methods": found.get("privacy", {}), "sentences": _privacy(found, words)},
        "leaves": [{**one, "meaning": words["meanings"].get(one["meaning"], one["meaning"])} for one in leaves],
    }


def _numbers(one: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a sentence, as the language writes them."""
    value = one.get("shrunken", one["benefit"])
    found = {"benefit": signed(value, 4), "low": signed(one["low"], 4), "high": signed(one["high"], 4)}
    return {key: local(figure, words) for key, figure in {**found, "p_harm": likely(one["p_harm"])}.items()}


def _mix(mix: Mapping[str, Any], found: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """Which mix of models is safe."""
    share = mix["share"]
    if (score := found.get("score", BRIER)) != BRIER:
        return str(words["plain"].format(score=score))
    if not share:
        return str(words["no_mix"])
    shares = {OWN: 1 - share, **{name: share * weight for name, weight in found["weights"].items()}}
    told = [(f"{100 * part:.0f}", model(name, words)) for name, part in shares.items() if part >= 0.005]
    parts = ", ".join(words["part"].format(share=part, name=name) for part, name in told)
    margin = local(f"{found['margin']:g}", words)
    return str(words["mix_answer"].format(parts=parts, margin=margin, **_numbers(mix, words)))


def _privacy(found: Mapping[str, Any], words: Mapping[str, Any]) -> list[str]:
    """What the differential privacy of each method bounds, what that assumes, and which methods have none."""
    told, said = found.get("privacy", {}), words["privacy"]
    sentences = []
    for name, whose, one in ((name, whose, one) for name, kinds in told.items() for whose, one in kinds.items()):
        numbers = {key: local(f"{value:g}", words) for key, value in one.items()}
        sentences.append(said[whose].format(name=model(name, words), **numbers))
    none = "" if len(told) == len(found["methods"]) else "others" if told else "none"
    return [*sentences, *([said["uncovered"]] if told else []), *([said[none]] if none else [])]


def model(name: str, words: Mapping[str, Any]) -> str:
    if name == OWN:
        return str(words["own"])
    return name.removesuffix(INTERCEPT) + (f" + {words['intercept']}" if name.endswith(INTERCEPT) else "")


def local(figure: str, words: Mapping[str, Any]) -> str:
    return figure.replace(".", words["decimal"])


def figures(value: float, low: float, high: float, words: Mapping[str, Any]) -> str:
    found = words["interval"].format(value=signed(value, 4), low=signed(low, 4), high=signed(high, 4))
    return local(found, words)


def own(one: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """The benefit by the hospital's own patients; a group of them has no other."""
    return figures(one["benefit"], one.get("own_low", one["low"]), one.get("own_high", one["high"]), words)


def together(one: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """The benefit when the other hospitals' patients are used, too."""
    return figures(one["shrunken"], one["low"], one["high"], words)


def sheet_page(found: Json) -> str:
    words, names = texts(found["language"]), found["sites"]
    more = words["and_more"].format(count=len(names) - MOST_NAMES) if len(names) > MOST_NAMES else ""
    names = [*names[:MOST_NAMES], *([more] if more else [])]
    filters: dict[str, Any] = {"local": local, "model": model, "own": own, "together": together}
    return rendered("sheet", filters, found=found, words=words, lang=found["language"], names=names)
