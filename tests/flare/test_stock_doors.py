# SPDX-License-Identifier: Apache-2.0
"""Every method under FLARE's own controllers and recipe: it runs there, or is refused in one line.

The controllers, persistor, selector and generators are FLARE's; what stands in for its network hands tasks to sites one
after the other, as FLARE's own server does it: event, copy, filters, result, callback.
"""

import copy
import importlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import make_copy
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.np.np_trainer import NPTrainer
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.widgets.intime_model_selector import IntimeModelSelector
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from tiny_net import TinyNet

from cases import each
from fairflare.core import registry
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import Outline
from fairflare.flare.aggregator import FairAggregator, SiteOrders

SITES = ["a", "b", "c"]
ROUNDS = 3
MORE = {"fedufo": {"groups": ["female", "male"]}, "qfedavg": {"lr": 0.1}}
"""Method -> what its aggregator cannot do without."""
CONTROLLERS = ("scatter-and-gather", "fedavg", "recipe")


class Site:
    """A script that trains by a draw of its own and reports all numbers that a method may have."""

    def __init__(self, name, numbers, filters=()):
        self.name, self.numbers, self.filters, self.orders = name, numbers, filters, []

    def answer(self, task, context):
        model = FLModelUtils.from_shareable(task)
        draw = np.random.default_rng([SITES.index(self.name), int(model.current_round or 0)])
        self.orders.append(dict((model.meta or {}).get("orders", {})))
        found = {}
        for key, value in model.params.items():
            step = draw.normal(size=np.shape(value)) / 50
            found[key] = np.asarray(step, dtype=np.asarray(value).dtype)
        scalars = {name: value + 0.1 * SITES.index(self.name) for name, value in self.numbers.items()}
        told = {"n_examples": 100 + SITES.index(self.name), "scalars": scalars, "steps": 4}
        answer = FLModel(params=found, params_type=ParamsType.DIFF, metrics={"accuracy": 0.5}, meta=told)
        result = FLModelUtils.to_shareable(answer)
        result.set_cookie_jar(task.get_cookie_jar())  # as FLARE's client does
        for filter in self.filters:
            result = filter.process(result, context)
        return result


class Server(WFCommSpec):
    """FLARE's engine and communicator as far as its controllers call them."""

    def __init__(self, folder, components, sites, filters):
        self.components, self.sites, self.filters, self.folder = components, sites, filters, folder
        self.panics = []
        self.context = FLContextManager(engine=self, identity_name="server", job_id="job").new_context()

    def run(self, controller):
        self.components["controller"] = controller
        controller.set_communicator(self)
        self.context.set_prop(FLContextKey.APP_ROOT, str(self.folder), private=True, sticky=True)
        self.context.set_prop(FLContextKey.JOB_META, {}, private=True, sticky=False)
        self.fire_event(EventType.START_RUN, self.context)
        controller.initialize(self.context)
        controller.control_flow(Signal(), self.context)
        return self

    def broadcast(self, task, fl_ctx, *others, **options):
        for site in self.sites:
            one = ClientTask(Client(site.name, ""), task)
            peer = FLContextManager(engine=self, identity_name=site.name, job_id="job").new_context()
            fl_ctx.set_peer_context(peer)
            task.before_task_sent_cb(client_task=one, fl_ctx=fl_ctx)
            data = make_copy(task.data)
            for filter in self.filters:
                data = filter.process(data, fl_ctx)
            one.result = site.answer(data, fl_ctx)
            peer.set_prop(FLContextKey.SHAREABLE, one.result, private=True, sticky=False)
            task.result_received_cb(client_task=one, fl_ctx=fl_ctx)

    broadcast_and_wait = broadcast

    def fire_event(self, event, context):
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(context.get_prop(FLContextKey.EVENT_DATA))
        for one in self.components.values():
            one.handle_event(event, context)

    def get_component(self, name):
        return self.components.get(name)

    def get_clients(self):
        return [Client(site.name, "") for site in self.sites]

    def get_num_standing_tasks(self):
        return 0

    def get_cell(self):
        """None, so that no tensors are written to disk."""

    def get_workspace(self):
        return SimpleNamespace(**dict.fromkeys(("get_app_dir", "get_run_dir", "get_result_root"), self._folder_of))

    def _folder_of(self, job):
        return str(self.folder)

    def persist_components(self, *args, **options):
        """FLARE keeps no snapshots any more."""


def numbers_of(method):
    """Name -> a value of every number that the method's probes may report."""
    one = FairAggregator(method, **MORE.get(method, {}))
    outline = Outline(TinyNet().state_dict(), tuple(one.groups))
    names = [number.name for probe in one._probes for number in probe.scalars(outline)]
    return {name: 10.0 if "count" in name or name in ("seen", "correct") else 0.02 for name in names}


def parts(aggregator):
    return {
        "persistor": PTFileModelPersistor(model=TinyNet()),
        "generator": FullModelShareableGenerator(),
        "selector": IntimeModelSelector(key_metric="accuracy"),
        "aggregator": aggregator,
    }


def controller_of(kind, aggregator, folder):
    """FLARE's controller, and the server's components beside it."""
    found = parts(aggregator)
    if kind == "scatter-and-gather":
        ids = {"aggregator_id": "aggregator", "persistor_id": "persistor", "shareable_generator_id": "generator"}
        return ScatterAndGather(min_clients=3, num_rounds=ROUNDS, **ids), found
    if kind == "fedavg":
        return FedAvg(num_clients=3, num_rounds=ROUNDS, persistor_id="persistor", aggregator=aggregator), found
    script = folder / "client.py"
    script.write_text("import nvflare.client as flare\n")
    options = {"train_script": str(script), "params_transfer_type": "DIFF", "key_metric": "accuracy"}
    recipe = FedAvgRecipe(
        name="stock", model=TinyNet(), min_clients=3, num_rounds=ROUNDS, aggregator=aggregator, **options
    )
    recipe.export(str(folder / "job"))
    config = json.loads(next((folder / "job").rglob("config_fed_server.json")).read_text())
    made = {one["id"]: built(one) for one in config["components"]}
    (workflow,) = [built(one) for one in config["workflows"]]
    found = {"persistor": found["persistor"]} | {id: one for id, one in made.items() if id == "model_selector"}
    workflow._persistor_id = "persistor"
    return workflow, found | {"aggregator": workflow.aggregator}


def built(config):
    """A component of an exported job, as FLARE builds it."""
    module, _, name = config["path"].rpartition(".")
    args = {k: built(v) if isinstance(v, dict) and "path" in v else v for k, v in config.get("args", {}).items()}
    return getattr(importlib.import_module(module), name)(**args)


def run(kind, method, folder, filters=(), orders=True, **options):
    folder.mkdir()
    controller, components = controller_of(kind, FairAggregator(method, **MORE.get(method, {}), **options), folder)
    sites = [Site(name, numbers_of(method), filters) for name in SITES]
    return Server(folder, components, sites, [SiteOrders()] if orders else []).run(controller)


def runs(method):
    try:
        return bool(FairAggregator(method, **MORE.get(method, {})))
    except UserError:
        return False


METHODS = sorted(registry.methods())
RUNNING = [method for method in METHODS if runs(method)]


@each("method", RUNNING)
def test_every_aggregator_of_the_house_runs_and_makes_the_same_model_under_each(method, tmp_path):
    found = []
    for kind in CONTROLLERS:
        torch.manual_seed(0)
        server = run(kind, method, folder := tmp_path / f"{method}-{kind}")
        aggregator = server.components["aggregator"]
        assert server.panics == [] and aggregator._round == ROUNDS
        assert aggregator.weights and set(aggregator.weights) <= set(SITES)
        assert (folder / "best_FL_global_model.pt").is_file(), "FLARE's selector"
        found.append(torch.load(folder / "FL_global_model.pt", weights_only=True)["model"])
    torch.manual_seed(0)
    start = TinyNet().state_dict()
    for key, value in start.items():
        first, *others = [np.asarray(model[key]) for model in found]
        assert np.isfinite(first).all() and all((first == other).all() for other in others), key
        assert (first != value.numpy()).any() or not value.is_floating_point(), key


@each("method", [method for method in METHODS if method not in RUNNING])
def test_all_others_are_refused_in_one_line_that_says_what_they_need(method):
    with pytest.raises(UserError) as error:
        FairAggregator(method)
    line = str(error.value)
    door = f'FairRecipe(make_config("{method}", TASK)), whose sites run FairExecutor'
    assert "\n" not in line and (door in line or line.endswith(f"use `fairflare run {method}`"))


@each("filter", [PercentilePrivacy(), ExcludeVars(exclude_vars="1.bias")], ids=["percentile", "exclude"])
@each("kind", CONTROLLERS)
def test_flare_s_filters_work_at_the_sites(filter, kind, tmp_path):
    server = run(kind, "fedism", tmp_path / f"{type(filter).__name__}-{kind}", [filter])
    assert server.panics == [] and sorted(server.components["aggregator"].weights) == SITES


@each("kind", CONTROLLERS)
def test_each_site_hears_its_own_numbers_alone(kind, tmp_path):
    """FedCE: the weight that the server has given the site's last model, from the second round on."""
    server = run(kind, "fedce", tmp_path / kind)
    rule = server.components["aggregator"]._rule
    first, *later = zip(*(site.orders for site in server.sites), strict=True)
    assert first == ({}, {}, {}) and len(later) == ROUNDS - 1
    for told in later:
        assert all(set(one) == {"coefficient"} for one in told)
        assert sum(one["coefficient"] for one in told) == pytest.approx(1) and len({*map(str, told)}) == 3
    assert rule.useful == ("received_error", "trained_error", "minus_error")


@each("kind", CONTROLLERS)
def test_a_job_that_cannot_tell_sites_their_numbers_says_which_line_it_lacks(kind, tmp_path):
    line = r"fedce sends each site numbers of its own: expected recipe.add_server_output_filter.SiteOrders.., tasks="
    try:
        panics = run(kind, "fedce", tmp_path / kind, orders=False).panics
    except RunFailed as error:  # what FLARE's server turns into the end of the job
        panics = [str(error)]
    assert re.search(line, str(panics)) and not (tmp_path / kind / "FL_global_model.pt").exists()


class OwnTrainer(Site):
    """FLARE's NPTrainer, which its integration tests run, at a site of this test's."""

    def answer(self, task, context):
        trainer = NPTrainer(delta=1 + SITES.index(self.name))
        workspace = SimpleNamespace(get_result_root=lambda job: str(self.folder))
        peer = SimpleNamespace(get_workspace=lambda: workspace)
        at_site = FLContextManager(engine=peer, identity_name=self.name, job_id="job").new_context()
        return trainer.execute("train", copy.deepcopy(task), at_site, Signal())


@pytest.mark.filterwarnings("ignore:NPTrainer is deprecated")
def test_flare_s_own_trainer_and_persistor_of_numpy_models(tmp_path):
    """Whole weights, and steps in place of a number of examples: three rounds of the mean of 1, 2 and 3."""
    components = {**parts(FairAggregator("fedavg")), "persistor": NPModelPersistor()}
    ids = {"aggregator_id": "aggregator", "persistor_id": "persistor", "shareable_generator_id": "generator"}
    sites = [OwnTrainer(name, {}) for name in SITES]
    for site in sites:
        site.folder = tmp_path / site.name
    server = Server(tmp_path, components, sites, []).run(ScatterAndGather(min_clients=3, num_rounds=3, **ids))
    assert server.panics == []
    start = np.arange(1, 10).reshape(3, 3)  # the persistor's own
    np.testing.assert_array_equal(np.load(tmp_path / "models" / "server.npy"), start + 6)


def test_fedce_without_the_sites_errors_says_so(tmp_path, caplog):
    aggregator = FairAggregator("fedce")
    sites = [Site(name, {}) for name in SITES]
    controller, components = controller_of("fedavg", aggregator, tmp_path)
    with caplog.at_level("WARNING"):
        Server(tmp_path, components, sites, [SiteOrders()]).run(controller)
    assert "fedce weighs without minus_error, received_error, trained_error: no site reports it" in caplog.text


def test_fedufo_needs_groups_or_weighs_sites_alone():
    with pytest.raises(UserError, match="at least two groups of examples.*an aggregator has them as groups="):
        FairAggregator("fedufo")
    assert FairAggregator("fedufo", settings={"level": "client"})._rule.level == "client"
