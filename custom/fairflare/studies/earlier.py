# SPDX-License-Identifier: Apache-2.0
"""Folders of earlier versions, whose tensors lie in pickles: made into this version's files, here and nowhere else."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.engine.files import AUDIT, BEST_MODELS, CONFIG, EARLIER, SUFFIX, UNSCORED, is_file, is_there
from fairflare.engine.lock import locked
from fairflare.engine.pickled import read_pickled
from fairflare.engine.setup.local import SITES
from fairflare.engine.state import save_tensors
from fairflare.report import PAGE, REPORT
from fairflare.studies.folders import EARLIER_WEIGHTS, opened


def earlier_files(folder: Path) -> list[Path]:
    """The earlier version's files of tensors in a run's ``folder``, or in what a federation has left at a site."""
    inside = [folder / name for name in (BEST_MODELS, UNSCORED, SITES)]
    found = [path for place in inside if not place.is_symlink() for path in sorted(place.glob(f"*{EARLIER}"))]
    return [path for path in (*(folder / name for name in EARLIER_WEIGHTS), *found) if is_file(path)]


def convert(folder: Path) -> list[str]:
    """Make this version's files of the earlier ones in ``folder``, which go once all are there; returns their names.

    After a kill the same again goes on. Contents, and with them the hashes in the log, stay what they are.

    Raises:
        UserError: a file holds something else than an earlier version wrote, or another command is at work there.
    """
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r}: expected a folder")
    with opened(folder), contextlib.ExitStack() as stack:
        found = earlier_files(folder)
        for path in found:
            if path.parent.name == SITES:
                stack.enter_context(locked(path.parent, f"{path.name}.lock"))
            if not is_there(path.with_suffix(SUFFIX)):
                save_tensors(path.with_suffix(SUFFIX), read_pickled(path))
        for path in found:
            path.unlink()
    return [path.relative_to(folder).as_posix() for path in found]


@contextlib.contextmanager
def as_converted(folder: Path) -> Iterator[Path]:
    """Within: a run's ``folder``, or in place of one of an earlier version a copy of what a check reads, converted."""
    found = earlier_files(folder)
    if not found or not all(is_file(folder / name) for name in (CONFIG, AUDIT)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
        places = (folder, folder / BEST_MODELS, folder / UNSCORED)
        kept = [path for place in places for path in place.glob(f"*{SUFFIX}")]
        for path in [*kept, *(folder / name for name in (CONFIG, AUDIT, REPORT, PAGE)), *found]:
            copy = Path(scratch) / path.relative_to(folder)
            copy.parent.mkdir(exist_ok=True)
            if path.suffix != EARLIER:
                shutil.copyfile(path, copy) if is_file(path) else None
            elif path.parent.name != SITES and not is_there(path.with_suffix(SUFFIX)):
                save_tensors(copy.with_suffix(SUFFIX), read_pickled(path))
        yield Path(scratch)
