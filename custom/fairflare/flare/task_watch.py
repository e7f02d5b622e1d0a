# SPDX-License-Identifier: Apache-2.0
"""Whether the server still waits for the task that a site is at work on: a round may have ended without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from nvflare.apis.fl_constant import ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.fqcn import FQCN

PERIOD = 1.0
"""Seconds between two questions at first."""
SHARE = 60.0
"""Of the time that a site has worked, one part in so many passes between two questions, where that is longer: 400 sites
with hours of work ask their server a few times a minute."""
PATIENCE = 5.0
"""Seconds that an answer may take; without one the task is taken to stand."""


class TaskWatch:
    """Asks FLARE's server about a task, in a thread, from entering to leaving.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
