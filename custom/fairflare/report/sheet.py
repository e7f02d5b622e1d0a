# SPDX-License-Identifier: Apache-2.0
"""The decision sheet: what one hospital is told of joining, on one page, made of ``join.json`` alone.

Every text is in ``sheet_texts/LANGUAGE.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairflare.engine.setup.join.plan import INTERCEPT
from fairflare.report.join import MIX, OWN, choice, rounded
from fairflare.report.templates import rendered
from fairflare.report.values import likely, signed

FORMAT = 1
TEXTS = Path(__file__).parent / "sheet_texts"
LANGUAGES = ("en", "de", "fr")
TABLE_MODELS = ("regression", "trees")
BRIER = "brier"
MOST_NAMES = 20
"""Hospitals that a sheet names."""
Json = dict[str, Any]


@cache
def texts(language: str) -> Mapping[str, Any]:
    """The catalogue of a language, one of ``LANGUAGES``."""
    import yaml

    found: Json = yaml.safe_load((TEXTS / f"{language}.yaml").read_text(encoding="utf-8"))
    return found


def sheet(found: Mapping[str, Any], site: str, leaves: Sequence[Mapping[str, str]], language: str = "en") -> Json:
    """The content of a hospital's sheet.

    Args:
        found: ``join.json``.
        site: one of its hospitals.
        leaves: what leaves a hospital: name, meaning and exchanges, from the schema of what travels.
        language: of the sentences; numbers stay as they are.

    Returns:
        format, language, site, title, task, score; sites, refused (names), patients; answer: kind, candidate, sentence;
        mix, with its sentence; candidates: rows as in join.json; groups and not_validated (other scores): those of the
        answer's candidate; leaves; privacy: epsilon and delta by method and whose they are, with sentences.
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
        "not_validated": {score: each[name] for score, each in row.get("other_scores", {}).items()},
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
    """A candidate in words."""
    if name == OWN:
        return str(words["own"])
    return name.removesuffix(INTERCEPT) + (f" + {words['intercept']}" if name.endswith(INTERCEPT) else "")


def local(figure: str, words: Mapping[str, Any]) -> str:
    """A number with the language's decimal mark."""
    return figure.replace(".", words["decimal"])


def figures(value: float, low: float, high: float, words: Mapping[str, Any]) -> str:
    """A benefit with its interval."""
    found = words["interval"].format(value=signed(value, 4), low=signed(low, 4), high=signed(high, 4))
    return local(found, words)


def own(one: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """The benefit by the hospital's own patients; a group of them has no other."""
    return figures(one["benefit"], one.get("own_low", one["low"]), one.get("own_high", one["high"]), words)


def together(one: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """The benefit when the other hospitals' patients are used, too."""
    return figures(one["shrunken"], one["low"], one["high"], words)


def sheet_page(found: Json) -> str:
    """The sheet as HTML that prints on one page."""
    words, names = texts(found["language"]), found["sites"]
    more = words["and_more"].format(count=len(names) - MOST_NAMES) if len(names) > MOST_NAMES else ""
    names = [*names[:MOST_NAMES], *([more] if more else [])]
    filters: dict[str, Any] = {"local": local, "model": model, "own": own, "together": together}
    return rendered("sheet", filters, found=found, words=words, lang=found["language"], names=names)
