# SPDX-License-Identifier: Apache-2.0
"""The site edition: what one hospital reads of a run, which names no other and gives no number of a single one.

A function of the run's folder alone, like the report; nothing is trained, loaded or scored for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE, shown
from fairflare.report.audit_reader import PERSONAL, Trail
from fairflare.report.deployed_model import USED, as_used
from fairflare.report.fairness import finite, mean
from fairflare.report.groups import known_cells
from fairflare.report.metrics import label, meaning
from fairflare.report.sanity_checks import trivial_of
from fairflare.report.site_report_others import RULE, enough, over_rounds, sentence, standing
from fairflare.report.values import json_value, number

FORMAT = 1
TEST = "test"
Json = dict[str, Any]


def require_site(summary: Json, site: str) -> None:
    """Raise UserError unless the run has such a site, and its name may name a file."""
    known = [row["site"] for row in summary["sites"]]
    if site not in known:
        raise UserError(f"--site: expected one of {shown(', '.join(known))}, got {shown(site)}")
    if not SITE.fullmatch(site):
        raise UserError(f"--site: the run has a site {shown(site)}, whose name can be no file's")


def edition(summary: Json, trail: Trail, site: str) -> Json:
    """The content of ``SITE.json``, from which the page is written.

    Args:
        summary: of the run, see ``summarise``.
        trail: its records, with the results that the summary counts.
        site: whose edition it is.

    Returns:
        format, site, what it is, sites (how many), run (method, task, rounds, status, seed), headline and metrics in
        words; result: n, value, val, test (every metric), intervals, trivial, whose ("personal" or "shared" model) and
        shared (the shared model's value where the site uses its own); standing: value and benefit, with sentences;
        benefit: per metric the site's row and its groups' rows, None where the run did not ask, or why it has none;
        rounds: round, value, weight, state and notes; others_rounds; groups; clinical; part: expected, accepted,
        left_out, codes, weight and share; notes: name, label, meaning, mean; rule (what is said of others) and
        provenance.
    """
    used = as_used(summary)
    rows = {row["site"]: row for row in used["sites"]}
    row, values = rows[site], {name: one["value"] for name, one in rows.items()}
    found = {
        "format": FORMAT,
        "site": site,
        "description": row["description"],
        "sites": len(rows),
        "run": _run(summary),
        "headline": summary["headline"],
        "metrics": summary["metrics"],
        "higher_is_better": summary["higher_is_better"],
        "result": _result(summary, used, trail, site),
        "standing": _standing(summary, values, site),
        "benefit": _benefit(summary.get("benefit"), site),
        "rounds": [_round(one, trail, summary, site) for one in summary["rounds"]],
        "others_rounds": over_rounds(summary["rounds"], "metric", site),
        "groups": _groups(summary, trail, site),
        "clinical": _clinical(summary.get("clinical"), site),
        "part": _part(summary, row, site),
        "notes": _notes(summary, site),
        "rule": RULE,
        "provenance": {key: summary["provenance"][key] for key in ("model_sha256", "chain_head", "versions")},
    }
    return dict(json_value(found))


def _run(summary: Json) -> Json:
    task, method = summary["task"], summary["method"]
    return {
        "method": method["title"],
        "method_id": method["id"],
        "paper": method["paper"],
        **{key: task[key] for key in ("title", "id", "preset", "real", "simulated", "primary")},
        **{key: summary[key] for key in ("status", "seed", "rounds_done", "rounds_planned")},
        "started": summary["timing"]["started"],
    }


def _result(summary: Json, used: Json, trail: Trail, site: str) -> Json:
    shared, row = (_own(found["sites"], site) or {} for found in (summary, used))
    own = used is not summary and row is not shared
    metric = summary["headline"]
    return {
        "n": number(((_splits(trail, site)).get("n") or {}).get(TEST)),
        "value": row["value"],
        "val": number(row["val"].get(metric)),
        "test": row["test"],
        "intervals": row["intervals"],
        "trivial": trivial_of(summary, site),
        "whose": PERSONAL if own or "counted" in summary else "shared",
        "shared": shared["value"] if own else None,
        "label": label(metric, summary),
        "meaning": meaning(metric, summary),
    }


def _standing(summary: Json, values: Mapping[str, float | None], site: str) -> Json:
    value, what, higher = standing(values, site), label(summary["headline"], summary), summary["higher_is_better"]
    found: Json = {"value": {**value, "sentence": sentence(value, what, higher)}}
    joined = summary.get("benefit") or {}
    one = (joined.get("metrics") or {}).get(joined.get("metric"))
    if one:
        gain = standing({row["site"]: row["benefit"] for row in one["sites"]}, site)
        found["benefit"] = {**gain, "sentence": sentence(gain, f"benefit in {one['label']}", True)}
    return found


def _benefit(joined: Json | None, site: str) -> Json | None:
    """The site's own rows, and why it has none."""
    if not joined:
        return None
    metrics = {
        name: {
            **{key: one[key] for key in ("label", "higher_is_better")},
            "row": _own(one["sites"], site),
            "groups": [row for row in one["groups"] if row["site"] == site],
        }
        for name, one in joined["metrics"].items()
    }
    why = joined["rejected"].get(site) or {}
    about = {key: joined[key] for key in ("metric", "trainer", "draws", "level")}
    return {**about, "metrics": metrics, "rejected": why.get("code")}


def _round(row: Json, trail: Trail, summary: Json, site: str) -> Json:
    """The site's part of a round; its weight only where enough others were part of it, too."""
    record = next(one for one in trail.rounds if one["round"] == row["round"])
    accepted, rejected = record.get("accepted") or {}, record.get("rejected") or {}
    others = len(set(finite(row["weights"])) - {site})
    state = "accepted" if site in accepted else (rejected.get(site) or {}).get("code") or _absent(record, site)
    return {
        "round": row["round"],
        "value": row["metric"].get(site),
        "weight": row["weights"].get(site) if enough(others) else None,
        "state": state,
    }


def _absent(record: Mapping[str, Any], site: str) -> str:
    return "not asked" if "selected" in record and site not in record["selected"] else "absent"


def _groups(summary: Json, trail: Trail, site: str) -> Json | None:
    """The site's own cells, which it has sent; None where the run has no groups."""
    section = summary.get("groups")
    if not section:
        return None
    splits = _splits(trail, site)
    own = splits.get(PERSONAL) or {} if summary.get(USED) == PERSONAL else {}
    cells = known_cells(((own or splits).get("groups") or {}).get(TEST) or {})
    rows = [{"group": name, "n": n, "value": value} for name, (n, value) in cells.items()]
    about = {key: section[key] for key in ("by", "min_count", "metric")}
    return {**about, "label": label(section["metric"], summary), "rows": rows, "expected": len(section["rows"])}


def _clinical(section: Json | None, site: str) -> Json | None:
    if not section:
        return None
    cells = [cell for cell in section["cells"] if cell["site"] == site]
    about = {key: section[key] for key in ("event", "threshold", "min_count", "step", "in_use", "stages")}
    return {**about, "row": _own(section["rows"], site), "groups": cells}


def _part(summary: Json, row: Json, site: str) -> Json:
    others = len(summary["sites"]) - 1
    known = sum(one["n_examples"] is not None for one in summary["sites"] if one["site"] != site)
    weights = [
        one["weights"][site]
        for one in summary["rounds"]
        if site in one["weights"] and enough(len(set(finite(one["weights"])) - {site}))
    ]
    return {
        **{key: row[key] for key in ("expected", "accepted", "n_examples")},
        "left_out": row["expected"] - row["accepted"],
        "codes": row["codes"],
        "weight": mean({str(place): value for place, value in enumerate(weights)}),
        "equal": 1 / len(summary["sites"]) if enough(others) else None,
        "share": row["data_share"] if enough(known) else None,
    }


def _notes(summary: Json, site: str) -> list[Json]:
    """What the method's rule notes of the site; shares of a whole only where enough others have the rest."""
    found = []
    for note in summary["notes"]:
        if note["per"] != "site" or "rows" not in note:
            continue
        own = _own(note["rows"], site, "name")
        if own is not None and (not note["shares"] or enough(len(note["rows"]) - 1)):
            found.append({**{key: note[key] for key in ("name", "label", "unit", "meaning")}, "mean": own["mean"]})
    return found


def _own(rows: Iterable[Json], site: str, key: str = "site") -> Json | None:
    return next((row for row in rows if row[key] == site), None)


def _splits(trail: Trail, site: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (trail.evaluation.get("sites") or {}).get(site) or {}
    return found
