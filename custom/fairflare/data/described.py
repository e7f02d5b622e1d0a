# SPDX-License-Identifier: Apache-2.0
"""What a site keeps of its training inputs, for itself, so that new ones can be prepared and compared with them.

A table's medians, means and spreads; of images the spread of their mean intensity, the range of their edges and what
their pixels measure. It is written beside the site's memory and never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.files import FileSplit
from fairflare.data.tensors import TensorData, as_float

FORMAT = 1
MOST_IMAGES, MOST_FILES = 256, 64
"""Images whose intensities are looked at, and files whose headers are read: evenly spaced ones."""


def described(data: object) -> dict[str, Any]:
    """The training inputs of ``data`` as JSON; empty where there is nothing to say."""
    if not isinstance(data, TensorData):
        return {}
    if data.scaling is not None:
        return {"format": FORMAT, "kind": "table", "scaling": data.scaling.to_json()}
    train = data.splits["train"]
    rows = torch.linspace(0, len(train) - 1, min(len(train), MOST_IMAGES)).round().long()
    means = []
    for inputs, _ in train.read(rows.split(16)):
        if inputs.dim() != 4:
            return {}
        means.append(as_float(inputs).mean((1, 2, 3)))
    intensity = torch.cat(means).double()
    found = {"mean": float(intensity.mean()), "std": float(intensity.std(correction=0)), "n": len(rows)}
    files = _files(train, rows) if isinstance(train, FileSplit) else {}
    return {"format": FORMAT, "kind": "images", "intensity": found, **files}


def _files(train: FileSplit, rows: torch.Tensor) -> dict[str, Any]:
    """Smallest and largest edge, spacing and the numbers of channels of evenly spaced files."""
    places = torch.linspace(0, len(rows) - 1, min(len(rows), MOST_FILES)).round().long()
    images = [getattr(train.items[row], "image", None) for row in rows[places].tolist()]
    look = getattr(train.reader, "geometry", lambda path: None)  # what reads images comes with the task
    found = [one for path in images if isinstance(path, (Path, Frame)) and (one := look(path)) is not None]
    if not found:
        return {}
    sizes: dict[str, Any] = {
        "height": _range([one.height for one in found]),
        "width": _range([one.width for one in found]),
        "channels": sorted({one.channels for one in found}),
    }
    spacings = [one.spacing for one in found if one.spacing is not None]
    return sizes | ({"spacing": [_range(edge) for edge in zip(*spacings, strict=True)]} if spacings else {})


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]
