# SPDX-License-Identifier: Apache-2.0
"""FedUFO's adversary against its Algorithm 1 and against the authors' code, and the projections it uses."""

import numpy as np

from cases import each
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core.types import Info, Reply, Round
from fairflare.functional.simplex import in_ball, in_ball_reference
from golden import folder

GOLDEN = np.load(folder() / "fedufo.npz")
LOSSES, COUNTS, STEPS = GOLDEN["loss_mat"], GOLDEN["number_mat"], int(GOLDEN["E"])
ROUNDS, SITES, GROUPS = LOSSES.shape
CASES = sorted({key.split("/")[0] for key in GOLDEN.files})


def replies(t):
    return [
        Reply(
            f"site-{i}",
            {},
            int(COUNTS[i].sum()),
            scalars={"loss": float(LOSSES[t, i] @ COUNTS[i] / COUNTS[i].sum())}
            | {f"group_loss/{k}": float(LOSSES[t, i, k]) for k in range(GROUPS)}
            | {f"group_count/{k}": float(COUNTS[i, k]) for k in range(GROUPS)},
        )
        for i in range(SITES)
    ]


def number(case, letter):
    value = next(part for part in case.split("_") if part.startswith(letter)).removeprefix(letter)
    return None if value == "None" else float(value)


def rule_of(case):
    shared = {"gamma": number(case, "g"), "steps": STEPS, "share_radius": True}
    if case.startswith("ref"):
        level = "multi" if "_MN_" in case else "unknown"
        return FedUFO(level=level, radius=number(case, "rad"), variant="reference", **shared)
    losses = "sum" if case.endswith("asum") else "mean"
    return FedUFO(level="multi", radius=number(case, "rho"), group_losses=losses, **shared)


@each("case", [c for c in CASES if c.startswith(("ref_", "paper_"))])
def test_five_rounds(case):
    rule, state = rule_of(case), {}
    atol = 1e-6 if case.startswith("ref") else 1e-9
    for t in range(ROUNDS):
        _, state = rule.weigh(replies(t), state, Info(Round(t + 1, ROUNDS)))
        if "_MxN_" in case:
            found = [list(row.values()) for row in state["cells"].values()]
            np.testing.assert_allclose(found, GOLDEN[f"{case}/lambda"][t], rtol=0, atol=atol)
            continue
        for part, key in (("clients", "lambda_c"), ("groups", "lambda_a")):
            found = list(state[part].values())
            np.testing.assert_allclose(found, GOLDEN[f"{case}/{key}"][t], rtol=0, atol=atol)


def as_dict(values):
    return dict(enumerate(values.tolist()))


@each("k", range(len(GOLDEN["proj/v"])))
def test_projection(k):
    v, rho = as_dict(GOLDEN["proj/v"][k]), float(GOLDEN["proj/rho"][k])
    np.testing.assert_allclose(list(in_ball(v, rho).values()), GOLDEN["proj/exact"][k], rtol=0, atol=1e-9)
    np.testing.assert_allclose(list(in_ball_reference(v, rho).values()), GOLDEN["proj/ref"][k], rtol=0, atol=1e-6)


def test_projection_of_a_row():
    key = next(key for key in GOLDEN.files if key.startswith("proj_row/ref_rho"))
    found = in_ball_reference(as_dict(GOLDEN["proj_row/v"]), float(key.removeprefix("proj_row/ref_rho")))
    np.testing.assert_allclose(list(found.values()), GOLDEN[key], rtol=0, atol=1e-6)


def test_sampled_mixing_asks_the_site_to_draw():
    state = {"clients": {"a": 0.75, "b": 0.25}, "groups": {"x": 0.4, "y": 0.6}}
    orders = FedUFO(mixing="sampled", beta=0.25).orders(state, "a", Info(Round(2, 3)))
    assert orders.pop("sampled") == 0.25
    assert orders == FedUFO(beta=0.25).orders(state, "a", Info(Round(2, 3)))
    assert "sampled" not in FedUFO(mixing="sampled", level="client").orders(state, "a", Info(Round(2, 3)))
