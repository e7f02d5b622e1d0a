# SPDX-License-Identifier: Apache-2.0
"""FedProto against the authors' code, what leaves a site, and a run that is killed and continued."""

import numpy as np
import pytest
import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.types import Batch, Info, Outline, Reply, Round
from fairflare.engine.setup.config import make_config
from fairflare.testing import check_trainer
from fairflare_lab.functional.terms import class_distance, class_means
from fairflare_lab.methods.prototypes import MEANS, FedProto
from golden import file
from runs import bits, interrupted, run

INFO = Info(Round(1, 2))
VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01}


def reply(k, prototypes):
    return Reply(f"site-{k}", {"w": torch.zeros(1)}, 10, tensors={"prototypes": prototypes})


def means_of(features, targets):
    """What a site sends for these features, which a network passes on to its last layer in two batches."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(features.shape[1], 1))
    batches = [Batch(*parts, parts[1]) for parts in zip(features.split(4), targets.split(4))]
    return class_means(network, batches, targets.bincount().tolist(), torch.device("cpu"))


def test_the_authors_prototypes_and_loss():
    golden = np.load(file("local_terms.npz"))
    sites = []
    for k in range(3):
        found = means_of(torch.tensor(golden[f"fedproto/feat{k}"]), torch.tensor(golden[f"fedproto/lab{k}"]))
        for label, mean in found.items():
            np.testing.assert_allclose(mean.numpy(), golden[f"fedproto/local{k}/{label}"], atol=1e-6)
        sites.append(reply(k, {str(label): mean for label, mean in found.items()}))
    state = FedProto().collect({}, sites, {}, INFO)["prototypes"]
    for label, mean in state.items():
        np.testing.assert_allclose(mean.numpy(), golden[f"fedproto/global/{label}"], atol=1e-6)
    features, targets = torch.tensor(golden["fedproto/feat1"]), torch.tensor(golden["fedproto/lab1"])
    loss = class_distance(features, targets, {int(label): mean for label, mean in state.items()})
    assert float(loss) == pytest.approx(float(golden["fedproto/mse_loss_client1"]), abs=1e-6)


def test_a_class_that_nobody_sent_keeps_its_prototype():
    half = FedProto()
    both = [reply(0, {"0": torch.ones(2), "1": torch.zeros(2)}), reply(1, {"0": torch.zeros(2)})]
    state = half.collect({}, both, {}, INFO)
    assert state["prototypes"]["0"].tolist() == [0.5, 0.5]
    state = half.collect({}, [reply(1, {"0": torch.full((2,), 3.0)})], state, INFO)
    sent = half.tensors_for(state, "site-9", INFO)["prototypes"]
    assert sent["0"].tolist() == [3, 3] and sent["1"].tolist() == [0, 0]


def test_one_vector_per_class_as_wide_as_the_last_layer():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).state_dict()
    assert MEANS.shapes(Outline(model, classes=3)) == {str(label): (5,) for label in range(3)}


def test_with_both_the_models_are_averaged_under_any_rule(tmp_path):
    """Without the term it is FedAvg, in which no site has a model of its own."""
    models = {}
    for name, method, more in (("both", "fedproto", {}), ("none", "fedproto", {"lam": 0.0}), ("fedavg", "fedavg", {})):
        more = {"share": "both", **more} if method == "fedproto" else more
        models[name] = bits(run(method, tmp_path / name, {**VALUES, **more}, rounds=2))
    assert models["none"]["model"] == models["fedavg"]["model"] != models["both"]["model"]
    assert models["both"]["own"] == {}
    assert make_config("fedheal", "support2", values={"trainer": "fedproto", "share": "both"}).method == "fedheal"
    with pytest.raises(UserError, match="leaves the models at the sites"):
        make_config("fedheal", "support2", values={"trainer": "fedproto"})


def test_killed_and_continued_it_is_the_same(tmp_path, monkeypatch):
    """No model travels: the shared one stays as it began, and every site has its own result beside it."""
    whole = bits(run("fedproto", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("fedproto", tmp_path / "killed", VALUES, monkeypatch))
    assert len(whole["own"]) == 3 and len(set(whole["own"].values())) == 3
    better = [site["personal"]["test"]["auc"] > site["test"]["auc"] for site in whole["results"].values()]
    assert any(better)
    alone = bits(run("fedproto", tmp_path / "alone", {**VALUES, "lam": 0.0}))
    assert alone["model"] == whole["model"] and alone["own"] != whole["own"]


def test_small_classes_stay_at_the_site(tmp_path):
    """No mean of fewer examples than the site lets leave, and none of a class that subtraction would give away."""
    hidden = bits(run("fedproto", tmp_path / "hidden", {**VALUES, "min_count": 100_000}))
    alone = bits(run("fedproto", tmp_path / "alone", {**VALUES, "lam": 0.0}))
    assert hidden["own"] == alone["own"]


@pytest.mark.parametrize("share", ["prototypes", "both"])
def test_the_kit(share):
    check_trainer("fedproto", share=share)
