# SPDX-License-Identifier: Apache-2.0
"""The bench's tasks, of real handwriting and scans, and its ceilings and placebos as server rules."""

from __future__ import annotations

import dataclasses
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.ndimage import binary_dilation
from torch import nn

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, uniform
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.aggregators.fedism import RADIUS, FedISM
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core.notes import Note
from fairflare.core.registry import method, rule
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Info, Paper, Reply, StateDict, Training, Weights
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.partition import dirichlet_with_corrupted, redrawn
from fairflare.engine.setup import tasks
from fairflare.functional.consistency import least_count
from fairflare.networks import builtin as networks
from fairflare.tasks.base import DATA_FOLDER, PARTITION, RENDERING, SPLIT, Preset, Task, TestSet, expect, site_index
from fairflare.tasks.kinds.masks import MASKS
from fairflare_lab.datasets import digits
from fairflare_lab.datasets.poor_images import MOTION_ANGLES, motion_blur

EDGE = 16
HIDDEN = (80, 40)
VALIDATION = "validation"
"""The shared test set that the plateau is judged on: nobody's training images, looks and qualities as at the sites."""
Part = tuple[np.ndarray, np.ndarray, Mapping[str, Sequence[str]]]
"""Images float32 (N, ...), targets, and attributes."""
Sites = Mapping[str, Mapping[str, Part]]


@lru_cache(maxsize=2)
def images(domain: str, seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (n, 32, 32) grey images of a look of the task ``digits`` and their classes, in an order of the seed."""
    numbers = digits.numbers_in(domain, seed)[:n]
    drawn = np.stack([digits.drawn_digit(domain, k, seed) for k in numbers])
    return drawn.mean(1).round().astype(np.uint8), digits.classes_of(domain)[numbers]


@lru_cache(maxsize=2)
def handwriting(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The 5,000 images of MNIST, uint8 (5000, 32, 32), and their classes, in an order of the seed."""
    order = np.random.default_rng(derive(seed, "plateau", "order")).permutation(5000)
    x, y = digits._mnist()
    return np.stack([digits._scaled(x[k]) for k in order]), y[order]


def small(x: np.ndarray) -> np.ndarray:
    """uint8 (N, 32, 32) as uint8 (N, 16, 16), means of 2 x 2 pixels."""
    return x.reshape(-1, EDGE, 2, EDGE, 2).mean((2, 4)).round().astype(np.uint8)


def flat(x: np.ndarray) -> np.ndarray:
    """uint8 (N, H, W) as float32 (N, H W) in [0, 1]."""
    return (x.reshape(len(x), -1) / 255).astype(np.float32)


@dataclass(frozen=True)
class Whole(TestSet):
    """A test set in few batches, as each round is scored."""

    def batches(self, batch_size: int) -> Iterator[Batch]:
        return super().batches(500)


@dataclass(frozen=True)
class Bench(Task):
    """What the bench's tasks share; ``built`` gives all sites and shared test sets of a data seed at once."""

    real = digits.SOURCE
    simulated = "what is wrong at some sites"
    classes = digits.CLASSES
    headline = "accuracy"
    hidden: ClassVar[tuple[int, ...]] = HIDDEN
    presets = {"bench": Preset("see lab/plateau", {}, Training())}
    data_seed: int = 0

    def drawn(self) -> tuple[str, ...]:
        return PARTITION, SPLIT, RENDERING

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.headline,)  # others cost more than the training

    def network(self) -> nn.Module:
        return networks.mlp(EDGE**2, len(self.classes), self.hidden)

    @abstractmethod
    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        """Site -> split -> examples, and the shared test sets."""

    def own_test(self, site: str) -> str:
        """The shared test set that is a site's own, too; "": it has none."""
        return ""

    def site_data(self, site: str) -> TensorData:
        site_index(site, self.sites())
        parts, sets = _built(self)
        splits = {**parts[site]}
        if own := self.own_test(site):
            splits["test"] = (*sets[own], {})
        found = {
            name: Split(torch.from_numpy(x), torch.from_numpy(y), attributes)
            for name, (x, y, attributes) in splits.items()
        }
        return TensorData.of(found, n_classes=len(self.classes) if self.kind.has_classes else 0)

    def test_sets(self) -> tuple[TestSet, ...]:
        found = _built(self)[1]
        return tuple(Whole(name, False, torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in found.items())

    def table_sets(self) -> dict[str, str]:
        """All of them: a curve needs each round's score."""
        return {name: name for name in _built(self)[1]}


@lru_cache(maxsize=2)
def _built(task: Bench) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
    return task.built()


def cut(
    x: np.ndarray, y: np.ndarray, n_val: int, attributes: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Part]:
    """A site's examples as splits: the first ``n_val`` are for validation; test sets are shared."""
    found = {}
    for name, rows in (("val", slice(0, n_val)), ("test", slice(0, 0)), ("train", slice(n_val, None))):
        found[name] = (x[rows], y[rows], {key: values[rows] for key, values in (attributes or {}).items()})
    return found


@dataclass(frozen=True)
class Quality(Bench):
    """10 sites of 120 images, of which site 9 is noisy and site 10 blurred.

    Args:
        alpha: concentration of a Dirichlet label skew as in FedISM+; 0: the same number of each class nearly.
    """

    name = "plateau-quality"
    title = "Digits, one of ten sites noisy and one blurred"
    alpha: float = 0.0
    noise: float = 0.5
    per_site: int = 120
    n_sites: int = 10

    kinds: ClassVar[tuple[str, ...]] = ("clean",) * 8 + ("noise", "blur")
    blur: ClassVar[float] = 0.2
    """Of ``motion_blur``'s radii, which are made for 224 pixels."""

    def sites(self) -> dict[str, str]:
        return {f"site-{k}": kind for k, kind in enumerate(self.kinds, start=1)}

    def drawn_images(self) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (N, H, W) and classes (N,): sites have the first, tests the last 1,000, validation the 1,000 before."""
        return handwriting(self.data_seed)

    def seen(self, x: np.ndarray) -> np.ndarray:
        """uint8 (N, H, W) as the network sees it, float32 (N, pixels) in [0, 1]."""
        return flat(small(x))

    def spoilt(self, x: np.ndarray, kind: str, rng: np.random.RandomState) -> np.ndarray:
        """(N, pixels) of (N, H, W): clean, with Gaussian noise, or blurred by motion."""
        if kind == "blur":
            x = np.stack([motion_blur(one, 5, rng.uniform(*MOTION_ANGLES), scale=self.blur) for one in x])
        found = self.seen(x)
        if kind == "noise":
            found = np.clip(found + rng.normal(0, self.noise, found.shape), 0, 1).astype(np.float32)
        return found

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        x, y = self.drawn_images()
        n, rng = self.per_site * self.n_sites, np.random.RandomState(derive(self.data_seed, "spoilt") % 2**32)
        if self.alpha:
            poor = len(self.kinds) - self.kinds.count("clean")
            places = redrawn(
                lambda seed: dirichlet_with_corrupted(y[:n], self.n_sites, poor, self.alpha, seed), y[:n], self.n_sites,
                self.data_seed % 2**32, minimum=20,
            )  # fmt: skip
        else:
            places = np.empty(n, int)
            places[np.argsort(y[:n], kind="stable")] = np.arange(n) % self.n_sites
        found = {
            site: cut(self.spoilt(x[:n][places == k], kind, rng), y[:n][places == k], 0)
            for k, (site, kind) in enumerate(self.sites().items())
        }
        kinds = ("clean", "noise", "blur")
        sets = {kind: (self.spoilt(x[-1000:], kind, rng), y[-1000:]) for kind in kinds}
        shares = (slice(0, 800), slice(800, 900), slice(900, 1000))
        parts = [self.spoilt(x[-2000:-1000][part], kind, rng) for kind, part in zip(kinds, shares)]
        return found, {**sets, VALIDATION: (np.concatenate(parts), y[-2000:-1000])}


@dataclass(frozen=True)
class Quality20(Quality):
    """20 sites of 120 images: the last two blurred, the two before them noisy."""

    name = "plateau-quality-20"
    title = "Digits, two of twenty sites noisy and two blurred"
    n_sites: int = 20
    kinds = ("clean",) * 16 + ("noise",) * 2 + ("blur",) * 2


@dataclass(frozen=True)
class QualityOwn(Quality):
    """``Quality`` whose sites are tested on images of their own quality."""

    name = "plateau-quality-own"

    def own_test(self, site: str) -> str:
        return self.sites()[site]


@dataclass(frozen=True)
class Scans(Quality20):
    """``Quality20`` of real scans: MedNIST at 28 x 28 pixels, in the file mednist28.npz of FAIRFLARE_DATA.

    It has ``{train,val,test}_images`` (N, 28, 28) uint8 and ``_labels`` (N, 1). Neighbouring slices of one scan may be
    on both sides of a split: an accuracy says nothing clinical.
    """

    name = "plateau-scans"
    title = "MedNIST, two of twenty sites noisy and two blurred"
    real = "the scans (MedNIST: Dr. Bradley J. Erickson, Mayo Clinic, CC BY-SA 4.0)"
    classes = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")
    noise: float = 0.6
    per_site: int = 60
    blur = 0.5

    def network(self) -> nn.Module:
        return networks.mlp(SCAN_EDGE**2, len(self.classes), self.hidden)

    def drawn_images(self) -> tuple[np.ndarray, np.ndarray]:
        folder = os.environ.get(DATA_FOLDER)
        expect(DATA_FOLDER, bool(folder), "the folder of mednist28.npz", folder)
        parts = []
        with np.load(Path(str(folder)) / "mednist28.npz", allow_pickle=False) as file:
            for name, n in (("train", None), ("val", 1000), ("test", 1000)):
                x, y = file[f"{name}_images"], file[f"{name}_labels"].reshape(-1).astype(np.int64)
                order = np.random.default_rng(derive(self.data_seed, "plateau", name)).permutation(len(y))[:n]
                parts.append((x[order], y[order]))
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    def seen(self, x: np.ndarray) -> np.ndarray:
        return flat(x)


SCAN_EDGE = 28

METHOD = Paper("The FairFLARE authors", "Plateau bench", "benchmarks", 2026, "lab/plateau")


@rule("plateau-fixed")
@dataclass(frozen=True)
class Fixed(Rule):
    """A ceiling: weights fixed by hand, with knowledge of what is wrong where.

    Args:
        chosen: numbers of sites, with + between them.
        share: their total weight; the others share the rest.
        layers: beginnings of entries, with + between them, that it holds for; others are averaged evenly. Empty: all.
    """

    chosen: str = ""
    share: float = 0.5
    layers: str = ""

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        known = {f"site-{k}" for k in self.chosen.split("+")}
        here = [r.site for r in replies]
        n = sum(site in known for site in here)
        weights = {s: self.share / n if s in known else (1 - self.share) / (len(here) - n) for s in here}
        starts = tuple(self.layers.split("+")) if self.layers else ("",)
        held = {key: value for key, value in model.items() if key.startswith(starts)}
        rest = {key: value for key, value in model.items() if key not in held}
        made = add_weighted(held, replies, weights) | add_weighted(rest, replies, uniform(here))
        return Outcome({key: made[key] for key in model}, weights, state)


def dealt(names: Sequence[str], *seed: object) -> dict[str, str]:
    """Each of the names -> another, or the same, at random."""
    order = np.random.default_rng(derive(0, "shuffled", *seed)).permutation(len(names))
    return {name: names[k] for name, k in zip(names, order)}


@rule("plateau-shuffled-ism")
@dataclass(frozen=True)
class ShuffledISM(FedISM):
    """A placebo: FedISM+'s weights, each at another site, the same one throughout a run of a ``deal``."""

    deal: int = 0

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        weights, following = super().weigh(replies, state, info)
        return {site: weights[other] for site, other in dealt(list(weights), self.deal).items()}, following


@rule("plateau-shuffled-heal")
@dataclass(frozen=True)
class ShuffledHEAL(FedHEAL):
    """A placebo: in each round FedHEAL takes each site's update for another's: no history or weight is a site's own."""

    deal: int = 0

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        named = dealt([r.site for r in replies], self.deal, info.round.number)
        others = sorted((dataclasses.replace(r, site=named[r.site]) for r in replies), key=lambda r: r.site)
        found = super().aggregate(model, others, state, info)
        weights = {site: found.weights[other] for site, other in named.items()}
        return dataclasses.replace(found, weights=weights, notes={})


@rule("plateau-heal")
@dataclass(frozen=True)
class ToldHEAL(FedHEAL):
    """FedHEAL that tells how far the updates agree as it averages them: under its masks.

    Args:
        deal: >= 0: a placebo as in ``ShuffledHEAL``.
    """

    notes = (Note("agreement", "Cosine with the others", meaning="Mean over the other sites, of what is averaged."),)
    deal: int = -1

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        sites = [r.site for r in replies]
        named = dealt(sites, self.deal, info.round.number) if self.deal >= 0 else {site: site for site in sites}
        others = sorted((dataclasses.replace(r, site=named[r.site]) for r in replies), key=lambda r: r.site)
        found = super().aggregate(model, others, state, info)
        kept = np.stack([self._kept(reply, found.state) for reply in others])
        unit = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        cosines = unit @ unit.T
        means = (cosines.sum(1) - np.diag(cosines)) / (len(others) - 1)
        by_name = {reply.site: float(mean) for reply, mean in zip(others, means)}
        weights = {site: found.weights[other] for site, other in named.items()}
        return dataclasses.replace(
            found, weights=weights, notes={"agreement": {site: by_name[other] for site, other in named.items()}}
        )

    def _kept(self, reply: Reply, state: State) -> np.ndarray:
        """An update's trainable entries as averaged: 0 where they are masked; (entries,)."""
        keys = sorted(set(reply.update) & reply.trainable) if self.parts == "fael" else list(state["sizes"])
        found = np.concatenate([reply.update[key].numpy().reshape(-1).astype(np.float64) for key in keys])
        if self.parts == "fael":
            return found
        counted, seen = state["history"][reply.site], state["rounds"][reply.site]
        up = (counted if isinstance(counted, torch.Tensor) else counted.tensor()).numpy().astype(int)
        return found * (np.where(found >= 0, up, seen - up) >= least_count(seen, self.tau, strict=False))


@rule("plateau-agreed")
class Agreed(ToldHEAL):
    """A ceiling of the conflict: an update's entry counts only where its sign is that of the updates' mean."""

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        means = {key: sum(r.update[key] for r in replies) for key in sorted(replies[0].trainable)}
        masks = [{key: r.update[key] * (r.update[key] * of > 0) for key, of in means.items()} for r in replies]
        agreed = [dataclasses.replace(r, update={**r.update, **kept}) for r, kept in zip(replies, masks)]
        return super().aggregate(model, agreed, state, info)


@rule("plateau-shuffled-lwr")
@dataclass(frozen=True)
class ShuffledLWR(FedLWR):
    """A placebo: Fed-LWR's weights, each layer's in another layer, anew in each round."""

    deal: int = 0

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        found = super()._layer_weights(replies)
        named = dealt(list(found), self.deal, info.round.number)
        result = {key: value.clone() for key, value in model.items() if not value.is_floating_point()}
        for name, (keys, _) in found.items():
            result |= add_weighted({key: model[key] for key in keys}, replies, found[named[name]][1])
        return Outcome({key: result[key] for key in model}, uniform([r.site for r in replies]), state)


@rule("plateau-ufo")
@dataclass(frozen=True)
class OtherUFO(FedUFO):
    """A placebo, FedUFO with losses that are another group's or site's; or a ceiling, with fixed weights of two groups.

    Args:
        small: weight of the group with fewer examples that stays fixed; 0: there is none, and losses are shuffled.
    """

    small: float = 0.0
    deal: int = 0

    def _next(self, current, losses, radius):
        if self.small and SUBGROUP in losses:
            return {SUBGROUP: self.small, MAJORITY: 1 - self.small}
        turn = str(sorted(losses.items()))  # the rule is not told the round
        named = dealt(list(losses), self.deal, turn)
        return super()._next(current, {key: losses[other] for key, other in named.items()}, radius)


for _id, _trainer, _probes, _shared in (
    ("plateau-fixed", "sgd", (), None),
    ("plateau-shuffled-ism", "gsam", ("sharpness",), RADIUS),
    ("plateau-shuffled-heal", "sgd", (), None),
    ("plateau-heal", "sgd", (), None),
    ("plateau-agreed", "sgd", (), None),
    ("plateau-shuffled-lwr", "sgd", ("layer-similarity",), None),
    ("plateau-ufo", "weighted", ("group-loss",), None),
):
    method(
        _id,
        title=_id,
        summary="Of the plateau bench.",
        rule=_id,
        trainer=_trainer,
        probes=_probes,
        shared=_shared,
        paper=METHOD,
    )

SUBGROUP, MAJORITY = "subgroup", "majority"


@dataclass(frozen=True)
class Looks(Bench):
    """4 sites, one of each look: MNIST and optdigits, which is coarse and fills the image, and both inverted.

    What is ink at two sites is paper at the others, so that their updates conflict.
    """

    name = "plateau-looks"
    title = "Digits in four looks, two of them inverted"
    per_site: int = 240
    n_sites: int = 4

    def sites(self) -> dict[str, str]:
        return {f"site-{k}": look for k, look in enumerate(LOOKS, start=1)}

    def domains(self) -> dict[str, str]:
        return self.sites()

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        found, sets, validation, n = {}, {}, [], self.per_site
        for site, look in self.sites().items():
            domain, _, inverted = look.partition(" ")
            x, y = images(domain, self.data_seed, 2 * n + 500)
            x = 2 * flat(small(255 - x if inverted else x)) - 1
            rows = slice(n, 2 * n) if inverted else slice(0, n)  # no image is at two sites
            found[site], sets[look] = cut(x[rows], y[rows], 0), (x[-400:], y[-400:])
            validation.append((x[-500:-400], y[-500:-400]))
        return found, {**sets, VALIDATION: tuple(map(np.concatenate, zip(*validation)))}


@dataclass(frozen=True)
class LooksOwn(Looks):
    """``Looks`` whose sites are tested on their own look.

    Args:
        inverted: False: a ceiling, for which somebody knew which looks are inverted and undid it, in all sets.
    """

    name = "plateau-looks-own"
    inverted: bool = True

    def own_test(self, site: str) -> str:
        return self.sites()[site]

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        found, sets = super().built()
        if self.inverted:
            return found, sets
        for site, look in self.sites().items():
            if look.endswith(" inverted"):
                found[site] = {name: (-x, y, more) for name, (x, y, more) in found[site].items()}
                sets[look] = (-sets[look][0], sets[look][1])
        x, y = sets[VALIDATION]
        x[200:] *= -1  # LOOKS has the inverted ones last
        return found, {**sets, VALIDATION: (x, y)}


LOOKS = (digits.MNIST, digits.OPTDIGITS, f"{digits.MNIST} inverted", f"{digits.OPTDIGITS} inverted")


@dataclass(frozen=True)
class Subgroups(Bench):
    """Is the digit 5 or more? A tenth of the patients bears a mark, and for six of the ten digits the opposite holds.

    Five sites of 160 images have 0 to 20 per cent of marked ones. A model can serve both, as it sees the mark.
    """

    name = "plateau-subgroups"
    title = "High digits, with a marked tenth for whom the relation is partly reversed"
    classes = ("low", "high")
    attributes = {"kind": ("majority", "subgroup")}
    mark: float = 0.5
    per_site: int = 160
    n_sites: int = 5

    def sites(self) -> dict[str, str]:
        return {f"site-{k}": f"{share:.0%} marked" for k, share in enumerate(MARKED, start=1)}

    def marked(self, x: np.ndarray, y: np.ndarray, who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images (N, 16, 16) with their mark as (N, 256), and labels of classes y (N,)."""
        x, high = x.copy(), y >= 5
        x[who, 1:3, 1:3] = round(255 * self.mark)
        return flat(x), np.where(who & np.isin(y, REVERSED), ~high, high).astype(np.int64)

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        x, y = handwriting(self.data_seed)
        x, found = small(x), {}
        for k, (site, share) in enumerate(zip(self.sites(), MARKED)):
            rows = slice(k * self.per_site, (k + 1) * self.per_site)
            who = np.arange(self.per_site) < round(share * self.per_site)
            names = [SUBGROUP if one else MAJORITY for one in who]
            found[site] = cut(*self.marked(x[rows], y[rows], who), 0, {"kind": names})
        test, many = slice(-1500, None), np.ones(1500, bool)
        sets = {MAJORITY: self.marked(x[test], y[test], ~many), SUBGROUP: self.marked(x[test], y[test], many)}
        rest = slice(-2500, -1500)
        return found, {**sets, VALIDATION: self.marked(x[rest], y[rest], np.arange(1000) < 100)}


MARKED = (0.0, 0.05, 0.1, 0.15, 0.2)
REVERSED = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Contribution(Bench):
    """Six sites that are worth something else each: whole, a third of it, its double, wrong labels, one image."""

    name = "plateau-contribution"
    title = "Digits at sites of unlike worth"
    per_site: int = 120
    n_sites: int = 6

    def sites(self) -> dict[str, str]:
        kinds = ("whole", "a third of site 1", "the double of site 1", "20 % wrong", "40 % wrong", "one image")
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        x, y = handwriting(self.data_seed)
        x, n, rng = flat(small(x)), self.per_site, np.random.default_rng(derive(self.data_seed, "wrong"))

        def wrong(labels: np.ndarray, share: float) -> np.ndarray:
            chosen = rng.permutation(len(labels))[: round(share * len(labels))]
            labels = labels.copy()
            labels[chosen] = (labels[chosen] + rng.integers(1, 10, len(chosen))) % 10
            return labels

        one, two, three = (slice(k * n, (k + 1) * n) for k in range(3))
        third = slice(0, n // 3)
        data = [(x[rows], y[rows]) for rows in (one, third, one)]
        data += [(x[two], wrong(y[two], 0.2)), (x[three], wrong(y[three], 0.4))]
        data.append((np.repeat(x[3 * n : 3 * n + 1], n, 0), np.repeat(y[3 * n : 3 * n + 1], n)))
        found = {site: cut(*part, len(part[1]) // 5) for site, part in zip(self.sites(), data)}
        sets = {"test a": slice(-1000, None), "test b": slice(-2000, -1000), VALIDATION: slice(-3000, -2000)}
        return found, {name: (x[rows], y[rows]) for name, rows in sets.items()}


@dataclass(frozen=True)
class Layers(Bench):
    """Where is the ink of a digit over a photograph? Six sites of 24 images, of which two differ.

    Args:
        shift: "early": their scanner inverts and fades the image; "late": their readers draw the mask a pixel wider.
    """

    name = "plateau-layers"
    title = "Ink over photographs, two of six sites with another scanner or other readers"
    kind = MASKS
    headline = "dice"
    classes = ("ink",)
    wider: ClassVar[int] = 1
    shift: Literal["early", "late"] = "early"
    per_site: int = 24
    n_sites: int = 6

    def sites(self) -> dict[str, str]:
        return {f"site-{k}": "shifted" if k > 4 else "plain" for k in range(1, 7)}

    def network(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for k, (narrow, wide) in enumerate(zip(WIDTHS, WIDTHS[1:]), start=1):
            kernel = 5 if k == 1 else 3
            layers[f"conv{k}"] = nn.Conv2d(narrow, wide, kernel, padding=kernel // 2)
            layers[f"relu{k}"] = nn.ReLU()
        layers["head"] = nn.Conv2d(WIDTHS[-1], 1, 1)
        return nn.Sequential(layers)

    def seen(self, x: np.ndarray, ink: np.ndarray, shifted: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images float32 and masks uint8, both (N, 1, 16, 16)."""
        if shifted and self.shift == "early":
            x = 200 - 0.5 * x
        ink = ink > 100
        if shifted and self.shift == "late":
            cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])[None]
            ink = binary_dilation(ink, structure=cross, iterations=self.wider)
        return (x[:, None] / 255).astype(np.float32), ink[:, None].astype(np.uint8)

    def built(self) -> tuple[Sites, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        n, more = self.per_site * self.n_sites, 400
        x = small(images(digits.PHOTO, self.data_seed, n + more)[0])
        numbers = digits.numbers_in(digits.PHOTO, self.data_seed)[: n + more]
        ink = small(np.stack([digits._scaled(digits._mnist()[0][k]) for k in numbers]))
        found = {}
        for k, (site, kind) in enumerate(self.sites().items()):
            rows = slice(k * self.per_site, (k + 1) * self.per_site)
            found[site] = cut(*self.seen(x[rows], ink[rows], kind == "shifted"), 0)
        test = slice(n, n + 300)
        sets = {kind: self.seen(x[test], ink[test], kind == "shifted") for kind in ("plain", "shifted")}
        rest = ((slice(-100, -33), False), (slice(-33, None), True))
        parts = [self.seen(x[rows], ink[rows], shifted) for rows, shifted in rest]
        return found, {**sets, VALIDATION: tuple(map(np.concatenate, zip(*parts)))}


class LayersWide(Layers):
    """``Layers`` with masks that are two pixels wider."""

    name = "plateau-layers-wide"
    title = "Ink over photographs, two of six sites with readers who draw it two pixels wider"
    wider = 2


WIDTHS = (1, 20, 32, 40, 16)

TASKS = (Quality, Quality20, QualityOwn, Scans, Looks, LooksOwn, Subgroups, Contribution, Layers, LayersWide)
tasks.ADDED.update({task.name: task for task in TASKS})
