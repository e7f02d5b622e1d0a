# SPDX-License-Identifier: Apache-2.0
"""One small site, made up: two classes of 8 x 8 images in two groups, and a network with BatchNorm; and what
laws of every kind of part ask: parameters that are JSON, and declarations that hold."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairflare.core.schema import flat
from fairflare.core.seeds import derive, seed_everything
from fairflare.core.types import LocalWork, Number, Outline, Round, SplitName, StateDict, TensorSpec, Training
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.engine.memory import SiteMemory
from fairflare.networks.builtin import Regression
from fairflare.trainers.base import Trainer

GROUPS = ("a", "b")
SIZES: Mapping[SplitName, int] = {"train": 25, "val": 12, "test": 12}
ROUNDS = 4
TRAINING = Training(rounds=ROUNDS, epochs=2, batch_size=8, optimizer="sgd", lr=0.05)


class SmallData(TensorData):
    """Gaussian images whose classes differ in brightness, in two groups; the last training example has no group."""

    def __init__(self) -> None:
        generator, splits = torch.Generator().manual_seed(1), {}
        for split, n in SIZES.items():
            targets = torch.arange(n) % 2
            inputs = torch.randn(n, 1, 8, 8, generator=generator) + targets[:, None, None, None]
            groups = [GROUPS[i // 2 % 2] for i in range(n)]
            groups[-1] = "" if split == "train" else groups[-1]
            splits[split] = Split(self.made(inputs), targets, {"group": groups})
        super().__init__(train=splits["train"], val=splits["val"], test=splits["test"], n_classes=2)
        self.grouped(Grouping(("group",), (GROUPS,)))

    def made(self, images: Tensor) -> Tensor:
        """What the network takes of (N, 1, 8, 8)."""
        return images


def small_network() -> nn.Module:
    """(N, 1, 8, 8) -> logits (N, 2), with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        )


class RowMeans(SmallData):
    """The means of the rows of ``SmallData``'s images, which a regression takes as they are."""

    def made(self, images: Tensor) -> Tensor:
        return images.mean((1, 2))


def example_of(trainer: Trainer) -> tuple[nn.Module, SmallData]:
    """The small network and its data, or, for one that suits others alone, a line and its data."""
    if trainer.model == "regression":
        return Regression(8), RowMeans()
    if trainer.private:  # no BatchNorm
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), SmallData()
    return small_network(), SmallData()


def copied(network: nn.Module) -> StateDict:
    """The network's state dict, of tensors of its own."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def outline() -> Outline:
    return Outline(small_network().state_dict(), GROUPS, classes=2)


def work_of_round(
    t: int,
    *,
    memory: dict[str, Any] | None = None,
    orders: Mapping[str, float] | None = None,
    receives: Iterable[TensorSpec] = (),
    min_count: int | None = 5,
    training: Training = TRAINING,
    example: tuple[nn.Module, SmallData] | None = None,
) -> LocalWork:
    """The site's round ``t`` of 1..4, with torch seeded as a site seeds it.

    Args:
        memory, orders: what the site has kept, and what the rule sent to it.
        receives: tensors that come beside the model; their values are made up.
        min_count: of a group whose numbers may leave.
        example: network and data; the small ones when None.
    """
    network, data = example or (small_network(), SmallData())
    seed = derive(5, "train", "site-1", t)
    received = {name: value.clone() for name, value in network.state_dict().items()}
    seed_everything(seed)
    work = LocalWork(network, data, training, Round(t, ROUNDS), seed)

    @torch.no_grad()
    def score(split: SplitName) -> dict[str, float]:
        network.eval()
        hits = [(network(batch.inputs).argmax(1) == batch.targets).double() for batch in data.fixed(split, 64)]
        return {"accuracy": float(torch.cat(hits).mean())}

    return dataclasses.replace(
        work,
        orders=orders or {},
        memory={} if memory is None else memory,
        received=received,
        received_metrics=score("val"),
        evaluate=score,
        headline="accuracy",
        groups=GROUPS,
        min_count=min_count,
        tensors={spec.name: made_up(spec) for spec in receives},
    )


def made_up(spec: TensorSpec) -> StateDict:
    """Small values for tensors that a part receives, the same at every call."""
    generator = torch.Generator().manual_seed(derive(7, spec.name))
    return {key: 0.01 * torch.randn(shape, generator=generator) for key, shape in spec.shapes(outline()).items()}


def is_json(id: str, part: Any) -> None:
    """Raise AssertionError unless the part is a frozen dataclass that its parameters as JSON make again."""
    made = getattr(type(part), "__dataclass_params__", None)
    assert made is not None and made.frozen, f"{id}: expected a frozen dataclass"
    content = json.loads(json.dumps(dataclasses.asdict(part), allow_nan=False))
    assert type(part)(**content) == part, f"{id}: {content} makes another one"


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether both hold the same names and, bit for bit, the same tensors."""
    return set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)


def same(one: Any, other: Any) -> bool:
    """Whether nested mappings and sequences hold the same keys, numbers, texts and, bit for bit, tensors."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def restarted(content: Checkpoint) -> Checkpoint:
    """What a server that is started again reads of ``content``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(path, content)
        return load_checkpoint(path)


def numbers_fit(id: str, declared: Sequence[Number], sent: Mapping[str, float]) -> None:
    """Raise AssertionError unless every number sent is declared, finite and within its range."""
    specs = {one.name: one for one in declared}
    assert len(specs) == len(declared), f"{id}: declares a number twice"
    for spec in declared:
        assert spec.low < spec.high and spec.meaning, f"{id}: {spec.name}: expected low < high and a meaning"
        assert not spec.required or spec.name in sent, f"{id}: {spec.name} is required and was not sent"
    for name, value in sent.items():
        assert name in specs, f"{id}: sends {name}, which it does not declare"
        fits = isinstance(value, float) and math.isfinite(value) and specs[name].low <= value <= specs[name].high
        assert fits, f"{id}: {name}: expected a float in {specs[name].low:g}..{specs[name].high:g}, got {value!r}"


def tensors_fit(id: str, declared: Sequence[TensorSpec], sent: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise AssertionError unless every tensor sent is declared, float32, finite and of its shape."""
    specs = {one.name: one for one in declared}
    assert set(sent) <= set(specs), f"{id}: sends {sorted(set(sent) - set(specs))}, which it does not declare"
    for spec in declared:
        shapes, found = spec.shapes(outline()), sent.get(spec.name, {})
        assert shapes == spec.shapes(outline()), f"{id}: {spec.name}: shapes change from call to call"
        assert set(found) <= set(shapes), f"{id}: {spec.name}: sends {sorted(set(found) - set(shapes))}"
        assert not spec.required or set(found) == set(shapes), f"{id}: {spec.name} is required and was not sent whole"
        for key, value in found.items():
            assert tuple(value.shape) == tuple(shapes[key]), f"{id}: {spec.name}/{key}: shape {tuple(value.shape)}"
            assert value.dtype == torch.float32, f"{id}: {spec.name}/{key}: expected float32, got {value.dtype}"
            fits = bool(value.isfinite().all()) and float(value.detach().abs().max()) <= spec.bound
            assert fits, f"{id}: {spec.name}/{key}: expected finite values up to {spec.bound:g}"


def arguments_stay(id: str, work: LocalWork, fresh: LocalWork, received: bool = True) -> None:
    """Raise AssertionError unless ``work`` holds the tensors, numbers and, if ``received``, model of ``fresh``."""
    assert not received or equal(work.received, fresh.received), f"{id}: changed work.received"
    assert equal(flat(work.tensors), flat(fresh.tensors)), f"{id}: changed work.tensors"
    assert dict(work.orders) == dict(fresh.orders), f"{id}: changed work.orders"


def kept(memory: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a site has kept of round 1 as it goes on, and as it reads its file after a restart."""
    with tempfile.TemporaryDirectory() as folder:
        straight = SiteMemory(Path(folder) / "site-1.safetensors")
        straight.keep(1, dict(memory))
        return straight.before(2), SiteMemory(Path(folder) / "site-1.safetensors").before(2)
