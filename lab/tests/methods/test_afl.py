# SPDX-License-Identifier: Apache-2.0
"""AFL: projection, steps by hand, absent and new sites, where the average goes, and one run that shows both models."""

import json

import pytest
import torch

from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.setup.config import make_config
from fairflare_lab.functional.terms import projected, with_newcomers
from fairflare_lab.methods.afl import AFL


def reply(site, loss, move=0.0):
    update = {"w": torch.tensor([move]), "mean": torch.tensor([move])}
    return Reply(site, update, 10, {"loss": loss}, trainable=frozenset("w"))


def rounds(rule, *rows, total=None, state=None):
    """Rows of (site, loss, move); the outcome of the last one."""
    model, state = {"w": torch.zeros(1), "mean": torch.zeros(1), "steps": torch.tensor(3)}, state or {}
    for t, row in enumerate(rows, 1):
        outcome = rule.aggregate(model, [reply(*one) for one in row], state, Info(Round(t, total or len(rows))))
        model, state = outcome.model, outcome.state
    return outcome


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0.5, 0.5], [0.5, 0.5]),
        ([2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([0.6, 0.6, -1.0], [0.5, 0.5, 0.0]),
        ([1e12, 1e12 - 1, 0.0], [1.0, 0.0, 0.0]),
        ([-5.0], [1.0]),
    ],
)
def test_projections_by_hand(values, expected):
    assert list(projected(dict(enumerate(values))).values()) == pytest.approx(expected)


def test_a_projection_has_the_mass_that_it_is_asked_for():
    assert projected({"a": 3.0, "b": 2.9}, 0.5) == pytest.approx({"a": 0.3, "b": 0.2})


def test_newcomers_stand_at_the_mean():
    assert with_newcomers({"a": 0.7, "b": 0.3}, ["a", "c"]) == pytest.approx({"a": 1.4 / 3, "b": 0.2, "c": 1 / 3})
    assert with_newcomers({}, ["a", "b"]) == {"a": 0.5, "b": 0.5}


def test_the_first_round_is_uniform_and_the_next_one_follows_the_losses():
    """lambda = (.5, .5) + .1 (2, 1) = (.7, .6), whose projection is (.55, .45)."""
    outcome = rounds(AFL(), [("a", 2.0), ("b", 1.0)], total=5)
    assert outcome.weights == {"a": 0.5, "b": 0.5}
    assert outcome.state["lambda"] == pytest.approx({"a": 0.55, "b": 0.45}) == outcome.notes["site_lambda"]
    again = rounds(AFL(), [("a", 2.0, 1.0), ("b", 1.0, 0.0)], total=5, state=outcome.state)
    assert again.weights == pytest.approx({"a": 0.55, "b": 0.45}) and again.model["w"].item() == pytest.approx(0.55)


def test_no_step_is_the_uniform_mean():
    assert rounds(AFL(step=0), *[[("a", 9.0), ("b", 1.0)]] * 3).weights == {"a": 0.5, "b": 0.5}


def test_a_huge_step_takes_the_worst_site():
    assert rounds(AFL(step=1e6), *[[("a", 1e6), ("b", 1.0), ("c", 1.0)]] * 3).weights == {"a": 1.0, "b": 0.0, "c": 0.0}


def test_an_absent_site_keeps_its_share():
    state = rounds(AFL(), [("a", 1.0), ("b", 1.0), ("c", 1.0)], total=9).state
    outcome = rounds(AFL(), [("a", 2.0), ("b", 1.0)], total=9, state=state)
    assert outcome.weights == pytest.approx({"a": 0.5, "b": 0.5})
    assert outcome.state["lambda"] == pytest.approx({"a": 1 / 3 + 0.05, "b": 1 / 3 - 0.05, "c": 1 / 3})


def test_sites_without_a_share_are_the_mean_of_themselves():
    state = {"lambda": {"a": 0.0, "b": 0.0, "c": 1.0}}
    outcome = rounds(AFL(), [("a", 2.0), ("b", 1.0)], total=9, state=state)
    assert outcome.weights == {"a": 0.5, "b": 0.5} and outcome.state["lambda"] == state["lambda"]


def test_argmax_is_the_worst_site_alone_and_ties_share():
    assert rounds(AFL(argmax=True), [("a", 2.0), ("b", 1.0), ("c", 2.0)]).weights == {"a": 0.5, "b": 0.0, "c": 0.5}
    assert rounds(AFL(argmax=True), [("a", 2.0), ("b", 1.0)]).weights == {"a": 1.0, "b": 0.0}


ROWS = [[("a", 1.0, 1.0), ("b", 1.0, 1.0)]] * 3
"""The model goes through 1, 2 and 3: their mean is 2."""


@pytest.mark.parametrize("average, final, own", [("beside", 3.0, 2.0), ("final", 2.0, None), ("none", 3.0, None)])
def test_where_the_average_goes(average, final, own):
    rule = AFL(average=average)
    outcome = rounds(rule, *ROWS)
    assert outcome.model["w"].item() == pytest.approx(final) == outcome.model["mean"].item()
    assert rule.own_models == (own is not None) and set(outcome.models) == (set("ab") if own else set())
    assert all(model["w"].item() == pytest.approx(own) and model["steps"] == 3 for model in outcome.models.values())
    assert ("average" in outcome.state) == (average != "none")


def test_before_the_last_round_no_site_has_a_model_of_its_own():
    assert not rounds(AFL(), *ROWS, total=4).models


def test_a_run_shows_the_average_beside_the_last_model(tmp_path):
    command = [
        "run",
        "afl",
        "--task",
        "support2:dirichlet",
        "--sites",
        "3",
        "--rounds",
        "3",
        "--no-solo",
        "--set",
        "lr=0.01",
    ]
    with pytest.raises(SystemExit) as end:
        main([*command, "--out", str(tmp_path / "run")])
    assert not end.value.code
    entries = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    sites = next(e for e in entries if e["event"] == "evaluation")["sites"]
    assert len(sites) == 3 and all(s["personal"]["test"]["loss"] != s["test"]["loss"] for s in sites.values())


def test_a_server_optimizer_goes_with_no_average():
    values = {"server_optimizer": "adam", "model": "linear"}
    for average in ("beside", "final"):
        with pytest.raises(UserError, match="server_optimizer: expected none, for afl"):
            make_config("afl", "support2:dirichlet", values={**values, "average": average})
    make_config("afl", "support2:dirichlet", values={**values, "average": "none"})
