# SPDX-License-Identifier: Apache-2.0
"""Hugging Face networks of images from a folder with ``config.json``: local files, classes of ``transformers`` alone.

The folder's configuration becomes part of the job; whoever submits one decides what is built. So the kinds of networks
are a closed list, values are plain, no code of a folder runs and nothing is looked for on the net. The weights, a
safetensors file, are given with ``--init-from`` as any others.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.validation import expected, shown

CLASS = "transformers.AutoModelForImageClassification"
KINDS = ("beit", "convnext", "convnextv2", "deit", "dinov2", "dinov2_with_registers", "resnet", "swin", "swinv2", "vit")
FILE, PREPARED = "config.json", "preprocessor_config.json"
MAX_NUMBERS, MAX_BYTES, MAX_VALUE = 1_500_000_000, 2**20, 16_384
LABELS = ("id2label", "label2id", "architectures", "transformers_version", "torch_dtype", "dtype", "problem_type")
"""Keys that say what the folder's own head was for, or who wrote it."""
REFUSED = ("auto_map", "backbone", "quantization", "kernel", "implementation", "adapter", "name_or_path", "trust")
"""Parts of keys by which a configuration would bring code, other files, or a look at the net."""


def options_of(folder: Path) -> dict[str, str]:
    """What ``model`` and other options of a task on images are, of a folder on this machine.

    Raises:
        UserError: it asks for code of its own, or is of a kind that is not built.
    """
    config = _json(folder / FILE)
    expected(f"model: {folder.name}", "auto_map" not in config, "a folder without code of its own", "auto_map")
    kept = {k: one for k, one in config.items() if k not in LABELS and not k.startswith("_")}
    checked(kept)
    options = {"model": json.dumps({"class_path": CLASS, "args": kept})}
    prepared = _json(folder / PREPARED) if (folder / PREPARED).is_file() else {}
    if isinstance(mean := prepared.get("image_mean"), list) and isinstance(std := prepared.get("image_std"), list):
        options |= {"mean": ",".join(map(str, mean)), "std": ",".join(map(str, std)), "channels": str(len(mean))}
    return options | ({"size": str(config["image_size"])} if isinstance(config.get("image_size"), int) else {})


def checked(args: Mapping[str, Any]) -> None:
    """Raise UserError unless a network may be built of the configuration ``args``."""
    kind = args.get("model_type")
    expected("model: model_type", kind in KINDS, f"one of {', '.join(KINDS)}", kind)
    for key, value in args.items():
        fits = not any(part in key for part in REFUSED) and _is_plain(value)
        expected(f"model: {shown(key)}", fits, "a setting of the network alone, of numbers and plain names", value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 64 and all(map(_is_plain, value))
    if isinstance(value, str):
        return value.replace("_", "").replace("-", "").isalnum() and len(value) <= 40
    return value is None or isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) <= MAX_VALUE)


def build(args: Mapping[str, Any], channels: int, outputs: int) -> nn.Module:
    """The network of the configuration ``args``, random, with the names of entries that its folder's weights have.

    Raises:
        UserError: see ``checked``; ``transformers`` is not installed, or the network is too large.
        Exception: the library's own, where settings do not fit together.
    """
    checked(args)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError:
        raise UserError("model: needs transformers: pip install 'fairflare[tune]'") from None
    config = library.AutoConfig.for_model(**{**args, "num_channels": channels, "num_labels": outputs})
    make = library.AutoModelForImageClassification.from_config
    with torch.device("meta"):
        numbers = sum(one.numel() for one in make(config, attn_implementation="eager").parameters())
    expected("model", numbers <= MAX_NUMBERS, f"at most {MAX_NUMBERS:,} parameters", f"{numbers:,}")
    network: Any = make(config, attn_implementation="eager")
    kind = type(network)
    network.__class__ = type(kind.__name__, (_Logits, kind), {})
    made: nn.Module = network
    return made


class _Logits(nn.Module):
    """A network of the library, whose answer is the logits alone."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(pixel_values=x).logits  # the library's class comes next

    def entries_of(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of ``given`` that fit, under the names that this version of the library has for them."""
        own: Any = self
        how: dict[str, Any] = {"config": own.config, "state_dict": dict(given), "ignore_mismatched_sizes": True}
        kind: Any = type(self).__mro__[2]
        loaded, about = kind.from_pretrained(None, output_loading_info=True, **how)
        lost = {*about["missing_keys"], *(key for key, *_ in about["mismatched_keys"])}
        return {name: value for name, value in loaded.state_dict().items() if name not in lost}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"model: {path.parent.name}: expected a JSON object in {path.name}")
    return content
