# SPDX-License-Identifier: Apache-2.0
"""``fairflare preflight``: a site's configuration and the options of a task, put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.build import tasks
from fairflare.build.method_parts import default_parts
from fairflare.clinic.base import Task
from fairflare.clinic.preflight import preflight
from fairflare.clinic.site_config import SiteConfig, read_site_config
from fairflare.clinic.tensors import TensorData
from fairflare.core.errors import UserError
from fairflare.core.execution import Execution, default_device, memory_findings
from fairflare.core.findings import Finding, packed, unpacked
from fairflare.core.types import Need


def check_site(
    site_config: Path,
    task: str,
    classes: str | None,
    values: Mapping[str, Any],
    site: str | None = None,
    method: str | None = None,
    accepted: Collection[str] = (),
) -> list[Finding]:
    """Findings on the data of the site whose configuration is in ``site_config``, and whether its GPU holds a batch.

    Args:
        site_config: the file.
        task: "classification", "segmentation", "tabular" or another task that reads files, as "name" or "name:preset".
        classes: number or names of the classes or structures of the first three.
        values: options of the task, and "group_by".
        site: its name in the task; the file's when None.
        method: id of the method that the data are for; None: whatever only some methods need is a warning.
        accepted: codes of errors that stop nothing.

    Raises:
        UserError: the configuration or an option cannot be read; whatever is wrong with the data is a finding.
    """
    if classes is not None and "labels" in values:
        raise UserError("--classes: is what --set labels=... says as well; expected one of them")
    own = read_site_config(site_config)
    options = {key: value for key, value in values.items() if key != "group_by"}
    name, _, preset = task.partition(":")
    built = tasks.load(name, preset or None, **options, **({"labels": classes} if classes else {}))
    if not own.data_root and not getattr(built, "build_data", ""):
        raise UserError(f"site configuration {site_config.name}: expected data_root, got none")
    grouping = built.grouping(str(values.get("group_by", built.default_grouping)))
    needs = needs_of(method) if method else ()
    found, data = preflight(built, site or site_config.stem, own, grouping, own.min_count, needs, accepted)
    if data is not None:
        batch_size = own.batch_size or built.presets[preset or next(iter(built.presets))].training.batch_size
        found += _of_gpu(built, data, own, batch_size)
    return found


def needs_of(method: str) -> tuple[Need, ...]:
    """What a method with its default parameters needs of a site's data; UserError where there is no such method."""
    made = default_parts(method)
    parts: tuple[Any, ...] = (made.rule, made.trainer, *made.probes)
    return tuple(need for part in parts for need in part.needs)


def leaving(site_config: Path, found: Sequence[Finding]) -> list[dict[str, str]]:
    """What of the findings leaves the site whose configuration is in ``site_config``, and no more."""
    return [finding.public for finding in unpacked(packed(found, read_site_config(site_config).min_count))]


def _of_gpu(task: Task, data: TensorData, own: SiteConfig, batch_size: int) -> list[Finding]:
    execution = Execution(default_device(own.gpu), "auto")
    if not execution.on_gpu:
        return []
    network = task.network()
    execution.place(network)
    batch = next(iter(data.on(execution.device).training(batch_size, 0)))
    objective = task.objective(data.class_counts.to(execution.device), 0.0)
    return memory_findings(execution, network, batch, objective)
