# SPDX-License-Identifier: Apache-2.0
"""The kit for the server's parts: those of the package pass it, and each check refuses a part that breaks it."""

import random
from dataclasses import dataclass

import pytest
import torch

from cases import each
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.participation import All
from fairflare.server_optimizers.base import ServerOptimizer
from fairflare.testing import check_selector, check_server_optimizer


@pytest.mark.parametrize("id", sorted(set(registry.parts("selector")) - {"list"}))
def test_every_selector_passes(id):
    check_selector(id)


def test_a_selector_that_knows_names_passes():
    check_selector("list", among=("a", "b c", "d"), sites="d, a")


@pytest.mark.parametrize("id", registry.parts("server optimizer"))
def test_every_server_optimizer_passes(id):
    check_server_optimizer(id)


def registered(monkeypatch, kind, cls):
    monkeypatch.setitem(registry._parts[kind], "broken", dataclass(frozen=True)(cls))


class Reversed(All):
    def select(self, sites, round, seed, least):
        return tuple(reversed(sites))


class Nobody(All):
    def select(self, sites, round, seed, least):
        return ()


class Stranger(All):
    def select(self, sites, round, seed, least):
        return (*sites, "stranger")


class Moody(All):
    def select(self, sites, round, seed, least):
        return tuple(site for site in sites if random.random() < 0.5) or tuple(sites)[:1]


class Greedy(All):
    def select(self, sites, round, seed, least):
        chosen = tuple(sites)
        sites.clear()
        return chosen


class Forgetful(All):
    def ever(self, sites):
        return tuple(sites[1:])

    def select(self, sites, round, seed, least):
        return tuple(sites)


class Picky(All):
    def missing(self, sites):
        return "expected other sites"


REFUSED_SELECTORS = {
    Reversed: "not in order",
    Nobody: "expected at least 1",
    Stranger: "not among the sites",
    Moody: "when it is asked again|expected at least",
    Greedy: "changes the list",
    Forgetful: "may never select",
    Picky: "expected other sites",
}


@each("cls", REFUSED_SELECTORS)
def test_a_selector_that_breaks_it_is_refused(cls, monkeypatch):
    registered(monkeypatch, "selector", cls)
    with pytest.raises(AssertionError, match=REFUSED_SELECTORS[cls]):
        check_selector("broken")


class InPlace(ServerOptimizer):
    def change(self, update, state):
        m = state.get("m") or {key: torch.zeros_like(value) for key, value in update.items()}
        for key, value in update.items():
            m[key] += value
        return m, {"m": m}


class Random(ServerOptimizer):
    def change(self, update, state):
        return {key: value * torch.rand(()) for key, value in update.items()}, {}


class Dividing(ServerOptimizer):
    def change(self, update, state):
        return {key: value / value.abs() for key, value in update.items()}, {}


class Buffers(ServerOptimizer):
    def change(self, update, state):
        return dict(update), {}

    def step(self, model, combined, state, trainable):
        return {**combined, "running_mean": model["running_mean"]}, {}


class Wide(ServerOptimizer):
    def change(self, update, state):
        return dict(update), {}

    def step(self, model, combined, state, trainable):
        return {key: value.double() for key, value in combined.items()}, {}


REFUSED_OPTIMIZERS = {
    InPlace: "changes what it was given",
    Random: "another step",
    Dividing: "expected finite values",
    Buffers: "is no trainable entry",
    Wide: "expected finite values of shape",
}


@pytest.mark.parametrize("cls", REFUSED_OPTIMIZERS)
def test_a_server_optimizer_that_breaks_it_is_refused(cls, monkeypatch):
    registered(monkeypatch, "server optimizer", cls)
    with pytest.raises(AssertionError, match=REFUSED_OPTIMIZERS[cls]):
        check_server_optimizer("broken")


def test_an_unknown_part_is_named():
    for check in (check_selector, check_server_optimizer):
        with pytest.raises(UserError, match="unknown"):
            check("nothing")
