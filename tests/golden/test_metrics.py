# SPDX-License-Identifier: Apache-2.0
"""Classification metrics against scikit-learn's numbers."""

import json

import numpy as np
import pytest
import torch

from fairflare.tasks.kinds.classes import CLASSES
from golden import folder

GOLDEN = json.loads((folder() / "metrics.json").read_text())
NAMES = {
    "acc": "accuracy",
    "balanced_acc": "balanced_accuracy",
    "f1_macro": "macro_f1",
    "auc_ovo_macro": "auc_ovo",
    "auc_ovr_macro": "auc_ovr",
}


@pytest.mark.parametrize("key", NAMES)
def test_metric(key):
    logits = torch.from_numpy(np.log(np.array(GOLDEN["prob"])))
    values = CLASSES.evaluate(CLASSES.metrics, logits, torch.tensor(GOLDEN["y"]), ())
    assert values[NAMES[key]] == pytest.approx(GOLDEN["values"][key], abs=1e-12)
