# SPDX-License-Identifier: Apache-2.0
"""Losses of times to an event: Efron's partial likelihood against lifelines, hazards by hand, and what has no event."""

import numpy as np
import pandas as pd
import pytest
import torch

from cases import each, later
from fairflare.data.tensors import Split, TensorData
from fairflare.functional import survival as maths
from fairflare.tasks.kinds.survival import Cox, Hazards, TimeCases, efron_loss, hazard_loss, intervals_of

lifelines = later("lifelines")
ENDS = (1.0, 2.0, 3.0)


def drawn(seed, n=80, ties=True):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    times = rng.exponential(5, n) / np.exp(x[:, 0] / 2)
    return x, np.floor(times) if ties else times, (rng.random(n) < 0.7).astype(float)


@each("seed", range(4))
def test_the_partial_likelihood_is_efrons(seed):
    """At lifelines' own coefficients, with ties and at time 0, and its gradient there is none."""
    x, times, events = drawn(seed, ties=seed != 3)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "T": times, "E": events})
    fitted = lifelines.CoxPHFitter().fit(table, "T", "E", fit_options={"precision": 1e-14, "r_precision": 1e-14})
    beta = torch.tensor(fitted.params_.to_numpy(), requires_grad=True)
    loss = efron_loss((torch.tensor(x) @ beta)[:, None], torch.tensor(np.stack((times, events), 1)))
    assert -float(loss.detach()) * len(x) == pytest.approx(fitted.log_likelihood_, abs=1e-9)
    loss.backward()
    assert beta.grad.abs().max() < 1e-8


def test_the_order_of_the_patients_changes_nothing():
    x, times, events = drawn(0)
    targets, risks = torch.tensor(np.stack((times, events), 1)), torch.tensor(x[:, :1])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    each_one = efron_loss(risks, targets, reduction="none")
    assert torch.allclose(efron_loss(risks[order], targets[order], reduction="none"), each_one[order], atol=1e-12)
    assert float(each_one.mean()) == pytest.approx(float(efron_loss(risks, targets)))
    assert (each_one[targets[:, 1] == 0] == 0).all()


def test_without_an_event_nothing_is_learned():
    risks = torch.randn(5, 1, requires_grad=True)
    targets = torch.tensor([[float(k), 0.0] for k in range(5)])
    loss = efron_loss(risks, targets)
    loss.backward()
    assert float(loss.detach()) == 0 and risks.grad.abs().max() == 0
    one = efron_loss(torch.zeros(1, 1), torch.tensor([[2.0, 1.0]]))
    assert float(one) == 0


def test_far_risks_stay_finite():
    risks = torch.tensor([[300.0], [-300.0], [300.0], [0.0]], requires_grad=True)
    loss = efron_loss(risks, torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [2.0, 1.0]]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(risks.grad).all()


def test_intervals_and_hazards_by_hand():
    targets = torch.tensor([[0.0, 1], [0.0, 0], [1.0, 1], [1.0, 0], [2.5, 1], [2.5, 0], [3.0, 0], [9.0, 1]])
    last, died = (found[:, 0].tolist() for found in intervals_of(targets, ENDS))
    assert last == [0, 0, 0, 1, 2, 2, 3, 3] and died == [True, False, True, False, True, False, False, False]
    losses = hazard_loss(torch.zeros(8, 3), targets, reduction="none", ends=ENDS)
    assert losses.tolist() == pytest.approx([np.log(2) * k for k in (1, 0, 1, 1, 3, 2, 3, 3)])


def test_answers_are_survival_and_log_risk():
    header, rows = Hazards(ends=ENDS).answer(torch.zeros(1, 3), ())
    assert header == ["survival_1", "survival_2", "survival_3"]
    assert rows[0] == pytest.approx([0.5, 0.25, 0.125])
    assert Cox().answer(torch.tensor([[1.5]]), ()) == (["log_risk"], [[1.5]])


def test_the_answer_that_needs_no_network_is_the_life_table_of_the_training_patients():
    rng = np.random.default_rng(0)
    times = rng.exponential(8.0, 400)
    events = (times < 9.0).astype(float)  # lost after the last end alone: then it is Kaplan and Meier's curve
    kind = Hazards(ends=(3.0, 6.0, 9.0, 99.0))
    targets = torch.as_tensor(np.stack((times, events), 1)).float()
    split = Split(torch.zeros(400, 2), targets, {})
    data = TensorData.of({"train": split, "val": split, "test": split}, 0)
    outputs = kind.baseline(None, data).answers(torch.zeros(5, 2))
    curve = maths.curve_at(*maths.kaplan_meier(times, events, np.ones((1, 400))), np.array(kind.ends))[0]
    assert outputs.shape == (5, 4)
    told = kind.cases(outputs, targets[:5], ()).survival
    assert told[0, :3] == pytest.approx(curve[:3], abs=1e-6) and np.ptp(told, axis=0).max() < 1e-9


def test_equal_patients_have_equal_risks_however_many_there_are():
    """Else an answer that is the same for all has a C-index other than one half."""
    for seed in range(40):
        logits = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
        for n in (7, 69, 70):
            cases = TimeCases(logits.expand(n, -1), torch.ones(n, 2), (), (1.0, 2.0, 3.0), False)
            assert len(set(cases.risks.tolist())) == 1
