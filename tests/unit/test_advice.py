# SPDX-License-Identifier: Apache-2.0
"""Advice: signs are what the log has, the model is FedAvg's, and what is said follows from the signs."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from command_line import call
from fairflare import Federation
from fairflare.cli.main import cli
from fairflare.core.errors import UserError
from fairflare.engine.files import AUDIT, MODEL
from fairflare.report.advice import GROUPS, NOTHING, OWN, RATES, TRY, Signs, advice_on, advised, signs_of

CALM = Signs("a", 0.05, "g", 0.02, 0.9, 0.99)


RUN = ("run", "fedavg", "--task", "heart", "--rounds", "6", "--no-solo", "--json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with FedAvg on the real table, with advice and without, and what the command printed."""
    folder, found = tmp_path_factory.mktemp("advice"), {}
    for name, flags in {"plain": (), "advised": ("--advise",)}.items():
        done = CliRunner().invoke(cli, [*RUN, *flags, "--out", str(folder / name)])
        assert done.exit_code == 0, done.output
        found[name] = json.loads(done.stdout)
    return folder, found


def test_the_model_is_fedavg_s(runs):
    folder, _ = runs
    assert (folder / "plain" / MODEL).read_bytes() == (folder / "advised" / MODEL).read_bytes()


def test_signs_are_the_means_of_the_log(runs):
    folder, _ = runs
    found = signs_of(folder / "advised")
    lines = [json.loads(line) for line in (folder / "advised" / AUDIT).read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    last = [line["accepted"] for line in rounds[1:]]
    loss = {site: sum(one[site]["scalars"]["loss"] for one in last) / 5 for site in last[0]}
    n = {site: one["n_examples"] for site, one in last[0].items()}
    mean = sum(loss[site] * n[site] for site in n) / sum(n.values())
    assert found.site == max(loss, key=loss.get) and found.site_gap == pytest.approx(max(loss.values()) / mean - 1)
    agreement = {site: sum(one["notes"]["agreement"][site] for one in rounds[:5]) / 5 for site in n}
    assert found.agreement == pytest.approx(min(agreement.values())) and -1 <= found.agreement < 1
    named, per = f"group_loss/{found.group}", f"group_count/{found.group}"
    cells = [one["scalars"] for each in last for one in each.values() if named in one["scalars"]]
    group = sum(one[named] * one[per] for one in cells) / sum(one[per] for one in cells)
    assert found.group_gap == pytest.approx(group / mean - 1)
    alike = {site: sum(one[site]["scalars"]["similarity/head"] for one in last) / 5 for site in n}
    assert found.similarity == pytest.approx(min(alike.values()))


def test_command_and_python_say_the_same(runs):
    folder, found = runs
    advice = found["advised"]["advice"]
    assert advice == Federation.open(folder / "advised").advice and advice["try"] in TRY
    assert "advice" not in found["plain"]


def test_only_fedavg_is_advised_on(runs, tmp_path, capsys):
    folder, _ = runs
    with pytest.raises(UserError, match="method signs"):
        signs_of(folder / "plain")
    code, _, said = call(capsys, "run", "ditto", "--task", "heart", "--advise", "--out", tmp_path / "x")
    assert code and "--advise: expected METHOD fedavg, got ditto" in said


def test_each_sign_is_heeded_and_nothing_to_gain_is_an_advice():
    assert advised(CALM) == NOTHING
    assert advised(replace(CALM, agreement=-0.31)) == advised(replace(CALM, site_gap=0.51)) == OWN
    assert advised(replace(CALM, group_gap=0.09)) == GROUPS
    said = advice_on(CALM)
    right, n, *_ = RATES[NOTHING]
    assert f"{right} of {n} federations of tables" in said["sure"] and "a loses +5%" in said["text"]
