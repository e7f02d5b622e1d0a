# SPDX-License-Identifier: Apache-2.0
"""The pages of a decision: alone, use, or join. All is made of ``decision.json`` alone.

The decision sheet tells one hospital on one A4 page; its texts are in ``sheet_texts/LANGUAGE.yaml``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairflare.report import svg
from fairflare.report.svg import BLUE, DARK, GREEN, ORANGE, inline
from fairflare.report.values import Estimate, drawn, environment, rendered, signed

Json = dict[str, Any]
LABELS = {"U": "using minus own", "J": "joining minus own", "D": "joining minus using"}
COLOURS = {"U": BLUE, "J": GREEN, "D": ORANGE}
MAX_DRAWN = 40
TEXTS, CHECKLISTS = (Path(__file__).parent / name for name in ("sheet_texts", "checklists"))
LANGUAGES = ("en", "de", "fr", "es")


@inline("decision")
def forest(figure: Any, found: Json) -> str | None:
    """U, J and D of every hospital with their intervals, in thousandths of the Brier score."""
    rows = {name: one["estimands"] for name, one in found["sites"].items() if "estimands" in one}
    if not rows or len(rows) > MAX_DRAWN:
        return None
    series = [
        svg.Series(label, [_thousandths(each[key]) for each in rows.values()], COLOURS[key])
        for key, label in LABELS.items()
    ]
    axis = "gain in Brier score x 1,000 (95 % interval)"
    svg.dots(figure, list(rows), series, axis, at=[(0, "", DARK)], columns=3)
    return "Above 0 the first-named is better"


@inline("hospital")
def one_hospital(figure: Any, of: Json) -> str:
    """The three differences of one hospital, from its "estimands" and the "words" of a language."""
    estimands, words = of["estimands"], of["words"]
    rows = words["rows"]
    series = [svg.Series("", [_thousandths(estimands[key]) for key in rows], GREEN)]
    svg.dots(figure, list(rows.values()), series, words["axis"], at=[(0, "", DARK)], columns=1)
    return str(words["plot_head"])


def _thousandths(estimate: Json) -> Estimate:
    return Estimate(*(1000 * estimate[key] for key in ("value", "low", "high")))


def page(found: Mapping[str, Any]) -> str:
    """``join.html``."""
    shown = {"methods": {}, "secure": False, "refused": {}, "not_validated": "", **found}
    return rendered("decision", found={**shown, "figures": drawn([forest(dict(found))])}, title=found["title"])


def checklist(found: Mapping[str, Any]) -> str:
    """``tripod-cluster.html``: what the numbers say to each item of TRIPOD-Cluster, and how many stay blank."""
    import yaml
    from markupsafe import Markup

    items: list[Json] = yaml.safe_load((CHECKLISTS / "tripod_cluster.yaml").read_text(encoding="utf-8"))
    read = {name: one for name, one in found["sites"].items() if "estimands" in one}
    about = {"found": {"secure": False, "components": 0, **found}, "read": read}
    templates = environment((("ends", _written),))
    for item in items:
        text = templates.from_string(item.get("say", "")).render(few=found["sites"].keys() - read.keys(), **about)
        item["text"] = Markup(text.strip())  # escaped by the template
    blank = sum(not item["text"] for item in items)
    return rendered("tripod", rows=items, blank=blank, title=found["title"])


def _written(of: Json, key: str = "mean", digits: int = 2) -> str:
    """ "+.10 [-.20, +.40]", or of "next" a further hospital's interval."""
    low, high = (signed(of[f"next_{end}" if key == "next" else end], digits) for end in ("low", "high"))
    return f"{low} to {high}" if key == "next" else f"{signed(of[key], digits)} [{low}, {high}]"


@cache
def texts(language: str) -> Mapping[str, Any]:
    """The catalogue of a language, one of ``LANGUAGES``."""
    import yaml

    found: Json = yaml.safe_load((TEXTS / f"{language}.yaml").read_text(encoding="utf-8"))
    return found


def local(figure: str, words: Mapping[str, Any]) -> str:
    return figure.replace(".", str(words["decimal"]))


def sheet_page(found: Mapping[str, Any], site: str, language: str = "en") -> str:
    """A hospital's sheet; ``found``: the content of decision.json, or what a site keeps of its own."""
    words, row = texts(language), found["sites"][site]
    gain = {key: _ends(of, 1) for key, of in row["estimands"].items()}
    benefit = {key: _ends(of, 0) for key, of in row["net_benefit"].items()}
    further = found["calibration"].get("log_ratio")
    canonical = json.dumps({"title": found.get("title", ""), "row": row}, sort_keys=True)
    more = {
        "gain": gain,
        "benefit": benefit,
        "ratio": [math.exp(further[key]) for key in ("next_low", "next_high")] if further else [],
        "hash": hashlib.sha256(canonical.encode()).hexdigest()[:16],
        "figures": drawn([one_hospital({"estimands": row["estimands"], "words": words})]),
        "reason": words["withheld"].get(row["reason_code"], "").format(value=row["reason_value"]),
    }
    about = {"title": "", "versions": "", "date": "", **found}
    filters: dict[str, Any] = {"local": local}
    return rendered("sheet", filters, found=about, row=row, site=site, words=words, lang=language, **more)


def _ends(of: Json, digits: int) -> list[str]:
    return [signed(1000 * of[key], digits) for key in ("value", "low", "high")]
