# SPDX-License-Identifier: Apache-2.0
"""The networks that tasks offer, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from fairflare.errors import UserError


def small_cnn(in_channels: int, classes: int, norm: Literal["group", "batch"] = "group") -> nn.Sequential:
    """Four blocks of convolution, normalisation, ReLU and 2x2 pooling, then the mean over the image and a linear head.

    About 100,000 parameters; takes (N, in_channels, H, W) with H, W >= 16 and returns logits (N, classes).

    Args:
        in_channels: of the images.
        classes: size of the output.
        norm: "group" (8 groups) is the default because averaged BatchNorm statistics of sites whose images differ in
            noise fit none of them: the poorer sites then get one answer for all images, whatever the aggregation
            weights are. "batch" shows that.
    """
    layers = OrderedDict()
    widths = (in_channels, 16, 32, 64, 128)
    for i, (narrow, wide) in enumerate(zip(widths, widths[1:]), start=1):
        kernel = 5 if i == 1 else 3
        layers[f"block{i}"] = nn.Sequential(
            nn.Conv2d(narrow, wide, kernel, padding=kernel // 2, bias=False),
            nn.GroupNorm(8, wide) if norm == "group" else nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["head"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def resnet18(in_channels: int, classes: int, pretrained_weights: str | None = None) -> nn.Module:
    """ResNet-18 (He et al., CVPR 2016, arXiv:1512.03385) with torchvision's layout and names, built by MONAI.

    Args:
        in_channels: 3 where pretrained weights are used.
        classes: size of the output.
        pretrained_weights: path of a state dict with torchvision's names, e.g. ``resnet18-f37072fd.pth`` (ImageNet);
            its last layer is left out when it has another number of classes. None: random initialisation.

    Raises:
        UserError: the file is missing, not a state dict, or belongs to another network.
    """
    from monai.networks.nets import resnet18 as build_resnet18

    network = build_resnet18(
        spatial_dims=2,
        n_input_channels=in_channels,
        num_classes=classes,
        pretrained=False,
        conv1_t_stride=2,
        bias_downsample=False,
    )
    if pretrained_weights is not None:
        _load_pretrained(network, pretrained_weights)
    return network


def mlp(features: int, classes: int, hidden: Sequence[int] = (64,)) -> nn.Sequential:
    """Linear layers with ReLU between them: (N, features) -> logits (N, classes)."""
    layers = OrderedDict()
    for i, (narrow, wide) in enumerate(zip((features, *hidden), hidden), start=1):
        layers[f"hidden{i}"] = nn.Sequential(nn.Linear(narrow, wide), nn.ReLU())
    layers["head"] = nn.Linear((features, *hidden)[-1], classes)
    return nn.Sequential(layers)


def linear(features: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression, the model of FedUFO's tables: (N, features) -> logits (N, classes)."""
    return mlp(features, classes, hidden=())


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "small-cnn": small_cnn,
    "small-cnn-bn": partial(small_cnn, norm="batch"),
    "resnet18": resnet18,
    "mlp": mlp,
    "linear": linear,
}


def build(name: str, *args: int, **kwargs: object) -> nn.Module:
    """The network ``name`` with the arguments of its function; weights come from torch's global generator.

    Raises:
        UserError: there is no such network; the text lists the valid names.
    """
    if name not in NETWORKS:
        raise UserError(f"network: expected one of {', '.join(NETWORKS)}, got {name!r}")
    return NETWORKS[name](*args, **kwargs)


def _load_pretrained(network: nn.Module, path: str) -> None:
    file = Path(path).name  # hospital folders stay out of messages
    if not Path(path).is_file():
        raise UserError(f"pretrained_weights: no such file: {file}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = {str(key): tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    except Exception as problem:
        raise UserError(f"pretrained_weights: {file} is not a state dict ({type(problem).__name__})") from None
    own = network.state_dict()
    if "fc.weight" in state and state["fc.weight"].shape[0] != own["fc.weight"].shape[0]:
        state = {key: tensor for key, tensor in state.items() if not key.startswith("fc.")}
    _check_fit(own, state, file)
    network.load_state_dict(state, strict=False)


def _check_fit(own: dict[str, torch.Tensor], state: dict[str, torch.Tensor], file: str) -> None:
    missing = [k for k in own if k not in state and not k.startswith("fc.") and not k.endswith("num_batches_tracked")]
    unknown = [k for k in state if k not in own]
    other = [k for k in state if k in own and state[k].shape != own[k].shape]
    for problem, keys in (("lacks", missing), ("has the unknown", unknown), ("has another shape of", other)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise UserError(f"pretrained_weights: {file} does not fit resnet18: it {problem} {keys[0]}{more}")
