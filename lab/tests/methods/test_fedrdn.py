# SPDX-License-Identifier: Apache-2.0
"""FedRDN: what travels when, what evaluation sees, what a hostile pair can do, and what is refused."""

import dataclasses
import math

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Batch, Info, Reply, Round
from fairflare.engine.evaluation import predict
from fairflare.engine.setup.assembly import build_site, scorer, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.testing import check_trainer
from fairflare.testing.example import SmallData, copied, work_of_round
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.methods.fedrdn import ALL, LEAST_SD, MOST_SITES, OWN, FedRDN, normalised_by, pair_of

INFO = Info(Round(1, 4))


def work_with(pairs=None, trainer=None, t=1, **changes):
    """The site's round, its data prepared; ``pairs`` are (mean, sd) of one channel."""
    work = dataclasses.replace(work_of_round(t), **changes)
    work.data = (trainer or FedRDN()).site_data(work.data)
    found = {str(k): torch.tensor([[mean], [math.log(sd)]]) for k, (mean, sd) in enumerate(pairs or [])}
    work.tensors = {ALL.name: found} if found else {}
    return work


def seen(work, trainer):
    """The inputs of every training pass, and the model after the round."""
    inputs = []
    hook = work.network.register_forward_pre_hook(lambda module, args: inputs.append(args[0].clone()))
    trainer.train(work)
    hook.remove()
    return inputs, copied(work.network)


def test_the_first_round_trains_on_images_of_the_own_pair():
    ours, plain = work_with(), work_with()
    assert all(torch.equal(a, b) for a, b in zip(seen(ours, FedRDN())[0], seen(plain, PlainTrainer())[0], strict=True))
    pair = pair_of(batch.inputs for batch in ours.data.fixed("train", 64))
    assert pair.mean.item() == pytest.approx(0, abs=1e-6) and pair.sd.item() == pytest.approx(1, abs=1e-6)


def test_a_site_that_is_alone_has_a_fixed_normalisation():
    """Its own pair, as it comes back rounded to float32, changes nothing beyond that rounding."""
    own = FedRDN().site_data(SmallData()).pair
    alone, plain = work_with([(own.mean.item(), own.sd.item())]), work_with()
    for a, b in zip(seen(alone, FedRDN())[0], seen(plain, PlainTrainer())[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_step_sees_images_as_the_drawn_sites_normalise_them():
    own, others = FedRDN().site_data(SmallData()).pair, [(5.0, 2.0), (-3.0, 0.5)]
    for x, z in zip(seen(work_with(others), FedRDN())[0], seen(work_with(), PlainTrainer())[0], strict=True):
        raw = z * own.sd.item() + own.mean.item()
        options = torch.stack([(raw - mean) / sd for mean, sd in others])
        gaps = (options - x).abs().flatten(2).amax(2)  # of each image to either site's normalisation
        assert gaps.amin(0).max() < 1e-4
    assert len(set(gaps.argmin(0).tolist())) == 2


@pytest.mark.parametrize("pair", [(1e6, 1.0), (0.0, LEAST_SD), (-1e6, 1e-6)])
def test_a_pair_that_takes_images_out_of_reach_is_not_drawn(pair):
    """A site's statistics reach every other site's training: a constant channel, or a hostile one, must not."""
    assert all(
        torch.equal(a, b)
        for a, b in zip(seen(work_with([pair]), FedRDN())[0], seen(work_with(), PlainTrainer())[0], strict=True)
    )


@pytest.mark.parametrize("tensor", [[[0.0], [1e6]], [[0.0], [-1e6]]])
def test_logarithms_of_any_size_stay_finite(tensor):
    work = work_with()
    work.tensors = {ALL.name: {"0": torch.tensor(tensor)}}
    assert math.isfinite(FedRDN().train(work))


def test_a_pair_is_sent_once_and_all_come_back():
    trainer, work = FedRDN(), work_with()
    trainer.train(work)
    sent = work.send_tensors[OWN.name]
    own = work.data.pair
    torch.testing.assert_close(sent["pair"], torch.stack((own.mean, own.sd.log())).float())
    state = trainer.collect({}, [Reply("b", {}, 10, tensors={OWN.name: sent})], {}, INFO)
    state = trainer.collect({}, [Reply("a", {}, 10, tensors={OWN.name: {"pair": -sent["pair"]}})], state, INFO)
    found = trainer.tensors_for(state, "anyone", INFO)[ALL.name]
    assert torch.equal(found["0"], -sent["pair"]) and torch.equal(found["1"], sent["pair"])
    assert trainer.orders(state, "b", INFO) == {"statistics_known": 1.0} and trainer.orders(state, "c", INFO) == {}
    again = work_with(orders={"statistics_known": 1.0})
    trainer.train(again)
    assert not again.send_tensors and trainer.tensors_for({}, "a", INFO) == {}


def test_so_many_pairs_are_handed_out_at_most():
    state = {"pairs": {f"site-{k}": torch.zeros(2, 1) for k in range(MOST_SITES + 5)}}
    assert len(FedRDN().tensors_for(state, "site-1", INFO)[ALL.name]) == MOST_SITES


@pytest.mark.parametrize("least", [26, None])
def test_a_small_sites_statistics_stay_there(least):
    work = work_with(min_count=least)
    FedRDN().train(work)
    assert not work.send_tensors


def test_a_constant_channel_becomes_zeros():
    class Constant(SmallData):
        def fixed(self, split, batch_size, at_most=None):
            for batch in super().fixed(split, batch_size, at_most):
                yield batch._replace(inputs=torch.full_like(batch.inputs, 0.3))

    data = FedRDN().site_data(Constant())
    assert data.pair.sd.item() == LEAST_SD
    assert all(batch.inputs.abs().max() == 0 for batch in data.fixed("test", 5))


def test_a_shared_test_set_has_its_own_pair():
    """It stands for a site that has yet to join."""
    images = 3 + 2 * torch.randn(40, 2, 5, 5, generator=torch.Generator().manual_seed(0))

    def batches():
        return (Batch(rows, torch.zeros(len(rows)), torch.zeros(len(rows))) for rows in images.split(16))

    found = torch.cat([batch.inputs for batch in FedRDN().shared_batches(batches)])
    pair = pair_of([found])
    assert pair.mean.abs().max() < 1e-6 and (pair.sd - 1).abs().max() < 1e-6
    assert torch.equal(torch.cat([b.inputs for b in PlainTrainer().shared_batches(batches)]), images)


SMALL = {"images_per_site": 24, "test_images": 20, "site_test_images": 10, "n_sites": 4}


def test_the_server_scores_shared_test_sets_so():
    """The same model on the same images: other scores than without the trainer's normalisation."""
    scores = []
    for method in ("fedrdn", "fedavg"):
        parts = build_parts(make_config(method, "digits:small", values=SMALL))
        found = scorer(parts, 16)(parts.model, True)
        scores.append({name: one["metrics"]["loss"] for name, one in found.items()})
    assert scores[0].keys() == scores[1].keys() and all(scores[0][name] != scores[1][name] for name in scores[0])


def test_a_site_evaluates_and_measures_with_its_own_pair():
    """The metrics of a final model at a site are those of its images normalised by hand."""
    config = make_config("fedrdn", "digits:small", rounds=1, values=SMALL)
    parts = build_parts(config)
    name = site_names(config)[0]
    site = build_site(config, parts, name)
    site.handle(Instruction("preflight", Round(1, 1), {}))
    answer = site.handle(Instruction("evaluate", Round(1, 1), parts.model))
    raw = site.data
    pair = pair_of(batch.inputs for batch in raw.fixed("train", 64))
    batches = (batch._replace(inputs=normalised_by(batch.inputs, pair)) for batch in raw.fixed("test", 16))
    outputs, targets, _ = predict(parts.network, batches, torch.device("cpu"), parts.task.condense)
    assert answer.metrics["test"] == pytest.approx(parts.task.evaluate(outputs, targets), rel=1e-5)


@pytest.mark.parametrize("variant", ["reference", "medsegbench"])
def test_the_variants_keep_the_trainers_contract(variant):
    check_trainer("fedrdn", variant=variant)


@pytest.mark.parametrize(
    "task, values, words",
    [
        ("support2", {}, "expected a network of convolutions, which takes images"),
        ("digits:small", {"secure_sum": "masks", "n_sites": 4}, "secure_sum: "),
    ],
    ids=str,
)
def test_tables_and_secure_sums_are_refused(task, values, words):
    with pytest.raises(UserError, match=words):
        build_parts(make_config("fedrdn", task, values=values))


def test_images_of_other_channels_are_refused():
    class Wide(SmallData):
        def fixed(self, split, batch_size, at_most=None):
            for batch in super().fixed(split, batch_size, at_most):
                yield batch._replace(inputs=batch.inputs.expand(-1, 3, -1, -1))

    work = work_with(data=Wide())
    with pytest.raises(UserError, match="expected images of 1 channels, as the network takes, got 3"):
        FedRDN().train(work)
