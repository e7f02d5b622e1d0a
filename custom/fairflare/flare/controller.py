# SPDX-License-Identifier: Apache-2.0
"""The server's side of a FLARE job: the federation loop over FLARE's tasks."""

from __future__ import annotations

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
from fairflare.federation.messages import Answer, Instruction
from fairflare.flare.wire import ERROR_HEADER, answer_from_model, instruction_to_model
from fairflare.report.log import RunLog
from fairflare.report.tensorboard import TensorBoard
from fairflare.report.write import write_report

RUN_FOLDER = "fairflare"


class FairController(ModelController):
    """Runs a ``Federation`` whose transport is FLARE; leaves the run folder in ``<job run dir>/fairflare``."""

    def __init__(
        self,
        config: dict[str, Any],
        task_timeout: int = 3600,
        task_check_period: float = 0.5,
        env: str = "flare",
    ) -> None:
        """
        Args:
            config: a ``RunConfig`` as JSON.
            task_timeout: seconds that sites have for one task; a site that takes longer is left out of that round.
            task_check_period: seconds between two looks at FLARE's tasks.
            env: named in the report, e.g. "sim".
        """
        # Errors of single sites are the quorum's business: FLARE's own tolerance counts them per send, and there is
        # one send per group of sites.
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=task_check_period)
        self.config = config
        self.task_timeout = task_timeout
        self.task_check_period = task_check_period
        self.env = env
        self._inbox: list[Answer] = []

    def run(self) -> None:
        """The whole federation; a ``RunFailed`` ends the job with its reason."""
        config = RunConfig.from_json(self.config)
        folder = Path(self.get_run_dir()) / RUN_FOLDER
        folder.mkdir(exist_ok=True)
        parts = build_parts(config)
        board = TensorBoard(folder)
        try:
            build_federation(config, parts, self, folder, self.env, [board, RunLog(folder)]).run(parts.model)
        except RunFailed:
            write_report(folder)
            raise
        finally:
            board.close()
        write_report(folder)

    def sites(self) -> list[str]:
        """Names of the clients that FLARE counts as connected, sorted."""
        return sorted(_name(client) for client in self.engine.get_clients())

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One FLARE task per group of sites with the same orders; yields the answers once all tasks are done."""
        self._inbox = []
        for instruction, targets in _groups(instructions):
            self.broadcast_model(
                data=instruction_to_model(instruction),
                task_name=instruction.task,
                targets=targets,
                timeout=self.task_timeout,
                blocking=False,
                callback=self._receive,
            )
        while self.get_num_standing_tasks():
            if self.abort_signal.triggered:
                raise RunFailed("the job was aborted")
            time.sleep(self.task_check_period)
        yield from self._inbox

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
        groups.setdefault((one.task, one.round, id(one.model), tuple(sorted(one.orders.items()))), []).append(site)
    for sites in groups.values():
        yield instructions[sites[0]], sites


def _name(client: Client | str) -> str:
    return client.name if isinstance(client, Client) else str(client)
