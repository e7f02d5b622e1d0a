# SPDX-License-Identifier: Apache-2.0
"""The page for one hospital: its own numbers, and of others nothing but means over several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import SITE
from fairflare.core.validation import shown as quoted
from fairflare.report import svg
from fairflare.report.audit_reader import PERSONAL, Trail
from fairflare.report.benefit import GAINS, LOSES, draw_benefits
from fairflare.report.clinical import clinical_figures
from fairflare.report.fairness import finite, mean
from fairflare.report.groups import known_cells
from fairflare.report.personal import USED, as_used
from fairflare.report.sanity_checks import beside_trivial, trivial_of
from fairflare.report.values import (
    answer,
    capital,
    class_words,
    drawn,
    json_value,
    label,
    listing,
    meaning,
    number,
    plural,
    rendered,
    signed,
    text,
    with_interval,
)

Json = dict[str, Any]
FORMAT = 1
TEST = "test"


def require_site(summary: Json, site: str) -> None:
    known = [row["site"] for row in summary["sites"]]
    if site not in known:
        raise UserError(f"--site: expected one of {quoted(', '.join(known))}, got {quoted(site)}")
    if not SITE.fullmatch(site):
        raise UserError(f"--site: the run has a site {quoted(site)}, whose name can be no file's")


def edition(summary: Json, trail: Trail, site: str) -> Json:
    """The content of ``SITE.json``, from which the page is written.

    Args:
        trail: its records, with the results that the summary counts.

    Returns:
        format, site, what it is, sites (how many), run (method, task, rounds, status, seed), headline and metrics in
        words; result: n, value, val, test (every metric), intervals, trivial, whose ("personal" or "shared" model) and
        shared (the shared model's value where the site uses its own); standing: value and benefit, with sentences;
        benefit: per metric the site's row and its groups' rows, None where the run did not ask, or why it has none;
        rounds: round, value and state; groups; clinical; part: expected, accepted, left_out, codes, weight and share;
        away, where hospitals were not there when the last segment began: named, n and whether this one was own; rule
        (what is said of others) and provenance.
    """
    used = as_used(summary)
    rows = {row["site"]: row for row in used["sites"]}
    row, values = rows[site], {name: one["value"] for name, one in rows.items()}
    task, method = summary["task"], summary["method"]
    last = (summary.get("segments") or [{"away": [], "sites": []}])[-1]
    absent = len(last["away"])
    away = {"named": absent + len(last["sites"]), "n": absent, "own": site in last["away"]}
    found = {
        "format": FORMAT,
        "site": site,
        "description": row["description"],
        "sites": len(rows),
        "run": {"method": method["title"], "method_id": method["id"], "paper": method["paper"]}
        | {key: task[key] for key in ("title", "id", "preset", "real", "simulated", "primary")}
        | {key: summary[key] for key in ("status", "seed", "rounds_done", "rounds_planned")}
        | {"started": summary["timing"]["started"]},
        "headline": summary["headline"],
        "metrics": summary["metrics"],
        "higher_is_better": summary["higher_is_better"],
        "result": _result(summary, used, trail, site),
        "standing": _standing(summary, values, site),
        "benefit": _benefit(summary.get("benefit"), site),
        "rounds": [_round(one, trail, site) for one in summary["rounds"]],
        "groups": _groups(summary, trail, site),
        "clinical": _clinical(summary, site),
        "part": _part(summary, row, site),
        **({"away": away} if absent else {}),
        "rule": RULE,
        "provenance": {key: summary["provenance"][key] for key in ("model_sha256", "chain_head", "versions")},
    }
    return dict(json_value(found))


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
    found: Json = {"value": {**value, "sentence": standing_sentence(value, what, higher)}}
    joined = summary.get("benefit") or {}
    one = (joined.get("metrics") or {}).get(joined.get("metric"))
    if one:
        gain = standing({row["site"]: row["benefit"] for row in one["sites"]}, site)
        found["benefit"] = {**gain, "sentence": standing_sentence(gain, f"benefit in {one['label']}", True)}
    return found


def _benefit(joined: Json | None, site: str) -> Json | None:
    if not joined:
        return None
    metrics = {}
    for name, one in joined["metrics"].items():
        groups = [row for row in one["groups"] if row["site"] == site]
        told = {key: one[key] for key in ("label", "higher_is_better")}
        metrics[name] = {**told, "row": _own(one["sites"], site), "groups": groups}
    why = joined["rejected"].get(site) or {}
    about = {key: joined[key] for key in ("metric", "trainer", "draws", "level")}
    return {**about, "metrics": metrics, "rejected": why.get("code")}


def _round(row: Json, trail: Trail, site: str) -> Json:
    record = next(one for one in trail.rounds if one["round"] == row["round"])
    accepted, rejected = record.get("accepted") or {}, record.get("rejected") or {}
    absent = "not asked" if "selected" in record and site not in record["selected"] else "absent"
    state = "accepted" if site in accepted else (rejected.get(site) or {}).get("code") or absent
    return {"round": row["round"], "value": row["metric"].get(site), "state": state}


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


def _clinical(summary: Json, site: str) -> Json | None:
    if not (section := summary.get("clinical")):
        return None
    cells = [cell for cell in section["cells"] if cell["site"] == site]
    about = {key: section[key] for key in ("event", "threshold", "min_count", "step", "in_use", "stages")}
    about["event"] = about["event"] and class_words(about["event"], summary)
    return {**about, "row": _own(section["rows"], site), "groups": cells}


def _part(summary: Json, row: Json, site: str) -> Json:
    others = len(summary["sites"]) - 1
    known = sum(one["n_examples"] is not None for one in summary["sites"] if one["site"] != site)
    each = [one["weights"] for one in summary["rounds"] if site in one["weights"]]
    weights = [one[site] for one in each if enough(len(set(finite(one)) - {site}))]
    found = {key: row[key] for key in ("expected", "accepted", "n_examples")}
    found |= {"left_out": row["expected"] - row["accepted"], "codes": row["codes"], "weight": mean(weights)}
    equal, share = 1 / len(summary["sites"]) if enough(others) else None, row["data_share"] if enough(known) else None
    return {**found, "equal": equal, "share": share}


def _own(rows: Iterable[Json], site: str) -> Json | None:
    return next((row for row in rows if row["site"] == site), None)


def _splits(trail: Trail, site: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (trail.evaluation.get("sites") or {}).get(site) or {}
    return found


LEAST = 3
"""Hospitals that every number about others is a mean over."""
DIGITS = 2
"""Decimals that such a number has."""
RULE = (
    "Other hospitals have no names here, and no number is of one of them: each is a mean over at least "
    f"{LEAST} others, with {DIGITS} decimals. Where there are fewer, nothing is said of them, and the hospital's "
    "weight and share of the examples are left out too, as theirs would follow from these. Hospitals that put their "
    "pages together can learn more than each page says."
)


def enough(others: int) -> bool:
    return others >= LEAST


def standing(values: Mapping[str, float | None], site: str) -> Json:
    """A site's own value, how many others have one, and their mean: None where that may not be said."""
    known = finite(values)
    own, average = known.pop(site, None), mean(known)
    told = None if average is None or not enough(len(known)) else round(average, DIGITS)
    return {"own": own, "others": len(known), "mean": told}


def standing_sentence(found: Mapping[str, Any], what: str, higher_is_better: bool) -> str:
    """ "On average over the 7 others it is 0.81; yours is lower (worse)." in the words that may be said."""
    others = found["others"]
    if found["mean"] is None:
        has = plural(others, "other hospital has", "other hospitals have")
        few = f"only {has}" if others else "no other hospital has"
        return f"How other hospitals do is not said: {few} a result."
    said = f"On average over {others} other hospitals the {what} is {text(found['mean'], DIGITS)}"
    own = found["own"]
    if own is None:
        return f"{said}."
    if round(own, DIGITS) == found["mean"]:
        return f"{said}, as here."
    lower = own < found["mean"]
    better = lower != higher_is_better
    return f"{said}; here it is {'lower' if lower else 'higher'}, which is {'better' if better else 'worse'}."


AWAY = {"absent": "did not answer", "no_answer": "did not answer in time", "late": "answered too late"}
AWAY |= {"not asked": "was not asked, as the plan of the rounds said"}
"""What reasons say to people; others are named by their codes."""


def opening(found: Json) -> list[list[str]]:
    """Paragraphs: the benefit of joining, how well the model does here and elsewhere, and how the site took part."""
    return [said for said in (_joining(found), _result_words(found), _taking_part(found)) if said]


def _joining(found: Json) -> list[str]:
    joined, site = found["benefit"], found["site"]
    if joined is None:
        rest = f"it does not report the benefit of joining for {site}"
        return [f"No model was trained at {site} alone in this run, so {rest}."]
    told = [one for one in joined["metrics"].values() if one["row"] and one["row"]["verdict"]]
    if not told:
        why = f" ({joined['rejected']})" if joined["rejected"] else ""
        return [f"The benefit of joining for {site} is not known: it sent no answer that may be told{why}."]
    said = [_verdict(one["row"], one["label"], site) for one in told[:1]]
    others = [(one["label"], one["row"]) for one in told[1:]]
    more = [f"{of} {answer(row['verdict'])} ({with_interval(row, 'benefit')})" for of, row in others]
    said += [f"By other measures: {listing(more)}."] if more else []
    if standing := found["standing"].get("benefit"):
        said += [standing["sentence"]] if standing["mean"] is not None else []
    return said


def _verdict(row: Json, what: str, site: str) -> str:
    n = plural(int(row["n"]), "patient") if row["n"] else "patients"
    held = f"{what} {text(row['federated'])} after joining, {text(row['solo'])} with the model trained at {site} alone"
    if row["low"] is None:
        return f"Whether joining helps the patients of {site} is not known: on {n} {held}; there is no interval."
    ends = f"difference {signed(row['benefit'])}, 95 % interval {signed(row['low'])} to {signed(row['high'])}"
    kind = {GAINS: f"Joining helps the patients of {site}", LOSES: f"Joining harms the patients of {site}"}
    lead = kind.get(row["verdict"], f"Too few patients to tell whether joining helps or harms the patients of {site}")
    return f"{lead}: on {n} {held} ({ends}; above 0 joining is better)."


def _result_words(found: Json) -> list[str]:
    result, site = found["result"], found["site"]
    if result["value"] is None:
        return [f"There is no result of a final model on test patients of {site}."]
    whose = "its own model" if result["whose"] == PERSONAL else "the federation's model"
    n = f" on {plural(int(result['n']), 'test example')}" if result["n"] else ""
    explained = f" ({result['meaning']})" if result["meaning"] else ""
    sure = ""
    if interval := result["intervals"].get(found["headline"]):
        low, high = (text(interval[end]) for end in ("low", "high"))
        sure = f", 95 % interval {low} to {high} over its test patients"
    said = [f"At {site} {whose} has this {result['label']}: {text(result['value'])}{n}{explained}{sure}."]
    if result["shared"] is not None:
        said.append(f"The shared model, which {site} does not use, reaches {text(result['shared'])}.")
    if (trivial := result["trivial"]) is not None:
        said.append(beside_trivial(result["value"], trivial, found["higher_is_better"]))
    return [*said, found["standing"]["value"]["sentence"]]


def _taking_part(found: Json) -> list[str]:
    part, site = found["part"], found["site"]
    said = []
    if missing := found.get("away"):
        own = f", {site} among them" if missing["own"] else ""
        said = [f"{missing['n']} of {missing['named']} named hospitals were not connected at the start{own}."]
    if not part["expected"]:
        return [*said, f"{site} was asked in no round."]
    rounds = plural(part["expected"], "round")
    if not part["left_out"]:
        said.append(f"{site} took part in all {rounds} in which it was asked.")
    else:
        why = listing(f"{AWAY.get(code, code)} ({count})" for code, count in part["codes"].items())
        named = f": {why}" if why else ""
        said.append(f"{site} was left out of {part['left_out']} of the {rounds} in which it was asked{named}.")
    if part["weight"] is not None:
        share = "" if part["share"] is None else f"; it holds {text(part['share'], 2)} of the training examples"
        equal = f"{text(part['equal'], 2)} would be equal shares"
        said.append(f"Its mean weight in the shared model was {text(part['weight'], 2)} ({equal}){share}.")
    return said


MOST_LINES = 40
"""Lines of the figure of benefits; the table has all."""


@svg.inline("joining")
def _own_benefits(figure: svg.Figure, found: Json) -> str | None:
    metrics = (found["benefit"] or {}).get("metrics") or {}
    rows = [(one["label"], one["row"]) for one in metrics.values() if one["row"]]
    rows += [(f"{one['label']}: {row['group']}", row) for one in metrics.values() for row in one["groups"]]
    rows = [(name, row) for name, row in rows if row["verdict"] is not None][:MOST_LINES]
    if not rows:
        return None
    draw_benefits(figure, rows, "benefit", {GAINS: "joining is better", LOSES: "joining is worse"})
    name, first = rows[0]
    return f"Benefit of joining in {name}: {signed(first['benefit'])}"


@svg.inline("own-rounds")
def _own_rounds(figure: svg.Figure, found: Json) -> str | None:
    """The received model's metric on the site's validation split."""
    values = [row["value"] for row in found["rounds"]]
    known = [value for value in values if value is not None]
    if not known:
        return None
    series, metric = [svg.Series(svg.short(found["site"]), values)], found["result"]["label"]
    svg.curves(figure, [row["round"] for row in found["rounds"]], series, f"{metric}, validation")
    return f"{capital(metric)} over rounds: {text(known[0])} to {text(known[-1])}"


def render_edition(found: Json) -> str:
    """The page of one site from its ``edition``, which holds nothing else; the same content gives the same bytes."""
    clinic = found["clinical"] or {}
    clinical = clinical_figures({"rows": [clinic["row"]], "stages": clinic["stages"]}) if clinic.get("row") else []
    own = drawn(draw(dict(found)) for draw in (_own_benefits, _own_rounds))
    figures = {"figures": own, "clinical_figures": drawn(clinical)}
    return rendered("edition", {"label": label}, found=found, opening=opening(found), **figures)
