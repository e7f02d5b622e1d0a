# SPDX-License-Identifier: Apache-2.0
"""FlexFair's penalty and slopes against its authors' loss blocks, and its federated form against a restatement."""

import numpy as np
import pytest

from cases import each
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.functional.terms import Cell, variance_penalty
from fairflare_lab.methods.flexfair import FlexFair
from golden import file

GOLDEN = np.load(file("flexfair.npz"))
INFO = Info(Round(1, 2))


def cells_of(losses, members):
    return {str(k): Cell(float((members == k).sum()), float(losses[members == k].sum())) for k in np.unique(members)}


@each("mean, name", [("examples", "pooled"), ("cells", "meanofmeans")])
@each("kind", ["site", "group", "cell_y1"])
def test_penalty_and_slopes_from_sums(kind, mean, name):
    n, total = GOLDEN[f"fed/{kind}/n"], GOLDEN[f"fed/{kind}/sum"]
    penalty, slopes = variance_penalty({str(k): Cell(*pair) for k, pair in enumerate(zip(n, total))}, name == "pooled")
    assert penalty == pytest.approx(float(GOLDEN[f"fed/{kind}/penalty_{name}"]), rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(list(slopes.values()), GOLDEN[f"fed/{kind}/coef_{name}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mean, name", [("examples", "pooled"), ("cells", "meanofmeans")])
@pytest.mark.parametrize("cells", ["sites", "groups"])
def test_the_rule_sends_them(cells, mean, name):
    """lam coef n / n_g, clamped: "weight" of a site, or "weight/GROUP" beside 1."""
    kind = cells.removesuffix("s")
    n, total = GOLDEN[f"fed/{kind}/n"], GOLDEN[f"fed/{kind}/sum"]
    if cells == "sites":
        replies = [Reply(str(k), {}, int(n[k]), {"loss": total[k] / n[k]}) for k in range(2)]
    else:
        scalars = {f"group_loss/{k}": total[k] / n[k] for k in range(2)} | {f"group_count/{k}": n[k] for k in range(2)}
        replies = [Reply("all", {}, int(n.sum()), scalars)]
    rule = FlexFair(lam=2.0, cells=cells, mean=mean, apply="local")
    _, state = rule.weigh(replies, {}, INFO)
    expected = np.maximum(1 + 2.0 * GOLDEN[f"fed/{kind}/coef_{name}"] * n.sum() / n, 0)
    if cells == "sites":
        found = [rule.orders(state, str(k), INFO)["weight"] for k in range(2)]
    else:
        orders = rule.orders(state, "all", INFO)
        found = [orders["weight"] + orders[f"weight/{k}"] for k in range(2)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("criterion, classes", [("dp", (0, 1)), ("eo", (1,))])
def test_the_authors_penalties_within_classes(criterion, classes):
    """Their total is the sum of the sites' means plus 2 P; the gradient of each example follows from the slopes."""
    losses, y, a = (np.concatenate([GOLDEN[f"skin/{name}{k}"] for k in range(2)]) for name in ("loss", "y", "a"))
    sizes = [len(GOLDEN[f"skin/loss{k}"]) for k in range(2)]
    penalty, gradient = 0.0, np.repeat([1 / n for n in sizes], sizes)
    for label in classes:
        rows = y == label
        value, slopes = variance_penalty(cells_of(losses[rows], a[rows]))
        penalty += value
        for name, cell in cells_of(losses[rows], a[rows]).items():
            gradient[rows & (a == int(name))] += 2 * slopes[name] / cell.n
    means = sum(GOLDEN[f"skin/loss{k}"].mean() for k in range(2))
    assert penalty == pytest.approx(float(GOLDEN[f"skin/ref/{criterion}/penalty"]), abs=1e-12)
    assert means + 2 * penalty == pytest.approx(float(GOLDEN[f"skin/ref/{criterion}/loss"]), abs=1e-12)
    reference = np.concatenate([GOLDEN[f"skin/ref/{criterion}/grad{k}"] for k in range(2)])
    np.testing.assert_allclose(gradient, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("criterion, classes", [("dp", ("0", "1")), ("eo", ("1",))])
def test_the_rule_adds_the_penalties_of_the_classes(criterion, classes):
    losses, y, a = (np.concatenate([GOLDEN[f"skin/{name}{k}"] for k in range(2)]) for name in ("loss", "y", "a"))
    cells = {f"{label}, {group}": losses[(y == label) & (a == group)] for label in (0, 1) for group in (0, 1)}
    scalars = {f"group_loss/{name}": rows.mean() for name, rows in cells.items()}
    scalars |= {f"group_count/{name}": float(len(rows)) for name, rows in cells.items()}
    rule = FlexFair(lam=2.0, cells="groups", criterion=criterion, positive="1" if criterion == "eo" else "")
    outcome = rule.aggregate({}, [Reply("all", {}, len(losses), scalars)], {}, INFO)
    assert outcome.notes["penalty"] == pytest.approx(float(GOLDEN[f"skin/ref/{criterion}/penalty"]), abs=1e-12)
    assert outcome.notes["penalised"] == 2 * len(classes)
    extra = outcome.notes["group_extra"]
    assert all((value == 0) == (name[0] not in classes) for name, value in extra.items())


def fundus(case):
    losses = [GOLDEN[f"fundus/{case}/loss{k}"] for k in range(3)]
    dice = sum(GOLDEN[f"fundus/{case}/dice{k}"].mean() for k in range(3))
    penalty, slopes = variance_penalty({str(k): Cell(float(len(one)), one.sum()) for k, one in enumerate(losses)})
    return losses, dice, penalty, slopes


def test_the_authors_segmentation_loss_on_a_full_batch():
    """lam 1.5 on the cross-entropy; Dice stays outside of the penalty."""
    losses, dice, penalty, slopes = fundus("full")
    total = sum(one.mean() for one in losses) + dice + 1.5 * penalty
    assert total == pytest.approx(float(GOLDEN["fundus/full/total"]), abs=1e-12)
    assert penalty == pytest.approx(float(GOLDEN["fundus/full/penalty"]), abs=1e-12)
    for k, one in enumerate(losses):
        gradient = np.full(len(one), (1 + 1.5 * slopes[str(k)]) / len(one))
        np.testing.assert_allclose(gradient, GOLDEN[f"fundus/full/grad{k}"], rtol=0, atol=1e-12)


def test_the_authors_code_has_no_penalty_on_other_batches():
    """A documented difference: theirs is off unless the sites' batches have 4, 4 and 3 images; ours is not."""
    losses, dice, penalty, _ = fundus("last_batch")
    assert [len(one) for one in losses] != [4, 4, 3] and penalty > 0
    assert float(GOLDEN["fundus/last_batch/penalty"]) == 0
    total = sum(one.mean() for one in losses) + dice
    assert total == pytest.approx(float(GOLDEN["fundus/last_batch/total"]), abs=1e-12)
    for k, one in enumerate(losses):
        np.testing.assert_allclose(GOLDEN[f"fundus/last_batch/grad{k}"], 1 / len(one), rtol=0, atol=1e-12)
