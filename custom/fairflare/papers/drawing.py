# SPDX-License-Identifier: Apache-2.0
"""Panels of figures from their tables: one SVG for each data set, none for a printed table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from fairflare.papers import declaration
from fairflare.report.svg import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED, legend, rendered, short
from fairflare.report.table_files import Cell, Column, Row, Table
from fairflare.report.values import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, DARK, GREY)
LINES = ("-", "--", ":", "-.")
Columns = Sequence[Column]


def drawn(panel: declaration.Table, table: Table) -> list[str]:
    """SVG elements of a panel."""
    if not panel.draw:
        return []
    draw = {
        **{"curve": _curves, "rounds": _over_columns, "density": _over_columns, "layers": _over_columns},
        **{"consistency": _over_columns, "bars": _bars, "heat": _heat, "landscape": _maps},
    }
    if panel.draw not in draw:
        return []

    def one(group: str, columns: Columns, figure: Figure) -> str | None:
        known = draw[panel.draw](figure, panel, table, columns)
        return ": ".join(part for part in (panel.title, group) if part) if known else None

    found = []
    for index, (group, columns) in enumerate(groupby(table.columns, key=lambda column: column.group)):
        key = f"{table.key}-{index}".replace(".", "-")
        found.append(rendered(key, partial(one, group, list(columns))))
    return [svg for svg in found if svg]


def standalone(svg: str) -> str:
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _curves(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A line per column and group of rows over these, which are points on the x axis; the band is the spread."""
    axes = figure.subplots()
    titles = list(dict.fromkeys(row.title for row in table.rows))
    at = {title: number(_float(title)) for title in titles}
    if None in at.values():
        at = {title: float(i) for i, title in enumerate(titles)}
        axes.set_xticks(range(len(titles)), [short(title, 12) for title in titles])
    known, styles = False, iter(_styles())
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        points = list(rows)
        for column in columns:
            label = short(": ".join(filter(None, (group, column.title))), 34)
            places, cells = [at[row.title] or 0.0 for row in points], [table.cell(row, column) for row in points]
            known |= _line(axes, places, cells, column, next(styles), marker="o", label=label)
    legend(figure, axes, *panel.axes)
    return known


def _over_columns(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    axes = figure.subplots()
    places = [_float(column.title) for column in columns]
    if any(math.isnan(place) for place in places):
        places = list(map(float, range(len(columns))))
        axes.set_xticks(places, [short(column.title, 16) for column in columns], rotation=90)
    known = False
    for style, row in zip(_styles(), table.rows):
        cells = _smoothed(panel, table, row, columns)
        known |= _line(axes, places, cells, columns[0], style, label=short(row.title, 30))
    legend(figure, axes, *panel.axes)
    return known


def _smoothed(panel: declaration.Table, table: Table, row: Row, columns: Columns) -> list[Cell]:
    """The cells of a row, by a Savitzky-Golay filter of second order where the panel asks for one."""
    cells = [table.cell(row, column) for column in columns]
    values = [cell.value for cell in cells]
    if not panel.smooth or len(cells) < panel.smooth or None in values:
        return cells
    from scipy.signal import savgol_filter

    return [Cell(float(value)) for value in savgol_filter(values, panel.smooth, 2)]


def _heat(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A field of values per round: a row per row, a column per site; columns are titled "round T, site"."""
    by_round = {key: list(found) for key, found in groupby(columns, key=lambda c: c.title.partition(", ")[0])}
    rows = table.rows
    values = {key: [[table.cell(row, c).value for c in found] for row in rows] for key, found in by_round.items()}
    known = [value for grid in values.values() for line in grid for value in line if value is not None]
    if not known:
        return False
    down = (len(by_round) + 2) // 3
    figure.set_figheight(1.2 + 2.2 * down)
    places = figure.subplots(down, min(3, len(by_round)), squeeze=False)
    for axes, (key, grid) in zip(places.flat, values.items()):
        image = axes.imshow(np.array(grid, dtype=float), vmin=min(known), vmax=max(known), cmap="cividis")
        axes.set_title(key, fontsize=10)
        axes.set_xticks(range(len(by_round[key])), [str(i) for i in range(1, len(by_round[key]) + 1)])
        axes.set_yticks(range(len(table.rows)), [short(row.title, 14) for row in table.rows], fontsize=7)
    for axes in list(places.flat)[len(by_round) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=places.ravel().tolist(), label=panel.axes[1])
    return True


def _bars(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    axes = figure.subplots()
    width = 0.8 / max(1, len(table.rows))
    known = False
    for i, row in enumerate(table.rows):
        values = [table.cell(row, column).value for column in columns]
        known |= any(value is not None for value in values)
        places = [x + (i - (len(table.rows) - 1) / 2) * width for x in range(len(columns))]
        colour = COLOURS[i % len(COLOURS)]
        axes.bar(places, [value or 0.0 for value in values], width, color=colour, label=short(row.title, 30))
    axes.set_xticks(range(len(columns)), [short(column.title, 14) for column in columns])
    axes.grid(axis="x", visible=False)
    legend(figure, axes, *panel.axes)
    return known


def _maps(figure: Figure, panel: declaration.Table, table: Table, columns: Columns) -> bool:
    """A map of contours per group of rows: the rows are steps along one direction, the columns along the other."""
    groups = [(group, list(rows)) for group, rows in groupby(table.rows, key=lambda row: row.group)]
    grids = [[[table.cell(row, column).value for column in columns] for row in rows] for _, rows in groups]
    found = [value for grid in grids for line in grid for value in line if value is not None]
    if not found:
        return False
    figure.set_figheight(2.2 + 2.4 * ((len(groups) + 1) // 2))
    places = figure.subplots((len(groups) + 1) // 2, min(2, len(groups)), squeeze=False)
    x = [_float(column.title) for column in columns]
    for axes, (group, rows), grid in zip(places.flat, groups, grids):
        y = [_float(row.title) for row in rows]
        ends = {"vmin": min(found), "vmax": max(found)}
        drawn = axes.contourf(x, y, np.array(grid, dtype=float), levels=12, cmap="cividis", **ends)
        axes.set_title(short(group, 26), fontsize=10)
    for axes in list(places.flat)[len(groups) :]:
        axes.set_axis_off()
    figure.colorbar(drawn, ax=places.ravel().tolist(), label=panel.axes[1])
    return True


def _line(
    axes: Axes, places: Sequence[float], cells: Sequence[Cell], column: Column, style: dict[str, Any], **more: Any
) -> bool:
    scale = column.form.scale
    values, spreads = (np.array([getattr(c, key) for c in cells], dtype=float) * scale for key in ("value", "spread"))
    axes.plot(places, values, markersize=4, linewidth=1.6, **style, **more)
    spreads = np.nan_to_num(spreads)
    if spreads.any():
        axes.fill_between(places, values - spreads, values + spreads, color=style["color"], alpha=0.15, linewidth=0)
    return any(cell.value is not None for cell in cells)


def _styles() -> Sequence[dict[str, Any]]:
    return [{"color": colour, "linestyle": line} for line in LINES for colour in COLOURS]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
