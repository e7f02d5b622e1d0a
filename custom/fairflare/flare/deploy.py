# SPDX-License-Identifier: Apache-2.0
"""Runs a configuration on a federation that is up: submits the job, waits for it, brings its result home."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.tool.poc.poc_commands import get_poc_workspace

from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.audit import Tail
from fairflare.engine.files import AUDIT, CHECKPOINT
from fairflare.engine.history import COUNTERSIGNED
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.flare.compat import admin_of, open_session
from fairflare.flare.controller import PROGRESS
from fairflare.flare.job_reason import REASON, TRACEBACKS, with_place
from fairflare.flare.kit_dates import out_of_date
from fairflare.flare.recipe import SITES_POLL, FairRecipe
from fairflare.flare.server_state import RESULT
from fairflare.flare.simulate import LOG

DONE, RUNNING = "FINISHED", "RUNNING"
GOOD = ("FINISHED:COMPLETED", "FINISHED:ABNORMAL")
"""ABNORMAL: a client did not report its end, which says nothing of the run: its audit log does."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*\.(?P<text>\w+: .+)|(?P<plain>\w*(Error|Exception): .+)")
ABORTED = "someone aborted it or a site's process ended; that site's log says why"
KEPT_AWAY = "a site that runs and never connects has a certificate out of date or a wrong clock: its log.txt says which"

Watch = Callable[[str], None]
POLL = 2.0
"""Seconds between two questions for the job's status."""
CONNECT = 30.0
"""Seconds to reach the server; a busy one answers a login late."""
PROGRESS_POLL = 10.0
"""Seconds between two questions for the round that a running job has reached."""
PATIENCE = 120.0
"""Seconds for which a server that was reached once may be away, as while it starts again."""
LOST = (api_spec.NoConnection, api_spec.NoReply, api_spec.SessionClosed)


def run_deployed(
    config: RunConfig,
    folder: Path,
    env: str = "poc",
    kit: Path | None = None,
    *,
    timeout: float = 86400.0,
    preinstalled: bool = False,
    watch: Watch = lambda text: None,
) -> str:
    """Run ``config`` on a running federation, leave the run folder's files in ``folder``, return the job's id.

    Args:
        config: its sites are the connected clients of these names, see ``RunConfig.clients``.
        folder: an existing, empty one.
        env: "poc", whose project admin submits when there is no ``kit``, or "prod".
        watch: called with a sentence whenever the job's status changes, and now and then with the round it has reached.

    Raises:
        UserError: no such kit, no such sites, or the server refuses user or job.
        RunFailed: the server is out of reach, the job is not over in time, or it failed; then the text holds the
            server's reason, and what the server has of the run is in ``folder``.
    """
    user, kit = find_kit(env, kit)
    poll = SITES_POLL if env == "poc" else None
    recipe = FairRecipe(config, simulation=False, preinstalled=preinstalled, poll=poll)
    deadline = time.monotonic() + timeout
    with _no_logs(), tempfile.TemporaryDirectory(prefix="fairflare_deploy_") as scratch, Server(user, kit) as server:
        _await_sites(config, server, kit, watch)
        with silent():
            recipe.export(scratch)
        job = server.submit(Path(scratch) / recipe.name)
        watch(f"job {job}: submitted by {user}")
        try:
            meta = _wait(server, job, config.federation or job, deadline, watch)
        except (Late, KeyboardInterrupt):
            watch(f"job {job} goes on; end it with: nvflare job abort {job} --startup-kit {kit} --force")
            raise
        _fetch(server, job, Path(scratch), folder)
    if meta.get("status") not in GOOD or _last_entry(folder).get("status") != "completed":
        begun = any(folder.rglob(CHECKPOINT))  # a join's folds have one each
        again = f"; {_again(config.federation or job)}" if begun else ""
        raise RunFailed(f"job {job}: {_reason(meta, folder)}{again}")
    return job


def find_kit(env: str, kit: Path | None) -> tuple[str, Path]:
    """User name and folder of the startup kit ``kit``, or of the POC's project admin; UserError when there is none."""
    if kit is None and env == "prod":
        raise UserError("--kit: expected the startup kit of the user who submits, got none")
    where = kit or _poc_kit()
    try:
        return admin_of(where)
    except ValueError:
        text = "expected a user's startup kit, the folder that holds startup/fed_admin.json"
        raise UserError(f"--kit {where}: {text}") from None


def _poc_kit() -> Path:
    """The first kit of a project admin below the POC's workspace, its newest provisioning first."""
    workspace = Path(get_poc_workspace())
    for stage in sorted(workspace.glob("*/prod_*"), reverse=True):
        admins = [p.parents[1] for p in sorted(stage.glob("*/startup/fed_admin.json"))]
        if admins:
            return min(admins, key=lambda kit: not kit.name.startswith("admin@"))
    raise UserError(f"no POC in {workspace}: prepare and start one, name it in NVFLARE_POC_WORKSPACE, or give --kit")


class Late(RunFailed):
    """Nobody waits for the job any longer, and it goes on."""


def _await_sites(config: RunConfig, server: Server, kit: Path, watch: Watch) -> None:
    """Wait for as many of the run's sites as it requires; FLARE gives a job to those that are connected at its start.

    Raises UserError: none of them is there; RunFailed: too few are when ``require_within`` is over, or for any round.
    """
    wanted = config.clients or site_names(config)
    least = len(wanted) if config.require == "all" else config.require
    deadline, told = time.monotonic() + config.require_within, ""
    while len(here := {*wanted} & {*(connected := server.connected())}) < least:
        missing = ", ".join(name for name in wanted if name not in here)
        if time.monotonic() > deadline:
            where = f"within {config.require_within} s, {_absence({*wanted} - here, kit)}"
            raise RunFailed(f"require={config.require}: expected {least} sites {where}")
        if missing != told:
            watch(f"waiting for {missing}, up to {max(0, deadline - time.monotonic()):.0f} s")
        told = missing
        time.sleep(POLL)
    if not here:  # FLARE would let the job wait for them without a word
        names = f"expected {', '.join(wanted)}, connected are {', '.join(connected) or 'none'}"
        raise UserError(f"none of the run's sites is there: {names}; --set clients=A,B,... says who takes them")
    away = _absence({*wanted} - here, kit)
    if len(here) < config.min_sites:
        raise RunFailed(f"{len(here)} of the run's sites are connected, {config.min_sites} needed; {away}")
    if len(here) < len(wanted):
        watch(f"the job starts without sites that the next segment takes up; {away}")


def _absence(missing: Collection[str], kit: Path) -> str:
    """The missing sites, each with what is out of date in its kit where that lies beside ``kit``, as at the hub."""
    dates = {name: out_of_date(kit.parent / name) for name in sorted(missing)}
    names = ", ".join(f"{name} ({dates[name]})" if dates[name] else name for name in dates)
    return f"missing: {names}" + ("" if any(dates.values()) else f"; {KEPT_AWAY}")


def _wait(server: Server, job: str, federation: str, deadline: float, watch: Watch) -> dict[str, Any]:
    status, seen, began, asked = "", [], server.began(), float("-inf")
    while True:
        meta = server.meta(job)
        at = server.progress(job) if status == RUNNING and time.monotonic() - asked > PROGRESS_POLL else ""
        asked = time.monotonic() if at else asked
        for text in [*_waits(meta), *_refusals(meta), *filter(None, [at])]:
            if text not in seen:
                seen.append(text)
                watch(f"job {job}: {text}")
        if meta.get("status") != status:
            status = str(meta.get("status"))
            watch(f"job {job}: {status}")
        if status.startswith(DONE):
            return meta
        if status == RUNNING and server.began() != began:
            # FLARE goes on saying that such a job runs.
            raise RunFailed(f"job {job}: the server has started anew and lost it; {_again(federation)}")
        if time.monotonic() > deadline:
            raise Late(f"job {job}: not over in time, but {'; '.join([status, *_waits(meta)[-1:]])}")
        time.sleep(POLL)


def _fetch(server: Server, job: str, scratch: Path, folder: Path) -> None:
    """Put what the server's run left into ``folder``; a job that never ran left nothing."""
    result = server.download(job, scratch) / "workspace"
    for item in sorted((result / RESULT).iterdir()) if (result / RESULT).is_dir() else ():
        shutil.move(str(item), folder / item.name)
    if (result / "log.txt").is_file():
        shutil.move(str(result / "log.txt"), folder / LOG)


def _reason(meta: Mapping[str, Any], folder: Path) -> str:
    """Why a job failed: the run's own last words, else what sites said to its deployment, else the log's last error."""
    reason = _last_entry(folder).get("reason") or meta.get("fairflare_reason") or "; ".join(_refusals(meta))
    reason = reason or _last_error(folder / LOG) or "".join(_waits(meta)[-1:]) or "no reason given"
    if "site_error" in reason and TRACEBACKS not in reason:
        reason = with_place(reason, meta.get("job_id"))
    return f"{meta.get('status')}: {reason}" + (f"; {ABORTED}" if reason.endswith("the job was aborted") else "")


def _again(federation: str) -> str:
    return f"the same run with --set federation={federation} --force continues after its last round"


def _refusals(meta: Mapping[str, Any]) -> list[str]:
    """What server and sites said against the job when it was deployed, e.g. "site-1: BYOC not permitted"."""
    said = [str(text).replace("NVFLARE_ERROR: ", "") for text in meta.get("job_deploy_detail") or ()]
    return [text for text in said if not text.endswith(": OK") and not text.startswith(f"{REASON}: ")]


def _waits(meta: Mapping[str, Any]) -> list[str]:
    """Why the scheduler did not start the job, oldest first: "2026-11-21 18:35:15: not enough sites ..."."""
    said = [str(text).partition(": ")[2] for text in meta.get("schedule_history") or ()]
    return [text for text in said if text != "scheduled"]


def _last_error(log: Path) -> str:
    """The exception that the log's last error began with, or that error's line."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    last = max((k for k, line in enumerate(lines) if " ERROR " in line), default=len(lines))
    raised = [found["text"] or found["plain"] for line in lines[last:] if (found := EXCEPTION.fullmatch(line))]
    plain = [line.rpartition(" - ")[2] for line in lines[last:]]
    return " ".join((*raised, *plain, "")[0].split())[:300]


def _last_entry(folder: Path) -> dict[str, Any]:
    """The audit log's last line but for signatures, as far as there is one; the caller verifies the chain."""
    last = dict[str, Any]()
    for entry in Tail(folder / AUDIT).new():
        last = last if entry["event"] == COUNTERSIGNED else entry
    return last


@contextlib.contextmanager
def _no_logs() -> Iterator[None]:
    """FLARE logs every message that does not get through; what matters of it is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class Server:
    """A session with a running FLARE server, as a user who may submit jobs: it is opened again when it breaks.

    FLARE's ``ProdEnv`` would open a session per question, print to stdout and tell nothing of why a job failed;
    ``PocEnv`` would delete the POC that it finds running. So the session behind both is used directly.
    """

    def __init__(self, user: str, kit: Path) -> None:
        self._user, self._kit = user, kit
        self._session: Session | None = None

    def __enter__(self) -> Server:
        try:
            self._open()
        except api_spec.NoConnection:
            if problem := out_of_date(self._kit):
                raise UserError(f"{self._kit}: {problem}") from None
            raise RunFailed(f"the server of {self._kit} cannot be reached within {CONNECT:g} seconds") from None
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def connected(self) -> list[str]:
        return sorted(client.name for client in self._ask("get_system_info").client_info)

    def began(self) -> str:
        return str(self._ask("get_system_info").server_info.start_time)

    def submit(self, job: Path) -> str:
        """The id of the submitted ``job``. Not repeated when the connection breaks: it may have arrived."""
        try:
            with silent():
                return str(self._open().submit_job(str(job)))
        except (api_spec.AuthorizationError, api_spec.InvalidJobDefinition) as error:
            # FLARE puts the cause last: "...for the action 'submit_job PATH: user 'x' is not authorized'".
            cause = _words(error).rpartition(": ")[2].removesuffix("'")
            raise UserError(f"the server refuses the job: {cause}") from None
        except (*LOST, api_spec.InternalError, RuntimeError) as error:
            raise RunFailed(f"the job could not be submitted: {_words(error)}") from None

    def meta(self, job: str) -> dict[str, Any]:
        return dict(self._ask("get_job_meta", job))

    def progress(self, job: str) -> str:
        """How far the run is, as the controller says; empty where it does not."""
        with contextlib.suppress(Exception):  # such as of a job that has just ended, which is asked about elsewhere
            return str(self._ask("show_stats", job, "server")["server"][PROGRESS][PROGRESS])
        return ""

    def download(self, job: str, folder: Path) -> Path:
        return Path(self._ask("download_job_result", job, str(folder)))

    def _ask(self, method: str, *arguments: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with silent():
                    return getattr(self._open(), method)(*arguments)
            except LOST as error:
                self._close()
                if time.monotonic() > until:
                    raise RunFailed(f"the server has been away for {PATIENCE:g} seconds: {_words(error)}") from None
                time.sleep(POLL)
            except api_spec.AuthorizationError as error:
                raise UserError(f"the server refuses: {_words(error)}") from None
            except (api_spec.JobNotFound, api_spec.InternalError, RuntimeError) as error:
                raise RunFailed(f"the server answers: {_words(error)}") from None

    def _open(self) -> Session:
        if self._session is None:
            # Without a folder for its configuration FLARE looks through every folder below the working directory.
            ConfigService.initialize({}, [str(self._kit)])
            try:
                with silent():
                    self._session = open_session(self._user, self._kit, CONNECT)
            except (api_spec.AuthenticationError, api_spec.AuthorizationError) as error:
                raise UserError(f"the server refuses {self._user}: {_words(error)}") from None
            except FLCommunicationError as error:  # a server that is busy answers a login too late
                raise api_spec.NoConnection(_words(error)) from None
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception), silent():  # whatever is wrong with it, it is not needed any more
                self._session.close()
        self._session = None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """FLARE prints to stdout, the place of a result, and warns of the SHA-256 of a user's own files as a secret."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
