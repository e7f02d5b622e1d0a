# SPDX-License-Identifier: Apache-2.0
"""What the method's rule notes of every round, as the log declares it, and as the page shows it: any rule's.

Red is the worst served site or group or, where a note marks some, those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fairflare.core.notes import Note, read
from fairflare.report import svg
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import finite
from fairflare.report.frames import shown
from fairflare.report.section import Section
from fairflare.report.values import capital, digits, in_order, listing, number, plural, stop, text

Json = dict[str, Any]


def note_sections(trail: Trail) -> list[Json]:
    """One section per declared note of which the log holds a number, in the order of the declarations.

    Args:
        trail: the run's records; the first one declares the notes (``core.notes.Note.to_json``).

    Returns:
        what the log declares of the note, and rounds (with a number of it). Of a note per round, site or group: rows
        (name, first, last, mean and median over its rounds), and where sites or groups are marked: usual (the median
        of the medians), ratio (median over usual) and marked of each row. Of a two-fold note: table, row -> column ->
        number, the last or the mean over its rounds as declared.
    """
    found = (_section(note, trail) for note in read(trail.start.get("declared_notes")))
    return [section for section in found if section]


def series(rounds: Sequence[Mapping[str, Any]], section: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Name -> value per recorded round of a note per round, site or group; the name of a note per round is ""."""
    values, single = ((row.get("notes") or {}).get(section["name"]) for row in rounds), section["per"] == "round"
    each = [finite({"": v} if single else v if isinstance(v, Mapping) else {}) for v in values]
    return {name: [values.get(name) for values in each] for name in in_order(n for values in each for n in values)}


def _section(note: Note, trail: Trail) -> Json | None:
    about = note.to_json()
    if note.depth == 2:
        table, rounds = _table(note, trail)
        return {**about, "rounds": rounds, "table": table} if table else None
    found = series(trail.rounds, about)
    if not found:
        return None
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    rows: list[Json] = [
        {"name": name, "first": v[0], "last": v[-1], "mean": sum(v) / len(v), "median": median(v)}
        for name, v in known.items()
    ]
    section = {**about, "rounds": max(map(len, known.values())), "rows": rows}
    if note.mark_above:
        usual = section["usual"] = median(row["median"] for row in rows)
        for row in rows:
            row["ratio"] = row["median"] / usual if usual else None
            row["marked"] = row["ratio"] is not None and row["ratio"] > note.mark_above
    return section


def _table(note: Note, trail: Trail) -> tuple[dict[str, dict[str, float]], int]:
    """Row -> column -> number of a two-fold note, and the number of rounds that have one."""
    each = []
    for record in trail.rounds:
        noted = (record.get("notes") or {}).get(note.name)
        rows = noted.items() if isinstance(noted, Mapping) else ()
        known = {row: finite(columns) for row, columns in rows if isinstance(columns, Mapping)}
        each += [found] if (found := {row: columns for row, columns in known.items() if columns}) else []
    if note.over == "last":
        return (each[-1] if each else {}), len(each)
    values: dict[str, dict[str, list[float]]] = {}
    for found in each:
        for row, columns in found.items():
            for column, value in columns.items():
                values.setdefault(row, {}).setdefault(column, []).append(value)
    means = {row: {column: sum(v) / len(v) for column, v in columns.items()} for row, columns in values.items()}
    return means, len(each)


View = Mapping[str, Any]
Table = Mapping[str, Mapping[str, float | None]]
SHADES = 9
TALL = 40
"""From this many rows on those of a map are thinner and every second one is named."""
HIGH = 26
"""Letters that fit beside the axis; the title names the quantity, too."""


def note_figure(summary: View, section: View) -> str:
    """The SVG of one section of ``notes.note_sections``; "" where it is declared as a table or as nothing."""
    if section["chart"] not in ("lines", "map"):
        return ""
    draw = _map if "table" in section else _lines
    return svg.rendered(f"note-{section['name']}", lambda figure: draw(figure, summary, section))


def _lines(figure: svg.Figure, summary: View, section: View) -> str | None:
    """Each site's, group's or the round's value round by round; the worst served and the marked ones in red."""
    found, numbers = series(summary["rounds"], section), [row["round"] for row in summary["rounds"]]
    per, quantity = section["per"], svg.short(section["unit"] or section["label"], HIGH)
    key, role = ("median", "marked") if section["mark_above"] else ("last", "worst served")
    red = [row["name"] for row in section["rows"] if row.get("marked")]
    if not section["mark_above"]:
        groups = (summary["groups"] or {}).get("worst") or {}
        worst = groups.get("group") if per == "group" else summary["fairness"]["worst"]["site"]
        red = [worst] if worst in found and len(found) > 1 else []
    drawn = [svg.Series(f"{svg.short(name)}, {role}", found[name], svg.RED) for name in red]
    drawn += [svg.Series(section["label"], found[""])] if per == "round" else []
    even = [1 / len(found)] * len(numbers) if section["shares"] and len(found) > 1 else None
    drawn += [svg.Series("equal shares", even, svg.DARK, style=svg.DASHES)] if even else []
    behind = {name: values for name, values in found.items() if name and name not in red}
    axes = svg.curves(figure, numbers, drawn, quantity, others=behind, rest=f"other {per}s" if red else f"each {per}")
    known = [value for values in found.values() for value in values if value is not None]
    axes.set_ylim(bottom=min(0.0, 1.05 * min(known)))
    return f"{section['label']}, {'medians' if key == 'median' else key}: {_ends(row[key] for row in section['rows'])}"


def _map(figure: svg.Figure, summary: View, section: View) -> str | None:
    """Rows downwards, columns across; shares as colour how many times equal ones they are, others as they are."""
    rows: Table = section["table"]
    if section["per"] != "layer":  # groups downwards and sites across
        groups = in_order(group for row in rows.values() for group in row)
        rows = {group: {site: row.get(group) for site, row in section["table"].items()} for group in groups}
    known = [value for row in rows.values() for value in row.values() if value is not None]
    names, across = list(rows), in_order(column for row in rows.values() for column in row)
    even = 1 / (len(across) if section["per"] == "layer" else len(known)) if section["shares"] else None
    tall = len(names) >= TALL
    figure.set_figheight(max(3.0, 1.9 + (0.11 if tall else 0.19) * len(names)))
    axes = figure.subplots()
    values = [[number(rows[name].get(column)) for column in across] for name in names]
    _shade(figure, axes, values, even, svg.short(section["unit"] or section["label"], HIGH))
    step = 2 if tall else 1
    axes.set_yticks(range(0, len(names), step), [svg.short(name, 26) for name in names[::step]], fontsize=7.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(range(len(across)), [svg.short(name, 16) for name in across], rotation=60, ha="right", fontsize=8)
    axes.grid(visible=False)
    if any(value is None for row in values for value in row):
        axes.set_xlabel("grey: no value", fontsize=8.5)
    equal = "" if even is None else f", equal would be {text(even)}"
    when = "mean over rounds" if section["over"] == "mean" else "last"
    return f"{section['label']}, {when}: {_ends(known)}{equal}"


def _ends(values: Any) -> str:
    """ "0.1 to 0.4", or the one value there is."""
    known = list(values)
    low, high, decimals = min(known), max(known), digits(known)
    return text(low, decimals) if low == high else f"{text(low, decimals)} to {text(high, decimals)}"


def _shade(
    figure: svg.Figure, axes: svg.Axes, values: Sequence[Sequence[float | None]], even: float | None, quantity: str
) -> None:
    """A grid of colours, around ``even`` where there is one, grey for None; shapes, because an image is a reference."""
    import matplotlib
    from matplotlib.colors import Normalize, TwoSlopeNorm

    scale = even or 1.0
    cells = [[float("nan") if value is None else value / scale for value in row] for row in values]
    known = [value for row in cells for value in row if value == value]
    if even is not None:
        reach = max(0.05, *(abs(value - 1) for value in known))
        norm: Normalize = TwoSlopeNorm(1, max(1 - reach, 0), 1 + reach)
    else:
        norm = Normalize(min(known), max(known) if max(known) > min(known) else min(known) + 1)
    name = "Purples" if even is None else "PuOr_r"
    shades = matplotlib.colormaps[name].resampled(SHADES).with_extremes(bad=svg.GREY)
    grid = (range(len(cells[0])), range(len(cells)), cells)
    mesh = axes.pcolormesh(*grid, cmap=shades, norm=norm, edgecolors="white", linewidth=0.4, shading="nearest")
    bar = figure.colorbar(mesh, ax=axes, shrink=min(1.0, 8 / max(len(cells), 8)), pad=0.02)
    bar.set_label(quantity if even is None else "times equal weights", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)


def _said(run: View) -> list[str]:
    per = {"layer": "layer and site", "cell": "site and group"}
    about = []
    for note in _shown(run):
        unit, meaning = (
            f" ({note['unit']})" if note["unit"] else "",
            f": {note['meaning']}" if note["meaning"] else "",
        )
        where = f"per {per.get(note['per'], note['per'])}, over {plural(note['rounds'], 'round')}"
        about.append(f"{note['label']}{unit}, {where}{stop(meaning)}")
    return about + [words for note in _shown(run) if (words := _marked(note))]


def _shown(run: View) -> list[View]:
    return [section for section in run["notes"] if section["chart"] != "none"]


def _marked(section: View) -> str:
    """The rule by which sites or groups are marked, with its result; "" where none are."""
    if not section["mark_above"]:
        return ""
    per, label = section["per"], section["label"]
    marked = [row["name"] for row in section["rows"] if row["marked"]]
    found = f"Marked: {listing(marked)}." if marked else f"No {per} is marked."
    if not section["usual"]:
        found = f"The median {per}'s value is 0, so no {per} can be compared with it."
    return (
        f"{label}: a {per} is marked when its median over the rounds exceeds {section['mark_above']:g} times the "
        f"median of all {per}s' medians. A mark is a reason to look, not a verdict. {found}"
    )


def _tables(run: View) -> list[Json]:
    """All notes per round, site or group side by side, and a table of each two-fold note that is declared as one."""
    made = []
    for per in ("round", "site", "group"):
        rows: dict[str, Json] = {}
        marked = set[str]()
        for note in (note for note in _shown(run) if note["per"] == per and "rows" in note):
            decimals = digits(row[key] for row in note["rows"] for key in ("first", "last", "mean", "median"))
            keys = ("mean", "last") if note["chart"] == "table" else ("first", "mean", "last")
            for row in note["rows"]:
                cells = rows.setdefault(row["name"] or "all", {capital(per): row["name"] or "all"})
                start = f"{note['label']}, "
                if note["mark_above"]:
                    cells[f"{start}median"] = text(row["median"], decimals)
                    cells[f"{start}times median"] = text(row["ratio"], 1)
                    marked |= {row["name"]} if row["marked"] else set()
                    continue
                cells |= {start + key: text(row[key], decimals) for key in keys}
        title = f"What the method notes per {per}: first, mean and last value."
        held = [rows[name] for name in in_order(rows)]
        made += [shown(held, title, worst=marked)] if held else []
    for note in (note for note in _shown(run) if note["chart"] == "table" and "table" in note):
        table, (first, across) = note["table"], {"layer": ("Layer", "sites"), "cell": ("Site", "groups")}[note["per"]]
        decimals = digits(value for row in table.values() for value in row.values())
        columns = in_order(name for row in table.values() for name in row)
        held = [{first: name, **{c: text(row.get(c), decimals) for c in columns}} for name, row in table.items()]
        when = "mean over rounds" if note["over"] == "mean" else "last round"
        made.append(shown(held, f"{note['label']}, {when}: {across} across.", f"{note['label']} table"))
    return made


SECTION = Section(
    "notes",
    lambda run: f"What {run['method']['title']} reports",
    tables=_tables,
    sentence=_said,
    figure=lambda run: [note_figure(run, section) for section in _shown(run)],
)
