# SPDX-License-Identifier: Apache-2.0
"""How a site may compute otherwise: memory layout, compiler, several GPUs. None of it changes what is computed."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import each
from fairflare.core import execution as execution_module
from fairflare.core.errors import UserError
from fairflare.core.execution import Execution, ahead, plainly, shared_gpu
from fairflare.core.schema import Instruction
from fairflare.core.types import Round, Training
from fairflare.data.site_config import SiteConfig, read_site_config
from fairflare.engine.exchanges.train import difference
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.at_site import _execution
from fairflare.flare import simulate
from fairflare.trainers.base import PlainTrainer, go_on, make_optimizer
from fairflare.trainers.gsam import GSAM
from helpers import initial_model, make_sites


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(144, 2)
    )


def test_what_leaves_a_network_or_is_kept_of_it_is_contiguous():
    """Sums over it, and what a restart reads, are the same bits wherever it has been."""
    Execution().place(lasting := convolutions())
    received = {key: value.contiguous() for key, value in convolutions().state_dict().items()}
    update = difference(lasting, received)
    memory = SiteMemory()
    memory.keep(1, {"model": lasting.state_dict()})
    assert all(value.is_contiguous() for value in (*update.values(), *memory.at(1)["model"].values()))


def test_an_optimizer_that_goes_on_from_a_file_steps_as_one_that_never_stopped():
    found = []
    for stops in (False, True):
        Execution().place(network := convolutions())
        optimizer = make_optimizer(network, Training())
        for _ in range(2):
            if stops:
                kept = {
                    key: {name: plainly(value) for name, value in one.items()}
                    for key, one in optimizer.state_dict()["state"].items()
                }
                state = {**optimizer.state_dict(), "state": kept}
                go_on(optimizer := make_optimizer(network, Training()), state)
            optimizer.zero_grad(set_to_none=True)
            network(images()[0]).pow(2).mean().backward()
            optimizer.step()
        found.append([p.detach().clone() for p in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def images():
    torch.manual_seed(1)
    return torch.randn(6, 3, 10, 10), torch.arange(6) % 2


def gradients(execution, network=None):
    network = network or convolutions()
    x, y = images()
    execution.place(network)
    loss = execution.backward(network, x, lambda outputs, rows: F.cross_entropy(outputs, y[rows]))
    return loss, [p.grad for p in network.parameters()]


@each(
    "norm, width, expected",
    [
        (nn.BatchNorm2d, 8, torch.channels_last),
        (nn.InstanceNorm2d, 8, torch.contiguous_format),
        (nn.BatchNorm2d, 129, torch.contiguous_format),
    ],
)
def test_a_rule_of_layers_and_widths_says_how_a_cpu_lays_a_network_out(norm, width, expected):
    network = nn.Sequential(nn.Conv2d(3, width, 3), norm(width), nn.Linear(8, 8))
    Execution().place(network)
    assert network[0].weight.is_contiguous(memory_format=expected)


def test_a_site_s_own_layout_wins():
    last = convolutions().to(memory_format=torch.channels_last)
    Execution(layout="contiguous").place(last)
    assert last[0].weight.is_contiguous() and last[3].weight.is_contiguous()
    assert Execution(torch.device("cuda:0")).memory_format is torch.channels_last


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_layouts_round_otherwise_and_compute_the_same(layout):
    expected_loss, expected = gradients(Execution())
    loss, found = gradients(Execution(layout=layout))
    torch.testing.assert_close(loss, expected_loss)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [PlainTrainer(), GSAM()])
def test_a_compiled_network_rounds_otherwise_and_trains_the_same(trainer):
    """GSAM's second pass holds BatchNorm's statistics by an attribute of the layer, which compiled code must notice."""
    instruction = Instruction("train", Round(1, 3), initial_model())
    plain, compiled = (make_sites(1, trainer=trainer, probes=())["site-1"] for _ in range(2))
    for site in (plain, compiled):
        site.network[3].p = 0.0  # compiled dropout may draw other numbers
    compiled.execution = Execution(compiler="aot_eager")  # as "inductor", which has a C++ compiler work for a minute
    expected, found = (site.handle(instruction).update for site in (plain, compiled))
    assert compiled.execution._compiled is not None
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-5)


def test_hooks_see_every_pass_of_a_network_that_would_be_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda network, backend: pytest.fail("compiled"))
    seen, network = [], convolutions()
    network[0].register_forward_hook(lambda *args: seen.append(1))
    gradients(Execution(compiler="inductor"), network)
    assert len(seen) == 1


def test_a_site_file_says_how_the_site_computes(tmp_path):
    path = Path(tmp_path, "site.yaml")
    path.write_text("layout: contiguous\ncompiler: inductor\n")
    assert (read_site_config(path).layout, read_site_config(path).compiler) == ("contiguous", "inductor")
    path.write_text("layout: nchw\n")
    with pytest.raises(UserError, match="layout: expected .*channels_last.*, got 'nchw'"):
        read_site_config(path)
    path.write_text("compiler: eager\n")
    with pytest.raises(UserError, match="compiler: expected .*inductor.*, got 'eager'"):
        read_site_config(path)


def test_sites_of_one_machine_take_its_gpus_in_turn(monkeypatch):
    assert shared_gpu(3) is None or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [shared_gpu(place) for place in range(4)] == [0, 1, 0, 1]


def test_a_site_file_may_name_several_gpus(monkeypatch):
    def devices(**keys):
        execution = _execution(SiteConfig(**keys), Training(), 0)
        return [str(device) for device in (execution.device, *execution.beside)]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices(gpus="0, 1") == ["cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(gpus="1,0") == ["cuda:1", "cuda:0"] and devices(gpu=1) == ["cuda:1"] and devices() == ["cuda:0"]
    with pytest.raises(UserError, match="gpu: expected a number below 2, got 2"):
        devices(gpus="0,2")


@each(
    "count, visible, own, expected",
    [
        (2, None, None, "0,1,0,1,0"),
        (2, "4,7", None, "4,7,4,7,4"),
        (3, None, None, "0,1,2,0,1"),
        (1, None, None, None),
        (0, None, None, None),
        (2, "GPU-a1,GPU-b2", None, None),
        (2, None, "sites", None),
    ],
)
def test_simulated_sites_are_spread_over_the_gpus(count, visible, own, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), (simulate.SITE_CONFIG, own)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    assert simulate.gpu_groups(5) == expected


class Stream:
    """Stands for a CUDA stream and notes what happens in it."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def __enter__(self):
        self.log.append(f"in {self.name}")

    def __exit__(self, *error):
        self.log.append(f"out of {self.name}")


def test_the_next_batch_is_made_while_the_device_computes_on_this_one(monkeypatch):
    log = []
    main, side = Stream(log, "main"), Stream(log, "side")
    monkeypatch.setattr(execution_module.torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(execution_module.torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(execution_module.torch.cuda, "stream", lambda stream: stream)

    def batches():
        for number in range(2):
            log.append(f"made {number}")
            yield (torch.zeros(1),)

    for number, _ in enumerate(ahead(batches(), torch.device("cuda:0"))):
        log.append(f"used {number}")
    assert log == [
        "side waits for main",
        *("in side", "made 0", "out of side"),
        *("main waits for side", "used 0"),
        *("in side", "made 1", "out of side"),
        *("main waits for side", "used 1"),
        *("in side", "out of side"),
    ]
    assert list(ahead(iter([(1,), (2,)]), torch.device("cpu"))) == [(1,), (2,)]
