# SPDX-License-Identifier: Apache-2.0
"""A run's network with what stands before and after it, as one module and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.data.readers.stored import in_words
from fairflare.data.readers.volumes import VolumeReader
from fairflare.engine.after.recalibrate import FAR, GAP, Recalibrate
from fairflare.functional.recalibration import BEYOND
from fairflare.inference import modules
from fairflare.inference.loaded_run import Opened
from fairflare.inference.modules import Line, Pixels, Rows, Temperature, Whole
from fairflare.networks.volumes import Windowed
from fairflare.trainers.base import Trainer

MODULES = "scripts.modules"


@dataclass(frozen=True)
class WholeModel:
    """What is exported.

    Attributes:
        module: inputs as a file has them -> probabilities, in evaluation mode, on the CPU.
        example: inputs of two cases.
        before: the first part as a bundle names it.
        after: the last part.
        inputs: what the module takes, in words.
        outputs: what it gives.
        remarks: what is not in it.
    """

    module: Whole
    example: Tensor
    before: dict[str, Any]
    after: dict[str, Any]
    inputs: str
    outputs: str
    remarks: tuple[str, ...]


def whole_model(opened: Opened) -> WholeModel:
    """The run's model with preprocessing and recalibration.

    Raises:
        UserError: its inputs are no files, or the trainer prepares inputs by statistics of each batch or site.
    """
    if type(opened.parts.trainer).shared_batches is not Trainer.shared_batches:
        raise UserError(f"{opened.config.trainer}: prepares inputs by each site's statistics; use --format state-dict")
    if isinstance(opened.network, Windowed):
        text = "a window slides over volumes of any size, which is no part of an exported graph"
        raise UserError(f"{opened.config.task}: {text}; use --format state-dict")
    network = opened.network.cpu().eval()
    before, spec, example, words, said = _before(opened)
    after, last, outputs, more = _after(opened)
    module = Whole(before, network, after).eval()
    return WholeModel(module, example, spec, last, words, outputs, (*said, *more))


def _made(kind: type[nn.Module], **given: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A module, and how a bundle's configuration names it."""
    home = MODULES if kind.__module__ == modules.__name__ else "torch.nn"
    return kind(**given), {"_target_": f"{home}.{kind.__name__}", **given}


def _before(opened: Opened) -> tuple[nn.Module, dict[str, Any], Tensor, str, list[str]]:
    table, images = opened.task.table_inputs(), opened.task.image_inputs()
    if images is not None:
        shape = images.reader.channels, *images.reader.shape
        arguments: dict[str, Any] = {"mean": list(images.mean), "std": list(images.std)}
        words = f"float32 (N, {', '.join(map(str, shape))}), values 0 to 255"
        if isinstance(images.reader, VolumeReader):
            words += f", voxels of {' x '.join(f'{one:g}' for one in images.reader.spacing)} mm, axes RAS"
        example = torch.arange(2 * math.prod(shape)).remainder(251).float().view(2, *shape)
        return *_made(Pixels, **arguments), example, words, [in_words(images.reader.window)]
    if table is None:
        raise UserError(f"task {opened.config.task}: its inputs are made by code; use --format state-dict")
    n, m = len(table.numbers), len(table.plain)
    example = torch.linspace(-1, 1, 2 * (n + m)).view(2, n + m)
    if opened.scaling is None:
        words = f"float32 (N, {n + m}): {n} numbers, standardised and without gaps, then {m} features as they are"
        said = "numbers are not scaled: each site scales by its own training rows; --site NAME puts that one's in"
        return *_made(nn.Identity), example, words, [said]
    scaling = opened.scaling.to_json()
    words = f"float32 (N, {n + m}): {n} numbers, NaN where missing, then {m} features as they are"
    whose = [f"gaps and scale are those of {opened.site}'s training rows"] if table.fixed is None else []
    return *_made(Rows, **scaling), example, words, whose


def _after(opened: Opened) -> tuple[nn.Module, dict[str, Any], str, list[str]]:
    task, adjustment = opened.task, opened.adjustment
    if not task.kind.has_classes and not task.kind.has_masks:
        name, given, _, words = opened.kind.exported(task.classes)
        return *_made(getattr(modules, name, None) or getattr(nn, name or "Identity"), **given), words, []
    if task.kind.has_masks:
        said = []
        if adjustment is not None and adjustment.flags and -1 in adjustment.fits:
            said = [f"masks of {opened.site} are cut at {threshold_of(opened):.4f}; the model gives probabilities"]
        return *_made(nn.Sigmoid), "probability of each structure at each pixel", said
    words = f"probabilities (N, {len(task.classes)}) of {', '.join(task.classes[:20])}"
    plain = *_made(nn.Softmax, dim=1), words
    if adjustment is None:
        return *plain, []
    if not isinstance(adjustment.step, Recalibrate):
        return *plain, [f"the thresholds of {opened.site} are not in the model: {dict(adjustment.fits.get(-1, {}))}"]
    if adjustment.by_group:
        return *plain, ["recalibration by groups of patients is not in the model: its inputs do not name groups"]
    fit = dict(adjustment.fits[-1])
    said = [f"recalibrated for {opened.site}"]
    if "temperature" in fit:
        return *_made(Temperature, temperature=fit["temperature"], gap=GAP, beyond=BEYOND), words, said
    return *_made(Line, intercept=fit["intercept"], slope=fit["slope"], far=FAR, beyond=BEYOND), words, said


def threshold_of(opened: Opened) -> float:
    adjustment = opened.adjustment
    if adjustment is None or not adjustment.flags or "threshold" not in adjustment.fits.get(-1, {}):
        return 0.5
    return 1.0 - float(adjustment.fits[-1]["threshold"])
