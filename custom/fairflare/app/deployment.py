# SPDX-License-Identifier: Apache-2.0
"""Runs on a federation that is up, as the command line makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from fairflare.app import display
from fairflare.app.display import err
from fairflare.app.folders import fresh_folder
from fairflare.app.runs import cautions
from fairflare.core.errors import RunFailed
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.config_checks import refuse_pooling
from fairflare.engine.setup.parts import build_parts
from fairflare.report.write import REPORT, verify_run


def execute_deployed(
    config: RunConfig,
    folder: Path,
    *,
    env: str,
    kit: Path | None,
    timeout: float,
    preinstalled: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Run ``config`` on a POC or a provisioned federation and return the content of ``report.json``.

    Args:
        config: the run; the data are at the sites, so that only they can say what is wrong with them.
        folder: created; refused when it exists, unless ``force`` and it holds an earlier run.
        env: "poc" or "prod".
        kit: startup kit of the user who submits; for a POC its project admin's by default.
        timeout: seconds until the job must be over.
        preinstalled: the job brings no code.
        force: see ``folder``.

    Raises:
        UserError: no such kit, no such sites, or the server refuses user or job.
        RunFailed: the server cannot be reached, or the job failed; its text is the server's reason.
    """
    from fairflare.flare.deploy import find_kit, run_deployed

    find_kit(env, kit)
    parts = build_parts(config)
    refuse_pooling(parts.selector, f"--env {env}")
    for caution in cautions(config, parts):
        display.note(caution)
    with fresh_folder(folder, force):
        run_deployed(config, folder, env, kit, timeout=timeout, preinstalled=preinstalled, watch=_tell)
        verify_run(folder)
        if not (folder / REPORT).is_file():
            raise RunFailed(f"the job came back without {REPORT}; `fairflare report {folder}` writes it")
    return json.loads((folder / REPORT).read_text())


def _tell(text: str) -> None:
    """A remark in one line, however long: it may hold a command."""
    err.print(escape(text), soft_wrap=True)
