# SPDX-License-Identifier: Apache-2.0
"""Parts in place of a method's own: whose rule, whose trainer, and whose settings."""

import pytest

from fairflare.cli.main import main
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.registry import method
from fairflare.engine.setup.config import RunConfig, chosen_parts, composed_title, make_config
from fairflare.studies.labels import on_grid
from fairflare.studies.runs import default_folder
from fairflare.studies.study import arms

TASK = "support2:dirichlet"


def config(method, **values):
    return make_config(method, TASK, values=values)


@pytest.fixture(autouse=True, scope="module")
def lender():
    """A method that sets its trainer, its rule and its server optimizer."""
    registry.methods()
    settings = {"trainer.mu": 0.5, "rule.weighting": "uniform", "server.lr": 0.25}
    parts = {"rule": "fedavg", "trainer": "fedprox", "server_optimizer": "adam"}
    method(
        "lender", title="L", summary="A test.", paper=registry.get_method("fedavg").paper, settings=settings, **parts
    )
    yield
    del registry._methods["lender"]


def test_the_rule_of_another_method_is_that_method_with_this_trainer():
    one, other = config("fedprox", rule="fedheal", mu=0.5), config("fedheal", trainer="fedprox", mu=0.5)
    assert one == other and (one.method, one.trainer) == ("fedheal", "fedprox")
    assert one.settings["trainer.mu"] == 0.5 and "rule.tau" in one.settings
    assert RunConfig.from_json(one.to_json()) == one


def test_the_method_s_own_rule_changes_nothing():
    assert config("fedprox", rule="fedavg") == config("fedprox") == config("fedprox", **{"run.rule": "fedavg"})


def test_parts_bring_the_settings_that_their_method_gives_them():
    lent = config("fedheal", trainer="lender")
    assert lent.trainer == "fedprox" and lent.settings["trainer.mu"] == 0.5 and lent.server_optimizer == "none"
    under = config("lender", rule="fedheal").settings
    assert (under["trainer.mu"], under["server.lr"]) == (0.5, 0.25) and "rule.weighting" not in under
    assert config("lender", rule="fedheal", trainer="sgd").settings.keys() >= {"server.lr"}
    assert config("lender", rule="fedheal", server_optimizer="yogi").settings["server.lr"] != 0.25
    assert config("lender", rule="fedheal", mu=2).settings["trainer.mu"] == 2


def test_probes_are_those_of_the_rule_s_method():
    found = chosen_parts("fedprox", [{"rule": "fedce"}])
    assert found.method.id == "fedce" and found.method.probes and found.ids["trainer"] == "fedprox"


@pytest.mark.parametrize(
    "values, reason",
    [
        ({"rule": "nosuch"}, "unknown rule 'nosuch'"),
        ({"trainer": "nosuch"}, "unknown trainer 'nosuch'"),
        ({"rule": "fedheal", "run.rule": "fedce"}, "run.rule: is given twice"),
        ({"rule": "fedufo"}, "rule fedufo: expected a trainer that heeds"),
    ],
)
def test_mistakes_are_one_line(values, reason):
    with pytest.raises(UserError, match=f"^{reason}"):
        config("fedprox", **values)


def test_a_rule_that_no_method_has(monkeypatch):
    monkeypatch.setitem(registry._parts["rule"], "lonely", registry.get_rule("fedavg"))
    with pytest.raises(UserError, match="^rule lonely: expected a rule that a method has"):
        config("fedprox", rule="lonely")


def test_titles_and_folders_name_what_is_not_the_method_s_own():
    composed = config("fedheal", trainer="fedprox", server_optimizer="adam")
    assert (
        composed_title(registry.get_method("fedheal"), composed.parts)
        == "FedHEAL, trainer fedprox, server optimizer adam"
    )
    assert default_folder(composed).name == "fedheal+fedprox+adam-support2-dirichlet-seed0"
    assert default_folder(config("fedheal")).name == "fedheal-support2-dirichlet-seed0"


def test_arms_and_grids_take_parts():
    found = dict(arms(["fedavg", "fedprox:rule=fedheal"], TASK, [0]))
    assert [(c.method, c.trainer) for c in found.values()] == [("fedavg", "sgd"), ("fedheal", "fedprox")]
    assert on_grid(("fedavg", "fedavg:trainer=fedprox"), ("mu=0,1",))[1:] == [
        f"fedavg:trainer=fedprox,mu={mu}" for mu in (0, 1)
    ]


def test_the_options_of_the_command_line(tmp_path, capsys):
    options = ["--trainer", "fedprox", "--server-optimizer", "adam", "--selector", "share"]
    with pytest.raises(SystemExit) as end:
        main(["export", "fedheal", "--task", TASK, *options, "--out", str(tmp_path / "job")])
    assert not end.value.code, capsys.readouterr().err
    text = (tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text()
    assert all(f'"{id}"' in text for id in ("fedheal", "fedprox", "adam", "share"))
    with pytest.raises(SystemExit) as end:
        main(["run", "solo", "--task", TASK, "--rule", "nosuch"])
    assert end.value.code == 2 and "unknown rule 'nosuch'" in capsys.readouterr().err
