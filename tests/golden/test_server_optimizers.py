# SPDX-License-Identifier: Apache-2.0
"""Server optimizers over six rounds, against Algorithm 2 of Reddi et al. restated, FLamby, Flower and FLARE."""

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core import registry
from golden import folder

GOLDEN = np.load(folder() / "server_optimizers.npz")
ROUNDS = len(GOLDEN["agg/weighted"])


def course(id, **parameters):
    """(model, state) after each round."""
    optimizer = registry.get_part("server optimizer", id)(**parameters)
    model, state, found = torch.from_numpy(GOLDEN["x0"]), {}, []
    for delta in GOLDEN["agg/weighted"]:
        change, state = optimizer.change({"w": torch.from_numpy(delta)}, state)
        model = model + change["w"]
        found.append((model.numpy(), {key: value["w"].numpy() for key, value in state.items()}))
    return found


def check(found, prefix, atol=1e-12, moments=()):
    for t, (model, state) in enumerate(found):
        np.testing.assert_allclose(model, GOLDEN[f"{prefix}/x"][t], rtol=0, atol=atol, err_msg=f"round {t}")
        for name in moments:
            np.testing.assert_allclose(state[name], GOLDEN[f"{prefix}/{name}"][t], rtol=1e-9, atol=atol)


def parameters(letter, id, **others):
    lr, beta1, beta2, tau = map(float, GOLDEN[f"set/{letter}"])
    return {"lr": lr, "tau": tau, **({} if id == "adagrad" else {"beta1": beta1, "beta2": beta2}), **others}


@each("letter", "AB")
@each("id", ["adagrad", "adam", "yogi"])
def test_the_paper(letter, id):
    check(course(id, **parameters(letter, id)), f"paper/{letter}/{id}", moments="mv")


@pytest.mark.parametrize("id", ["adagrad", "adam", "yogi"])
def test_a_step_between_two_models_is_the_same(id):
    """Within the rounding of a difference of models."""
    optimizer = registry.get_part("server optimizer", id)(**parameters("A", id))
    model, state = {"w": torch.from_numpy(GOLDEN["x0"]), "mean": torch.zeros(2), "n": torch.tensor(3)}, {}
    for t, delta in enumerate(GOLDEN["agg/weighted"]):
        combined = {"w": model["w"] + torch.from_numpy(delta), "mean": torch.full((2,), 0.1 * t), "n": model["n"]}
        model, state = optimizer.step(model, combined, state, {"w"})
        np.testing.assert_allclose(model["w"].numpy(), GOLDEN[f"paper/A/{id}/x"][t], rtol=0, atol=1e-8)
        assert torch.equal(model["mean"], combined["mean"]) and torch.equal(model["n"], torch.tensor(3))
        assert set(state["m"]) == {"w"}


@each("letter", "AB")
@each("id", ["adagrad", "adam", "yogi"])
def test_flamby_starts_v_at_zero_and_gives_adagrad_momentum(letter, id):
    given = parameters(letter, id, v_start="zero") | {"beta1": float(GOLDEN[f"set/{letter}"][1])}
    check(course(id, **given), f"flamby/{letter}/{id}", moments="v")


@pytest.mark.parametrize("letter", "AB")
@pytest.mark.parametrize("id", ["adagrad", "yogi"])
def test_flower(letter, id):
    check(course(id, **parameters(letter, id, v_start="zero")), f"flower/{letter}/{id}", atol=1e-8)


@pytest.mark.parametrize("name, damped", [("damped", True), ("undamped", False)])
def test_fedavgm(name, damped):
    lr, beta = map(float, GOLDEN["fedavgm/set"])
    check(course("momentum", lr=lr, beta=beta, damped=damped), f"fedavgm/{name}")


def test_flowers_fedavgm_is_the_undamped_one():
    lr, beta = map(float, GOLDEN["fedavgm/set"])
    check(course("momentum", lr=lr, beta=beta), "flower/fedavgm", atol=1e-8)


def test_none_leaves_the_rules_model_bit_for_bit():
    model, combined = {"w": torch.tensor([1e8, 1.0])}, {"w": torch.tensor([1.0, 1e-8])}
    after, state = registry.get_part("server optimizer", "none")().step(model, combined, {}, {"w"})
    assert after is combined and state == {}


def test_momentum_without_memory_and_at_rate_1_is_fedavg():
    for (model, _), (plain, _) in zip(course("momentum", lr=1.0, beta=0.0), course("none")):
        np.testing.assert_allclose(model, plain, rtol=0, atol=1e-12)


def test_a_coordinate_that_nobody_moves_stays():
    still = np.flatnonzero((GOLDEN["agg/weighted"] == 0).all(0))
    assert len(still)
    for id in ("momentum", "adam", "yogi", "adagrad"):
        assert (course(id)[-1][0][still] == GOLDEN["x0"][still]).all()
