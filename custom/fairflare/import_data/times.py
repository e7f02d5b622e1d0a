# SPDX-License-Identifier: Apache-2.0
"""Times to an event in a table: recognised by their cells, from numbers or dates, and which value is an event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.validation import flag, in_order, shown, some
from fairflare.data.readers.table_features import plain
from fairflare.import_data import labels as naming
from fairflare.import_data.cells import rows_of_sites
from fairflare.import_data.proposal import Choices, Reading, check_column

NAMED = re.compile(
    r"(^|_)(days?|time|months?|years?|weeks?)_(to|until|till)_(?!hospital)|"
    r"(^|_)(os|pfs|dfs|rfs|fu|survival|surv|follow_?up)_?(time|days?|weeks?|months?|years?)$"
)
"""Names, in snake case, that say a time to an event or to the last that is known."""
EARLY, OFTEN = 0.9, 0.05
"""Quantile of the events' times, and the share of the others who are lost before it, from which on a class misleads."""
USUAL = (30, 90, 180, 365, 730, 1095, 1825, 3650)
"""Days that horizons usually are."""
MOST_VALUES = 4
EVENT = "event"
"""The column of events where a date says them."""


def event_key(cell: str) -> str:
    """``cell`` as spellings of one value agree: 2.0 as 2, Dead as dead."""
    return plain(cell).casefold()


def different(cells: Iterable[str]) -> list[str]:
    """The values of ``cells`` in order, in one spelling each."""
    found: dict[str, str] = {}
    for cell in in_order({*cells}):
        found.setdefault(event_key(cell), cell)
    return [*found.values()]


def _are(cells: pd.Series, values: Iterable[str]) -> pd.Series:
    """Whether each of ``cells`` is one of ``values``, however it is spelled."""
    return cells.map(event_key).isin({*map(event_key, values)})


def times_of(table: pd.DataFrame, columns: Sequence[str], chosen: Choices, label: str) -> Choices | None:
    """``chosen`` with ``time``, ``event``, ``event_value`` and ``horizons``; None where the table is about classes.

    ``label``: the outcome that is named, or found by its name; "" where there is none.

    Raises:
        UserError: a column is named that is not there, horizons are not named, or what is there may be times and nobody
            can be asked.
    """
    if not (chosen.time or chosen.event or chosen.horizons):
        found = _recognised(table, columns, chosen, label) if chosen.kind in ("", "survival") else None
        if found is None:
            return None
        value = f" {flag('event-value', *found.event_value)}" if found.event_value else ""
        flags = f"{flag('time', found.time)} {flag('event', found.event)}{value} {flag('horizons', found.horizons)}"
        ways = [
            Reading(f"{found.time} is the time of the event", flags),
            Reading(f"{found.event} is a class", f"{flag('label', found.event)} --kind tabular"),
        ]
        if chosen.ask(f"{found.time} and {found.event} may be a time to an event", ways):
            raise UserError(f"init: {flag('label', found.event)} --kind tabular says that it is a class")
        chosen = found
    names = chosen.time.split(",") if chosen.time not in columns else [chosen.time]
    if chosen.until and not chosen.event:
        chosen = replace(chosen, event=EVENT, event_value=("1",))
    needed = [("time", name) for name in names] + [("event", chosen.event)] * (chosen.event != EVENT)
    for asked, name in needed:
        check_column(asked, name, columns)
    from fairflare.tasks.own.survival import ends_of

    if not chosen.horizons:
        text = "expected the times until which survival is asked for, as 365 or 30,90,365, in the unit of"
        raise UserError(f"--horizons: {text} {chosen.time}, got none")
    ends_of(chosen.horizons, 1)
    return _with_event_value(table, columns, names, chosen)


def _recognised(table: pd.DataFrame, columns: Sequence[str], chosen: Choices, label: str) -> Choices | None:
    """The times and events that the names and cells of a table show; None where they show none.

    With a ``label`` they have to show more: that some who had no event were lost before the events of others.
    """
    times = [
        name
        for name in columns
        if naming.bare(name) in naming.WORDS["column_time"] or NAMED.search("_".join(naming.name_words(name)))
    ]
    events = [label] if label else [name for name in columns if naming.bare(name) in naming.WORDS["column_event"]]
    known = {name: table[name][table[name] != ""] for name in {*times, *events} & {*columns}}
    times = [
        name
        for name in times
        if pd.to_numeric(known[name], errors="coerce").notna().all() and known[name].nunique() > 2
    ]
    events = [name for name in events if name in known and len(different(known[name])) == 2]
    for event in events:
        value = _value_by_words(event, known[event])
        for time in times:
            happened = _are(table[event], value or _candidates(known[event])[:1])
            days = pd.to_numeric(table[time], errors="coerce")
            other = next((name for name in times if name != time and _complete(days, table[name])), "")
            if other:
                days = days.fillna(pd.to_numeric(table[other], errors="coerce"))
            if days.isna().mean() > 1 - naming.FILLED or days[happened].empty:
                continue
            if label and not (days[~happened] < days[happened].quantile(EARLY)).mean() >= OFTEN:
                continue
            both = f"{time},{other}" if other and "," not in time + other else time
            horizon = _horizon(time, days[happened], days.max())
            told = [] if naming.same_numbers(value) == ["1"] else value
            return replace(chosen, time=both, event=event, event_value=tuple(told), horizons=horizon, label="")
    return None


def _complete(days: pd.Series, other: pd.Series) -> bool:
    """Whether the gaps of ``days`` are filled by ``other``."""
    gaps = days.isna()
    return bool(gaps.mean() > 1 - naming.FILLED) and bool((other[gaps] != "").mean() >= naming.FILLED)


def _horizon(name: str, days: pd.Series, longest: float) -> str:
    """A time until which about half of the events are seen, as it is usual."""
    middle = float(days.median())
    usual = [float(one) for one in USUAL if one <= longest] if "day" in name.lower() else []
    best = min(usual, key=lambda one: abs(np.log(one / max(middle, 1e-9))), default=middle)
    return f"{float(f'{best:.1g}') if best not in usual and float(f'{best:.1g}') <= longest else best:g}"


def _value_by_words(event: str, cells: pd.Series) -> list[str]:
    """The values that are events, by what their words say; [] where they do not say it of all."""
    values = different(cells)
    if naming.REVERSED.search(event.lower()):
        return []
    if set(naming.same_numbers(values)) == {"0", "1"}:
        return [value for value in values if float(value) == 1]
    said = {value: _said(value) for value in values}
    return [value for value, one in said.items() if one] if None not in said.values() else []


def _said(value: str) -> bool | None:
    """Whether a cell says an event; None where it says neither."""
    words = naming.name_words(value)
    bare = {*words, naming.bare(value)}
    none = any(word in naming.WORDS["cell_no_event"] or word.startswith("censor") for word in bare)
    return False if none else True if bare & {*naming.WORDS["cell_event"]} and not value.isdigit() else None


def _candidates(cells: pd.Series) -> list[str]:
    """The values, those first that are likely events: of numbers the larger ones, as 2 is death where 1 is none."""
    return sorted(different(cells), key=lambda value: value in ("0", "0.0", "1", "1.0"))


def _with_event_value(table: pd.DataFrame, columns: Sequence[str], names: Sequence[str], chosen: Choices) -> Choices:
    """``chosen`` with the values that are events, and with both columns where one time lacks those without an event."""
    event = chosen.event
    if event not in columns:
        return chosen
    cells = table[event][table[event] != ""]
    values = different(cells)
    if len(names) == 1 and chosen.time in columns and not chosen.until:
        days = pd.to_numeric(table[chosen.time], errors="coerce")
        others = [name for name in columns if NAMED.search("_".join(naming.name_words(name))) and name != chosen.time]
        if other := next((name for name in others if "," not in name and _complete(days, table[name])), ""):
            readings = [
                Reading(f"{other} is the time where it is empty", flag("time", f"{chosen.time},{other}")),
                Reading("such rows are left out", f"{flag('leave-out', other)} {flag('keep', chosen.time)}"),
            ]
            what = f"{chosen.time} is empty in {int(days.isna().sum())} rows"
            if chosen.time not in chosen.keep and not chosen.ask(what, readings):
                return _with_event_value(table, columns, names, replace(chosen, time=f"{chosen.time},{other}"))
    if chosen.event_value:
        if lost := [one for one in chosen.event_value if not _are(cells, [one]).any()]:
            raise UserError(f"--event-value: expected a value of {event} among {some(values, 8)}, got {shown(lost[0])}")
        return chosen
    if by_words := _value_by_words(event, cells):
        return replace(chosen, event_value=tuple(by_words))
    if set(naming.same_numbers(values)) <= {"0", "1"} and (len(values) < 2 or event in chosen.keep):
        return replace(chosen, event_value=tuple(value for value in values if float(value) == 1))
    if not 2 <= len(values) <= MOST_VALUES:
        text = (
            f"expected 1 (an event) and 0 (none until then), or {flag('event-value', 'VALUE')}, got {some(values, 4)}"
        )
        raise UserError(f"init: {event}: {text}")
    likely = _candidates(cells)
    if naming.REVERSED.search(event.lower()):
        likely = likely[::-1] if likely[0] != "0" else likely
    readings = [Reading(f"{value} is an event", flag("event-value", value)) for value in likely]
    why = "its name may say that 1 is no event" if naming.REVERSED.search(event.lower()) else f"holds {some(values, 4)}"
    return replace(chosen, event_value=(likely[chosen.ask(f"{event}: {why}", readings)],))


def checked_times(table: pd.DataFrame, chosen: Choices, sites: Sequence[str]) -> pd.DataFrame:
    """The rows of ``table`` with a time and an event, times as numbers and events as 0 and 1.

    Of several columns of times the first that is filled counts; dates count in days from ``chosen.since``, and who has
    none is observed until ``chosen.until``. The index stays, so that the rows that are left out are known.

    Raises:
        UserError: it names the site of the first time that is none.
    """
    names = chosen.time.split(",") if chosen.time not in table.columns else [chosen.time]
    times, where = table[names[0]], pd.Series(list(sites), table.index)
    for name in names[1:]:
        times = times.where(times != "", table[name])
    happened = _are(table[chosen.event], chosen.event_value) if chosen.event in table.columns else times != ""
    known = table[chosen.event] != "" if chosen.event in table.columns else pd.Series(True, table.index)
    if chosen.since and sum(map(naming.is_date, times)) >= naming.FILLED * max((times != "").sum(), 1):
        first, last = (naming.of_sites(column, rows_of_sites(sites)) for column in (table[chosen.since], times))
        if first is None or last is None:
            raise UserError(f"init: {names[0]}: expected dates as 2024-01-31, got some that may mean two days")
        first, last = (pd.to_datetime(one, errors="coerce", format="ISO8601") for one in (first, last))
        if chosen.until:
            end = pd.Timestamp(chosen.until)
            happened &= last <= end
            last = last.where(last <= end, end)
        days = (last - first).dt.days
        known &= days.notna()
        numbers = days.astype(float)
        times = numbers.map(lambda day: f"{day:g}" if day == day else "")
    elif chosen.until:
        text = "expected dates in the column of times, and --since COLUMN from which they count"
        raise UserError(f"--until: {text}, got {shown(names[0])}")
    else:
        known &= times != ""
        numbers = pd.to_numeric(times, errors="coerce")
    for row in table.index[known]:
        if not 0 <= numbers[row] < float("inf"):
            raise UserError(f"init: {where[row]}: {names[0]}: expected a time of at least 0, got {shown(times[row])}")
    events = np.where(happened, "1", "0")
    return table.assign(**{names[0]: times, chosen.event: events})[known]
