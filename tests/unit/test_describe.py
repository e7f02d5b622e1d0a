# SPDX-License-Identifier: Apache-2.0
"""`fairflare describe`: every setting is found, with default, range and meaning."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from cases import each
from fairflare.cli.main import cli
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RUN_KEYS, make_config
from fairflare.studies.describe import ONE_OF_KIND, OWNERS, about, all_settings, allowed, key_settings


def test_every_setting_says_what_it_means() -> None:
    rows = all_settings()
    # A plugin that another test loaded may say less.
    own = [row for row in rows if (row["full"], row["of"]) not in _of_plugins()]
    assert [row["full"] for row in own if not row["meaning"] or not row["allowed"]] == []
    assert {row["full"] for row in rows} >= {f"run.{key}" for key in RUN_KEYS}
    probes = {row["owner"] for row in rows if row["owner"].startswith("probe.")}
    assert probes <= {f"probe.{id}" for id in registry.parts("probe")}
    assert {row["owner"].partition(".")[0] for row in rows} <= set(OWNERS)


def _of_plugins() -> set[tuple[str, str]]:
    """Full name and part of every setting that this package does not declare."""
    others = [
        (kind, id, part)
        for kind in registry.BASES
        for id, part in registry.parts(kind).items()
        if not part.__module__.startswith("fairflare.")
    ]
    return {
        (f"{ONE_OF_KIND.get(kind, f'probe.{id}')}.{field.name}", f"{kind} {id}")
        for kind, id, part in others
        for field in dataclasses.fields(part)
    }


@each("method", sorted(registry.methods()))
def test_a_methods_defaults_are_those_of_its_runs(method: str) -> None:
    config = make_config(method, "heart" if method != "fedce" else "brain-seg", values={})
    for row in about(method)["settings"]:
        for full in row["sets"]:
            if full not in registry.get_method(method).settings and full in config.settings:
                assert row["default"] in (config.settings[full], *_preset(config, full)), full


def _preset(config, full: str) -> list:
    """What the task's preset gives the method instead."""
    preset = tasks.known(config.task).presets[config.preset]
    given = {**preset.settings, **preset.by_method.get(config.method, {})}
    return [row for key, row in given.items() if key in (full, full.rpartition(".")[2])]


@each("name", [*tasks.every(), "heart:full", "rule", "probe.sharpness", "train", "run", "after", "lr"])
def test_everything_can_be_described(name: str) -> None:
    result = CliRunner().invoke(cli, ["describe", name, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["settings"] and found["title"]
    assert CliRunner().invoke(cli, ["describe", name]).exit_code == 0


def test_a_name_of_several_settings_is_listed_with_each() -> None:
    assert {row["of"] for row in key_settings("mu")} >= {"trainer fedprox", "trainer moon", "rule shapfed"}


def test_a_name_that_nothing_has_is_answered_with_what_is_close() -> None:
    with pytest.raises(UserError, match="did you mean rho_max"):
        about("rhomax")
    with pytest.raises(UserError, match="did you mean fedism-plus"):
        about("fedism-plu")


def test_a_name_like_nothing_is_answered_with_where_names_stand() -> None:
    with pytest.raises(UserError) as caught:
        about("nosuch")
    said = str(caught.value)
    assert "'nosuch'" in said and "fairflare list" in said and "trainer" in said and len(said) < 450


def test_types_are_put_in_words() -> None:
    assert allowed(bool) == "true or false"
    assert allowed(int | None) == "whole number or none"
