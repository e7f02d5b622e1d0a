# SPDX-License-Identifier: Apache-2.0
"""The networks of images, by the names under which ``builtin.build`` makes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.networks.builtin import build as build

Norm = Literal["batch", "instance", "group"]
NORMALISATIONS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "instance": partial(nn.InstanceNorm2d, affine=True),
    "group": partial(nn.GroupNorm, 8),
}
"""Name -> number of channels -> layer."""


def small_cnn(in_channels: int, classes: int, norm: Norm = "group") -> nn.Sequential:
    """Four blocks of convolution, normalisation, 2x2 pooling and ReLU, then the mean over the image and a linear head.

    About 100,000 parameters; takes (N, in_channels, H, W) with H, W >= 16 and returns logits (N, classes).

    Args:
        norm: "group" (8 groups) is the default because averaged BatchNorm statistics of sites whose images differ in
            noise fit none of them: the poorer sites then get one answer for all images, whatever the aggregation
            weights are. "batch" shows that.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    widths = (in_channels, 16, 32, 64, 128)
    for i, (narrow, wide) in enumerate(zip(widths, widths[1:]), start=1):
        kernel = 5 if i == 1 else 3
        layers[f"block{i}"] = nn.Sequential(
            nn.Conv2d(narrow, wide, kernel, padding=kernel // 2, bias=False),
            NORMALISATIONS[norm](wide),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after pooling: the same numbers and gradients from a quarter of the work
        )
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["head"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def resnet18(in_channels: int, classes: int, norm: Norm = "batch") -> nn.Module:
    """ResNet-18 (He et al., CVPR 2016, arXiv:1512.03385) with torchvision's layout and names, built by MONAI.

    Args:
        norm: "batch" is the paper's; "instance" takes images of more than 32 pixels, "group" any.
    """
    from monai.networks.nets import resnet18 as build_resnet18

    network: nn.Module = build_resnet18(
        spatial_dims=2,
        n_input_channels=in_channels,
        num_classes=classes,
        pretrained=False,
        conv1_t_stride=2,
        bias_downsample=False,
    )
    return _normalised_by(network, norm)


def resnet10(in_channels: int, classes: int, norm: Norm = "batch") -> nn.Module:
    """The ResNet-10 of FedHEAL (Chen et al., CVPR 2024, arXiv:2405.16585) for images of 32 pixels and more.

    A 3x3 convolution of stride 1 without pooling, then one residual block each of 64, 128, 256 and 512 channels: 4.90
    million parameters for colour images and 10 classes. The 5.43 million of the authors' network include a projection
    head that classification does not use. BatchNorm is the paper's.
    """
    from monai.networks.nets import ResNet

    network = ResNet(
        block="basic",
        layers=[1, 1, 1, 1],
        block_inplanes=[64, 128, 256, 512],
        spatial_dims=2,
        n_input_channels=in_channels,
        conv1_t_size=3,
        conv1_t_stride=1,
        no_max_pool=True,
        num_classes=classes,
        bias_downsample=False,
    )
    return _normalised_by(network, norm)


class UNet(nn.Module):
    """U-Net (Ronneberger et al., MICCAI 2015, arXiv:1505.04597) with normalised convolutions and 2x2 up-convolutions.

    Takes (N, in_channels, H, W), H and W multiples of 2^(levels - 1) and above it, and returns logits
    (N, out_channels, H, W). Layers are registered in the order in which they compute, no module is used twice and no
    ReLU works in place, so that a forward hook sees every layer once, in the order of the state dict.

    Args:
        widths: channels of each level from the full resolution down; the last one is the bottleneck's.
        norm: "batch", "instance" (with scale and shift) or "group" (8 groups).
        padding: rows and columns of zeros that fill images up to such a multiple; the logits are cut back.
    """

    def __init__(
        self, in_channels: int, out_channels: int, widths: Sequence[int], norm: Norm, padding: int = 0
    ) -> None:
        super().__init__()
        self.padding = padding
        self.depth = len(widths) - 1
        *sides, bottom = widths
        for level, (narrow, wide) in enumerate(zip((in_channels, *sides), sides), start=1):
            self.add_module(f"encoder{level}", _double_convolution(narrow, wide, norm))
        self.bottleneck = _double_convolution(sides[-1], bottom, norm)
        for level, (wide, narrow) in reversed(list(enumerate(zip(widths[1:], widths), start=1))):
            self.add_module(f"upconv{level}", nn.ConvTranspose2d(wide, narrow, 2, stride=2))
            self.add_module(f"decoder{level}", _double_convolution(2 * narrow, narrow, norm))
        self.head = nn.Conv2d(widths[0], out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images -> logits of every pixel."""
        if self.padding:
            x = F.pad(x, (0, self.padding, 0, self.padding))
        skipped = []
        for level in range(1, self.depth + 1):
            skipped.append(self.get_submodule(f"encoder{level}")(x))
            x = F.max_pool2d(skipped[-1], 2)
        x = self.bottleneck(x)
        for level in range(self.depth, 0, -1):
            x = self.get_submodule(f"upconv{level}")(x)
            x = self.get_submodule(f"decoder{level}")(torch.cat((x, skipped[level - 1]), dim=1))
        x = self.head(x)
        return x[..., : -self.padding, : -self.padding] if self.padding else x


def unet(in_channels: int, out_channels: int, norm: Norm = "batch", padding: int = 0) -> UNet:
    """The U-Net of FedCE and Fed-LWR: 41 layers with 7.76 million parameters, for images of edges that 16 divides."""
    return UNet(in_channels, out_channels, (32, 64, 128, 256, 512), norm, padding)


def small_unet(in_channels: int, out_channels: int, norm: Norm = "instance", padding: int = 0) -> UNet:
    """A U-Net of about 120,000 parameters for images of edges that 8 divides, as 64 pixels, on a laptop.

    Averaged BatchNorm statistics of sites whose images differ in contrast fit none of them; norm="batch" shows it.
    """
    return UNet(in_channels, out_channels, (8, 16, 32, 64), norm, padding)


def _double_convolution(narrow: int, wide: int, norm: Norm) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, channels in enumerate((narrow, wide), start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, wide, 3, padding=1, bias=False)
        layers[f"norm{i}"] = NORMALISATIONS[norm](wide)
        layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers)


def _normalised_by(network: nn.Module, norm: Norm) -> nn.Module:
    """``network`` with ``norm`` in place of every BatchNorm; MONAI's argument of that name reaches the stem alone."""
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, NORMALISATIONS[norm](module.num_features))
    return network


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "small-cnn": small_cnn,
    "small-cnn-bn": partial(small_cnn, norm="batch"),
    "resnet10": resnet10,
    "resnet18": resnet18,
    "unet": unet,
    "small-unet": small_unet,
}
