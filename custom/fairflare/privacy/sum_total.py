# SPDX-License-Identifier: Apache-2.0
"""The total of masked updates, which the server makes: masks of pairs cancel, and self-masks are taken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fairflare.core.types import StateDict
from fairflare.privacy import sum_protocol as protocol
from fairflare.privacy.secure_sums import WIDE, Scale, add_masks
from fairflare.privacy.sum_keys import BLOCK, Stream, new_buffer


def combine_updates(
    masked: Sequence[Mapping[str, Tensor]],
    model: StateDict,
    scales: Mapping[str, Scale] | None = None,
    self_masks: Sequence[Stream] = (),
) -> StateDict:
    """The sum of updates to ``model``, with its types; ``scales`` as the sites had them, ``self_masks`` all of theirs.

    Raises:
        SumRefused: the masks do not cancel, or the sum makes a variance negative.
    """
    total, streams = {}, [(-1, stream) for stream in self_masks]
    for key in sorted(masked[0]):
        scale = WIDE if scales is None else scales[key]
        steps = masked[0][key].clone()
        for one in masked[1:]:
            steps += one[key]
        _unmask(steps, scale, streams)
        entries = steps.double() * scale.step
        if bool((entries.abs() > scale.reach).any()):
            raise protocol.SumRefused("the masks do not cancel")
        if key.endswith("running_var") and bool((model[key] + entries < -1e-6).any()):
            raise protocol.SumRefused(f"{key}: the sum leaves a variance below 0")
        total[key] = entries.to(model[key].dtype)
    return {key: total[key] for key in masked[0]}


def _unmask(steps: Tensor, scale: Scale, streams: Sequence[tuple[int, Stream]]) -> None:
    """Takes every site's self-mask off a sum, in place, in the blocks in which they were put on."""
    if streams:
        whole, buffer, length = steps.reshape(-1).numpy(), new_buffer(), 8 * BLOCK // scale.bits
        for start in range(0, len(whole), length):
            add_masks(whole[start : start + length].view(scale.unsigned), streams, buffer)
