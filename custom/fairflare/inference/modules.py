# SPDX-License-Identifier: Apache-2.0
"""What stands before and after a run's network in an exported model: plain torch, traced or copied as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """Images (N, C, H, W), or volumes of three ``axes``, of 0 to 255 -> (x / 255 - mean) / std per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], axes: int = 2) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, *(1,) * axes))
        self.register_buffer("std", torch.tensor(list(std)).view(-1, *(1,) * axes))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, channels of the network, H, W)."""
        return (x / 255 - self.mean) / self.std


class Rows(nn.Module):
    """Raw features (N, n + m), nan where a number is missing -> scaled ones; the last m are taken as they are."""

    fill: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, fill: Sequence[float], mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        spread = [value if value > 0 else 1.0 for value in std]
        for name, values in (("fill", fill), ("mean", mean), ("std", spread)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32))
        self.n = len(fill)

    def forward(self, x: Tensor) -> Tensor:
        """float32 (N, n + m) -> the same shape without nan."""
        numbers, plain = x[:, : self.n], x[:, self.n :]
        filled = torch.where(torch.isnan(numbers), self.fill.expand_as(numbers), numbers)
        return torch.cat(((filled - self.mean) / self.std, plain), dim=1)


class Line(nn.Module):
    """Logits (N, 2) -> probabilities at intercept + slope z of the logit z, limited beyond ``far``."""

    def __init__(self, intercept: float, slope: float, far: float, beyond: float) -> None:
        super().__init__()
        self.intercept, self.slope, self.far, self.beyond = intercept, slope, far, beyond

    def forward(self, logits: Tensor) -> Tensor:
        """(N, 2), rows sum to 1."""
        z = logits[:, 1] - logits[:, 0]
        size = z.abs()
        limited = size.clamp(max=self.far) + self.beyond * torch.log1p((size - self.far).clamp(min=0.0))
        p = torch.sigmoid(self.intercept + self.slope * torch.sign(z) * limited)
        return torch.stack((1 - p, p), dim=1)


class Temperature(nn.Module):
    """Logits (N, C) -> softmax of how far each is below the largest, limited beyond ``gap``, over a temperature."""

    def __init__(self, temperature: float, gap: float, beyond: float) -> None:
        super().__init__()
        self.temperature, self.gap, self.beyond = temperature, gap, beyond

    def forward(self, logits: Tensor) -> Tensor:
        """(N, C), rows sum to 1."""
        below = logits.amax(dim=1, keepdim=True) - logits
        limited = below.clamp(max=self.gap) + self.beyond * torch.log1p((below - self.gap).clamp(min=0.0))
        return torch.softmax(-limited / self.temperature, dim=1)


class Scaled(nn.Module):
    """Amounts in spreads from the mean -> in their units."""

    def __init__(self, mean: float, spread: float) -> None:
        super().__init__()
        self.mean, self.spread = mean, spread

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1) -> (N, 1)."""
        return self.mean + self.spread * x


class Rate(nn.Module):
    """Logarithms of rates -> rates, linear beyond ``limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1) -> (N, 1)."""
        return x.clamp(max=self.limit).exp() * (1 + (x - self.limit).clamp(min=0.0))


class Survival(nn.Module):
    """Logits of the hazard in each interval -> survival after it."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, K) -> the same shape, in [0, 1]."""
        return torch.exp(-nn.functional.softplus(x).cumsum(1))


class Proportional(nn.Module):
    """Log risks -> the log risk, and survival at K times under a baseline's cumulative hazard."""

    log_hazards: Tensor

    def __init__(self, log_hazards: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("log_hazards", torch.tensor(list(log_hazards)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1) -> (N, 1 + K)."""
        return torch.cat((x, torch.exp(-torch.exp(x + self.log_hazards))), dim=1)


class Whole(nn.Module):
    """Inputs as a file has them -> probabilities."""

    def __init__(self, before: nn.Module, network: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.network, self.after = before, network, after

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, C) or (N, C, H, W)."""
        return self.after(self.network(self.before(x)))
