# SPDX-License-Identifier: Apache-2.0
"""What preflight found at the sites before the first round."""

from __future__ import annotations

from typing import Any

from fairflare.core.findings import CODES, LEVELS
from fairflare.report.audit_reader import Trail
from fairflare.report.section import Section
from fairflare.report.values import in_order

Json = dict[str, Any]


def preflight_section(trail: Trail) -> list[Json]:
    """What preflight found: rows of site, level, split, count and meaning, errors first; the last look counts."""
    last = max((trail.start, *trail.segments, *trail.resumes), key=lambda record: record.get("seq") or 0)
    looked = last.get("preflight") or {}
    rows = []
    for site in in_order(looked):
        for found in (looked[site] or {}).get("findings") or ():
            about = {key: found.get(key) for key in ("level", "split", "count", "code")}
            meaning = CODES.get(str(found.get("code")), "not known to this version")
            rows.append({"site": site, **about, "meaning": meaning})
    return sorted(rows, key=lambda row: LEVELS.index(row["level"]) if row["level"] in LEVELS else len(LEVELS))


SECTION = Section("preflight", "Before the first round", ("preflight",))
