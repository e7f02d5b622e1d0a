# SPDX-License-Identifier: Apache-2.0
"""Methods are compared under one objective: local training is the task's, whatever the method, unless it is asked for.

FedISM's radius is constant and half of the one that FedISM+ grows to (the papers: 0.05 and 0.1), in every preset.
"""

import json
import re
from pathlib import Path

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.studies.study import arms
from fairflare.tasks.base import Preset

OWN = {"site_names": "A,B,C", "datalists": "."}
NEEDED = {"tabular": {"features": "x,y"}, "fundus": {}}
CASES = [f"{name}:{preset}" for name, cls in tasks.every().items() for preset in cls.presets]


def _config(method, case, **values):
    cls = tasks.every()[case.partition(":")[0]]
    needed = NEEDED.get(cls.name, {}) | (OWN if "datalists" in registry.parameters(cls) else {})
    return make_config(method, case, values=needed | values)


def _possible(case, **values):
    """The configurations of the methods that the task can have."""
    found = {}
    for method in registry.methods():
        try:
            found[method] = _config(method, case, **values)
        except UserError as error:
            assert re.search("needs|expected|expects", str(error)), error
    return found


@each("case", CASES)
def test_every_method_trains_as_the_preset_says(case):
    name, _, preset = case.partition(":")
    found = _possible(case)
    assert {"fedavg", "fedism", "fedism-plus"} <= set(found)
    training = found["fedavg"].training
    assert training == tasks.every()[name].presets[preset].training
    for method, config in found.items():
        assert config.training == training, method
        model = registry.get_trainer(config.trainer).model  # what some need, whatever the task's own network is
        options = found["fedavg"].options | ({"model": model} if model else {})
        assert config.options == options and config.group_by == found["fedavg"].group_by


@each("case", CASES)
def test_fedism_keeps_half_of_the_radius(case):
    one, plus = _config("fedism", case).settings, _config("fedism-plus", case).settings
    for owner in ("trainer", "probe.sharpness"):
        assert one[f"{owner}.rho_max"] == plus[f"{owner}.rho_max"] / 2
        assert (one[f"{owner}.rho_tau"], plus[f"{owner}.rho_tau"]) == (0.0, 0.5)
    reference = _config("fedism", case, variant="reference").settings
    assert reference["trainer.rho_max"] == one["trainer.rho_max"]
    assert reference["probe.sharpness.probe_transform"] == "train"


def test_a_reference_client_trains_otherwise_only_when_asked_for():
    plain, asked = _config("fedlwr", "brain-seg:small"), _config("fedlwr", "brain-seg:small", variant="reference")
    assert (plain.training.keep_optimizer, asked.training.keep_optimizer) == (False, True)
    user = _config("fedlwr", "brain-seg:small", variant="reference", keep_optimizer=False)
    assert user.training.keep_optimizer is False


@pytest.mark.parametrize("key", ["logit_tau", "lr", "epochs", "keep_optimizer"])
def test_no_method_and_no_preset_can_set_training(key):
    with pytest.raises(ValueError, match=f"{key}: is the task's training"):
        registry.method("other", title="O", summary="", paper=None, settings={key: 1})(object)
    for settings in ({"settings": {key: 1}}, {"by_method": {"fedism": {key: 1}}}):
        with pytest.raises(ValueError, match=key):
            Preset("p", {}, Training(), **settings)


def _compare(capsys, folder, *methods):
    command = ["compare", *methods, "--task", "support2", "--rounds", "1", "--set", "model=linear", "--out"]
    with pytest.raises(SystemExit) as ended:
        main([*command, str(folder), "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out), (Path(folder) / "compare.html").read_text()


def test_the_promised_comparison_trains_one_objective(capsys, tmp_path):
    found, page = _compare(capsys, tmp_path / "c", "fedavg", "fedism-plus")
    one, other = (method["training"] for method in found["methods"])
    assert one == other and one["logit_tau"] == 0
    assert [method["objective"] for method in found["methods"]] == [{}, {}]
    assert "Trained with" not in page and page.count("at the worst site:") == 1


def test_another_objective_is_shown_and_wins_nothing(capsys, tmp_path):
    found, page = _compare(capsys, tmp_path / "c", "fedavg", "fedism-plus:logit_tau=1")
    assert [method["objective"] for method in found["methods"]] == [{"logit_tau": 0.0}, {"logit_tau": 1.0}]
    assert "Trained with" in page and "logit_tau=1.0" in page
    assert "none is named best of all" in page and "The best" not in page and "1/1 better" not in page
    assert "0/1 better" not in page and "under another objective (logit_tau=1.0)" in page


def test_arms_of_a_seed_share_the_data_and_seeds_do_not():
    found = arms(["fedavg", "fedism-plus:q=1"], "ich-phantom:small", [0, 1])
    seeds = {name: config.options["data_seed"] for name, config in found}
    assert seeds["fedavg-seed0"] == seeds["fedism-plus-q=1-seed0"] != seeds["fedavg-seed1"]
    assert seeds["fedavg-seed1"] == seeds["fedism-plus-q=1-seed1"]
    assert [config.seed for _, config in found] == [0, 1, 0, 1]


@pytest.mark.parametrize("keywords, expected", [({"fixed_data": True}, 2024), ({"values": {"data_seed": "7"}}, 7)])
def test_data_can_be_kept(keywords, expected):
    found = arms(["fedavg"], "support2:dirichlet", [0, 1], **keywords)
    assert [config.options["data_seed"] for _, config in found] == [expected, expected]


@pytest.mark.parametrize(
    "label, key",
    [("fedism:data_seed=3", "data_seed"), ("fedism:alpha=3", "alpha"), ("fedism:group_by=sex", "group_by")],
)
def test_a_method_with_data_of_its_own_is_refused_before_anything_runs(label, key):
    with pytest.raises(UserError, match=f"^{key}: expected the same for all methods"):
        arms(["fedavg", label], "support2:dirichlet", [0])


@each("case", CASES)
def test_every_task_says_what_its_data_seed_draws(case):
    name, _, preset = case.partition(":")
    task = tasks.load(name, preset)
    assert bool(task.drawn()) == ("data_seed" in registry.parameters(type(task)))
    assert set(task.drawn()) <= {"partition", "split", "rendering", "split where the data leave it open"}


def test_natural_sites_are_not_drawn():
    assert tasks.load("support2").drawn() == ("split",)
    assert tasks.load("support2", "dirichlet").drawn() == ("partition", "split")
    one, two = (tasks.load("support2", data_seed=seed) for seed in (1, 2))
    for site in one.sites():
        rows = [{i for part in task.rows(site).values() for i in part.tolist()} for task in (one, two)]
        assert rows[0] == rows[1]
        assert set(one.rows(site)["test"].tolist()) != set(two.rows(site)["test"].tolist())
