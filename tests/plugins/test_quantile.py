# SPDX-License-Identifier: Apache-2.0
"""An exchange of a plugin: asked after the last round, checked like any other, and carried by the jobs that name it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.manifest import read_manifest
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.exchanges import base
from fairflare.engine.files import read_model
from fairflare.engine.memory import AskedAgain
from fairflare.engine.setup.assembly import build_site, leaves, site_names
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.site_policy import Policy

LAST = Round(2, 2)


@pytest.fixture(scope="module")
def config(plugin):
    return make_config("fedavg", "heart", rounds=2, values={"exchanges": "quantile"})


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantile")
    run_local(config, folder)
    return folder


def risks_of(config, model):
    """Site -> the model's risks of its test patients."""
    parts, found = build_parts(config), {}
    for name in site_names(config):
        site = build_site(config, parts, name)
        _, site.data = site.look()
        site.network.load_state_dict(model)
        found[name] = softmax(site.predict("test")[0].double().numpy(), axis=1)[:, 1]
    return found


def test_the_quantile_is_that_of_all_patients_within_a_bin(run, config, plugin):
    (entry,) = [one for one in verify(run / "audit.jsonl") if one["event"] == "exchange"]
    risks = risks_of(config, read_model(run / "model.safetensors"))
    told = {site: one for site, one in risks.items() if len(one) >= plugin.Quantile.least}
    assert entry["rejected"] == {} and {s for s, one in entry["sites"].items() if one} == set(told) and len(told) > 1
    wide = max(
        np.diff([0.0, *(plugin.EDGES[int(k[5:])] for k in one if k != "n"), 1.0]).max()
        for one in entry["sites"].values()
        if one
    )
    assert entry["value"] == pytest.approx(np.quantile(np.concatenate(list(told.values())), 0.5), abs=wide)


def test_no_two_counts_of_a_site_differ_by_few(run, plugin):
    (entry,) = [one for one in verify(run / "audit.jsonl") if one["event"] == "exchange"]
    for one in filter(None, entry["sites"].values()):
        counts = np.array([0.0, *sorted(one.values())])
        assert (np.diff(counts) >= plugin.Quantile.least).all()
    assert plugin.released(np.full(50, 0.3), 20) == {"n": 50.0}


def ask(site, model, task="risks", round=LAST):
    return site.handle(Instruction(task, round, model))


def test_a_site_answers_once_of_one_model_after_the_last_round(config):
    parts = build_parts(config)
    site = build_site(config, parts, "VA")
    first = ask(site, parts.model)
    assert first.reports["n"] == site.data.size("test") and ask(site, parts.model).reports == first.reports
    with pytest.raises(AskedAgain):
        ask(site, {key: value + 1 for key, value in parts.model.items()})
    with pytest.raises(AskedAgain):
        ask(build_site(config, parts, "VA"), parts.model, round=Round(1, 2))


def test_only_declared_numbers_leave_in_its_own_exchange(config):
    egress = leaves(config, build_parts(config), 10)
    good = Answer("VA", 2, reports={"n": 40.0, "below3": 20.0})
    egress.check("risks", good)
    for task, wrong in (("risks", {"age": 71.0}), ("risks", {"n": -1.0}), ("risks", [1.0]), ("evaluate", good.reports)):
        with pytest.raises(EgressRefused):
            egress.check(task, dataclasses.replace(good, reports=wrong))
    plain = make_config("fedavg", "heart", rounds=2)
    with pytest.raises(EgressRefused):
        leaves(plain, build_parts(plain), 10).check("risks", good)
    with pytest.raises(ValueError, match="unknown task 'risks'"):
        ask(build_site(plain, build_parts(plain), "VA"), build_parts(plain).model)


def test_a_configuration_names_it_and_a_hospital_may_refuse_it(config):
    assert RunConfig.from_json(config.to_json()) == config and config.exchanges == ["quantile"]
    assert "exchanges" not in make_config("fedavg", "heart").to_json()
    with pytest.raises(UserError, match="exchange"):
        make_config("fedavg", "heart", values={"exchanges": "median"})
    Policy(after=["quantile"]).check(config)
    with pytest.raises(UserError, match="exchanges: expected some of solo"):
        Policy(after=["solo"]).check(config)


def test_it_takes_no_name_or_task_of_the_package_s(plugin):
    for id, tasks in (("benefit", ("risks",)), ("another", ("train",)), ("another", ("risks",)), ("another", ())):
        with pytest.raises(UserError):
            base.exchange(id)(type("Own", (plugin.Quantile,), {"tasks": tasks}))


def test_a_job_carries_it_and_filters_its_answers(config, tmp_path):
    FairRecipe(config, name="job", simulation=False).export(str(tmp_path))
    app = tmp_path / "job" / "app_sites"
    assert "fairflare/aggregators/quantile.py" in read_manifest(app)["files"]
    text = (app / "config" / "config_fed_client.json").read_text()
    assert text.count('"risks"') == 2, "the executor's tasks, and the filter's"
    assert Path(__file__).with_name("quantile.py").read_text().count("\n") <= 120
