# SPDX-License-Identifier: Apache-2.0
"""A DataFrame by the way of ``fairflare init``: written as a table, which the same functions read and divide."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.suggest import some
from fairflare.core.validation import shown
from fairflare.data.readers.tables import as_cell
from fairflare.import_data.detect import Proposal, look
from fairflare.import_data.labels import AGE, BAND, bare
from fairflare.import_data.proposal import Choices
from fairflare.import_data.write import contents, write
from fairflare.tasks.kinds.own import INSIDE

TABLE = "table.csv"
FLAG = re.compile(r"--([a-z][a-z-]*)(?: (?=[^\s):;]))?")
KEYWORDS = {"label": "outcome"}
"""Flag of ``fairflare init`` -> what the same is called in Python, where that differs."""


def text_of(frame: pd.DataFrame) -> str:
    """``frame`` as a CSV file whose cells are those that a Parquet file of it would have; an index with names counts.

    Raises:
        UserError: no rows, a column that has no name of its own in text, or a row without any value.
    """
    if any(name is not None for name in frame.index.names):
        kept = [name for name in frame.index.names if name is not None and name not in frame.columns]
        frame = frame.reset_index(kept)
    names = list(frame.columns)
    if odd := [name for name in names if not isinstance(name, str) or not name.strip() or names.count(name) > 1]:
        raise UserError(f"expected columns with names of their own, in text, got {shown(str(odd[0]))}")
    if frame.empty:
        raise UserError(f"expected rows and columns, got {len(frame)} rows of {len(names)} columns")
    cells = frame.astype(object).map(as_cell)
    if (blank := (cells == "").all(axis=1)).any():
        raise UserError(f"row {shown(str(frame.index[blank.to_numpy().argmax()]))}: expected values, got none")
    return str(cells.to_csv(index=False, lineterminator="\n"))


def imported(frame: pd.DataFrame, folder: Path, chosen: Choices) -> Proposal:
    """Write ``folder``/fairflare, as ``fairflare init`` would of the table; what is there already must be the same.

    Raises:
        UserError: in the user's columns and the keywords of ``Federation.fit``; ``chosen.ask`` decides what is unclear.
    """
    with in_keywords(), tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
        table = Path(scratch, TABLE)
        table.write_text(text_of(frame), encoding="utf-8")
        proposal = look(table, chosen)
        files = contents(folder, proposal.found, False)
        there = [folder / INSIDE / name for name in files]
        if not all(
            path.is_file() and path.read_text("utf-8") == files[path.relative_to(folder / INSIDE).as_posix()]
            for path in there
        ):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write(folder, files)
    return proposal


def grouping(groups: Sequence[str]) -> str:
    """The run's ``group_by`` of columns that were asked for; ages are in bands."""
    return "+".join(BAND if bare(name) in AGE else name for name in groups)


@contextlib.contextmanager
def in_keywords() -> Iterator[None]:
    """Within: what ``fairflare init`` refuses is said with keywords in place of flags."""
    try:
        yield
    except UserError as error:
        raise UserError(f"data: {FLAG.sub(_keyword, str(error)).removeprefix('init: ')}") from None


def _keyword(found: re.Match[str]) -> str:
    name = KEYWORDS.get(found[1], found[1].replace("-", "_"))
    return f"{name}=" if found[0].endswith(" ") else name


def by_column(frame: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """Value of ``column`` -> its rows; raises UserError where there is no such column, or a row has no value in it."""
    if column not in frame.columns:
        raise UserError(
            f"site: expected a column among {some([str(name) for name in frame.columns], 12)}, got {shown(column)}"
        )
    cells = frame[column].map(as_cell)
    if (cells == "").any():
        raise UserError(f"{column}: expected the site of every row, {int((cells == '').sum())} have none")
    return {str(name): frame[(cells == name).to_numpy()] for name in cells.unique()}
