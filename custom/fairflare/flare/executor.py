# SPDX-License-Identifier: Apache-2.0
"""A site's side of a FLARE job: hands each task to a ``Site`` and turns every error into a return code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fairflare.core import schema
from fairflare.core.errors import DataError
from fairflare.core.manifest import PACKAGE, all_versions
from fairflare.core.processes import end_with_command
from fairflare.core.schema import Answer, Instruction
from fairflare.core.seeds import forget_seeds
from fairflare.data.site_config import find_site_config
from fairflare.engine.files import LOCAL_FINDINGS, LOCAL_LOG
from fairflare.engine.memory import claimed
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.site_parts import site_parts
from fairflare.engine.site import Site
from fairflare.flare import wire
from fairflare.flare.credentials import HEADS, OF_CLIENT, Heads, log_signer, site_credentials
from fairflare.flare.egress import CONFIG, MASK, SIGN, EgressFilter
from fairflare.flare.paths import STATE, federation_id, is_named, job_config, memory_file, vouch_for_code
from fairflare.privacy.schemes import NONE
from fairflare.privacy.statements import LAST

if TYPE_CHECKING:
    from fairflare.flare.script import ScriptRunner


TASKS = [*schema.TASKS, wire.VALIDATE]
"""FLARE's "submit_model" is not among them: a site's own model never leaves it."""

SCRIPT = "fairflare.flare.script"
"""What runs a site's own script: imported by name, for only a job whose task is a script carries it."""


WEIGHTS = "fairflare.engine.setup.weights"
"""What reads a frozen body: likewise."""


SLOW = 20.0
"""Seconds after which a site's log says how long an answer was on its way."""
RESEND, BYTES_PER_SECOND = 30.0, 100_000
"""After how many seconds an answer is sent again, and at which rate more are granted to a large one."""
ENDED_EARLY = (
    "this job ends before its run: the run failed, its server has started anew and lost it, or someone aborted it; "
    "the next segment goes on from what this site keeps (docs/life.md)"
)


class Aborted(Exception):
    """The federation, or the round, ended while this site was working."""


class FairExecutor(Executor):
    """Trains, measures and evaluates; data and network are built at the first task and stay until the job ends."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self._site: Site | None = None
        self._script: ScriptRunner | None = None
        self._claim = contextlib.ExitStack()
        self._heads: Heads | None = None
        self._sending = 0.0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """When the job ends, stop the site's script and give its memory free for the next job; name what broke."""
        if event_type == EventType.BEFORE_SEND_TASK_RESULT:
            self._sending = time.monotonic()
        elif event_type == EventType.AFTER_SEND_TASK_RESULT and time.monotonic() - self._sending > SLOW:
            waited = time.monotonic() - self._sending
            self.log_warning(fl_ctx, f"the answer took {waited:.0f} seconds: the server or the way to it was away")
        elif event_type == EventType.ABORT_TASK:
            self.log_warning(fl_ctx, ENDED_EARLY)
        if event_type == EventType.END_RUN:
            if self._script is not None:
                self._script.end(fl_ctx)
            self._claim.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do one task. Only an error's type leaves the site: its text may hold a path or a patient's id."""
        if task_name not in TASKS and not self.config.get("exchanges"):  # else the site knows, once code is vouched for
            return make_reply(ReturnCode.TASK_UNKNOWN)
        fl_ctx.set_prop(CONFIG, self.config, private=True, sticky=False)  # the filters of this answer read it
        try:
            site = self._ready(fl_ctx)
            if self._script is not None:
                self._script.use(fl_ctx, abort_signal)
            foreign = task_name == wire.VALIDATE
            read = wire.validation_from_shareable if foreign else partial(wire.instruction_from_shareable, task_name)
            instruction = read(shareable)
            size = sum(value.nbytes for value in instruction.model.values())
            if size:
                _resend_after(fl_ctx.get_prop(FLContextKey.RUNNER), RESEND + size / BYTES_PER_SECOND)
            answer = self._watched(site, instruction, fl_ctx, abort_signal)
            if answer.error:
                self.log_error(fl_ctx, f"task {task_name}: {answer.error}")
                return make_reply(ReturnCode.EXECUTION_EXCEPTION, {wire.ERROR_HEADER: answer.error})
            return wire.answer_to_shareable(wire.validation_answer(answer) if foreign else answer)
        except Aborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            self._log_here(task_name, error, fl_ctx)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {wire.ERROR_HEADER: _public_name(error)})
        finally:
            # A site's privacy filters come next and draw their noise from NumPy's global generator, which the site's
            # work has seeded with what the server knows.
            forget_seeds()

    def _watched(self, site: Site, instruction: Instruction, fl_ctx: FLContext, abort_signal: Signal) -> Answer:
        """The site's answer; a task that the server has given up stops it, and leaves it as before the task.

        Raises:
            Aborted: nobody waits for the answer any more.
        """
        number = instruction.round.number
        with wire.TaskWatch(fl_ctx) as watch:
            site.stop_if_aborted = lambda: _raise_if(abort_signal.triggered or watch.gone)
            try:
                answer = self._answer(site, instruction, fl_ctx)
                # What was kept is right only if the answer counts: FLARE drops it, too, when the task is gone.
                _raise_if(instruction.task == "train" and site.memory.has(number) and watch.ask())
            except Aborted:
                if watch.gone:
                    self.log_info(fl_ctx, f"{instruction.task}: round {number} went on without this site")
                    if instruction.task == "train":
                        site.memory.discard(number)
                raise
        return answer

    def _answer(self, site: Site, instruction: Instruction, fl_ctx: FLContext) -> Answer:
        """The site's answer; an update to be masked leaves it with what masks it, and for no other filter but ours.

        The site's own filters see the update first; the job's filter, the last one, masks it and lets no other pass.
        """
        if self._heads is not None:
            self._heads.receive(instruction)
            fl_ctx.set_prop(SIGN, self._heads.sign, private=True, sticky=False)
        if instruction.log.get(LAST):
            return Answer(site=site.name, round=instruction.round.number)
        answer = site.prepare(instruction)
        if not site.aggregation.masks(answer):
            return site.finish(instruction, answer)
        fl_ctx.set_prop(MASK, partial(site.finish, instruction), private=True, sticky=False)
        return answer

    def _log_here(self, task_name: str, error: Exception, fl_ctx: FLContext) -> None:
        """Put the traceback into a file of the site's own: FLARE's sites may stream their error log to the server."""
        folder = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT) or ".")
        with (folder / LOCAL_LOG).open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        where = f"{fl_ctx.get_job_id()}/{folder.name}/{LOCAL_LOG}"  # a site may stream its log: no path of its own
        self.log_error(fl_ctx, f"task {task_name} failed with {_public_name(error)}; see {where} in this workspace")

    def _ready(self, fl_ctx: FLContext) -> Site:
        if self._site is None:
            end_with_command()
            vouch_for_code(fl_ctx)
            config = job_config(self.config, fl_ctx)
            here = all_versions()
            self.log_info(fl_ctx, f"fairflare {here['fairflare']}, {PACKAGE} {here[PACKAGE]}")
            if config.secure_sum != NONE and not _is_masked(fl_ctx):
                raise DataError("secure_sum", "the job's configuration has no filter that masks updates")
            config = dataclasses.replace(config, federation=federation_id(config.federation, fl_ctx))
            memory = memory_file(config.federation, config.lineage(), fl_ctx)
            self._claim.close()  # of an attempt before that failed
            try:
                self._claim.enter_context(claimed(memory))
            except OSError as error:  # no right, a file in its place, a read-only file system
                raise DataError("not_writable", f"{STATE}: expected a folder that this account can write") from error
            local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
            findings = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT) or ".") / LOCAL_FINDINGS
            findings.unlink(missing_ok=True)
            name, tell = fl_ctx.get_identity_name(), partial(_append, findings)
            own = None if config.secure_sum == NONE else site_credentials(fl_ctx)
            ledger = (memory.parent if is_named() else memory.parents[2]) / name
            if (signer := log_signer(fl_ctx, OF_CLIENT)) is not None:
                self._heads = Heads(memory.parent / f"{name}{HEADS}", name, signer)
            if config.init_from and config.tune != "all":  # the frozen body is read at every site
                brought = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT) or ".") / "config"
                importlib.import_module(WEIGHTS).find_body(config.init_from, brought, find_site_config(local, name))
            parts = site_parts(config)
            self._site = build_site(
                config, parts, name, memory, local, tell, own, ledger, partial(self.log_info, fl_ctx)
            )
            if parts.task.by_script:
                runner: type[ScriptRunner] = importlib.import_module(SCRIPT).ScriptRunner
                self._script = runner(config, parts, self._site, local)
                self._site.script = self._script.answer
        assert self._site is not None
        return self._site


def _is_masked(fl_ctx: FLContext) -> bool:
    """Whether the job's configuration at this site sends the answers to "weigh" through the filter that masks them."""
    app = fl_ctx.get_prop(FLContextKey.APP_ROOT)
    file = Path(app or ".") / "config" / "config_fed_client.json"
    if not app:  # outside a job nothing leaves
        return True
    chains = json.loads(file.read_text()).get("task_result_filters", []) if file.is_file() else []
    chains = [chain for chain in chains if "weigh" in chain["tasks"] and _is_out(chain)]
    own = f"{EgressFilter.__module__}.{EgressFilter.__qualname__}"
    return len(chains) == 1 and bool(chains[0]["filters"]) and chains[0]["filters"][-1].get("path") == own


def _is_out(chain: Mapping[str, Any]) -> bool:
    """Whether FLARE applies a chain of result filters at a site, where "out" is the default and case is ignored."""
    direction = chain.get("direction")
    return direction is None or str(direction).lower() in ("out", "inout")


def _resend_after(runner: Any, seconds: float) -> None:
    """Have a site's job ask, or send its answer, again when the server's reply is that late; FLARE waits 300 seconds.

    A reply that a broken connection has lost never comes. FLARE takes one value per job, and updates differ in size.
    """
    for name in ("get_task_timeout", "submit_task_result_timeout"):
        if hasattr(runner, name):
            setattr(runner, name, seconds)


def _append(path: Path, finding: object) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{finding}\n")


def _raise_if(over: bool) -> None:
    if over:
        raise Aborted


def _public_name(error: Exception) -> str:
    if isinstance(error, DataError):
        return f"DataError {error.code}"
    return "OutOfMemory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
