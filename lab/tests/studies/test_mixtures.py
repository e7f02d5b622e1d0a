# SPDX-License-Identifier: Apache-2.0
"""Test patients dealt to the sites in another way."""

import dataclasses

import numpy as np
import pytest

from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare_lab.studies.mixtures import dealt_as, parse_options

TASK = {"n_sites": 4, "alpha": 1.0, "model": "linear"}


@pytest.fixture(scope="module")
def task():
    return tasks.load("support2", "dirichlet", **TASK)


def test_nobody_who_was_trained_with_is_tested_on(task):
    other = dataclasses.replace(task, alpha=100.0)
    dealt = dealt_as(task, other)
    tested = [task.rows(site)["test"] for site in task.sites()]
    assert sum(data.size("test") for data in dealt.values()) == sum(map(len, tested))
    for site, data in dealt.items():
        everyone = np.concatenate(list(other.rows(site).values()))
        assert data.size("test") == np.isin(np.concatenate(tested), everyone).sum()
        labels = task.table().labels[np.intersect1d(everyone, np.concatenate(tested))]
        assert data.splits["test"].targets.tolist() == labels.tolist()


def test_the_same_split_gives_the_same_patients(task):
    for site, data in dealt_as(task, task).items():
        own = task.site_data(site)
        assert data.splits["test"].inputs.equal(own.splits["test"].inputs)


def test_what_cannot_be_dealt_otherwise_is_refused(task):
    with pytest.raises(UserError, match="expected only other values of alpha, n_sites, sites_by, data_seed"):
        dealt_as(task, dataclasses.replace(task, test_fraction=0.4))
    digits = tasks.load("digits", "small")
    with pytest.raises(UserError, match="task digits: its test examples cannot be dealt to the sites in another way"):
        dealt_as(digits, digits)
    with pytest.raises(UserError, match="expected KEY=VALUE,KEY=VALUE, got 'alpha'"):
        parse_options(["alpha"])
    assert parse_options(["task.alpha=1, n_sites=4"]) == [{"alpha": "1", "n_sites": "4"}]
