# SPDX-License-Identifier: Apache-2.0
"""A comparison of methods as tables, and its quantities as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from fairflare.report.benefit import VERDICTS
from fairflare.report.compare import COSTS, objective_words, same_objective
from fairflare.report.fairness import LEVEL
from fairflare.report.frames import csv_text, frame
from fairflare.report.personal import remark, shared_only
from fairflare.report.sections import quantities
from fairflare.report.values import MISSING, Estimate, capital, label, plural, size, text

if TYPE_CHECKING:
    import pandas as pd

Json = Mapping[str, Any]
INTERVAL = "± is the standard deviation over seeds (ddof 1)."
MOST_ROWS, WHOLE = 60, 1_000_000
"""Sites that a page or a Markdown file shows, and what leaves out nothing: CSV and JSON have all."""
MOST_PAIRS = 20
"""Rows of the paired differences from which on a page leaves out the quantities that are no column of it."""


def comparison_tables(comparison: Json, most_rows: int = MOST_ROWS) -> list[pd.DataFrame]:
    """Tables of the statistics, the sites, every metric, domains, shared test sets, the last rounds, joining, cost,
    other mixtures and the Pareto front; one that has nothing to show is left out.

    Args:
        comparison: see ``compare.compare``; one of the first version has none of these.
        most_rows: of the tables with a row per site; a note says how many are left out.
    """
    if "pareto" not in comparison:
        return []
    makers = (statistics, sites, metrics, domains, test_sets, last_rounds, joining, benefit, cost, pareto)
    found = [make(comparison) for make in makers]
    return [_cut(table, most_rows) for table in found if len(table)]


def main_table(comparison: Json) -> pd.DataFrame:
    methods, known = comparison["methods"], quantities()
    names = known_names(methods)
    cells = ({capital(known[name].label): _mean(m[name]) for name in names} for m in methods)
    title = f"Final models: {label(comparison['headline'], comparison)}"
    return _table("results", title, _down(methods, cells), _caption(comparison))


def statistics(comparison: Json) -> pd.DataFrame:
    """Paired differences from the first method, a row per other method and quantity."""
    methods, known = comparison["methods"][1:], quantities()
    pairs = [(m, n, found) for m in methods for n, found in m["versus_first"].items() if found["mean"] is not None]
    resampled = any(found.get("bootstrap") for *_, found in pairs)
    rows = [
        {
            "Method": method["label"],
            "Quantity": capital(known[name].label) if name in known else name,
            "Difference": Estimate.of(found, signed=True),
            **({"Seeds and patients resampled": Estimate.of(found.get("bootstrap"), signed=True)} if resampled else {}),
            **{title: found[key] for title, key in (("p", "p"), ("p (Holm)", "p_holm"))},
            **{key: Estimate(found[key], digits=2) for key in ("d", "g")},
            "Better in": f"{found['wins']} of {found['n']}" if found["verdict"] != "other objective" else MISSING,
            "Verdict": found["verdict"],
        }
        for method, name, found in pairs
    ]
    caption = (
        f"Own value minus that of {comparison['reference']} with the same seed: mean [95 % interval, Student t], p of "
        "the sign-flip test, Holm's p over the methods of this table, Cohen's d of pairs and Hedges' g. Verdict: by "
        f"the interval, and of several methods only where Holm's p is at most {LEVEL:g}."
    )
    main = {place for place, (_, name, _) in enumerate(pairs) if name in known and known[name].column}
    return _table("statistics", "Paired differences", rows, caption, main=main, names=2)


def sites(comparison: Json) -> pd.DataFrame:
    titles = {
        s["site"]: s["site"] + (f" ({s['description']})" if s["description"] else "") for s in comparison["sites"]
    }
    metric = comparison["headline"]
    title = f"{capital(label(metric, comparison))} of each site"
    held = [method["detail"]["sites"].get(metric) or {} for method in comparison["methods"]]
    return _table("sites", title, _across("Site", comparison["methods"], titles, held), _caption(comparison))


def metrics(comparison: Json) -> pd.DataFrame:
    methods = comparison["methods"]
    words = {"mean": "mean over sites", "worst": "worst site", "std": "standard deviation over sites (ddof 0)"}
    each = list(product(words, methods[0]["detail"]["metrics"]))
    titles = {(kind, name): f"{capital(label(name, comparison))}, {words[kind]}" for kind, name in each}
    held = [
        {(kind, name): (method["detail"]["metrics"].get(name) or {}).get(kind) for kind, name in each}
        for method in methods
    ]
    several = titles if len(each) > len(words) else {}
    return _table("metrics", "Every metric", _across("Metric", methods, several, held), _caption(comparison))


def domains(comparison: Json) -> pd.DataFrame:
    """A row per method: its mean in each domain, over the domains, and their standard deviations."""
    first = comparison["methods"][0]["detail"]
    over = {"domain_mean": "Mean", "domain_std": "sd (ddof 0)", "domain_std_sample": "sd (ddof 1)"}
    cells = (
        {name: _mean(m["detail"]["domains"][name]) for name in first["domains"]}
        | {title: _mean(m[key]) for key, title in over.items()}
        for m in comparison["methods"]
    )
    shared = first["domains_of"] != "sites"
    of = "on the domain's shared test set" if shared else "mean over its sites"
    caption = f"{_metric(comparison)} of the final models, {of}; mean over seeds. {INTERVAL}"
    notes = _of_shared(comparison) if shared else ()
    rows = _down(comparison["methods"], cells) if first["domains"] else []
    return _table("domains", "Domains", rows, caption, notes=notes)


def test_sets(comparison: Json) -> pd.DataFrame:
    metric = comparison["headline"]
    held = [
        {name: row[metric] for name, row in method["detail"]["test_sets"].items() if metric in row}
        for method in comparison["methods"]
    ]
    rows = _across("Test set", comparison["methods"], {name: name for name in held[0]}, held)
    return _table("test-sets", "Shared test sets", rows, _caption(comparison), notes=_of_shared(comparison))


def last_rounds(comparison: Json) -> pd.DataFrame:
    """Scores after each of the last rounds, pooled over runs, a row per method."""
    methods = [method for method in comparison["methods"] if method["detail"]["last_rounds"]]
    cells = ({kind.capitalize(): _mean(one) for kind, one in m["detail"]["last_rounds"].items()} for m in methods)
    n = methods[0]["detail"]["last_rounds"]["clean"]["n"] if methods else 0
    caption = (
        f"{_metric(comparison)} on the shared test sets after each of the last rounds of every run, {n} "
        "values taken as one sample: mean ± standard deviation (ddof 0). Rounds of a run are not independent of each "
        "other: this is no interval, and no test follows from it."
    )
    notes = _of_shared(comparison)
    return _table("last-rounds", "Last rounds of all runs", _down(methods, cells), caption, notes=notes)


def joining(comparison: Json) -> pd.DataFrame:
    """Each site's difference from a model of its own, a column per method."""
    methods = [method for method in comparison["methods"] if method["detail"]["joining"]]
    names = {row["site"]: row["site"] for row in comparison["sites"]}
    held = [m["detail"]["joining"]["sites"] for m in methods]
    rows = _across("Site", methods, names, held, signed=True) if methods else []
    lose = {m["label"]: f"{m['detail']['joining']['lose']} of {len(names)}" for m in methods}
    rows += [{"Site": "Sites that lose, by interval and Holm's p over sites", **lose}] if methods else []
    caption = (
        f"{_metric(comparison)} of what serves a site (its own model where it has one) minus that of a model "
        "trained at that site alone, with the same seed: mean [95 % interval]."
    )
    return _table("joining", "What joining brings each site", rows, caption)


def benefit(comparison: Json) -> pd.DataFrame:
    """Numbers of sites by what they say of joining, a column per method."""
    methods = [m for m in comparison["methods"] if m["detail"].get("benefit")]
    rows = []
    for metric in dict.fromkeys(name for m in methods for name in m["detail"]["benefit"]):
        found = {m["label"]: m["detail"]["benefit"][metric] for m in methods if metric in m["detail"]["benefit"]}
        words = next(iter(found.values()))["label"]
        for kind in VERDICTS:
            counts = {name: Estimate(one[kind]["mean"], digits=1) for name, one in found.items()}
            rows.append({"Metric": f"{words}, sites: {kind}", **counts})
        least = {name: Estimate.of(one["least"], signed=True) for name, one in found.items()}
        rows.append({"Metric": f"{words}, least benefit of a site", **least})
    caption = (
        "Each site's own word after the last round: the model that it uses against one trained alone, by the interval "
        "over its test patients; means over seeds, the least benefit with its 95 % interval over seeds."
    )
    return _table("benefit", "Benefit of joining, over patients", rows, caption)


def cost(comparison: Json) -> pd.DataFrame:
    methods = [m for m in comparison["methods"] if any(c["mean"] is not None for c in m["detail"]["cost"].values())]

    def written(name: str, value: float | None) -> str:
        return MISSING if value is None else f"{text(value, 2)} s" if name == "seconds" else size(round(value))

    cells = (
        {capital(title): written(name, m["detail"]["cost"][name]["mean"]) for name, title in COSTS.items()}
        for m in methods
    )
    caption = "Means over seeds. Seconds are wall time of whatever else the machine did; runs side by side share it."
    return _table("cost", "Cost", _down(methods, cells), caption)


def pareto(comparison: Json) -> pd.DataFrame:
    found = comparison["pareto"]
    cells = (
        {
            **{capital(found[key]["name"]): point[key] for key in ("x", "y")},
            "Dominated by": ", ".join(point["dominated_by"]) or "none: on the front",
        }
        for point in found["points"]
    )
    caption = "Means over seeds. Dominated: another method is at least as good in both columns and better in one."
    rows = _down(found["points"], cells) if len(found["points"]) > 1 else []
    return _table("pareto", "Pareto front", rows, caption)


def _table(key: str, title: str, rows: Iterable[Json], caption: str, **more: Any) -> pd.DataFrame:
    return frame(rows, caption, title, key, **more)


def _down(found: Iterable[Json], cells: Iterable[Json]) -> list[Json]:
    """A row per method, or point."""
    return [{"Method": one["label"], **own} for one, own in zip(found, cells)]


def _across(
    stub: str,
    methods: Sequence[Json],
    titles: Mapping[Any, str],
    held: Sequence[Mapping[Any, Any]],
    signed: bool = False,
) -> list[Json]:
    """A row per title, a column per method with what it holds of that name."""
    return [
        {stub: words, **{m["label"]: _mean(one.get(name), signed) for m, one in zip(methods, held)}}
        for name, words in titles.items()
    ]


def _mean(found: Json | None, signed: bool = False) -> Estimate:
    """With its standard deviation, or of a difference with its interval."""
    return Estimate.of(found, sd=not signed, signed=signed)


def _metric(comparison: Json) -> str:
    return capital(label(comparison["headline"], comparison))


def _of_shared(comparison: Json) -> tuple[str, ...]:
    """The note of a table of shared test sets, where sites use models of their own."""
    said = shared_only(comparison["methods"])
    return (said,) if said else ()


def _caption(comparison: Json) -> str:
    seeds = plural(len(comparison["seeds"]), "seed")
    said = remark(comparison["methods"])
    whole = f"Final models on the sites' own test splits where nothing else is said; mean over {seeds}. {INTERVAL}"
    return f"{whole} {said}" if said else whole


def _cut(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """What a page has room for of the tables that grow with sites, and with methods and quantities."""
    key, n, note = table.attrs["key"], len(table), ""
    if key == "statistics" and n > min(most, MOST_PAIRS) and most < WHOLE:
        kept, note = sorted(table.attrs["main"]), "Further quantities are in the CSV and JSON files."
    elif n > most and key in ("sites", "joining"):
        last = key == "joining"  # its last row counts all sites
        kept, note = (
            [*range(most - last), *([n - 1] if last else [])],
            f"{n - most} more rows are in the CSV and JSON files.",
        )
    if not note:
        return table
    short = table.iloc[kept]
    short.attrs |= {"notes": (*table.attrs["notes"], note)}
    return short


CSV_COLUMNS = (
    "method", "quantity", "mean", "low", "high", "n", "difference", "difference_low", "difference_high", "wins",
    "trained_with",
)  # fmt: skip
STATISTICS = ("p", "p_holm", "hedges_g", "verdict", "bootstrap_low", "bootstrap_high")
"""Further columns, of comparisons that hold them: those of the first version do not."""


def comparison_csv(comparison: Json) -> str:
    """One line per method and quantity: mean and 95 % interval over seeds, paired difference from the first method.

    "trained_with" distinguishes methods that were not all trained under one objective; one that was trained otherwise
    than the first has no wins.
    """
    methods = comparison["methods"]
    judged = any("p" in pair for method in methods for pair in (method["versus_first"] or {}).values())
    lines = []
    for method, name in product(methods, known_names(methods)):
        pair = (method["versus_first"] or {}).get(name) or {}
        wins, again = pair.get("wins") if same_objective(comparison, method) else None, pair.get("bootstrap") or {}
        line = [method["label"], name, *(method[name][key] for key in ("mean", "low", "high", "n"))]
        line += [*(pair.get(key) for key in ("mean", "low", "high")), wins, objective_words(method)]
        more = [*(pair.get(key) for key in ("p", "p_holm", "g", "verdict")), again.get("low"), again.get("high")]
        lines.append(line + (more if judged else []))
    return csv_text(CSV_COLUMNS + STATISTICS if judged else CSV_COLUMNS, lines)


def known_names(methods: Sequence[Json]) -> list[str]:
    """The quantities that at least one method has; a comparison of an earlier version may lack one altogether."""
    held = ((name, [method.get(name) for method in methods]) for name in quantities())
    return [name for name, found in held if any(one is not None and one["mean"] is not None for one in found)]
