# SPDX-License-Identifier: Apache-2.0
"""Runs as the command line makes them: a folder is opened, a federation runs in it, a report closes it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare import console
from fairflare.assembly import CONFIG, SITES, Parts, build_parts, run_local
from fairflare.config import RunConfig, part, site_of_client
from fairflare.contracts import Training
from fairflare.errors import FairFlareError, RunFailed, UserError
from fairflare.federation import audit
from fairflare.federation.loop import AUDIT
from fairflare.federation.state import save_json, save_text
from fairflare.report.compare import compare
from fairflare.report.log import RunLog
from fairflare.report.page import render_compare
from fairflare.report.tensorboard import TensorBoard
from fairflare.report.write import REPORT, write_report

COMPARISON = "compare.json"
COMPARISON_PAGE = "compare.html"


def default_folder(config: RunConfig) -> Path:
    """runs/<method>-<task>-<preset>-seed<seed>."""
    return Path("runs") / f"{config.method}-{config.task}-{config.preset}-seed{config.seed}"


def execute(
    config: RunConfig, folder: Path, *, env: str = "local", force: bool = False, sim_threads: int | None = None
) -> dict[str, Any]:
    """Run ``config`` into ``folder`` and return the content of ``report.json``.

    Args:
        config: the run.
        folder: created; refused when it exists, unless ``force`` and it holds an earlier run.
        env: "local" or "sim".
        sim_threads: simulator threads; as many as sites when None.

    Raises:
        UserError: the folder cannot be used, or the task's data are not there.
        RunFailed: the federation stopped; the folder keeps its last good model and a report that says so.
    """
    parts = build_parts(config)  # before anything is shown or started: what is wrong with it is the user's to mend
    parts.task.check_data()
    if caution := parts.rule.caution(part(Training, config.training)):
        console.note(caution)
    names = list(site_of_client(config, parts.task))
    if sim_threads is not None and (env != "sim" or sim_threads < 1):
        raise UserError(f"--sim-threads: expected at least 1 and --env sim, got {sim_threads} with --env {env}")
    with fresh_folder(folder, force):
        if env == "sim":
            return _simulate(config, folder, names, sim_threads)
        return _in_process(config, parts, folder)


def resume(folder: Path, *, sim_threads: int | None = None) -> dict[str, Any]:
    """Continue the run in ``folder`` after its last finished round and return the content of ``report.json``.

    Model, the rule's state and the sites' memories are those of that round, so that the final model is the one of an
    uninterrupted run, bit for bit.

    Raises:
        UserError: the folder holds no run, one that is complete, or one that ran on deployed sites.
        RunFailed: as ``execute``.
    """
    if not _holds_run(folder):
        raise UserError(f"{folder}: expected the folder of a run, found no {CONFIG} and {AUDIT}")
    content = json.loads((folder / CONFIG).read_text())
    config, env = RunConfig.from_json(content), content.get("env")
    if _completed(folder):
        raise UserError(f"{folder}: the run is complete, there is nothing to resume")
    if env not in ("local", "sim"):
        raise UserError(
            f"{folder}: ran on deployed sites; a new job continues it: the same fairflare run with --set federation=ID"
        )
    parts = build_parts(config)
    parts.task.check_data()
    if env == "sim":
        return _simulate(config, folder, list(site_of_client(config, parts.task)), sim_threads)
    return _in_process(config, parts, folder)


def compare_all(
    configs: Sequence[tuple[str, RunConfig]],
    folder: Path,
    *,
    env: str = "local",
    force: bool = False,
    sim_threads: int | None = None,
) -> dict[str, Any]:
    """Run every configuration into a folder of its own below ``folder`` and write compare.html and compare.json.

    Args:
        configs: (folder name, run); a finished run of the very same configuration found there is not run again.
        folder: holds the comparison; one that holds something else is refused.
    """
    _check_comparison_folder(folder, force)
    summaries = []
    for number, (name, config) in enumerate(configs, 1):
        target = folder / name
        if not force and (done := finished(target, config, env)):
            console.note(f"{name}: finished before, reused")
            summaries.append(done)
            continue
        console.note(f"run {number} of {len(configs)}: {name}")
        replace = force or not _completed(target)
        summaries.append(execute(config, target, env=env, force=replace, sim_threads=sim_threads))
    comparison = compare([summary["detail"] for summary in summaries])
    save_json(folder / COMPARISON, comparison)
    save_text(folder / COMPARISON_PAGE, render_compare(comparison))
    return comparison


def export_job(
    config: RunConfig, out: Path, *, name: str | None, simulation: bool, force: bool, preinstalled: bool = False
) -> None:
    """Write the FLARE job folder ``out``; it appears whole or not at all."""
    from fairflare.flare.recipe import FairRecipe, job_name

    _refuse_existing(out, force, _holds_job, "exported job")
    _make_parent(out)
    name = name or job_name(config)
    with tempfile.TemporaryDirectory(prefix=".fairflare_export.", dir=out.parent) as scratch:
        with console.quiet_flare():
            FairRecipe(config, name=name, simulation=simulation, preinstalled=preinstalled).export(scratch)
        if out.exists():
            shutil.rmtree(out)
        os.replace(Path(scratch) / name, out)


@contextlib.contextmanager
def fresh_folder(folder: Path, force: bool) -> Iterator[None]:
    """A new folder for a run. When the run fails before its first round, what was there before is back."""
    _refuse_existing(folder, force, _holds_run, "run")
    _make_parent(folder)
    before = None
    if folder.exists():
        before = Path(tempfile.mkdtemp(prefix=f".{folder.name}.before.", dir=folder.parent)) / folder.name
        folder.rename(before)
    folder.mkdir()
    try:
        yield
    except BaseException:
        if not (folder / AUDIT).exists() or (before and _never_started(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            if before:
                before.rename(folder)
        raise
    finally:
        if before:
            shutil.rmtree(before.parent, ignore_errors=True)


def _in_process(config: RunConfig, parts: Parts, folder: Path) -> dict[str, Any]:
    board, log = TensorBoard(folder), RunLog(folder)
    rounds = config.training["rounds"]
    try:
        with console.Progress(title(config), rounds, len(parts.task.sites())) as progress:
            observers = [board, log, progress]
            run_local(config, folder, observers, on_site=progress.preparing, parts=parts, tell=progress.found)
    except FairFlareError:
        board.close()
        _report_what_there_is(folder)
        raise
    board.close()
    with console.busy("scoring the final model"):
        return write_report(folder)


def _simulate(config: RunConfig, folder: Path, names: Sequence[str], threads: int | None) -> dict[str, Any]:
    from fairflare.flare.simulate import LOG as FLARE_LOG
    from fairflare.flare.simulate import run_simulator

    if threads is not None and threads < len(names):
        console.note(
            f"{threads} threads for {len(names)} sites: FLARE starts a new process per site and task, which is slow"
        )
    with console.Progress(title(config), config.training["rounds"], len(names), starting=True) as progress:
        run_simulator(config, folder, names, threads, watch=progress.follow)
    last = audit.verify(folder / AUDIT)[-1]
    if last["event"] == "finish" and last["status"] == "completed":
        shutil.rmtree(folder / SITES, ignore_errors=True)  # nothing is left to continue
    if last["event"] != "finish" or last["status"] != "completed" or not (folder / REPORT).is_file():
        raise RunFailed(last.get("reason") or f"the simulator stopped early; see {folder / FLARE_LOG}")
    return json.loads((folder / REPORT).read_text())


def title(config: RunConfig) -> str:
    """A run in a few words."""
    return f"{config.method} on {config.task}:{config.preset}, seed {config.seed}"


def _report_what_there_is(folder: Path) -> None:
    if (folder / AUDIT).exists():
        with contextlib.suppress(FairFlareError):
            write_report(folder)


def finished(folder: Path, config: RunConfig, env: str) -> Mapping[str, Any] | None:
    """The report of a completed run of exactly this configuration in ``folder``."""
    if not (folder / REPORT).is_file() or not (folder / CONFIG).is_file():
        return None
    found = json.loads((folder / CONFIG).read_text())
    same = found.get("env") == env and RunConfig.from_json(found) == config
    report = json.loads((folder / REPORT).read_text())
    return report if same and report["status"] == "completed" else None


def _completed(folder: Path) -> bool:
    """A run there came to its end, so that it is not replaced without being asked to."""
    return (folder / REPORT).is_file() and json.loads((folder / REPORT).read_text()).get("status") == "completed"


def _check_comparison_folder(folder: Path, force: bool) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not force:
        strangers = [
            p.name for p in folder.iterdir() if not (p / CONFIG).is_file() and not p.name.startswith("compare.")
        ]
        if strangers:
            raise UserError(f"--out {folder}: holds {strangers[0]!r}, which is no run of a comparison")
    _make_parent(folder / CONFIG)


def _refuse_existing(folder: Path, force: bool, is_ours: Callable[[Path], bool], kind: str) -> None:
    """Refuse a folder with content; with ``force`` only one that is not ours, so that no stranger's is deleted."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"--out {folder}: exists and is not a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not force and not _never_started(folder):
        raise UserError(f"--out {folder}: exists; give another folder, or --force to replace it")
    if not is_ours(folder):
        raise UserError(f"--out {folder}: holds no {kind} of fairflare, so --force does not replace it")


def _holds_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / AUDIT).is_file()


def _never_started(folder: Path) -> bool:
    """A run there was refused before its first round, so that nothing is lost by another attempt."""
    try:
        return [entry["event"] for entry in audit.verify(folder / AUDIT)] == ["start", "finish"]
    except (FairFlareError, OSError):
        return False


def _holds_job(folder: Path) -> bool:
    server = folder / "app" / "config" / "config_fed_server.json"
    return (folder / "meta.json").is_file() and server.is_file() and "fairflare.flare.controller" in server.read_text()


def _make_parent(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
