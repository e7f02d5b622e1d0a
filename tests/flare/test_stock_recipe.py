# SPDX-License-Identifier: Apache-2.0
"""FLARE's own FedAvgRecipe with our aggregator handed to it, in FLARE's simulator."""

import importlib.util
import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from stock_simulator import attempt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fairflare.core.errors import UserError
from fairflare.flare import worst_site
from fairflare.flare.worst_site import WorstSite
from fairflare.functional.perturbation import global_norm, perturbed

HERE = Path(__file__).parent
# Sites are forks, which have PyTorch already; those of the printed call are FLARE's own.
JOB = """
import sys
from fairflare.flare.forked_simulator import fork_sites
fork_sites()
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from nvflare.recipe.utils import add_experiment_tracking
from fairflare.flare.aggregator import FairAggregator
from fairflare.flare.worst_site import add_worst_site
from tiny_net import TinyNet

recipe = FedAvgRecipe(
    name="stock", model=TinyNet(), min_clients=2, num_rounds=2, train_script="client_api_script.py",
    aggregator=FairAggregator("fedism", rounds=2, settings={"q": 1.0, "beta": 1.0}),
    params_transfer_type="DIFF", server_expected_format="pytorch", key_metric="worst_accuracy", key_metric_mode="max",
)
add_worst_site(recipe)
add_experiment_tracking(recipe, "tensorboard")
recipe.run(SimEnv(clients=["site-1", "site-2"], workspace_root=sys.argv[1]))
"""


@pytest.mark.flare
def test_stock_recipe_weighs_by_sharpness(tmp_path):
    """Sharpness .01 and .03 with q = 1 weigh 1/4 and 3/4: steps of 1 and 3 move every weight by 2.5 a round."""
    for name in ("client_api_script.py", "tiny_net.py"):
        (tmp_path / name).write_text((HERE / name).read_text())
    (tmp_path / "job.py").write_text(JOB)
    workspace = tmp_path / "ws" / "stock"
    status, said = attempt([sys.executable, "job.py", tmp_path / "ws"], workspace, cwd=tmp_path)
    assert status == 0, said[-2000:]
    server = workspace / "server" / "simulate_job"
    saved = torch.load(next(server.glob("**/FL_global_model.pt")), weights_only=True)["model"]
    log = (tmp_path / "ws" / "stock" / "server" / "log.txt").read_text()
    weights = json.loads(re.search(r"round 2 weights: (\{.*\})", log).group(1).replace("'", '"'))
    assert weights == pytest.approx({"site-1": 0.25, "site-2": 0.75})
    running_mean = torch.as_tensor(saved["1.running_mean"])
    torch.testing.assert_close(running_mean, torch.full((2,), 5.0))
    assert int(saved["1.num_batches_tracked"]) == 0
    lines = [json.loads(line) for line in (server / "metrics" / "round_metrics.jsonl").read_text().splitlines()]
    over = {"mean_accuracy": 0.7, "worst_accuracy": 0.5, "gap_accuracy": 0.4, "std_accuracy": 0.2, "worst_loss": 0.75}
    for line in lines:
        told = {one["name"]: one["value"] for one in line["aggregated_metrics"]}
        assert {name: told[name] for name in over} == pytest.approx(over) and "worst_own" not in told
    summary = json.loads((server / "metrics" / "metrics_summary.json").read_text())
    assert (summary["key_metric"]["name"], summary["key_metric"]["mode"]) == ("worst_accuracy", "max")
    assert len(lines) == 2 and summary["best_round"] == 1 and next(server.glob("**/best_FL_global_model.pt"))
    assert "not in metrics from" not in log  # FLARE's own selector, which knows no such name
    events = EventAccumulator(str(server / "tb_events" / "server")).Reload()
    assert [event.step for event in events.Scalars("sites/worst_accuracy")] == [0, 1]


GATHER = """
import sys
from fairflare.flare.forked_simulator import fork_sites
fork_sites()
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from fairflare.flare.aggregator import FairAggregator
from tiny_net import TinyNet

job = FedJob(name="stock", min_clients=2)
job.to_server(PTFileModelPersistor(model=TinyNet()), id="persistor")
job.to_server(FullModelShareableGenerator(), id="generator")
job.to_server(FairAggregator("fedism", rounds=2, settings={"q": 1.0, "beta": 1.0}), id="aggregator")
job.to_server(ScatterAndGather(
    min_clients=2, num_rounds=2, aggregator_id="aggregator", persistor_id="persistor",
    shareable_generator_id="generator", train_task_name="train",
))
for site in ("site-1", "site-2"):
    job.to(ScriptRunner(script="client_api_script.py", params_transfer_type="DIFF"), site)
job.simulator_run(sys.argv[1] + "/stock")
"""


@pytest.mark.flare
def test_scatter_and_gather_weighs_by_sharpness(tmp_path):
    """The controller of FLARE's own jobs hands on no client's name: it comes from the peer's context."""
    for name in ("client_api_script.py", "tiny_net.py"):
        (tmp_path / name).write_text((HERE / name).read_text())
    (tmp_path / "job.py").write_text(GATHER)
    workspace = tmp_path / "ws" / "stock"
    status, said = attempt([sys.executable, "job.py", tmp_path / "ws"], workspace, cwd=tmp_path)
    assert status == 0, said[-2000:]
    saved = torch.load(next((workspace / "server").glob("**/FL_global_model.pt")), weights_only=True)["model"]
    log = (workspace / "server" / "log.txt").read_text()
    weights = json.loads(re.search(r"round 2 weights: (\{.*\})", log).group(1).replace("'", '"'))
    assert weights == pytest.approx({"site-1": 0.25, "site-2": 0.75})
    torch.testing.assert_close(torch.as_tensor(saved["1.running_mean"]), torch.full((2,), 5.0))


def test_only_aggregated_sites_count_and_none_is_told_of_others(monkeypatch):
    """What FLARE's controller goes on with, and sends out, is as it was; the copy for its records has more."""
    heard = []
    monkeypatch.setattr(worst_site, "tell_receivers", lambda engine, *told: heard.append(told))
    context, widget = FLContext(), WorstSite("gap_loss", "min")
    monkeypatch.setattr(widget, "fire_event", lambda event, _: heard.append(event))
    monkeypatch.setattr(context, "get_engine", lambda: None)
    context.set_prop(AppConstants.CURRENT_ROUND, 3, private=True, sticky=False)
    for site, loss in {"a": 0.1, "b": 0.4, "left-out": 9.0, "broken": float("nan")}.items():
        answer = FLModelUtils.to_shareable(FLModel(params={"w": 1.0}, metrics={"loss": loss}))
        context.set_prop(AppConstants.TRAINING_RESULT, answer, private=True, sticky=False)
        context.set_peer_context(peer := FLContext())
        peer.set_prop(ReservedKey.IDENTITY_NAME, site)
        widget.handle_event(AppEventType.AFTER_CONTRIBUTION_ACCEPT, context)
    about = {"site_weights": [{"name": "a", "weight": 1}, {"name": "b", "weight": 2}]}
    result = FLModel(params={"w": 1.0}, metrics={"loss": 0.3}, meta={AppConstants.METRICS_AGGREGATION_INFO: about})
    context.set_prop(AppConstants.AGGREGATION_RESULT, result, private=True, sticky=False)
    widget.handle_event(AppEventType.AFTER_AGGREGATION, context)
    told = context.get_prop(AppConstants.AGGREGATION_RESULT)
    spread = {"mean_loss": 0.25, "worst_loss": 0.4, "gap_loss": 0.3, "std_loss": 0.15}
    assert told.metrics == pytest.approx({"loss": 0.3, **spread}) and result.metrics == {"loss": 0.3}
    assert result.meta == {AppConstants.METRICS_AGGREGATION_INFO: about}
    assert heard[-1] == AppEventType.GLOBAL_BEST_MODEL_AVAILABLE and [one[0] for one in heard[:-1]] == ["server"] * 4
    assert context.get_prop(AppConstants.METRICS_SELECTION_INFO)["best_round"] == 3
    for key, mode in (("accuracy", "max"), ("worst_loss", "lowest")):
        with pytest.raises(UserError, match="expected"):
            WorstSite(key, mode)


STOCK = Path(__file__).parents[2] / "jobs" / "stock_recipe"
ROUNDS = 2


@pytest.mark.flare
def test_the_printed_call_runs_with_flare_s_defaults(tmp_path):
    """jobs/stock_recipe: NumPy arrays, BatchNorm, and a script that sends whole weights; FLARE makes the DIFF."""
    folder = shutil.copytree(STOCK, tmp_path / "job")
    workspace = tmp_path / "ws" / "stock_recipe"
    command = [sys.executable, "job.py", "--rounds", ROUNDS, "--workspace", tmp_path / "ws"]
    status, said = attempt(command, workspace, cwd=folder)
    assert status == 0, said[-2000:]
    server = workspace / "server"
    log = (server / "log.txt").read_text()
    assert "left out" not in log
    told = [json.loads(w.replace("'", '"')) for w in re.findall(r"round \d weights: (\{.*\})", log)]
    assert len(told) == ROUNDS and all(sorted(w) == ["site-1", "site-2", "site-3"] for w in told)
    assert all(sum(w.values()) == pytest.approx(1.0) and len(set(w.values())) == 3 for w in told)
    saved = torch.load(next(server.glob("**/FL_global_model.pt")), weights_only=True)["model"]
    assert all(bool(torch.as_tensor(value).isfinite().all()) for value in saved.values())
    assert int(saved["1.num_batches_tracked"]) == 0 and saved["1.running_mean"].abs().min() > 0
    falling = torch.as_tensor(saved["1.running_var"])
    assert bool((falling < 1).any()) and bool((falling > 0).all())


def module(name):
    """A script of the example, imported without running it."""
    spec = importlib.util.spec_from_file_location(f"stock_{name}", STOCK / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_script_measures_what_the_package_measures(monkeypatch):
    """S of the example's plain lines is the sharpness of our own perturbation, and the network is left as it was."""
    monkeypatch.syspath_prepend(STOCK)
    client = module("client")
    torch.manual_seed(0)
    network = module("network").Network()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    inputs, targets = client.load("site-3")
    loss, rise = client.sharpness(network, inputs, targets)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    parameters = list(network.parameters())
    plain = torch.nn.functional.cross_entropy(network(inputs), targets)
    gradients = torch.autograd.grad(plain, parameters)
    with torch.no_grad(), perturbed(parameters, gradients, client.RADIUS, global_norm(gradients)):
        grown = torch.nn.functional.cross_entropy(network(inputs), targets)
    assert (loss, rise) == pytest.approx((float(plain.detach()), float(grown - plain.detach())), rel=1e-4) and rise > 0


def test_the_printed_script_is_the_one_that_runs():
    root = STOCK.parents[1]
    printed = (root / "docs" / "stock_recipe.md").read_text()
    assert (STOCK / "client.py").read_text() in printed
    call = 'aggregator=FairAggregator("fedism"), params_transfer_type="DIFF")'
    assert (
        f"FedAvgRecipe(..., {call}" in printed
        and f"FedAvgRecipe(..., {call}" in (root / "docs" / "in_flare.md").read_text()
    )
    job = "".join((STOCK / "job.py").read_text().split())
    assert all(part.rstrip(")") in job for part in call.split(", ")) and "server_expected_format" not in job


DOOR = """
import sys
from fairflare.flare.forked_simulator import fork_sites
fork_sites()
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from fairflare.flare.aggregator import FairAggregator, SiteOrders
from tiny_net import TinyNet

recipe = FedAvgRecipe(
    name="stock", model=TinyNet(), min_clients=2, num_rounds=3, train_script="fedce_script.py",
    aggregator=FairAggregator("fedce"), params_transfer_type="DIFF", server_expected_format="pytorch",
)
recipe.add_server_output_filter(SiteOrders(), tasks=["train"])
recipe.execute(SimEnv(clients=["site-1", "site-2"], workspace_root=sys.argv[1]))
"""
SCRIPT = """
import nvflare.client as flare
import torch
from tiny_net import TinyNet

flare.init()
site = int(flare.get_site_name()[-1])
net, own = TinyNet(), {{}}

def score(network):
    return float(torch.sigmoid(network[0].bias.detach().mean()))

def train(network):
    with torch.no_grad():
        network[0].bias += torch.tensor([0.1, 0.1 * site])

while flare.is_running():
    received = flare.receive()
    net.load_state_dict(received.params)
{snippet}
    print("HEARD", site, received.current_round, orders, flush=True)
    flare.send(flare.FLModel(params=net.state_dict(), meta={{"n_examples": 10, "scalars": scalars}}))
"""


@pytest.mark.flare
def test_fedce_in_flare_s_recipe_with_the_lines_of_the_page(tmp_path):
    """Each site is sent the weight that the server's log gives it, and is asked for its error without its own model."""
    shutil.copy(HERE / "tiny_net.py", tmp_path)
    page = (STOCK.parents[1] / "docs" / "stock_recipe.md").read_text()
    (snippet,) = re.findall(r"```python\n(orders, scalars = .*?)```", page, re.S)
    (tmp_path / "fedce_script.py").write_text(SCRIPT.format(snippet=textwrap.indent(snippet, "    ")))
    (tmp_path / "job.py").write_text(DOOR)
    workspace = tmp_path / "ws" / "stock"
    status, said = attempt([sys.executable, "job.py", tmp_path / "ws"], workspace, cwd=tmp_path)
    assert status == 0, said[-2000:]
    log = (workspace / "server" / "log.txt").read_text()
    told = [json.loads(w.replace("'", '"')) for w in re.findall(r"round \d weights: (\{.*\})", log)]
    assert len(told) == 3 and "weighs without" not in log and "left out" not in log
    for site in (1, 2):
        heard = re.findall(
            rf"HEARD {site} (\d) (\{{.*?\}})", said + (workspace / f"site-{site}" / "log.txt").read_text()
        )
        orders = {int(round): json.loads(one.replace("'", '"')) for round, one in heard}
        assert orders[0] == {} and len(orders) == 3
        for round in (1, 2):
            assert orders[round] == {"coefficient": pytest.approx(told[round - 1][f"site-{site}"])}
