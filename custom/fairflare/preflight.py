# SPDX-License-Identifier: Apache-2.0
"""``fairflare preflight``: a site's configuration and the options of a task, put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.clinic import tasks
from fairflare.clinic.preflight import preflight
from fairflare.errors import UserError
from fairflare.findings import Finding
from fairflare.site_config import read_site_config


def check_site(site_config: Path, kind: str, classes: str | None, values: Mapping[str, Any]) -> list[Finding]:
    """Findings on the data of the site whose configuration is in ``site_config``.

    Args:
        site_config: the file.
        kind: "classification", "segmentation" or "tabular".
        classes: number or names of the classes or structures.
        values: options of the task, and "group_by".

    Raises:
        UserError: the configuration or an option cannot be read; whatever is wrong with the data is a finding.
    """
    own = read_site_config(site_config)
    options = {key: value for key, value in values.items() if key != "group_by"}
    task = tasks.load(kind, **options, **({"labels": classes} if classes else {}))
    if not own.data_root:
        raise UserError(f"site configuration {site_config.name}: expected data_root, got none")
    grouping = task.grouping(str(values.get("group_by", task.default_grouping)))
    return preflight(task, site_config.stem, own, grouping, own.min_count)[0]
