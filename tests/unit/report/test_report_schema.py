# SPDX-License-Identifier: Apache-2.0
"""The keys of report.json that programs rely on."""

import pytest

from fairflare.report.shared_sets import last_rounds


def scored(number, clean, noisy):
    sets = {"clean": clean, "noise 3": noisy, "noise 5": 0.0}
    return {
        "event": "round",
        "round": number,
        "test_sets": {name: {"metrics": {"auc_ovo": value}} for name, value in sets.items()},
    }


def test_table_sets_are_means_over_the_scored_rounds():
    """Clean .8 and .9 give .85; a round that was repeated after a restart counts once, as it came out last."""
    entries = [{"event": "round", "round": 1}, scored(2, 0.1, 0.1), scored(2, 0.8, 0.5), scored(3, 0.9, 0.7)]
    found = last_rounds(entries, {"clean": "clean", "corrupted": "noise 3"})
    assert found["rounds"] == 2 and found["names"]["corrupted"] == "noise 3"
    assert found["clean"]["auc_ovo"] == pytest.approx(0.85) and found["corrupted"]["auc_ovo"] == pytest.approx(0.6)


def test_a_task_without_test_sets_has_none():
    assert last_rounds([{"event": "round", "round": 1}], {}) == {
        "rounds": 0,
        "names": {},
        "clean": None,
        "corrupted": None,
    }
