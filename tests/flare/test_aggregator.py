# SPDX-License-Identifier: Apache-2.0
"""The aggregator with FLARE's own steps around it: the event that shows the model, and the sum of model and update."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import nn

from cases import each
from fairflare.core import registry
from fairflare.core.errors import RunFailed, UserError
from fairflare.flare.aggregator import FairAggregator

SITES = ["a", "b", "c"]
SHARPNESS = {"a": 0.01, "b": 0.03, "c": 0.04}
METHODS = {"fedavg": {}, "fedism": {"q": 1.0, "beta": 1.0}, "fedism-plus": {"q": 1.0, "beta": 1.0}, "fedheal": {}}
KINDS = ["numpy", "torch"]


def network(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2) if norm else nn.ReLU(), nn.Linear(2, 2)).state_dict()


def of_kind(kind, state):
    return {key: value.numpy() if kind == "numpy" else value for key, value in state.items()}


def updates_of(state, site):
    """Differences as a Client API script makes them: of every entry, the counter of batches too; the variance falls."""
    torch.manual_seed(SITES.index(site))
    made = {k: torch.randn(v.shape) / 10 if v.is_floating_point() else torch.ones_like(v) for k, v in state.items()}
    return {k: -v.abs() / 2 if k.endswith("running_var") else v for k, v in made.items()}


class Job:
    """A stock FedAvg round after round, as far as an aggregator sees it."""

    def __init__(self, aggregator, state, kind, announced=True):
        self.aggregator, self.kind, self.announced = aggregator, kind, announced
        self.model = FLModel(params=dict(of_kind(kind, state)), params_type=ParamsType.FULL)

    def round(self, updates, params_type=ParamsType.DIFF, **meta):
        self.aggregator.reset_stats()
        if self.announced:
            context = FLContext()
            data = DXO(DataKind.WEIGHTS, data=self.model.params).to_shareable()
            context.set_prop(AppConstants.TRAIN_SHAREABLE, data, private=True, sticky=False)
            self.aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, context)
        for site, update in updates.items():
            told = {"client_name": site, "n_examples": 100, "scalars": {"sharpness": SHARPNESS[site]}} | meta
            if "sharpness" not in self.aggregator._rule.wanted:
                told["scalars"] = {}
            params = of_kind(self.kind, update) if self.kind else update
            self.aggregator.accept_model(FLModel(params=params, params_type=params_type, meta=told))
        result = self.aggregator.aggregate_model()
        self.model = FLModelUtils.update_model(self.model, result)
        return result


@each("norm", [True, False], ids=["batchnorm", "plain"])
@each("kind", KINDS)
@each("method", METHODS)
def test_flare_adds_up_what_comes_back(method, kind, norm):
    """Two rounds of every single-exchange method: arrays of the model's kind, integer entries untouched."""
    state = network(norm)
    job = Job(FairAggregator(method, settings=METHODS[method]), state, kind)
    expected = {key: value.clone() for key, value in state.items()}
    for _ in range(2):
        updates = {site: updates_of(state, site) for site in SITES}
        result = job.round(updates)
        weights = job.aggregator.weights
        assert sorted(weights) == SITES
        for key, value in expected.items():
            if value.is_floating_point() and method != "fedheal":
                value += sum(weights[site] * updates[site][key] for site in SITES)
        assert set(result.params) == {key for key, value in state.items() if value.is_floating_point()}
        assert all(type(job.model.params[key]) is type(of_kind(kind, state)[key]) for key in state)
    if method.startswith("fedism"):
        assert weights == pytest.approx({"a": 0.125, "b": 0.375, "c": 0.5})
    for key, value in expected.items():
        if method != "fedheal" or not value.is_floating_point():
            torch.testing.assert_close(torch.as_tensor(job.model.params[key]), value)


def test_a_method_with_more_on_the_server_than_a_rule_is_refused(monkeypatch):
    own = dataclasses.replace(registry.get_method("fedavg"), server_optimizer="adam")
    monkeypatch.setattr(registry, "get_method", lambda id: own)
    with pytest.raises(
        UserError, match="fedavg selects sites or steps on the server by itself: use `fairflare run fedavg`"
    ):
        FairAggregator("fedavg")


@each("method", ["ditto", "fedbn", "fedrep", "moon", "fedprox", "apfl", "silobn", "fedper", "pfedme"])
def test_a_method_that_acts_at_the_sites_is_not_silently_fedavg(method):
    with pytest.raises(UserError, match=f"{method} acts at the sites .trainer .*: use FairRecipe"):
        FairAggregator(method)


def test_a_result_without_an_authenticated_name_is_left_out():
    """ScatterAndGather: what a client writes about its own name counts for nothing."""
    aggregator = FairAggregator("fedavg")
    answer = FLModelUtils.to_shareable(FLModel(params={"w": np.ones(1)}, meta={"client_name": "somebody"}))
    assert not aggregator.accept(answer, FLContext()) and not aggregator._answers
    peer, context = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, "a", private=False, sticky=False)
    context.set_peer_context(peer)
    assert aggregator.accept(answer, context) and aggregator._answers[0].site == "a"


@each("kind", KINDS)
def test_whole_weights_count_as_their_differences(kind):
    """FLARE's own trainers send them, and beside them no number of examples but their steps."""
    state, told = network(False), []
    for whole in (False, True):
        job = Job(FairAggregator("fedavg"), state, kind)
        for _ in range(2):
            held = {key: torch.as_tensor(value) for key, value in job.model.params.items()}
            found = {site: updates_of(state, site) for site in SITES}
            if whole:
                found = {site: {key: held[key] + value for key, value in one.items()} for site, one in found.items()}
            job.round(found, params_type=ParamsType.FULL if whole else ParamsType.DIFF)
        told.append({key: torch.as_tensor(value) for key, value in job.model.params.items()})
    for key, value in told[0].items():
        torch.testing.assert_close(value, told[1][key])


def test_whole_weights_of_another_shape_are_left_out_though_arrays_could_be_stretched():
    state = network(False)
    found = {site: {key: value + 1 for key, value in state.items()} for site in SITES}
    found["b"]["0.bias"] = torch.ones(1)
    job = Job(FairAggregator("fedavg"), state, "numpy")
    job.round(found, params_type=ParamsType.FULL)
    assert sorted(job.aggregator.weights) == ["a", "c"]


def test_steps_weigh_a_client_that_states_no_number_of_examples_and_may_grow(caplog):
    state, told = network(False), iter([{"a": 1, "b": 3}, {"a": 5, "b": 5}])
    aggregator = FairAggregator("fedavg")
    for expected in ({"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5}):
        aggregator.reset_stats()
        for site, steps in next(told).items():
            meta = {"client_name": site, MetaKey.NUM_STEPS_CURRENT_ROUND: steps}
            params = of_kind("numpy", updates_of(state, site))
            aggregator.accept_model(FLModel(params=params, params_type=ParamsType.DIFF, meta=meta))
        aggregator.aggregate_model()
        assert aggregator.weights == expected
    assert caplog.text.count("a states no n_examples: its steps weigh it (1), as in FLARE's aggregators") == 1


def test_settings_have_either_name():
    for key in ("q", "rule.q"):
        assert FairAggregator("fedism", settings={key: 3.0})._rule.q == 3.0
    with pytest.raises(UserError, match="rule fedism: unknown key 'trainer.rho_max'; known: "):
        FairAggregator("fedism", settings={"trainer.rho_max": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_variance_below_zero_is_left_out_and_one_that_falls_is_not(kind, caplog):
    state = network(True)
    updates = {site: updates_of(state, site) for site in SITES}
    updates["b"]["1.running_var"] = torch.full((2,), -1.5)
    job = Job(FairAggregator("fedavg"), state, kind)
    with caplog.at_level("WARNING"):
        job.round(updates)
    assert sorted(job.aggregator.weights) == ["a", "c"] and "b left out: variance" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_variance_that_falls_below_zero_by_rounding_ends_at_zero(kind):
    state = network(True)
    updates = {site: {**updates_of(state, site), "1.running_var": torch.full((2,), -1.0 - 5e-7)} for site in SITES}
    job = Job(FairAggregator("fedavg"), state, kind)
    job.round(updates)
    assert (torch.as_tensor(job.model.params["1.running_var"]) == 0).all()


def test_without_an_announced_model_the_majority_s_form_counts():
    """FLARE's own recipes always announce it; other workflows may not."""
    state = network(True)
    updates = {site: updates_of(state, site) for site in SITES}
    updates["c"] = {"0.weight": torch.zeros(7)}
    job = Job(FairAggregator("fedavg"), state, "numpy", announced=False)
    result = job.round(updates)
    assert sorted(job.aggregator.weights) == ["a", "b"] and isinstance(result.params["0.weight"], np.ndarray)
    with pytest.raises(RunFailed, match="no form of them has a majority"):
        job.round({site: updates[site] for site in ("a", "c")})


def test_a_site_s_own_filter_may_change_the_kind():
    """FLARE's SVT filter sends NumPy arrays where tensors are exchanged."""
    state = network(True)
    updates = {site: updates_of(state, site) for site in SITES}
    updates["a"] = of_kind("numpy", updates["a"])
    job = Job(FairAggregator("fedavg"), state, "torch")
    job.kind = None
    job.round(updates)
    assert sorted(job.aggregator.weights) == SITES
    assert all(isinstance(value, torch.Tensor) for value in job.model.params.values())


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_without_dimensions_stay_numbers(kind):
    """The sum of two NumPy arrays without dimensions is a NumPy scalar: in FLARE's model and from scripts."""
    state = {"weight": torch.zeros(2), "scale": torch.tensor(1.0), "steps": torch.tensor(3)}
    job = Job(FairAggregator("fedavg"), state, kind)
    for _ in range(2):
        update = of_kind(kind, {"weight": torch.ones(2), "scale": torch.tensor(0.5), "steps": torch.tensor(1)})
        if kind == "numpy":
            update = {key: value - np.zeros_like(value) for key, value in update.items()}
        job.kind = None
        job.round({site: update for site in SITES})
    assert float(job.model.params["scale"]) == 2.0 and int(job.model.params["steps"]) == 3


class OnDisk:
    """As FLARE's reference to a tensor that it keeps on disk."""

    def __init__(self, value):
        self._value = value

    def materialize(self):
        return self._value


def test_tensors_that_flare_keeps_on_disk_are_aggregated():
    state = network(True)
    updates = {site: {key: OnDisk(value) for key, value in updates_of(state, site).items()} for site in SITES}
    job = Job(FairAggregator("fedavg"), state, None)
    job.kind = None
    job.round(updates)
    assert sorted(job.aggregator.weights) == SITES and int(job.model.params["1.num_batches_tracked"]) == 0


def test_types_of_the_model_are_kept():
    state = {"weight": torch.zeros(2, dtype=torch.float64), "half": torch.zeros(2, dtype=torch.float16)}
    job = Job(FairAggregator("fedavg"), state, "numpy")
    job.round({site: {"weight": torch.full((2,), 1 / 3, dtype=torch.float64), "half": torch.ones(2)} for site in SITES})
    assert job.model.params["weight"].dtype == np.float64 and job.model.params["half"].dtype == np.float16
    assert job.model.params["weight"] == pytest.approx(1 / 3, abs=1e-15)


def test_adapters_alone_are_aggregated_and_a_part_of_the_model_is_no_answer_to_all_of_it():
    state = network(False)
    part = {site: {"2.weight": updates_of(state, site)["2.weight"]} for site in SITES}
    job = Job(FairAggregator("fedavg"), state, "numpy")
    assert set(job.round(part).params) == {"2.weight"}
    whole = {site: updates_of(state, site) for site in ("a", "b")}
    job.round({**whole, "c": part["c"]})
    assert sorted(job.aggregator.weights) == ["a", "b"]


HOSTILE = [
    {"0.weight": np.array(["text"])},
    {"0.weight": np.array([object()])},
    {"elsewhere": torch.ones(3)},
    {1: torch.ones(3), "1": torch.ones(3)},
    "no weights at all",
    {"0.weight": torch.full((2, 3), math.nan)},
]


@each("kind", KINDS)
@each("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_one_site_sends_the_others_go_on(hostile, kind):
    state = network(False)
    updates = {site: of_kind(kind, updates_of(state, site)) for site in SITES}
    updates["b"] = {**updates["b"], **hostile} if isinstance(hostile, dict) and "0.weight" in hostile else hostile
    for announced in (True, False):
        job = Job(FairAggregator("fedavg"), state, kind, announced)
        job.kind = None
        job.round(updates)
        assert sorted(job.aggregator.weights) == ["a", "c"]


@pytest.mark.parametrize("meta", [{"n_examples": None}, {"scalars": {}}, {"scalars": {"sharpness": math.inf}}, {}])
def test_without_the_numbers_that_the_rule_needs_a_site_is_left_out(meta):
    job = Job(FairAggregator("fedism"), network(False), "numpy")
    updates = {site: updates_of(network(False), site) for site in SITES}
    if meta:
        with pytest.raises(RunFailed, match="0 accepted sites, 1 needed"):
            job.round(updates, **meta)
    else:
        job.round(updates)
        assert sorted(job.aggregator.weights) == SITES
