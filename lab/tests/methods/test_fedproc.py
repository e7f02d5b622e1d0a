# SPDX-License-Identifier: Apache-2.0
"""FedProc: the shares of its two terms, prototypes at site and server, small classes, and what is refused."""

import dataclasses

import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.features import features_of
from fairflare.testing import check_trainer
from fairflare.testing.example import SmallData, copied, work_of_round
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.functional.terms import prototype_contrast
from fairflare_lab.methods.prototypes import GLOBAL, FedProc
from fairflare_lab.methods.prototypes_probe import Prototypes

INFO = Info(Round(1, 4))


def reply(site, n, **classes):
    """A site's answer with (examples, value of a one-dimensional mean) per class."""
    means = {label[1:]: torch.tensor([float(value)]) for label, (_, value) in classes.items()}
    counts = {label[1:]: torch.tensor(float(size)) for label, (size, _) in classes.items()}
    return Reply(site, {}, n, tensors={"prototypes": means, "prototype_counts": counts})


@pytest.mark.parametrize(
    "variant, total, shares",
    [
        ("paper", 4, [0, 0.25, 0.5, 0.75]),
        ("marsfl", 5, [0, 0.25, 0.5, 0.75, 1]),
        ("reference", 4, [0, 0.01, 0.02, 0.03]),
        ("marsfl", 1, [0]),
    ],
)
def test_the_share_of_cross_entropy_rises(variant, total, shares):
    assert [FedProc(variant).share(Round(t, total)) for t in range(1, total + 1)] == pytest.approx(shares)


def test_the_reference_ends_at_cross_entropy_alone_after_a_hundred_rounds():
    assert FedProc("reference").share(Round(200, 300)) == 1.0


def trained(trainer, t, prototypes=None):
    work = work_of_round(t)
    work.tensors = {GLOBAL.name: prototypes} if prototypes else {}
    trainer.train(work)
    return work


PROTOTYPES = {"0": torch.tensor([1.0, 0, 0, 0]), "1": torch.tensor([0, 1.0, 0, 0])}


def test_without_prototypes_it_is_plain_training():
    ours, plain = (copied(trained(trainer, 2).network) for trainer in (FedProc(), PlainTrainer()))
    assert all(torch.equal(ours[key], value) for key, value in plain.items())


def test_features_move_to_their_classs_prototype():
    """In the first round a is 0: only the features are trained, and of the last layer nothing but its decay."""
    before, work = work_of_round(1), trained(FedProc(), 1, PROTOTYPES)
    torch.testing.assert_close(work.network[5].weight, before.network[5].weight, rtol=1e-3, atol=0)

    def term(network):
        batch = next(SmallData().fixed("train", 64))
        with features_of(network.eval()) as found:
            network(batch.inputs)
        return float(prototype_contrast(found[0], batch.targets, {int(k): v for k, v in PROTOTYPES.items()}))

    assert term(work.network) < term(before.network)


def test_a_class_without_prototype_counts_as_nothing():
    features, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    known = {0: torch.randn(3), 1: torch.randn(3)}
    two = prototype_contrast(features[:2], targets[:2], known)
    assert float(prototype_contrast(features, targets, known)) == pytest.approx(float(two) / 2, rel=1e-5)
    assert float(prototype_contrast(features, targets, {})) == 0
    assert float(prototype_contrast(features, targets, {0: known[0]})) == 0


def test_the_server_weighs_prototypes_by_examples_and_keeps_old_ones():
    trainer = FedProc()
    state = trainer.collect({}, [reply("a", 40, _0=(30, 1), _1=(10, 5)), reply("b", 10, _0=(10, 5))], {}, INFO)
    assert {k: v.item() for k, v in state[GLOBAL.name].items()} == {"0": 2, "1": 5}
    later = trainer.collect({}, [reply("b", 10, _0=(10, 7))], state, INFO)
    assert {k: v.item() for k, v in trainer.tensors_for(later, "c", INFO)[GLOBAL.name].items()} == {"0": 7, "1": 5}
    marsfl = FedProc("marsfl").collect({}, [reply("a", 40, _0=(30, 1)), reply("b", 10, _0=(10, 5))], {}, INFO)
    assert marsfl[GLOBAL.name]["0"].item() == 3


@pytest.mark.parametrize("stated", [-5.0, 0.0, 1e8])
def test_no_site_counts_for_more_than_its_examples(stated):
    replies = [reply("a", 10, _0=(10, 1)), reply("b", 10, _0=(stated, 3))]
    found = FedProc().collect({}, replies, {}, INFO)[GLOBAL.name]["0"].item()
    assert found == (2 if stated > 0 else 1)


def test_the_probe_sends_means_of_the_trained_models_features():
    work = trained(PlainTrainer(), 1)
    assert Prototypes(probe_batch=7).measure(work) == {}
    batch = next(SmallData().fixed("train", 64))
    with torch.no_grad(), features_of(work.network.eval()) as found:
        work.network(batch.inputs)
    for label in torch.unique(batch.targets).tolist():
        mean = found[0][batch.targets == label].mean(0)
        torch.testing.assert_close(work.send_tensors["prototypes"][str(label)], mean, rtol=1e-5, atol=1e-6)
        assert int(work.send_tensors["prototype_counts"][str(label)]) == int((batch.targets == label).sum())


@pytest.mark.parametrize("least", [13, None])
def test_small_classes_stay_at_the_site(least):
    """Twelve and thirteen examples: with 13 as the minimum neither may leave, since the other follows from n."""
    work = dataclasses.replace(trained(PlainTrainer(), 1), min_count=least)
    Prototypes().measure(work)
    assert not work.send_tensors


@pytest.mark.parametrize("variant", ["reference", "marsfl"])
def test_the_variants_keep_the_trainers_contract(variant):
    check_trainer("fedproc", variant=variant)


@pytest.mark.parametrize(
    "task, values, words",
    [
        ("support2", {"model": "linear"}, "layers in front of its last one"),
        ("brain-seg:small", {}, "one class label per example"),
        ("support2", {"variant": "authors"}, "variant"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(task, values, words):
    with pytest.raises(UserError, match=words):
        build_parts(make_config("fedproc", task, values=values))
