# SPDX-License-Identifier: Apache-2.0
"""A command's processes: how it ends on a signal, and how nothing of it goes on without it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil

RUN_FOLDER = "FAIRFLARE_RUN_FOLDER"
"""Environment variable that names the one folder of a simulated run, where server and sites keep their state."""
COMMAND = "FAIRFLARE_RUN_COMMAND"
"""Environment variable of a simulated run's processes: pid and start time of the command that they belong to."""
SCRATCH = "fairflare_sim_"
"""How the name of a simulator's temporary folder begins."""
OWNER = "run_folder.txt"
"""File there that says whose it is."""
GRACE = 10.0
"""Seconds for a process to end by itself."""
LOOK = 0.5
"""Seconds between two looks at whether the command is alive."""
SAME = 2.0
"""Seconds within which two start times are the same process's: clocks are set."""


class Terminated(KeyboardInterrupt):
    """A signal asked the command to end, which exits with ``code``, 128 + its number; all clears up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


@contextlib.contextmanager
def ends_by_signal() -> Iterator[None]:
    """Within: SIGTERM and SIGHUP (unless ignored, as under nohup) raise ``Terminated``, once: clearing up takes time.

    Only a process's main thread can have it so; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in wanted if signal.getsignal(number) == signal.SIG_DFL}

    def end(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise Terminated(number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_it_ended(error: BaseException) -> tuple[str, int]:
    """The line and the exit code for a command that Ctrl-C or a signal ended; click puts its own error around it."""
    found = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    what, code = ("terminated", found.code) if isinstance(found, Terminated) else ("interrupted", 130)
    return "; ".join([what, *map(str, getattr(found, "args", ()))]), code


def this_command() -> str:
    return f"{os.getpid()} {psutil.Process().create_time():.2f}"


def end_with_command() -> None:
    """Have this process end soon after the command that ``COMMAND`` names, however that ends; without it do nothing."""
    if named := os.environ.get(COMMAND):
        threading.Thread(target=_watch, args=(named,), name="fairflare-command", daemon=True).start()


def _watch(named: str) -> None:
    while _is_alive(named):
        time.sleep(LOOK)
    with contextlib.suppress(psutil.Error):
        stop(psutil.Process().children(recursive=True), grace=1.0)
    # Nobody waits for this process, and a simulator's threads do not end when they are asked to.
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(named: str) -> bool:
    pid, _, started = named.partition(" ")
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < SAME and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def stop(family: list[psutil.Process], grace: float = GRACE) -> None:
    """End processes: SIGTERM, and SIGKILL for those that are there ``grace`` seconds later."""
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=grace)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE)
