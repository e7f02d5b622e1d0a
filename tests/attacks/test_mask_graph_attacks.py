# SPDX-License-Identifier: Apache-2.0
"""A server that has sites share masks with a part of the others only learns no more from it than their sum."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import each
from fairflare.privacy.secure_sums import STEP, mask_update
from fairflare.privacy.sum_keys import PairwiseKeys
from fairflare.privacy.sum_protocol import MaskGraph, Rosters, SumOrder, SumRefused, graph_of
from fairflare.privacy.sum_total import combine_updates

NAMES = [f"site-{k:02d}" for k in range(40)]
VICTIM = NAMES[17]
CONTEXT = "a run"
GRAPH = graph_of("auto", len(NAMES))
LIKE = {"weight": torch.zeros(50)}


@pytest.fixture(scope="module")
def sites():
    return {name: PairwiseKeys(name, CONTEXT, graph=GRAPH) for name in NAMES}


@pytest.fixture
def order(sites):
    return order_over(sites)


def order_over(sites, names=NAMES, **more):
    return SumOrder(**{"round": 1, "attempt": 0, **more}, statements={name: sites[name].statement() for name in names})


def update_of(name):
    return {"weight": torch.full((50,), (NAMES.index(name) + 1) / 64)}


def sent(sites, told):
    """What the server holds of {site: the order that it was told}."""
    return {name: mask_update(sites[name], update_of(name), one) for name, one in told.items()}


def total(masked):
    return combine_updates(list(masked.values()), LIKE)["weight"]


def exact(names):
    return sum(update_of(name)["weight"] for name in names)


def free_directions(graph, order, honest, held):
    """How many combinations of the messages ``held`` lose all masks that two ``honest`` sites share.

    Masks of pairs are independent and look uniform, so these combinations are all that a server learns from which
    knows the masks of everyone else.
    """
    pairs = [(a, b) for a in honest for b in graph.neighbours(a, order, CONTEXT) if a < b and b in honest]
    matrix = np.zeros((len(pairs), len(held)))
    for row, pair in enumerate(pairs):
        for sign, site in zip((1, -1), pair, strict=True):
            if site in held:
                matrix[row, held.index(site)] = sign
    return len(held) - np.linalg.matrix_rank(matrix)


def coalitions(size, seed, tries=20):
    """Sets of sites that work with the server; the victim is not among them."""
    others = [name for name in NAMES if name != VICTIM]
    generator = np.random.default_rng(seed)
    for _ in range(tries):
        yield set(generator.choice(others, size, replace=False))


def test_an_honest_server_gets_the_sum_and_no_more(sites, order):
    """What the attacks below are measured by; no two sites' masks cancel alone."""
    assert 0 < GRAPH.degree(len(NAMES)) < len(NAMES) - 1
    masked = sent(sites, dict.fromkeys(NAMES, order))
    assert torch.equal(total(masked), exact(NAMES))
    for missing in (NAMES[0], VICTIM):
        with pytest.raises(SumRefused, match="do not cancel"):
            total({name: one for name, one in masked.items() if name != missing})


@pytest.mark.parametrize("size", [0, 1, 13])
def test_whoever_works_with_the_server_the_honest_sites_sum_is_all_they_learn(sites, order, size):
    """Up to a third of the sites, and one answer fewer tells nothing at all."""
    for colluding in coalitions(size, seed=size):
        honest = [name for name in NAMES if name not in colluding]
        assert free_directions(GRAPH, order, honest, honest) == 1
        assert free_directions(GRAPH, order, honest, [name for name in honest if name != honest[3]]) == 0


def test_all_of_a_sites_neighbours_and_nobody_less_single_it_out(sites, order):
    """The least that the promise leaves out; the test above can fail."""
    near = {*GRAPH.neighbours(VICTIM, order, CONTEXT)}
    honest = [name for name in NAMES if name not in near]
    assert free_directions(GRAPH, order, honest, honest) == 2
    for one in near:
        assert free_directions(GRAPH, order, [*honest, one], [*honest, one]) == 1


def another_key(sites, order, of):
    """The order with a key that is of the server's making."""
    made_up = PairwiseKeys(of, CONTEXT).statement()
    return dataclasses.replace(order, statements={**order.statements, of: made_up})


LISTS = {
    "another key of a neighbour": lambda sites, one: another_key(sites, one, _near(one)[0]),
    "another key of a stranger": lambda sites, one: another_key(sites, one, _far(one)[0]),
    "without a neighbour": lambda sites, one: order_over(sites, [n for n in NAMES if n != _near(one)[0]]),
    "without a stranger": lambda sites, one: order_over(sites, [n for n in NAMES if n != _far(one)[0]]),
    "another attempt": lambda sites, one: dataclasses.replace(one, attempt=1),
    "another round": lambda sites, one: dataclasses.replace(one, round=2),
    "another model": lambda sites, one: dataclasses.replace(one, bound=b"another"),
}
"""What one or several sites are told in place of what the others are."""


def _near(order):
    return GRAPH.neighbours(VICTIM, order, CONTEXT)


def _far(order):
    return [name for name in NAMES if name not in (VICTIM, *_near(order))]


@each("who", ["the victim", "it and its neighbours", "half of the sites"])
@each("name", LISTS)
def test_different_lists_for_different_sites_give_noise(name, who, sites, order):
    other = LISTS[name](sites, order)
    lied_to = {"the victim": [VICTIM], "it and its neighbours": [VICTIM, *_near(order)]}.get(who, NAMES[10:30])
    told = {site: other if site in lied_to else order for site in NAMES if site in other.roster}
    masked = sent(sites, told)
    for held in (masked, {site: masked[site] for site in masked if told[site] is other}):
        with pytest.raises(SumRefused, match="do not cancel"):
            total(held)


def test_a_site_that_fell_silent_is_in_no_sum_and_the_graph_is_drawn_anew(sites, order):
    """What it leaves of the sum before says nothing of anyone, beside the sum that came about."""
    rest = [name for name in NAMES if name != VICTIM]
    again = order_over(sites, rest, attempt=1)
    before, after = sent(sites, dict.fromkeys(rest, order)), sent(sites, dict.fromkeys(rest, again))
    assert torch.equal(total(after), exact(rest))
    assert free_directions(GRAPH, order, NAMES, rest) == 0 and free_directions(GRAPH, again, rest, rest) == 1
    changed = [name for name in rest if {*GRAPH.neighbours(name, again, CONTEXT)} != {*_neighbours(name, order)}]
    assert len(changed) > len(rest) / 2
    for name in (*_near(order), rest[0]):
        noise = (before[name]["weight"] - after[name]["weight"]).double() * STEP
        assert noise.abs().mean() > 2**20


def _neighbours(name, order):
    return GRAPH.neighbours(name, order, CONTEXT)


def test_two_whole_sums_tell_their_difference_with_the_graph_as_with_all_pairs(sites):
    """A server that lies about silence: what docs/secure-sums.md says holds whatever the graph, no more, no less."""
    for graph in (GRAPH, MaskGraph(len(NAMES))):
        members = {name: PairwiseKeys(name, CONTEXT, graph=graph) for name in NAMES}
        rest = [name for name in NAMES if name != VICTIM]
        both = total(sent(members, dict.fromkeys(NAMES, order_over(members))))
        fewer = total(sent(members, dict.fromkeys(rest, order_over(members, rest, attempt=1))))
        assert torch.equal(both - fewer, update_of(VICTIM)["weight"])


def test_dropping_a_sites_neighbours_gives_it_others():
    """The server says of them all that they are silent, as often as a site goes along with it; 33 of 100 help it."""
    graph, names = graph_of("auto", 100), [f"site-{k:02d}" for k in range(100)]
    helpers = {*np.random.default_rng(1).choice([name for name in names if name != VICTIM], 33, replace=False)}
    rosters = Rosters(VICTIM)
    for attempt, left in enumerate((100, 66, 32)):
        order = SumOrder(1, attempt, {name: {"key": name} for name in names})
        rosters.admit(order)
        near, honest = graph.neighbours(VICTIM, order, CONTEXT), [name for name in names if name not in helpers]
        assert len(names) == left and VICTIM in names and {*near} <= {*names}
        assert free_directions(graph, order, names, names) == free_directions(graph, order, honest, honest) == 1
        names = [name for name in names if name not in near]
    with pytest.raises(SumRefused, match="a sum of 1 sites"):
        rosters.admit(SumOrder(1, 3, {VICTIM: {"key": VICTIM}}))


def test_an_old_list_is_refused_and_draws_no_graph_twice(sites, order):
    rosters, later = Rosters(VICTIM), order_over(sites, round=2)
    rosters.admit(order)
    rosters.admit(later)
    with pytest.raises(SumRefused, match="not of fewer"):
        rosters.admit(order)
    assert {*_near(order)} != {*_near(later)}
    replayed = sent(sites, {name: order if name == VICTIM else later for name in NAMES})
    with pytest.raises(SumRefused, match="do not cancel"):
        total(replayed)


class Liar(MaskGraph):
    """What a site that keeps to another graph takes for its neighbours."""

    def neighbours(self, site, order, context):
        honest = super().neighbours(site, order, context)
        strangers = [name for name in order.roster if name not in (*honest, site)]
        changed = {0: honest[1:], 1: (*honest, strangers[0]), 2: (*honest[1:], strangers[0]), 3: (), 4: strangers}
        return changed[LIES.index(self.least)]


LIES = [0, 2, 4, 6, 8]
"""One neighbour fewer, one more, another, none, all the others."""


@pytest.mark.parametrize("lie", LIES, ids=["fewer", "more", "another", "none", "strangers"])
def test_a_site_that_lies_about_its_neighbours_spoils_the_sum_and_learns_nothing(lie, sites, order):
    liar = PairwiseKeys(NAMES[5], CONTEXT, graph=Liar(len(NAMES), lie))
    told = {**order.statements, NAMES[5]: liar.statement()}
    order = dataclasses.replace(order, statements=told)
    masked = sent({**sites, NAMES[5]: liar}, dict.fromkeys(NAMES, order))
    with pytest.raises(SumRefused, match="do not cancel"):
        total(masked)
