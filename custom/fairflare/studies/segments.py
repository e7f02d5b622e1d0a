# SPDX-License-Identifier: Apache-2.0
"""The next segment of a federation: another job with its sites, rounds and settings, which goes on from the last."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.findings import accepted_codes
from fairflare.core.validation import parsed, unlisted
from fairflare.engine import audit
from fairflare.engine.files import AUDIT, CONFIG, read_json
from fairflare.engine.setup.run_config import CHANGES, MEMBERS, RunConfig
from fairflare.studies.folders import require_run


def next_segment(folder: Path, rounds: int | None, values: Mapping[str, Any]) -> RunConfig:
    """The configuration of the run in ``folder``, with what its next segment has otherwise.

    Args:
        rounds: the last one's number, counted from the federation's first; None: as before.
        values: ``--set`` pairs of ``CHANGES`` and of the task's ``MEMBERS``.

    Returns:
        It names the federation if the run took place on deployed sites.

    Raises:
        UserError: there is no run, another key is given, or the values do not fit.
    """
    require_run(folder)
    described = read_json(folder / CONFIG)
    before = RunConfig.from_json(described)
    given = {key.removeprefix("run.").removeprefix("task."): value for key, value in values.items() if value != ""}
    for key in given:
        if key not in (*CHANGES, *MEMBERS):
            raise UserError(f"--set: {unlisted('setting that a segment may change', key, [*CHANGES, *MEMBERS])}")
    options = {**before.options, **{key: given.pop(key) for key in MEMBERS if key in given}}
    if "clients" in given:
        given["clients"] = [name.strip() for name in given["clients"].split(",")]
    if "accept" in given:
        given["accept"] = accepted_codes(given["accept"])
    if described.get("env") == "flare":
        given.setdefault("federation", audit.first_entry(folder / AUDIT).get("federation", ""))
    training = before.training if rounds is None else dataclasses.replace(before.training, rounds=rounds)
    changed = {key: parsed(RunConfig, key, value) for key, value in given.items()}
    return dataclasses.replace(before, options=options, training=training, **changed)
