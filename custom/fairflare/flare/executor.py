# SPDX-License-Identifier: Apache-2.0
"""A site's side of a FLARE job: hands each task to a ``Site`` and turns every error into a return code.

``Heads`` keeps what a site knows of the audit log: the signed heads that it saw, and what it signed itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from fairflare.core.errors import DataError
from fairflare.core.manifest import PACKAGE, all_versions
from fairflare.core.processes import end_with_command
from fairflare.core.schema import Answer, Instruction, TaskName, audited
from fairflare.core.seeds import forget_seeds
from fairflare.engine.files import LOCAL_FINDINGS, LOCAL_LOG
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import claimed
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.site_parts import site_parts
from fairflare.engine.site import Site
from fairflare.flare.credentials import OF_CLIENT, Certificate, log_signer, site_credentials
from fairflare.flare.egress import JOIN, MASK, PHASE, SIGN, EgressFilter
from fairflare.flare.paths import federation_id, is_named, job_config, memory_file, vouch_for_code
from fairflare.flare.wire import (
    ERROR_HEADER,
    VALIDATE,
    answer_to_shareable,
    instruction_from_shareable,
    validation_answer,
    validation_from_shareable,
)
from fairflare.privacy.secure_sums import NONE
from fairflare.privacy.statements import LAST, SIGNED, answer_bytes, head_bytes, numbers_hash

if TYPE_CHECKING:
    from fairflare.flare.script import ScriptRunner


ENDING = ".heads.jsonl"


class Heads:
    """One site's file of one federation, made with the first head; nothing is ever taken out of it.

    ``identity``: the site's own certificate and key, and the root.
    """

    def __init__(self, path: Path, site: str, identity: Certificate) -> None:
        self._path, self._site, self._identity = path, site, identity
        self._asked: tuple[str, int, str] | None = None

    def receive(self, instruction: Instruction) -> None:
        """Keep the head that came with a question.

        Raises:
            DataError: "head"; the federation's server has not signed it.
        """
        head: Mapping[str, Any] = instruction.log
        self._asked = None
        if not head:
            return
        try:
            plain = {name: str(head[name]) for name in ("log", "hash", "certificate", "signature")}
            kept = {**plain, "seq": int(head["seq"])}
            signed = self._identity.is_server(head_bytes(kept), plain)
        except (KeyError, TypeError, ValueError):
            signed = False
        if not signed:
            raise DataError("head", "the head of the log is not signed by this federation's server")
        task = LAST if head.get(LAST) else instruction.task
        self._append({"head": kept, "task": task, "round": instruction.round.number})
        if task in (*SIGNED, LAST):
            self._asked = task, instruction.round.number, plain["hash"]

    def sign(self, answer: Answer) -> dict[str, str]:
        """What goes with the answer, as it leaves, to the question received last; nothing where that had no head."""
        if self._asked is None:
            return {}
        told = json.loads(json.dumps(audited(vars(answer)), default=_plain))
        update = "" if answer.update is None else model_hash(answer.update)
        numbers = numbers_hash(told)
        proof = self._identity.sign(answer_bytes(self._site, *self._asked, update, numbers))
        task, round, head = self._asked
        said = {"site": self._site, "task": task, "round": round, "head": head, "update": update, "numbers": numbers}
        self._append({"signed": {**said, **proof}, "told": told})
        return {"numbers": numbers, **proof}

    def _append(self, line: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else float(value)


TASKS = [*get_args(TaskName), VALIDATE]
"""FLARE's "submit_model" is not among them: a site's own model never leaves it."""

SCRIPT = "fairflare.flare.script"
"""What runs a site's own script: imported by name, for only a job whose task is a script carries it."""
PERIOD = 1.0
"""Seconds between two questions at first."""
SHARE = 60.0
"""Of the time that a site has worked, one part in so many passes between two questions, where that is longer: 400 sites
with hours of work ask their server a few times a minute."""
PATIENCE = 5.0
"""Seconds that an answer may take; without one the task is taken to stand."""


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

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """When the job ends, stop the site's script and give its memory free for the next job."""
        if event_type == EventType.END_RUN:
            if self._script is not None:
                self._script.end(fl_ctx)
            self._claim.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do one task. Only an error's type leaves the site: its text may hold a path or a patient's id."""
        if task_name not in TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            site = self._ready(fl_ctx)
            if self._script is not None:
                self._script.use(fl_ctx, abort_signal)
            foreign = task_name == VALIDATE
            read = validation_from_shareable if foreign else partial(instruction_from_shareable, task_name)
            answer = self._watched(site, read(shareable), fl_ctx, abort_signal)
            if answer.error:
                self.log_error(fl_ctx, f"task {task_name}: {answer.error}")
                return make_reply(ReturnCode.EXECUTION_EXCEPTION, {ERROR_HEADER: answer.error})
            return answer_to_shareable(validation_answer(answer) if foreign else answer)
        except Aborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            self._log_here(task_name, error, fl_ctx)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {ERROR_HEADER: _public_name(error)})
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
        with TaskWatch(fl_ctx) as watch:
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
        fl_ctx.set_prop(PHASE, instruction.phase, private=True, sticky=False)
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
        self.log_error(fl_ctx, f"task {task_name} failed with {_public_name(error)}; see {LOCAL_LOG} at this site")

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
            memory = memory_file(config.federation, config.sha256(), fl_ctx)
            self._claim.close()  # of an attempt before that failed
            self._claim.enter_context(claimed(memory))
            local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
            findings = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT) or ".") / LOCAL_FINDINGS
            findings.unlink(missing_ok=True)
            name, tell = fl_ctx.get_identity_name(), partial(_append, findings)
            own = None if config.secure_sum == NONE else site_credentials(fl_ctx)
            ledger = (memory.parent if is_named() else memory.parents[2]) / name
            if (signer := log_signer(fl_ctx, OF_CLIENT)) is not None:
                self._heads = Heads(memory.parent / f"{name}{ENDING}", name, signer)
            if config.join:
                phases: Any = importlib.import_module(JOIN).Phases(config, name, memory, local, tell, own, ledger)
                self._claim.callback(phases.close)
                self._site = phases
                return phases
            parts = site_parts(config)
            self._site = build_site(config, parts, name, memory, local, tell, own, ledger)
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


class TaskWatch:
    """Asks FLARE's server, in a thread, whether it still waits for the task: a round may have ended without the site.

    It asks what FLARE's client asks before it sends a result. The site's work looks at ``gone`` and never waits.
    """

    def __init__(self, fl_ctx: FLContext, clock: Callable[[], float] = time.monotonic) -> None:
        self.gone = False
        self._task = fl_ctx.get_prop(ReservedKey.TASK_ID)
        self._engine: Any = fl_ctx.get_engine()
        self._clock, self._left = clock, threading.Event()

    def __enter__(self) -> TaskWatch:
        if self._task:
            threading.Thread(target=self._watch, name="fairflare-task-watch", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()

    def ask(self) -> bool:
        """Whether the task is gone, asked now; False where the server does not answer."""
        if self._task and not self.gone:
            self.gone = self._is_unknown()
        return self.gone

    def _watch(self) -> None:
        started = self._clock()
        while not self._left.wait(max(PERIOD, (self._clock() - started) / SHARE)):
            if self.ask():
                return

    def _is_unknown(self) -> bool:
        request = Shareable()
        request.set_header(ReservedKey.TASK_ID, self._task)
        with self._engine.new_context() as fl_ctx:
            replies = self._engine.send_aux_request(
                targets=[FQCN.ROOT_SERVER],
                topic=ReservedTopic.TASK_CHECK,
                request=request,
                timeout=PATIENCE,
                fl_ctx=fl_ctx,
                optional=True,
            )
        reply = (replies or {}).get(FQCN.ROOT_SERVER)
        return isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.TASK_UNKNOWN
