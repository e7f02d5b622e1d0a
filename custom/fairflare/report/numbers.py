# SPDX-License-Identifier: Apache-2.0
"""What sites measured and sent beside their updates, and what does not fit in it; what bounds took from whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fairflare.functional.outliers import TIMES, far_from_median, share_near
from fairflare.report.audit_reader import Entry, Trail, part
from fairflare.report.frames import shown
from fairflare.report.section import Section
from fairflare.report.values import MISSING, digits, in_order, number, text

if TYPE_CHECKING:
    from fairflare.core.schema import Spec

Json = dict[str, Any]


def _noted(record: Entry, name: str) -> dict[str, float]:
    """Site -> number of a note of the round's bounds."""
    found = part(record, "notes").get(name)
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {site: value for site, text in pairs if (value := number(text)) is not None}


SHOWN_COUNTS = ("n_examples",)
"""Counts that the table of the sites shows."""


def number_sections(trail: Trail, sites: Sequence[str], declared: Mapping[str, Any]) -> list[Json]:
    """One section per number, or family of numbers ("family/..."), that the log holds.

    Args:
        declared: name -> meaning of the numbers that the method's parts send.

    Returns:
        name (of a family with "/..."), count (names in it), meaning and rows: site, round (its last accepted one), low
        and high (the least and the largest number of the family then; both the same for one number).
    """
    from fairflare.core.schema import answer_fields  # not above: it loads PyTorch, which a comparison has no use for

    last = trail.totals.last
    held = {site: _held(last[site][1], answer_fields()) for site in sites if site in last}
    held = {} if trail.equal else held
    families: dict[str, dict[str, None]] = {}
    for values in held.values():
        for name in values:
            families.setdefault(name.partition("/")[0], {})[name] = None
    meanings = {name: spec.meaning for name, spec in answer_fields().items()} | dict(declared)
    sections = []
    for family, names in families.items():
        values = {site: [known[name] for name in names if name in known] for site, known in held.items()}
        ends = {site: {"low": min(found), "high": max(found)} for site, found in values.items() if found}
        rows = [{"site": site, "round": last[site][0], **own} for site, own in ends.items()]
        whole = all(float(value).is_integer() for found in values.values() for value in found)
        first, count = next(iter(names)), len(names)
        about = {"name": first if count == 1 else f"{family}/...", "count": count}
        sections.append({**about, "meaning": str(meanings.get(first) or ""), "whole": whole, "rows": rows})
    return sections


LATER_TIMES = 10.0
"""Factor after the first round: a model that serves one honest site badly leaves its sharpness 7 times the others'."""


STANDS_OUT = 0.15
"""(1.6 / 3)^3: what a bound keeps at most of an update three times as long as expected, as far as other numbers."""


def bounds_rows(trail: Trail) -> list[Json]:
    """Per site that a bound acted on: rounds in which its update was clipped, the median kept length, and rounds in
    which its weight was at the cap, with the lowest cap."""
    clips: dict[str, list[float]] = {}
    caps: dict[str, list[float]] = {}
    for record in trail.rounds:
        for found, name in ((clips, "clip_factor"), (caps, "capped_at")):
            for site, value in _noted(record, name).items():
                if value < 1:
                    found.setdefault(site, []).append(value)
    return [
        {
            "site": site,
            "clipped": len(clips.get(site, ())),
            "kept": median(clips[site]) if site in clips else None,
            "capped": len(caps.get(site, ())),
            "cap": min(caps[site]) if site in caps else None,
        }
        for site in in_order({*clips, *caps})
    ]


def unlike(trail: Trail) -> list[Json]:
    """Numbers that a site sent and that fit neither the others' nor its own before, whoever is wrong.

    Others: in the first round, when all have the same new model, or in at least half of the site's rounds the number is
    far from the sites' median. Past: what it is over the later half of the rounds (median), by what it is over the
    earlier half, is far from the sites' median of that.
    An error is far with the whole of its 95 % interval alone, see ``_far``.
    An update's norm is one where it was at least three times the expected one in at least half of the site's rounds.
    Counts are no such numbers: the gate holds them against preflight's.

    Returns:
        site, number (or family of numbers) and against ("others" or "past"), in the sites' order.
    """
    from fairflare.core.schema import answer_fields  # see number_sections

    told: dict[str, dict[str, list[float]]] = {}
    apart: Counter[tuple[str, str]] = Counter()
    cases = _validation_cases(trail)
    for record in trail.rounds:
        now: dict[str, dict[str, float]] = {}
        for site, answer in part(record, "accepted").items():
            for name, value in _held(answer or {}, answer_fields()).items():
                told.setdefault(name, {}).setdefault(site, []).append(float(value))
                now.setdefault(name, {})[site] = float(value)
        first = record is trail.rounds[0]
        for name, values in now.items():
            far = _far(name, values, cases, times=TIMES if first else LATER_TIMES)
            apart.update({(name, site): len(trail.rounds) if first else 1 for site in far})
    found: dict[tuple[str, str, str], None] = {}
    for name, sites in told.items():
        if all(value.is_integer() for values in sites.values() for value in values):
            continue
        # The first model is nobody's: what a site says of it is left out where enough remains.
        since = {site: v[1:] if len(v) == len(trail.rounds) > 4 else v for site, v in sites.items() if len(v) > 3}
        halves = {site: (median(v[: len(v) // 2]), median(v[len(v) // 2 :])) for site, v in since.items()}
        units = {site: before for site, (before, _) in halves.items() if before}
        changed = _far(name, {site: halves[site][1] / before for site, before in units.items()}, cases, units)
        for site, said in sites.items():
            against = "others" if 2 * apart[name, site] >= len(said) else "past" if site in changed else None
            if against:
                found[site, name.partition("/")[0], against] = None
    kept = [_noted(record, "clip_factor") for record in trail.rounds]
    clipped = Counter(site for one in kept for site, factor in one.items() if factor < STANDS_OUT)
    rounds = Counter(site for record in trail.rounds for site in part(record, "accepted"))
    found |= {(site, "update norm", "others"): None for site, count in clipped.items() if 2 * count >= rounds[site]}
    order = in_order({site for site, *_ in found})
    rows = [dict(zip(("site", "number", "against"), one)) for one in found]
    return sorted(rows, key=lambda row: order.index(row["site"]))


def _validation_cases(trail: Trail) -> dict[str, float]:
    """Site -> patients of its validation split, by its training examples and the sites' median share of them; its own
    word would excuse any lie. Before the evaluation: as many as train."""
    told = {site: number(of.get("n_examples")) for site, (_, of, _) in trail.totals.last.items()}
    examples = {site: count for site, count in told.items() if count}
    held = {site: part(of.get("personal") or of, "n") for site, of in part(trail.evaluation, "sites").items()}
    splits = {site: count for site, n in held.items() if (count := number(n.get("val"))) and site in examples}
    share = median([count / examples[site] for site, count in splits.items()] or [1.0])
    return {site: count * share for site, count in examples.items()}


def _far(
    name: str,
    values: Mapping[str, float],
    cases: Mapping[str, float],
    units: Mapping[str, float] = MappingProxyType({}),
    times: float = TIMES,
) -> list[str]:
    """``far_from_median`` of the numbers ``name``; of errors of ``cases`` patients, those that are far wherever in
    their interval they lie: none wrong of twelve is no lie. ``units``: site -> the error that 1 stands for, or 1."""
    found = far_from_median(values, times)
    for site in [one for one in found if one in cases and name.partition("/")[0].endswith("error")]:
        unit = units.get(site, 1.0)
        near = share_near(values[site] * unit, cases[site], median(values.values()) * unit) / unit
        if site not in far_from_median({**values, site: near}, times):
            found.remove(site)
    return found


def _held(accepted: Mapping[str, Any], fields: Mapping[str, Spec]) -> dict[str, Any]:
    """Name -> number of what the log holds of one accepted answer, the fields in the schema's order."""
    found: dict[str, Any] = {}
    for field, spec in fields.items():
        value = accepted.get(field)
        kind = spec.kind_in("train")
        if kind == "count" and field not in SHOWN_COUNTS:
            found[field] = value
        if kind == "numbers" and isinstance(value, Mapping):
            found |= value
    return {name: value for name, value in found.items() if number(value) is not None}


def _tables(run: Json) -> list[Json]:
    sections = run["numbers"]
    rows: Json = {site: {"Site": site} for site in in_order(row["site"] for s in sections for row in s["rows"])}
    for section in sections:
        decimals = digits(value for row in section["rows"] for value in (row["low"], row["high"]))
        decimals = 0 if section["whole"] else decimals
        found = {row["site"]: [text(row[end], decimals) for end in ("low", "high")] for row in section["rows"]}
        for site, cells in rows.items():
            cells[section["name"]] = " to ".join(dict.fromkeys(found.get(site, [MISSING])))
    caption = (
        "What each site sent beside its update in its last accepted round. Of several numbers of one family the least "
        "and the largest are shown."
    )
    return [shown(rows.values(), caption, "Numbers of the sites")] if rows else []


SECTION = Section("numbers", "What sites measured", ("numbers",), _tables)
