# SPDX-License-Identifier: Apache-2.0
"""Runs as the command line makes them: a folder is opened, a federation runs in it, a report closes it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from torch import Tensor

from fairflare.core import registry, user_code
from fairflare.core.errors import NO_SPACE, FairFlareError, RunFailed, UserError, is_full
from fairflare.core.execution import default_device, placed
from fairflare.core.lab import CACHE
from fairflare.core.signals import advice, command
from fairflare.core.workers import start_method, usable_cores
from fairflare.data.tensors import TensorData
from fairflare.engine import audit
from fairflare.engine.evaluation import predict
from fairflare.engine.files import AUDIT, CHECKPOINT, LASTING, MODEL, is_file, is_there, read_json
from fairflare.engine.history import events
from fairflare.engine.in_process import InProcess
from fairflare.engine.loop import Observer
from fairflare.engine.memory import forget
from fairflare.engine.setup import tasks, tuning
from fairflare.engine.setup.assembly import CONFIG, save_config
from fairflare.engine.setup.config import RunConfig, site_of_client, words
from fairflare.engine.setup.config_checks import asked_sites, refuse_pooling
from fairflare.engine.setup.local import SITES, LocalSites, run_local
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.weights import find, keep
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.report import EDITIONS, REPORT
from fairflare.report.audit_reader import RunLog
from fairflare.report.tensorboard import TensorBoard
from fairflare.studies import display
from fairflare.studies.display import duration, err
from fairflare.studies.folders import FLARE_LOG, RIDER, check_path, fresh_folder, has_begun, is_complete, is_run, opened
from fairflare.studies.labels import environment
from fairflare.studies.run_file import write_run_file
from fairflare.tasks.own.script import Script

SHORT = 2_000
"""Rounds times sites of a study's run that is made again where it was cut short: seconds, and half of them for files
that a run leaves after each round to go on from."""
LEAST_FREE = 1 << 16
"""Bytes below which a disk is taken to be full when the simulator has stopped."""


def default_folder(config: RunConfig) -> Path:
    """runs/<method>-<task>-<preset>-seed<seed>, where the method is "fedheal+moon" with a part that is not its own."""
    return Path("runs") / f"{_composed(config)}-{config.task}-{config.preset}-seed{config.seed}"


def execute(
    config: RunConfig,
    folder: Path,
    *,
    env: str = "local",
    force: bool = False,
    workers: int | None = 1,
    page: bool = True,
) -> dict[str, Any]:
    """Run ``config`` into ``folder``, in ``env`` "local" or "sim", and return the content of ``report.json``.

    A folder that exists is refused, unless ``force`` and it holds an earlier run. ``workers``: processes that the sites
    are spread over, see ``workers_for``; ``page``: of a run in this process, whether it writes report.html, which
    ``fairflare report`` does later, and lasts if it is ``SHORT``.

    Raises UserError: the folder cannot be used, or the task's data are not there; RunFailed: the federation stopped;
    the folder keeps its last good model and a report that says so.
    """
    env = env_of(config, env)
    parts = build_parts(config)  # before anything is shown or started: what is wrong with it is the user's to mend
    parts.task.check_data()
    for caution in cautions(config, parts):
        display.note(caution)
    names = list(site_of_client(config, parts.task))
    if env != "local":
        if (workers or 1) > 1 or config.stacked:
            key = "stacked" if config.stacked else "--workers"
            raise UserError(f"{key}: expected --env local, got --env {env}")
        refuse_pooling(parts.selector, f"--env {env}")
    with fresh_folder(folder, force), _with_room(folder):
        save_config(config, parts, folder, env)  # from here on `resume` goes on, whenever this process is killed
        write_run_file(config, folder, env)
        if env == "sim":
            return _simulate(config, folder, names)
        return _in_process(config, parts, folder, workers, page)


def env_of(config: RunConfig, env: str) -> str:
    """Where a run takes place that was asked for in ``env``: a script needs FLARE's processes, in place of "local"."""
    return "sim" if config.task == Script.name and env == "local" else env


def cautions(config: RunConfig, parts: Parts) -> list[str]:
    """What whoever starts a run should know before it begins, one line each."""
    early_end = EarlyEnd(config.min_responses, config.grace)
    count = asked_sites(config, parts.selector, list(site_of_client(config, parts.task)))
    heard = min(config.min_responses or count, count)
    found = (parts.rule.caution(config.training), parts.rule.unprotected(heard), early_end.caution())
    begin = [*(parts.origin.lines() if parts.origin else ()), *tuning.words(config.tune, parts.network)]
    return [*begin, *(caution for caution in found if caution)]


def resume(
    folder: Path,
    config: RunConfig | None = None,
    *,
    workers: int | None = 1,
    page: bool = True,
) -> dict[str, Any]:
    """Continue the run in ``folder`` after its last finished round and return the content of ``report.json``.

    Another ``config`` of the same lineage begins the federation's next segment. Without one, or with the same sites,
    the final model is the one of an uninterrupted run, bit for bit. Raises UserError: the folder holds no run, one that
    is complete, or one that ran on deployed sites; RunFailed: as ``execute``.
    """
    from fairflare.report.write import check_resumable

    _require_folder(folder)
    with opened(folder), _with_room(folder):
        if not is_run(folder):
            raise UserError(f"{folder}: expected the folder of a run, found no {CONFIG} of one; `fairflare run` begins")
        if is_there(folder / RIDER):
            raise UserError(f"{folder}: a free rider is simulated in it; the same `fairflare riders` goes on")
        described = read_json(folder / CONFIG)
        run_history = check_resumable(folder)
        config, env = config or RunConfig.from_json(described), described.get("env")
        anew = run_history is not None and run_history.segment.get("config_sha256") != config.sha256()
        if run_history is not None and not anew and run_history.completed and is_file(folder / MODEL):
            return _reported(folder, run_history.segment["sites"], page)
        if env not in ("local", "sim"):
            again = command("run", "--continue", folder, "--env", "prod", "--kit", "KIT")
            raise UserError(f"{folder}: ran on deployed sites; a new job continues it: {again}")
        find(config.init_from, folder)
        parts = build_parts(config)
        parts.task.check_data()
        if env == "sim":
            return _simulate(config, folder, list(site_of_client(config, parts.task)))
        return _in_process(config, parts, folder, workers, page)


def report_again(folder: Path) -> dict[str, Any]:
    """(Re)write the report of the run in ``folder`` and return the content of ``report.json``; see ``write_report``."""
    from fairflare.report.write import write_report

    with _opened_run(folder):
        return write_report(folder)


def report_editions(
    folder: Path, sites: Sequence[str], out: Path | None = None
) -> tuple[dict[str, dict[str, Any]], Path]:
    """Write the editions of ``sites``, or of all, and return them with the folder; see ``write_editions``."""
    from fairflare.report.write import write_editions

    where = out or folder / EDITIONS
    _require_folder(folder)
    check_path(where)
    with _opened_run(folder):
        return write_editions(folder, sites, where), where


def run_once(
    config: RunConfig, folder: Path, *, env: str = "local", force: bool = False, **how: Any
) -> Mapping[str, Any]:
    """As ``execute``, but a finished run of the very same configuration is reused, and one cut short goes on."""
    from fairflare.report.write import verify_run

    env = env_of(config, env)
    found: dict[str, Any] | None = None
    if not force and folder.is_dir():
        with opened(folder):  # which may bring back the run that another was about to replace
            found = read_json(folder / CONFIG) if is_run(folder) else None
    if found is None or found.get("env") != env or RunConfig.from_json(found) != config:
        return execute(config, folder, env=env, force=force, **how)
    if is_complete(folder):
        try:
            verify_run(folder)
        except UserError as error:
            raise UserError(f"{folder}: is not reused: {error}") from None
        display.note(f"{folder.name}: finished before, reused")
        return read_json(folder / REPORT)
    if not is_there(folder / CHECKPOINT) and audit.Entries(folder / AUDIT).last("round") is not None:
        display.note(f"{folder.name}: was cut short, begins again")  # see ``SHORT``
        return execute(config, folder, env=env, force=True, **how)
    display.note(f"{folder.name}: was cut short, goes on")
    return resume(folder, **how)


def predicted(
    parts: Parts, config: RunConfig, data: TensorData, split: Any = "test", *, plain: bool = False
) -> tuple[Tensor, Tensor]:
    """Condensed outputs and targets of a split's cases; ``plain``: of data as they are, not as the trainer has them."""
    device = default_device()
    prepared = data.on(device) if plain else parts.trainer.site_data(data.on(device))
    batches = prepared.fixed(split, int(config.training.batch_size))
    return predict(placed(parts.network, device), batches, device, parts.task.condense)[:2]


def workers_for(wanted: int | None, config: RunConfig, parts: Parts) -> int:
    """How many processes the sites of a run on this machine are spread over.

    ``wanted`` is a number, or None: as many as there are sites and cores, where they start in milliseconds; 1 elsewhere
    and for a stacked run. Raises UserError where a stacked run cannot have several.
    """
    sites = len(parts.task.sites())
    if config.stacked:
        if (wanted or 1) > 1:
            raise UserError(f"--workers: expected 1 with stacked=true, which trains the sites together, got {wanted}")
        return 1
    if wanted is None:
        forks = start_method(config.threads) == "fork" and config.secure_sum != "ckks"
        return max(1, min(sites, usable_cores() // config.threads)) if forks else 1
    return min(wanted, sites)


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Within: Ctrl-C's line says how the run in ``folder`` goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        if has_begun(folder):
            error.args = (f"{command('resume', folder)} goes on after the last finished round",)
        raise


@contextlib.contextmanager
def _with_room(folder: Path) -> Iterator[None]:
    """Within: a full disk ends the run with a line that says where, and how the run goes on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FairFlareError) or not is_full(error):
            raise
        raise RunFailed(advice(error, folder, has_begun(folder))) from error


def _in_process(config: RunConfig, parts: Parts, folder: Path, workers: int | None, page: bool) -> dict[str, Any]:
    rounds, notes = config.training.rounds, [note.to_json() for note in parts.rule.notes]
    try:
        # First of all: the progress bar has a thread, beside which no worker can be forked.
        with contextlib.ExitStack() as stack:
            sites = stack.enter_context(LocalSites(config, folder, parts, workers_for(workers, config, parts)))
            board, log = stack.enter_context(contextlib.closing(TensorBoard(folder, notes))), RunLog(folder)
            if said := words(config):
                display.note(said)
            n, headline = len(parts.task.sites()), parts.task.headline
            shown = display.progress(title(config), rounds, n, headline=headline, solo=config.solo)
            progress = stack.enter_context(shown)
            observers: list[Observer] = [board, log, progress]
            here = isinstance(sites.transport, InProcess) and not parts.trainer.private  # what is spent is written down
            if here and not page and rounds * len(sites.transport.sites()) <= SHORT:
                stack.enter_context(_not_lasting(sites))
            run_local(config, folder, observers, progress.preparing, parts, progress.found, sites)
    except FairFlareError:
        from fairflare.report.write import write_report

        if (folder / AUDIT).exists():
            with contextlib.suppress(FairFlareError):
                write_report(folder, page)
        raise
    from fairflare.report.write import write_report  # no round waits for its modules

    with display.busy("writing the report"):
        return write_report(folder, page)


@contextlib.contextmanager
def _not_lasting(sites: LocalSites) -> Iterator[None]:
    before = LASTING.set(False)
    try:
        yield
    finally:
        LASTING.reset(before)
        sites.save()


def _simulate(config: RunConfig, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    from fairflare.flare.simulate import run_simulator

    rounds, headline = config.training.rounds, tasks.known(config.task).headline
    if said := words(config):
        display.note(said)
    with display.progress(title(config), rounds, len(names), True, headline, config.solo) as progress:

        def lost(site: str) -> None:
            progress.note(_without(config, folder, site, len(names)))

        run_simulator(config, folder, names, watch=progress.follow, lost=lost)
    last = (events(audit.Entries(folder / AUDIT)) or [{}])[-1]
    if last.get("event") != "finish" or last["status"] != "completed":
        if last.get("reason") == NO_SPACE or shutil.disk_usage(folder).free < LEAST_FREE:
            raise RunFailed(advice(None, folder, True))
        where = " and ".join(map(str, [*sorted(folder.glob("errors_*.txt"))[:1], folder / FLARE_LOG]))
        raise RunFailed(f"{last.get('reason') or 'the simulator stopped early'}; see {where}")
    if not is_complete(folder):
        raise RunFailed(f"the simulator stopped before its report; {command('resume', folder)} writes it")
    forget(folder / SITES, names)  # nothing is left to continue
    return read_json(folder / REPORT)


def _without(config: RunConfig, folder: Path, site: str, sites: int) -> str:
    """What a simulated run says of a site whose process has ended: how it goes on by its own rules."""
    if config.min_responses is not None and config.min_responses < sites:
        follows = f"rounds end without it ({config.min_responses} answers and {config.grace:g} s)"
    else:
        follows = f"the round waits for it for up to {duration(config.task_timeout)} (task_timeout)"
    again = f"Ctrl-C, then {command('resume', folder)}, brings it back"
    return f"{site}: its process has ended, killed or out of memory; {follows}; {again}"


def _reported(folder: Path, sites: Sequence[str], page: bool) -> dict[str, Any]:
    """The report of a run that was killed when only that was missing; raises UserError when it is there."""
    from fairflare.report.write import verify_run, write_report

    forget(folder / SITES, sites)
    whole = False
    with contextlib.suppress(UserError):
        whole = bool(verify_run(folder)) and is_complete(folder)
    if whole:
        raise UserError(f"{folder}: the run is complete, there is nothing to resume")
    with display.busy("writing the report"):
        return write_report(folder, page)


def _opened_run(folder: Path) -> contextlib.AbstractContextManager[None]:
    """``opened`` where there is a run; whoever reports says what is missing."""
    _require_folder(folder)
    return opened(folder) if is_run(folder) else contextlib.nullcontext()


def _require_folder(folder: Path) -> None:
    if not os.path.isdir(folder):  # False of an impossible name as well
        raise UserError(f"{str(folder)!r}: expected the folder of a run, found no folder")


def title(config: RunConfig) -> str:
    return f"{_composed(config)} on {config.task}:{config.preset}, seed {config.seed}"


def _composed(config: RunConfig) -> str:
    method = registry.get_method(config.method)
    return "+".join([config.method, *(id for kind, id in config.parts.items() if id != getattr(method, kind))])


def execute_deployed(
    config: RunConfig, folder: Path, *, env: str, kit: Path | None, force: bool = False, **how: Any
) -> dict[str, Any]:
    """Run ``config`` on a POC ("poc") or a provisioned federation ("prod"), and return the content of ``report.json``.

    ``kit`` is that of the user who submits, for a POC its project admin's by default; ``how`` as of ``run_deployed``:
    timeout (seconds until the job must be over), preinstalled. Raises UserError: no such kit, no such sites, or the
    server refuses user or job; RunFailed: the server cannot be reached, or the job failed, with the server's reason.
    """
    from fairflare.flare.deploy import find_kit, run_deployed
    from fairflare.report.write import verify_run

    find_kit(env, kit)
    parts = build_parts(config)
    refuse_pooling(parts.selector, f"--env {env}")
    for caution in cautions(config, parts):
        display.note(caution)
    with fresh_folder(folder, force):
        run_deployed(config, folder, env, kit, watch=lambda text: err.print(escape(text), soft_wrap=True), **how)
        keep(config.init_from, folder)  # a server has no frozen body
        verify_run(folder)
        if not (folder / REPORT).is_file():
            raise RunFailed(f"the job came back without {REPORT}; {command('report', folder)} writes it")
    return json.loads((folder / REPORT).read_text())


@contextlib.contextmanager
def as_before(named: Mapping[str, str | None] = MappingProxyType({}), progress: bool = True) -> Iterator[None]:
    """Within: these environment variables, which name the user's own files and where rendered data are kept. After it
    torch's threads, the random generators and the environment are as they were: a run seeds and sets them. Without
    ``progress`` nobody sees it."""
    threads = torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    variables = {name: os.environ.get(name) for name in (user_code.VARIABLE, CACHE)}
    try:
        with environment({**variables, **named}), contextlib.nullcontext() if progress else display.silent():
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
