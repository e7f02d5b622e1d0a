# SPDX-License-Identifier: Apache-2.0
"""Why a job failed, in its meta data, where ``nvflare job meta`` and FLARE's console show it."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.widgets.widget import Widget

ENDING = ".fairflare_reason"
LONGEST = 2000


class JobReason(Widget):
    """A component of a server's ``local/resources.json``: adds "fairflare_reason" to the meta data of a failed job.

    FLARE's server knows no more of a job than that it ended with an exception, and the job's process cannot write its
    meta data. The text is the controller's own: codes, and names of sites.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Once a job has ended, take up what its process has left."""
        if event_type != EventType.JOB_COMPLETED:
            return
        engine, job = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID)
        note = _note(fl_ctx, job)
        if note.is_file():
            meta = {"fairflare_reason": note.read_text(encoding="utf-8")}
            engine.get_component(SystemComponents.JOB_MANAGER).update_meta(job, meta, fl_ctx)
            note.unlink()


def leave_reason(fl_ctx: FLContext) -> None:
    """Note in the job's process why it is given up, for the server's."""
    reason = str(fl_ctx.get_prop(FLContextKey.EVENT_DATA) or "")
    _note(fl_ctx, fl_ctx.get_job_id()).write_text(reason[:LONGEST], encoding="utf-8")


def _note(fl_ctx: FLContext, job: object) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / f"{job}{ENDING}"
