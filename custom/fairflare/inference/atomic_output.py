# SPDX-License-Identifier: Apache-2.0
"""A folder of results that appears whole or not at all, and replaces nothing but one of its kind."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.engine.files import locked, read_json, save_json

MARK = "fairflare.json"
"""In the folder: what made it, and every file that it holds."""


NEW, OLD = "new", "old"
"""What is about to take its place, and what was there."""


@contextlib.contextmanager
def replaced(out: Path, refuse: Callable[[], None], inside: str = "", option: str = "--out ") -> Iterator[Path]:
    """Within: an empty folder beside ``out``, which takes its place if nothing is raised.

    After a kill the next call puts back what was there.

    Args:
        out: free, or what may be replaced.
        refuse: raises UserError unless it may be, before the folder is filled and again before it takes the place.
        inside: what below the folder takes the place; empty: all of it.
        option: what stands before the folder in messages.

    Raises:
        UserError: ``out`` cannot be written, or another command is about to replace it.
    """
    scratch = out.parent / f".{out.name}.fairflare_export"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        if scratch.is_symlink():
            raise NotADirectoryError(f"{scratch.name} is a link")
    except OSError as error:
        raise UserError(f"{option}{out}: cannot be written ({error.strerror or error})") from None
    try:
        with locked(scratch):
            _settle(scratch, out)
            try:
                refuse()
                (scratch / NEW).mkdir(mode=0o700)
                yield scratch / NEW
                refuse()
                if out.exists():
                    out.rename(scratch / OLD)
                (scratch / NEW / inside).rename(out)
            finally:
                _settle(scratch, out)
    finally:
        with contextlib.suppress(OSError):  # another command may have it by now
            scratch.rmdir()


def _settle(scratch: Path, out: Path) -> None:
    """What was about to be replaced is back, unless the new one has its place; nothing else is left."""
    if (scratch / OLD).is_dir() and not out.exists():
        (scratch / OLD).rename(out)
    for name in (NEW, OLD):
        shutil.rmtree(scratch / name, ignore_errors=True)


@contextlib.contextmanager
def whole_folder(out: Path, kind: str, *, force: bool, inside: str = "", later: Sequence[str] = ()) -> Iterator[Path]:
    """Within: an empty folder beside ``out``, which becomes ``out`` if nothing is raised; see ``replaced``.

    ``out`` must not exist, or with ``force`` be a folder of the same ``kind`` ("predictions", "model", "evaluation" or
    "job") that holds nothing else; UserError otherwise, or where it cannot be written.

    Args:
        inside: as of ``replaced``.
        later: files that may be added to it.
    """
    with replaced(out, lambda: check(out, kind, force), inside) as scratch:
        yield scratch
        made = scratch / inside
        files = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
        content = read_json(made / MARK) if (made / MARK).is_file() else {}
        save_json(made / MARK, {"made": kind, **content, "files": sorted({*files, MARK, *later})})


def check(out: Path, kind: str, force: bool) -> None:
    """Raise UserError unless ``out`` is free, or ``force`` and it holds this package's files of that kind alone."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir():
        raise UserError(f"--out {out}: exists and is not a folder")
    if not any(out.iterdir()):
        return
    if not force:
        raise UserError(f"--out {out}: exists; give another folder, or --force to replace it")
    try:
        found = read_json(out / MARK)
    except UserError:
        found = {}
    own = found.get("files")
    if found.get("made") != kind or not isinstance(own, list):
        raise UserError(f"--out {out}: holds no {kind} of fairflare, so --force does not replace it")
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_symlink() or (not path.is_dir() and name not in own):
            raise UserError(f"--out {out}: holds {name!r}, which is not fairflare's; nothing was changed")
