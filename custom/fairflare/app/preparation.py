# SPDX-License-Identifier: Apache-2.0
"""``fairflare prepare``: a task that reads images from disk, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.app.prepare import Progress, prepare
from fairflare.core.errors import UserError
from fairflare.datasets.kinds.on_disk import ImagesOnDisk
from fairflare.engine.setup import tasks


def prepare_dataset(
    dataset: str, source: Path, dest: Path, values: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Write the data set ``dataset`` ("name" or "name:preset") below ``source`` to ``dest``; see ``tasks.prepare``.

    Raises:
        UserError: no such data set, a bad option, missing files, or a folder that cannot be written.
    """
    name, _, preset = dataset.partition(":")
    known = [task for task, cls in tasks.every().items() if issubclass(cls, ImagesOnDisk)]
    if name not in known:
        raise UserError(f"prepare: expected one of {', '.join(known)}, got {name!r}")
    task = tasks.load(name, preset or None, **values)
    assert isinstance(task, ImagesOnDisk)
    return prepare(task, source, dest, progress)
