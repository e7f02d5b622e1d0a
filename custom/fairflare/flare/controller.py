# SPDX-License-Identifier: Apache-2.0
"""The server's side of a FLARE job: the federation loop over FLARE's tasks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from fairflare.assembly import build_federation, build_parts
from fairflare.config import RunConfig
from fairflare.errors import RunFailed
from fairflare.federation.loop import AUDIT
from fairflare.federation.messages import Answer, Instruction
from fairflare.flare.credentials import server_credentials
from fairflare.flare.places import federation_id, hand_over, is_named, server_folder, vouch_for_code
from fairflare.flare.wire import ERROR_HEADER, answer_from_model, instruction_to_model
from fairflare.privacy.schemes import NONE
from fairflare.report.log import RunLog
from fairflare.report.tensorboard import TensorBoard
from fairflare.report.write import write_report
from fairflare.versions import PACKAGE, all_versions

KNOCK = "preflight"
KNOCK_STANDS = 5
"""Checks of FLARE's tasks: a little longer than a site waits between two questions, so that it meets a knock."""


class FairController(ModelController):
    """Runs a ``Federation`` whose transport is FLARE.

    Its state lies in ``places.server_folder``, outside the job's folder, after every round; what there is in the end is
    copied to ``<job run dir>/fairflare``, which comes with the job's result. A job whose configuration names a
    federation continues that one.
    """

    def __init__(
        self,
        config: dict[str, Any],
        task_check_period: float = 0.5,
        env: str = "flare",
    ) -> None:
        """
        Args:
            config: a ``RunConfig`` as JSON.
            task_check_period: seconds between two looks at FLARE's tasks.
            env: named in the report, e.g. "sim".
        """
        # Errors of single sites are the quorum's business: FLARE's own tolerance counts them per send, and there is
        # one send per group of sites.
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=task_check_period)
        self.config = config
        self.task_check_period = task_check_period
        self.env = env
        self._inbox: list[Answer] = []

    def run(self) -> None:
        """The whole federation; a ``RunFailed`` ends the job with its reason."""
        vouch_for_code(self.fl_ctx)
        config = RunConfig.from_json(self.config)
        federation = federation_id(config.federation, self.fl_ctx)
        folder = server_folder(federation, self.fl_ctx)
        if config.federation and not (folder / AUDIT).is_file():
            raise RunFailed(f"federation {federation}: this server has no state of it to continue")
        if not config.federation and not is_named():
            shutil.rmtree(folder, ignore_errors=True)  # the simulator gives all its jobs one id
        folder.mkdir(parents=True, exist_ok=True)
        self.info(f"federation {federation}: {'continued' if (folder / AUDIT).is_file() else 'new'}")
        told = all_versions()
        self.info(f"fairflare {told['fairflare']}, {PACKAGE} {told[PACKAGE]}")
        parts = build_parts(config)
        board = TensorBoard(folder)
        try:
            own = None if config.secure_sum == NONE else server_credentials(self.fl_ctx)
            build_federation(config, parts, self, folder, self.env, [board, RunLog(folder)], own).run(parts.model)
        finally:
            board.close()
            if (folder / AUDIT).is_file():
                write_report(folder)
            if not is_named():
                hand_over(folder, Path(self.get_run_dir()))

    def sites(self) -> list[str]:
        """Names of the clients that FLARE counts as connected, sorted."""
        return sorted(_name(client) for client in self.engine.get_clients())

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One FLARE task per group of sites with the same orders; yields the answers once all tasks are done.

        A knock beside other tasks is not waited for; what comes later is dropped by FLARE with its task.
        """
        self._inbox = []
        awaited = {site for site, one in instructions.items() if one.task != KNOCK}
        knocking = 0 < len(awaited) < len(instructions)
        for instruction, targets in _groups(instructions):
            self.broadcast_model(
                data=instruction_to_model(instruction),
                task_name=instruction.task,
                targets=targets,
                timeout=int(self.config["task_timeout"]),
                blocking=False,
                callback=self._receive,
            )
        checks = 0
        while self.get_num_standing_tasks() and not (knocking and checks >= KNOCK_STANDS and self._heard(awaited)):
            if self.abort_signal.triggered:
                raise RunFailed("the job was aborted")
            time.sleep(self.task_check_period)
            checks += 1
        if knocking:
            self._end_knocks()
        yield from self._inbox

    def _heard(self, awaited: set[str]) -> bool:
        return awaited <= {answer.site for answer in self._inbox}

    def _end_knocks(self) -> None:
        """Nothing of this exchange stands when the next one begins."""
        self.cancel_all_tasks()
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            time.sleep(self.task_check_period)

    def _receive(self, model: FLModel) -> bool:
        self._inbox.append(answer_from_model(model))
        return True

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        code = client_task.result.get_return_code()
        if code and code != ReturnCode.OK:
            cause = client_task.result.get_header(ERROR_HEADER, "")
            self._inbox.append(Answer(site=client_task.client.name, error=f"{code} {cause}".strip()))
        super()._process_result(client_task, fl_ctx)
        if not any(answer.site == client_task.client.name for answer in self._inbox):
            # FLARE drops a result that it cannot convert with no more than a warning.
            self._inbox.append(Answer(site=client_task.client.name, error="unreadable answer"))


def _groups(instructions: Mapping[str, Instruction]) -> Iterator[tuple[Instruction, list[str]]]:
    """Sites that are told the same share one broadcast; FLARE cannot give one task's targets different data."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for site in sorted(instructions):
        one = instructions[site]
        same = (one.task, one.round, id(one.model), tuple(sorted(one.orders.items())))
        told = (*same, id(one.sealed) if one.sealed else None)
        groups.setdefault(told, []).append(site)
    for sites in groups.values():
        yield instructions[sites[0]], sites


def _name(client: Client | str) -> str:
    return client.name if isinstance(client, Client) else str(client)
