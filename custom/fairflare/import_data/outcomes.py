# SPDX-License-Identifier: Apache-2.0
"""What is predicted: one of a few classes, classes in an order, several labels at once, or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.suggest import in_order, some
from fairflare.core.validation import shown
from fairflare.import_data.labels import bare, check_outcome, parted, same_numbers
from fairflare.import_data.proposal import Choices, Reading, class_names, is_missing
from fairflare.import_data.words import NO, WORDS, YES
from fairflare.tasks.forms import FORMS
from fairflare.tasks.own.survival import ends_of

SIGN = "|"
"""Between labels, in what is written."""
IMAGE = "image-"
"""Before the name of a kind of table, for images of that kind."""
CLASSES = ("tabular", "classification", "segmentation")
FEWEST_GRADES = 3


@dataclass(frozen=True)
class Outcome:
    """What a column, or several, say of the examples.

    Attributes:
        kind: a name of ``tasks.forms``.
        labels: of each example, as text.
        classes: see ``Found``.
        options: of the task.
        told: of each example label -> 1, 0 or None, of labels in columns of their own.
        notes: a line each.
    """

    kind: str
    labels: Sequence[str]
    classes: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    told: Sequence[Mapping[str, int | None]] = ()
    notes: tuple[str, ...] = ()

    @property
    def of_levels(self) -> pd.Series:
        """The labels, with numbers as above or not above their median: what no column should tell alone."""
        labels = pd.Series(list(self.labels), dtype=object)
        numbers = pd.to_numeric(labels, errors="coerce")
        if FORMS[self.kind].classes or numbers.isna().any():
            return labels
        return (numbers > numbers.median()).astype(str)


def outcome_of(name: str, cells: Sequence[str], chosen: Choices, *, table: bool) -> Outcome:
    """What the labels ``cells`` of the column ``name`` are, none of them missing.

    Args:
        table: whether an example is the row of a table, and no image.

    Raises:
        UserError: they are none of what is known, may be several things and nobody can be asked, or do not fit --kind.
    """
    asked, form = chosen.kind.removeprefix(IMAGE), "" if table else IMAGE
    kind = asked if asked not in ("", *CLASSES) else check_outcome(name, cells, chosen, form)
    if kind == "regression":
        plain = name if name.strip() and "," not in name and not name.isdigit() else "outcome"
        return Outcome(f"{form}{kind}", cells, (plain,), notes=_of_numbers(name, cells, chosen))
    if kind == "multilabel":
        return _listed(name, cells, chosen, f"{form}{kind}")
    if kind == "ordinal":
        return Outcome(f"{form}{kind}", same_numbers(cells), _grades(name, cells, chosen))
    names = class_names(cells, chosen.classes)
    if not chosen.classes and {one.lower() for one in names} <= YES | NO:
        names = tuple(sorted(names, key=lambda one: one.lower() in YES))  # the second class's risk is reported
    return Outcome("tabular" if table else "classification", cells, names)


def _of_numbers(name: str, cells: Sequence[str], chosen: Choices) -> tuple[str, ...]:
    numbers = pd.to_numeric(pd.Series(list(cells), dtype=object), errors="coerce").astype(float)
    if odd := [cell for cell, number in zip(cells, numbers, strict=True) if not np.isfinite(number)]:
        text = f"expected numbers, got {shown(odd[0])} (--missing {odd[0]} leaves such rows out)"
        raise UserError(f"init: {name}: {text}")
    if numbers.nunique() < 2:
        raise UserError(f"init: {name}: expected numbers that differ, got {shown(cells[0])} throughout")
    text = "whole numbers from 0: --set amount=count takes them for counts (Poisson), else squared error is used"
    return (text,) if not chosen.exposure and (numbers >= 0).all() and (numbers % 1 == 0).all() else ()


def _grades(name: str, cells: Sequence[str], chosen: Choices) -> tuple[str, ...]:
    values = in_order(set(same_numbers(cells)))
    if not chosen.classes:
        text = f"expected their order from the lowest to the highest, which no name says: --classes {','.join(values)}"
        raise UserError(f"init: {name}: {text}, in that order or another")
    if len(chosen.classes) < FEWEST_GRADES:
        raise UserError(f"--classes: expected at least {FEWEST_GRADES} classes in an order, got {len(chosen.classes)}")
    return class_names(same_numbers(cells), chosen.classes)


def _listed(name: str, cells: Sequence[str], chosen: Choices, kind: str) -> Outcome:
    rows = parted(cells)
    known = in_order({part for row in rows for part in row})
    options: dict[str, str] = {}
    if chosen.classes:
        others = [part for part in known if part not in chosen.classes]
        alone = len(others) == 1 and all(len(row) == 1 for row in rows if others[0] in row)
        if others and not alone:
            raise UserError(f"--classes: expected the labels of the data, which have {some(others, 3)} too")
        options = {"nothing": others[0]} if others else {}
    classes = chosen.classes or class_names(known, ())
    notes = (f"{options['nothing']} stands for none of the labels",) if options else ()
    return Outcome(kind, [SIGN.join(row) for row in rows], tuple(classes), options, notes=(*notes, *_rare(rows)))


def _rare(rows: Sequence[Sequence[str]], fewest: int = 3) -> tuple[str, ...]:
    counts = pd.Series([part for row in rows for part in row], dtype=object).value_counts()
    rare = [str(part) for part, n in counts.items() if n < fewest]
    return (f"labels of fewer than {fewest} examples: {some(rare, 8)}",) if rare else ()


def in_columns(names: Sequence[str], table: pd.DataFrame, *, images: bool) -> Outcome:
    """Labels with a column each, of rows of which each says at least one.

    Raises:
        UserError: a cell is neither yes nor no nor empty, or a name has a comma.
    """
    told: list[dict[str, int | None]] = [{} for _ in range(len(table))]
    for name in names:
        if "," in name or SIGN in name:
            raise UserError(f"--label: expected columns without commas and {SIGN}, got {shown(name)}")
        for row, cell in zip(told, table[name], strict=True):
            word, gap = cell.lower().removesuffix(".0"), is_missing(cell)
            if word not in YES | NO and not gap:
                text = f"expected yes or no (1 or 0), or nothing, got {shown(cell)}"
                raise UserError(f"init: {name}: {text} (--missing {cell} takes it for nothing)")
            row[name] = None if gap else int(word in YES)
    labels = [SIGN.join(name for name, one in row.items() if one) for row in told]
    gaps = sum(one is None for row in told for one in row.values())
    notes = (f"{gaps} labels are not said and count nowhere",) if gaps else ()
    return Outcome(f"{IMAGE if images else ''}multilabel", labels, tuple(names), told=told, notes=notes)


def columns_of_labels(chosen: Choices, columns: Sequence[str]) -> list[str]:
    """The columns that --label names, where it names several and the kind is that of several labels."""
    names = [name.strip() for name in chosen.label.split(",") if name.strip()]
    if chosen.kind.removeprefix(IMAGE) != "multilabel" or chosen.label in columns or len(names) < 2:
        return []
    if lost := [name for name in names if name not in columns]:
        raise UserError(f"--label: expected columns among {some(columns, 12)}, got {shown(lost[0])}")
    return names


def asked_columns(table: pd.DataFrame, columns: Sequence[str], chosen: Choices, labelled: bool) -> tuple[str, str]:
    """The columns of the time and of the event; ("", "") where the table is about classes.

    Args:
        labelled: whether a label is named, or found by its name.

    Raises:
        UserError: one of the two is named, is not there or the horizons are not named; or columns may be times and
            nobody can be asked.
    """
    time, event = chosen.time, chosen.event
    if not (time or event or chosen.horizons):
        if labelled or chosen.kind not in ("", "survival"):
            return "", ""
        known = {name: table[name][~table[name].map(is_missing)] for name in columns}
        times = [name for name, own in known.items() if bare(name) in WORDS["column_time"] and _are_times(own)]
        named = [name for name in columns if bare(name) in WORDS["column_event"]]
        events = [name for name in named if set(same_numbers(known[name])) == {"0", "1"}]
        if not (times and events):
            return "", ""
        time, event = times[0], events[0]
        readings = [
            Reading(f"{time} is the time of the event", f"--time {time} --event {event} --horizons T1,T2,..."),
            Reading(f"{event} is a class", f"--label {event}"),
        ]
        if chosen.ask(f"{time} and {event} may be a time to an event", readings):
            raise UserError(f"init: --label {event} says that it is a class")
    for flag, name in (("--time", time), ("--event", event)):
        if name not in columns:
            raise UserError(
                f"{flag}: expected a column among {some(columns, 12)}, got {shown(name) if name else 'none'}"
            )
    if "censor" in event.lower() and event not in chosen.keep:
        readings = [
            Reading("1 is an event", f"--keep {event}"),
            Reading("1 is censored, without an event", "--event another column, which is 1 at an event"),
        ]
        if chosen.ask(f"{event}: its name may say that 1 is censored", readings):
            raise UserError("--event: expected a column that is 1 at an event and 0 without one")
    if not chosen.horizons:
        text = "expected the times until which survival is asked for, as 365 or 30,90,365, in the unit of"
        raise UserError(f"--horizons: {text} {time}, got none")
    ends_of(chosen.horizons, 1)
    return time, event


def _are_times(cells: pd.Series) -> bool:
    numbers = pd.to_numeric(cells, errors="coerce")
    return bool(numbers.notna().all()) and numbers.nunique() > 2


def checked_times(table: pd.DataFrame, time: str, event: str, sites: Sequence[str]) -> pd.DataFrame:
    """``table`` with events as 0 and 1; UserError names the site of the first time or event that is none."""
    table = table.assign(**{event: same_numbers(table[event])})
    numbers = pd.to_numeric(table[time], errors="coerce")
    for site, cell, number, happened in zip(sites, table[time], numbers, table[event], strict=True):
        if not 0 <= number < float("inf"):
            raise UserError(f"init: {site}: {time}: expected a time of at least 0, got {shown(cell)}")
        if happened not in ("0", "1"):
            values = some(in_order(table[event].unique()), 4)
            raise UserError(f"init: {site}: {event}: expected 1 (an event) or 0 (none until then), got {values}")
    return table
