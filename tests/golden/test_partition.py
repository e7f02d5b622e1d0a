# SPDX-License-Identifier: Apache-2.0
"""The papers' split over sites, example by example."""

import re

import numpy as np
import pytest

from fairflare.datasets.partition import dirichlet_with_corrupted
from golden import folder

GOLDEN = np.load(folder() / "partition.npz")
CASES = [k for k in GOLDEN if k.startswith("assignment_")]
N_SITES = 20


@pytest.mark.parametrize("key", CASES)
def test_every_example_goes_where_the_reference_puts_it(key):
    seed, alpha, corrupted = map(int, re.fullmatch(r"assignment_seed(\d+)_alpha(\d+)_corrupted(\d+)", key).groups())
    sites = dirichlet_with_corrupted(GOLDEN["labels"], N_SITES, corrupted, float(alpha), seed)
    np.testing.assert_array_equal(sites, GOLDEN[key])


def test_there_is_a_case():
    assert CASES
