# SPDX-License-Identifier: Apache-2.0
"""FLARE's own helpers on a FairRecipe: what they add to the job, and what then arrives in a run of the simulator."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsData, AnalyticsDataType, LogWriterName
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver
from nvflare.job_config.defs import FilterType
from nvflare.recipe.utils import (
    add_cross_site_evaluation,
    add_experiment_tracking,
    add_final_global_evaluation,
    set_per_site_config,
)
from nvflare.widgets.fed_event import ServerFedEventRunner
from stock_simulator import attempt

from fairflare.core.errors import UserError
from fairflare.core.metric import named
from fairflare.engine.files import read_tensors
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.egress import EgressFilter
from fairflare.flare.executor import TASKS
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.site_policy import SitePolicy
from fairflare.flare.tracking import Tracking

EGRESS = f"{EgressFilter.__module__}.{EgressFilter.__qualname__}"


def recipe(method="fedavg", **settings):
    return FairRecipe(make_config(method, "support2", rounds=2, values=settings), preinstalled=True)


def exported(made, folder):
    """The server's and the sites' configuration."""
    made.export(str(folder))
    names = ("app_server/config/config_fed_server.json", "app_sites/config/config_fed_client.json")
    return tuple(json.loads((folder / made.name / name).read_text()) for name in names)


def chains(config, kind="task_result_filters"):
    """Task -> short names of its filters, in the order in which they run."""
    found = {}
    for chain in config[kind]:
        for task in chain["tasks"]:
            assert task not in found and task != "*"
            found[task] = [one["path"].rpartition(".")[2] for one in chain["filters"]]
    return found


@pytest.mark.parametrize("method, settings", [("fedavg", {}), ("fedism", {"secure_sum": "masks"})])
def test_filters_of_a_job_s_own_run_before_the_egress_filter(method, settings, tmp_path):
    """With secure sums too, where the egress filter masks: one after it would see, or spoil, masked numbers."""
    made = recipe(method, **settings)
    made.add_client_output_filter(PercentilePrivacy(), tasks=["train"])
    made.add_client_output_filter(SVTPrivacy())
    server, client = exported(made, tmp_path / "first")
    expected = {task: ["SVTPrivacy", "EgressFilter"] for task in TASKS}
    expected["train"] = ["PercentilePrivacy", "SVTPrivacy", "EgressFilter"]
    assert chains(client) == expected
    assert len(client["task_result_filters"]) == 2  # tasks that share all filters share the egress filter too
    made.add_client_output_filter(PercentilePrivacy(), tasks=["weigh"])  # after an export
    expected["weigh"] = ["SVTPrivacy", "PercentilePrivacy", "EgressFilter"]
    assert chains(exported(made, tmp_path / "second")[1]) == expected


def test_a_plain_job_has_one_chain_and_two_classes_of_ours_at_the_server(tmp_path):
    server, client = exported(recipe(), tmp_path)
    ours = [one["path"] for one in server["workflows"] + server["components"] if one["path"].startswith("fairflare")]
    names = ("controller.FairController", "persistor.FairPersistor")
    assert ours == [f"fairflare.flare.{name}" for name in names]  # what docs/deployment.md has a server allow
    (chain,) = client["task_result_filters"]
    assert sorted(chain["tasks"]) == sorted(TASKS) and [one["path"] for one in chain["filters"]] == [EGRESS]


def test_filters_on_the_other_ways_need_no_tasks(tmp_path):
    made = recipe()
    made.add_client_input_filter(PercentilePrivacy())
    made.add_server_output_filter(PercentilePrivacy(), tasks=["train"])
    made.add_server_input_filter(SVTPrivacy())
    server, client = exported(made, tmp_path)
    assert chains(client, "task_data_filters") == {task: ["PercentilePrivacy"] for task in TASKS}
    assert chains(server, "task_data_filters") == {"train": ["PercentilePrivacy"]}
    assert chains(server) == {task: ["SVTPrivacy"] for task in TASKS}


def test_filters_that_would_never_run_are_refused(tmp_path):
    made = recipe()
    for tasks in (["*"], ["trian"], ["submit_model"]):
        with pytest.raises(UserError, match="no such task; known: preflight, train"):
            made.add_client_output_filter(SVTPrivacy(), tasks=tasks)
    made._job.to_clients(SVTPrivacy(), filter_type=FilterType.TASK_DATA)  # FLARE's default is "*"
    with pytest.raises(UserError, match=r"filter for task '\*': no such task"):
        made.export(str(tmp_path))


def test_what_would_be_one_site_s_alone_is_refused_in_one_line():
    for call in (
        lambda made: made.add_client_output_filter(SVTPrivacy(), clients=["site-1"]),
        lambda made: made.add_client_config({"a": 1}, clients=["site-1"]),
        lambda made: add_experiment_tracking(
            made, "tensorboard", client_side=True, server_side=False, clients=["site-1"]
        ),
        lambda made: set_per_site_config(made, {"site-1": {}}),
    ):
        with pytest.raises(UserError, match="all sites of a FairRecipe run the same app") as error:
            call(recipe())
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("add", [add_cross_site_evaluation, add_final_global_evaluation])
@pytest.mark.filterwarnings("ignore:cross-site evaluation of a FairRecipe")
def test_evaluations_ask_no_site_for_its_own_model(add, tmp_path):
    made = recipe()
    add(made)
    server, client = exported(made, tmp_path)
    (controller,) = [one for one in server["workflows"] if one["path"].endswith(".CrossSiteModelEval")]
    assert controller["args"]["submit_model_task_name"] == ""
    assert all("submit_model" not in one["tasks"] and "*" not in one["tasks"] for one in client["executors"])
    locator = next(one for one in server["components"] if one["id"] == controller["args"]["model_locator_id"])
    persistor = next(one for one in server["components"] if one["id"] == locator["args"]["pt_persistor_id"])
    assert persistor["path"] == "fairflare.flare.persistor.FairPersistor"


def test_cross_site_evaluation_says_what_it_leaves_out():
    with pytest.warns(UserWarning, match="no site's own leaves it"):
        add_cross_site_evaluation(recipe())


@pytest.mark.filterwarnings("ignore:cross-site evaluation of a FairRecipe")
def test_a_site_s_policy_lets_such_jobs_in_and_one_that_ends_with_another_filter_not(tmp_path):
    (tmp_path / "local").mkdir()
    made = recipe()
    add_experiment_tracking(made, "tensorboard")
    add_cross_site_evaluation(made)
    made.add_client_output_filter(PercentilePrivacy(), tasks=["train"])
    server, client = exported(made, tmp_path)
    app = tmp_path / made.name / "app_sites"
    assert SitePolicy().validate(str(app)) == ("", {})
    for chain in client["task_result_filters"]:
        chain["filters"].reverse()
    (app / "config" / "config_fed_client.json").write_text(json.dumps(client))
    assert "train: last" in SitePolicy().validate(str(app))[0]


def test_a_site_s_policy_says_whether_a_job_may_bring_a_receiver(tmp_path):
    (tmp_path / "local").mkdir()
    made = recipe()
    add_experiment_tracking(made, "tensorboard", client_side=True, server_side=False)
    exported(made, tmp_path)
    app = str(tmp_path / made.name / "app_sites")
    assert "TBAnalyticsReceiver" in SitePolicy().validate(app)[0]
    path = f"{TBAnalyticsReceiver.__module__}.{TBAnalyticsReceiver.__qualname__}"
    (tmp_path / "local" / "fairflare_policy.yaml").write_text(f"classes: [{path}]\n")
    assert SitePolicy().validate(app) == ("", {})


def engine_of(*handlers):
    """As much of FLARE's engine as an event needs."""
    manager = FLContextManager(None, "server", "job", {}, {})

    def fire(event_type, context):
        for one in handlers:
            one.handle_event(event_type, context)

    return SimpleNamespace(new_context=manager.new_context, fire_event=fire)


@pytest.mark.parametrize("secure_sum", ["none", "masks"])
def test_with_secure_sums_receivers_hear_nothing_that_the_sums_hide(secure_sum, tmp_path):
    """Neither loss nor sharpness nor weight of a site, in no event of a whole run; without secure sums all three."""
    values = {"secure_sum": secure_sum, "epochs": 1}
    config = make_config("fedism", "support2", rounds=1, values=values)
    told = set()

    class Listener(FLComponent):
        def handle_event(self, event_type, fl_ctx):
            data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            if data is not None:
                told.add(AnalyticsData.from_dxo(from_shareable(data)).tag.removeprefix("score/"))
            result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
            if result is not None:
                told.update(result.metrics)
                for site in result.meta[AppConstants.METRICS_AGGREGATION_INFO]["sites"]:
                    told.update(site["metrics"])
                    told.update(["weight/aggregation"] if site["weight"] is not None else [])

    run_local(config, tmp_path, [Tracking(engine_of(Listener()), "fedism", named("auc"))])
    hidden = {"loss", "train_loss", "mean_loss", "worst_train_loss", "probe/sharpness", "weight/aggregation"}
    assert {"auc", "mean_auc", "worst_auc"} <= told
    assert hidden & told == (set() if secure_sum == "masks" else hidden)


def test_mlflow_s_receiver_hears_what_tensorboard_s_hears():
    """MLflow is large and not installed here: its receiver is one of the same base class, which is asked the same."""
    heard = []

    class Receiver(AnalyticsReceiver):
        def initialize(self, fl_ctx):
            pass

        def save(self, fl_ctx, shareable, record_origin):
            data = AnalyticsData.from_dxo(from_shareable(shareable), receiver=LogWriterName.MLFLOW)
            heard.append((record_origin, data.tag, data.value, data.step, data.data_type))

        def finalize(self, fl_ctx):
            pass

    receiver = Receiver(events=[f"fed.{ANALYTIC_EVENT_TYPE}"])  # as MLflow's
    sent = []
    runner = ServerFedEventRunner()
    runner.fire_and_forget_request = lambda *args, **kwargs: sent.append(args)
    engine = engine_of(receiver, runner)
    with engine.new_context() as context:
        receiver.handle_event(EventType.START_RUN, context)
    accepted = {"a": {"metrics": {"loss": 0.5, "auc": 0.75}, "scalars": {"sharpness": 0.25}}}
    Tracking(engine, "fedism", named("auc")).saw(
        {"event": "round", "round": 3, "accepted": accepted, "weights": {"a": 1.0}}
    )
    Tracking(engine, "fedism", named("auc")).saw({"event": "start"})
    told = {"score/loss": 0.5, "score/auc": 0.75, "probe/sharpness": 0.25, "weight/aggregation": 1.0}
    assert heard == [("a", name, value, 3, AnalyticsDataType.METRIC) for name, value in told.items()]
    assert not sent  # nothing goes on to the sites


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_mlflow_flare_says_what_is_missing():
    with pytest.raises(ValueError, match="mlflow is not installed"):
        add_experiment_tracking(recipe(), "mlflow")


TRACKERS = {
    "mlflow": {"tracking_uri": "http://127.0.0.1:5000", "kw_args": {"experiment_name": "hospitals"}},
    "wandb": {"wandb_args": {"project": "hospitals", "name": "fedism", "group": "fedism", "job_type": "federation"}},
}
"""Those of docs/stock_recipe.md."""


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
@pytest.mark.parametrize("kind", TRACKERS)
def test_a_job_brings_the_receivers_of_mlflow_and_of_wandb(kind, tmp_path, monkeypatch):
    """FLARE's own receivers, with libraries in the place of MLflow and W&B that have the imported names alone."""
    for module, names in (("mlflow", ()), ("mlflow.entities", ("Metric", "Param", "RunTag")), ("wandb", ())):
        (folder := tmp_path / "lib" / Path(*module.split("."))).mkdir(parents=True)
        (folder / "__init__.py").write_text("".join(f"class {name}: pass\n" for name in names))
    (tracking := tmp_path / "lib" / "mlflow" / "tracking").mkdir()
    (tracking / "client.py").write_text("class MlflowClient: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.setenv("WANDB_MODE", "offline")  # which W&B's receiver sets
    made = recipe()
    add_experiment_tracking(made, kind, TRACKERS[kind])
    made.export(str(tmp_path / "job"))
    config = json.loads(next((tmp_path / "job").rglob("config_fed_server.json")).read_text())
    (receiver,) = (one for one in config["components"] if ".tracking." in one["path"])
    assert receiver["path"].startswith(f"nvflare.app_opt.tracking.{kind}.")
    for name, value in TRACKERS[kind].items():
        told = receiver["args"][name]
        assert told == ({**told, **value} if isinstance(value, dict) else value)


# Sites are forks, which have PyTorch already.
JOB = """
import sys
from fairflare.flare.forked_simulator import fork_sites
fork_sites()
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.recipe import SimEnv
from nvflare.recipe.utils import add_cross_site_evaluation, add_experiment_tracking
from fairflare.engine.setup.config import make_config
from fairflare.flare.recipe import FairRecipe

recipe = FairRecipe(make_config("fedism", "support2:dirichlet", rounds=2, sites=2), name="helpers")
add_experiment_tracking(recipe, "tensorboard", client_side=True)
add_cross_site_evaluation(recipe)
recipe.add_client_output_filter(PercentilePrivacy(percentile=0, gamma=1e-4), tasks=["train"])
recipe.run(SimEnv(clients=recipe.sites, workspace_root=sys.argv[1]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workspace of a run with all helpers at once."""
    folder = tmp_path_factory.mktemp("helpers")
    (folder / "job.py").write_text(JOB)
    status, said = attempt([sys.executable, "job.py", folder / "ws"], folder / "ws" / "helpers", cwd=folder)
    assert status == 0, said[-2000:]
    return folder / "ws" / "helpers"


def scalars(folder):
    """Tag -> steps -> value of the event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: {one.step: one.value for one in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


@pytest.mark.flare
def test_every_site_s_metrics_arrive_in_the_servers_event_files(run):
    server = run / "server" / "simulate_job"
    report = json.loads((server / "fairflare" / "report.json").read_text())
    assert report["status"] == "completed"
    entries = [json.loads(line) for line in (server / "fairflare" / "audit.jsonl").read_text().splitlines()]
    rounds = {entry["round"]: entry for entry in entries if entry["event"] == "round"}
    assert sorted(rounds) == [1, 2]
    for site in rounds[1]["accepted"]:
        seen = scalars(server / "tb_events" / site)
        for number, entry in rounds.items():
            accepted = entry["accepted"][site]
            assert seen["weight/aggregation"][number] == pytest.approx(entry["weights"][site])
            assert seen["probe/sharpness"][number] == pytest.approx(accepted["scalars"]["sharpness"], rel=1e-5)
            for name, value in accepted["metrics"].items():
                assert seen[f"score/{name}"][number] == pytest.approx(value, rel=1e-5)
        own = scalars(run / site / "simulate_job" / "tb_events" / site)
        assert set(own) == {f"score/{name}" for name in rounds[1]["accepted"][site]["metrics"]}
        assert sorted(own["score/loss"]) == [1, 2]


@pytest.mark.flare
def test_flare_s_metrics_artifacts_hold_every_round(run):
    """What `nvflare job download` looks for."""
    metrics = run / "server" / "simulate_job" / "metrics"
    lines = [json.loads(line) for line in (metrics / "round_metrics.jsonl").read_text().splitlines()]
    audit = (run / "server" / "simulate_job" / "fairflare" / "audit.jsonl").read_text().splitlines()
    entries = [entry for entry in map(json.loads, audit) if entry["event"] == "round"]
    assert [line["round"] for line in lines] == [1, 2]
    for line, entry in zip(lines, entries):
        told = {site["name"]: {one["name"]: one["value"] for one in site["metrics"]} for site in line["sites"]}
        assert told == {site: pytest.approx(reply["metrics"]) for site, reply in entry["accepted"].items()}
        assert {site["name"]: site["weight"] for site in line["sites"]} == pytest.approx(entry["weights"])
        losses = [reply["metrics"]["loss"] for reply in entry["accepted"].values()]
        whole = {one["name"]: one["value"] for one in line["aggregated_metrics"]}
        assert whole["mean_loss"] == pytest.approx(sum(losses) / len(losses)) and whole["worst_loss"] == max(losses)
    summary = json.loads((metrics / "metrics_summary.json").read_text())
    assert summary["final_round"] == 2 and summary["aggregation"] == {"method": "fedism"}
    assert summary["key_metric"] == {"name": "worst_auc", "mode": "max"}
    assert "worst_auc" in {one["name"] for one in summary["final_aggregated_metrics"]}


@pytest.mark.flare
def test_every_site_evaluates_the_final_model_and_keeps_its_own(run):
    server = run / "server" / "simulate_job"
    found = json.loads((server / "cross_site_val" / "cross_val_results.json").read_text())
    entries = [json.loads(line) for line in (server / "fairflare" / "audit.jsonl").read_text().splitlines()]
    told = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    assert sorted(found) == sorted(told)
    for site, by_model in found.items():
        assert list(by_model) == ["SRV_fairflare"]
        flat = {f"{split}_{name}": v for split in ("val", "test") for name, v in told[site][split].items()}
        assert by_model["SRV_fairflare"] == pytest.approx(flat)


@pytest.mark.flare
def test_the_job_s_own_filter_clips_what_is_aggregated(run):
    """No entry of the model moves by more than gamma in a round, which it does without the filter."""
    before = build_parts(make_config("fedism", "support2:dirichlet", rounds=2, sites=2)).model
    after = read_tensors(next(run.glob("server/simulate_job/fairflare/model.safetensors")))
    moved = max(float((after[key] - value).abs().max()) for key, value in before.items() if value.is_floating_point())
    assert 0 < moved <= 2 * 1e-4 * 1.01
    submitted = [path for path in Path(run).glob("server/**/*submit*") if path.name != ".submitter"]
    assert not submitted, "a site's own model reached the server"
