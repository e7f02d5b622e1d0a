# SPDX-License-Identifier: Apache-2.0
"""Models of the sites' own beside the shared one, and whose results those of a run are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fairflare.report import svg
from fairflare.report.audit_reader import PERSONAL, Trail
from fairflare.report.fairness import describe
from fairflare.report.section import Quantity, Section, headline_width
from fairflare.report.sites import final, intervals_of
from fairflare.report.values import capital, label, less, listing, number, text

Json = dict[str, Any]
USED, COUNTED = "used", "counted"
"""Keys of a summary, each "personal" or absent: whose models sites use, and whose the run's results are."""
SHOWN = "shown"
"""Key of a summary whose results ``as_used`` has put in the place of the shared model's."""


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
    """Whose models a comparison's numbers are of where sites use their own; "" without such."""
    shown = [str(method["label"]) for method in methods if method.get(SHOWN)]
    return f"Of {listing(shown)} the numbers are those of each site's own model, which the site uses." if shown else ""


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
            values = (number((found.get(split) or {}).get(headline)) for found in (shared, own))
            row |= dict(zip((f"shared{end}", f"personal{end}"), values))
        metrics = {split: own.get(split) or {} for split in ("test", "val")}
        difference = less(row["personal"], row["shared"])
        rows.append({**row, "difference": difference, **metrics, "intervals": intervals_of(own)})
    if not any(row["test"] or row["val"] for row in rows):
        return None
    both = [row for row in rows if row["difference"] is not None]
    even = {kind: describe({row["site"]: row[kind] for row in both}, higher) for kind in ("shared", "personal")}
    return {"metric": headline, "split": "test", "rows": rows, **even}


def personal_of(summary: Json, site: str) -> Json:
    """The metrics of a site's personal model as report.json has them: null where there is none."""
    rows = (summary.get("personal") or {}).get("rows", ())
    row: Json = next((row for row in rows if row["site"] == site), {})
    return {"personal_metrics": row.get("test") or None, "personal_val_metrics": row.get("val") or None}


def _shared(key: str) -> Callable[[Json], float | None]:
    """Of the shared model, where sites use their own; None elsewhere."""

    def value(run: Json) -> float | None:
        found = (run.get("personal") or {}).get("shared")
        if not found or COUNTED in run or SHOWN not in run:
            return None
        return number(found["worst"]["value"] if key == "worst" else found[key])

    return value


QUANTITIES = (
    Quantity("shared_mean", "mean over sites, shared model", _shared("mean"), column="Shared model: mean"),
    Quantity("shared_worst", "worst site, shared model", _shared("worst"), column="Shared model: worst site"),
    Quantity("shared_std", "standard deviation over sites, shared model (ddof 0)", _shared("std"), "lower",
             headline_width, "Shared model: spread"),
)  # fmt: skip


@svg.inline("personal")
def personal_points(figure: svg.Figure, summary: Json) -> str | None:
    own, metric = summary["personal"], label(summary["headline"], summary)
    rows = [row for row in (own or {}).get("rows", ()) if row["difference"] is not None]
    if not rows:
        return None
    series = (
        svg.Series("shared model", [row["shared"] for row in rows]),
        svg.Series("personal model", [row["personal"] for row in rows], svg.PURPLE, "D"),
    )
    names = [row["site"] for row in rows]
    svg.dots(figure, names, series, f"{metric}\n(own test split, {final(summary)})", joined=True)
    shared, personal = (text(own[kind]["mean"]) for kind in ("shared", "personal"))
    return f"{capital(metric)}, mean over sites: shared {shared}, personal {personal}"


SECTION = Section(
    "personal", "Shared and personal models", ("personal", "rows"), figure=lambda run: [personal_points(run)]
)
