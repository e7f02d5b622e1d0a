# SPDX-License-Identifier: Apache-2.0
"""Whole runs with a step after the last round: folder, report, secure sums, kills, and the step on a finished run."""

import json
import shutil
from pathlib import Path

import pytest

from fairflare.cli.main import main
from fairflare.engine.files import read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.site import Site
from fairflare.studies.after import take_step
from run_folders import Dies, call, entries_of, put_entries

HEART = ["--task", "heart:full", "--rounds", "2", "--set", "group_by=sex", "--no-solo", "--workers", "1"]
RECALIBRATE = ["--set", "after=recalibrate"]
SITES = ("Cleveland", "Hungary", "Switzerland", "VA")


def run(folder, *chosen, method="fedism"):
    assert call("run", method, *HEART, *chosen, "--out", folder) == 0
    return folder


def kept(folder):
    """Site -> what it keeps, but for the hash of the model."""
    files = {path.name: json.loads(path.read_text()) for path in sorted((folder / "sites").glob("*.after.json"))}
    return {name: {key: value for key, value in one.items() if key != "model"} for name, one in files.items()}


def sections(folder):
    return json.loads((folder / "report.json").read_text())["detail"]["after"]


def lines(folder, event="after"):
    entries = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "plain", *RECALIBRATE)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "bare")


def test_a_run_ends_with_what_came_of_it(plain):
    (section,) = sections(plain)
    assert section["step"] == "recalibrate" and [row["site"] for row in section["rows"]] == list(SITES)
    for row in section["rows"]:
        # Switzerland has one patient without the disease, VA six: fewer than leave in the clear.
        assert row["n_all"] == sum(o["n_calibration"] for o in section["rows"] if o["site"] in ("Cleveland", "Hungary"))
        assert set(row["parameters"]) == {"intercept", "slope"} and row["values"]["own"]["brier"] is not None
    brier = section["summary"]["brier"]
    assert brier["own"]["mean"] < brier["before"]["mean"]
    assert set(kept(plain)) == {f"{site}.after.json" for site in SITES}
    page = (plain / "report.html").read_text()
    assert "Recalibration by site" in page and "whether anyone chose settings by them" in page
    assert call("verify", plain) == 0


def test_such_a_folder_can_be_replaced(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "again")
    run(folder, "--force")
    assert not list((folder / "sites").glob("*.after.json")) and sections(folder) == []


def test_the_model_is_that_of_the_run_without_it(plain, bare):
    assert (plain / "model.safetensors").read_bytes() == (bare / "model.safetensors").read_bytes()
    assert not lines(bare) and sections(bare) == []


def test_secure_sums_fit_the_same_as_exact_ones(tmp_path):
    """Within what masks round of the model; no parameter of a site leaves it, nor any of its sums."""
    unbounded = ("--set", "robust=off")  # under secure sums no bound acts
    secret = run(tmp_path / "secret", *RECALIBRATE, *unbounded, "--set", "secure_sum=masks")
    exact = run(tmp_path / "exact", *RECALIBRATE, *unbounded, "--set", "min_count=1")
    one, other = kept(exact), kept(secret)
    for name in one:
        assert one[name]["own"] == pytest.approx(other[name]["own"], abs=1e-5), name
        assert one[name]["shared"][""] == pytest.approx(other[name]["shared"][""], abs=1e-5)
    for numbers in lines(secret)[-1]["sites"].values():
        assert not [n for n in numbers if n.startswith(("own.intercept", "own.slope")) or n == "n_calibration"]
    assert {row["n_calibration"] for row in sections(secret)[0]["rows"]} == {None}
    (mine,), (theirs,) = sections(exact), sections(secret)
    assert mine["summary"]["brier"]["own"]["mean"] == pytest.approx(theirs["summary"]["brier"]["own"]["mean"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["calibrate", "adjust"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masks"])
def test_a_run_that_is_killed_there_goes_on_to_the_same(plain, tmp_path, monkeypatch, task, secure):
    folder, chosen = tmp_path / "run", ["--set", "secure_sum=masks"] if secure else []
    whole = run(tmp_path / "whole", *RECALIBRATE, *chosen) if secure else plain
    original = Site.prepare

    def dies(self, instruction):
        if instruction.task == task and self.name == "Switzerland":
            raise Dies
        return original(self, instruction)

    with monkeypatch.context() as patch, pytest.raises(Dies):
        patch.setattr(Site, "prepare", dies)
        main(["run", "fedism", *HEART, *RECALIBRATE, *chosen, "--out", str(folder)])
    assert call("resume", folder) == 0
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert kept(folder) == kept(whole) and sections(folder) == sections(whole)
    assert len(lines(folder)) == 1 and call("verify", folder) == 0


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masks"])
def test_nothing_of_what_was_asked_stays_in_the_folder(plain, tmp_path, secure):
    folder = run(tmp_path / "run", *RECALIBRATE, "--set", "secure_sum=masks") if secure else plain
    assert {path.name for path in (folder / "sites").glob("*.after.json")} == {f"{site}.after.json" for site in SITES}


def test_a_model_that_is_shown_beside_the_shared_one_is_not_adjusted(tmp_path):
    """AFL's mean of all rounds' models, whose results stand beside those of the last one."""
    folder = run(tmp_path / "run", *RECALIBRATE, method="afl")
    (line,) = lines(folder)
    files = [json.loads(path.read_text()) for path in (folder / "sites").glob("*.after.json")]
    assert len(files) == 4 and {file["model"] for file in files} == {line["model_sha256"]}
    assert call("after", folder, "--step", "recalibrate") == 0
    assert lines(folder)[1]["sites"] == line["sites"] and "its own" not in line["remark"]


def test_a_site_names_the_model_that_it_has_adjusted(tmp_path):
    folder = run(tmp_path / "run", *RECALIBRATE, method="ditto")
    (line,) = lines(folder)
    assert line["remark"].endswith("the model that each site uses, which is its own")
    for site in SITES:
        named = json.loads((folder / "sites" / f"{site}.after.json").read_text())["model"]
        assert (
            named == model_hash(read_model(folder / "sites" / f"{site}.personal.safetensors")) != line["model_sha256"]
        )


def test_a_step_that_was_killed_before_its_report(bare, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(bare, tmp_path / "killed")

    def dies(folder):
        raise Dies

    with monkeypatch.context() as patch, pytest.raises(Dies):
        patch.setattr("fairflare.studies.after.write_report", dies)
        take_step(folder, "recalibrate", {})
    assert call("verify", folder) == 2
    assert "was made before the last step after the run; `fairflare report" in capsys.readouterr().err
    assert call("after", folder, "--step", "conformal", "--set", "alpha=0.2") == 0
    assert [section["step"] for section in sections(folder)] == ["recalibrate", "conformal"]
    assert call("verify", folder) == 0


def test_too_few_cases_are_said_in_the_report(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "few")
    for alpha, words in (
        ("0.06", "a site needs 16: fewer at Switzerland."),
        ("0.005", "together need 199 calibration"),
    ):
        assert call("after", folder, "--step", "conformal", "--set", f"alpha={alpha}") == 0
        assert words in sections(folder)[-1]["note"] and words in (folder / "report.html").read_text()
    assert not any(row["parameters"] for row in sections(folder)[-1]["rows"])


def test_a_finished_run_takes_the_same_step(plain, bare, capsys):
    assert call("after", bare, "--step", "recalibrate") == 0
    assert kept(bare) == kept(plain) and sections(bare) == sections(plain)
    assert "calibration cases: " in capsys.readouterr().err
    assert call("after", bare, "--step", "conformal", "--set", "alpha=0.2", "--set", "by=group") == 0
    assert [section["step"] for section in sections(bare)] == ["recalibrate", "conformal"]
    assert call("verify", bare) == 0
    assert (bare / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda entries, at: entries.insert(1, entries.pop(at)),
        lambda entries, at: entries[at].update(model_sha256="0" * 64),
        lambda entries, at: entries[at].update(sites={"VA": {"own.brier": "low"}}),
        lambda entries, at: entries[at].pop("split"),
    ],
    ids=["before the rounds", "of another model", "with no number", "from nowhere"],
)
def test_a_line_of_it_that_no_run_writes_is_found(plain, tmp_path, change, capsys):
    folder = shutil.copytree(plain, tmp_path / "forged")
    entries = entries_of(folder)
    change(entries, next(i for i, entry in enumerate(entries) if entry["event"] == "after"))
    put_entries(folder, entries, anew=True)
    assert call("verify", folder) == 2
    assert "audit.jsonl: line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "chosen, words",
    [
        (["--step", "conformal", "--set", "alpha=2"], "alpha: expected a number from 0.001 to 0.5"),
        (["--step", "conformal", "--set", "penalty=2"], "unknown key 'penalty'"),
        (["--step", "conformal", "--set", "loss=sets", "--set", "by=nobody"], "by: expected"),
    ],
)
def test_what_a_step_does_not_know_is_one_line_and_changes_nothing(plain, chosen, words, capsys):
    before = {path: path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    assert call("after", plain, *chosen) == 2
    assert words in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in plain.rglob("*") if path.is_file()}


def test_a_folder_that_holds_no_finished_run_is_refused(tmp_path, capsys):
    assert call("after", Path(tmp_path), "--step", "recalibrate") == 2
    assert "expected the folder of a run" in capsys.readouterr().err
