# SPDX-License-Identifier: Apache-2.0
"""FlexFair: weights by hand, at the sites, at the server and under secure sums, and what is refused."""

import pytest
import torch

from cases import each
from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.errors import UserError
from fairflare.core.types import Info, Reply, Round, Training
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare_lab.functional.terms import Cell, variance_penalty
from fairflare_lab.methods.flexfair import FlexFair

INFO = Info(Round(1, 3))


def site(name, n, loss):
    return Reply(name, {}, n, {"loss": loss})


def grouped(name, n, **groups):
    """A site with (size, loss) per group."""
    numbers = {f"group_count/{g.replace('_', ', ')}": float(size) for g, (size, _) in groups.items()}
    numbers |= {f"group_loss/{g.replace('_', ', ')}": loss for g, (_, loss) in groups.items()}
    return Reply(name, {}, n, numbers)


def test_the_penalty_by_hand():
    """Losses 1 and 3 of equal cells: m = 2, P = 1, slopes -1 and 1; one cell or equal losses have none."""
    assert variance_penalty({"a": Cell(10, 10), "b": Cell(10, 30)}) == (1.0, {"a": -1.0, "b": 1.0})
    assert variance_penalty({"a": Cell(10, 10), "b": Cell(0, 0)}) == (0.0, {"a": 0.0})
    assert variance_penalty({"a": Cell(10, 10), "b": Cell(5, 5)})[1] == {"a": 0.0, "b": 0.0}
    assert variance_penalty({}) == (0.0, {})


@pytest.mark.parametrize("pooled", [True, False])
def test_slopes_are_the_derivative_of_the_penalty(pooled):
    losses, n = torch.tensor([0.3, 1.1, 0.7], dtype=torch.float64, requires_grad=True), torch.tensor([5.0, 20.0, 9.0])
    mean = (n * losses).sum() / n.sum() if pooled else losses.mean()
    ((losses - mean) ** 2).mean().backward()
    cells = {str(k): Cell(float(n[k]), float((n * losses.detach())[k])) for k in range(3)}
    assert list(variance_penalty(cells, pooled)[1].values()) == pytest.approx(losses.grad.tolist(), abs=1e-12)


def test_the_site_with_the_larger_loss_weighs_more_in_the_next_round():
    """Sizes 10 and 30, losses 3 and 1: m = 1.5, away 1.5 and -0.5, slopes 1.25 and -1.25, extra 5 lam and -5/3 lam."""
    rule, replies = FlexFair(lam=0.3), [site("a", 10, 3.0), site("b", 30, 1.0)]
    first, state = rule.weigh(replies, {}, INFO)
    assert first == FedAvg().weigh(replies, {}, INFO)[0]
    assert state["extra"] == pytest.approx({"a": 1.5, "b": -0.5})
    assert rule.orders(state, "a", INFO) == {}
    assert rule.weigh(replies, state, INFO)[0] == pytest.approx({"a": 25 / 40, "b": 15 / 40})
    assert FlexFair(lam=0.3, apply="local").orders(state, "a", INFO) == pytest.approx({"weight": 2.5})


def test_weights_below_nothing_are_nothing_unless_raw():
    state = {"extra": {"a": -1.5, "b": 0.5}}
    clamped, raw = (FlexFair(apply="local", raw=value).orders(state, "a", INFO) for value in (False, True))
    assert clamped == {"weight": 0.0} and raw == {"weight": -0.5}
    weights, _ = FlexFair().weigh([site("a", 10, 1.0), site("b", 10, 1.0)], state, INFO)
    assert weights == {"a": 0.0, "b": 1.0}


def test_groups_are_pooled_over_the_sites_and_split_within_them():
    """Group losses 2 and 1 of 30 and 10 examples at two sites: m = 1.75, slopes -0.25 + 0.75 / 2 and its negative."""
    rule = FlexFair(lam=1.0, cells="groups")
    replies = [grouped("a", 30, u=(20, 2.0), v=(10, 1.0)), grouped("b", 10, u=(10, 2.0))]
    _, state = rule.weigh(replies, {}, INFO)
    slope = 0.25 - 30 / 40 * (0.25 - 0.75)
    assert state["extra"] == pytest.approx({"u": slope * 40 / 30, "v": -slope * 40 / 10})
    orders = rule.orders(state, "a", INFO)
    assert orders["weight/v"] == -1.0 and orders["relative"] == 1.0  # clamped: 1 - 2.5 is 0
    weights, _ = rule.weigh(replies, state, INFO)
    u = 1 + slope * 40 / 30
    assert weights == pytest.approx({"a": 20 * u / (30 * u), "b": 10 * u / (30 * u)})


def test_a_site_that_is_away_keeps_its_weight():
    rule = FlexFair()
    _, state = rule.weigh([site("a", 10, 3.0), site("b", 30, 1.0)], {}, INFO)
    _, later = rule.weigh([site("b", 30, 1.0)], state, INFO)
    assert later["extra"] == {"a": state["extra"]["a"], "b": 0.0}


def test_groups_that_nobody_tells_of_change_nothing():
    rule = FlexFair(cells="groups")
    replies = [site("a", 10, 1.0), site("b", 30, 1.0)]
    weights, state = rule.weigh(replies, {}, INFO)
    assert state == {"extra": {}} and rule.orders(state, "a", INFO) == {}
    assert weights == {"a": 0.25, "b": 0.75}


def test_classes_outside_of_the_penalty_weigh_as_before():
    """Equal opportunity compares the groups of one class."""
    rule = FlexFair(cells="groups", criterion="eo", positive="ill")
    found = grouped("a", 40, ill_f=(10, 3.0), ill_m=(10, 1.0), well_f=(10, 9.0), well_m=(10, 0.0))
    outcome = rule.aggregate({}, [found], {}, INFO)
    extra = outcome.notes["group_extra"]
    assert extra["well, f"] == extra["well, m"] == 0 and extra["ill, f"] > 0 > extra["ill, m"]
    assert outcome.notes["penalised"] == 2


@pytest.mark.parametrize("mean", ["examples", "cells"])
def test_secure_sums_give_the_same_weights(mean):
    """Three rounds in which losses change: each site's own weight from sums, and what it keeps."""
    rule, state, kept = FlexFair(lam=0.4, mean=mean), {}, {}
    sizes = {"a": 10, "b": 25, "c": 40}
    for losses in ((3.0, 1.0, 0.5), (0.1, 2.0, 0.5), (0.7, 0.7, 0.7)):
        replies = [site(name, n, loss) for (name, n), loss in zip(sizes.items(), losses)]
        weights, state = rule.weigh(replies, state, INFO)
        terms = {r.site: rule.terms(r.scalars, r.n_examples, kept.get(r.site)) for r in replies}
        sums = [sum(values) for values in zip(*terms.values())]
        found = {name: rule.own_weight(terms[name], kept.get(name), sums) for name in terms}
        assert {name: weight for name, (weight, _) in found.items()} == pytest.approx(weights, abs=1e-12)
        kept = {name: keep for name, (_, keep) in found.items()}
        assert kept == pytest.approx(state["extra"], abs=1e-12)


@pytest.mark.parametrize("sums", [(0.0,) * 5, (-1.0, 1e300, 0.0, -1e300, 2.0), (1e300, 0.0, 1e300, 0.0, 1.0)])
def test_whatever_the_sums_are_a_weight_is_one(sums):
    weight, keep = FlexFair().own_weight((10.0, 20.0, 10.0, 2.0, 1.0), None, sums)
    assert 0 <= weight <= 1 and abs(keep) <= 1e15


SMALL = {"model": "linear", "n_sites": 4, "batch_size": 512}


def test_a_run_with_masks_ends_in_the_open_ones_model(tmp_path):
    models = []
    for name, more in (("open", {}), ("masked", {"secure_sum": "masks"})):
        folder = tmp_path / name
        folder.mkdir()
        config = make_config("flexfair", "support2:dirichlet", rounds=3, values={**SMALL, "lam": 3.0, **more})
        models.append(run_local(config, folder))
        assert verify(folder / "audit.jsonl")[-1]["event"] == "finish"
    for key, value in models[0].items():
        torch.testing.assert_close(models[1][key], value, rtol=1e-4, atol=1e-5)


def test_without_lambda_it_is_fedavg_bit_for_bit(tmp_path):
    models = []
    for method, more in (("flexfair", {"lam": 0.0}), ("fedavg", {})):
        (tmp_path / method).mkdir()
        config = make_config(method, "support2:dirichlet", rounds=2, values={**SMALL, **more})
        models.append(run_local(config, tmp_path / method))
    assert all(torch.equal(models[0][key], value) for key, value in models[1].items())


@each(
    "values, words",
    [
        ({"cells": "groups", "group_by": "none"}, "at least two groups"),
        ({"cells": "groups", "criterion": "dp"}, "group_by=label"),
        ({"cells": "groups", "criterion": "eo", "group_by": "label+sex"}, "positive=CLASS, one of"),
        ({"criterion": "dp"}, "expected cells=groups"),
        ({"raw": True}, "expected apply=local"),
        ({"lam": -1.0}, "lam"),
        ({"cells": "groups", "secure_sum": "masks", "n_sites": 4}, "while a site trains"),
        ({"apply": "local", "secure_sum": "masks", "n_sites": 4}, "while a site trains"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        make_config("flexfair", "support2:dirichlet", values=values)


def test_adam_cannot_see_a_whole_sites_weight_in_the_loss():
    assert "no effect" in FlexFair(apply="local").caution(Training(optimizer="adam"))
    assert FlexFair().caution(Training(optimizer="adam")) == ""
