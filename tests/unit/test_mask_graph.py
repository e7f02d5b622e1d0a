# SPDX-License-Identifier: Apache-2.0
"""The graph of masks: regular, the same from either side, drawn by nobody, and connected whoever helps the server."""

import itertools
import math

import pytest

from cases import each
from fairflare.core.errors import UserError
from fairflare.privacy.sum_protocol import BITS, COMPLETE, MaskGraph, SumOrder, cut_off, graph_of


def names_of(n):
    return [f"site-{k:03d}" for k in range(n)]


def order_of(names, round=1, attempt=0, bound=b"", **keys):
    return SumOrder(round, attempt, {name: {"key": keys.get(name, f"key of {name}")} for name in names}, bound)


def edges_of(graph, order, context="a run"):
    return {site: graph.neighbours(site, order, context) for site in order.roster}


def connected(edges, sites):
    """Whether all of ``sites`` are reached from one of them through ``sites`` alone."""
    seen, todo = set(), [next(iter(sites))]
    while todo:
        site = todo.pop()
        seen.add(site)
        todo += [other for other in edges[site] if other in sites and other not in seen]
    return seen == set(sites)


@pytest.mark.parametrize("sites", [3, 10, COMPLETE])
def test_few_sites_share_masks_with_all_others(sites):
    assert graph_of("auto", sites).degree(sites) == sites - 1


@each("sites, degree", [(31, 12), (50, 18), (100, 34), (200, 52), (466, 64), (1000, 72)])
def test_many_sites_have_few_neighbours(sites, degree):
    """The figures of docs/secure-sums.md; with one neighbour pair less the bound would not hold."""
    graph = graph_of("auto", sites)
    assert graph.degree(sites) == degree and graph_of("all", sites).degree(sites) == sites - 1
    assert cut_off(sites, degree, sites // 3) <= -BITS < cut_off(sites, degree - 2, sites // 3)


def test_a_demanded_number_is_the_fewest():
    assert graph_of("41", 100).degree(100) == 42 and graph_of("41", 100).degree(42) == 41
    assert graph_of("1", 100).degree(100) == 34


def test_smaller_sums_of_a_run_withstand_as_many_sites_as_its_largest():
    """A server that says of honest sites that they are silent raises the share of those that work with it."""
    graph = graph_of("auto", 100)
    assert all(graph.degree(sites) in (34, sites - 1) for sites in range(3, 101))
    assert graph_of("auto", 40).degree(100) == 34  # a roster with sites that the run does not know


@pytest.mark.parametrize("sites", [31, 32, 47, 100])
def test_the_graph_is_regular_and_the_same_from_either_side(sites):
    graph, order = graph_of("auto", sites), order_of(names_of(sites))
    edges = edges_of(graph, order)
    for site, near in edges.items():
        assert len(set(near)) == len(near) == graph.degree(sites) and site not in near
        assert all(site in edges[other] for other in near)


def test_the_graph_follows_from_keys_round_attempt_and_run_and_from_nothing_else():
    graph, names = graph_of("auto", 40), names_of(40)
    first = edges_of(graph, order_of(names))
    assert first == edges_of(graph, order_of(names[::-1])) == edges_of(graph, order_of(names, bound=b"another model"))
    others = [
        edges_of(graph, order_of(names, round=2)),
        edges_of(graph, order_of(names, attempt=1)),
        edges_of(graph, order_of(names, **{"site-007": "another key"})),
        edges_of(graph, order_of(names), "another run"),
    ]
    for other in others:
        # Of 14 neighbours among 39 about 5 stay by chance.
        assert sum(len({*first[name]} & {*other[name]}) for name in names) / len(names) < 8


@pytest.mark.parametrize("sites, degree", [(8, 4), (9, 4), (10, 4), (11, 6)])
def test_fewer_than_its_neighbours_cut_no_site_off_and_more_do_as_rarely_as_the_bound_says(sites, degree):
    """All ways in which sites that work with the server can stand on the circle."""
    edges = {
        k: [(k + step) % sites for away in range(1, degree // 2 + 1) for step in (away, -away)] for k in range(sites)
    }
    for colluding in range(1, sites - 1):
        ways = [{*range(sites)} - {*chosen} for chosen in itertools.combinations(range(sites), colluding)]
        cut = sum(not connected(edges, honest) for honest in ways) / len(ways)
        assert (cut == 0) if colluding < degree else cut <= 2.0 ** cut_off(sites, degree, colluding)
    assert any(not connected(edges, {*range(sites)} - {*c}) for c in itertools.combinations(range(sites), degree))


def test_the_order_on_the_circle_favours_nobody():
    """How often one site is another's neighbour over many rounds: 30 of 49 each, within six standard deviations."""
    graph, names = MaskGraph(50, 30), names_of(50)
    rounds = 600
    count = dict.fromkeys(names, 0)
    for number in range(rounds):
        for other in graph.neighbours(names[0], order_of(names, round=number), "a run"):
            count[other] += 1
    share = 30 / 49
    spread = 6 * math.sqrt(rounds * share * (1 - share))
    assert all(abs(count[name] - rounds * share) < spread for name in names[1:])


def test_the_bound_is_a_probability():
    assert cut_off(100, 34, 33) == cut_off(10, 9, 9) == -math.inf
    assert -BITS < cut_off(100, 34, 50) < cut_off(100, 34, 60) < cut_off(100, 34, 99) == 0.0


@pytest.mark.parametrize(
    "values, text",
    [
        ({"mask_neighbours": "all"}, "mask_neighbours: expected auto without secure_sum, got 'all'"),
        ({"secure_sum": "masks", "mask_neighbours": "some"}, "expected auto, all or a number of sites, got 'some'"),
        ({"secure_sum": "masks", "mask_neighbours": "0"}, "expected auto, all or a number of sites, got '0'"),
        ({"secure_sum": "masks", "mask_neighbours": "13"}, "expected auto, all or 14 to 39 with 40 sites .* got '13'"),
        ({"secure_sum": "masks", "mask_neighbours": "40"}, "expected auto, all or 14 to 39 with 40 sites .* got '40'"),
    ],
    ids=str,
)
def test_what_is_no_number_of_neighbours_is_refused(values, text):
    from fairflare.engine.setup.config import make_config

    with pytest.raises(UserError, match=text):
        make_config("fedism", "support2:dirichlet", values={"n_sites": 40, **values})


@pytest.mark.parametrize("given", ["all", "14", "39"])
def test_a_configuration_carries_the_number_and_an_older_one_lacks_it(given):
    from fairflare.engine.setup.config import RunConfig, make_config

    values = {"n_sites": 40, "secure_sum": "masks"}
    one = make_config("fedism", "support2:dirichlet", values={**values, "mask_neighbours": given})
    assert RunConfig.from_json(one.to_json()) == one and one.to_json()["mask_neighbours"] == given
    default = make_config("fedism", "support2:dirichlet", values=values)
    assert "mask_neighbours" not in default.to_json() and RunConfig.from_json(default.to_json()) == default
    assert default.sha256() != one.sha256()
