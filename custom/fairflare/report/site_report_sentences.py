# SPDX-License-Identifier: Apache-2.0
"""The sentences of a site edition, for people at the hospital who do not train models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.report.audit_reader import PERSONAL
from fairflare.report.benefit import GAINS, LOSES
from fairflare.report.values import ends, listing, plural, signed, text

Json = Mapping[str, Any]
AWAY = {
    "absent": "did not answer",
    "no_answer": "did not answer in time",
    "late": "answered too late",
    "not asked": "was not asked, as the plan of the rounds said",
}
"""What reasons say to people; others are named by their codes."""


def opening(found: Json) -> list[list[str]]:
    """Paragraphs: what joining gives, how well the model does here and elsewhere, and how the site took part."""
    return [said for said in (_joining(found), _result(found), _taking_part(found)) if said]


def _joining(found: Json) -> list[str]:
    joined, site = found["benefit"], found["site"]
    if joined is None:
        return [f"No model was trained at {site} alone in this run, so it does not say what joining gives {site}."]
    told = [one for one in joined["metrics"].values() if one["row"] and one["row"]["verdict"]]
    if not told:
        why = f" ({joined['rejected']})" if joined["rejected"] else ""
        return [f"What joining gives {site} is not known: it sent no answer that may be told{why}."]
    said = [_verdict(one["row"], one["label"], site) for one in told[:1]]
    more = [f"{one['label']} {_short(one['row'])}" for one in told[1:]]
    said += [f"By other measures: {listing(more)}."] if more else []
    if standing := found["standing"].get("benefit"):
        said += [standing["sentence"]] if standing["mean"] is not None else []
    return said


def _verdict(row: Json, what: str, site: str) -> str:
    n = plural(int(row["n"]), "patient") if row["n"] else "patients"
    held = f"{what} {text(row['federated'])} after joining, {text(row['solo'])} with the model trained at {site} alone"
    if row["low"] is None:
        return f"It cannot be told whether joining helps the patients of {site}: on {n} {held}; there is no interval."
    ends = f"difference {signed(row['benefit'])}, 95 % interval {signed(row['low'])} to {signed(row['high'])}"
    kind = {GAINS: f"Joining helps the patients of {site}", LOSES: f"Joining harms the patients of {site}"}
    lead = kind.get(row["verdict"], f"It cannot be told whether joining helps or harms the patients of {site}")
    return f"{lead}: on {n} {held} ({ends}; above 0 joining is better)."


def _short(row: Json) -> str:
    ends = "" if row["low"] is None else f" [{signed(row['low'])}, {signed(row['high'])}]"
    return f"{row['verdict']} ({signed(row['benefit'])}{ends})"


def _result(found: Json) -> list[str]:
    result, site = found["result"], found["site"]
    if result["value"] is None:
        return [f"There is no result of a final model on test patients of {site}."]
    whose = "its own model" if result["whose"] == PERSONAL else "the federation's model"
    n = f" on {plural(int(result['n']), 'test example')}" if result["n"] else ""
    explained = f" ({result['meaning']})" if result["meaning"] else ""
    interval = result["intervals"].get(found["headline"])
    sure = f", 95 % interval {ends(interval)} over its test patients" if interval else ""
    said = [f"At {site} {whose} has this {result['label']}: {text(result['value'])}{n}{explained}{sure}."]
    if result["shared"] is not None:
        said.append(f"The shared model, which {site} does not use, reaches {text(result['shared'])}.")
    said += _without(found)
    return [*said, found["standing"]["value"]["sentence"]]


def _without(found: Json) -> list[str]:
    """The model beside an answer that needs no network."""
    value, trivial = found["result"]["value"], found["result"]["trivial"]
    if trivial is None:
        return []
    better = value > trivial if found["higher_is_better"] else value < trivial
    if better:
        return [f"An answer that needs no network reaches {text(trivial)}."]
    return [f"That is no better than an answer that needs no network ({text(trivial)})."]


def _taking_part(found: Json) -> list[str]:
    part, site = found["part"], found["site"]
    if not part["expected"]:
        return [f"{site} was asked in no round."]
    rounds = plural(part["expected"], "round")
    if not part["left_out"]:
        said = [f"{site} took part in all {rounds} in which it was asked."]
    else:
        why = listing(f"{AWAY.get(code, code)} ({count})" for code, count in part["codes"].items())
        named = f": {why}" if why else ""
        said = [f"{site} was left out of {part['left_out']} of the {rounds} in which it was asked{named}."]
    if part["weight"] is not None:
        share = "" if part["share"] is None else f"; it holds {text(part['share'], 2)} of the training examples"
        equal = f"{text(part['equal'], 2)} would be equal shares"
        said.append(f"Its mean weight in the shared model was {text(part['weight'], 2)} ({equal}){share}.")
    return said
