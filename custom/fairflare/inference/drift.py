# SPDX-License-Identifier: Apache-2.0
"""What is unlike the training in inputs that are to be predicted: one line for each kind of difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairflare.core.validation import shown
from fairflare.data.inputs import ImageInputs, Scaling, TableInputs
from fairflare.data.readers.geometry import Geometry
from fairflare.data.readers.table_features import plain

FAR = 6.0
"""Standard deviations from the training mean from which on a number of a table is named."""
FAR_IMAGE = 4.0
"""The same of an image's mean intensity, and the training images' means."""
TIMES = 2.0
"""So many times smaller or larger than any training image may edges and pixels be."""


def of_table(
    inputs: TableInputs, columns: Mapping[str, Sequence[str]], numbers: np.ndarray, scaling: Scaling
) -> list[str]:
    """Values that no training table can have, and numbers far from the training mean."""
    found = []
    for name, known in inputs.known.items():
        cells = [plain(cell) for cell in columns.get(name, ()) if cell and cell not in inputs.gaps]
        strange = [cell for cell in cells if cell not in known]
        if strange:
            found.append(
                f"{name}: {_count(len(strange), 'row')} with an unknown value, e.g. {shown(strange[0])}; "
                f"known: {', '.join(known[:8])}"
            )
    far = scaling.distance(numbers) > FAR
    for k, one in enumerate(inputs.numbers):
        if far[:, k].any() and not one.values:
            row = int(np.flatnonzero(far[:, k])[0])
            mean, std = float(scaling.mean[k]), float(scaling.std[k])
            found.append(
                f"{one.name}: {_count(int(far[:, k].sum()), 'row')} more than {FAR:g} standard deviations from the "
                f"training mean {mean:.4g} (sd {std:.4g}), e.g. {numbers[row, k]:.4g}"
            )
    return found


def of_images(
    inputs: ImageInputs, kept: Sequence[Mapping[str, Any]], places: Mapping[str, Geometry], means: Mapping[str, float]
) -> list[str]:
    """Channels, edges, spacing and intensity that no training image has.

    Args:
        inputs: how images are prepared.
        kept: what sites keep of theirs; without any only what the network takes is known.
        places: name -> geometry of a file.
        means: name -> mean intensity in [0, 1] of what the network takes, before it is normalised.
    """
    channels = {c for one in kept for c in _numbers(one.get("channels"))} or {float(inputs.reader.channels)}
    odd: dict[str, Any] = {name: one.channels for name, one in places.items() if one.channels not in channels}
    found = _line("channels", odd, lambda value: f"{value}", "/".join(f"{c:g}" for c in sorted(channels)))
    for edge in ("height", "width"):
        low, high = _widest([_numbers(one.get(edge)) for one in kept], inputs.reader.size)
        edges = {name: getattr(one, edge) for name, one in places.items()}
        odd = {name: value for name, value in edges.items() if not low / TIMES <= value <= high * TIMES}
        found += _line(edge, odd, lambda value: f"{value} pixels", f"{low:g} to {high:g}")
    found += _spacing(kept, places)
    known = [one["intensity"] for one in kept if _proper(one.get("intensity"))]
    if known:
        odd = {
            name: value
            for name, value in means.items()
            if all(abs(value - one["mean"]) > FAR_IMAGE * max(one["std"], 0.01) for one in known)
        }
        expected = " or ".join(f"{one['mean']:.2f} (sd {one['std']:.2f})" for one in known[:3])
        found += _line("mean intensity", odd, lambda value: f"{value:.2f}", expected)
    return found


def _spacing(kept: Sequence[Mapping[str, Any]], places: Mapping[str, Geometry]) -> list[str]:
    ranges = [edge for one in kept for edge in (one.get("spacing") or []) if len(_numbers(edge)) == 2]
    measured = {name: one.spacing for name, one in places.items() if one.spacing is not None}
    if not ranges or not measured:
        return []
    low, high = min(edge[0] for edge in ranges), max(edge[1] for edge in ranges)
    odd = {n: v for n, v in measured.items() if min(v) < low / TIMES or max(v) > high * TIMES}
    return _line("spacing", odd, lambda value: f"{value[0]:.3g} x {value[1]:.3g} mm", f"{low:.3g} to {high:.3g} mm")


def _line(what: str, odd: Mapping[str, Any], words: Any, training: str) -> list[str]:
    if not odd:
        return []
    name = next(iter(odd))
    return [f"{what}: {_count(len(odd), 'file')} unlike the training's {training}, e.g. {name}: {words(odd[name])}"]


def _widest(ranges: Sequence[Sequence[float]], size: int) -> tuple[float, float]:
    found = [value for one in ranges for value in one]
    return (min(found), max(found)) if found else (float(size), 16.0 * size)


def _numbers(values: Any) -> list[float]:
    """Finite numbers of a list from a site's file; anything else counts as none."""
    proper = isinstance(values, list) and all(type(v) in (int, float) and np.isfinite(v) for v in values)
    return [float(v) for v in values] if proper else []


def _proper(found: Any) -> bool:
    return isinstance(found, dict) and all(type(found.get(key)) in (int, float) for key in ("mean", "std"))


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
