# SPDX-License-Identifier: Apache-2.0
"""Which columns of a table are the time to an event and whether there was one: named by the user, or asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.order import in_order, some
from fairflare.core.validation import shown
from fairflare.import_data.labels import bare, same_numbers
from fairflare.import_data.proposal import Choices, Reading, is_missing
from fairflare.tasks.own.survival import ends_of

OF_TIMES = """time times survivaltime timetoevent tte futime followup followuptime followupdays duration os ostime pfs
    pfstime dfs dtime survtime survivaldays survivalmonths"""
OF_EVENTS = "event events status eventobserved vitalstatus censored censoring deathevent osevent e"
TIMES, EVENTS = frozenset(OF_TIMES.split()), frozenset(OF_EVENTS.split())
"""Names, in lower case without signs, that may say when and whether."""


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
        times = [name for name in columns if bare(name) in TIMES and _are_times(table[name])]
        events = [name for name in columns if bare(name) in EVENTS and set(_known(table[name])) == {"0", "1"}]
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
            got = shown(name) if name else "none"
            raise UserError(f"{flag}: expected a column among {some(list(columns), 12)}, got {got}")
    if not chosen.horizons:
        text = "expected the times until which survival is asked for, as 365 or 30,90,365, in the unit of"
        raise UserError(f"--horizons: {text} {time}, got none")
    ends_of(chosen.horizons, 1)
    return time, event


def _known(cells: pd.Series) -> list[str]:
    return same_numbers([cell for cell in cells if not is_missing(cell)])


def _are_times(cells: pd.Series) -> bool:
    numbers = pd.to_numeric(cells[~cells.map(is_missing)], errors="coerce")
    return bool(len(numbers)) and bool(numbers.notna().all()) and numbers.nunique() > 2


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
