# SPDX-License-Identifier: Apache-2.0
"""Why a job failed, in its meta data, where ``nvflare job meta`` and FLARE's console show it."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.widgets.widget import Widget

from fairflare.flare.kit_dates import out_of_date

ENDING = ".fairflare_reason"
LONGEST, LONGEST_SHOWN = 2000, 400
"""Characters of a reason, and of its beginning in a table."""
REASON, SHOWN = "reason", JobMetaKey.JOB_DEPLOY_DETAIL.value
"""A row, and the one list of a job's meta data whose rows FLARE's command shows whatever they are."""
TRACEBACKS = "fairflare_errors.txt"
WORDLESS = (
    "the server's process of this job ended without a word: its code was not found, it was killed, or memory ran out"
)


class JobReason(Widget):
    """A component of a server's ``local/resources.json``: adds the reason to the meta data of a failed job.

    FLARE's server knows no more of a job than that it ended with an exception, and the job's process cannot write its
    meta data. The text is the controller's own: codes, and names of sites.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Once a job has ended, take up what its process has left; at the start look at the kit's certificates."""
        if event_type == EventType.SYSTEM_START:
            if problem := out_of_date(Path(fl_ctx.get_engine().get_workspace().get_root_dir())):
                self.log_error(fl_ctx, problem)
            return
        if event_type != EventType.JOB_COMPLETED:
            return
        jobs = fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER)
        job = fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID)
        note = _note(fl_ctx, job)
        reason = note.read_text(encoding="utf-8") if note.is_file() else ""
        note.unlink(missing_ok=True)
        meta = jobs.get_job(job, fl_ctx).meta
        if not reason and meta.get("status") == RunStatus.FINISHED_EXECUTION_EXCEPTION:
            reason = WORDLESS
        if reason:
            text = with_place(reason, job)
            shown = [*(meta.get(SHOWN) or ()), f"{REASON}: {text[:LONGEST_SHOWN]}"]
            jobs.update_meta(job, {"fairflare_reason": text, SHOWN: shown}, fl_ctx)


def with_place(reason: str, job: object) -> str:
    """``reason`` with where to read more: the file at the site whose task failed, or the log that a download brings."""
    at_site = f"traceback in {job}/app_SITE/{TRACEBACKS} of that site's kit"
    return f"{reason}; {at_site if 'site_error' in reason else f'log: nvflare job download {job}'}"


def leave_reason(fl_ctx: FLContext) -> None:
    """Note in the job's process why it is given up, for the server's."""
    reason = str(fl_ctx.get_prop(FLContextKey.EVENT_DATA) or "").removeprefix("Exception in model controller run: ")
    _note(fl_ctx, fl_ctx.get_job_id()).write_text(reason[:LONGEST], encoding="utf-8")


def _note(fl_ctx: FLContext, job: object) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / f"{job}{ENDING}"
