# SPDX-License-Identifier: Apache-2.0
"""The server's side of a FLARE job: the federation loop over FLARE's tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import cleanup_memory
from nvflare.widgets.info_collector import InfoCollector
from safetensors import SafetensorError, safe_open

from fairflare.core.errors import RunFailed
from fairflare.core.execution import give_back_freed_memory
from fairflare.core.manifest import PACKAGE, all_versions
from fairflare.core.processes import end_with_command
from fairflare.core.schema import Answer, Instruction, answer_fields, instruction_fields
from fairflare.core.tensor_files import Stored, file_types
from fairflare.core.validation import expected
from fairflare.engine.files import AUDIT, START
from fairflare.engine.loop import Observer
from fairflare.engine.setup.assembly import build_federation, site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.weights import find
from fairflare.engine.straggler_policy import EarlyEnd, Ending
from fairflare.flare import paths, server_state
from fairflare.flare.compat import ENABLE, ROOT, LazyRef, excuse_sites, signs_of_life
from fairflare.flare.credentials import OF_SERVER, log_signer, server_credentials
from fairflare.flare.job_reason import leave_reason
from fairflare.flare.tracking import Tracking
from fairflare.flare.wire import ERROR_HEADER, answer_from_model, instruction_to_model
from fairflare.privacy.schemes import NONE
from fairflare.report.audit_reader import RunLog
from fairflare.report.tensorboard import TensorBoard
from fairflare.report.write import write_report

ENVS = ("flare", "sim")
"""Where a job may say that it runs."""
INVITATION = "preflight"
LARGE = 1 << 26
"""Bytes of an exchange's models from which on memory is given back after it, which costs a tenth of a second."""
INVITATION_STANDS = 5
"""Checks of FLARE's tasks, a little longer than a site waits between two questions: an absent site meets the task."""
LEAST_STANDS = 1.0
"""Seconds that an invitation stands at least: the simulator's server looks more often than its sites ask."""


class Began:
    """Whether this job has written to the audit log, ``logged``: then the folder is that of its own run."""

    logged = False

    def saw(self, entry: Mapping[str, Any]) -> None:
        self.logged = True


class SentTasks(list[ClientTask]):
    """A task's sites, each once; FLARE adds one again that asked again (a lost reply) while another group's task stood.

    It would forget such a site twice: the thread that ends tasks would end itself, and no further round come to an end.
    """

    def append(self, one: ClientTask) -> None:
        if one not in self:
            super().append(one)


SILENT = 25.0
"""Seconds after which a site whose job says nothing is named: a job sends a sign of life every ten."""
PROGRESS = "fairflare"
"""The group of a job's statistics, and its one entry, that say how far a run is: "train, round 3 of 40"."""


class FairController(ModelController):
    """Runs a ``Federation`` whose transport is FLARE.

    Its state lies in ``paths.server_folder``, outside the job's folder, after every round; what there is in the end is
    copied to ``<job run dir>/fairflare``, which comes with the job's result. A job whose configuration names a
    federation continues that one.
    """

    def __init__(self, config: dict[str, Any], task_check_period: float | None = None, env: str = "") -> None:
        """``task_check_period``: seconds between two looks at FLARE's tasks, 0.5 by default; ``env``: "flare" or "sim".

        FLARE's export leaves out arguments at their defaults: no job has these.
        """
        # Errors of single sites are the quorum's business: FLARE's own tolerance counts them per send, and there is
        # one send per group of sites.
        self.task_check_period = 0.5 if task_check_period is None else task_check_period
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=self.task_check_period)
        self.config, self.env = config, env or ENVS[0]
        self._inbox: list[Answer] = []
        self._arrivals: Path | None = None  # where FLARE puts the tensors of answers
        self._until_end = contextlib.ExitStack()
        self._task_timeout = 0  # FLARE waits for ever; the checked configuration says for how long
        self._early_end = EarlyEnd()
        self._counts: Callable[[Answer], bool] = lambda answer: True
        self._begun = False
        self._at = "start"
        self._heard: dict[str, float] = {}
        self._silent: set[str] = set()
        self._asked: frozenset[str] = frozenset()  # of an evaluation; empty: everyone who is connected

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Tell whoever asks how far the run is, and leave word why it failed."""
        super().handle_event(event_type, fl_ctx)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            silent = ", ".join(sorted(self._silent))
            where = f"{self._at}; nothing is heard of {silent}" if silent else self._at
            fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR).set_info(PROGRESS, {PROGRESS: where})
        elif event_type == EventType.FATAL_SYSTEM_ERROR and not paths.is_named():
            leave_reason(fl_ctx)

    def set_communicator(self, communicator: Any) -> None:
        """As FLARE's; from now on it is noted when a site was last heard of."""
        super().set_communicator(communicator)
        self._heard = signs_of_life(communicator)

    def _name_silent(self, awaited: set[str]) -> None:
        """Name each site that is awaited and silent, and each that is back, once."""
        silent = {site for site in awaited if time.monotonic() - self._heard.get(site, math.inf) > SILENT}
        for site in sorted(silent - self._silent):
            self.warning(
                f"{site}: nothing heard of its job for {SILENT:g} seconds: its machine, its client or the way to it is "
                f"down; the {self._at} waits for it up to {self._task_timeout} seconds"
            )
        for site in sorted(awaited & self._silent - silent):
            self.info(f"{site}: heard of again")
        self._silent = silent

    def broadcast(self, task: Task, fl_ctx: FLContext, *others: Any, **options: Any) -> None:
        """As FLARE's; errors that come in place of a result are answers, too."""
        task.client_tasks = SentTasks()
        task.result_received_cb = partial(self._receive_result, task.result_received_cb)
        super().broadcast(task, fl_ctx, *others, **options)

    def run(self) -> None:
        """The whole federation; a ``RunFailed`` ends the job with its reason."""
        end_with_command()
        excuse_sites()
        period = self.task_check_period
        expected("task_check_period", type(period) in (int, float) and 0.001 <= period <= 60, "0.001..60", period)
        expected("env", self.env in ENVS, f"one of {', '.join(ENVS)}", self.env)
        paths.vouch_for_code(self.fl_ctx)
        config = paths.job_config(self.config, self.fl_ctx)
        self._task_timeout, self._early_end = config.task_timeout, EarlyEnd(config.min_responses, config.grace)
        federation = paths.federation_id(config.federation, self.fl_ctx)
        folder = paths.server_folder(federation, self.fl_ctx)
        if config.federation:
            server_state.refuse_foreign(federation, config.lineage(), self.fl_ctx)
        # The simulator gives all its jobs one id.
        with (
            server_state.claimed(folder, federation, fresh=not config.federation and not paths.is_named()),
            contextlib.ExitStack() as self._until_end,
        ):
            server_state.sign(folder, self.fl_ctx)
            self._run_in(folder, config, federation)

    def _run_in(self, folder: Path, config: RunConfig, federation: str) -> None:
        self.info(f"federation {federation}: {'continued' if (folder / AUDIT).is_file() else 'new'}")
        here = all_versions()
        self.info(f"fairflare {here['fairflare']}, {PACKAGE} {here[PACKAGE]}")
        app_config = Path(self.engine.get_workspace().get_app_config_dir(self.fl_ctx.get_job_id()))
        for place in (folder, app_config):  # a job may bring weights to start from
            find(config.init_from, place)
        if config.evaluation:  # of a federation whose other sites have trained the model
            self._asked = frozenset(site_names(config))
        start = app_config / START
        parts = build_parts(config, start=start if start.is_file() else None)
        for line in parts.origin.lines() if parts.origin else ():
            self.info(line)
        countersign: Callable[[], object] = dict  # nothing, unless the run comes to its end
        board, began = TensorBoard(folder, [note.to_json() for note in parts.rule.notes]), Began()
        try:
            keys = None if config.secure_sum == NONE else server_credentials(self.fl_ctx)
            tracking = Tracking(self.engine, config.method, parts.task.metric(parts.task.headline))
            observers: list[Observer] = [began, board, RunLog(folder), tracking]
            federation_loop = build_federation(config, parts, self, folder, self.env, observers, keys)
            initial = [parts.model]
            del parts  # the loop lets go of the initial model once there is another one
            federation_loop.header = {**federation_loop.header, "federation": federation}
            self._counts = lambda answer: federation_loop.counts(answer)
            federation_loop.signer = log_signer(self.fl_ctx, OF_SERVER)
            federation_loop.run(initial.pop())
            countersign = federation_loop.countersign
        finally:
            board.close()
            own = began.logged or not config.federation  # a federation that the loop has refused is not this job's
            if own and (folder / AUDIT).is_file():
                write_report(folder)
                with contextlib.suppress(RunFailed):  # aborted after all was done
                    countersign()
            if own and not paths.is_named():
                server_state.hand_over(folder, Path(self.get_run_dir()))

    def sites(self) -> list[str]:
        """Names of the clients that FLARE counts as connected, sorted; in an evaluation of those that it asks.

        A client that is connected through another one is none of them: FLARE gives its tasks to that one's job.

        Raises:
            RunFailed: there is such a client at the start of the run.
        """
        clients = self.engine.get_clients()
        child = next((client for client in clients if _parent(client)), None)
        if child is not None and not self._begun:
            raise RunFailed(
                f"site {child.name}: expected a connection to the server, also through a relay, got the parent "
                f"{_parent(child)}: FLARE's client hierarchy would never bring its answers here"
            )
        self._begun = True
        names = sorted(getattr(client, "name", client) for client in clients if not _parent(client))
        return [name for name in names if not self._asked or name in self._asked]

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One FLARE task per group of sites with the same orders; yields the answers once all tasks are done.

        A preflight of absent sites beside other tasks is not waited for, nor is a site that is late to train, alone too
        (``EarlyEnd``, over all groups); FLARE drops later answers with the task.
        """
        self._inbox = []
        if self._arrivals is None:
            self._arrivals = self._until_end.enter_context(offloaded(self.engine, Path(self.get_run_dir())))
        awaited = {site for site, one in instructions.items() if one.task != INVITATION}
        inviting = 0 < len(awaited) < len(instructions)
        rules = [self._early_end.of(one.task, one.round.total) for one in instructions.values()]
        rule = next((rule for rule in rules if rule.min_responses is not None), EarlyEnd())
        ending = Ending(rule, awaited, time.monotonic, self._counts)
        may_end = inviting or rule.min_responses is not None
        for instruction, targets in _groups(instructions):
            if instruction.task != INVITATION:
                self._at = f"{instruction.task}, round {instruction.round.number} of {instruction.round.total}"
            self.broadcast_model(
                data=instruction_to_model(instruction),
                task_name=instruction.task,
                targets=targets,
                timeout=self._task_timeout,
                blocking=False,
                callback=self._receive,
            )
        size = sum(value.nbytes for one in instructions.values() for value in one.model.values())
        checks, large = 0, size >= LARGE
        if large and not gc.get_freeze_count():
            gc.freeze()  # whatever is there by now stays; a collection then takes milliseconds
            give_back_freed_memory()
        least = max(INVITATION_STANDS, LEAST_STANDS / self.task_check_period) if inviting else 0
        while self.get_num_standing_tasks() and not (may_end and checks >= least and ending.is_reached(self._inbox)):
            if self.abort_signal.triggered:
                raise RunFailed("the job was aborted")
            time.sleep(self.task_check_period)
            checks += 1
            if self.env != "sim":
                self._name_silent(awaited - {answer.site for answer in self._inbox})
            if large:
                gc.collect()  # messages that have arrived wait in cycles of references, with all that they carried
        if may_end:  # nothing of this exchange stands when the next one begins
            self.cancel_all_tasks()
            while self.get_num_standing_tasks() and not self.abort_signal.triggered:
                time.sleep(self.task_check_period)
        if large:
            cleanup_memory()  # what the transport's threads have freed makes room for the next model
        yield from self._inbox

    def _receive(self, model: FLModel) -> bool:
        answer = answer_from_model(model)
        self._inbox.append(in_files(answer, self._arrivals) if self._arrivals else answer)
        return True

    def _receive_result(self, process: Callable[..., None], client_task: ClientTask, fl_ctx: FLContext) -> None:
        code = client_task.result.get_return_code()
        if code and code != ReturnCode.OK:
            cause = client_task.result.get_header(ERROR_HEADER, "")
            self._inbox.append(Answer(site=client_task.client.name, error=f"{code} {cause}".strip()))
        process(client_task=client_task, fl_ctx=fl_ctx)
        if not any(answer.site == client_task.client.name for answer in self._inbox):
            # FLARE drops a result that it cannot convert with no more than a warning.
            self._inbox.append(Answer(site=client_task.client.name, error="unreadable answer"))


def _groups(instructions: Mapping[str, Instruction]) -> Iterator[tuple[Instruction, list[str]]]:
    """Sites that are sent the same share one broadcast; FLARE cannot give one task's targets different data."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for site in sorted(instructions):
        one = instructions[site]
        found: list[Any] = []
        for name, spec in instruction_fields().items():
            value = getattr(one, name)
            if spec.kind in ("task", "round", "count"):
                found.append(value)
            elif spec.kind == "orders":
                found.append(tuple(sorted(value.items())))
            elif spec.kind == "tensors":
                found.append(tuple(sorted((key, id(tensor)) for key, tensor in value.items())))
            else:
                found.append(id(value) if value or spec.kind == "model" else None)
        groups.setdefault(tuple(found), []).append(site)
    for sites in groups.values():
        yield instructions[sites[0]], sites


def _parent(client: Client | str) -> str:
    """The client that another one is below in FLARE's client hierarchy; empty for none. Relays are no clients."""
    return str(client.get_fqsn() or "").rpartition(".")[0] if isinstance(client, Client) else ""


@contextlib.contextmanager
def offloaded(engine: Any, folder: Path) -> Iterator[Path]:
    """Have FLARE write the tensors that arrive below a new folder in ``folder``, which goes when this ends.

    The switch is two values in the FOBS context of the cell that receives results; the simulator has a second such
    cell.

    FLARE's own ``setup_tensor_disk_offload`` takes the system's temporary folder, which may lie in memory and is not
    cleared when a process is killed, and knows one cell.
    """
    root = Path(tempfile.mkdtemp(prefix="updates_", dir=folder))
    own = getattr(getattr(engine, "run_manager", None), "cell", None) or engine.get_cell()
    of_simulator = getattr(getattr(engine, "server", None), "job_cell", None)
    cells = [cell for cell in (own, of_simulator) if cell is not None]
    switch = (ENABLE, ROOT)
    before = [{key: cell.get_fobs_context().get(key) for key in switch} for cell in cells]
    try:
        for cell in cells:
            cell.update_fobs_context(dict(zip(switch, (True, str(root)))))
        yield root
    finally:
        for cell, values in zip(cells, before, strict=True):
            cell.update_fobs_context(values)
        shutil.rmtree(root, ignore_errors=True)


def in_files(answer: Answer, root: Path) -> Answer:
    """The answer with the tensors that FLARE has written below ``root`` as ``Stored``, none of them read.

    FLARE's own references know neither type nor shape. None stands in place of one that leads elsewhere or to no
    tensor, and the gate refuses that.
    """
    found: dict[str, Any] = {
        name: {key: _in_file(item, root) for key, item in value.items()}
        for name, spec in answer_fields().items()
        if spec.kind in ("update", "tensors") and isinstance(value := getattr(answer, name), Mapping)
    }
    return dataclasses.replace(answer, **found)


def _in_file(value: Any, root: Path) -> Any:
    if type(value) is not LazyRef:
        return value
    try:
        path = Path(value.file_path)
        if not path.resolve().is_relative_to(root.resolve()):
            raise ValueError("a file that the server did not write")
        with safe_open(path, framework="pt") as file:
            if list(file.keys()) != [value.key]:
                raise ValueError("not one tensor")
            about = file.get_slice(value.key)
            dtype, shape = file_types()[about.get_dtype()], tuple(about.get_shape())
        stored = Stored(path, 0, dtype, shape, owner=value)
        return dataclasses.replace(stored, offset=path.stat().st_size - stored.nbytes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None
