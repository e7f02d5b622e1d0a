# SPDX-License-Identifier: Apache-2.0
"""Folders of exported FLARE jobs: written whole or not at all, replaced only where all of it is an export's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from fairflare.app import console
from fairflare.app.folders import check_path, content
from fairflare.core.errors import UserError
from fairflare.core.validation import JOB_NAME, shown
from fairflare.engine.files import read_json
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.parts import build_parts
from fairflare.inference.atomic_output import replaced

T = TypeVar("T")
APPS = ("app_server", "app")
"""The server's app, in an export of this version and of the first."""
APP = r"app(_server|_sites)?"
CODE = rf"{APP}/custom/fairflare"
JOB_FILES = (
    rf"meta\.json|{APP}/MANIFEST\.json|{APP}/config/(config_fed_(server|client)\.json|initial\.(safetensors|pt))"
    rf"|{CODE}/.+\.(py|pyc|j2)|{CODE}/(py\.typed|left_out\.json|(datasets|papers)/data/[^/]+)"
)
"""What an export writes, below the job's folder."""


def export_job(
    config: RunConfig, out: Path, *, name: str | None, simulation: bool, force: bool, preinstalled: bool = False
) -> None:
    """Write the FLARE job folder ``out``; it appears whole or not at all."""
    from fairflare.flare.recipe import FairRecipe, job_name

    if name is not None and not JOB_NAME.fullmatch(name):
        raise UserError(f"--name: expected letters, digits, ., - and _, at most 64, got {shown(name)}")
    check_path(out)
    if config.init_from and (origin := build_parts(config).origin):
        for line in origin.lines():
            console.note(line)
    name = name or job_name(config)
    with replaced(out, lambda: _refuse_other_than_job(out, force), name) as folder, console.quiet_flare():
        FairRecipe(config, name=name, simulation=simulation, preinstalled=preinstalled).export(str(folder))


def _refuse_other_than_job(out: Path, force: bool) -> None:
    if not content(out):
        return
    if not force:
        raise UserError(f"--out {out}: exists; give another folder, or --force to replace it")
    if not is_job(out):
        raise UserError(f"--out {out}: holds no exported job of fairflare, so --force does not replace it")
    if alien := job_strangers(out):
        raise UserError(f"--out {out}: holds {alien[0]!r}, which is not fairflare's; nothing was changed")


def server_config(folder: Path) -> Path:
    """The server's configuration in a job's ``folder``."""
    found = [folder / app / "config" / "config_fed_server.json" for app in APPS]
    return next((path for path in found if path.is_file()), found[0])


def is_job(folder: Path) -> bool:
    """Whether ``folder`` holds an exported job."""
    server = server_config(folder)
    try:
        return (folder / "meta.json").is_file() and "fairflare.flare.controller" in json.dumps(read_json(server))
    except UserError:
        return False


def job_strangers(folder: Path) -> list[str]:
    """Names below the job's ``folder`` that its export has not written, sorted; UserError if it did not write this."""
    code = map(re.escape, _job_code(server_config(folder)))
    own = re.compile("|".join((JOB_FILES, *(rf"{APP}/custom/{name}(\.py|/.+)" for name in code))))
    files = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    names = {path: path.relative_to(folder).as_posix() for path in files}
    return [name for path, name in names.items() if path.is_symlink() or not own.fullmatch(name)]


def _job_code(path: Path) -> list[str]:
    """The names of the modules of the user's own that an exported job says that it brings."""
    found: list[str] = []
    for flow in _as(list, read_json(path).get("workflows"), path, "workflows"):
        arguments = _as(dict, _as(dict, flow, path, "a workflow").get("args"), path, "args")
        found += _as(dict, _as(dict, arguments.get("config"), path, "config").get("code"), path, "code")  # name -> hash
    return found


def _as(kind: type[T], value: Any, path: Path, key: str) -> T:
    """``value``, or an empty ``kind`` for None; raises UserError for another type than an export writes."""
    if value is not None and not isinstance(value, kind):
        raise UserError(f"{path}: {key}: expected a {kind.__name__}, got a {type(value).__name__}; nothing was changed")
    return kind() if value is None else value
