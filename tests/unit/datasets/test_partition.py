# SPDX-License-Identifier: Apache-2.0
"""Laws of the splits over sites."""

import numpy as np
import pytest

from fairflare.core.errors import UserError
from fairflare.datasets.partition import dirichlet_with_corrupted, redrawn

LABELS = np.random.default_rng(0).integers(0, 5, size=600)


def test_corrupted_sites_hold_their_share_of_every_class():
    sites = dirichlet_with_corrupted(LABELS, 10, 3, 0.5, seed=1)
    for c in range(5):
        of_class = sites[c == LABELS]
        assert (of_class >= 7).sum() == len(of_class) - round(0.7 * len(of_class))


def test_the_first_of_each_class_go_to_clean_sites():
    sites = dirichlet_with_corrupted(LABELS, 10, 3, 0.5, seed=1)
    for c in range(5):
        poor = sites[c == LABELS] >= 7
        assert not np.any(np.diff(poor.astype(int)) < 0)


def test_no_corrupted_sites_leaves_nothing_out():
    sites = dirichlet_with_corrupted(LABELS, 4, 0, 1.0, seed=3)
    assert sites.min() >= 0 and set(sites) == {0, 1, 2, 3}


def test_seed_decides():
    first, again, other = (dirichlet_with_corrupted(LABELS, 6, 2, 1.0, seed) for seed in (5, 5, 6))
    assert (first == again).all() and (first != other).any()


def test_global_generator_is_left_alone():
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    dirichlet_with_corrupted(LABELS, 6, 2, 1.0, 5)
    assert np.random.random() == expected


def test_large_alpha_is_nearly_even():
    counts = np.bincount(dirichlet_with_corrupted(LABELS, 4, 0, 1e6, seed=0))
    assert abs(counts - 150).max() < 45  # four standard deviations of the multinomial draw


def test_redrawn_keeps_a_good_first_draw_and_replaces_a_poor_one():
    def draw(seed):
        return dirichlet_with_corrupted(LABELS, 6, 0, 0.3, seed)

    sizes = [np.bincount(draw(seed), minlength=6).min() for seed in range(30)]
    minimum = max(sizes)
    assert (redrawn(LABELS, 6, 0.3, seed=0, minimum=min(sizes)) == draw(0)).all()
    assert (redrawn(LABELS, 6, 0.3, seed=0, minimum=minimum) == draw(sizes.index(minimum))).all()


def test_redrawn_looks_at_every_class():
    sites = redrawn(LABELS, 4, 2.0, 0, minimum=1, minimum_per_class=8)
    assert min(((sites == k) & (c == LABELS)).sum() for k in range(4) for c in range(5)) >= 8


def test_impossible_minimum_is_an_error_that_helps():
    with pytest.raises(UserError, match="600 examples over 4 sites with at least 200 each"):
        redrawn(LABELS, 4, 1.0, 0, minimum=200)
