# SPDX-License-Identifier: Apache-2.0
"""A site's own ``privacy.json``: FLARE's percentile and SVT filters change what leaves, and training goes on.

FLARE's simulator reads that file at a site and does not apply it. So the quick tests do a site's part of a task with
FLARE's own functions, in this process, and one test looks at the processes of a federation.
"""

import json
from argparse import Namespace
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federation_processes import ROOT
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client.client_json_config import ClientJsonConfigurator
from nvflare.private.fed.utils.fed_utils import create_job_processing_context_properties, nvflare_fobs_initialize
from nvflare.private.privacy_manager import PrivacyService, Scope

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.setup.assembly import build_federation, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.egress import META, EgressFilter
from fairflare.flare.executor import TASKS
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.wire import ERROR_HEADER, answer_from_model, instruction_to_model

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
JOB = "13d573f0-7da8-47d2-9a5c-a8bd26c996a9"
ROUNDS = 6
SITES = [f"site-{k}" for k in range(1, 5)]
"""Of support2."""


def policy(name, **arguments):
    """A ``privacy.json`` with one filter of FLARE's."""
    scope = {"name": "own", "properties": {}, "task_result_filters": [{"name": name, "args": arguments}]}
    return json.dumps({"scopes": [scope], "default_scope": "own"})


POLICIES = {
    "none": None,
    # Clips at 0.01 and drops the smallest tenth: FLARE's defaults.
    "percentile": (ROOT / "poc_workspace" / "local" / "privacy.json").read_text(),
    # Differences of this task have a median size of 0.015 and reach 0.1: gamma lets them through, and the Laplace noise
    # on a sent entry has the scale 2 gamma / noise_var = 0.006. That is a budget of 10 per entry, so 15,690 per round.
    "svt": policy("SVTPrivacy", fraction=0.5, gamma=0.03, noise_var=10),
    # Clips at 1e-5 and adds noise of the scale 2e-4 to a tenth of the entries: 20 times what is left of the difference.
    "svt defaults": policy("SVTPrivacy"),
}


class Site:
    """A site's job process as far as a task goes: its workspace with its policy, what the job configures, a context."""

    def __init__(self, name, root, job, privacy):
        workspace = Workspace(str(made_workspace(root / name, privacy)), name)
        self.job = configured(job, workspace)
        PrivacyService.initialize(create_privacy_manager(workspace, names_only=False))
        private = create_job_processing_context_properties(workspace, JOB)
        PrivacyService.initialize(None)
        engine = SimpleNamespace(get_workspace=lambda: workspace, fire_event=lambda *_: None)
        self.contexts = FLContextManager(engine, name, JOB, public_stickers={}, private_stickers=private)

    def execute(self, task, shareable):
        """The executor's result, and what leaves: the site's filters look at it first, then the job's."""
        with self.contexts.new_context() as context:
            context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
            result = self.job.task_router.route(task).execute(task, shareable, context, Signal())
            filters = (Scope.TASK_RESULT_FILTERS_NAME, carried(result), context, self.job.task_result_filters)
            return result, apply_filters(*filters, task, FilterKey.OUT)


def made_workspace(root, privacy):
    for folder in ("startup", "local", JOB):
        (root / folder).mkdir(parents=True)
    (root / JOB / "meta.json").write_text("{}")
    if privacy:
        (root / "local" / "privacy.json").write_text(privacy)
    return root


def configured(job, workspace):
    """What FLARE makes of the job's configuration at a site."""
    named = {"client_name": workspace.site_name, "job_id": JOB, "workspace": workspace.get_root_dir()}
    arguments = Namespace(set=[], sp_scheme="grpc", sp_target="localhost", **named)
    file = job / "app_sites" / "config" / "config_fed_client.json"
    reader = ClientJsonConfigurator(workspace, str(file), arguments, str(job / "app_sites"), kv_list=[])
    reader.configure()
    return reader.runner_config


def carried(shareable):
    """What arrives of it at the other end."""
    return fobs.loads(fobs.dumps(shareable))


@dataclass
class Way:
    """A federation's transport through FLARE's filters; ``updates`` holds each as it was made and as it arrived."""

    places: dict
    updates: list = field(default_factory=list)
    sent: dict = field(default_factory=dict)
    meta: set = field(default_factory=set)

    def sites(self):
        return sorted(self.places)

    def exchange(self, instructions):
        for name, one in sorted(instructions.items()):
            asked = carried(FLModelUtils.to_shareable(instruction_to_model(one)))
            made, left = self.places[name].execute(one.task, asked)
            arrived = carried(left)
            code = arrived.get_return_code()
            if code not in (None, ReturnCode.OK):
                yield Answer(site=name, error=f"{code} {arrived.get_header(ERROR_HEADER, '')}")
                continue
            model = FLModelUtils.from_shareable(arrived)
            if one.task == "train":
                self.sent = one.model
                self.updates.append((FLModelUtils.from_shareable(made).params, model.params))
                self.meta |= set(from_shareable(arrived).meta)
            model.meta["client_name"] = name
            yield answer_from_model(model)


@dataclass(frozen=True)
class Run:
    """What a federation of four sites with one policy left behind."""

    way: Way
    entries: list

    @property
    def rounds(self):
        return [entry for entry in self.entries if entry["event"] == "round"]


def federate(privacy, method="fedavg", task="support2", rounds=ROUNDS, **values):
    config = make_config(method, task, rounds=rounds, values=values)
    nvflare_fobs_initialize()
    with TemporaryDirectory() as folder:
        root = Path(folder)
        FairRecipe(config, name=JOB).export(folder)
        way = Way({name: Site(name, root, root / JOB, privacy) for name in site_names(config)})
        parts = build_parts(config)
        build_federation(config, parts, way, root, "flare").run(parts.model)
        return Run(way, verify(root / "audit.jsonl"))


@cache
def run(name):
    return federate(POLICIES[name])


def scores(entries):
    """Loss and mean AUC on the sites' validation splits, of the untrained and of the final model."""
    before = next(e for e in entries if e["event"] == "round")["accepted"]
    after = next(e for e in entries if e["event"] == "evaluation")["sites"]
    sizes = [after[site]["n"]["val"] for site in SITES]
    for told in ({s: before[s]["metrics"] for s in SITES}, {s: after[s]["val"] for s in SITES}):
        losses, aucs = ([told[site][key] for site in SITES] for key in ("loss", "auc"))
        yield float(np.average(losses, weights=sizes)), float(np.mean(aucs))


def flat(update):
    return torch.cat([torch.as_tensor(update[key]).double().flatten() for key in sorted(update)])


def cosines(way):
    pairs = [(flat(made), flat(arrived)) for made, arrived in way.updates]
    return [float(torch.nn.functional.cosine_similarity(*pair, dim=0)) for pair in pairs]


@pytest.mark.flare
def test_the_jobs_own_filter_looks_at_every_task():
    """FLARE takes a filter's task names as they are: "*" would be the name of a task that there is not."""
    for site in run("none").way.places.values():
        filters = {task: list(map(type, chain)) for task, chain in site.job.task_result_filters.items()}
        assert filters == {f"{task}{FilterKey.DELIMITER}{FilterKey.OUT}": [EgressFilter] for task in TASKS}


@pytest.mark.flare
@pytest.mark.parametrize("name", ["percentile", "svt"])
def test_every_site_is_accepted_and_training_goes_on(name):
    assert [set(entry["accepted"]) for entry in run(name).rounds] == [set(SITES)] * ROUNDS
    assert not any(entry["rejected"] for entry in run(name).rounds)
    assert run(name).entries[-1]["status"] == "completed"
    check_training(run(name).entries, run("none").entries)


@pytest.mark.flare
@pytest.mark.parametrize("name", ["percentile", "svt"])
def test_with_secure_sums_filters_see_the_update_before_the_mask(name):
    """A clipped mask would not cancel."""
    plain, filtered = (federate(POLICIES[p], "fedism-plus", secure_sum="masks") for p in ("none", name))
    assert [set(entry["accepted"]) for entry in filtered.rounds] == [set(SITES)] * ROUNDS
    assert not any(entry["rejected"] or entry["weights"] for entry in filtered.rounds)
    assert filtered.entries[-1]["model_sha256"] != plain.entries[-1]["model_sha256"]
    final = [next(e for e in run.entries if e["event"] == "evaluation")["sites"] for run in (plain, filtered)]
    best, auc = (np.mean([told[site]["val"]["auc"] for site in SITES]) for told in final)
    assert auc > best - 0.08 and auc > 0.6  # SVT's noise differs from run to run: 0.052 below was seen once


def check_training(entries, unfiltered):
    """Measured: untrained 0.685, AUC 0.38; trained 0.525, 0.681; percentile 0.524, 0.683; SVT, whose noise differs from
    run to run, 0.520 to 0.526 and 0.664 to 0.689 in twenty runs."""
    (untrained, _), (loss, auc) = scores(entries)
    (same, _), (best_loss, best_auc) = scores(unfiltered)
    assert untrained == pytest.approx(same, abs=1e-6)
    assert loss < best_loss + 0.02 and auc > best_auc - 0.04
    assert loss < untrained - 0.12 and auc > 0.6
    assert entries[-1]["model_sha256"] != unfiltered[-1]["model_sha256"]


@pytest.mark.flare
def test_percentile_clips_and_drops():
    for made, arrived in run("percentile").way.updates:
        before, after = flat(made), flat(arrived)
        assert before.abs().max() > 0.02 and after.abs().max() == pytest.approx(0.01)
        assert float((after == 0).double().mean()) == pytest.approx(0.1, abs=0.001)
        assert before[after == 0].abs().max() <= before[after != 0].abs().min()
    assert all(0.7 < cosine < 0.99 for cosine in cosines(run("percentile").way))


@pytest.mark.flare
def test_svt_sends_some_entries_with_noise_as_numpy_arrays():
    for made, arrived in run("svt").way.updates:
        assert {type(value) for value in arrived.values()} == {np.ndarray}
        assert {type(value) for value in made.values()} == {torch.Tensor}
        assert 0.2 < float((flat(arrived) != 0).double().mean()) < 0.5, "it draws half of the entries, with replacement"
    assert all(0.4 < cosine < 0.65 for cosine in cosines(run("svt").way))


@pytest.mark.flare
def test_with_flares_defaults_svt_sends_noise_and_nothing_is_learned():
    """No fault of the transport: each site is accepted, and what arrives has nothing to do with what was learned."""
    assert not any(entry["rejected"] for entry in run("svt defaults").rounds)
    assert all(abs(cosine) < 0.15 for cosine in cosines(run("svt defaults").way))
    (untrained, _), (loss, _) = scores(run("svt defaults").entries)
    assert loss == pytest.approx(untrained, abs=0.01)


@pytest.mark.flare
@pytest.mark.parametrize("name", ["percentile", "svt"])
def test_what_filters_note_stays_at_the_site(name):
    noted = set(passed(name, DataKind.WEIGHT_DIFF, run("none").way.updates[0][0]).meta)
    assert "filter_history" in noted and not noted & META
    assert run(name).way.meta <= META


@pytest.mark.flare
def test_the_seed_of_a_job_does_not_tell_the_noise():
    """The server knows the seed that each task begins with, and could subtract noise that followed from it."""
    first, second = run("svt").way.updates[0], federate(POLICIES["svt"]).way.updates[0]
    assert torch.equal(flat(first[0]), flat(second[0]))
    assert not torch.equal(flat(first[1]), flat(second[1]))


@pytest.mark.flare
@pytest.mark.parametrize("name", ["percentile", "svt"])
def test_whole_weights_would_not_survive(name):
    """Why sites send differences: the filters do to weights what they do to differences.

    Measured, from a loss of 0.526: 0.523 and 0.525 with differences, 0.689 and 0.688 with weights; log 2 is 0.693.
    """
    way = run("none").way
    base, updates = way.sent, [made for made, _ in way.updates[-len(SITES) :]]
    whole = [{key: base[key] + value for key, value in update.items()} for update in updates]
    as_differences = added(base, mean([filtered(name, DataKind.WEIGHT_DIFF, update) for update in updates]))
    as_weights = mean([filtered(name, DataKind.WEIGHTS, weights) for weights in whole])
    before, good, bad = (validation_loss(way, model) for model in (base, as_differences, as_weights))
    assert abs(good - before) < 0.02 and bad > before + 0.12, (before, good, bad)


def filtered(name, kind, tensors):
    return {key: torch.as_tensor(value) for key, value in passed(name, kind, tensors).data.items()}


def passed(name, kind, tensors):
    """A result after the site's own filters alone."""
    with run(name).way.places["site-1"].contexts.new_context() as context:
        result = DXO(kind, {key: value.clone() for key, value in tensors.items()}).to_shareable()
        asked = (Scope.TASK_RESULT_FILTERS_NAME, result, context, {}, "train", FilterKey.OUT)
        return from_shareable(apply_filters(*asked))


def mean(updates):
    return {key: torch.stack([update[key] for update in updates]).mean(0) for key in updates[0]}


def added(base, update):
    return {key: base[key] + value for key, value in update.items()}


def validation_loss(way, model):
    asked = {site: Instruction("evaluate", Round(ROUNDS, ROUNDS), model) for site in SITES}
    metrics = [answer.metrics for answer in way.exchange(asked)]
    return float(np.average([m["val"]["loss"] for m in metrics], weights=[m["n"]["val"] for m in metrics]))
