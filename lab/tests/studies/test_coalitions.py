# SPDX-License-Identifier: Apache-2.0
"""FedCI: several further exchanges in a round, what sites measure in them, and who counts when answers fail."""

import dataclasses
from itertools import combinations

import pytest
import torch

from fairflare.aggregators.base import add_weighted, example_shares
from fairflare.core.types import Info, Outline, Reply, Round
from fairflare.engine.audit import verify
from fairflare.engine.gate import Gate
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.loop import Federation
from fairflare.probes.loss import LocalError
from fairflare.trainers.base import PlainTrainer
from fairflare_lab.methods.coalition_error import CoalitionError
from fairflare_lab.methods.fedci import FedCI, label
from helpers import initial_model, make_sites, small_network

PROBES = (LocalError(), CoalitionError())


class Watched(InProcess):
    """Notes what sites are sent, and spoils answers to "compare" of one site from the third one on."""

    def __init__(self, sites, spoiled=""):
        super().__init__(sites)
        self.sent, self.spoiled, self.compared = [], spoiled, 0

    def exchange(self, instructions):
        kinds = {one.task for one in instructions.values()}
        self.compared += kinds == {"compare"}
        self.sent += [(one.task, site, model_hash(one.model)) for site, one in instructions.items()]
        for answer in super().exchange(instructions):
            if kinds == {"compare"} and answer.site == self.spoiled and self.compared >= 3:
                answer = dataclasses.replace(answer, scalars={"coalition_error": 2.0})
            yield answer


def federation(folder, transport, rule=None, rounds=1, min_sites=2):
    trainable = frozenset(n for n, _ in small_network().named_parameters())
    outline = Outline(initial_model())
    gate = Gate(trainable, scalars=PROBES[0].scalars(outline), anchored=PROBES[1].scalars(outline))
    return Federation(rule or FedCI(), gate, transport, rounds, min_sites, folder)


def sites(count=3):
    return make_sites(count, trainer=PlainTrainer(), probes=PROBES)


def entries(folder):
    return [e for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


def test_every_site_is_shown_every_coalition_one_after_the_other(tmp_path):
    transport = Watched(sites())
    federation(tmp_path, transport).run(initial_model())
    assert transport.compared == 7
    shown = [[sha for task, site, sha in transport.sent if (task, site) == ("compare", f"site-{k}")] for k in (1, 2, 3)]
    assert shown[0] == shown[1] == shown[2] and len(set(shown[0])) == 7
    (entry,) = entries(tmp_path)
    assert entry["notes"]["evaluated"] == 7
    names = {f"coalition_error/{label(frozenset(c))}" for n in (1, 2, 3) for c in combinations(shown_sites(), n)}
    assert names <= set(entry["accepted"]["site-1"]["scalars"])


def shown_sites():
    return ("site-1", "site-2", "site-3")


def test_a_site_that_fails_in_one_exchange_is_left_out_and_not_asked_again(tmp_path):
    transport = Watched(sites(), spoiled="site-2")
    federation(tmp_path, transport).run(initial_model())
    (entry,) = entries(tmp_path)
    assert entry["rejected"]["site-2"]["code"] == "scalar_range" and set(entry["weights"]) == {"site-1", "site-3"}
    assert sum(task == "compare" and site == "site-2" for task, site, _ in transport.sent) == 3
    # The coalitions of those who are left have all been evaluated.
    assert sum(entry["notes"]["shapley"].values()) != 0


def test_the_probe_measures_the_model_that_is_shown_and_leaves_the_trained_one():
    network, other = small_network(), small_network()
    trained = {key: value.clone() for key, value in network.state_dict().items()}
    seen = []

    class Work:
        received = {key: value + 1 for key, value in other.state_dict().items()}
        headline = "accuracy"

        def __init__(self):
            self.network = network

        def evaluate(self, split):
            seen.append({key: value.clone() for key, value in network.state_dict().items()})
            return {"accuracy": 0.75}

    assert CoalitionError().measure(Work()) == {"coalition_error": 0.25}
    assert all(torch.equal(seen[0][key], Work.received[key]) for key in trained)
    assert all(torch.equal(network.state_dict()[key], trained[key]) for key in trained)


# The rule


def reply(k, n=10, **scalars):
    return Reply(f"site-{k}", {"w": torch.full((2,), float(k))}, n, scalars, trainable=frozenset({"w"}))


def played(worth, sites=3, rule=None, state=None, n=None, t=1):
    """The outcome where coalition S scores ``worth(S)`` everywhere."""
    rule, info = rule or FedCI(), Info(Round(t, 5))
    plain = [reply(k, (n or [10] * sites)[k]) for k in range(sites)]
    model = {"w": torch.zeros(2)}
    names = {"received_error": 1 - worth(frozenset())}
    for coalition in rule._coalitions([r.site for r in plain], info):
        names[f"coalition_error/{label(coalition)}"] = 1 - worth(coalition)
    replies = [dataclasses.replace(r, scalars=names) for r in plain]
    return rule.aggregate(model, replies, state or {}, info)


def test_a_site_that_adds_nothing_or_harm_weighs_nothing():
    added = {"site-0": 0.3, "site-1": 0.1, "site-2": -0.2}
    outcome = played(lambda s: 0.5 + sum(added[site] for site in s))
    assert outcome.notes["shapley"] == pytest.approx(added)
    assert outcome.weights == pytest.approx({"site-0": 0.75, "site-1": 0.25, "site-2": 0.0})


def test_values_add_up_over_the_rounds():
    first = played(lambda s: 0.2 + 0.2 * ("site-0" in s), sites=2)
    second = played(lambda s: 0.2 + 0.2 * ("site-1" in s), sites=2, state=first.state, t=2)
    assert second.weights == pytest.approx({"site-0": 0.5, "site-1": 0.5})
    alone = played(lambda s: 0.2 + 0.2 * ("site-1" in s), sites=2, rule=FedCI(accumulate=False), t=2)
    assert alone.weights == pytest.approx({"site-0": 0.0, "site-1": 1.0})


def test_where_nothing_is_added_weights_are_fedavgs():
    assert played(lambda s: 0.5, n=[10, 20, 10]).weights == {"site-0": 0.25, "site-1": 0.5, "site-2": 0.25}


@pytest.mark.parametrize("sites, most", [(7, 70), (12, 120)])
def test_many_sites_are_sampled_in_at_most_k_times_permutations_models(sites, most):
    """In an additive game one permutation gives the exact values."""
    outcome = played(lambda s: 0.1 + 0.01 * sum(int(site[5:]) for site in s), sites=sites)
    assert outcome.notes["evaluated"] <= most
    assert outcome.notes["shapley"] == pytest.approx({f"site-{k}": 0.01 * k for k in range(sites)})


def test_permutations_do_not_change_when_a_site_falls_away():
    rule, info, names = FedCI(), Info(Round(3, 5)), [f"site-{k}" for k in range(9)]
    without = [[site for site in order if site != "site-4"] for order in rule._orders(names, info)]
    assert without == rule._orders([site for site in names if site != "site-4"], info)
    assert rule._orders(names, info) != rule._orders(names, Info(Round(4, 5)))


def test_a_coalitions_model_is_its_members_mean_by_examples():
    replies = [reply(k, n) for k, n in enumerate((10, 30, 10))]
    model = {"w": torch.zeros(2)}
    shown = dict(FedCI().anchors(model, replies, {}, Info(Round(1, 5))))
    assert len(shown) == 7
    pair = add_weighted(model, replies[1:], example_shares(replies[1:]))
    assert torch.equal(shown[label(frozenset({"site-1", "site-2"}))]["w"], pair["w"])
    assert not dict(FedCI().anchors(model, replies[:1], {}, Info(Round(1, 5))))
