# SPDX-License-Identifier: Apache-2.0
"""The own model of a hospital's images: trained on its patients alone, stopped early, then with all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.decision.sums import Plan
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.studies import candidates
from fairflare.studies.join import Question, measure

SMALL = {"n_sites": 4, "images_per_site": 120, "test_images": 20, "site_test_images": 0}


@pytest.fixture(scope="module")
def site():
    """A run and one site's data."""
    config = make_config("fedavg", "digits:small", rounds=3, values=SMALL)
    config = dataclasses.replace(config, fold="0/3/0", accept=["empty_split"])
    parts = build_parts(config, at_site=True)
    return candidates.Trained(parts, config, Path()), parts.task.site_data("site-1")


def same(a, b):
    return all(torch.equal(a[key], b[key]) for key in a)


def test_it_learns_and_is_the_same_each_time(site):
    model = candidates.own_network(*site)
    assert not same(model, site[0].parts.model) and same(model, candidates.own_network(*site))


@each("losses, epochs", [([1, 2, 3, 4] * 2, 0), ([4, 3, 2, 1] * 2, 3), ([4, 3, 3, 4, 4, 1, 3, 4], 1)])
def test_the_best_epoch_and_rate_are_taken(losses, epochs, site, monkeypatch):
    told = iter(losses)
    monkeypatch.setattr(candidates, "_loss", lambda *_: float(next(told)))
    found = candidates.own_network(*site)
    rate = candidates.RATES[losses.index(1) >= 4]
    assert same(found, list(candidates._epochs(*site, rate))[epochs])


@each("task, event, words", [("digits:small", "", "--event CLASS"), ("digits:small", "eleven", "expected one of 0, 1")])
def test_several_classes_need_one_that_is_asked_for(task, event, words, tmp_path):
    with pytest.raises(UserError, match=words):
        measure(Question(task, ("fedavg",), Plan(2, 1), event=event), tmp_path)


@pytest.mark.slow
def test_a_join_on_images_answers_for_one_class(tmp_path):
    choices = {"rounds": 1, "values": SMALL}
    found = measure(Question("digits:small", ("fedavg",), Plan(2, 1), choices=choices, event="8"), tmp_path)
    rows = found["methods"]["fedavg"]["sites"]
    assert rows and found["score"] == "brier" and all(row["low"] < row["high"] for row in rows.values())
