# SPDX-License-Identifier: Apache-2.0
"""Survival at each site, from the steps that the sites released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.engine.clinical import CLINICAL
from fairflare.functional import calibration as maths
from fairflare.report import svg
from fairflare.report.audit_reader import Trail
from fairflare.report.section import Section
from fairflare.report.values import number

Json = dict[str, Any]
NO_STEP = dict.fromkeys(("time", "left", "observed", "low", "high", "expected", "difference"))


def curves_section(trail: Trail, config: Json, about: Json, sites: Sequence[str]) -> Json | None:
    """What the sites' released steps say; None where the run is not about times, or no site has released any.

    Returns:
        horizon, min_count; rows: site, group ("": all of the site's test patients), n, steps (time, left, observed,
        low, high, expected, difference of the last two), and the last of them (all None where there is none).
    """
    ends = [end for end in (about.get("curves") or {}).get("ends", ()) if number(end) is not None]
    if not ends:
        return None
    rows = []
    for site in sites:
        sent = ((trail.evaluation.get("sites") or {}).get(site) or {}).get(CLINICAL) or {}
        known = {name: value for name, value in sent.items() if number(value) is not None}
        groups = sorted(name[2:] for name in known if name.startswith("n/"))
        for group in ("", *groups) if "n" in known else ():
            where = f"/{group}" if group else ""
            steps = steps_of(known, ends, where)
            about_it = {"site": site, "group": group, "n": known[f"n{where}"]}
            rows.append({**about_it, "steps": steps, "last": (steps or [NO_STEP])[-1]})
    if not rows:
        return None
    return {"horizon": ends[-1], "min_count": config.get("min_count"), "rows": rows}


def steps_of(known: Mapping[str, Any], ends: Sequence[float], where: str = "") -> list[Json]:
    """The steps with 95 % intervals on the scale of log(-log S), with Greenwood's variance.

    All that is known of a step is who remains after it: taken for the patients at risk in it, that makes intervals too
    wide rather than too narrow.
    """
    found, before, spread = [], 1.0, 0.0
    for k, end in enumerate(ends):
        left, observed = known.get(f"left{k}{where}"), known.get(f"observed{k}{where}")
        if left is None or observed is None:
            continue
        spread += (before / observed - 1) / left if observed > 0 else math.inf
        before = observed
        low = high = None
        if 0 < observed < 1 and math.isfinite(spread):  # there was an event, and someone is left without one
            half = maths.Z * math.sqrt(spread) / abs(math.log(observed))
            low, high = observed ** math.exp(half), observed ** math.exp(-half)
        expected = known.get(f"expected{k}{where}")
        off = None if expected is None else expected - observed
        values = (end, left, observed, low, high, expected, off)
        found.append(dict(zip(NO_STEP, values, strict=True)))
    return found


MOST_SITES = 24
"""Sites that are drawn; the table has all of them."""
CURVES = (svg.RED, svg.GREEN, svg.ORANGE, svg.PURPLE, svg.GREY)
"""Of groups of patients."""


def curve_figures(run: Json) -> list[str]:
    """Of each site survival by time, of all its test patients and of the groups that it may tell of."""
    found: dict[str, list[Json]] = {}
    for row in (run.get("curves") or {"rows": ()})["rows"]:
        if row["steps"]:
            found.setdefault(row["site"], []).append(row)
    return [_curves(place, site, rows) for place, (site, rows) in enumerate([*found.items()][:MOST_SITES])]


def _curves(place: int, site: str, rows: Sequence[Json]) -> str:
    def draw(figure: svg.Figure) -> str:
        axes = figure.subplots()
        for row, color in zip(rows, (svg.DARK, *CURVES)):
            x, y = ([start, *(step[key] for step in row["steps"])] for start, key in ((0.0, "time"), (1.0, "observed")))
            axes.step(x, y, where="post", color=color, linewidth=1.6, label=row["group"] or "all")
            if row["group"]:
                continue
            known = [step for step in row["steps"] if step["low"] is not None]
            when, low, high = ([step[key] for step in known] for key in ("time", "low", "high"))
            axes.vlines(when, low, high, color=color, linewidth=1)
            if row["steps"][0]["expected"] is not None:
                expected = [step["expected"] for step in row["steps"]]
                axes.plot(
                    x[1:], expected, color=svg.BLUE, linestyle=svg.DASHES, marker="o", markersize=4, label="predicted"
                )
        axes.set(ylim=(0, 1.02))
        axes.set_xlim(left=0)
        svg.legend(figure, axes, "time", "share without event", columns=3)
        return f"{svg.short(site)}: survival"

    return svg.rendered(f"curve{place}", draw)


SECTION = Section("survival", "Survival", ("curves", "rows"), figure=curve_figures)
