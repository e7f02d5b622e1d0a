# SPDX-License-Identifier: Apache-2.0
"""The registry: parts of five kinds, methods as declarations, plugins from files and from installed packages."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from fairflare.aggregators.fedavg import FedAvg
from fairflare.cli.main import main
from fairflare.core import plugins, registry
from fairflare.core.errors import UserError
from fairflare.core.types import Paper

PAPER = Paper("A", "t", "v", 2026, "https://example.org")
SOURCE = """
from dataclasses import dataclass
from fairflare.core.registry import method
from fairflare.core.types import Paper
from fairflare.trainers.base import PlainTrainer
from fairflare.core.registry import trainer

@trainer("mine")
@dataclass(frozen=True)
class Mine(PlainTrainer):
    mu: float = 0.5

method("mine", title="Mine", summary="s", rule="fedavg", trainer="mine", settings={"mu": 0.25},
       paper=Paper("A", "t", "v", 2026, "https://example.org"))
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    registry.methods()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_parts", {kind: dict(table) for kind, table in registry._parts.items()})
    yield
    registry._whole.discard("mine")
    plugins._done.clear()


def test_there_are_parts_of_five_kinds():
    found = {kind: set(registry.parts(kind)) for kind in registry.BASES}
    assert found["selector"] >= {"all", "share", "list"}
    assert found["server optimizer"] >= {"none", "momentum", "adam", "yogi", "adagrad"}
    assert (
        found["rule"] >= {"fedavg", "fedism"} and found["trainer"] >= {"sgd", "sam"} and "sharpness" in found["probe"]
    )


def test_every_method_names_parts_that_exist():
    for entry in registry.methods().values():
        registry.get_part("selector", entry.selector)
        registry.get_part("server optimizer", entry.server_optimizer)
        assert len(registry.parts_of(entry)) == 2 + len(registry.probes_of(entry))


def test_a_method_of_a_trainer_alone_is_one_declaration(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "mine.py"))
    entry = registry.get_method("mine")
    assert entry.rule == "fedavg" and registry.get_trainer("mine")().mu == 0.5 and entry.settings == {"mu": 0.25}


def test_a_papers_text_is_read_or_refused():
    about = {"title": "Mine", "summary": "s", "rule": "fedavg"}
    registry.method("mine", paper="A et al.: t. v 2026. https://example.org", **about)
    assert registry.get_method("mine").paper == Paper("A et al.", "t", "v", 2026, "https://example.org")
    with pytest.raises(ValueError, match="expected AUTHORS: TITLE"):
        registry.method("other", paper="A et al., 2026", **about)


def test_an_installed_package_is_found_through_its_entry_point(monkeypatch, tmp_path):
    (tmp_path / "a_package_of_mine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("mine", "a_package_of_mine", "fairflare.plugins")
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: (entry,) if group == plugins.GROUP else ())
    assert "mine" in registry.methods()
    sys.modules.pop("a_package_of_mine")


def test_a_package_that_fails_is_named_and_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / "another_of_mine.py").write_text(SOURCE + "raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("broken", "another_of_mine", "fairflare.plugins")
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: (entry,) if group == plugins.GROUP else ())
    with pytest.raises(UserError, match="entry point broken of fairflare.plugins: RuntimeError: no"):
        registry.methods()
    monkeypatch.setattr(plugins, "in_group", lambda group=plugins.GROUP: ())
    assert "mine" not in registry.methods() and "mine" not in registry.trainers()


@pytest.mark.parametrize(
    "declared, message",
    [
        ({}, "expected rule=ID, or a rule's class below"),
        ({"rule": "nosuch"}, "unknown rule 'nosuch'; known: .*fedavg"),
        ({"rule": "fedavg", "selector": "nosuch"}, "unknown selector 'nosuch'; known: all, list, pool, share"),
        ({"rule": "fedavg", "server_optimizer": "sgd"}, "unknown server optimizer 'sgd'; known: adagrad, adam"),
        ({"rule": "fedavg", "settings": {"q": 1}}, "unknown key 'q'; known: weighting"),
        ({"rule": "fedavg", "settings": ["q"]}, "expected mappings"),
        ({"rule": "fedavg", "settings": {"weighting": "some"}}, "weighting: expected one of examples, uniform"),
    ],
)
def test_a_wrong_declaration_is_one_line(declared, message):
    with pytest.raises(UserError, match=f"^method 'mine': {message}"):
        registry.method("mine", title="t", summary="s", paper=PAPER, **declared)
        registry.methods()
    assert "mine" not in registry.methods()


def test_a_class_is_told_by_what_it_derives_from_and_not_by_a_name():
    named = type("Mine", (type("Trainer", (FedAvg,), {}),), {})
    registry.method("mine", title="t", summary="s", paper=PAPER)(named)
    assert registry.get_rule("mine") is named and "mine" not in registry.trainers()


def test_a_declaration_that_names_its_rule_takes_no_class():
    with pytest.raises(UserError, match="expected no class"):
        registry.method("mine", title="t", summary="s", paper=PAPER, rule="fedavg")(object)


def test_ids_are_taken_once():
    with pytest.raises(ValueError, match="method 'fedavg' is registered twice"):
        registry.method("fedavg", title="t", summary="s", paper=PAPER, rule="fedavg")


def test_a_distribution_on_the_path_is_a_plugin(tmp_path):
    """Found as pip leaves it: a module and the entry points in the distribution's metadata."""
    (tmp_path / "a_third_of_mine.py").write_text(SOURCE)
    about = tmp_path / "a_third_of_mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-third-of-mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fairflare.plugins]\nmine = a_third_of_mine\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "fairflare", "list", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    row = next(row for row in json.loads(done.stdout) if row["id"] == "mine")
    assert row["trainer"] == "mine" and row["parameters"]["mu"] == 0.25


def test_list_shows_the_parts(capsys):
    with pytest.raises(SystemExit) as end:
        main(["list", "--parts", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and {row["kind"] for row in rows} == set(registry.BASES)
    assert next(row for row in rows if row["id"] == "yogi")["parameters"]["beta2"] == 0.99
    with pytest.raises(SystemExit):
        main(["list", "--parts"])
    assert "server optimizer yogi" in capsys.readouterr().out
