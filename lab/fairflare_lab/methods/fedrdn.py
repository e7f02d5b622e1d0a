# SPDX-License-Identifier: Apache-2.0
"""FedRDN: training images are normalised with the statistics of a site that is drawn anew for each of them.

A site's data, wherever they are used, are normalised with the site's own pair (mu_k, sigma_k). A training step takes
each image on from there to the pair of a drawn site: (x - mu_j) / sigma_j. Whatever normalisation the task has of its
own, the same at all sites, cancels.

Yan et al. (FedRDN), CVPR 2025, https://arxiv.org/abs/2306.09363: means over a site's images of each image's own mean
and standard deviation. Its public code divides by n - 1 (``sample``); FL-MedSegBench pools all pixels (``pixels``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from fairflare.core.errors import UserError
from fairflare.core.registry import method
from fairflare.core.seeds import derive
from fairflare.core.types import (
    Batch,
    Info,
    LocalWork,
    Objective,
    Outline,
    Reply,
    SiteData,
    SplitName,
    StateDict,
    TensorSpec,
)
from fairflare.trainers.base import Optimizer, PlainTrainer, ServerState

Statistic = Literal["images", "sample", "pixels"]
LEAST_SD = 1e-8
"""Standard deviations below this count as this: a channel may be constant."""


class Pair(NamedTuple):
    """Statistics of a site's images: float64 (C,) each, ``sd`` >= 1e-8."""

    mean: torch.Tensor
    sd: torch.Tensor


def pair_of(images: Iterable[torch.Tensor], statistic: Statistic = "images") -> Pair:
    """The pair of all images, in one pass over batches (N, C, ...) of them; ValueError where there is no image.

    "images": means over the images of their own mean and standard deviation, divided by the number of pixels; "sample":
    by that number less one; "pixels": mean and standard deviation of all pixels together.
    """
    first, second, n = torch.zeros(()), torch.zeros(()), 0
    for batch in images:
        flat = batch.flatten(2).double()
        pixels, sample = statistic == "pixels", int(statistic == "sample")
        spread = flat.square().mean(2) if pixels else flat.std(2, correction=sample)
        first, second = first + flat.mean(2).sum(0).cpu(), second + spread.sum(0).cpu()
        n += len(batch)
    if not n:
        raise ValueError("expected at least one image")
    mean, sd = first / n, second / n
    if statistic == "pixels":
        sd = (sd - mean.square()).clamp_min(0).sqrt()
    return Pair(mean, sd.nan_to_num(0.0).clamp_min(LEAST_SD))


def normalised_by(images: torch.Tensor, pair: Pair) -> torch.Tensor:
    """(x - mean) / sd per channel of images (N, C, ...)."""
    mean, sd = (_per_channel(one, images) for one in pair)
    return (images - mean) / sd


def renormalised(images: torch.Tensor, own: Pair, means: torch.Tensor, sds: torch.Tensor) -> torch.Tensor:
    """Images that ``own`` has normalised, as if each had been normalised by another pair.

    ``means`` and ``sds`` (> 0) are (N, C), those of each image's other pair.
    """
    factor, shift = own.sd / sds, (own.mean - means) / sds
    return images * _per_channel(factor, images) + _per_channel(shift, images)


def _per_channel(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """(C,) or (N, C) as it multiplies images (N, C, ...)."""
    return values.to(images).reshape(*values.shape, *[1] * (images.dim() - 2))


MOST_SITES = 1000
"""Whose pairs are handed out, the first by name."""
FARTHEST = 1000.0
"""By how much another site's pair may scale or shift images that are normalised with the own one."""
MEASURE = 64
"""Images per batch while statistics are taken."""
STATISTICS: dict[str, Statistic] = {"paper": "images", "reference": "sample", "medsegbench": "pixels"}


def channels(model: StateDict) -> int:
    """Channels of the images that a network takes: of its first convolution; 0 without one."""
    return next((int(value.shape[1]) for value in model.values() if value.dim() > 3), 0)


def _pairs(names: Iterable[object], outline: Outline) -> dict[str, tuple[int, ...]]:
    wide = channels(outline.model)
    return {str(name): (2, wide) for name in names} if wide else {}


MEANING = "mean and log standard deviation of the site's training images per channel"
OWN = TensorSpec("statistics", partial(_pairs, ["pair"]), MEANING)
ALL = TensorSpec("all_statistics", partial(_pairs, range(MOST_SITES)), "those of all sites that sent theirs, unnamed")


class OwnNormalised:
    """A site's images normalised with the site's own pair, the ``statistic`` of its training images; else its data."""

    def __init__(self, data: SiteData, statistic: Statistic) -> None:
        self._data, self._statistic, self.size = data, statistic, data.size
        self.class_counts, self.group_counts = data.class_counts, data.group_counts

    @cached_property
    def pair(self) -> Pair:
        """The site's own, taken when it is first asked for."""
        return pair_of((batch.inputs for batch in self._data.fixed("train", MEASURE)), self._statistic)

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        return self._normalised(self._data.training(batch_size, seed))

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        return self._normalised(self._data.fixed(split, batch_size, at_most))

    def _normalised(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        pair = self.pair
        return (batch._replace(inputs=normalised_by(batch.inputs, pair)) for batch in batches)


@method(
    "fedrdn",
    title="FedRDN",
    summary="FedAvg on images normalised with the statistics of drawn sites; for scanners that differ.",
    paper="Yan et al.: A Simple Data Augmentation for Feature Distribution Skewed Federated Learning. CVPR 2025. "
    "https://arxiv.org/abs/2306.09363",
)
@dataclass(frozen=True)
class FedRDN(PlainTrainer):
    """Plain training on images that are normalised with the statistics of drawn sites (Yan et al., CVPR 2025).

    A site sends its pair once and is sent all pairs from the next round on; until then, and where it is alone, it
    trains on images that its own pair has normalised. Measured and evaluated is always with the own pair.

    Args:
        variant: "paper": one pair per image, means of each image's own mean and standard deviation; "reference" (the
            authors' code): mean and standard deviation of two drawn sites, once per batch, by n - 1;
            "medsegbench": the paper's draw, statistics of all pixels together.
    """

    sends: ClassVar[tuple[Any, ...]] = (OWN,)
    receives: ClassVar[tuple[TensorSpec, ...]] = (ALL,)
    variant: Literal["paper", "reference", "medsegbench"] = "paper"

    def unsuited(self, network: torch.nn.Module) -> str:
        return "" if channels(network.state_dict()) else "expected a network of convolutions, which takes images"

    def site_data(self, data: SiteData) -> SiteData:
        return data if isinstance(data, OwnNormalised) else OwnNormalised(data, STATISTICS[self.variant])

    def shared_batches(self, batches: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """A shared test set, normalised with its own pair: it stands for a site that has yet to join."""
        pair = pair_of((batch.inputs for batch in batches()), STATISTICS[self.variant])
        return (batch._replace(inputs=normalised_by(batch.inputs, pair)) for batch in batches())

    def setup(self, work: LocalWork) -> None:
        own, taken = self._own(work), channels(work.network.state_dict())
        if len(own.mean) != taken:
            raise UserError(f"fedrdn: expected images of {taken} channels, as the network takes, got {len(own.mean)}")
        sent = work.tensors.get(ALL.name, {})
        pairs = [_read(sent[name]) for name in sorted(sent, key=int)]
        generator = torch.Generator().manual_seed(derive(work.seed, "pairs"))
        work.scratch.update(own=own, pairs=[pair for pair in pairs if _usable(pair, own)], generator=generator)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        pairs: Sequence[Pair] = work.scratch["pairs"]
        if pairs:
            means, sds = self.drawn(pairs, len(batch.targets), work.scratch["generator"])
            batch = batch._replace(inputs=renormalised(batch.inputs, work.scratch["own"], means, sds))
        return super().step(work, optimizer, objective, batch)

    def drawn(self, pairs: Sequence[Pair], n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and standard deviations (n, C), or (1, C) for a whole batch, of uniformly drawn sites."""
        if self.variant == "reference":
            first, second = torch.randint(len(pairs), (2, 1), generator=generator)
        else:
            first = second = torch.randint(len(pairs), (n,), generator=generator)
        return torch.stack([p.mean for p in pairs])[first], torch.stack([p.sd for p in pairs])[second]

    def finish(self, work: LocalWork) -> None:
        """Send the own pair unless the server has it, or it is of fewer images than may be told of."""
        enough = work.min_count is not None and work.data.size("train") >= work.min_count
        if enough and not work.orders.get("statistics_known"):
            own = self._own(work)
            work.send_tensors[OWN.name] = {"pair": torch.stack((own.mean, own.sd.log())).float()}

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        sent = {r.site: r.tensors[OWN.name]["pair"] for r in replies if "pair" in r.tensors.get(OWN.name, {})}
        return {"pairs": {**state.get("pairs", {}), **sent}}

    def orders(self, state: ServerState, site: str, info: Info) -> dict[str, float]:
        return {"statistics_known": 1.0} if site in state.get("pairs", {}) else {}

    def tensors_for(self, state: ServerState, site: str, info: Info) -> dict[str, StateDict]:
        """All pairs in the order of the sites' names, the same for every site."""
        pairs = state.get("pairs", {})
        found = {str(k): pairs[name] for k, name in enumerate(sorted(pairs)[:MOST_SITES])}
        return {ALL.name: found} if found else {}

    def _own(self, work: LocalWork) -> Pair:
        data = self.site_data(work.data)
        assert isinstance(data, OwnNormalised)
        return data.pair


def _read(tensor: torch.Tensor) -> Pair:
    """A pair as it travels: the logarithm of a standard deviation may be any number."""
    mean, log_sd = tensor.double()
    most = -math.log(LEAST_SD)
    return Pair(mean, log_sd.clamp(-most, most).exp())


def _usable(pair: Pair, own: Pair) -> bool:
    """Whether images stay within reach: what a site sends reaches every other one's training."""
    factor, shift = own.sd / pair.sd, (own.mean - pair.mean) / pair.sd
    return len(pair.mean) == len(own.mean) and bool(((factor <= FARTHEST) & (shift.abs() <= FARTHEST)).all())
