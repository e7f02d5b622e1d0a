# SPDX-License-Identifier: Apache-2.0
"""Where a federation's state lies: outside the job's own folder, so that a new job can continue it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey

from fairflare.core.errors import DataError, UserError
from fairflare.core.manifest import check_code
from fairflare.core.processes import RUN_FOLDER
from fairflare.core.user_code import vouch
from fairflare.core.validation import FEDERATION
from fairflare.engine.files import SUFFIX
from fairflare.engine.setup.run_config import RunConfig

STATE = "fairflare_state"
"""Folder in a server's or a site's workspace with a folder per federation."""
SITES = "sites"
OPTIONS = ("columns", "scaling", "loss", "inferer", "transforms", "train_transforms")
"""Of a task's options those that may be JSON; a network's class has a form that FLARE leaves alone."""
CODES = {"%": "%25", "{": "%7B", "}": "%7D"}
TEXTS = {code: text for text, code in CODES.items()}


def is_named() -> bool:
    """Whether one folder is named for everything, as for a simulated run."""
    return bool(os.environ.get(RUN_FOLDER))


def job_config(content: Mapping[str, Any], fl_ctx: FLContext) -> RunConfig:
    """A job's configuration, checked by ``RunConfig.from_json``; raises DataError "configuration".

    The job of a real federation names no folder of data: every site has its own.
    """
    try:
        config = RunConfig.from_json(unescaped(content))
    except UserError as error:
        raise DataError("configuration", str(error)) from None
    if config.options.get("datalists") and not (is_named() or fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False)):
        raise DataError("configuration", "datalists: expected none, a job names no folder of a site or server")
    return config


def federation_id(given: str, fl_ctx: FLContext) -> str:
    """The id that a configuration gives, or that of this job, which then is the federation's first."""
    return given or str(fl_ctx.get_job_id())


def server_folder(federation: str, fl_ctx: FLContext) -> Path:
    """Where the server keeps checkpoint, audit log and report; sites keep their memories below ``SITES``."""
    if named := os.environ.get(RUN_FOLDER):
        return Path(named)
    if not FEDERATION.fullmatch(federation):  # it becomes a folder's name
        raise UserError("federation: expected the id of a job")
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / STATE / federation


def submitter(fl_ctx: FLContext) -> str:
    """Who submitted this job, as FLARE's server knows it; empty in the simulator."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META, None)
    return str(meta.get(JobMetaKey.SUBMITTER_NAME.value) or "") if isinstance(meta, Mapping) else ""


def memory_file(federation: str, lineage: str, fl_ctx: FLContext) -> Path:
    """Where a site keeps its memory of a federation: one file per lineage of its jobs and submitter.

    Whatever federation a job of another configuration or user names, it neither reads this file nor is in its way.
    """
    folder, site = server_folder(federation, fl_ctx) / SITES, fl_ctx.get_identity_name()
    if is_named():  # the folder is one command's, which has compared its configuration
        return folder / f"{site}{SUFFIX}"
    owner = hashlib.sha256(json.dumps([lineage, submitter(fl_ctx)]).encode()).hexdigest()
    return folder / f"{site}.{owner[:32]}{SUFFIX}"


def vouch_for_code(fl_ctx: FLContext) -> None:
    """Let a configuration name what lies in ``local/custom`` or, as its manifest lists it, in the job's ``custom/``."""
    engine = fl_ctx.get_engine()
    if engine is None:  # outside a job nothing is vouched for
        return
    workspace = engine.get_workspace()
    custom = Path(workspace.get_app_custom_dir(fl_ctx.get_job_id()))
    check_code(custom.parent)
    vouch([custom, Path(workspace.get_site_custom_dir())])


def escaped(content: Mapping[str, Any]) -> dict[str, Any]:
    """A ``RunConfig`` as JSON, as a job carries it.

    FLARE would take braces for variables of its own. Columns, scaling and a bundle's parts are JSON: their braces
    stand as "%7B" and "%7D", and "%" as "%25".
    """
    return _changed(content, re.compile(r"[%{}]"), CODES)


def unescaped(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``escaped`` was given; anything that is no such configuration as it is."""
    return _changed(content, re.compile("|".join(TEXTS)), TEXTS) if isinstance(content, Mapping) else content


def _changed(content: Mapping[str, Any], pattern: re.Pattern[str], by: Mapping[str, str]) -> dict[str, Any]:
    options = content.get("options")
    if not isinstance(options, Mapping):
        return dict(content)
    texts = {key: options[key] for key in OPTIONS if isinstance(options.get(key), str)}
    changed = {key: pattern.sub(lambda found: by[found[0]], text) for key, text in texts.items()}
    return {**content, "options": {**options, **changed}}
