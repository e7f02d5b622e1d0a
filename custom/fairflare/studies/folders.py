# SPDX-License-Identifier: Apache-2.0
"""Folders that commands write: opened by one command at a time, replaced only where all of it is the package's own.

A run that replaces another first puts the old one into ``.fairflare.before``; after a kill the next command puts it
back, unless the new run has begun.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from fairflare.core.errors import FairFlareError, UserError
from fairflare.core.processes import OWNER, RUN_FOLDER, SCRATCH, stop
from fairflare.core.signals import command
from fairflare.engine import audit, files
from fairflare.engine.files import CONFIG, Busy, locked
from fairflare.engine.history import REPORT as RECORD
from fairflare.engine.history import events
from fairflare.engine.setup.local import SITES
from fairflare.privacy.log_files import is_log_file
from fairflare.report import EDITIONS, EVALUATION_PAGE, EVIDENCE, PAGE, REPORT
from fairflare.report import EVALUATION as EVALUATION_RESULT
from fairflare.report.audit_reader import EVENTS, LOG
from fairflare.studies.labels import RUN_FILE

COMPARISON, COMPARISON_PAGE, CONTRIBUTION = "compare.json", "compare.html", "contribution.json"
RIDER, RIDERS = "rider.json", "riders.json"
JOIN_PAGE, SHEETS, MODELS, RUN = "join.html", "sheets", "models", "run"
DECISION, QUESTION, CHECKLIST = "decision.json", "question.json", "tripod-cluster.html"
SUMMARIES: tuple[str, ...] = (
    COMPARISON,
    COMPARISON_PAGE,
    CONTRIBUTION,
    RIDERS,
    JOIN_PAGE,
    DECISION,
    QUESTION,
    CHECKLIST,
)
SUMMARIES += ("compare.csv", "compare.md")
SUMMARIES += tuple(f"{name}.{end}" for name in ("contribution", "riders") for end in ("csv", "md", "tex", "html"))
FLARE_LOG = "flare_log.txt"
EVALUATION_FILES = (EVALUATION_RESULT, EVALUATION_PAGE)
WEIGHTS = (files.CHECKPOINT, files.MODEL, files.BEST, files.INITIAL)
STATEMENTS = ("statement.md", "statement.json")
RUN_FILES: tuple[str, ...] = (CONFIG, files.AUDIT, *WEIGHTS, REPORT, PAGE, LOG, FLARE_LOG, RIDER, RUN_FILE, *STATEMENTS)
RUN_FILES += EVALUATION_FILES
TENSORS = re.escape(files.SUFFIX)
MIX_FILES = re.compile(rf"mix(\.json|{TENSORS})")
PREFLIGHT = re.compile(r"(preflight|errors)_[^/]+\.txt")
RUN_FOLDERS = {
    SITES: re.compile(rf"[^/]+({TENSORS}(\.lock)?|\.(after|asked|decision|inputs)\.json)"),
    files.JOINED: re.compile(rf"\d+{re.escape(files.SUFFIX)}"),
    files.BEST_MODELS: re.compile(rf"\d+{TENSORS}"),
    EDITIONS: re.compile(r"[^/]+\.(html|json)"),
    EVIDENCE: re.compile(r"[^/]+\.(html|jsonl?|xml|columns)"),
    EVENTS: re.compile(r"events\.out\.tfevents\.[^/]+"),
    "he": re.compile(r"(client|server)_context\.tenseal"),
}
"""Name -> what the files in it are called."""
EVALUATION = "evaluation-"
"""What the name of a folder with an external validation of the run's model begins with."""
EVALUATED = re.compile(r"(evaluation\.(json|html)|fairflare\.json)")
BEFORE, MOVING = ".fairflare.before", ".fairflare.moving"
"""The run that is being replaced; on its way there or back."""


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Within: this command alone works in the existing ``folder``; what a killed one has left in it is cleared up."""
    with locked(folder):
        end_what_is_left(folder)
        files.clear_half_written(folder, lambda one: one in (*RUN_FILES, *SUMMARIES) or bool(PREFLIGHT.fullmatch(one)))
        files.clear_half_written(folder / SITES, lambda name: bool(RUN_FOLDERS[SITES].fullmatch(name)))
        _clear_server_lock(folder)
        _recover(folder)
        try:
            yield
        finally:
            with contextlib.suppress(Busy):
                _clear_server_lock(folder)


@contextlib.contextmanager
def fresh_folder(folder: Path, force: bool) -> Iterator[None]:
    """A new folder for a run. When the run fails before its first round, what was there before is back."""
    check_path(folder)
    with created(folder), opened(folder):
        refuse_existing(folder, force)
        _put_aside(folder)
        had = (folder / BEFORE).exists()
        try:
            yield
        except BaseException:
            if not has_begun(folder) or (had and never_started(folder)):
                _remove(folder)
                _put_back(folder)
            _discard(folder / BEFORE)
            raise
        _discard(folder / BEFORE)


@contextlib.contextmanager
def created(folder: Path) -> Iterator[None]:
    """Within: ``folder`` exists; it goes again when it was made for this and stays empty."""
    made = not folder.exists()
    try:
        files.private_folder(folder)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
    except ValueError:
        raise UserError(f"--out {str(folder)!r}: cannot be the name of a folder") from None
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # it is not empty, or another command has it
                folder.rmdir()


def check_path(folder: Path) -> None:
    """Raise UserError unless ``folder`` is a folder, or may become one."""
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UserError(f"--out {folder}: exists and is not a folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None


def refuse_existing(folder: Path, force: bool) -> None:
    """Refuse what is in ``folder``: a stranger's files always, a run that has started unless ``force``."""
    if not content(folder):
        return
    if alien := strangers(folder):
        raise UserError(f"--out {folder}: exists and holds {alien[0]!r}, which is not fairflare's; nothing was changed")
    if not is_run(folder):
        raise UserError(f"--out {folder}: holds no run of fairflare, so --force does not replace it")
    if force or never_started(folder):
        return
    if is_complete(folder):
        raise UserError(f"--out {folder}: exists; give another folder, or --force to replace it")
    again = f"{command('resume', folder)} goes on, --force replaces it"
    raise UserError(f"--out {folder}: exists, a run that has not ended; {again}")


def content(folder: Path) -> list[Path]:
    """What lies in ``folder``, sorted, but for locks and what a killed command has left."""
    if not folder.is_dir():
        return []
    return sorted(item for item in folder.iterdir() if item.name not in (files.LOCK, files.SERVER_LOCK, BEFORE, MOVING))


def strangers(folder: Path) -> list[str]:
    """Names below the run's ``folder`` that no command of this package has written, sorted."""
    found = []
    for item in content(folder):
        inside = EVALUATED if item.name.startswith(EVALUATION) else RUN_FOLDERS.get(item.name)
        if inside is not None and item.is_dir() and not item.is_symlink():
            found += [f"{item.name}/{one.name}" for one in sorted(item.iterdir()) if not _is_own_file(one, inside)]
        elif not _is_own_file(item, PREFLIGHT, *RUN_FILES):
            found.append(item.name)
    return found


def _is_own_file(path: Path, pattern: re.Pattern[str], *names: str) -> bool:
    half = files.HALF_WRITTEN.fullmatch(path.name)
    name = half["name"] if half else path.name
    known = name in names or bool(pattern.fullmatch(name)) or (files.AUDIT in names and is_log_file(name, files.AUDIT))
    return path.is_file() and not path.is_symlink() and known


def is_run(folder: Path) -> bool:
    """Whether ``folder`` holds a run that has at least been configured."""
    try:
        found = files.read_json(folder / CONFIG)
    except UserError:
        return False
    return {"format", "method", "task", "settings", "training"} <= set(found)


def require_run(folder: Path) -> None:
    """Raise UserError unless ``folder`` ``is_run``."""
    if not folder.is_dir() or not is_run(folder):
        raise UserError(f"{folder}: expected the folder of a run")


def is_complete(folder: Path) -> bool:
    """Whether the run in ``folder`` came to its end, so that it is not replaced without being asked to."""
    if not (folder / REPORT).is_file():
        return False
    try:
        if not (folder / PAGE).is_file():  # a study's runs have none
            entries = audit.Entries(folder / files.AUDIT)
            at = entries.last(RECORD)
            if at is None or PAGE in entries[at]["files"]:
                return False
        return files.read_json(folder / REPORT).get("status") == "completed"
    except (FairFlareError, OSError, KeyError):
        return False


def never_started(folder: Path) -> bool:
    """Whether the run there was refused before its first round, so that nothing is lost by another attempt."""
    try:
        return [entry["event"] for entry in events(audit.Entries(folder / files.AUDIT))] == ["start", "finish"]
    except (FairFlareError, OSError, KeyError):
        return False


def has_begun(folder: Path) -> bool:
    """Whether the run's log holds at least one whole, valid line; raises UserError when it cannot be read."""
    return files.is_file(folder / files.AUDIT) and bool(audit.first_entry(folder / files.AUDIT))


def check_collection(folder: Path, is_part: Callable[[str], bool] = lambda name: True) -> None:
    """Refuse a ``folder`` that holds anything but a comparison or a measurement, whose runs' names are ``is_part``."""
    check_path(folder)
    for item in content(folder):
        if item.is_dir() and not item.is_symlink():
            # perhaps of a command that was killed before the configuration was there
            half_made = all(files.HALF_WRITTEN.fullmatch(one.name) for one in content(item)) and not strangers(item)
            known = is_part(item.name) and (is_run(item) or half_made)
            known |= item.name == SHEETS and all(_is_own_file(one, RUN_FOLDERS[EDITIONS]) for one in content(item))
            known |= item.name == MODELS and all(_is_own_file(one, MIX_FILES) for one in item.glob("*/*"))
        else:
            known = _is_own_file(item, re.compile("|".join(map(re.escape, SUMMARIES))))
        if not known:
            raise UserError(f"--out {folder}: holds {item.name!r}, which is no run of a comparison or measurement")


def _put_aside(folder: Path) -> None:
    """Move the run that is there into ``BEFORE``, which appears whole."""
    old = content(folder)
    if not old:
        return
    (folder / MOVING).mkdir(mode=0o700)
    for item in old:
        item.rename(folder / MOVING / item.name)
    (folder / MOVING).rename(folder / BEFORE)


def _put_back(folder: Path) -> None:
    """Move the run before back; what is half moved goes on where it was."""
    if (folder / BEFORE).is_dir():
        (folder / BEFORE).rename(folder / MOVING)
    if (folder / MOVING).is_dir():
        for item in (folder / MOVING).iterdir():
            item.rename(folder / item.name)
        (folder / MOVING).rmdir()


def _recover(folder: Path) -> None:
    """After a kill: the run before is back unless the new one had begun, which then goes on."""
    if (folder / BEFORE).is_dir():
        if has_begun(folder) and not never_started(folder):
            _discard(folder / BEFORE)
            return
        _remove(folder)
    _put_back(folder)


def _remove(folder: Path) -> None:
    """Delete a run's own files, no others."""
    for item in content(folder):
        if item.name in RUN_FOLDERS and item.is_dir() and not item.is_symlink():
            own = RUN_FOLDERS[item.name]
            files.remove_files(item, lambda name: own.fullmatch(name) is not None)  # noqa: B023 - used at once
        elif _is_own_file(item, PREFLIGHT, *RUN_FILES):
            item.unlink()


def _discard(before: Path) -> None:
    if before.is_dir() and not before.is_symlink():
        _remove(before)
        with contextlib.suppress(OSError):  # something else lies there and stays
            before.rmdir()


def _clear_server_lock(folder: Path) -> None:
    """Remove what a killed server of a simulated run has left; raises Busy while a job's server works in ``folder``."""
    if (folder / files.SERVER_LOCK).exists():
        with locked(folder, files.SERVER_LOCK):
            pass


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
