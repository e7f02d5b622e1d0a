# SPDX-License-Identifier: Apache-2.0
"""AFL over six rounds against fair_flearn's server, with its projection and an exact one; 40 projections."""

import re
from functools import cache

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.functional.terms import projected, projected_reference
from fairflare_lab.methods.afl import AFL
from golden import file

FILE = np.load(file("afl.npz"))
ROUNDS, SITES = FILE["loss"].shape
CASES = sorted({key.split("/")[0] for key in FILE.files if key.endswith("/lambdas")})


def gradient(t, k):
    return {name: FILE[f"grad/{t}/{k}/{name}"] for name in "01"}


@cache
def learning_rate():
    """The file does not say it; the latest model of a case is w0 minus it times the weighted gradients."""
    case = next(case for case in CASES if case.endswith("exactproject"))
    used = np.vstack([np.full(SITES, 1 / SITES), FILE[f"{case}/lambdas"][:-1]])
    total = sum(used[t, k] * gradient(t, k)["0"] for t in range(ROUNDS) for k in range(SITES))
    return float(np.vdot(FILE["w0/0"] - FILE[f"{case}/latest/0"], total) / np.vdot(total, total))


def rounds_of(rule):
    """lambda after each round, and the last outcome."""
    model, state, rows = {name: torch.tensor(FILE[f"w0/{name}"]) for name in "01"}, {}, []
    for t in range(ROUNDS):
        replies = [
            Reply(
                f"site-{k}",
                {name: torch.tensor(-learning_rate() * g) for name, g in gradient(t, k).items()},
                10,
                {"loss": float(FILE["loss"][t, k])},
                trainable=frozenset("01"),
            )
            for k in range(SITES)
        ]
        outcome = rule.aggregate(model, replies, state, Info(Round(t + 1, ROUNDS)))
        model, state = outcome.model, outcome.state
        rows.append([state["lambda"][r.site] for r in replies])
    return rows, outcome


@each("case", CASES)
def test_lambda_and_both_models(case):
    step, kind = re.fullmatch(r"lrl([\d.]+)_(\w+)project", case).groups()
    rule = AFL(step=float(step), variant="reference" if kind == "ref" else "paper")
    rows, outcome = rounds_of(rule)
    np.testing.assert_allclose(rows, FILE[f"{case}/lambdas"], rtol=0, atol=1e-12)
    assert list(outcome.models) == [f"site-{k}" for k in range(SITES)]
    for name in "01":
        np.testing.assert_allclose(outcome.model[name].numpy(), FILE[f"{case}/latest/{name}"], rtol=0, atol=1e-12)
        for own in outcome.models.values():
            np.testing.assert_allclose(own[name].numpy(), FILE[f"{case}/resulting/{name}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("exactproject")])
def test_the_average_as_the_final_model(case):
    rule = AFL(step=float(re.search(r"lrl([\d.]+)", case).group(1)), average="final")
    _, outcome = rounds_of(rule)
    assert not outcome.models and not rule.own_models
    for name in "01":
        np.testing.assert_allclose(outcome.model[name].numpy(), FILE[f"{case}/resulting/{name}"], rtol=0, atol=1e-12)


def test_projections():
    """The exact one is on the simplex; fair_flearn's is not in every case."""
    sums = []
    for v, exact, theirs in zip(FILE["simplex/v"], FILE["simplex/exact"], FILE["simplex/fair_flearn_project"]):
        point = list(projected(dict(enumerate(v))).values())
        np.testing.assert_allclose(point, exact, rtol=0, atol=1e-12)
        assert sum(point) == pytest.approx(1, abs=1e-12)
        reference = list(projected_reference(dict(enumerate(v))).values())
        np.testing.assert_allclose(reference, theirs, rtol=0, atol=1e-12)
        sums.append(sum(reference))
    assert max(sums) > 1.01
