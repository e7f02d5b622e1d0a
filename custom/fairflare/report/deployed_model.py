# SPDX-License-Identifier: Apache-2.0
"""Which model the sites use, and the results of each: the shared one, the sites' own, the one that validation chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.report.audit_reader import PERSONAL, Trail
from fairflare.report.fairness import describe
from fairflare.report.rows import intervals_of
from fairflare.report.values import listing, number

Json = dict[str, Any]
USED, COUNTED = "used", "counted"
"""Keys of a summary, each "personal" or absent: whose models sites use, and whose the run's results are."""
SHOWN = "shown"
"""Key of a summary whose results ``as_used`` has put in the place of the shared model's."""
PLAIN = "sgd"
"""The trainer of which no site has a model of its own."""


def used_models(config: Mapping[str, Any], personal: Json | None) -> str | None:
    """ "personal" where sites use models of their own, else None.

    Args:
        config: of the run. Older ones do not say it: there the results of own models are those of the trainer, unless
            that is the plain one, beside which a rule may show models that no site uses.
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
    own = {row["site"]: row for row in personal["rows"]}
    return [_row(row, own.get(row["site"]) or {}) for row in rows]


def _row(row: Json, own: Mapping[str, Any]) -> Json:
    if own.get("personal") is None:
        return row
    return {**row, "value": own["personal"], **{key: own.get(key) or {} for key in ("test", "val", "intervals")}}


def remark(methods: Iterable[Mapping[str, Any]]) -> str:
    """Whose models the numbers of a comparison are of, in one sentence; "" where sites have none of their own.

    Args:
        methods: those of a comparison; ``used`` says whose models the sites use, ``shown`` whose results stand there.
    """
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
    rows = [_shared_and_own(site, results.get(site) or {}, headline) for site in sites]
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
    rows = {row["site"]: row for row in (summary.get("personal") or {}).get("rows", ())}
    row = rows.get(site) or {}
    return {"personal_metrics": row.get("test") or None, "personal_val_metrics": row.get("val") or None}


def _shared_and_own(site: str, splits: Mapping[str, Any], headline: str) -> Json:
    own = splits.get("personal") or {}
    both = {"shared": splits, "personal": own}
    values = {kind: _headline_of(found, "test", headline) for kind, found in both.items()}
    values |= {f"{kind}_val": _headline_of(found, "val", headline) for kind, found in both.items()}
    shared, personal = values["shared"], values["personal"]
    difference = None if shared is None or personal is None else personal - shared
    own_metrics = {split: own.get(split) or {} for split in ("test", "val")}
    return {"site": site, **values, "difference": difference, **own_metrics, "intervals": intervals_of(own)}


def _whose(results: Mapping[str, Any] | None, own: bool) -> Mapping[str, Any]:
    return ((results or {}).get(PERSONAL) if own else results) or {}


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
    results = {"best": line["sites"] or last, "last": last}
    test = {
        kind: {site: _headline_of(_whose(found.get(site), line["own"]), "test", headline) for site in sites}
        for kind, found in results.items()
    }
    rows = [_both_scores(site, val, test) for site in sites]
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


def _both_scores(
    site: str, val: Mapping[str, Mapping[str, Any]], test: Mapping[str, Mapping[str, float | None]]
) -> Json:
    best, last = test["best"][site], test["last"][site]
    found = {"site": site, **{f"{kind}_val": number(val[kind].get(site)) for kind in val}, "best": best, "last": last}
    return {**found, "difference": None if best is None or last is None else best - last}
