# SPDX-License-Identifier: Apache-2.0
"""``fairflare evaluate``: scikit-learn's figures, intervals, nothing of too few patients, and wrong data refused."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.optimize import minimize
from sklearn import metrics

from external_data import OWN, cells, evaluation, numbers_of, recomputed, same_figures, write_hospital
from fairflare.core.errors import UserError
from fairflare.inference.external import cross_fitted
from fairflare.report.external import render
from model_use import call, reported, rows, run
from own_folder import write_images, write_tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("evaluate") / "tables")


@pytest.fixture(scope="module")
def table_run(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate") / "table"
    return run(folder, "fedavg", "--datalists", tables, *OWN, "--rounds", 5)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    return write_hospital(tmp_path_factory.mktemp("evaluate") / "new" / "harbour.csv")


def evaluated(capsys, *arguments, out):
    code, said, err = call(capsys, "evaluate", *arguments, "--out", out)
    assert code == 0, err
    return evaluation(out), said


def refused(capsys, *arguments):
    code, _, err = call(capsys, "evaluate", *arguments)
    assert code == 2 and err.count("\n") == 1, err
    return err


def predicted(capsys, folder, data, out, column):
    code, _, err = call(capsys, "predict", folder, data, "--out", out)
    assert code == 0, err
    return np.array([float(row[column]) for row in rows(out)])


def test_a_tables_figures_are_scikit_learns(table_run, hospital, tmp_path, capsys):
    content, said = evaluated(capsys, table_run, hospital, out=tmp_path / "e")
    p = predicted(capsys, table_run, hospital, tmp_path / "p", "p_died")
    y = np.array([row["outcome"] == "died" for row in cells(hospital)]).astype(int)
    sex = np.array([row["sex"] for row in cells(hospital)])
    site = content["sites"]["harbour"]
    assert same_figures(site, recomputed(y, p, sex)) and site["n"] == len(y) and content["by"] == "sex"
    for name in ("accuracy", "balanced_accuracy", "auc_ovo"):
        one = site["metrics"][name]
        assert one["low"] < one["value"] < one["high"] and not one["why"]
    assert site["calibration"]["brier"]["low"] < site["calibration"]["brier"]["value"]
    share = y.mean()
    assert site["trivial_brier"] == pytest.approx(share * (1 - share))
    assert site["metrics"]["accuracy"]["trivial"] == pytest.approx(max(share, 1 - share))
    page = (tmp_path / "e" / "evaluation.html").read_text()
    assert "harbour: 240 labelled cases" in page and "<svg" in page and "calibration slope" in said
    text = (tmp_path / "e" / "evaluation.json").read_text() + page
    assert "PAT-" not in text and str(tmp_path) not in text and str(hospital.parent) not in text
    coded = {**content, "classes": ["0", "1"], "clinical": {**content["clinical"], "event": "1"}}
    assert "risk of <strong>outcome</strong>" in render(coded) and "risk of <strong>died</strong>" in page


def test_an_outcome_that_is_coded_the_other_way_is_said(table_run, hospital, tmp_path, capsys):
    text = hospital.read_text().replace("died", "?").replace("lived", "died").replace("?", "lived")
    (tmp_path / "turned.csv").write_text(text)
    code, _, err = call(capsys, "evaluate", table_run, tmp_path / "turned.csv", "--out", tmp_path / "e")
    assert code == 0 and "coded the other way round?" in " ".join(err.split())


def test_other_units_than_the_trainings_are_said(table_run, hospital, tmp_path, capsys):
    table = [{**row, "age": float(row["age"]) * 12} for row in cells(hospital)]
    with (tmp_path / "months.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    code, _, err = call(capsys, "evaluate", table_run, tmp_path / "months.csv", "--out", tmp_path / "e")
    assert code == 0 and "months: age: a mean of " in err and err.count("are the units the same?") == 1


def test_images_likewise_from_a_folder_of_lists(photo_run, tmp_path, capsys):
    sites = ("a", "b", "c", "d", "valley")
    root = write_images(tmp_path / "photos", masks=False, sites=sites)
    for site in sites[:4]:
        (root / f"client_{site}.json").unlink()
    content, _ = evaluated(capsys, photo_run, root, out=tmp_path / "e")
    lists = json.loads((root / "client_valley.json").read_text())
    truth = {one["image"]: one["label"] for part in lists.values() for one in part}
    code, _, err = call(capsys, "predict", photo_run, root / "valley", "--out", tmp_path / "p")
    assert code == 0, err
    found = {row["file"]: float(row["p_ill"]) for row in rows(tmp_path / "p") if "_mask" not in row["file"]}
    p = np.array([found[name.removeprefix("valley/")] for name in truth])
    y = np.array(list(truth.values()))
    site = content["sites"]["valley"]
    assert list(content["sites"]) == ["valley"] and site["n"] == len(y) == 22
    assert site["metrics"]["auc_ovo"]["value"] == pytest.approx(metrics.roc_auc_score(y, p))
    balanced = metrics.balanced_accuracy_score(y, p > 0.5)
    assert site["metrics"]["balanced_accuracy"]["value"] == pytest.approx(balanced)
    assert site["metrics"]["loss"]["value"] == pytest.approx(metrics.log_loss(y, p), abs=1e-4)
    assert site["calibration"]["brier"]["value"] == pytest.approx(np.mean((p - y) ** 2), abs=1e-4)


def test_masks_have_dice_with_an_interval(mask_run, tmp_path, capsys):
    sites = ("a", "b", "c", "d", "valley")
    root = write_images(tmp_path / "masks", masks=True, sites=sites)
    for path in root.rglob("*.png"):
        Image.open(path).resize((64, 64), Image.Resampling.NEAREST).save(path)
    content, _ = evaluated(capsys, mask_run, root / "client_valley.json", out=tmp_path / "e")
    code, _, err = call(capsys, "predict", mask_run, root / "valley", "--out", tmp_path / "p")
    assert code == 0, err
    dice = []
    for row in rows(tmp_path / "p"):
        ours = np.asarray(Image.open(tmp_path / "p" / row["mask"])) > 0
        truth = np.asarray(Image.open(root / "valley" / row["file"].replace(".png", "_mask.png"))) > 0
        both = ours.sum() + truth.sum()
        dice.append(2 * (ours & truth).sum() / both if both else 1.0)
    one = content["sites"]["valley"]["metrics"]["dice"]
    assert len(dice) == 22 and one["value"] == pytest.approx(np.mean(dice), abs=1e-6)
    assert one["low"] < one["value"] < one["high"] and content["sites"]["valley"]["calibration"] is None


def test_one_class_leaves_means_over_classes_undefined_and_says_why(table_run, tmp_path, capsys):
    one = write_hospital(tmp_path / "one.csv", share=0.0, n=60)
    content, said = evaluated(capsys, table_run, one, out=tmp_path / "e")
    site = content["sites"]["one"]
    for name in ("auc_ovo", "auc_ovr", "balanced_accuracy", "macro_f1"):
        assert site["metrics"][name]["value"] is None and site["metrics"][name]["trivial"] is None
        assert site["metrics"][name]["why"] == "not defined: it needs cases of two classes or more"
    assert "not defined" in said and "not defined" in (tmp_path / "e" / "evaluation.html").read_text()
    assert site["calibration"]["brier"]["value"] is not None and site["calibration"]["slope"]["value"] is None


def test_no_number_of_fewer_patients_than_the_minimum(table_run, tmp_path, capsys):
    few = write_hospital(tmp_path / "few.csv", n=90, women=0.05)
    women = sum(row["sex"] == "f" for row in cells(few))
    assert 0 < women < 10
    content, _ = evaluated(capsys, table_run, few, out=tmp_path / "e")
    assert content["sites"]["few"]["groups"] == [], "with the men's number the women's would be known"
    for name in ("n", "positives", "flagged", "true_positives"):
        assert all(value >= 10 for value in numbers_of(content["sites"], name))
    content, _ = evaluated(capsys, table_run, few, "--min-count", 2, out=tmp_path / "f")
    assert {row["group"]: row["n"] for row in content["sites"]["few"]["groups"]}["f"] == women
    tiny = write_hospital(tmp_path / "tiny.csv", n=9)
    assert "9 labelled cases: expected at least 10" in refused(capsys, table_run, tiny)


def test_a_trained_hospitals_test_split_is_what_the_run_reported(table_run, tables, tmp_path, capsys):
    for site in ("east", "south"):
        arguments = [table_run, tables / f"{site}.csv", "--split", "test"]
        content, _ = evaluated(capsys, *arguments, out=tmp_path / site)
        found = {name: one["value"] for name, one in content["sites"][site]["metrics"].items()}
        expected = reported(table_run, site)
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def test_what_does_not_fit_is_refused_in_a_line(table_run, photo_run, tables, hospital, tmp_path, capsys):
    said = refused(capsys, table_run, tables)
    assert "east: took part in the run's training" in said and "--split test" in said
    shutil.copy(tables / "east.csv", tmp_path / "other.csv")
    assert "took part in the run's training as 'east'" in refused(capsys, table_run, tmp_path / "other.csv")
    head, *rows = (tables / "east.csv").read_text().splitlines()
    (tmp_path / "mixed.csv").write_text("\n".join([head, *sorted(rows)[: len(rows) // 2]]) + "\n")
    code, said, err = call(capsys, "evaluate", table_run, tmp_path / "mixed.csv", "--out", tmp_path / "mixed")
    text = "rows trained the model, at east: this is no external validation"
    assert code == 0 and text in " ".join((said + err).split()), "half of its rows, in another order"
    assert "this is no external validation" in (tmp_path / "mixed" / "evaluation.html").read_text()
    pooled = [row for path in sorted(tables.glob("*.csv")) for row in path.read_text().splitlines()[1:]]
    (tmp_path / "pooled.csv").write_text("\n".join([head, *pooled]) + "\n")
    code, said, err = call(capsys, "evaluate", table_run, tmp_path / "pooled.csv", "--out", tmp_path / "pooled")
    assert code == 0 and re.search(
        r"rows trained the model, at east, .*: this is no ext", " ".join((said + err).split())
    )
    shutil.copy(hospital, tmp_path / "East.csv")
    said = refused(capsys, table_run, tmp_path / "East.csv")
    assert "--name NAME if it is another hospital" in said
    content, _ = evaluated(capsys, table_run, tmp_path / "East.csv", "--name", "far east", out=tmp_path / "e")
    assert list(content["sites"]) == ["far east"]
    text = hospital.read_text()
    (tmp_path / "a.csv").write_text(text.replace("died", "deceased"))
    assert "expected a class of the run (lived, died), got 'deceased'" in refused(capsys, table_run, tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(text.replace("outcome", "result"))
    assert "expected a column 'outcome'" in refused(capsys, table_run, tmp_path / "b.csv")
    content, _ = evaluated(capsys, table_run, tmp_path / "b.csv", "--label", "result", out=tmp_path / "f")
    assert content["sites"]["b"]["n"] == 240
    (tmp_path / "c.csv").write_text("\n".join(line.rpartition(",")[0] + "," for line in text.split("\n")[1:] if line))
    (tmp_path / "c.csv").write_text(text.split("\n")[0] + "\n" + (tmp_path / "c.csv").read_text() + "\n")
    assert "expected rows with a label, found none" in refused(capsys, table_run, tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text(text.replace("age", "years"))
    assert "expected a column 'age'" in refused(capsys, table_run, tmp_path / "d.csv")
    assert "expected a folder of lists, or a file" in refused(capsys, photo_run, hospital)
    assert "no such file or folder" in refused(capsys, table_run, tmp_path / "nothing.csv")
    folder = tmp_path / "described"
    folder.mkdir()
    shutil.copy(hospital, folder / "x.csv")
    about = {"kind": "tabular", "classes": ["well", "ill"], "options": {}}
    (folder / "dataset.json").write_text(json.dumps(about))
    assert "classes: expected 'lived, died', as the run has them" in refused(capsys, table_run, folder)
    assert not list(tmp_path.glob("*/evaluation.json.*")) and not list(table_run.glob("evaluation-*"))


def test_images_of_a_test_split_and_classes_by_name(photo_run, photos, tmp_path, capsys):
    content, _ = evaluated(capsys, photo_run, photos, "--split", "test", "--min-count", 2, out=tmp_path / "e")
    assert list(content["sites"]) == sorted(content["sites"]) and len(content["sites"]) == 4
    for site, found in content["sites"].items():
        expected = reported(photo_run, site)
        values = {name: one["value"] for name, one in found["metrics"].items()}
        assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    root = write_images(tmp_path / "other", masks=False, sites=("a", "b", "c", "d", "valley"))
    for site in "abcd":
        (root / f"client_{site}.json").unlink()
    plain, _ = evaluated(capsys, photo_run, root, out=tmp_path / "plain")
    about = {"kind": "classification", "classes": ["ill", "healthy"], "options": {}}
    (root / "dataset.json").write_text(json.dumps(about))
    assert "expected classes by name" in refused(capsys, photo_run, root)
    lists = json.loads((root / "client_valley.json").read_text())
    for part in lists.values():
        for one in part:
            one["label"] = ("healthy", "ill")[one["label"]]
    (root / "client_valley.json").write_text(json.dumps(lists))
    named, _ = evaluated(capsys, photo_run, root, out=tmp_path / "named")
    assert named["sites"] == plain["sites"]
    for path in root.rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(path)) // 8).save(path)
    _, _, err = call(capsys, "evaluate", photo_run, root, "--out", tmp_path / "dark")
    assert "valley: mean intensity: " in " ".join(err.split())


def test_a_hospitals_configuration_names_data_and_minimum(table_run, hospital, tmp_path, capsys, monkeypatch):
    own = tmp_path / "harbour" / "fairflare_site.yaml"
    own.parent.mkdir()
    own.write_text(f"data_root: {hospital.parent}\ndatalist: {hospital.name}\nmin_count: 125\n")
    assert sum(row["sex"] == "m" for row in cells(hospital)) < 125, (
        "the women's number would say how many men there are"
    )
    content, _ = evaluated(capsys, table_run, own, out=tmp_path / "e")
    site = content["sites"]["harbour"]
    assert site["n"] == 240 and not site["groups"] and site["calibration"]["positives"] is None
    (own.parent / "new port.yaml").write_text(own.read_text())
    monkeypatch.chdir(own.parent)
    for number, (file, name) in enumerate(((own.name, "harbour"), ("new port.yaml", "new port"))):
        content, _ = evaluated(capsys, table_run, file, out=tmp_path / f"named{number}")
        assert [*content["sites"]] == [name]
    own.write_text(own.read_text() + "clinical: false\n")
    content, _ = evaluated(capsys, table_run, own, out=tmp_path / "f")
    assert content["sites"]["harbour"]["calibration"] is None


def test_a_hospitals_own_model_is_held_against_it(table_run, hospital, tmp_path, capsys):
    home = tmp_path / "home"
    write_hospital(home / "harbour.csv", seed=5)
    write_hospital(home / "second.csv", seed=6)
    own = run(tmp_path / "own", "fedavg", "--datalists", home, *OWN, "--rounds", 2)
    content, said = evaluated(capsys, table_run, hospital, "--own", own, out=tmp_path / "e")
    alone, _ = evaluated(capsys, own, hospital, "--name", "harbour new", out=tmp_path / "a")
    pair = content["sites"]["harbour"]["own"]
    assert pair["model"] == "own" and set(pair["metrics"]) >= {"balanced_accuracy", "auc", "brier_loss"}
    for one in pair["metrics"].values():
        assert one["difference"] == pytest.approx(one["model"] - one["own"])
        assert one["low"] <= one["difference"] <= one["high"] and one["low"] < one["high"]
    whole, theirs = content["sites"]["harbour"]["metrics"], alone["sites"]["harbour new"]["metrics"]
    assert pair["metrics"]["auc"]["model"] == pytest.approx(whole["auc_ovo"]["value"])
    assert pair["metrics"]["auc"]["own"] == pytest.approx(theirs["auc_ovo"]["value"])
    assert "beside own" in said and "own" in (tmp_path / "e" / "evaluation.html").read_text()


def test_recalibration_is_fitted_to_the_other_half(table_run, tmp_path, capsys):
    apart = write_hospital(tmp_path / "apart.csv", n=300, share=0.12, twice=True)
    code, said, err = call(capsys, "evaluate", table_run, apart, "--recalibrate", "--out", tmp_path / "e")
    assert code == 0 and "300 cases of 150 patients" in " ".join(err.split())
    content = evaluation(tmp_path / "e")
    site = content["sites"]["apart"]
    found, before = site["recalibration"], site["calibration"]
    assert found["kind"] == "slope" and len(found["folds"]) == 2 and "Recalibrated" in said
    after = found["calibration"]
    assert abs(after["calibration"]["value"]) < abs(before["calibration"]["value"])
    assert after["brier"]["value"] < before["brier"]["value"] and after["brier"]["low"] is not None
    p = predicted(capsys, table_run, apart, tmp_path / "p", "p_died")
    y = np.array([row["outcome"] == "died" for row in cells(apart)]).astype(float)
    z = np.log(p) - np.log1p(-p)

    def loss(at):
        eta = at[0] + at[1] * z
        return np.sum(np.logaddexp(0, eta) - y * eta) + at[0] ** 2 + (at[1] - 1) ** 2

    whole = minimize(loss, [0.0, 1.0], tol=1e-12).x
    assert [found["fitted"][name] for name in ("intercept", "slope")] == pytest.approx(list(whole), abs=1e-3)
    content, _ = evaluated(capsys, table_run, apart, "--recalibrate", "intercept", out=tmp_path / "i")
    found = content["sites"]["apart"]["recalibration"]
    assert found["kind"] == "intercept" and all(fold["slope"] == 1.0 for fold in found["folds"])


def test_nobody_is_in_both_halves():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 120)
    patients = [f"p{k // 3}" for k in range(120)]
    outputs = np.stack((np.zeros(120), rng.normal(y, 1.0)), axis=1)
    # What a case becomes depends on the other half alone: with one patient's labels turned, its own logits stay.
    first = cross_fitted(outputs, y, patients, "slope", 0)
    lines = {tuple(fold.values()) for fold in first.folds}
    of_case = [
        next(line for line in lines if np.isclose(line[0] + line[1] * z, moved)) for z, moved in
        zip(outputs[:, 1], first.outputs[:, 1])
    ]  # fmt: skip
    for k in range(0, 120, 3):
        assert len(set(of_case[k : k + 3])) == 1, "a patient's cases are in one half"
    assert len(set(of_case)) == 2
    with pytest.raises(UserError, match="of one class"):
        cross_fitted(outputs, np.zeros(120, dtype=int), patients, "slope", 0)
    with pytest.raises(UserError, match="at least 20"):
        cross_fitted(outputs[:9], y[:9], patients[:9], "slope", 0)
    three = np.stack((np.zeros(120), rng.normal(size=120), rng.normal(size=120)), axis=1)
    found = cross_fitted(three, rng.integers(0, 3, 120), None, "slope", 0)
    assert found.kind == "temperature" and np.isfinite(found.outputs).all()


def test_results_lie_in_the_runs_folder_and_are_its_own(table_run, hospital, capsys):
    code, said, err = call(capsys, "evaluate", table_run, hospital, "--json")
    assert code == 0, err
    content = json.loads(said)
    assert content["evaluation"] == evaluation(table_run / "evaluation-harbour")
    code, _, err = call(capsys, "evaluate", table_run, hospital)
    assert code == 2 and "--force" in err
    assert call(capsys, "evaluate", table_run, hospital, "--force")[0] == 0
    assert call(capsys, "verify", table_run)[0] == 0
    from fairflare.studies.folders import strangers

    assert strangers(table_run) == []
    shutil.rmtree(table_run / "evaluation-harbour")


def test_the_simulators_sites_say_the_same(table_run, tmp_path, capsys):
    """The same numbers, through the filters that every answer of a site passes; the folder is a run's.

    Nobody is asked for a training split: the tables have none.
    """
    write_test_rows(tmp_path / "new")
    content, _ = evaluated(capsys, table_run, tmp_path / "new", out=tmp_path / "here")
    far, _ = evaluated(capsys, table_run, tmp_path / "new", "--env", "sim", out=tmp_path / "sim")
    assert far == content and list(far["sites"]) == ["harbour", "hill"]
    assert all(far["sites"][table.stem]["n"] == len(cells(table)) for table in (tmp_path / "new").iterdir())
    entries = [json.loads(line) for line in (tmp_path / "sim" / "audit.jsonl").read_text().splitlines()]
    assert [one["event"] for one in entries] == ["start", "evaluation", "finish", "report"]
    assert entries[0]["rounds"] == 0 and entries[0]["model_sha256"] == entries[2]["model_sha256"]
    assert entries[0]["model_sha256"] == content["model"]["model_sha256"]
    assert call(capsys, "verify", tmp_path / "sim")[0] == 0 and call(capsys, "report", tmp_path / "sim")[0] == 0
    log = (tmp_path / "sim" / "audit.jsonl").read_text()
    assert "PAT-" not in log and str(tmp_path) not in log


def write_test_rows(folder):
    """Tables of two hospitals, all rows for testing."""
    for k, name in enumerate(("harbour", "hill")):
        table = write_hospital(folder / f"{name}.csv", seed=k)
        head, *rows = table.read_text().splitlines()
        table.write_text("\n".join([f"{head},split", *(f"{row},test" for row in rows)]) + "\n")


def test_sites_that_never_trained_evaluate_the_whole_of_a_network_with_adapters(tables, tmp_path, capsys):
    pytest.importorskip("peft")
    tuned = ["--set", "model=mlp", "--tune", "lora", "--set", "tune_rank=1", "--rounds", 2]
    trained = run(tmp_path / "run", "fedavg", "--datalists", tables, *OWN, *tuned)
    write_test_rows(tmp_path / "new")
    content, _ = evaluated(capsys, trained, tmp_path / "new", out=tmp_path / "here")
    far, _ = evaluated(capsys, trained, tmp_path / "new", "--env", "sim", out=tmp_path / "sim")
    for site, expected in content["sites"].items():
        own = far["sites"][site]["metrics"]["auc_ovo"]
        assert own["value"] == pytest.approx(expected["metrics"]["auc_ovo"]["value"], abs=1e-6)
        assert own["low"] is not None


def test_a_job_stops_at_too_few(table_run, tmp_path, capsys):
    write_hospital(tmp_path / "new" / "harbour.csv", n=60)
    write_hospital(tmp_path / "new" / "hill.csv", n=7)
    out = tmp_path / "sim"
    code, _, err = call(capsys, "evaluate", table_run, tmp_path / "new", "--env", "sim", "--out", out)
    assert code == 1 and "hill: test: few_examples" in err


def test_the_exported_job_carries_the_model_and_no_path(table_run, tables, hospital, tmp_path, capsys):
    job = tmp_path / "job"
    said = refused(capsys, table_run, "--export", job)
    assert "--sites: expected the names" in said
    assert "took part in the run's training" in refused(capsys, table_run, "--export", job, "--sites", "far,east")
    assert "--recalibrate" in refused(capsys, table_run, "--export", job, "--sites", "far", "--recalibrate")
    assert "took part" in refused(capsys, table_run, tables, "--env", "sim", "--out", tmp_path / "sim")
    code, out, _ = call(capsys, "evaluate", table_run, "--export", job, "--sites", "harbour,hill", "--json")
    assert code == 0 and json.loads(out) == {"job": str(job)}
    server = json.loads((job / "app_server/config/config_fed_server.json").read_text())
    config = server["workflows"][0]["args"]["config"]
    assert config["evaluation"] is True and config["options"]["site_names"] == "harbour,hill"
    assert config["options"]["datalists"] == "" and str(tables) not in json.dumps(server)
    from fairflare.engine.files import read_model
    from fairflare.engine.hashes import model_hash

    assert model_hash(read_model(job / "app_server/config/initial.safetensors")) == config["init_from"]
    assert config["init_from"] == model_hash(read_model(table_run / "model.safetensors"))


def test_an_evaluation_holds_nothing_that_goes_with_training():
    from fairflare.engine.setup.config import RunConfig, evaluation_of, make_config
    from fairflare.engine.setup.parts import build_parts

    first = make_config("fedavg", "heart:full", values={"best_by": "mean", "solo": True})
    made = evaluation_of(first, build_parts(first).task, [])
    assert made.evaluation and made.training.rounds == 1 and not made.solo and made.best_by == "none"
    assert RunConfig.from_json(made.to_json()) == made and "evaluation" not in first.to_json()
    for key, value in (("solo", True), ("after", "recalibrate"), ("leave_out", "VA"), ("best_by", "mean")):
        with pytest.raises(UserError, match=key):
            RunConfig.from_json({**made.to_json(), key: value})
