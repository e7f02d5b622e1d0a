# SPDX-License-Identifier: Apache-2.0
"""Survival curves of the sites' test patients, from the steps that the sites released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.engine.clinical import CLINICAL
from fairflare.report.audit_reader import Trail
from fairflare.report.values import number

Json = dict[str, Any]
Z = 1.959963984540054
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
            rows.append(
                {
                    "site": site,
                    "group": group,
                    "n": known[f"n{where}"],
                    "steps": steps,
                    "last": (steps or [NO_STEP])[-1],
                }
            )
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
        low, high = _interval(observed, spread)
        expected = known.get(f"expected{k}{where}")
        off = None if expected is None else expected - observed
        values = (end, left, observed, low, high, expected, off)
        found.append(dict(zip(NO_STEP, values, strict=True)))
    return found


def _interval(share: float, spread: float) -> tuple[float | None, float | None]:
    """None without an event so far, or once nobody is left without one."""
    if not 0 < share < 1 or not math.isfinite(spread):
        return None, None
    half = Z * math.sqrt(spread) / abs(math.log(share))
    return share ** math.exp(half), share ** math.exp(-half)
