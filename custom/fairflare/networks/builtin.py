# SPDX-License-Identifier: Apache-2.0
"""The networks that tasks offer, by name; and regressions whose state holds what a Newton step needs beside them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.errors import UserError

NARROWEST = 1e-3
"""Between two cut points of ``Ordered``."""
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


def mlp(features: int, classes: int, hidden: Sequence[int] = (64,)) -> nn.Sequential:
    """Linear layers with ReLU between them: (N, features) -> logits (N, classes)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (narrow, wide) in enumerate(zip((features, *hidden), hidden), start=1):
        layers[f"hidden{i}"] = nn.Sequential(nn.Linear(narrow, wide), nn.ReLU())
    layers["head"] = nn.Linear((features, *hidden)[-1], classes)
    return nn.Sequential(layers)


def linear(features: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression, the model of FedUFO's tables: (N, features) -> logits (N, classes)."""
    return mlp(features, classes, hidden=())


class Logistic(nn.Module):
    """Logistic regression with one weight per feature: (N, features) -> logits (N, 2), of which the first is 0.

    Softmax and cross-entropy of these are the sigmoid of the second and binary cross-entropy.
    """

    along_last = True  # all that it computes is: inputs may have any dimensions before the last one

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, features) -> (N, 2)."""
        logit = self.head(x)
        return torch.cat((torch.zeros_like(logit), logit), dim=-1)


def logistic(features: int, classes: int = 2) -> Logistic:
    """``Logistic``; raises UserError unless there are two classes."""
    if classes != 2:
        raise UserError(f"network: logistic is for 2 classes, got {classes}")
    return Logistic(features)


class Ordered(nn.Module):
    """A network of one number f and rising cut points c_1 < ... < c_(K-1): log probabilities of K classes in an order.

    P(class > k) = sigmoid(f - c_k), the cumulative logit of McCullagh (JRSS B 42, 1980). The cut points are the first
    one and steps above it, each a softplus of what is trained, so that averages over sites are in order too.

    Args:
        network: (N, ...) -> (N, 1).
        cuts: K - 1, at least 1.
    """

    def __init__(self, network: nn.Module, cuts: int) -> None:
        super().__init__()
        self.network = network
        self.first = nn.Parameter(torch.tensor([-(cuts - 1) / 2]))
        self.steps = nn.Parameter(torch.full((cuts - 1,), math.log(math.e - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, K), whose softmax are the probabilities."""
        widths = F.softplus(self.steps) + NARROWEST
        above = self.network(x) - torch.cat((self.first, self.first + widths.cumsum(0)))
        ends = F.logsigmoid(-above[:, :1]), F.logsigmoid(above[:, -1:])
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)).
        inner = F.logsigmoid(above[:, :-1]) + F.logsigmoid(-above[:, 1:]) + (-torch.expm1(-widths)).log()
        return torch.cat((ends[0], inner, ends[1]), dim=1)


class Attended(nn.Module):
    """Bags pooled by gated attention (Ilse, Tomczak and Welling, ICML 2018, arXiv:1802.04712, equation 9), then a
    network: (N, instances, features) -> (N, ...).

    z = sum_k a_k h_k with a = softmax over instances of w^T (tanh(V h_k) * sigmoid(U h_k)). Instances of zeros alone
    fill up smaller bags and get no weight.

    Args:
        features: of an instance.
        network: (N, features) -> (N, ...).
        hidden: rows of V and U.
    """

    def __init__(self, features: int, network: nn.Module, hidden: int = 64) -> None:
        super().__init__()
        self.v, self.u = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.w, self.network = nn.Linear(hidden, 1), network

    def forward(self, x: Tensor) -> Tensor:
        """Float32 (N, instances, features)."""
        score = self.w(self.v(x).tanh() * self.u(x).sigmoid()).squeeze(-1)
        share = score.masked_fill((x == 0).all(-1), -1e9).softmax(dim=1)
        found: Tensor = self.network((share[:, None] @ x)[:, 0])
        return found


def regression(features: int, classes: int = 2) -> Regression:
    """``Regression`` of two classes, of one output ``Line``; raises UserError for others."""
    if classes not in (1, 2):
        kinds = "2 classes, an amount, a count or one log risk (output=cox)"
        raise UserError(f"network: regression is for {kinds}, got {classes}")
    return Regression(features) if classes > 1 else Line(features)


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


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "small-cnn": small_cnn,
    "small-cnn-bn": partial(small_cnn, norm="batch"),
    "resnet10": resnet10,
    "resnet18": resnet18,
    "mlp": mlp,
    "linear": linear,
    "logistic": logistic,
    "regression": regression,
    "unet": unet,
    "small-unet": small_unet,
}


def build(name: str, *args: int, **kwargs: object) -> nn.Module:
    """The network ``name`` with the arguments of its function; weights come from torch's global generator.

    With ``cuts`` the network of one output is one of ``Ordered`` classes, one more than cuts. Its attribute ``made_of``
    says how it was made, for whoever exports it. UserError lists the valid names where there is no such network.
    """
    if name not in NETWORKS:
        raise UserError(f"network: expected one of {', '.join(NETWORKS)}, got {name!r}")
    cuts = kwargs.pop("cuts", 0)
    network = NETWORKS[name](*args, **kwargs)
    if isinstance(cuts, int) and cuts:
        network, kwargs["cuts"] = Ordered(network, cuts), cuts
    network.made_of = {"name": name, "sizes": list(args), "options": kwargs}  # type: ignore[assignment]  # a plain attribute, which no state dict holds
    return network


def rebuilt(name: str, sizes: Sequence[int], **options: object) -> nn.Module:
    """A network as ``made_of`` describes it."""
    return build(name, *sizes, **options)


def normalisation(network: nn.Module) -> str:
    """What normalises the network's features, as a report says it: "batch", "instance", "group", "layer" or "none"."""
    kinds = {"BatchNorm": "batch", "InstanceNorm": "instance", "GroupNorm": "group", "LayerNorm": "layer"}
    names = {type(module).__name__ for module in network.modules()}
    found = [word for part, word in kinds.items() if any(part in name for name in names)]
    return " and ".join(found) or "none"


def _normalised_by(network: nn.Module, norm: Norm) -> nn.Module:
    """``network`` with ``norm`` in place of every BatchNorm; MONAI's argument of that name reaches the stem alone."""
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, NORMALISATIONS[norm](module.num_features))
    return network


WITHIN = 0.5
"""Standard deviation of sites' own intercepts from which their estimate starts."""


class Regression(nn.Module):
    """Logistic regression in float64: (N, features) -> logits float32 (N, 2), of which the first is 0.

    With P = features + 2 parameters: coefficients, intercept, and ``log_sd``, which only random intercepts use. Sites
    fill the sums, which are means over the patients of a federation once they are weighed by n_k / n; the server alone
    changes ``last`` and ``best``.

    Attributes:
        weight: (features,) coefficients, 0 at first.
        bias: (1,) intercept.
        log_sd: (1,) logarithm of the standard deviation of sites' own intercepts.
        score: (P,) gradient of the mean log-likelihood.
        information: (P, P) minus its second derivatives.
        value: (1,) mean log-likelihood.
        between: (P, P) sum over sites of their scores' outer products, divided by patients.
        own: (5, features) sums over sites, divided by patients, of 1, w, w b, w b^2 and w^2, where b is a coefficient
            of a site's own fit and w one over its variance; 0 of a site that has no such fit.
        last: (P,) parameters of the round before.
        best: (2,) value there, and where there was such a round 1 and the halvings of the step since.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        p = features + 2
        self.weight = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.log_sd = nn.Parameter(torch.full((1,), WITHIN, dtype=torch.float64).log())
        shapes = {"score": (p,), "information": (p, p), "value": (1,), "between": (p, p)}
        shapes |= {"own": (5, features), "last": (p,), "best": (2,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """(N, features) -> (N, 2)."""
        logit = (x.double() @ self.weight + self.bias).to(torch.float32)
        return torch.stack((torch.zeros_like(logit), logit), dim=1)


class Line(Regression):
    """A line in float64: (N, features) -> float32 (N, 1), an amount, the logarithm of a rate, or Cox's log risk.

    A hospital's baseline hazard cancels in its partial likelihood: the intercept and its place in the sums stay 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() @ self.weight + self.bias).to(torch.float32)[:, None]
