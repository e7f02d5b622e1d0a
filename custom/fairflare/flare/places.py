# SPDX-License-Identifier: Apache-2.0
"""Where a federation's state lies: outside the job's own folder, so that a new job can continue it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fairflare.user_code import vouch

RUN_FOLDER = "FAIRFLARE_RUN_FOLDER"
"""Environment variable that names the one folder of a simulated run, where server and sites keep their state."""
STATE = "fairflare_state"
"""Folder in a server's or a site's workspace with a folder per federation."""
SITES = "sites"
RESULT = "fairflare"
"""Folder in the server's job folder that comes back with a download."""


def is_named() -> bool:
    """Whether one folder is named for everything, as for a simulated run."""
    return bool(os.environ.get(RUN_FOLDER))


def federation_id(given: str, fl_ctx: FLContext) -> str:
    """The id that a configuration gives, or that of this job, which then is the federation's first."""
    return given or str(fl_ctx.get_job_id())


def server_folder(federation: str, fl_ctx: FLContext) -> Path:
    """Where the server keeps checkpoint, audit log and report."""
    return _state(federation, fl_ctx)


def memory_file(federation: str, fl_ctx: FLContext) -> Path:
    """Where a site keeps its memory."""
    return _state(federation, fl_ctx) / SITES / f"{fl_ctx.get_identity_name()}.pt"


def vouch_for_code(fl_ctx: FLContext) -> None:
    """Let a configuration name what lies in the job's ``app/custom`` or in the site's own ``local/custom``."""
    engine = fl_ctx.get_engine()
    if engine is None:  # outside a job nothing is vouched for
        return
    workspace = engine.get_workspace()
    vouch([Path(workspace.get_app_custom_dir(fl_ctx.get_job_id())), Path(workspace.get_site_custom_dir())])


def hand_over(folder: Path, run_dir: Path) -> None:
    """Copy what a download should bring from the server's state folder to the job's folder."""
    shutil.copytree(folder, run_dir / RESULT, ignore=shutil.ignore_patterns(SITES, ".*"), dirs_exist_ok=True)


def _state(federation: str, fl_ctx: FLContext) -> Path:
    if named := os.environ.get(RUN_FOLDER):
        return Path(named)
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / STATE / federation
