# SPDX-License-Identifier: Apache-2.0
"""FedProto against the authors' code, what leaves a site, and a run that is killed and continued."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fairflare.core.registry import get_method
from fairflare.core.types import Info, Outline, Reply, Round
from fairflare.functional.features import class_distance, class_means
from fairflare.testing import check_rule, check_trainer
from fairflare.testing.laws import CHECKS

sys.path[:0] = [str(Path(__file__).parents[1] / "golden"), str(Path(__file__).parent)]
from runs import bits, interrupted, run  # noqa: E402

from golden import folder  # noqa: E402

INFO = Info(Round(1, 2))
VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01}


def reply(k, prototypes):
    return Reply(f"site-{k}", {"w": torch.zeros(1)}, 10, tensors={"prototypes": prototypes})


def test_the_authors_prototypes_and_loss(plugin):
    golden = np.load(folder() / "local_terms.npz")
    sites = []
    for k in range(3):
        found = class_means(torch.tensor(golden[f"fedproto/feat{k}"]), torch.tensor(golden[f"fedproto/lab{k}"]))
        for label, mean in found.items():
            np.testing.assert_allclose(mean.numpy(), golden[f"fedproto/local{k}/{label}"], atol=1e-6)
        sites.append(reply(k, {str(label): mean for label, mean in found.items()}))
    state = plugin.FedProto().weigh(sites, {}, INFO)[1]["prototypes"]
    for label, mean in state.items():
        np.testing.assert_allclose(mean.numpy(), golden[f"fedproto/global/{label}"], atol=1e-6)
    features, targets = torch.tensor(golden["fedproto/feat1"]), torch.tensor(golden["fedproto/lab1"])
    loss = class_distance(features, targets, {int(label): mean for label, mean in state.items()})
    assert float(loss) == pytest.approx(float(golden["fedproto/mse_loss_client1"]), abs=1e-6)


def test_a_class_that_nobody_sent_keeps_its_prototype(plugin):
    rule = plugin.FedProto()
    _, state = rule.weigh(
        [reply(0, {"0": torch.ones(2), "1": torch.zeros(2)}), reply(1, {"0": torch.zeros(2)})], {}, INFO
    )
    _, state = rule.weigh([reply(1, {"0": torch.full((2,), 3.0)})], state, INFO)
    sent = rule.tensors_for(state, "site-9", INFO)["prototypes"]
    assert sent["0"].tolist() == [3, 3] and sent["1"].tolist() == [0, 0]


def test_one_vector_per_class_as_wide_as_the_last_layer(plugin):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).state_dict()
    assert plugin.MEANS.shapes(Outline(model, classes=3)) == {str(label): (5,) for label in range(3)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_laws(plugin, check):
    check(get_method("fedproto"))


def test_killed_and_continued_it_is_the_same(plugin, tmp_path, monkeypatch):
    """No model travels: the shared one stays as it began, and every site has its own result beside it."""
    whole = bits(run("fedproto", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("fedproto", tmp_path / "killed", VALUES, monkeypatch))
    assert len(whole["own"]) == 3 and len(set(whole["own"].values())) == 3
    better = [site["personal"]["test"]["auc"] > site["test"]["auc"] for site in whole["results"].values()]
    assert any(better)
    alone = bits(run("fedproto", tmp_path / "alone", {**VALUES, "lam": 0.0}))
    assert alone["model"] == whole["model"] and alone["own"] != whole["own"]


def test_small_classes_stay_at_the_site(plugin, tmp_path):
    """No mean of fewer examples than the site lets leave, and none of a class that subtraction would give away."""
    hidden = bits(run("fedproto", tmp_path / "hidden", {**VALUES, "min_count": 100_000}))
    alone = bits(run("fedproto", tmp_path / "alone", {**VALUES, "lam": 0.0}))
    assert hidden["own"] == alone["own"]


def test_the_kit(plugin):
    check_rule("fedproto")
    check_trainer("fedproto")
