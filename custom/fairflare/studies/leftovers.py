# SPDX-License-Identifier: Apache-2.0
"""What a simulated run leaves behind when its command is killed: processes and temporary folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from fairflare.core.processes import OWNER, RUN_FOLDER, SCRATCH, stop


def end_what_is_left(folder: Path) -> None:
    """End the processes of an earlier simulated run in ``folder`` and remove its temporary folders.

    For whoever holds the folder's lock: its command is gone, so that nothing of it may go on.
    """
    own = os.path.abspath(folder)
    stop([process for process in psutil.process_iter() if _runs_for(process, own)])
    for scratch in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            mine = scratch.lstat().st_uid == os.getuid()
            if mine and not scratch.is_symlink() and (scratch / OWNER).read_text(encoding="utf-8") == own:
                shutil.rmtree(scratch, ignore_errors=True)


def _runs_for(process: psutil.Process, folder: str) -> bool:
    """Whether ``process`` is of a simulated run in ``folder``; those of other users cannot be asked."""
    try:
        return process.pid != os.getpid() and process.environ().get(RUN_FOLDER) == folder
    except (psutil.Error, OSError):
        return False
