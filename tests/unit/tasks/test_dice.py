# SPDX-License-Identifier: Apache-2.0
"""Dice: the loss, the metric, and that pixel sums are enough for both."""

import pytest
import torch

from fairflare.tasks.kinds import masks


def random_masks(seed=0, n=6, channels=3):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, channels, 8, 8, generator=generator)
    targets = (torch.rand(n, channels, 8, 8, generator=generator) < 0.4).to(torch.uint8)
    targets[0, 0] = 0
    return logits, targets


def summary(sums, truth, channels):
    return masks.MASKS.evaluate(masks.MASKS.names(tuple(channels)), sums, truth, tuple(channels))


def saying(targets):
    """Logits that predict exactly ``targets``."""
    return targets.float() * 200 - 100


def test_the_mean_is_the_mean_of_the_examples():
    logits, targets = random_masks()
    each = masks.dice_loss(logits, targets, reduction="none")
    assert each.shape == (6,) and ((each >= 0) & (each <= 1)).all()
    torch.testing.assert_close(each.mean(), masks.dice_loss(logits, targets))
    alone = torch.stack([masks.dice_loss(z[None], y[None]) for z, y in zip(logits, targets)])
    torch.testing.assert_close(each, alone)


def test_loss_by_its_formula():
    logits, targets = random_masks()
    p, t = logits.sigmoid().flatten(2), targets.flatten(2).float()
    expected = 1 - (2 * (p * t).sum(2) + 1e-5) / (p.sum(2) + t.sum(2) + 1e-5)
    torch.testing.assert_close(masks.dice_loss(logits, targets, reduction="none"), expected.mean(1))


def test_loss_has_gradients_and_takes_any_mask_type():
    logits, targets = random_masks()
    logits.requires_grad_()
    losses = [masks.dice_loss(logits, targets.to(kind)) for kind in (torch.uint8, torch.bool, torch.float32)]
    assert losses[0] == losses[1] == losses[2]
    losses[0].backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_unknown_reduction():
    with pytest.raises(ValueError, match="reduction: expected mean or none, got 'sum'"):
        masks.dice_loss(*random_masks(), reduction="sum")


def test_metric_is_monais_with_empty_masks_counted():
    from monai.metrics import compute_dice

    logits, targets = random_masks()
    expected = compute_dice(logits > 0, targets, include_background=True, ignore_empty=False)
    torch.testing.assert_close(masks.hard_dice(*masks.condensed(logits, targets)), expected.double())


def test_empty_masks():
    empty, some = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    some[..., 0, 0] = 1
    pairs = {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 0.0, (1, 1): 1.0}
    for (predicted, true), expected in pairs.items():
        pair = [(empty, some)[which] for which in (predicted, true)]
        assert masks.hard_dice(*masks.condensed(saying(pair[0]), pair[1])) == expected
        assert masks.soft_loss(*masks.condensed(saying(pair[0]), pair[1])) == pytest.approx(1 - expected, abs=1e-4)


def test_a_logit_of_zero_predicts_nothing():
    assert masks.condensed(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))[0][0, 0, 1] == 0


def test_sums_are_small_and_enough():
    logits, targets = random_masks()
    sums, truth = masks.condensed(logits, targets)
    assert sums.shape == (6, 3, 4) and truth.shape == (6, 3) and sums.dtype == truth.dtype == torch.float64
    expected = masks.dice_loss(logits, targets, reduction="none").double()
    torch.testing.assert_close(masks.soft_loss(sums, truth), expected, atol=1e-6, rtol=0)
    parts = [masks.condensed(z, y) for z, y in zip(logits.split(2), targets.split(2))]
    joined = [torch.cat(part) for part in zip(*parts)]
    assert summary(*joined, "abc") == summary(sums, truth, "abc")


def test_summary():
    _, targets = random_masks()
    right = summary(*masks.condensed(saying(targets), targets), ("a", "b", "c"))
    assert right == {"dice": 1, "dice_a": 1, "dice_b": 1, "dice_c": 1, "loss": pytest.approx(0, abs=1e-6)}
    one_wrong = saying(targets)
    one_wrong[:, 2] = -100
    values = summary(*masks.condensed(one_wrong, targets), ("a", "b", "c"))
    assert values["dice_c"] == 0 and values["dice"] == pytest.approx(2 / 3)


def test_nothing_and_nonsense():
    assert summary(torch.empty(0), torch.empty(0), "abc") == {}
    logits, targets = random_masks()
    for bad in (float("nan"), float("inf"), -float("inf")):
        logits[1, 2, 3, 4] = bad
        values = summary(*masks.condensed(logits, targets), "abc")
        assert list(values) == ["loss"] and values["loss"] != values["loss"]
