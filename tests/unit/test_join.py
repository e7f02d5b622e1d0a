# SPDX-License-Identifier: Apache-2.0
"""``fairflare join``: folds as a setting of a run, methods beside the decision, sheets, models, the command."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from cases import each
from command_line import code_of as run
from fairflare import decide
from fairflare.core.errors import DataError, UserError
from fairflare.decision.regression import MEMBER, OWN
from fairflare.decision.sums import Plan
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors, save_json, save_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.inference.mix import MIX, NUMBERS, monitored, open_mix, open_model
from fairflare.studies.folders import is_complete
from fairflare.studies.join import ENOUGH, Question
from fairflare.tasks.folds import dealt, everyone, folded, untestable


def test_every_patient_is_tested_once_in_a_deal_and_else_trains():
    task = tasks.load("heart", "full")
    whole = everyone(task.site_data("VA"))
    seen = np.zeros(len(whole), dtype=int)
    for fold in range(5):
        data = folded(task, f"{fold}/5/1").site_data("VA")
        place = dealt(whole.labels.numpy(), 5, 1, "VA")
        assert (data.size("train"), data.size("val"), data.size("test")) == (
            (place != fold).sum(),
            0,
            (place == fold).sum(),
        )
        assert (data.splits["test"].inputs == whole.inputs[place == fold]).all()
        assert data.class_counts.sum() == data.size("train")
        seen += place == fold
    assert (seen == 1).all()
    other = dealt(whole.labels.numpy(), 5, 2, "VA")
    assert (other != dealt(whole.labels.numpy(), 5, 1, "VA")).any()


def test_a_folded_task_is_still_that_task_and_is_dealt_once_however_it_is_asked():
    task = tasks.load("heart", "full")
    made = folded(task, "0/5/0")
    assert isinstance(made, type(task)) and made.sites() == task.sites() and folded(task, "") is task
    assert (made.local_data("VA", None).splits["test"].inputs == made.site_data("VA").splits["test"].inputs).all()


def test_an_exact_regression_has_the_rounds_that_it_needs_unless_somebody_says_how_many(tmp_path):
    """Twice as many leave its fit on the fold as it is, although two columns separate outcomes there."""
    runs = Question("heart:full", ("fedavg", "glm", "glm:intercept=random"), Plan(5, 1)).runs()
    random = next(run for name, run in runs.items() if "random" in name)
    assert random.training.rounds == runs["fedavg-fold0of5-deal0"].training.rounds
    short = runs["glm-fold0of5-deal0"]
    assert short.training.rounds == ENOUGH < runs["fedavg-fold0of5-deal0"].training.rounds
    asked = Question("heart:full", ("glm",), Plan(5, 1), choices={"rounds": 2 * ENOUGH}).runs()["glm-fold0of5-deal0"]
    assert asked.training.rounds == 2 * ENOUGH
    models = [run_local(run, tmp_path / f"{run.training.rounds}") for run in (short, asked)]
    assert all(torch.allclose(models[0][key], models[1][key], rtol=0, atol=1e-10) for key in ("weight", "bias"))


def test_training_parts_have_two_of_each_class_or_the_site_is_refused():
    labels = np.array([1] * 2 + [0] * 40)
    with pytest.raises(DataError, match="expected at least 2 patients of a class"):
        dealt(labels, 5, 0, "a")
    labels = np.array([1] * 5 + [0] * 40)
    for deal in range(20):
        place = dealt(labels, 5, deal, "a")
        assert all(labels[place != fold].sum() >= 2 for fold in range(5))


@each("labels", [[0, 1] * 14, [1] * 4 + [0] * 40, [0] * 60, []])
def test_a_site_of_too_few_patients_is_not_tested(labels):
    assert "expected at least" in untestable(np.array(labels))
    assert not untestable(np.array([0] * 25 + [1] * 5))


def test_the_fold_is_part_of_a_configuration_and_unsaid_without_one():
    config = make_config("fedavg", "heart:full")
    assert "fold" not in config.to_json()
    one = dataclasses.replace(config, fold="2/5/0")
    assert RunConfig.from_json(one.to_json()) == one
    assert one.sha256() != config.sha256()
    for wrong in ("2", "a/5/0", "2/5/0/1", 3):
        with pytest.raises(UserError, match="fold"):
            RunConfig.from_json({**config.to_json(), "fold": wrong})
    with pytest.raises(UserError, match="F from 0 to K - 1"):
        folded(tasks.load("heart", "full"), "5/5/0")


@pytest.mark.parametrize("label", ["fedavg:trainer=dp-sgd", "fedavg:site_epsilon=2"])
def test_a_privacy_budget_is_refused_on_folds(label):
    """One record more deals all patients of its site anew, and each deal is a run that spends as much again."""
    question = Question("heart", (label,), choices={"values": {"secure_sum": "masks"}})
    question.each()
    with pytest.raises(UserError, match="fold: expected none with .*, whose budget does not cover the deals of join"):
        question.runs()


JOIN = ["join", "fedavg", "ditto", "--task", "heart:full", "--folds", "2", "--repeats", "1", "--rounds", "2"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A decision on heart with two methods beside it."""
    folder = tmp_path_factory.mktemp("joined") / "join"
    options = {"rounds": 2, "folds": 2, "repeats": 2, "progress": False, "outside": ["VA"], "own_model": "ridge"}
    return decide("heart:full", ["fedavg", "ditto"], out=folder, **options), folder


def stacked(folder):
    return [json.loads(path.read_text()).get("stacked") for path in folder.glob("*-fold*/config.json")]


def test_trainings_of_linear_models_are_in_lockstep(joined):
    assert any(stacked(joined[1]))


def test_a_decision_in_python_is_a_table(joined):
    table, folder = joined
    found = json.loads((folder / "decision.json").read_text())
    assert list(table.index) == ["Cleveland", "Hungary", "Switzerland", "VA"]
    assert table["patients"].sum() == 920 and table["U"].notna().all() and table["share"].between(0, 1).all()
    assert table.attrs["decision"]["sites"] == found["sites"] and found["pooled"]
    page = (folder / "join.html").read_text()
    for label in ("fedavg", "ditto"):
        assert all(f"<caption><span>{label}{of}</span>" in page for of in ("", ", by patient group"))
        rows = found["methods"][label]["sites"]
        assert table.loc["VA", label] == rows["VA"]["value"] and rows["VA"]["low"] < rows["VA"]["high"]
        assert {"mean", "low", "high"} == set(found["methods"][label]["average"])
    groups = found["methods"]["fedavg"]["sites"]["Cleveland"]["groups"]
    assert {"sex=female", "sex=male"} <= set(groups) and min(one["n"] for one in groups.values()) >= 30


def test_a_method_from_outside_never_saw_the_hospital(joined):
    """U and D of METHODs: plain differences of one training without VA, marked as not validated."""
    _, folder = joined
    found = json.loads((folder / "decision.json").read_text())
    assert found["not_validated"] == "the rows of using and joining"
    assert "the rows of using and joining holds is not validated" in (folder / "join.html").read_text()
    for label in ("fedavg", "ditto"):
        log = verify(folder / f"{label}-without-VA" / "audit.jsonl")
        assert {site for one in log for site in one.get("declared") or {}} == {"Cleveland", "Hungary", "Switzerland"}
        (u,), (d,) = (
            found["methods"][f"{label}: {key}"]["sites"].values() for key in ("using minus own", "joining minus using")
        )
        j = found["methods"][label]["sites"]["VA"]
        assert u["n"] == d["n"] == 200 and u["low"] < u["own"] < u["high"] and d["low"] < d["own"] < d["high"]
        assert d["own"] == pytest.approx(j["own"] - u["own"], abs=0.2 * abs(j["own"]) + 0.01)


def test_the_command_goes_on_where_it_was_stopped(tmp_path, capsys):
    out = tmp_path / "join"
    arguments = [*JOIN, "--workers", "1", "--one-by-one", "--out", out]
    assert run(*arguments) == 0
    assert not any(stacked(out))
    first, said = json.loads((out / "decision.json").read_text()), capsys.readouterr()
    assert "at an AUC of 0.8 a model needs" in " ".join(said.err.split())
    assert "4 federated trainings" in " ".join(said.err.split()) and "ditto at VA: " in said.out
    checklist = (out / "tripod-cluster.html").read_text()
    assert "dealt 1 time by patient" in checklist and "(it has 303), Hungary" in checklist
    assert "Cleveland (n 303): " in said.out and f"page: {out / 'join.html'}" in said.out
    removed = next(path for path in out.iterdir() if path.name.startswith("ditto-fold1"))
    (removed / "model.safetensors").unlink()
    (removed / "report.json").unlink()
    assert run(*arguments) == 0
    assert json.loads((out / "decision.json").read_text()) == first
    assert "finished before, reused" in capsys.readouterr().err
    assert not list(removed.rglob("report.html")) and run("verify", removed) == 0
    assert run("report", removed) == 0 and run("verify", removed) == 0
    (removed / "report.html").unlink()
    assert not is_complete(removed)  # its log records a page now


@each(
    "change, words",
    [
        (["--folds", "1"], "--folds"),
        (["--task", "ich-phantom"], "two classes"),
        (["--secure"], "expected no METHOD"),
        (["--for", "Hannover"], "--for: expected METHODs, and hospitals among three or more: Cleveland"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(change, words, tmp_path, capsys, monkeypatch):
    phantom = type(tasks.load("ich-phantom"))
    monkeypatch.setattr(phantom, "site_data", lambda *given: pytest.fail("images were rendered"))
    assert run(*JOIN, "--out", tmp_path / "new", *change) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@each("method", ["solo", "fedbn"])
def test_a_method_without_one_shared_model_is_refused(method, tmp_path, capsys):
    assert run("join", method, *JOIN[3:], "--out", tmp_path / "new") in (1, 2)
    assert capsys.readouterr().err.startswith("fairflare: ")


def test_federations_of_other_data_or_one_name_are_no_candidates(tmp_path):
    with pytest.raises(UserError, match="different names"):
        decide("heart:full", ["fedavg", "fedavg"], out=tmp_path / "j")
    assert not (tmp_path / "j").exists()


# The sheet of each hospital, and the model to use.


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """New patients of the task as a file, by their values before scaling where there are such; random ones else."""
    task, rng = tasks.load("heart", "full"), np.random.default_rng(0)
    inputs, path = task.table_inputs(), tmp_path_factory.mktemp("new") / "new.csv"
    ranges = {"age": (40, 80), "trestbps": (100, 170), "chol": (150, 300), "thalach": (90, 180), "oldpeak": (0, 3)}
    rows = []
    for _ in range(40):
        cells = [
            str(rng.choice(inputs.known[c])) if c in inputs.known else f"{rng.uniform(*ranges.get(c, (0, 3))):.0f}"
            for c in inputs.columns
        ]
        rows.append(",".join([*cells, str(rng.choice(task.classes))]))
    path.write_text("\n".join([",".join([*inputs.columns, "label"]), *rows]) + "\n")
    return path


def mixed(folder, share, target):
    """A copy of VA's mix with another share."""
    shutil.copytree(folder / "models" / "VA", target)
    numbers = read_tensors(target / NUMBERS)
    numbers["share"].fill_(share)
    save_tensors(target / NUMBERS, numbers)
    save_json(target / MIX, json.loads((target / MIX).read_text()) | {"model_sha256": model_hash(numbers)})
    return target


def test_a_mix_is_the_weighted_mean_of_own_and_member_model(joined, tmp_path):
    table, folder = joined
    assert float(open_mix(folder / "models" / "VA").network.share) == pytest.approx(table.loc["VA", "share"])
    opened = open_mix(mixed(folder, 0.25, tmp_path / "VA"), "VA")
    x = torch.randn(50, opened.network.coefficients.shape[1] - 1)
    risks = opened.network.risks(x)
    assert opened.whose == "mix" and not risks[:, 0].eq(risks[:, 1]).all()
    assert torch.allclose(opened.network(x).softmax(1)[:, 1], 0.75 * risks[:, 0] + 0.25 * risks[:, 1], atol=1e-8)
    assert (OWN, MEMBER) == ("own", "member") and "75% own" in opened.remarks[0]


def test_a_mix_predicts_is_evaluated_exported_and_monitored(joined, patients, tmp_path, capsys):
    mix = mixed(joined[1], 0.5, tmp_path / "VA")
    assert run("predict", mix, patients, "--out", tmp_path / "p") == 0
    table = np.genfromtxt(tmp_path / "p" / "predictions.csv", delimiter=",", skip_header=1, usecols=3)
    told = monitored(mix, patients)
    assert np.allclose(table, [used for _, _, used in told], atol=1e-6)
    assert run("evaluate", mix, patients, "--out", tmp_path / "e") == 0
    brier = json.loads((tmp_path / "e" / "evaluation.json").read_text())["sites"]["new"]["calibration"]["brier"]
    assert brier["value"] == pytest.approx(np.mean([(y - used) ** 2 for y, _, used in told]), abs=1e-4)
    assert run("export-model", mix, "--format", "torchscript", "--out", tmp_path / "x") == 0
    assert "50% own" in (tmp_path / "x" / "README.md").read_text()
    state = tmp_path / "state.json"
    assert run("monitor", mix, patients, "--state", state) == run("monitor", mix, patients, "--state", state) == 0
    assert json.loads(state.read_text())["certificate"]["cases"] == len(told)
    capsys.readouterr()
    for wrong in (
        ("evaluate", mix, patients, "--split", "test"),
        ("monitor", mix, patients, "--own", "a"),
        ("predict", mix, patients, "--site", "Cleveland"),
        ("predict", mix, patients, "--which", "best"),
        ("export-model", mix, "--format", "bundle", "--out", tmp_path / "b"),
    ):
        assert run(*wrong) == 2
        assert capsys.readouterr().err.startswith("fairflare: ")


@each(
    "content, tensors, words",
    [
        (lambda c: c.update(more=1), None, "expected keys"),
        (lambda c: c.update(event=2), None, "event: expected"),
        (lambda c: c.update(format=1), None, "format: expected"),
        (lambda c: c.update(about=[]), None, "about: expected"),
        (lambda c: c.update(model_sha256="0" * 64), None, "SHA-256"),
        (None, lambda t: t.pop("share"), "does not fit"),
        (None, lambda t: t.update(coefficients=t["coefficients"][:, 1:].clone()), "does not fit"),
        (None, lambda t: t["coefficients"].add_(1), "SHA-256"),
        (None, lambda t: t["share"].fill_(1.5), "share: expected"),
        (None, lambda t: t["share"].fill_(float("nan")), "not finite"),
    ],
)
def test_a_mix_that_is_not_whole_is_refused(content, tensors, words, joined, tmp_path):
    place = tmp_path / "VA"
    shutil.copytree(joined[1] / "models" / "VA", place)
    if content:
        found = json.loads((place / MIX).read_text())
        content(found)
        save_json(place / MIX, found)
    if tensors:
        numbers = read_tensors(place / NUMBERS)
        tensors(numbers)
        save_tensors(place / NUMBERS, numbers)
    with pytest.raises(UserError, match=words):
        open_model(place)
