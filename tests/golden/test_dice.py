# SPDX-License-Identifier: Apache-2.0
"""Dice loss and metric against MONAI's numbers."""

import numpy as np
import pytest
import torch

from fairflare.tasks.kinds.masks import condensed, dice_loss, hard_dice, soft_loss
from golden import folder

GOLDEN = np.load(folder() / "local_terms.npz")
LOGITS, MASK = (torch.from_numpy(GOLDEN[f"dice/{name}"]) for name in ("logits", "mask"))


def test_loss():
    expected = pytest.approx(float(GOLDEN["dice/monai_DiceLoss_sigmoid"]), abs=1e-6)
    assert dice_loss(LOGITS, MASK).item() == expected
    assert dice_loss(LOGITS, MASK, reduction="none").mean().item() == expected
    assert soft_loss(*condensed(LOGITS, MASK)).mean().item() == expected


def test_metric():
    found = hard_dice(*condensed(LOGITS, MASK))
    np.testing.assert_allclose(found.numpy(), GOLDEN["dice/monai_DiceMetric"], atol=1e-6)
