# SPDX-License-Identifier: Apache-2.0
"""The networks that tasks offer, by name; those of tables; regressions whose state holds what a Newton step needs."""

from __future__ import annotations

import importlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.errors import UserError

NARROWEST = 1e-3
"""Between two cut points of ``Ordered``."""


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


OF_TABLES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "linear": linear,
    "logistic": logistic,
    "regression": regression,
}
IMAGES = ".images"
"""The module of images' networks beside this one: by a name that no reader of imports follows, as tables need none."""
NETWORKS = ("small-cnn", "small-cnn-bn", "resnet10", "resnet18", *OF_TABLES, "unet", "small-unet")


def build(name: str, *args: int, **kwargs: object) -> nn.Module:
    """The network ``name`` with the arguments of its function; weights come from torch's global generator.

    With ``cuts`` the network of one output is one of ``Ordered`` classes, one more than cuts. Its attribute ``made_of``
    says how it was made, for whoever exports it. UserError lists the valid names where there is no such network.
    """
    if name not in NETWORKS:
        raise UserError(f"network: expected one of {', '.join(NETWORKS)}, got {name!r}")
    cuts = kwargs.pop("cuts", 0)
    makers: Any = OF_TABLES if name in OF_TABLES else importlib.import_module(IMAGES, __package__).NETWORKS
    network = makers[name](*args, **kwargs)
    if isinstance(cuts, int) and cuts:
        network, kwargs["cuts"] = Ordered(network, cuts), cuts
    network.made_of = {"name": name, "sizes": list(args), "options": kwargs}
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
