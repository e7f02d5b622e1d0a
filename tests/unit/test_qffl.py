# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg and q-FFL's weights: limits, steps by hand, floors, secure sums, one run."""

import json

import pytest
import torch

from cases import each
from fairflare.aggregators.qffl import QFFL
from fairflare.core.errors import UserError
from fairflare.core.types import Info, Reply, Round, Training
from fairflare_lab.methods.qfedavg import LONGEST, QFedAvg

INFO = Info(Round(1, 5), lr=0.5)


def reply(k, vector, loss, n=10):
    return Reply(f"site-{k}", {"w": torch.tensor(vector), "mean": torch.ones(1)}, n, {"loss": loss}, {}, frozenset("w"))


def model(n=1):
    return {"w": torch.zeros(n), "mean": torch.zeros(1)}


def test_q_zero_is_the_uniform_mean():
    outcome = QFedAvg(q=0).aggregate(model(2), [reply(0, [1.0, 0.0], 9.0), reply(1, [0.0, 3.0], 0.1)], {}, INFO)
    assert outcome.model["w"].tolist() == [0.5, 1.5] and outcome.notes["step"] == 1


def test_a_step_by_hand():
    """q = 1, L = 2, F = (3, 1), D = (1, 0): Delta = (-6, 0), h = (4 + 6, 2), so the step is 6 / 12.

    The buffer moves by its whole weighted mean.
    """
    outcome = QFedAvg(q=1).aggregate(model(), [reply(0, [1.0], 3.0), reply(1, [0.0], 1.0)], {}, INFO)
    assert outcome.model["w"].item() == pytest.approx(0.5) and outcome.model["mean"].item() == pytest.approx(1)
    assert outcome.weights == pytest.approx({"site-0": 0.75, "site-1": 0.25})


def test_a_static_step_by_hand():
    """The same sites with h = (2, 2): 6 / 4, longer than the mean update."""
    sites = [reply(0, [1.0], 3.0), reply(1, [0.0], 1.0)]
    outcome = QFedAvg(q=1, static=True).aggregate(model(), sites, {}, INFO)
    assert outcome.model["w"].item() == pytest.approx(1.5) and outcome.model["mean"].item() == pytest.approx(1)


def test_a_static_step_has_an_end():
    """A site that reports a huge loss stretches the round's step so far and no further."""
    sites = [reply(0, [1.0], 1e6), reply(1, [0.0], 1e6)]
    outcome = QFedAvg(q=900, static=True).aggregate(model(), sites, {}, INFO)
    assert outcome.notes["step"] == pytest.approx(LONGEST) and torch.isfinite(outcome.model["w"]).all()


@pytest.mark.parametrize("q, moves", [(0.1, True), (0.5, True), (1.0, True)])
def test_a_site_without_a_loss_does_not_stop_the_others(q, moves):
    sites = [reply(0, [1.0], 0.0), reply(1, [1.0], 2.0)]
    assert (QFedAvg(q=q).aggregate(model(), sites, {}, INFO).model["w"].item() > 0.01) == moves


def test_with_the_authors_floor_it_does():
    sites = [reply(0, [1.0], 0.0), reply(1, [1.0], 2.0)]
    assert QFedAvg(q=0.1, loss_floor=1e-10).aggregate(model(), sites, {}, INFO).model["w"].item() < 1e-6


@pytest.mark.parametrize("floor", [None, 0.0, 1e-3])
def test_losses_of_zero_everywhere_are_the_mean(floor):
    sites = [reply(0, [0.0], 0.0), reply(1, [0.0], 0.0)]
    outcome = QFedAvg(q=0.5, loss_floor=floor).aggregate(model(), sites, {}, INFO)
    assert outcome.weights == {"site-0": 0.5, "site-1": 0.5} and torch.isfinite(outcome.model["w"]).all()


def test_it_says_what_it_lacks():
    with pytest.raises(UserError, match="learning rate"):
        QFedAvg().aggregate(model(), [reply(0, [1.0], 1.0)], {}, Info(Round(1, 5)))
    with pytest.raises(UserError, match="every site.s steps"):
        QFedAvg(per_step=True).aggregate(model(), [reply(0, [1.0], 1.0)], {}, INFO)


def test_it_says_where_its_bound_is_a_guess():
    assert "plain SGD" in QFedAvg().caution(Training(optimizer="adam"))
    assert "plain SGD" in QFedAvg().caution(Training(optimizer="sgd", momentum=0.9))
    assert not QFedAvg().caution(Training(optimizer="sgd", momentum=0.0))
    assert not QFedAvg(lipschitz=2).caution(Training(optimizer="adam"))


def weights(rule, *losses, counts=(10, 30)):
    replies = [reply(k, [0.0], loss, n) for k, (loss, n) in enumerate(zip(losses, counts))]
    return list(rule.weigh(replies, {}, INFO)[0].values())


def test_weights_by_hand():
    """F = (3, 1), n = (10, 30): 3 x 10 and 1 x 30 at q = 1, 9 x 10 and 30 at q = 2."""
    assert weights(QFFL(q=1), 3.0, 1.0) == pytest.approx([0.5, 0.5])
    assert weights(QFFL(q=2), 3.0, 1.0) == pytest.approx([0.75, 0.25])
    assert weights(QFFL(q=1, prior="none"), 3.0, 1.0) == pytest.approx([0.75, 0.25])
    assert weights(QFFL(q=0), 3.0, 1.0) == pytest.approx([0.25, 0.75])


def test_a_huge_power_takes_the_worst_site_and_ties_are_shared():
    assert weights(QFFL(q=1e6), 3.0, 2.9) == pytest.approx([1, 0])
    assert weights(QFFL(q=1e6, prior="none"), 3.0, 3.0) == pytest.approx([0.5, 0.5])
    assert weights(QFFL(q=100, variant="reference"), 3.0, 3.0) == pytest.approx([0.5, 0.5])
    assert weights(QFFL(q=100, variant="reference"), 3.0, 2.999) == [1, 0]


@each("rule", [QFFL(q=2), QFFL(q=30), QFFL(q=0.5, prior="none")], ids=str)
@each("losses", [(3.0, 1.0), (0.0, 1e6), (0.0, 0.0), (1e6, 1e6)], ids=str)
def test_sums_give_the_same_weights(rule, losses):
    terms = [rule.terms({"loss": loss}, n, None) for loss, n in zip(losses, (10, 30))]
    sums = [sum(column) for column in zip(*terms)]
    assert [rule.own_weight(t, None, sums)[0] for t in terms] == pytest.approx(weights(rule, *losses), abs=1e-12)


def test_whatever_the_sums_are_a_weight_is_a_share():
    terms = QFFL().terms({"loss": 1.0}, 10, None)
    for total in (0.0, 1e-300, 5.0, 1e300):
        assert 0 <= QFFL().own_weight(terms, None, (total, 1.0))[0] <= 1
    assert "q=31" in QFFL(q=31).unsummable() and not QFFL(q=30).unsummable()


def test_a_run_uses_its_own_learning_rate(tmp_path):
    """L = 1 / lr: the run says the same as one with L given, and another than one with another L."""
    from fairflare.cli.main import main

    models = []
    for name, more in (("own", ()), ("same", ("--set", "lipschitz=20")), ("other", ("--set", "lipschitz=1"))):
        command = ["run", "qfedavg", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--no-solo"]
        with pytest.raises(SystemExit) as end:
            main([*command, "--set", "lr=0.05", "--set", "optimizer=sgd", *more, "--out", str(tmp_path / name)])
        assert not end.value.code
        entries = [json.loads(line) for line in (tmp_path / name / "audit.jsonl").read_text().splitlines()]
        assert 0 < entries[1]["notes"]["step"] < 1
        models.append(next(e["model_sha256"] for e in entries if e["event"] == "finish"))
    assert models[0] == models[1] != models[2]
