# SPDX-License-Identifier: Apache-2.0
"""MONAI's networks on volumes by short names, and the window that slides where a volume is larger than a patch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from fairflare.networks import (
    monai_networks,  # noqa: F401  (a job carries them)
    own_class,
)

NORMS: Mapping[str, Any] = {
    "instance": ["instance", {"affine": True}],
    "group": ["group", {"num_groups": 1}],
    "batch": "batch",
}
"""Name -> MONAI's argument; a U-Net of MONAI's normalises its last layer, too, which may have a single channel."""
SMALL, USUAL = [8, 16, 32], [16, 32, 64, 128, 256]
UNETS: Mapping[str, Mapping[str, Any]] = {
    "small-unet3d": {"channels": SMALL, "strides": [2, 2], "num_res_units": 1},
    "unet3d": {"channels": USUAL, "strides": [2, 2, 2, 2], "num_res_units": 2},
    "small-unet-slices": {"channels": SMALL, "strides": [[2, 2, 1]] * 2, "kernel_size": [3, 3, 1],
                          "up_kernel_size": [3, 3, 1], "num_res_units": 1},
}  # fmt: skip
"""U-Nets of about 36,000 and 4.8 million parameters; the convolutions of the third see one axial slice."""
DENSENETS: Mapping[str, Mapping[str, Any]] = {
    "small-densenet3d": {"init_features": 16, "growth_rate": 8, "block_config": [2, 2, 2]},
    "densenet121-3d": {"init_features": 64, "growth_rate": 32, "block_config": [6, 12, 24, 16]},
}
WINDOWS = 3
"""That pass through the network at once: fewer than a batch of the layers' comparison, which so never takes them for
cases."""
OVERLAP = 0.25
"""Of neighbouring windows, whose answers are weighted by a Gaussian around their centres: MONAI's usual one."""


class Windowed(nn.Module):
    """A network of patches on whole volumes: MONAI's sliding-window inference, in evaluation mode.

    Memory is that of ``WINDOWS`` patches and one output of the volume's size.

    Args:
        network: (N, C, *patch) -> (N, structures, *patch).
        patch: voxels along each axis; an input of this shape, and any in training, passes through at once.
        overlap: of neighbouring windows, as a share.
        mode: how their answers are weighted: "gaussian" or "constant".
    """

    def __init__(
        self, network: nn.Module, patch: Sequence[int], overlap: float = OVERLAP, mode: str = "gaussian"
    ) -> None:
        super().__init__()
        self.network, self.patch, self.overlap, self.mode = network, tuple(patch), overlap, mode

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, X, Y, Z), no edge below the patch's -> (N, structures, X, Y, Z)."""
        if self.training or tuple(x.shape[2:]) == self.patch:
            found: Tensor = self.network(x)
            return found
        from monai.inferers import sliding_window_inference

        whole: Any = sliding_window_inference(x, self.patch, WINDOWS, self.network, self.overlap, mode=self.mode)
        return cast(Tensor, whole)


def segmenter(model: str, patch: Sequence[int], structures: int, norm: str, channels: int = 1) -> Windowed:
    """The network ``model`` (a key of ``UNETS``, or a class as in ``networks.own_class``) on patches of volumes."""
    text = _json("UNet", UNETS[model], channels, structures, norm) if model in UNETS else model
    return Windowed(own_class.build(text, (channels, *patch), (structures, *patch)), patch)


def classifier(model: str, shape: Sequence[int], classes: int, norm: str, channels: int = 1) -> nn.Module:
    """The network ``model`` (a key of ``DENSENETS``, or a class) on whole volumes."""
    text = _json("DenseNet", DENSENETS[model], channels, classes, norm) if model in DENSENETS else model
    return own_class.build(text, (channels, *shape), (classes,))


def _json(name: str, arguments: Mapping[str, Any], channels: int, outputs: int, norm: str) -> str:
    args = {"spatial_dims": 3, "norm": NORMS[norm], **arguments, "in_channels": channels, "out_channels": outputs}
    return json.dumps({"class_path": f"monai.networks.nets.{name}", "args": args})
