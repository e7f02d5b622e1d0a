# SPDX-License-Identifier: Apache-2.0
"""How large an update is, by kind of entry, and how large it may be beside the others, the model and its own past."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.types import StateDict

PARAMETERS, MEANS, VARIANCES, BUFFERS = "parameters", "running means", "running variances", "other buffers"
Norms = dict[str, float]
"""Kind -> size; see ``norms_of``."""
History = Mapping[str, Mapping[str, list[float]]]
"""Site -> kind -> the sizes of its last accepted updates, oldest first."""

SUM = ""
"""In place of a site: the sum of a round with secure sums."""

TENSORS = "/tensors"
"""In place of a site: name of a declared tensor -> its largest median of a round, alone in a list."""
JOINING = 10.0
"""A site that joins late, or was away, sends as much as all did at first, while the others hardly change any more."""
MEANT = "root mean squares; bound by the medians of the sites"

ROW = 1 << 12
"""Entries whose squares are summed in float32."""
SMALLEST_ROW = 1e-12
"""A row's norm from which on squares that float32 rounds to nothing do not matter."""
REMEMBERED = 5
ENOUGH = 2
"""Accepted rounds of a site before its own past binds it."""
USUAL = 0.1
"""Root mean square of an entry of an untrained model: a model of zeros has a scale too."""
LEAST = {PARAMETERS: 0.01, MEANS: 1.0, VARIANCES: 1.0, BUFFERS: 0.01}
"""Share of the model's scale up to which the round's median and the site's own past bind nobody."""
FREEDOM = {PARAMETERS: 1.0, MEANS: 1e4, VARIANCES: 1e4, BUFFERS: 1e4}
"""Statistics start at 0 and 1 whatever the units of the data: the absolute bound leaves them this much more room."""


def kind_of(key: str, trainable: frozenset[str]) -> str:
    if key in trainable:
        return PARAMETERS
    return {"running_mean": MEANS, "running_var": VARIANCES}.get(key.rpartition(".")[2], BUFFERS)


def norm_of(value: Tensor) -> float:
    """L2 norm of the entries, to seven digits; NaN or infinite where an entry is, or where float64 does not hold it.

    float32 entries are read once: rows of ``ROW`` in float32, these in float64. Rows whose squares could leave
    the range of float32, and all other types, are summed in float64 throughout.
    """
    flat = value.detach().reshape(-1)
    if flat.dtype != torch.float32 or flat.numel() < 4 * ROW:
        return float(torch.linalg.vector_norm(flat.double())) if flat.numel() else 0.0
    whole = flat.numel() // ROW * ROW
    rest = _norm(flat[whole:].numpy())
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1).numpy()
    if not SMALLEST_ROW < rows.min() <= rows.max() < math.inf:  # also where one is NaN
        rows = np.array([_norm(row.numpy()) for row in flat[:whole].view(-1, ROW)])
    return math.hypot(_norm(rows), rest)


def _norm(values: np.ndarray) -> float:
    """In float64, at most a few thousand values."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(wide.dot(wide))


def hypots(norms: Iterable[tuple[str, float]]) -> Norms:
    """Kind -> L2 norm of all entries of that kind, from pairs of a kind and the norm of a part; see ``norms_of``."""
    parts: dict[str, list[float]] = {}
    for kind, norm in norms:
        parts.setdefault(kind, []).append(norm)
    found = {kind: math.hypot(*some) for kind, some in parts.items()}
    return {kind: math.sqrt(norm) if kind == VARIANCES else norm for kind, norm in found.items()}


def norms_of(update: Mapping[str, Tensor], trainable: frozenset[str]) -> Norms:
    """Kind -> L2 norm of the update's entries of that kind; of variances its root, in the units of the means."""
    return hypots((kind_of(key, trainable), norm_of(value)) for key, value in update.items())


def scales_of(model: StateDict, trainable: frozenset[str], sizes: Norms | None = None) -> Norms:
    """Kind -> how large the received model is there, on the scale of ``norms_of``; above 0.

    Means are measured by the spread of what they are means of, so that a mean of 0 has a scale too.
    """
    entries = {key: value for key, value in model.items() if value.is_floating_point()}
    scales = dict(norms_of(entries, trainable) if sizes is None else sizes)
    counts: dict[str, int] = {}
    for key, value in entries.items():
        counts[kind_of(key, trainable)] = counts.get(kind_of(key, trainable), 0) + value.numel()
    if MEANS in scales:
        variances = [v for k, v in entries.items() if kind_of(k, trainable) == VARIANCES]
        spread = sum(float(v.double().clamp(min=0).sum()) for v in variances)
        scales[MEANS] = math.hypot(scales[MEANS], math.sqrt(spread))
    usual = {kind: USUAL * math.sqrt(n) for kind, n in counts.items()}
    if VARIANCES in usual:
        usual[VARIANCES] = math.sqrt(USUAL * usual[VARIANCES])
    return {kind: max(scale, usual[kind]) for kind, scale in scales.items()}


def too_large(
    norms: Mapping[str, Norms], scales: Norms, ratio: float, history: History | None = None
) -> dict[str, str]:
    """Site -> what is too large about its update, in words that end a sentence; sites not named are in bounds.

    An update is refused when a kind of its entries is larger than

    * ``ratio`` times the median of the round's updates (three or more), as soon as that is a size that matters;
    * ``ratio`` times the lower median of the others' updates, so that two sites judge each other and two that conspire
      do not outvote a third: unless it is no larger than the model itself, so that a site with a tiny update cannot
      have the others refused;
    * ``ratio`` times the median of the site's own last accepted updates;
    * ``ratio`` times the model itself (statistics of the data: 10,000 times that).

    Args:
        norms: site -> ``norms_of`` its update; updates that are zero altogether are compared with nothing.
        ratio: above 1.
    """
    pool = {site: sizes for site, sizes in norms.items() if any(sizes.values())}
    everyone = {kind: sorted(sizes[kind] for sizes in pool.values()) for kind in next(iter(pool.values()), {})}
    found: dict[str, str] = {}
    for site, sizes in pool.items():
        past = (history or {}).get(site, {})
        for kind, size in sizes.items():
            bounds = _bounds(kind, everyone[kind], size, list(past.get(kind, ())), scales[kind], ratio)
            bound, why = min(bounds)
            if not size <= bound:
                found[site] = f"{kind}: expected a norm of at most {bound:.3g}, {why}, got {size:.3g}"
                break
    return found


def size_of(entries: Mapping[str, Tensor]) -> float:
    """Root mean square over all entries of a declared tensor, so that a site which lacks some is as large."""
    parts = [(norm_of(value), value.numel()) for value in entries.values()]
    return math.hypot(*(norm for norm, _ in parts)) / math.sqrt(max(sum(n for _, n in parts), 1))


def tensors_too_large(
    sizes: Mapping[str, Mapping[str, float]], ratio: float, before: Mapping[str, float]
) -> dict[str, str]:
    """Site -> which of its declared tensors is too large, in words that end a sentence; sites not named are in bounds.

    Such a tensor has no scale of its own, so that it is held against the medians of three or more sites: it is refused
    above ``ratio`` times that of the round, unless it is within ``JOINING`` times the largest of the rounds before.

    Args:
        sizes: site -> name -> ``size_of`` what it sent; what is zero altogether is compared with nothing.
        ratio: above 1.
        before: name -> largest median of the rounds before.
    """
    found: dict[str, str] = {}
    for name, median in medians(sizes).items():
        bound = max(ratio * median, JOINING * before.get(name, 0.0))
        for site in sorted(sizes):
            if not sizes[site].get(name, 0.0) <= bound:
                found.setdefault(site, f"{name}: expected at most {bound:.3g}, got {sizes[site][name]:.3g}, {MEANT}")
    return found


def medians(sizes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Name -> median size over the sites whose tensor of that name is not zero, where these are three or more."""
    by_name: dict[str, list[float]] = {}
    for own in sizes.values():
        for name, size in own.items():
            by_name.setdefault(name, []).extend([size] if size else [])
    return {name: statistics.median(found) for name, found in sorted(by_name.items()) if len(found) >= 3}


def largest_medians(history: History) -> dict[str, float]:
    """Name -> the largest of ``medians`` so far, as ``history`` has it."""
    return {name: found[0] for name, found in history.get(TENSORS, {}).items()}


def _bounds(
    kind: str, everyone: list[float], size: float, past: list[float], scale: float, ratio: float
) -> list[tuple[float, str]]:
    """Bounds of ``size``, one of the sorted sizes of ``everyone``, with their reasons."""
    always = LEAST[kind] * scale
    bounds = [(ratio * FREEDOM[kind] * scale, "by the size of the model")]
    if len(everyone) >= 3:
        bounds.append((max(ratio * statistics.median(everyone), always), f"{ratio:g} x the round's median"))
    if len(everyone) > 1:
        middle = (len(everyone) - 2) // 2  # the lower median's place among the others
        usual = everyone[middle + (everyone[middle] >= size)]  # one of this size stands aside
        bounds.append((max(ratio * usual, scale), f"{ratio:g} x the other sites'"))
    if len(past) >= ENOUGH:
        bounds.append((max(ratio * statistics.median(past), always), f"{ratio:g} x its own rounds before"))
    return bounds


def remembered(
    history: History, norms: Mapping[str, Norms], tensors: Mapping[str, float] | None = None
) -> dict[str, dict[str, list[float]]]:
    """``history`` with the sizes of a round's accepted updates added; zero updates say nothing and are left out."""
    kept: dict[str, dict[str, list[float]]] = {site: dict(kinds) for site, kinds in history.items()}
    for site, sizes in norms.items():
        if any(sizes.values()):
            before: Mapping[str, Any] = kept.get(site, {})
            kept[site] = {kind: [*before.get(kind, ()), size][-REMEMBERED:] for kind, size in sizes.items()}
    if tensors:
        largest = largest_medians(history)
        kept[TENSORS] = {name: [max(tensors.get(name, 0.0), largest.get(name, 0.0))] for name in {**largest, **tensors}}
    return kept
