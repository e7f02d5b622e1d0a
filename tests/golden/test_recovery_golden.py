# SPDX-License-Identifier: Apache-2.0
"""Neighbours and thresholds of a protocol with recovery, against the stored table of Bell et al.'s parameters."""

import numpy as np
import pytest
from recovery import disconnected, neighbours_and_threshold

from cases import each
from fairflare.privacy.sum_protocol import AUTO, COMPLETE, SHARE, cut_off, graph_of
from golden import folder

TABLE = np.load(folder() / "robust.npz")["secagg/table"]


@each("row", range(len(TABLE)))
def test_the_table(row):
    sites, corrupt, dropout, semi, k, t, other_k, other_t = TABLE[row]
    found = neighbours_and_threshold(int(sites), float(corrupt), float(dropout), bool(semi))
    assert found == (int(k), int(t)) == (int(other_k), int(other_t))


@pytest.mark.parametrize("sites", [COMPLETE + 1, 100, 1000])
def test_this_packages_graph_cuts_off_less_than_recovery_asks(sites):
    """It stands against a third of the sites; who falls silent gets no mask opened, a new graph is drawn."""
    ours = graph_of(AUTO, sites).degree(sites)
    assert disconnected(sites, ours, sites // SHARE) <= cut_off(sites, ours, sites // SHARE) <= -100
    assert disconnected(sites, 2, sites // SHARE) > -41


def test_impossible_shares_are_refused():
    with pytest.raises(ValueError, match=r"no number of neighbours is enough for 10 sites, 0\.6 corrupt"):
        neighbours_and_threshold(10, 0.6, 0.5)
