# SPDX-License-Identifier: Apache-2.0
"""A site whose work is a script of its own: FLARE's Client API runs it, and its answers are answers like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.core.errors import EgressRefused
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS
from fairflare.data.site_config import find_site_config
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import Parts
from fairflare.engine.site import Site
from fairflare.flare import script_side
from fairflare.flare.wire import answer_from_model, instruction_to_model
from fairflare.functional.group_rates import FAMILIES, NEGATIVES, POSITIVES, SEEN
from fairflare.tasks.own.script import Script, script_file


class ScriptFailed(Exception):
    """The script ended, raised or answered nothing; its traceback is in the site's own log."""


class ScriptRunner:
    """The thread in which ``site``'s script runs until the job ends; what leaves is still the site's to check."""

    def __init__(self, config: RunConfig, parts: Parts, site: Site, local: Path) -> None:
        task = parts.task
        assert isinstance(task, Script)
        path = script_file(task.module)
        self._site, self._min_count = site, site.min_count
        self._executor = _in_process(str(path))
        self._fl_ctx: FLContext | None = None
        self._abort = Signal()
        script_side.here = script_side.Here(
            site=site.name,
            folder=task.folder(site.name, find_site_config(local, site.name)),
            settings=dict(config.settings),
            training=dataclasses.asdict(config.training),
            groups=parts.grouping.names,
            min_count=site.min_count,
            threads=config.threads,
            wanted=parts.rule.wanted,
        )

    def use(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        """The context of the task that comes next; the first one starts the script."""
        if self._fl_ctx is None:
            self._executor.handle_event(EventType.START_RUN, fl_ctx)
        self._fl_ctx, self._abort = fl_ctx, abort_signal

    def end(self, fl_ctx: FLContext) -> None:
        """Ask the script to stop, and wait for it a while."""
        self._executor.handle_event(EventType.END_RUN, fl_ctx)

    def answer(self, instruction: Instruction) -> Answer:
        """What the script says; ScriptFailed: it says nothing; EgressRefused: numbers of a group that is too small."""
        asked = FLModelUtils.to_shareable(instruction_to_model(instruction))
        assert self._fl_ctx is not None  # ``use`` comes first
        found = self._executor.execute(instruction.task, asked, self._fl_ctx, self._abort)
        if found.get_return_code() not in (None, ReturnCode.OK):
            workspace: Any = self._fl_ctx.get_engine().get_workspace()
            log = workspace.get_app_error_log_file_path(self._fl_ctx.get_job_id())
            said = f"the script gave no answer to {instruction.task}: {found.get_return_code()}"
            raise ScriptFailed(f"{said}; its own traceback is in {log}")
        answer = answer_from_model(FLModelUtils.from_shareable(found), site=self._site.name)
        refuse_small_groups(answer.scalars, self._min_count, answer.n_examples)
        return answer if answer.update is not None else dataclasses.replace(answer, update_kind="diff")


def _in_process(path: str) -> Any:
    """The executor that runs a Client API script in a thread of the site's process, arrays as they are.

    2.9 has one executor for all ways to run a script; those before it one for each.
    """
    from nvflare.client.config import ExchangeFormat

    formats = {"params_exchange_format": ExchangeFormat.RAW, "server_expected_format": ExchangeFormat.RAW}
    try:
        from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
    except ImportError:
        from nvflare.app_common.executors.in_process_client_api_executor import InProcessClientAPIExecutor

        return InProcessClientAPIExecutor(task_script_path=path, **formats)
    return ClientAPIExecutor(ExecutionMode.IN_PROCESS, task_script_path=path, **formats)


def refuse_small_groups(scalars: Any, min_count: int | None, total: Any = None) -> None:
    """Raise EgressRefused where a script reports numbers of a group below ``min_count``, or of unknown size.

    Of FairFed's counts a group's positives and negatives each have to be so many, or none. Those in no group that it
    reports have to be so many, or none, too: how many these are follows from the total.

    Args:
        min_count: the site's minimum; None: no group's numbers leave.
        total: examples that the groups of a loss are of.
    """
    if not isinstance(scalars, dict):
        return
    for name in scalars:
        family, _, group = str(name).partition("/")
        if group and family in (GROUP_LOSS, GROUP_COUNT, *FAMILIES):
            kinds = (POSITIVES, NEGATIVES) if family in FAMILIES else (GROUP_COUNT,)
            counts = [scalars.get(f"{kind}/{group}") for kind in kinds]
            known = all(isinstance(count, (int, float)) for count in counts)
            if min_count is None or not known or not _enough(counts, min_count):
                raise EgressRefused(f"scalar {name}: of a group below min_count or of unknown size")
    for whole, families in ((total, (GROUP_COUNT,)), (scalars.get(SEEN), (POSITIVES, NEGATIVES))):
        sizes = [n for name, n in scalars.items() if str(name).partition("/")[0] in families and "/" in str(name)]
        rest = whole - sum(sizes) if sizes and isinstance(whole, (int, float)) else 0
        if 0 < rest < (min_count or 0):
            raise EgressRefused(f"scalar {families[0]}: leaves fewer examples than min_count in the other groups")


def _enough(counts: Sequence[Any], least: int) -> bool:
    """Whether each is at least ``least``, or none where there are two and the other is."""
    return max(counts) >= least and all(count >= least or count == 0 for count in counts)
