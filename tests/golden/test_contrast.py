# SPDX-License-Identifier: Apache-2.0
"""MOON's term against a float64 restatement."""

import numpy as np
import pytest
import torch

from fairflare.functional.contrast import model_contrast
from golden import folder

GOLDEN = np.load(folder() / "local_terms.npz")


def test_the_term_of_moon():
    """mu = 1, T = 0.5."""
    z, z_global, z_previous = (torch.from_numpy(GOLDEN[f"moon/{name}"]) for name in ("z", "z_global", "z_prev"))
    loss = model_contrast(z, z_global, z_previous, temperature=0.5)
    assert float(loss) == pytest.approx(float(GOLDEN["moon/loss_mu1_T0.5"]), rel=1e-10)
