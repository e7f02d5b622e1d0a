# SPDX-License-Identifier: Apache-2.0
"""The total of masked updates, which the server makes: masks of pairs cancel, and self-masks are taken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fairflare.core.types import StateDict
from fairflare.privacy import sum_protocol as protocol
from fairflare.privacy.secure_sums import ENTRIES, LARGEST, STEP, add_masks
from fairflare.privacy.sum_keys import Stream, new_buffer


def combine_updates(
    masked: Sequence[Mapping[str, Tensor]],
    model: StateDict,
    self_masks: Sequence[Stream] = (),
) -> StateDict:
    """The sum of updates to ``model``, with its types; ``self_masks``: those of all sites.

    Raises:
        SumRefused: the masks do not cancel, or the sum makes a variance negative.
    """
    total, streams = {}, [(-1, stream) for stream in self_masks]
    for key in sorted(masked[0]):
        steps = masked[0][key].clone()
        for one in masked[1:]:
            steps += one[key]
        if streams:  # in the blocks in which the sites put them on
            whole, buffer = steps.reshape(-1).numpy(), new_buffer()
            for start in range(0, len(whole), ENTRIES):
                add_masks(whole[start : start + ENTRIES].view("<u8"), streams, buffer)
        entries = steps.double() * STEP
        if bool((entries.abs() > LARGEST).any()):
            raise protocol.SumRefused("the masks do not cancel")
        if key.endswith("running_var") and bool((model[key] + entries < -1e-6).any()):
            raise protocol.SumRefused(f"{key}: the sum leaves a variance below 0")
        total[key] = entries.to(model[key].dtype)
    return {key: total[key] for key in masked[0]}
