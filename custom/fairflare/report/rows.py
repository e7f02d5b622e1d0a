# SPDX-License-Identifier: Apache-2.0
"""Rows of sites and rounds, and what sites measured, from the records of a run: of the shared model, of the sites' own
and of the one that validation chose, as the sites use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from fairflare.functional.outliers import TIMES, far_from_median
from fairflare.report.audit_reader import PERSONAL, Entry, Trail, part
from fairflare.report.fairness import describe, mean, worst
from fairflare.report.values import MISSING, digits, in_order, listing, number, text

if TYPE_CHECKING:
    from fairflare.core.schema import Spec

Json = dict[str, Any]
INTERVALS = "intervals"
"""The key of ``core.types``, which imports torch."""


def site_rows(trail: Trail, sites: Sequence[str], described: Mapping[str, str], headline: str) -> list[Json]:
    """One row per site of ``sites``.

    ``value`` is the final model's headline metric on the site's test split, ``intervals`` metric -> "low" and "high"
    over its test patients, ``n_val`` and ``n_test`` how many these splits hold, ``data_share`` n_k / n over the sites
    with a known n_k, ``weight_mean`` the mean over the rounds in which the site was accepted, ``expected`` how many
    updates the rounds counted on, ``codes`` how often it was rejected for which reason.
    """
    rows = [_site_row(trail, site, described.get(site) or "", headline) for site in sites]
    total = sum(row["n_examples"] or 0 for row in rows)
    for row in rows:
        row["expected"] = trail.totals.expected[row["site"]]
        row["data_share"] = row["n_examples"] / total if row["n_examples"] and total else None
    return rows


def _site_row(trail: Trail, site: str, description: str, headline: str) -> Json:
    totals = trail.totals
    _, answer, weight = totals.last.get(site) or (0, {}, None)
    codes = totals.rejected.get(site) or Counter[str]()
    splits = part(trail.evaluation, "sites").get(site) or {}
    val, test = (splits.get(split) or {} for split in ("val", "test"))
    return {
        "site": site,
        "description": description,
        "n_examples": None if _equal(trail) else answer.get("n_examples"),
        **{f"n_{split}": number(part(splits, "n").get(split)) for split in ("val", "test")},
        "value": number(test.get(headline)),
        "val": val,
        "test": test,
        "intervals": intervals_of(splits),
        "weight_last": weight,
        "weight_mean": mean(totals.weights.get(site, ())),
        "accepted": totals.accepted[site],
        "rejected": sum(codes.values()),
        "codes": dict(sorted(codes.items())),
    }


def _equal(trail: Trail) -> bool:
    """Whether every site reported the same number of examples and steps, as under a hospital's privacy budget."""
    return "site_privacy" in trail.start


def intervals_of(splits: Mapping[str, Any]) -> Json:
    """Metric -> "low" and "high" over the site's test patients, of metrics with an interval; older logs have none."""
    sent = splits.get(INTERVALS)
    pairs = sent.items() if isinstance(sent, Mapping) else ()
    proper = [(name, pair) for name, pair in pairs if isinstance(pair, Mapping)]
    found = {name: {end: number(pair.get(end)) for end in ("low", "high")} for name, pair in proper}
    return {name: ends for name, ends in found.items() if None not in ends.values()}


def round_row(record: Entry, headline: str, higher: bool) -> Json:
    """One round: ``metric`` is of the received model on each accepted site's validation split."""
    accepted, weights = part(record, "accepted"), part(record, "weights")
    metric = {site: number(part(accepted[site], "metrics").get(headline)) for site in in_order(accepted)}
    lowest, value = worst(metric, higher)
    return {
        "round": record["round"],
        "metric": metric,
        "mean": mean(metric),
        "worst": {"site": lowest, "value": value},
        "weights": {site: number(weights[site]) for site in in_order(weights) if number(weights[site]) is not None},
        "rejected": in_order(part(record, "rejected")),
        "notes": part(record, "notes"),
        "model_sha256": record.get("model_sha256"),
    }


def contributions(trail: Trail) -> Json:
    """How many updates were expected (``expected``, over the recorded rounds), accepted, rejected and never came."""
    totals = trail.totals
    accepted, expected = totals.accepted.total(), totals.expected.total()
    rejected = sum(codes.total() for codes in totals.rejected.values())
    found = {"rounds": totals.rounds, "expected": expected, "accepted": accepted, "rejected": rejected}
    return {**found, "absent": expected - accepted - rejected, "rejections": totals.rejections}


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
    held = {} if _equal(trail) else held
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
    An update's norm is one where it was at least three times the expected one in at least half of the site's rounds.
    Counts are no such numbers: the gate holds them against preflight's.

    Returns:
        site, number (or family of numbers) and against ("others" or "past"), in the sites' order.
    """
    from fairflare.core.schema import answer_fields  # see number_sections

    told: dict[str, dict[str, list[float]]] = {}
    apart: Counter[tuple[str, str]] = Counter()
    for record in trail.rounds:
        now: dict[str, dict[str, float]] = {}
        for site, answer in part(record, "accepted").items():
            for name, value in _held(answer or {}, answer_fields()).items():
                told.setdefault(name, {}).setdefault(site, []).append(float(value))
                now.setdefault(name, {})[site] = float(value)
        first = record is trail.rounds[0]
        for name, values in now.items():
            far = far_from_median(values, TIMES if first else LATER_TIMES)
            apart.update({(name, site): len(trail.rounds) if first else 1 for site in far})
    found: dict[tuple[str, str, str], None] = {}
    for name, sites in told.items():
        if all(value.is_integer() for values in sites.values() for value in values):
            continue
        # The first model is nobody's: what a site says of it is left out where enough remains.
        since = {site: v[1:] if len(v) == len(trail.rounds) > 4 else v for site, v in sites.items() if len(v) > 3}
        halves = {site: (median(v[: len(v) // 2]), median(v[len(v) // 2 :])) for site, v in since.items()}
        changed = far_from_median({site: after / before for site, (before, after) in halves.items() if before})
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


def number_table(sections: Sequence[Json]) -> Json | None:
    """The sections as the page shows them: columns (headings), rows (site and cells) and meanings; None without any."""
    if not sections:
        return None
    rows: dict[str, list[str]] = {site: [] for site in in_order(row["site"] for s in sections for row in s["rows"])}
    for section in sections:
        decimals = digits(value for row in section["rows"] for value in (row["low"], row["high"]))
        decimals = 0 if section["whole"] else decimals
        found = {row["site"]: [text(row[end], decimals) for end in ("low", "high")] for row in section["rows"]}
        for site, cells in rows.items():
            cells.append(" to ".join(dict.fromkeys(found.get(site, [MISSING]))))
    return {
        "columns": [section["name"] for section in sections],
        "rows": [{"site": site, "cells": cells} for site, cells in rows.items()],
        "meanings": [(section["name"], section["count"], section["meaning"]) for section in sections],
    }


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


USED, COUNTED = "used", "counted"
"""Keys of a summary, each "personal" or absent: whose models sites use, and whose the run's results are."""
SHOWN = "shown"
"""Key of a summary whose results ``as_used`` has put in the place of the shared model's."""
PLAIN = "sgd"
"""The trainer of which no site has a model of its own."""


def used_models(config: Mapping[str, Any], personal: Json | None) -> str | None:
    """ "personal" where sites use models of their own, else None.

    Where an older configuration does not say it, results of own models are those of the trainer, unless that is the
    plain one, beside which a rule may show models that no site uses.
    """
    about = config.get("about") or {}
    if personal is None:
        return None
    if PERSONAL in (about.get(USED), about.get(COUNTED)):
        return PERSONAL
    return PERSONAL if USED not in about and config.get("trainer") not in (None, PLAIN) else None


def as_used(run: Json) -> Json:
    """The summary with the results of the models that the sites use as its results; itself where these are shared.

    Sites without a model of their own keep the shared one's results. Shared test sets are no site's: results there stay
    those of the shared model, as do those of the rounds.
    """
    if run.get(USED) != PERSONAL or COUNTED in run or not run.get("personal"):
        return run
    rows = own_rows(run["sites"], run["personal"])
    values = {row["site"]: row["value"] for row in rows}
    fairness = {**run["fairness"], **describe(values, run["higher_is_better"])}
    groups = run["personal"].get("groups")
    return {**run, "sites": rows, "fairness": fairness, "groups": groups, SHOWN: PERSONAL}


def own_rows(rows: Sequence[Json], personal: Json) -> list[Json]:
    """The sites' ``rows`` with the results of their own models; as they are where a site has none."""
    found = {}
    for row in personal["rows"]:
        if row.get("personal") is not None:
            own = {key: row.get(key) or {} for key in ("test", "val", "intervals")}
            found[row["site"]] = {"value": row["personal"], **own}
    return [{**row, **found[row["site"]]} if row["site"] in found else row for row in rows]


def remark(methods: Iterable[Mapping[str, Any]]) -> str:
    """Whose models a comparison's numbers are of: sites' own are ``used``, and ``shown`` or not; "" without such."""
    own = [method for method in methods if method.get(USED)]
    shown = [str(method["label"]) for method in own if method.get(SHOWN)]
    hidden = [str(method["label"]) for method in own if not method.get(SHOWN)]
    found = []
    if shown:
        found.append(f"Of {listing(shown)} the numbers are those of each site's own model, which the site uses.")
    if hidden:
        found.append(f"Of {listing(hidden)} they are those of the shared model, though sites use models of their own.")
    return " ".join(found)


def shared_only(methods: Sequence[Mapping[str, Any]]) -> str:
    """What has to be said where only the shared model can be looked at; "" where no method needs it."""
    shown = [str(method["label"]) for method in methods if method.get(SHOWN)]
    return f"Here also of {listing(shown)} the shared model's: no site holds these examples." if shown else ""


CAVEAT = (
    "Fairness over sites is that of the shared model. Where some layers stay at the sites, the shared model has the "
    "initial values in their places: nobody uses it as it is, and the personal results are those that count."
)
OWN_CAVEAT = (
    "Every site uses a model of its own: all results, and fairness over sites, are of these. The shared model, which "
    "is shown beside them, is nobody's."
)
QUANTITIES = {
    "personal_mean": "mean over sites, personal models",
    "personal_worst": "worst site, personal models",
    "personal_std": "standard deviation over sites, personal models (ddof 0)",
    "shared_mean": "mean over sites, shared model",
    "shared_worst": "worst site, shared model",
    "shared_std": "standard deviation over sites, shared model (ddof 0)",
}
"""What a comparison of methods says of personal models, with its name in a table."""


def personal_section(trail: Trail, sites: Sequence[str], headline: str, higher: bool) -> Json | None:
    """Shared and personal results side by side; None where no site has reported a personal model.

    Returns:
        metric, split; rows: site, shared and personal (headline metric, test split), difference (personal minus
        shared), shared_val, personal_val, test, val and intervals (every metric of the personal model); shared and
        personal: how evenly each serves the sites that have both (see ``fairness.describe``).
    """
    results = trail.evaluation.get("sites") or {}
    rows: list[Json] = []
    for site in sites:
        shared = results.get(site) or {}
        own = shared.get(PERSONAL) or {}
        row: Json = {"site": site}
        for end, split in (("", "test"), ("_val", "val")):
            values = (_headline_of(found, split, headline) for found in (shared, own))
            row |= dict(zip((f"shared{end}", f"personal{end}"), values))
        metrics = {split: own.get(split) or {} for split in ("test", "val")}
        difference = _less(row["personal"], row["shared"])
        rows.append({**row, "difference": difference, **metrics, "intervals": intervals_of(own)})
    if not any(row["test"] or row["val"] for row in rows):
        return None
    both = [row for row in rows if row["difference"] is not None]
    even = {kind: describe({row["site"]: row[kind] for row in both}, higher) for kind in ("shared", "personal")}
    return {"metric": headline, "split": "test", "rows": rows, **even}


def personal_quantities(run: Json) -> dict[str, float | None]:
    """The values of ``QUANTITIES`` in one run's summary: of those models that its other results are not of.

    None where it has none, or where nobody uses the shared model.
    """
    if "counted" in run:
        return dict.fromkeys(QUANTITIES)
    beside = "shared" if run.get(SHOWN) else "personal"
    found = (run.get("personal") or {}).get(beside) or {"mean": None, "worst": {"value": None}, "std": None}
    values = {"mean": found["mean"], "worst": found["worst"]["value"], "std": found["std"]}
    return {name: values[name.partition("_")[2]] if name.startswith(beside) else None for name in QUANTITIES}


def personal_of(summary: Json, site: str) -> Json:
    """The metrics of a site's personal model as report.json has them: null where there is none."""
    rows = (summary.get("personal") or {}).get("rows", ())
    row: Json = next((row for row in rows if row["site"] == site), {})
    return {"personal_metrics": row.get("test") or None, "personal_val_metrics": row.get("val") or None}


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _headline_of(splits: Mapping[str, Any], split: str, headline: str) -> float | None:
    return number((splits.get(split) or {}).get(headline))


CHOSEN_CAVEAT = (
    "The results shown first are those of the model that validation chose, as the configuration asks; those of the "
    "last round's model stand beside them."
)
CHOSEN_BY = {"mean": "the mean over sites", "worst": "the worst site"}
CHOSEN_BY |= {"trade-off": "mean minus w times (mean minus worst)"}


def chosen_section(
    trail: Trail, config: Mapping[str, Any], sites: Sequence[str], headline: str, higher: bool
) -> Json | None:
    """Both models side by side; None where the run chooses none, or has not yet.

    Args:
        trail: the run's records, with the last model's results as the evaluation.

    Returns:
        by, words, weight (of a trade-off, else None), metric, round, rounds, is_last, headline ("final" or "best",
        which of them is shown first), model_sha256; compared: how many sites scored both; val and test, each "best" and
        "last": what ``fairness.describe`` says (val over the sites compared); rows: site, best_val, last_val, best,
        last and difference (best minus last) on the test split. Where layers stay at the sites all values are of each
        site's own model.
    """
    line = trail.best
    if not line:
        return None
    val = {kind: (line["values"].get(kind) or {}) for kind in ("best", "last")}
    both = [site for site in sites if all(number(val[kind].get(site)) is not None for kind in val)]
    last = trail.evaluation.get("sites") or {}
    test: dict[str, dict[str, float | None]] = {"best": {}, "last": {}}
    rows = []
    for site in sites:
        row: Json = {"site": site, **{f"{kind}_val": number(val[kind].get(site)) for kind in val}}
        for kind, results in (("best", line["sites"] or last), ("last", last)):
            found = results.get(site) or {}
            found = found.get(PERSONAL) or {} if line["own"] else found
            row[kind] = test[kind][site] = _headline_of(found, "test", headline)
        rows.append({**row, "difference": _less(row["best"], row["last"])})
    return {
        "by": line["by"],
        "words": CHOSEN_BY.get(line["by"], line["by"]),
        "weight": line["weight"] if line["by"] == "trade-off" else None,
        "metric": headline,
        "round": line["round"],
        "rounds": trail.start.get("rounds"),
        "is_last": line["round"] == trail.start.get("rounds"),
        "headline": config.get("headline") or "final",
        "model_sha256": line["model_sha256"],
        "compared": len(both),
        "val": {kind: describe({site: number(val[kind][site]) for site in both}, higher) for kind in val},
        "test": {kind: describe(values, higher) for kind, values in test.items()},
        "rows": rows,
    }
