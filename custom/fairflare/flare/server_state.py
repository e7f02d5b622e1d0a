# SPDX-License-Identifier: Apache-2.0
"""A federation's folder at the server: who works in it, who may continue it, and what of it a download brings."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from fairflare.core.errors import RunFailed
from fairflare.engine.files import (
    AUDIT,
    SERVER_LOCK,
    Busy,
    clear_half_written,
    locked,
    private_folder,
    write_atomically,
)
from fairflare.engine.memory import WAIT
from fairflare.engine.setup.run_config import CHANGES
from fairflare.flare.paths import SITES, is_named, server_folder, submitter

RESULT = "fairflare"
"""Folder in the server's job folder that comes back with a download."""
SUBMITTER = ".submitter"
"""File in a server's folder of a federation: who submitted the job that began it. It is not handed over."""
LONGEST_LINE = 1 << 26
"""Bytes of an audit log's first line."""


@contextlib.contextmanager
def claimed(folder: Path, federation: str, *, fresh: bool) -> Iterator[None]:
    """Within: no other job's process works in the server's ``folder`` of ``federation``, which is made.

    Args:
        fresh: what an earlier job has left there goes.

    Raises:
        RunFailed: another job is continuing the federation.
    """
    private_folder(folder)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, SERVER_LOCK, wait=WAIT))
        except Busy:
            raise RunFailed(f"federation {federation}: another job is at work on it; wait until it has ended") from None
        for item in folder.iterdir() if fresh else ():
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            elif item.name != SERVER_LOCK:
                item.unlink(missing_ok=True)
        if not is_named():
            clear_half_written(folder, lambda name: True)
        yield


def sign(folder: Path, fl_ctx: FLContext) -> None:
    """Note in the server's ``folder`` of a federation that has no log yet who begins it."""
    if not (is_named() or (folder / AUDIT).exists()):
        write_atomically(folder / SUBMITTER, lambda file: file.write(submitter(fl_ctx).encode()))


def refuse_foreign(federation: str, lineage: str, fl_ctx: FLContext) -> None:
    """Nothing of a federation is opened, locked or made before this has returned; ids are no secret.

    Args:
        lineage: of that job's configuration, see ``RunConfig.lineage``.

    Raises:
        RunFailed: another user began it, or with settings that no segment changes, or there is none. The text is the
            same.
    """
    folder = server_folder(federation, fl_ctx)
    user = folder / SUBMITTER  # an earlier version did not note it
    foreign = user.exists() and user.read_text(encoding="utf-8") != submitter(fl_ctx)
    if not lineage or _begun_with(folder) != lineage or foreign:
        raise RunFailed(
            f"federation {federation}: expected one that the same user began here with the same configuration but for "
            f"rounds, sites, {', '.join(CHANGES)}; this job cannot continue it"
        )


def _begun_with(folder: Path) -> Any:
    """What the log's first line says of the configuration; None where there is no such line."""
    try:
        with (folder / AUDIT).open("rb") as file:
            line = file.readline(LONGEST_LINE)
        first = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError):
        return None
    return first.get("lineage") if isinstance(first, dict) else None


def hand_over(folder: Path, run_dir: Path) -> None:
    """Copy what a download should bring from the server's state folder to the job's folder."""
    shutil.copytree(folder, run_dir / RESULT, ignore=shutil.ignore_patterns(SITES, ".*"), dirs_exist_ok=True)
