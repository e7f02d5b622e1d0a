# SPDX-License-Identifier: Apache-2.0
"""No training step asks the device for a number: on a GPU the host would wait there for everything before it.

The device here is torch's "meta", which computes shapes and no values. Whatever needs a value (``item``, ``float``,
``bool``, ``nonzero``, a copy to the host) raises there, and so does mixing it with tensors of the CPU. On top of that,
the operations that read values are counted on the CPU, and torch's own check runs where there is a GPU.
"""

import dataclasses
import importlib
import pkgutil

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fairflare.trainers
from cases import each
from fairflare.core import registry
from fairflare.core.execution import Execution
from fairflare.core.types import LocalWork, Round, Training
from fairflare.data import tensors
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.trainers import base
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.datasets.domains import CroppedData, FlippedData

for module in pkgutil.iter_modules(fairflare.trainers.__path__):
    importlib.import_module(f"fairflare.trainers.{module.name}")
OPTIONS = {
    "weighted": [{}, {"weight_sum": "batch"}],
    "ditto": [{}, {"aggregate": "personal"}],
    "apfl": [{}, {"adapt": True}],
    "scaffold": [{}, {"estimate": "gradient"}],
    "fedproto": [{}, {"share": "both"}],
}
STEPPING = [name for name, cls in registry.trainers().items() if cls.model != "regression" and not cls.private]
CASES = [(name, options) for name in STEPPING for options in OPTIONS.get(name, [{}])]
READING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select"}
N, GROUPS = 22, ("a", "b", "c")


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def data(kind=TensorData, **options):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (N, 1, 12, 12), generator=draw, dtype=torch.uint8)
    split = Split(images, torch.arange(N) % 3)
    norm = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.3)}
    found = kind(train=split, val=split, test=split, n_classes=3, **norm, **options)
    return found.grouped(Grouping(("label",), (GROUPS,)))


def work_on(device, found):
    execution = Execution(device)
    made = network()
    execution.place(made)
    training = Training(batch_size=8, epochs=2, optimizer="adam", lr=0.01, logit_tau=1.0)
    orders = {"weight": 0.5, "weight/a": 1.0, "weight/b": 2.0, "weight/c": 0.0}
    work = LocalWork(
        made, found.on(device), training, Round(2, 4), seed=3, orders=orders, execution=execution, groups=GROUPS
    )
    work.received = {key: value.clone() for key, value in made.state_dict().items()}
    return work


class Reads(TorchDispatchMode):
    """Counts operations that read a value on the host."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in READING:
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def unfused(monkeypatch):
    """torch's fused optimizers do not know the device "meta"; the steps around them are the same."""
    real = base.make_optimizer

    def made(network, training):
        optimizer = real(nn.Linear(1, 1), training)
        for group in optimizer.param_groups:
            group.update(params=[p for p in network.parameters() if p.requires_grad], fused=False, foreach=True)
        return optimizer

    monkeypatch.setattr(base, "make_optimizer", made)


@each("name, options", CASES)
def test_no_step_of_a_trainer_asks_the_device_for_a_number(name, options, unfused):
    work, trainer = work_on(torch.device("meta"), data()), registry.trainers()[name](**options)
    work.data = trainer.site_data(work.data)
    if name == "fedrdn":  # a site measures its images once in a run
        work.data.pair = trainer.site_data(data()).pair
    loss = trainer._train(work)
    assert loss.device.type == "meta" and work.steps == 6
    with pytest.raises(RuntimeError):
        float(loss)  # what the test relies on


@pytest.mark.parametrize("kind, options", [(TensorData, {"augment": True}), (CroppedData, {}), (FlippedData, {})])
def test_no_transform_of_a_batch_does(kind, options, unfused, monkeypatch):
    monkeypatch.setattr(tensors, "READY", 0)
    found = data(kind, **options)
    assert PlainTrainer()._train(work_on(torch.device("meta"), found)).device.type == "meta"
    made = tensors._per_channel.cache_info().misses
    PlainTrainer()._train(work_on(torch.device("meta"), found))
    assert tensors._per_channel.cache_info().misses == made  # mean and std are there already


def reads(trainer, epochs):
    """How often a round of so many epochs on the CPU reads a value."""
    work = work_on(torch.device("cpu"), data())
    work.training = dataclasses.replace(work.training, epochs=epochs)
    with Reads() as found:
        trainer._train(work)
    assert work.steps == 3 * epochs
    return len(found.found)


@each("name, options", CASES)
def test_more_steps_read_no_more_values_on_the_cpu_either(name, options):
    trainer = registry.trainers()[name](**options)
    assert reads(trainer, 1) == reads(trainer, 3)


class Asking(PlainTrainer):
    """Looks whether its loss is above 0."""

    def step(self, work, optimizer, objective, batch):
        loss = super().step(work, optimizer, objective, batch)
        return loss if loss > 0 else -loss


def test_a_step_that_asks_is_noticed(unfused):
    with pytest.raises((RuntimeError, NotImplementedError)):
        Asking()._train(work_on(torch.device("meta"), data()))


def test_a_step_that_asks_is_counted():
    assert reads(Asking(), 3) - reads(Asking(), 1) == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@each("name, options", CASES)
@each("room", [0, None])
def test_torch_finds_no_synchronisation_on_a_gpu(name, options, room, monkeypatch):
    monkeypatch.setattr(tensors, "_room", (lambda device: room) if room is not None else tensors._room)
    work = work_on(torch.device("cuda:0"), data())
    trainer = registry.trainers()[name](**options)
    trainer._train(work)  # whatever is set up once
    optimizer, objective = base.make_optimizer(work.network, work.training), trainer.objective(work)
    trainer.setup(work)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in work.data.training(8, 0):
            trainer.step(work, optimizer, objective, batch.to(work.device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
