# SPDX-License-Identifier: Apache-2.0
"""Training passes that do not fit are made smaller once; the gradient stays that of the whole batch."""

import os
import platform

import pytest
import torch
from torch import nn

from fairflare.core.execution import Execution, give_back_freed_memory, keep_freed_memory
from fairflare.core.types import LocalWork, Round
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.gsam import GSAM
from fairflare.trainers.weighted import WeightedTrainer
from helpers import TRAINING, Blobs, initial_model, make_federation, make_sites


def plain():
    """Without BatchNorm and dropout, whose results depend on how a batch is cut."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def make_work(network):
    return LocalWork(network, Blobs(2), TRAINING, Round(2, 4), seed=3)


class Small(nn.Module):
    """A network on a device whose memory holds ``room`` examples."""

    def __init__(self, room, failures=99):
        super().__init__()
        self.inner, self.room, self.failures, self.sizes = plain(), room, failures, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.room and self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.inner(x)


TRAINERS = {"sgd": PlainTrainer(), "gsam": GSAM(), "weighted": WeightedTrainer(), "batch": WeightedTrainer("batch")}


@pytest.mark.parametrize("name", TRAINERS)
def test_smaller_passes_give_the_gradient_of_the_batch(name):
    whole, parts = make_work(plain()), make_work(Small(room=4))
    for work in (whole, parts):
        work.orders = {"weight": 0.5, "weight/a": 1.0, "weight/b": 2.0}
        work.groups = ("a", "b")
    losses = [TRAINERS[name].train(work) for work in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert parts.execution.micro_batch == 4 and whole.execution.micro_batch is None
    for a, b in zip(whole.network.parameters(), parts.network.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_one_retry_and_then_the_error():
    work = make_work(Small(room=1))
    before = [p.detach().clone() for p in work.network.parameters()]
    with pytest.raises(torch.OutOfMemoryError):
        GSAM().train(work)
    assert work.network.sizes == [8, 4]
    for p, b in zip(work.network.parameters(), before):
        assert torch.equal(p, b)


def test_the_second_pass_of_gsam_may_run_out_of_memory():
    class Later(Small):
        def forward(self, x):
            self.room = 4 if len(self.sizes) == 1 else 8
            return super().forward(x)

    whole, parts = make_work(plain()), make_work(Later(room=8, failures=1))
    for work in (whole, parts):
        GSAM().train(work)
    assert parts.execution.micro_batch == 4 and parts.network.sizes[:4] == [8, 8, 4, 4]
    for a, b in zip(whole.network.parameters(), parts.network.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRAINERS)
def test_two_devices_give_the_gradient_of_one(name):
    """The second one is a CPU too: it computes with copies of the weights, on its own half of every batch."""

    class Watching(Small):
        places: list = []

        def forward(self, x):
            self.places.append(self.inner[0].weight.data_ptr())
            return super().forward(x)

    one, two = make_work(plain()), make_work(Watching(room=99))
    two.execution = Execution(beside=(torch.device("cpu"),))
    for work in (one, two):
        work.orders, work.groups = {"weight": 0.5, "weight/a": 1.0, "weight/b": 2.0}, ("a", "b")
    losses = [TRAINERS[name].train(work) for work in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and set(two.network.sizes) == {4}
    home = two.network.inner[0].weight.data_ptr()
    assert [place == home for place in two.network.places] == [True, False] * (len(two.network.places) // 2)
    for a, b in zip(one.network.parameters(), two.network.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_batch_norm_keeps_the_first_devices_statistics_and_a_network_with_hooks_stays_whole():
    torch.manual_seed(0)
    inputs, targets = torch.randn(9, 4), torch.randint(2, (9,))
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    alone = nn.BatchNorm1d(4)
    alone(inputs[:4])
    execution = Execution(beside=(torch.device("cpu"),))
    execution.backward(network, inputs, lambda outputs, rows: nn.functional.cross_entropy(outputs, targets[rows]))
    assert torch.equal(network[0].running_mean, alone.running_mean) and int(network[0].num_batches_tracked) == 1
    sizes = []
    network[1].register_forward_hook(lambda module, given, outputs: sizes.append(len(outputs)))
    execution.backward(network, inputs, lambda outputs, rows: nn.functional.cross_entropy(outputs, targets[rows]))
    assert sizes == [9]


def test_parts_on_two_devices_are_halved_when_memory_runs_out():
    whole, parts = make_work(plain()), make_work(Small(room=2))
    parts.execution = Execution(beside=(torch.device("cpu"),))
    losses = [PlainTrainer().train(work) for work in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert parts.execution.micro_batch == 2 and parts.network.sizes[:6] == [4, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "n, most, sizes", [(8, 4, [4, 4]), (7, 3, [2, 2, 3]), (5, 2, [2, 3]), (3, 2, [3]), (6, 9, [6])]
)
def test_no_pass_is_a_single_example(n, most, sizes):
    parts = Execution(micro_batch=most)._parts(n)
    assert [p.stop - p.start for p in parts] == sizes and parts[0].start == 0 and parts[-1].stop == n


def test_whether_a_batch_fits_leaves_no_gradient():
    objective = nn.CrossEntropyLoss()
    batch = next(Blobs(1).training(8, 0))
    for network, fits in ((Small(room=8), True), (Small(room=4), False)):
        found = Execution().fits(network, batch.inputs, lambda o, rows: objective(o, batch.targets))
        assert found == fits and all(p.grad is None for p in network.parameters())


def test_bfloat16_is_for_training_passes_only():
    class Watching(Small):
        kinds: list = []

        def forward(self, x):
            out = super().forward(x)
            self.kinds.append((torch.is_grad_enabled(), out.dtype))
            return out

    work = make_work(Watching(room=99))
    work.execution = Execution(precision="bfloat16")
    loss = PlainTrainer().train(work)
    assert {kind for grad, kind in work.network.kinds if grad} == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in work.network.parameters())
    reference = make_work(plain())
    assert loss == pytest.approx(PlainTrainer().train(reference), rel=0.02)


def test_probes_and_validation_compute_in_full_precision(tmp_path):
    """With bfloat16 training from the same model, what is measured on the received model is the same to the bit."""
    entries = []
    for name, precision in (("full", "float32"), ("half", "bfloat16")):
        (tmp_path / name).mkdir()
        sites = make_sites(3)
        for site in sites.values():
            site.execution = Execution(precision=precision)
        make_federation(tmp_path / name, InProcess(sites), rounds=1).run(initial_model())
        entries.append(next(e for e in verify(tmp_path / name / "audit.jsonl") if e["event"] == "round"))
    full, half = (e["accepted"]["site-1"] for e in entries)
    assert {k: v for k, v in full["metrics"].items() if k != "train_loss"} == {
        k: v for k, v in half["metrics"].items() if k != "train_loss"
    }
    assert entries[0]["model_sha256"] != entries[1]["model_sha256"]


@pytest.mark.parametrize("choose", [give_back_freed_memory, keep_freed_memory])
def test_what_becomes_of_freed_memory_is_chosen_unless_the_user_has_done_so(choose, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")  # says nothing of it
    assert choose() is (platform.libc_ver()[0] == "glibc")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert choose() is False
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert choose() is False
