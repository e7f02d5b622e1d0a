# SPDX-License-Identifier: Apache-2.0
"""A folder of results that appears whole or not at all, and replaces nothing but one of its kind."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.federation.files import read_json
from fairflare.federation.state import save_json

MARK = "fairflare.json"
"""In the folder: what made it, and every file that it holds."""


@contextlib.contextmanager
def whole_folder(out: Path, kind: str, *, force: bool) -> Iterator[Path]:
    """Within: an empty folder beside ``out``, which becomes ``out`` if nothing is raised.

    Args:
        out: must not exist, or with ``force`` be a folder of the same kind that holds nothing else.
        kind: "predictions" or "model".
        force: replaces it.

    Raises:
        UserError: it exists, or cannot be written.
    """
    check(out, kind, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    try:
        made = scratch / "new"
        made.mkdir()
        yield made
        files = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
        content = read_json(made / MARK) if (made / MARK).is_file() else {}
        save_json(made / MARK, {"made": kind, **content, "files": sorted({*files, MARK})})
        check(out, kind, force)
        if out.exists():
            out.rename(scratch / "old")
        made.rename(out)
    except BaseException:
        if (scratch / "old").exists() and not out.exists():
            (scratch / "old").rename(out)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
