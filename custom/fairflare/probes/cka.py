# SPDX-License-Identifier: Apache-2.0
"""How far each layer of a site's own model has moved from the anchor, by their features on the same data.

    delta_k^m = similarity of layer m's features under w_k and under the anchor w_G, on data of site k

Yan et al. (Fed-LWR), MICCAI 2024, arXiv:2410.19765, Eq. 2 and 3. Linear CKA: Kornblith et al., "Similarity of Neural
Network Representations Revisited", ICML 2019, https://arxiv.org/abs/1905.00414; the unbiased HSIC is that of Song et
al., JMLR 13, 2012, Eq. 5, as used on mini-batches by Nguyen et al., ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import probe
from fairflare.core.types import Batch, Cost, LocalWork, Need, Number, Outline
from fairflare.core.validation import Few
from fairflare.functional.blocks import LAST_ENCODER, SIMILARITY, Group, layers_of, module_of
from fairflare.probes.base import Probe

if TYPE_CHECKING:
    import numpy.typing as npt

COLUMNS = 1 << 16
"""Features centred and multiplied at once: with 8 examples 2 MB, which stays in cache."""
FEWEST = 4
"""Examples that the unbiased estimator needs."""

Estimator = Literal["unbiased", "biased"]


class Compact(NamedTuple):
    """Centred features X (n, p) of one batch as linear HSIC needs it, in float64: X itself where p < n, else X X^T.

    On small matrices NumPy takes a tenth of the time.
    """

    matrix: npt.NDArray[np.float64]
    is_gram: bool

    @property
    def diagonal(self) -> npt.NDArray[np.float64]:
        """float64 (n,): squared norms of the rows."""
        return self.matrix.diagonal() if self.is_gram else np.square(self.matrix).sum(1)

    def full(self) -> npt.NDArray[np.float64]:
        """float64 (n, n): X X^T."""
        return self.matrix if self.is_gram else self.matrix @ self.matrix.T


def compact(features: torch.Tensor) -> Compact:
    """The compact form of features (n, ...), flattened and centred over the batch.

    Centring first costs the estimators nothing (they are invariant to it) and keeps float32 products accurate. Columns
    are taken in blocks, so that no second copy of the features exists.
    """
    flat = features.detach().flatten(1)
    n, p = flat.shape
    if p < n:
        rows = flat.double().cpu().numpy()
        return Compact(rows - rows.mean(0), is_gram=False)
    gram = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
    for block in torch.split(flat, COLUMNS, dim=1):
        block = block.to(torch.promote_types(block.dtype, torch.float32))
        centred = block - block.mean(0)
        gram += (centred @ centred.T).double()
    return Compact(gram.cpu().numpy(), is_gram=True)


def joined(a: Compact, b: Compact) -> Compact:
    """The compact form of both features side by side, for a module that is called twice."""
    return Compact(a.full() + b.full(), is_gram=True)


def hsic(a: Compact, b: Compact, estimator: Estimator) -> float:
    """The Hilbert-Schmidt independence criterion of two linear kernels on the same n examples.

    "biased": <K, L>_F / (n - 1)^2 of centred kernels. "unbiased" (HSIC_1, n >= 4): diagonals set to zero; since the
    features are centred, every row of K sums to 0 and all of its sums follow from the diagonals k and l.
    """
    if a.is_gram or b.is_gram:
        inner = float((a.full() * b.full()).sum())
    else:
        inner = float(np.square(a.matrix.T @ b.matrix).sum())
    k, l = a.diagonal, b.diagonal  # noqa: E741  (the literature's names)
    n = len(k)
    if estimator == "biased":
        return inner / (n - 1) ** 2
    if n < FEWEST:
        raise ValueError(f"unbiased CKA: expected at least {FEWEST} examples in a batch, got {n}")
    product, sums = float(k @ l), float(k.sum() * l.sum())
    return (inner - product + sums / ((n - 1) * (n - 2)) - 2 * product / (n - 2)) / (n * (n - 3))


def cka(cross: float, own: float, other: float) -> float | None:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) from sums over batches, kept within [-1, 1].

    None where it says nothing: constant features, or an unbiased HSIC(K, K) that came out at or below zero.
    """
    if own <= 0 or other <= 0:
        return None
    value = cross / math.sqrt(own * other) if own * other > 0 else math.nan
    return min(max(value, -1.0), 1.0) if math.isfinite(value) else None


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float64 (n,): cosine of each example's flattened features, 0 where either is zero."""
    a, b = (x.detach().flatten(1).double() for x in (a, b))
    norms = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(norms > 0, (a * b).sum(1) / norms.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


Observe: TypeAlias = "Callable[[str, torch.Tensor], None]"
Shapes: TypeAlias = "dict[str, torch.Size]"
Found: TypeAlias = "tuple[dict[str, float | None], Shapes]"
"""Layer -> similarity, and the layers' shapes in the order of their call."""


@probe("layer-similarity")
@dataclass(frozen=True)
class LayerSimilarity(Probe):
    """Similarity of the trained model's and the anchor's layers; two forward passes over a fixed set of examples.

    Both models pass through the one network, one after the other: in between, a layer is remembered as an n x n matrix
    per batch (CKA), which a forward hook computes before the layer's output is used or overwritten.

    Args:
        similarity: linear "cka", "cosine", the mean over examples of the cosine of flattened features (v1), or "paper":
            Eq. 2 as printed, CKA with the biased HSIC of all training examples at once, for which memory must suffice;
            ``estimator``, ``cka_split``, ``cka_examples`` and ``cka_batch`` have no part in it.
        scope: "layers", or "last_encoder" alone (v2): of the layers before the last one, the last of those whose output
            is smallest in space.
        group: what a layer is, see ``layers.layers_of``.
        estimator: "unbiased" or "biased" HSIC, summed over batches before the ratio is taken; on batches of 8 images
            the biased one is near 1 whatever the features are.
        cka_split: "train" or "val" (the authors' code).
        cka_examples: at most so many examples, evenly spaced over the split; 0 takes all.
        cka_batch: examples per batch, at least 4; 0 is the training batch size.
    """

    cost: ClassVar[Cost] = Cost(forward=2)
    when = "anchored"

    similarity: Literal["cka", "cosine", "paper"] = "cka"
    scope: Literal["layers", "last_encoder"] = "layers"
    group: Group = "leaf"
    estimator: Estimator = "unbiased"
    cka_split: Literal["train", "val"] = "train"
    cka_examples: Few = 256
    cka_batch: Few = 0

    def __post_init__(self) -> None:
        if self.cka_examples and self.cka_examples < FEWEST:
            raise ValueError(f"cka_examples must be 0 or at least {FEWEST}, got {self.cka_examples}")
        if self.cka_batch and self.cka_batch < FEWEST:
            raise ValueError(f"cka_batch must be 0 or at least {FEWEST}, got {self.cka_batch}")

    def scalars(self, outline: Outline) -> tuple[Number, ...]:
        layers = list(layers_of(outline.model, self.group))
        names = [LAST_ENCODER] if layers and self.scope == "last_encoder" else layers
        meaning = "similarity of the site's features to the anchor's, 1 for equal ones"
        return tuple(Number(f"{SIMILARITY}/{name}", -1.0, 1.0, meaning) for name in names)

    @property
    def _split(self) -> Literal["train", "val"]:
        return "train" if self.similarity == "paper" else self.cka_split

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(self._split, FEWEST, "the method compares features on it"),)

    @no_grad
    def measure(self, work: LocalWork) -> dict[str, float]:
        """Layer -> similarity; a layer whose features say nothing (constant, never computed) is left out.

        Nothing is said on fewer than four examples: the site then stands at the others' mean everywhere.
        """
        if work.data.size(self._split) < FEWEST:
            return {}
        network = work.network.eval()
        points = self._points(network)
        own = {name: value.clone() for name, value in network.state_dict().items()}
        try:
            run = self._cosines if self.similarity == "cosine" else self._ckas
            found, shapes = run(work, points, own)
        finally:
            network.load_state_dict(own)
        if self.scope == "last_encoder":
            last = last_encoder(shapes)
            found = {LAST_ENCODER: found[last]} if last in found else {}
        return {f"{SIMILARITY}/{name}": value for name, value in found.items() if value is not None}

    def _points(self, network: torch.nn.Module) -> dict[str, str]:
        """Module to listen to -> layer."""
        layers = layers_of(network.state_dict(), self.group)
        return {module_of(name, keys, self.group): name for name, keys in layers.items()}

    def _ckas(self, work: LocalWork, points: dict[str, str], own: dict[str, torch.Tensor]) -> Found:
        """One pass with the site's model, whose batches are remembered, then one with the anchor."""
        local = [self._compacts(work, points, batch) for batch in self._batches(work)]
        work.network.load_state_dict(work.received)
        sums: dict[str, list[float]] = {}
        estimator: Estimator = "biased" if self.similarity == "paper" else self.estimator
        for (mine, _), batch in zip(local, self._batches(work)):
            anchor, _ = self._compacts(work, points, batch)
            for name in mine.keys() & anchor.keys():
                a, b = mine[name], anchor[name]
                found = [hsic(*pair, estimator) for pair in ((a, b), (a, a), (b, b))]
                sums[name] = [total + one for total, one in zip(sums.get(name, [0.0] * 3), found)]
        return {name: cka(*sums[name]) for name in points.values() if name in sums}, local[0][1]

    def _compacts(self, work: LocalWork, points: dict[str, str], batch: Batch) -> tuple[dict[str, Compact], Shapes]:
        found: dict[str, Compact] = {}
        shapes: Shapes = {}

        def observe(name: str, features: torch.Tensor) -> None:
            if len(features) != len(batch.targets):
                return
            new = compact(features)
            found[name] = joined(found[name], new) if name in found else new
            shapes[name] = features.shape

        _forward(work, points, batch, observe)
        return found, shapes

    def _cosines(self, work: LocalWork, points: dict[str, str], own: dict[str, torch.Tensor]) -> Found:
        """Both models on one image at a time: a cosine needs both features at once, and all layers' are many."""
        totals: dict[str, list[float]] = {}
        shapes: Shapes = {}
        for batch in self._batches(work):
            singles = map(Batch._make, zip(*(part.split(1) for part in batch)))
            for one in singles if batch.inputs.dim() > 2 else [batch]:
                work.network.load_state_dict(own)
                mine = _features(work, points, one)
                shapes = {name: x.shape for name, x in mine.items()}
                work.network.load_state_dict(work.received)
                _forward(work, points, one, partial(_add_cosines, totals, mine))
        return {name: math.fsum(v) / len(v) for name, v in totals.items() if v}, shapes

    def _batches(self, work: LocalWork) -> Iterator[Batch]:
        """The probe set's batches on the device, the same at every call; none has fewer than four examples."""
        size, most = max(self.cka_batch or work.training.batch_size, FEWEST), self.cka_examples or None
        if self.similarity == "paper":
            size, most = work.data.size(self._split), None
        held: Batch | None = None
        for batch in work.data.fixed(self._split, size, most):
            if held is not None and len(batch.targets) < FEWEST:
                held = Batch(*(torch.cat(pair) for pair in zip(held, batch)))
                continue
            if held is not None:
                yield held.to(work.device)
            held = batch
        if held is not None:
            yield held.to(work.device)


def last_encoder(shapes: Shapes) -> str | None:
    """Of the layers before the last, in the order of their call, the last with the smallest extent in space."""
    before = list(shapes)[:-1]
    spatial = [name for name in before if len(shapes[name]) > 2] or before
    extents = {name: math.prod(shapes[name][2:]) for name in spatial}
    return next((name for name in reversed(spatial) if extents[name] == min(extents.values())), None)


def _forward(work: LocalWork, points: dict[str, str], batch: Batch, observe: Observe) -> None:
    """Every output of a module in ``points`` is shown to ``observe``; no hook outlives the pass."""
    work.stop_if_aborted()

    def hook_for(layer: str) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(module: torch.nn.Module, inputs: object, output: object) -> None:
            features = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(features, torch.Tensor) and features.is_floating_point():
                observe(layer, features)

        return hook

    with ExitStack() as hooks:
        for name, module in work.network.named_modules():
            if name in points:
                hooks.callback(module.register_forward_hook(hook_for(points[name])).remove)
        work.network(batch.inputs)


def _features(work: LocalWork, points: dict[str, str], batch: Batch) -> dict[str, torch.Tensor]:
    """Copies of all layers' outputs: a later module may write into them."""
    found: dict[str, torch.Tensor] = {}
    _forward(work, points, batch, lambda name, x: found.update({name: x.clone()}))
    return found


def _add_cosines(
    totals: dict[str, list[float]], mine: dict[str, torch.Tensor], name: str, features: torch.Tensor
) -> None:
    """Compare one layer's features with those of the other model, which are let go at once."""
    if name in mine:
        totals.setdefault(name, []).extend(cosine(mine.pop(name), features).tolist())
