# SPDX-License-Identifier: Apache-2.0
"""What of a MONAI bundle's configuration may be made: closed lists of transforms, losses and inferers, by name.

A configuration comes from whoever submits a job. No argument takes a path, a callable, a module or an expression; files
are read by this package's readers, whose place in a bundle ``LOADING`` stands for. Networks have a list of their own,
``networks.monai_networks``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch

from fairflare.core.errors import UserError
from fairflare.core.validation import expected, shown, unlisted

LOADING = ("LoadImaged", "EnsureChannelFirstd", "EnsureTyped", "CastToTyped", "ToTensord", "ToDeviced")
"""What reads files, puts channels first, and changes types: here the readers of this package do it."""
PLACED = ("Orientationd", "Spacingd")
"""What needs to know where voxels lie: only before the first random transform, whose inputs are kept without it."""
TRANSFORMS = re.findall(
    r"\w+",
    """
    Orientationd Spacingd Resized Rotated Flipd Zoomd Rotate90d Transposed CenterSpatialCropd SpatialCropd
    SpatialPadd BorderPadd DivisiblePadd ResizeWithPadOrCropd CropForegroundd ScaleIntensityd ScaleIntensityRanged
    ScaleIntensityRangePercentilesd NormalizeIntensityd ThresholdIntensityd ShiftIntensityd StdShiftIntensityd
    AdjustContrastd GaussianSmoothd GaussianSharpend MedianSmoothd HistogramNormalized RepeatChanneld SqueezeDimd
    RandCropByPosNegLabeld RandCropByLabelClassesd RandSpatialCropd RandSpatialCropSamplesd RandScaleCropd
    RandFlipd RandAxisFlipd RandRotated RandRotate90d RandZoomd RandAffined Rand2DElasticd Rand3DElasticd
    RandGridDistortiond RandGaussianNoised RandRicianNoised RandGaussianSmoothd RandGaussianSharpend RandBiasFieldd
    RandAdjustContrastd RandShiftIntensityd RandStdShiftIntensityd RandScaleIntensityd RandHistogramShiftd
    RandCoarseDropoutd
    """,
)
MONAI_LOSSES: tuple[str, ...] = ("DiceLoss", "DiceCELoss", "DiceFocalLoss", "TverskyLoss", "FocalLoss")
MONAI_LOSSES += ("GeneralizedDiceLoss", "GeneralizedDiceFocalLoss")
TORCH_LOSSES = ("CrossEntropyLoss", "BCEWithLogitsLoss")
INFERERS = ("SlidingWindowInferer", "SimpleInferer")
HOMES: Mapping[str, Mapping[str, Collection[str]]] = {
    "transform": {"monai.transforms": TRANSFORMS},
    "loss": {"monai.losses": MONAI_LOSSES, "torch.nn": TORCH_LOSSES},
    "inferer": {"monai.inferers": INFERERS},
}
"""Kind -> library -> classes that a configuration may name there."""
REFUSED = {
    "transform": {"device", "select_fn", "allow_missing_keys", "meta_keys", "meta_key_postfix", "overwriting"},
    "loss": {"other_act", "gamma_fn", "reduction", "reduce", "size_average"},
    "inferer": {"device", "sw_device", "progress", "cpu_thresh", "buffer_steps", "buffer_dim", "process_fn"},
}
"""Arguments that nobody may set: callables, places to compute, and other reductions than the mean."""
WEIGHTS = ("weight", "pos_weight")
"""Arguments that are tensors."""
SIZES = ("size", "roi", "num_samples", "repeats", "border", "_k", "percent")
"""Parts of the names of arguments that say how large something becomes, which are at most ``LARGEST``."""
LARGEST, LONGEST_LIST, DEEPEST = 2048, 256, 4
WORD = re.compile(r"[A-Za-z0-9_ .,+-]{0,64}")
DIRECTIVES = ("_target_", "_desc_", "_disabled_", "_requires_")
"""Keys of a component that are none of its arguments; ``_requires_`` only orders what MONAI makes."""


def named(key: str, content: Any, kind: str) -> tuple[str, dict[str, Any]]:
    """Class name and arguments of a component of ``HOMES``; nothing is imported. UserError begins with ``key``."""
    expected(key, isinstance(content, Mapping) and "_target_" in content, "a component with _target_", content)
    target, homes = content["_target_"], HOMES[kind]
    name = str(target).rpartition(".")[2]
    home = next((home for home, names in homes.items() if name in names), "")
    known = sorted(name for names in homes.values() for name in names)
    if not home or not (target == name or re.fullmatch(rf"{re.escape(home)}(\.\w+)*\.{name}", target)):
        raise UserError(f"{key}: {unlisted(kind, target, known)}")
    args = {name: value for name, value in content.items() if name not in DIRECTIVES}
    for one, value in args.items():
        where = f"{key}: {name}: {one}"
        refused = one.startswith("_") or one in REFUSED[kind] and not (one == "reduction" and value == "mean")
        expected(where, not refused, "nothing: this argument may not be set", value)
        _check_plain(where, value, any(part in one for part in SIZES))
    return name, args


def _check_plain(key: str, value: Any, size: bool, depth: int = 0) -> None:
    if isinstance(value, (list, tuple)) and depth < DEEPEST and len(value) <= LONGEST_LIST:
        for one in value:
            _check_plain(key, one, size, depth + 1)
        return
    number = type(value) in (int, float)
    fits = value is None or isinstance(value, bool) or (isinstance(value, str) and WORD.fullmatch(value))
    fits = fits or (number and math.isfinite(value) and abs(value) <= (LARGEST if size else 1e9))
    what = f"numbers of at most {LARGEST}" if size else "numbers, plain words or lists of them"
    expected(key, bool(fits), what, value)


def built(key: str, content: Any, kind: str) -> Any:
    """The component that ``content`` describes; UserError where its class does not take the arguments."""
    name, args = named(key, content, kind)
    home = next(home for home, names in HOMES[kind].items() if name in names)
    found = getattr(importlib.import_module(home), name)
    taken = inspect.signature(found).parameters
    for one in args:
        if one not in taken:
            raise UserError(f"{key}: {name}: {unlisted('argument', one, taken)}")
    args = {one: torch.tensor(v) if one in WEIGHTS and isinstance(v, list) else v for one, v in args.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of defaults that MONAI has changed
            return found(**args)
    except Exception as error:  # MONAI's own, where arguments do not fit each other
        raise UserError(f"{key}: {name}: {' '.join(str(error).split())[:200]}") from None


def steps(key: str, text: str, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """The transforms of a list's JSON that are more than loading; checked, but not made.

    Args:
        keys: what they may be applied to.
    """
    found = []
    for k, one in enumerate(read(key, text, list)):
        if isinstance(one, Mapping) and str(one.get("_target_", "")).rpartition(".")[2] in LOADING:
            continue
        name, args = named(f"{key}#{k}", one, "transform")
        given = args.get("keys")
        given = [given] if isinstance(given, str) else given
        fits = isinstance(given, list) and given and set(given) <= set(keys)
        expected(f"{key}#{k}: {name}: keys", bool(fits), f"some of {', '.join(keys)}", given)
        found.append({"_target_": name, **args, "keys": given})
    return found


def pipeline(key: str, text: str, keys: tuple[str, ...]) -> tuple[Any, Any]:
    """MONAI's transforms of a list's JSON up to the first random one, and those from there on; each may be empty.

    Raises:
        UserError: one is not on the list; or it needs a voxel's place behind a random one.
    """
    from monai.transforms import Compose, RandomizableTrait

    listed = steps(key, text, keys)
    made = [built(f"{key}#{k}", one, "transform") for k, one in enumerate(listed)]
    first = next((k for k, one in enumerate(made) if isinstance(one, RandomizableTrait)), len(made))
    for one in listed[first:]:
        name = one["_target_"]
        expected(key, name not in PLACED, "it before the first random transform", name)
    return Compose(made[:first]), Compose(made[first:])


def read(key: str, text: str, kind: type) -> Any:
    """The JSON of an option; UserError where it is none of ``kind``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise UserError(f"{key}: expected the JSON of a {kind.__name__}, got {shown(text)}")
    return content
