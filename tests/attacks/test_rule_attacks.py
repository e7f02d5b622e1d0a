# SPDX-License-Identifier: Apache-2.0
"""What a site could do to the others' training and weights with numbers and updates that the gate lets pass."""

import dataclasses
import math

import pytest

from cases import each
from fairflare.core.types import Info, Round
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.report.audit_reader import read_trail
from fairflare.report.numbers import bounds_rows, unlike
from fairflare.studies.run_file import ROBUST
from fairflare.trainers.drift_correction import Scaffold
from fairflare_lab.methods.flexfair import FlexFair

SMALL = {"n_sites": 3, "batch_size": 64, "lr": 0.01}


def rounds_of(folder, monkeypatch, method, values, change, rounds=3):
    """The log's rounds of a run whose last site's answers to "train" are changed."""
    honest = InProcess.exchange

    def exchange(self, instructions):
        for answer in honest(self, instructions):
            hostile = answer.site == max(self.sites()) and instructions[answer.site].task == "train"
            yield change(answer) if hostile else answer

    monkeypatch.setattr(InProcess, "exchange", exchange)
    run_local(make_config(method, "support2:dirichlet", rounds=rounds, values={**SMALL, **values}), folder)
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"]


def norm_of_all(entries):
    return math.hypot(*(float(value.norm()) for value in entries.values()))


def with_numbers(**told):
    return lambda answer: dataclasses.replace(answer, scalars={**answer.scalars, **told})


# FlexFair


@each("raw", [False, True])
@each("extra", [1e15, 20.0, -1e15, 0.5])
def test_a_weight_that_multiplies_a_loss_is_bounded(raw, extra):
    for cells, name in (("sites", "weight"), ("groups", "weight/site-1")):
        rule = FlexFair(cells=cells, apply="local", raw=raw)
        orders = rule.orders({"extra": {"site-1": extra}}, "site-1", Info(Round(2, 3)))
        weight = orders[name] + (cells == "groups")
        assert (-1 if raw else 0) <= weight <= 10 and (weight == 1.5 or extra != 0.5)


def test_one_groups_loss_does_not_make_every_site_diverge(tmp_path, monkeypatch):
    """A site says a loss of 1e6 for one group, whose weight then multiplies everyone's steps."""
    values = {"optimizer": "sgd", "group_by": "sex", "cells": "groups", "apply": "local"}
    change = with_numbers(**{"group_loss/female": 1e6})
    rounds = rounds_of(tmp_path, monkeypatch, "flexfair", values, change)
    assert [entry["rejected"] for entry in rounds] == [{}] * 3
    assert [entry["notes"]["bounded"] for entry in rounds] == [2] * 3
    sizes = [[norms["parameters"] for norms in entry["norms"].values()] for entry in rounds]
    assert max(map(max, sizes[1:])) < 10 * max(sizes[0])


# ShapFed


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("length", [-1.0, -10.0])
def test_the_longest_update_is_not_the_direction_that_others_are_measured_by(tmp_path, monkeypatch, clip, length):
    """As published, the others' contributions are negative, and the rule falls back on equal weights."""

    def against(answer):
        return dataclasses.replace(answer, update={key: length * value for key, value in answer.update.items()})

    values = {"n_sites": 4, "clip": clip}
    rounds = rounds_of(tmp_path, monkeypatch, "shapfed", values, against)
    for entry in rounds:
        gamma = entry["notes"]["gamma"]
        assert gamma.pop("site-4") < 0 < min(gamma.values()) and entry["weights"]["site-4"] == 0


# CFFL


@pytest.mark.parametrize("remove", [False, True])
def test_a_site_that_praises_itself_does_not_remove_the_others(tmp_path, monkeypatch, remove):
    """With removals, as published, it is the only site left."""
    change = with_numbers(trained_error=0.0)
    last = rounds_of(tmp_path, monkeypatch, "cffl", {"remove": remove}, change, rounds=8)[-1]
    others = [last["weights"][site] for site in ("site-1", "site-2")]
    received = [last["notes"]["received"][site] for site in ("site-1", "site-2")]
    assert (others == [0, 0]) == remove
    assert remove or (min(others) > 0.2 and min(received) > 0.05)


# The default


@each("method, values", [("fedavg", {}), ("qffl", {}), ("scaffold", {"estimate": "gradient"}), ("fedper", {})])
def test_a_long_update_that_is_turned_round_hardly_counts_and_its_site_is_named(tmp_path, monkeypatch, method, values):
    def turn(answer):
        return dataclasses.replace(answer, update={key: -90 * value for key, value in answer.update.items()})

    rounds = rounds_of(tmp_path, monkeypatch, method, {"n_sites": 5, "max_norm_ratio": 1000, **values}, turn, rounds=2)
    for entry in rounds:
        assert entry["rejected"] == {} and entry["notes"]["clip_factor"]["site-5"] < 1e-3
        assert all(kept > 0.5 for site, kept in entry["notes"]["clip_factor"].items() if site != "site-5")
    trail = read_trail(list(verify(tmp_path / "audit.jsonl")))
    assert [(row["site"], row["number"]) for row in unlike(trail)] == [("site-5", "update norm")]
    assert {row["site"]: row["clipped"] for row in bounds_rows(trail)}["site-5"] == 2


def test_a_server_half_takes_up_what_the_bounds_leave(tmp_path, monkeypatch):
    """SCAFFOLD's c of a site whose update stands out is scaled as the update is."""
    taken = []
    collect = Scaffold.collect

    def seen(self, model, replies, state, info):
        taken.append({r.site: norm_of_all(r.tensors["control_change"]) for r in replies})
        return collect(self, model, replies, state, info)

    def turn(answer):
        return dataclasses.replace(answer, update={key: -90 * value for key, value in answer.update.items()})

    monkeypatch.setattr(Scaffold, "collect", seen)
    values = {"n_sites": 5, "max_norm_ratio": 1000, "estimate": "gradient"}
    rounds_of(tmp_path, monkeypatch, "scaffold", values, turn, rounds=1)
    assert taken[0]["site-5"] < 1e-3 * min(size for site, size in taken[0].items() if site != "site-5")


def test_an_honest_run_is_the_one_without_bounds(tmp_path):
    models = []
    for level in ("off", "bounded"):
        config = make_config("fedavg", "support2", rounds=3, values={"robust": level, "batch_size": 128})
        run_local(config, tmp_path / level)
        models.append(list(verify(tmp_path / level / "audit.jsonl"))[-1]["model_sha256"])
    assert models[0] == models[1]


# --robust


@each("method", ["fedism-plus", "fedlwr", "fedheal", "fedce"])
def test_a_site_that_lies_and_turns_its_update_round_has_little_weight(tmp_path, monkeypatch, method):
    """Without the profile it has more than half of the weight in FedISM+ and Fed-LWR."""
    lies = {"sharpness": 10.0, "minus_error": 1.0}

    def lie(answer):
        told = {k: -1.0 if k.startswith("similarity") else lies.get(k, v) for k, v in answer.scalars.items()}
        update = {key: -5 * value for key, value in answer.update.items()}
        return dataclasses.replace(answer, scalars=told, update=update)

    values = {"n_sites": 5, "max_norm_ratio": 100, **ROBUST}
    for entry in rounds_of(tmp_path, monkeypatch, method, values, lie, rounds=2):
        assert entry["rejected"] == {} and entry["weights"]["site-5"] < 0.2
