# SPDX-License-Identifier: Apache-2.0
"""Trainers and the sharpness probe at a site: passes, restoration after failures, batch handling."""

import dataclasses

import pytest
import torch
from torch import nn

from fairflare.core.schema import Instruction
from fairflare.core.types import LocalWork, Number, Round
from fairflare.engine.gate import Gate
from fairflare.engine.memory import SiteMemory
from fairflare.privacy.egress import Egress
from fairflare.probes.sharpness import Sharpness
from fairflare.trainers.base import PlainTrainer, local_batches
from fairflare.trainers.gsam import GSAM, SAM, gsam_step
from helpers import TRAINING, Blobs, initial_model, make_sites, small_network


def work(network=None, **changes):
    made = LocalWork(network or small_network(), Blobs(2), TRAINING, Round(2, 4), seed=3)
    return dataclasses.replace(made, **changes)


class Counting(nn.Module):
    """Counts forward passes and gradient computations of what it wraps."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.forwards, self.backwards = inner, 0, 0

    def forward(self, x):
        self.forwards += 1
        out = self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda grad: setattr(self, "backwards", self.backwards + 1))
        return out


class Broken(Exception):
    """The second pass fails."""


def state(network):
    return {k: v.clone() for k, v in network.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


def test_probe_costs_two_forward_and_one_backward():
    network = Counting(small_network())
    Sharpness(probe_batch=24).measure(work(network))
    assert (network.forwards, network.backwards) == (2, 1)


@pytest.mark.parametrize("trainer, passes", [(PlainTrainer(), 1), (GSAM(), 2), (SAM(), 2)])
def test_trainers_cost_what_they_say(trainer, passes):
    network = Counting(small_network())
    trainer.train(work(network))
    batches = 3
    assert (network.forwards, network.backwards) == (passes * batches, passes * batches)
    assert (trainer.cost.forward, trainer.cost.backward) == (passes, passes)


def test_probe_leaves_everything_as_it_was_and_repeats():
    network = small_network()
    before = state(network)
    first, second = (Sharpness().measure(work(network)) for _ in range(2))
    assert first == second and same(before, state(network)) and first["sharpness"] > 0
    assert all(p.grad is None for p in network.parameters())


def test_probe_batch_size_changes_rounding_only():
    small, large = (Sharpness(probe_batch=b).measure(work()) for b in (5, 24))
    assert small == pytest.approx(large, rel=1e-5)


def test_probe_restores_after_a_failure():
    network = small_network()
    before = state(network)
    probe = Sharpness()
    object.__setattr__(probe, "_loss", lambda *a: (_ for _ in ()).throw(Broken))
    with pytest.raises(Broken):
        probe.measure(work(network))
    assert same(before, state(network)) and all(p.grad is None for p in network.parameters())


def test_probe_loss_and_transform_options():
    plain = Sharpness().measure(work())
    adjusted = Sharpness(probe_loss="logit_adjusted")
    training = dataclasses.replace(TRAINING, logit_tau=1.0)
    skewed = Blobs(2)
    skewed.class_counts = torch.tensor([20, 4])
    assert adjusted.measure(work(training=training, data=skewed))["loss"] != pytest.approx(plain["loss"], rel=1e-3)
    assert Sharpness(probe_transform="train").measure(work())["loss"] == pytest.approx(plain["loss"], rel=1e-5)


def test_gsam_restores_weights_and_momenta_when_the_second_pass_fails():
    network = small_network().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    data, calls = Blobs(1), []

    def closure():
        calls.append(network[1].momentum)
        if len(calls) == 2:
            raise Broken
        loss = nn.functional.cross_entropy(network(data.x), data.y)
        loss.backward()
        return loss

    before = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(Broken):
        gsam_step(network, optimizer, closure, rho=0.1, alpha=0.1)
    assert calls == [0.1, 0.0] and network[1].momentum == 0.1
    for p, b in zip(network.parameters(), before):
        torch.testing.assert_close(p.detach(), b, rtol=0, atol=1e-7)


def test_batchnorm_statistics_move_once_per_gsam_step():
    """The second pass holds them: one GSAM step leaves the running mean that one plain step leaves."""
    means = []
    for trainer in (GSAM(), PlainTrainer()):
        torch.manual_seed(0)
        network = small_network()
        single = dataclasses.replace(TRAINING, batch_size=24)
        trainer.train(work(network, training=single))
        means.append(network[1].running_mean.clone())
    assert torch.equal(*means)


def test_rho_zero_is_plain_training():
    finals = []
    for trainer in (GSAM(rho_max=0.0, gsam_alpha=0.0), PlainTrainer()):
        network = nn.Sequential(nn.Linear(4, 2))
        torch.manual_seed(1)
        nn.init.normal_(network[0].weight), nn.init.zeros_(network[0].bias)
        trainer.train(work(network))
        finals.append(state(network))
    for key in finals[0]:
        torch.testing.assert_close(finals[0][key], finals[1][key], rtol=0, atol=1e-6)


def test_training_learns_and_reports_the_mean_loss():
    network = small_network()
    losses = [PlainTrainer().train(work(network, round=Round(t, 4), seed=t)) for t in (1, 2, 3, 4)]
    assert losses[-1] < losses[0] and all(loss > 0 for loss in losses)


def test_frozen_parameters_are_left_alone():
    network = small_network()
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone()
    GSAM().train(work(network))
    Sharpness().measure(work(network))
    assert torch.equal(network[0].weight, before)


def test_an_abort_stops_within_a_batch():
    calls = []

    def stop():
        calls.append(1)
        if len(calls) == 2:
            raise Broken

    with pytest.raises(Broken):
        PlainTrainer().train(work(stop_if_aborted=stop))
    assert len(calls) == 2


@pytest.mark.parametrize("bad", [{"rho_max": -1.0}, {"rho_tau": float("nan")}, {"gsam_alpha": -0.1}])
def test_bad_radii_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        GSAM(**bad)


@pytest.mark.parametrize("trainer", [GSAM(), SAM(), PlainTrainer()])
def test_what_a_gradient_that_is_not_finite_makes_of_the_weights_never_leaves_the_site(trainer):
    """No step asks whether its gradient is finite, which would hold a GPU up: its update is looked at once."""
    site = make_sites(1, trainer=trainer, probes=())["site-1"]
    site.egress = Egress(initial_model(), (), ("accuracy", "loss", "train_loss"), ())
    instruction = Instruction("train", Round(1, 3), initial_model())
    assert site.handle(instruction).error is None
    site.data.x[3, 1] = float("inf")
    answer = site.handle(instruction)
    assert answer.update is None and answer.error.startswith("egress: weights") and answer.error.endswith("not finite")


@dataclasses.dataclass(frozen=True)
class Noting(PlainTrainer):
    """Counts its calls in the scratch and sends the sum."""

    sends = (Number("passes", 0, 100, "calls of step"),)
    fails: bool = False

    def setup(self, work):
        assert work.scratch == {} and work.steps == 0
        work.scratch["calls"] = 0

    def step(self, work, optimizer, objective, batch):
        if self.fails and work.steps == 1:
            raise Broken
        work.scratch["calls"] += 1
        return super().step(work, optimizer, objective, batch)

    def finish(self, work):
        work.send_numbers["passes"] = float(work.scratch["calls"])


def test_a_trainer_has_setup_steps_finish_and_a_scratch_for_the_round():
    made = work(training=dataclasses.replace(TRAINING, epochs=2))
    for _ in range(2):
        Noting().train(made)
        assert made.scratch == {} and made.steps == 6 and made.send_numbers == {"passes": 6.0}


def test_the_scratch_is_empty_after_a_failure_too():
    made = work()
    with pytest.raises(Broken):
        Noting(fails=True).train(made)
    assert made.scratch == {} and made.send_numbers == {}


def test_what_a_trainer_sends_reaches_the_rule_and_is_judged_like_a_probe_s():
    site = make_sites(1, trainer=Noting(), probes=())["site-1"]
    answer = site.handle(Instruction("train", Round(1, 3), initial_model()))
    assert answer.scalars == {"passes": 3.0}
    names = frozenset(dict(site.network.named_parameters()))
    known, unknown = Gate(names, Noting.sends, ("passes",)), Gate(names)
    assert known.inspect([answer], initial_model(), 1, {}).replies[0].scalars == {"passes": 3.0}
    assert unknown.inspect([answer], initial_model(), 1, {}).rejections[0].code == "scalar_unknown"
    large = dataclasses.replace(answer, scalars={"passes": 101.0})
    assert known.inspect([large], initial_model(), 1, {}).rejections[0].code == "scalar_range"


def steps_of_rounds(counts, memory=None):
    """The examples that a site sees in rounds of so many local steps, one list of rows per step."""
    memory, found = {} if memory is None else memory, []
    for t, count in enumerate(counts, start=1):
        training = dataclasses.replace(TRAINING, local_steps=count)
        made = work(training=training, round=Round(t, len(counts)), seed=t, memory=memory)
        found += [sorted(batch.inputs[:, 0].tolist()) for batch in local_batches(made)]
    return found


def test_local_steps_go_on_where_the_last_round_stopped():
    """24 examples in batches of 8: whatever the rounds, every three steps are an epoch, and no two are alike."""
    together = steps_of_rounds([12])
    assert steps_of_rounds([5, 1, 4, 2]) == together and steps_of_rounds([3, 3, 6]) == together
    epochs = [sum(together[i : i + 3], []) for i in (0, 3, 6, 9)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1 and len(set(map(str, together))) == 12


@pytest.mark.parametrize(
    ("bounds", "steps"),
    [
        ({"fewest_steps": 7}, 7),
        ({"most_steps": 2}, 2),
        ({"fewest_steps": 2, "most_steps": 9}, 3),
        ({"fewest_steps": 2, "most_steps": 9, "epochs": 2}, 6),
        ({"fewest_steps": 7, "local_steps": 5}, 5),
    ],
)
def test_a_pass_over_a_sites_data_is_kept_within_bounds_and_goes_on_in_the_next_round(bounds, steps):
    """24 examples in batches of 8: a pass has three steps."""
    memory, found = {}, []
    for t in (1, 2):
        training = dataclasses.replace(TRAINING, **{"epochs": 1, **bounds})
        found += [b.inputs[:, 0].tolist() for b in local_batches(work(training=training, seed=t, memory=memory))]
        assert len(found) == t * steps
    training = dataclasses.replace(TRAINING, local_steps=2 * steps)
    together = [b.inputs[:, 0].tolist() for b in local_batches(work(training=training, seed=1, memory={}))]
    assert found == together


def test_bounds_of_local_steps_that_cross_are_refused():
    with pytest.raises(ValueError, match="fewest_steps must be at most most_steps, 3, got 5"):
        dataclasses.replace(TRAINING, fewest_steps=5, most_steps=3)


def test_as_many_local_steps_as_an_epoch_has_are_the_first_epoch():
    finals = []
    for training in (TRAINING, dataclasses.replace(TRAINING, local_steps=3, epochs=7)):
        torch.manual_seed(4)
        made = work(training=training)
        loss = PlainTrainer().train(made)
        finals.append((loss, made.steps, state(made.network)))
    assert finals[0][:2] == finals[1][:2] and same(finals[0][2], finals[1][2])


def test_a_round_of_local_steps_that_is_repeated_trains_to_the_same_bits(tmp_path):
    training = dataclasses.replace(TRAINING, local_steps=4)

    def site(memory):
        made = make_sites(1, trainer=PlainTrainer(), probes=())["site-1"]
        return dataclasses.replace(made, training=training, memory=memory)

    def trained(where, number):
        return where.handle(Instruction("train", Round(number, 3), initial_model()))

    first = site(SiteMemory(tmp_path / "m.safetensors"))
    assert trained(first, 1).steps == 4
    once, again = trained(first, 2).update, trained(first, 2).update
    restarted = trained(site(SiteMemory(tmp_path / "m.safetensors")), 2).update
    fresh = trained(site(SiteMemory()), 2).update
    assert same(once, again) and same(once, restarted)
    assert not same(once, fresh), "the place in the data was not kept"
