# SPDX-License-Identifier: Apache-2.0
"""A site's fingerprint as a file, and the plan that several of them lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.data.site_config import read_site_config
from fairflare.engine.setup import tasks
from fairflare.engine.setup.plans import FORMAT, Plan, plan_for, plan_of, read_fingerprint
from fairflare.engine.state import save_json
from fairflare.tasks.fingerprint import Fingerprint, file_name, fingerprint
from fairflare.tasks.kinds.own import OwnData


def write_fingerprint(
    site_config: Path, kind: str, classes: str, values: Mapping[str, Any], site: str | None, out: Path | None
) -> Path:
    """Write the fingerprint of the site whose configuration is in ``site_config``; returns the file.

    Raises:
        UserError: the configuration, an option or the data cannot be read.
    """
    own, name = read_site_config(site_config), site or site_config.stem
    task = tasks.load(kind, None, **{**values, "labels": classes})
    assert isinstance(task, OwnData)  # as every kind is
    found = fingerprint(task, name, own, own.min_count)
    if found is None:
        raise UserError(f"site {name}: its data cannot be read; `fairflare preflight` says why")
    path = out or Path(file_name(name))
    save_json(path, {"format": FORMAT, "kind": kind, "site": name, "fingerprint": found.to_json()})
    return path


def plan_of_folder(sources: Sequence[Path], task: str, values: Mapping[str, Any]) -> Plan:
    """The plan for the data of a folder with every site's list; UserError where nothing can be read."""
    if len(sources) > 1:
        raise UserError(f"plan: expected one folder, or files of `fairflare fingerprint`, got {len(sources)}")
    found = plan_for(task.partition(":")[0], values)
    if not found.choices:
        raise UserError(f"{sources[0]}: no site's data can be read; `fairflare preflight` says why")
    return found


def plan_of_files(sources: Sequence[Path]) -> Plan:
    """The plan for the sites whose fingerprints are in files; UserError for one that is none, twins and other kinds."""
    prints: dict[str, Fingerprint] = {}
    kinds = set()
    for path in sources:
        kind, site, found = read_fingerprint(path)
        kinds.add(kind)
        if site in prints:
            raise UserError(f"{path.name}: is a second fingerprint of site {site}")
        prints[site] = found
    if len(kinds) > 1:
        raise UserError(f"plan: expected fingerprints of one kind of data, got {' and '.join(sorted(kinds))}")
    return plan_of(kinds.pop(), prints)
