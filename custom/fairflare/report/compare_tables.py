# SPDX-License-Identifier: Apache-2.0
"""A comparison of methods as tables, as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from fairflare.report import table_files
from fairflare.report.after import VERDICTS
from fairflare.report.compare import drawn_words, objective_words, same_objective
from fairflare.report.fairness import LEVEL
from fairflare.report.quantities import COSTS, NAMES, QUANTITIES, better_higher
from fairflare.report.rows import remark, shared_only
from fairflare.report.sentences import differences
from fairflare.report.table_files import Cell, Column, Form, Row, Table, markdown, with_best
from fairflare.report.values import MISSING, capital, higher_is_better, label, plural, size, text

Json = Mapping[str, Any]
INTERVAL = "± is the standard deviation over seeds (ddof 1)."
MOST_ROWS, WHOLE = 60, 1_000_000
"""Sites that a page or a Markdown file shows, and what leaves out nothing: CSV and JSON have all."""
MOST_PAIRS = 20
"""Rows of the paired differences from which on a page leaves out the quantities that say much the same as others."""
RELATED = frozenset(
    ("std_sample", "variance", "jain", "gini", "bottom_decile", "domain_std", "eo_gap")
    + ("calibration_mean", "brier_mean", "ece_mean")
)
SIGNED = Form(signed=True)


def comparison_tables(comparison: Json, most_rows: int = MOST_ROWS) -> list[Table]:
    """Tables of the statistics, the sites, every metric, domains, shared test sets, the last rounds, joining, cost,
    other mixtures and the Pareto front; one that has nothing to show is left out.

    Args:
        comparison: see ``compare.compare``; one of the first version has none of these.
        most_rows: of the tables with a row per site; a footnote says how many are left out.
    """
    if "pareto" not in comparison:
        return []
    makers: Iterable[Callable[[Json], Table | None]] = (
        statistics, sites, metrics, domains, test_sets, last_rounds, joining, benefit, elsewhere, cost, pareto,
    )  # fmt: skip
    found = [made for make in makers if (made := make(comparison)) is not None]
    return [_cut(table, most_rows) if most_rows < WHOLE else table for table in found]


def main_table(comparison: Json) -> Table:
    methods, higher = comparison["methods"], comparison["higher_is_better"]
    names = [name for name in QUANTITIES if any((m.get(name) or {}).get("mean") is not None for m in methods)]
    columns = [Column(name, capital(NAMES[name]), better=_better(better_higher(name, higher))) for name in names]
    rows = _down(methods, lambda m: {name: Cell.of(m[name]) for name in names})
    return Table("results", f"Final models: {_metric(comparison)}", columns, rows, caption=_caption(comparison))


def statistics(comparison: Json) -> Table | None:
    """Paired differences from the first method, a row per other method and quantity; None: there are no pairs."""
    methods = comparison["methods"][1:]
    columns = (
        Column("difference", "Difference", form=SIGNED),
        Column("bootstrap", "Seeds and patients resampled", form=SIGNED),
        Column("p", "p"),
        Column("p_holm", "p (Holm)"),
        Column("d", "d", form=Form(digits=2)),
        Column("g", "g", form=Form(digits=2)),
        Column("wins", "Better in", words=True),
        Column("verdict", "Verdict", words=True),
    )
    resampled = any(found.get("bootstrap") for m in methods for found in m["versus_first"].values())
    rows = [
        Row(f"{m['label']}/{name}", capital(NAMES[name]), _judged(found), group=m["label"])
        for m in methods
        for name, found in m["versus_first"].items()
        if found["mean"] is not None
    ]
    if not rows:
        return None
    kept = [column for column in columns if resampled or column.key != "bootstrap"]
    caption = (
        f"Own value minus that of {comparison['reference']} with the same seed: mean [95 % interval, Student t], p of "
        "the sign-flip test, Holm's p over the methods of this table, Cohen's d of pairs and Hedges' g. Verdict: by "
        f"the interval, and of several methods only where Holm's p is at most {LEVEL:g}."
    )
    return Table("statistics", "Paired differences", kept, rows, "Quantity", caption)


def sites(comparison: Json) -> Table | None:
    told = {row["site"]: f" ({row['description']})" if row["description"] else "" for row in comparison["sites"]}
    titles, metric = {site: f"{site}{words}" for site, words in told.items()}, comparison["headline"]
    title = f"{capital(_metric(comparison))} of each site"
    return _by_method(comparison, "sites", title, "Site", titles, lambda m: m["detail"]["sites"].get(metric) or {})


def metrics(comparison: Json) -> Table | None:
    methods = comparison["methods"]
    words = {"mean": "Mean over sites", "worst": "Worst site", "std": "Standard deviation over sites (ddof 0)"}
    names = list(methods[0]["detail"]["metrics"])
    if len(names) < 2:
        return None
    rows = []
    for kind, name in product(words, names):
        cells = _across((m["detail"]["metrics"].get(name) or {}).get(kind) for m in methods)
        rows.append(Row(f"{name}/{kind}", capital(label(name, comparison)), cells, group=words[kind]))
    return Table("metrics", "Every metric", _columns(methods), rows, "Metric", _caption(comparison))


def domains(comparison: Json) -> Table | None:
    """A row per method: its mean in each domain, over the domains, and their standard deviations; None: no domains."""
    first = comparison["methods"][0]["detail"]
    if not first["domains"]:
        return None
    better = _better(comparison["higher_is_better"])
    spreads = {"domain_std": "sd (ddof 0)", "domain_std_sample": "sd (ddof 1)"}
    over = [Column("domain_mean", "Mean", better=better)]
    over += [Column(key, title, better="lower") for key, title in spreads.items()]
    columns = [*(Column(name, name, group="Domain", better=better) for name in first["domains"]), *over]

    def cells(method: Json) -> dict[str, Cell]:
        own = {name: Cell.of(method["detail"]["domains"][name]) for name in first["domains"]}
        return own | {column.key: Cell.of(method[column.key]) for column in over}

    rows = _down(comparison["methods"], cells)
    shared = first["domains_of"] != "sites"
    of = "on the domain's shared test set" if shared else "mean over its sites"
    caption = f"{capital(_metric(comparison))} of the final models, {of}; mean over seeds. {INTERVAL}"
    notes = _of_shared(comparison) if shared else ()
    return with_best(Table("domains", "Domains", columns, rows, caption=caption, footnotes=notes))


def test_sets(comparison: Json) -> Table | None:
    metric = comparison["headline"]

    def found(method: Json) -> Json:
        return {name: row[metric] for name, row in method["detail"]["test_sets"].items() if metric in row}

    titles = {name: name for name in found(comparison["methods"][0])}
    table = _by_method(comparison, "test-sets", "Shared test sets", "Test set", titles, found)
    return None if table is None else replace(table, footnotes=_of_shared(comparison))


def last_rounds(comparison: Json) -> Table | None:
    """Scores after each of the last rounds, pooled over runs, a row per method; None: no run tells them."""
    methods = [method for method in comparison["methods"] if method["detail"]["last_rounds"]]
    if not methods:
        return None
    better = _better(comparison["higher_is_better"])
    columns = [Column(kind, kind.capitalize(), better=better) for kind in ("clean", "corrupted", "average")]

    def cells(method: Json) -> dict[str, Cell]:
        found = method["detail"]["last_rounds"].items()
        return {kind: Cell(one["mean"], spread=one["sd"], n=one["n"]) for kind, one in found}

    rows = _down(methods, cells)
    n = methods[0]["detail"]["last_rounds"]["clean"]["n"]
    caption = (
        f"{capital(_metric(comparison))} on the shared test sets after each of the last rounds of every run, {n} "
        "values taken as one sample: mean ± standard deviation (ddof 0). Rounds of a run are not independent of each "
        "other: this is no interval, and no test follows from it."
    )
    title, notes = "Last rounds of all runs", _of_shared(comparison)
    return with_best(Table("last-rounds", title, columns, rows, caption=caption, footnotes=notes))


def joining(comparison: Json) -> Table | None:
    """Each site's difference from a model of its own, a column per method; None: no such models were trained."""
    methods = [method for method in comparison["methods"] if method["detail"]["joining"]]
    if not methods:
        return None
    names, found = [row["site"] for row in comparison["sites"]], [m["detail"]["joining"] for m in methods]
    rows = [Row(site, site, _across((one["sites"].get(site) for one in found), sd=False)) for site in names]
    lose = {_key(i): Cell.text(f"{one['lose']} of {len(names)}") for i, one in enumerate(found)}
    rows += [Row("lose", "Sites that lose, by interval and Holm's p over sites", lose, group="All sites")]
    caption = (
        f"{capital(_metric(comparison))} of what serves a site (its own model where it has one) minus that of a model "
        "trained at that site alone, with the same seed: mean [95 % interval]."
    )
    columns = _columns(methods, form=SIGNED)
    return Table("joining", "What joining brings each site", columns, rows, "Site", caption)


def benefit(comparison: Json) -> Table | None:
    """Numbers of sites by what they say of joining, a column per method; None: no run asked them."""
    methods = [m for m in comparison["methods"] if m["detail"].get("benefit")]
    if not methods:
        return None
    labels: dict[str, str] = {}
    for method in reversed(methods):  # the first method's label counts, and its order below
        labels |= {name: found["label"] for name, found in method["detail"]["benefit"].items()}
    metrics = dict.fromkeys(name for m in methods for name in m["detail"]["benefit"])
    rows = []
    for metric in metrics:
        found = [m["detail"]["benefit"].get(metric) for m in methods]
        told = {_key(i): one for i, one in enumerate(found) if one is not None}
        for kind in VERDICTS:
            counts = {key: Cell(one[kind]["mean"], form=Form(digits=1)) for key, one in told.items()}
            rows.append(Row(f"{metric}/{kind}", f"Sites: {kind}", counts, group=labels[metric]))
        least = {key: Cell.of(one["least"], sd=False, form=SIGNED) for key, one in told.items()}
        rows.append(Row(f"{metric}/least", "Least benefit of a site", least, group=labels[metric]))
    caption = (
        "Each site's own word after the last round: the model that it uses against one trained alone, by the interval "
        "over its test patients; means over seeds, the least benefit with its 95 % interval over seeds."
    )
    return Table("benefit", "Benefit of joining, over patients", _columns(methods), rows, "Metric", caption)


def elsewhere(comparison: Json) -> Table | None:
    found = comparison.get("elsewhere") or []
    if not found:
        return None
    higher = comparison["higher_is_better"]
    kinds = {"mean": "Mean", "worst": "Worst site", "std_sample": "sd over sites (ddof 1)"}
    names = [", ".join(f"{key} = {value}" for key, value in one["options"].items()) for one in found]
    better = {kind: _better(better_higher(kind, higher)) for kind in kinds}
    each = product(enumerate(names), kinds.items())
    columns = [Column(f"{i}-{kind}", title, group=name, better=better[kind]) for (i, name), (kind, title) in each]

    def cells(method: Json) -> dict[str, Cell]:
        own = {i: one["methods"].get(method["label"]) for i, one in enumerate(found)}
        return {f"{i}-{kind}": Cell.of(one[kind]) for i, one in own.items() if one is not None for kind in kinds}

    rows = _down(comparison["methods"], cells)
    caption = (
        f"{capital(_metric(comparison))} of the final shared models on patients that no site trained with, dealt to "
        f"the sites as the options above say. {INTERVAL}"
    )
    return with_best(Table("elsewhere", "Other mixtures of patients", columns, rows, caption=caption))


def cost(comparison: Json) -> Table | None:
    methods = [m for m in comparison["methods"] if any(c["mean"] is not None for c in m["detail"]["cost"].values())]
    columns = [Column(name, capital(title), better="lower") for name, title in COSTS.items()]

    def cells(method: Json) -> dict[str, Cell]:
        known = {name: one["mean"] for name, one in method["detail"]["cost"].items() if one["mean"] is not None}
        words = {name: f"{text(n, 2)} s" if name == "seconds" else size(round(n)) for name, n in known.items()}
        return {name: Cell(n, words=words[name]) for name, n in known.items()}

    rows = _down(methods, cells)
    caption = "Means over seeds. Seconds are wall time of whatever else the machine did; runs side by side share it."
    return Table("cost", "Cost", columns, rows, caption=caption) if rows else None


def pareto(comparison: Json) -> Table | None:
    found = comparison["pareto"]
    if len(found["points"]) < 2:
        return None
    axes = ((key, found[key]) for key in ("x", "y"))
    columns = [Column(key, capital(one["name"]), better=_better(one["higher_is_better"])) for key, one in axes]
    rows = _down(
        found["points"],
        lambda point: {
            **{key: Cell(point[key], mark="dominated" if point["dominated_by"] else "") for key in ("x", "y")},
            "by": Cell.text(", ".join(point["dominated_by"]) or "none: on the front"),
        },
    )
    caption = "Means over seeds. Dominated (†): another method is at least as good in both columns and better in one."
    columns += [Column("by", "Dominated by", words=True)]
    return Table("pareto", "Pareto front", columns, rows, caption=caption)


def _by_method(
    comparison: Json, key: str, title: str, stub: str, titles: Mapping[str, str], found: Callable[[Json], Json]
) -> Table | None:
    """A row per site or test set (name -> title), a column per method, with what ``found`` has of that name."""
    methods = comparison["methods"]
    held = [found(method) for method in methods]
    rows = [Row(name, words, _across(one.get(name) for one in held)) for name, words in titles.items()]
    better = _better(higher_is_better(comparison["headline"], comparison))
    return Table(key, title, _columns(methods, better=better), rows, stub, _caption(comparison)) if rows else None


def _down(found: Iterable[Json], cells: Callable[[Json], dict[str, Cell]]) -> list[Row]:
    return [Row(one["label"], one["label"], cells(one)) for one in found]


def _across(found: Iterable[Json | None], sd: bool = True) -> dict[str, Cell]:
    """Each method's mean with its standard deviation, or its interval, in its column, where it has one."""
    return {_key(i): Cell.of(one, sd=sd) for i, one in enumerate(found) if one is not None}


def _judged(found: Json) -> dict[str, Cell]:
    again = found.get("bootstrap") or {}
    cells = {
        "difference": Cell.of(found, sd=False),
        "wins": Cell.text(f"{found['wins']} of {found['n']}" if found["verdict"] != "other objective" else MISSING),
        "verdict": Cell.text(found["verdict"]),
        **{key: Cell(found[key]) for key in ("p", "p_holm", "d", "g")},
    }
    return cells | ({"bootstrap": Cell.of(again, sd=False)} if again.get("mean") is not None else {})


def _columns(methods: Sequence[Json], **more: Any) -> list[Column]:
    return [Column(_key(i), method["label"], **more) for i, method in enumerate(methods)]


def _key(place: int) -> str:
    return f"m{place + 1}"


def _better(higher: bool) -> table_files.Better:
    return "higher" if higher else "lower"


def _metric(comparison: Json) -> str:
    return label(comparison["headline"], comparison)


def _of_shared(comparison: Json) -> tuple[str, ...]:
    """The footnote of a table of shared test sets, where sites use models of their own."""
    said = shared_only(comparison["methods"])
    return (said,) if said else ()


def _caption(comparison: Json) -> str:
    seeds = plural(len(comparison["seeds"]), "seed")
    said = remark(comparison["methods"])
    whole = f"Final models on the sites' own test splits where nothing else is said; mean over {seeds}. {INTERVAL}"
    return f"{whole} {said}" if said else whole


def _cut(table: Table, most: int) -> Table:
    """What a page has room for of the tables that grow with sites, and with methods and quantities."""
    if table.key == "statistics" and len(table.rows) > min(most, MOST_PAIRS):
        kept = tuple(row for row in table.rows if row.key.rpartition("/")[2] not in RELATED)
        more = "Further quantities are in the CSV and JSON files."
        return replace(table, rows=kept, footnotes=(*table.footnotes, more))
    if len(table.rows) <= most or table.key not in ("sites", "joining"):
        return table
    note = f"{len(table.rows) - most} more rows are in the CSV and JSON files."
    shown = most if table.key == "sites" else most - 1  # the last row of joining counts all sites
    return replace(table, rows=(*table.rows[:shown], *table.rows[-1:][: most - shown]), footnotes=(note,))


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
    for method, name in product(methods, _known(methods)):
        pair = (method["versus_first"] or {}).get(name) or {}
        wins, again = pair.get("wins") if same_objective(comparison, method) else None, pair.get("bootstrap") or {}
        line = [method["label"], name, *(method[name][key] for key in ("mean", "low", "high", "n"))]
        line += [*(pair.get(key) for key in ("mean", "low", "high")), wins, objective_words(method)]
        more = [*(pair.get(key) for key in ("p", "p_holm", "g", "verdict")), again.get("low"), again.get("high")]
        lines.append(line + (more if judged else []))
    return table_files.csv_text(CSV_COLUMNS + STATISTICS if judged else CSV_COLUMNS, lines)


def comparison_markdown(comparison: Json, command: str, versions: Mapping[str, str]) -> str:
    """The same as tables, quantities down and methods across, under the command that made them."""
    methods, names = comparison["methods"], _known(comparison["methods"])
    labels = [markdown(method["label"]) for method in methods]
    values = [[NAMES[name], *(Cell.of(method[name]).written(Form()) for method in methods)] for name in names]
    rule = ["---", *("--:" for _ in methods)]
    if methods[0]["objective"]:
        values = [["trained with", *(markdown(objective_words(method)) for method in methods)], *values]
    parts = [
        markdown(f"# {comparison['headline']} on {comparison['task']['id']}:{comparison['task'].get('preset')}"),
        f"    {command}",
        f"Seeds {', '.join(map(str, comparison['seeds']))}. Mean over matched seeds ± standard deviation (ddof 1).",
        f"{capital(drawn_words(comparison))}.",
        markdown(remark(methods)),
        table_files.piped([["final model", *labels], rule, *values]),
    ]
    if len(methods) > 1:
        others = methods[1:]
        paired = [[NAMES[name], *(_difference(comparison, method, name) for method in others)] for name in names]
        parts += [
            f"Paired differences from {labels[0]}, with the 95 % interval and the number of seeds with a better value:",
            table_files.piped([["difference", *labels[1:]], rule[:-1], *paired]),
        ]
        parts += ["\n".join(f"- {markdown(line)}" for line in differences(comparison))]
    for table in comparison_tables(comparison):
        parts += [table_files.as_markdown(table, heading=2).rstrip("\n")]
    parts += ["\n".join(f"- {markdown(line)}" for line in (*comparison["notes"], *comparison["caveats"]))]
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    parts += [f"{table_files.machine()}; {told}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _known(methods: Sequence[Json]) -> list[str]:
    """The quantities that at least one method has; a comparison of an earlier version may lack one altogether."""
    held = ((name, [method.get(name) for method in methods]) for name in QUANTITIES)
    return [name for name, found in held if any(one is not None and one["mean"] is not None for one in found)]


def _difference(comparison: Json, method: Json, name: str) -> str:
    paired = (method["versus_first"] or {}).get(name)
    if not paired or paired["mean"] is None:
        return MISSING
    wins = f"{paired['wins']} of {paired['n']}" if same_objective(comparison, method) else "other objective"
    return f"{Cell.of(paired, sd=False).written(SIGNED)}, {wins}"
