# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg, q-FedSGD and q-FFL's weights against the authors' code, FFL4MIA's branch and a float64 restatement."""

import numpy as np
import pytest
import torch

from cases import each
from fairflare.aggregators.qffl import QFFL
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.qfedavg import QFedAvg
from golden import folder

ONE = np.load(folder() / "qfedavg.npz")
EXTRA = np.load(folder() / "qffl_extra.npz")
FLOOR = 1e-10
"""What the authors add to a loss."""


def under(pattern):
    """Keys of the second file -> q."""
    return [(key, float(key.split("/q")[1].partition("_")[0])) for key in EXTRA.files if key.startswith(pattern)]


def replies_of(updates, losses, counts=None):
    return [
        Reply(
            f"site-{k}",
            {key: torch.tensor(value) for key, value in update.items()},
            int(counts[k]) if counts is not None else 10,
            {"loss": float(loss)},
            trainable=frozenset(update),
        )
        for k, (update, loss) in enumerate(zip(updates, losses))
    ]


def rounds_of(rule, kind):
    """The model after each round, where updates are those of the file or steps along its gradients."""
    lr = float(EXTRA["lr"])
    updates = EXTRA["updates"] if kind == "updates" else -lr * EXTRA["gradients"]
    steps = {f"site-{k}": int(n) for k, n in enumerate(EXTRA["steps"])}
    model, rows = {"w": torch.tensor(EXTRA["w0"])}, []
    for t, (losses, vectors) in enumerate(zip(EXTRA["losses"], updates), 1):
        replies = replies_of([{"w": v} for v in vectors], losses)
        model = rule.aggregate(model, replies, {}, Info(Round(t, len(updates)), lr=lr, steps=steps)).model
        rows.append(model["w"].numpy())
    return np.array(rows)


@pytest.mark.parametrize("key", sorted({k.split("/")[0] for k in ONE.files if "/new/" in k}))
def test_the_authors_step(key):
    model = {name: torch.tensor(ONE[f"w0/{name}"]) for name in "01"}
    updates = [{n: ONE[f"wk/{k}/{n}"] - ONE[f"w0/{n}"] for n in "01"} for k in range(len(ONE["loss"]))]
    rule = QFedAvg(q=float(key.removeprefix("q")), loss_floor=FLOOR)
    outcome = rule.aggregate(model, replies_of(updates, ONE["loss"]), {}, Info(Round(1, 1), lr=float(ONE["lr"])))
    for name in "01":
        np.testing.assert_allclose(outcome.model[name].numpy(), ONE[f"{key}/new/{name}"], rtol=1e-10, atol=1e-12)


@each("key, q", under("qfedavg/") + under("qfedavg_steps/"))
def test_more_rounds_and_local_steps(key, q):
    """A site without an update, one without a loss, a q that overflows any double, L_k by each site's steps."""
    rule = QFedAvg(q=q, per_step="steps" in key, loss_floor=FLOOR)
    np.testing.assert_allclose(rounds_of(rule, "updates"), EXTRA[key], rtol=1e-10, atol=1e-10)


@each("key, q", under("qffedsgd/"))
def test_one_step_of_sgd_is_q_fedsgd(key, q):
    rule = QFedAvg(q=q, static=key.endswith("static1"), loss_floor=FLOOR)
    np.testing.assert_allclose(rounds_of(rule, "gradients"), EXTRA[key], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("key, q", under("flower/"))
def test_flower_gives_all_sites_one_loss(key, q):
    """A documented difference: its step is that of sites with equal losses, ours is not unless q is 0."""
    lr, updates = float(EXTRA["lr"]), EXTRA["updates"]
    model = {"w": torch.tensor(EXTRA["w0"])}
    for t, (losses, vectors) in enumerate(zip(EXTRA["losses"], updates)):
        same = replies_of([{"w": v} for v in vectors], [losses.mean()] * len(losses))
        model = QFedAvg(q=q).aggregate(model, same, {}, Info(Round(1, 1), lr=lr)).model
        np.testing.assert_allclose(model["w"].numpy(), EXTRA[key][t], rtol=1e-9, atol=1e-9)
    ours = rounds_of(QFedAvg(q=q), "updates")
    assert (abs(ours - EXTRA[key]).max() > 1e-3) == (q > 0)


@pytest.mark.parametrize("key, q", under("weights_prior/"))
def test_weights_with_the_prior(key, q):
    for losses, expected in zip(EXTRA["losses"], EXTRA[key]):
        replies = replies_of([{}] * len(losses), losses, EXTRA["n"])
        weights, _ = QFFL(q=q).weigh(replies, {}, Info(Round(1, 1)))
        np.testing.assert_allclose(list(weights.values()), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("key", [k for k in ONE.files if k.startswith("ffl4mia_weights")])
def test_weights_of_the_other_code(key):
    rule = QFFL(q=float(key.rpartition("q")[2]), prior="none", variant="reference")
    weights, _ = rule.weigh(replies_of([{}] * len(ONE["loss"]), ONE["loss"]), {}, Info(Round(1, 1)))
    np.testing.assert_allclose(list(weights.values()), ONE[key], rtol=0, atol=1e-12)


def test_a_large_power_as_it_is_written_leaves_the_doubles():
    """The file's unscaled powers span so many orders that only their logarithms can be used."""
    weights, _ = QFFL(q=100.0, prior="none").weigh(replies_of([{}] * 4, ONE["loss"]), {}, Info(Round(1, 1)))
    naive = ONE["big_q_naive"]
    assert naive.max() / naive.min() > 1e30
    np.testing.assert_allclose(list(weights.values()), naive / naive.sum(), rtol=1e-6)
