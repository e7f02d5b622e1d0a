# SPDX-License-Identifier: Apache-2.0
"""What a site could do to the others' training and weights with numbers and updates that the gate lets pass."""

import dataclasses
import math

import pytest
import torch

from cases import each
from fairflare.aggregators.bounded import Bounded
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.config_checks import USUAL
from fairflare.engine.setup.local import run_local
from fairflare.report.audit_reader import read_trail
from fairflare.report.numbers import bounds_rows, unlike
from fairflare.studies.run_file import ROBUST
from fairflare.trainers.drift_correction import Scaffold
from fairflare_lab.methods.flexfair import FlexFair
from fairflare_lab.methods.multi_krum import MultiKrum

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


def test_an_update_that_a_bound_shortened_is_no_nearer_to_those_that_multi_krum_keeps():
    """It chose the shortened one in an honest one's place."""
    honest = [[math.cos(0.48 * k - 1.2), math.sin(0.48 * k - 1.2)] for k in range(6)]
    lies = [[-4.0 - 0.1 * k, 0.0] for k in range(2)]
    sites = [
        Reply(f"site-{k}", {"w": torch.tensor(vector)}, 10, trainable=frozenset({"w"}))
        for k, vector in enumerate([*honest, *lies])
    ]
    info, start = Info(Round(1, 5)), {"w": torch.zeros(2)}
    rule = MultiKrum()
    plain = rule.aggregate(start, sites, {}, info)
    found = Bounded(rule, USUAL).aggregate(start, sites, {}, info)
    assert set(found.notes["clip_factor"]) == {"site-6", "site-7"}
    assert found.notes["score"] == plain.notes["score"] and found.weights == pytest.approx(plain.weights)
    assert found.weights["site-6"] == found.weights["site-7"] == 0


def test_a_site_that_learns_fast_is_not_named_and_one_that_lies_late_is():
    """Errors of a site with few events fall to their rate in two rounds; a first number is of an untrained model."""
    falls = {"early": (0.64, 0.21, 0.1, 0.07, 0.06), "late": (0.3, 0.29, 0.28, 0.05, 0.05)}
    others = (0.48, 0.3, 0.25, 0.24, 0.23)
    for which, named in (("early", []), ("late", ["site-5"])):
        told = [{f"site-{k}": others[t] for k in range(1, 5)} | {"site-5": falls[which][t]} for t in range(5)]
        entries = [
            {"event": "round", "round": t + 1, "accepted": {s: {"scalars": {"error": e}} for s, e in of.items()}}
            for t, of in enumerate(told)
        ]
        assert [row["site"] for row in unlike(read_trail(entries))] == named


@each("kept, named", [(0.3, False), (0.16, False), (0.1, True)])
def test_an_update_is_named_from_three_times_the_expected_length_on(kept, named):
    """The bounds keep .244 of Sweden's in the International Stroke Trial, whose patients differ."""
    entries = [
        {
            "event": "round",
            "round": t,
            "accepted": {f"site-{k}": {"n_examples": 10} for k in range(5)},
            "notes": {"clip_factor": {"site-4": kept if t > 2 else 0.9}},
        }
        for t in range(1, 6)
    ]
    assert bool(unlike(read_trail(entries))) == named


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
