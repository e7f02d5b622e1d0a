# SPDX-License-Identifier: Apache-2.0
"""MOON's term against a float64 restatement, FedProc's against the authors' code."""

import numpy as np
import pytest
import torch

from fairflare.functional.features import model_contrast
from fairflare_lab.functional.terms import prototype_contrast
from golden import folder

GOLDEN = np.load(folder() / "local_terms.npz")


def test_the_term_of_moon():
    """mu = 1, T = 0.5."""
    z, z_global, z_previous = (torch.from_numpy(GOLDEN[f"moon/{name}"]) for name in ("z", "z_global", "z_prev"))
    loss = model_contrast(z, z_global, z_previous, temperature=0.5)
    assert float(loss) == pytest.approx(float(GOLDEN["moon/loss_mu1_T0.5"]), rel=1e-10)


def fedproc():
    features, targets = torch.from_numpy(GOLDEN["fedproc/feat"]), torch.from_numpy(GOLDEN["fedproc/lab"])
    return features, targets, dict(enumerate(torch.from_numpy(GOLDEN["fedproc/centers"])))


def test_the_term_of_fedproc():
    """The authors' ``SupConLoss_new``: features as they are, prototypes of length 1, no temperature."""
    loss = prototype_contrast(*fedproc())
    assert float(loss) == pytest.approx(float(GOLDEN["fedproc/SupConLoss_new"]), abs=1e-6)


def test_marsfls_term_is_another_one():
    """Cosines in place of inner products; by hand from the same vectors."""
    features, targets, prototypes = fedproc()
    cosines = [[float(torch.cosine_similarity(f, c, dim=0)) for c in prototypes.values()] for f in features]
    expected = np.mean([np.log(np.exp(row).sum()) - row[int(y)] for row, y in zip(cosines, targets)])
    found = float(prototype_contrast(features, targets, prototypes, cosine=True))
    assert found == pytest.approx(expected, abs=1e-6)
    assert found != pytest.approx(float(GOLDEN["fedproc/SupConLoss_new"]), abs=1e-3)
