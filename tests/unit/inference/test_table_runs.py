# SPDX-License-Identifier: Apache-2.0
"""Tables of three hospitals: a patient's risk is that patient's alone, and categories count as much as they should."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fairflare.engine.setup.config import make_config
from model_use import call, rows, run

SITES = ("Köln", "Mainz", "Ulm")
ICD = ("C34", "I21", "J18", "N17", "S72")
RISK = {"C34": 1.6, "I21": 0.7, "J18": 0.1, "N17": -0.8, "S72": -1.6, "Q99": 0.0}
COLUMNS = {
    "icd": {"kind": "category"},
    "stage": {"kind": "category", "missing": True},
    "smoker": {"kind": "yes_no", "yes": ["Yes", "y"], "no": ["No", "n"], "missing": True},
    "seen": {"kind": "days", "since": "admitted"},
    "crp": {"kind": "number", "missing": True},
}


def patients(site, n=500):
    """Cells of a hospital's patients; Ulm has no I21, and Q99 is rare everywhere."""
    rng = np.random.default_rng(list(SITES).index(site))
    found = []
    for k in range(n):
        icd = "Q99" if k % 250 == 7 else str(rng.choice([code for code in ICD if (site, code) != ("Ulm", "I21")]))
        stage = str(rng.choice(["I", "II", "III", "IV"]))
        smoker = bool(rng.random() < 0.4)
        z = RISK[icd] + {"I": -1, "II": -0.3, "III": 0.3, "IV": 1}[stage] + 1.2 * smoker - 0.4
        day = int(rng.integers(1, 28))
        found.append(
            {
                "id": f"{site[0]}{k}",
                "icd": icd,
                "stage": "" if rng.random() < 0.1 else stage,
                "smoker": "" if rng.random() < 0.05 else str(rng.choice(["Yes", "y"] if smoker else ["No", "n"])),
                "admitted": f"2020-03-{day:02d}",
                "seen": f"2020-04-{int(rng.integers(1, 28)):02d}",
                "crp": "" if rng.random() < 0.2 else f"{rng.normal(50 + 30 * SITES.index(site), 10):.1f}",
                "sex": str(rng.choice(["f", "m"])),
                "split": ["train", "train", "train", "val", "test"][k % 5],
                "died": "yes" if rng.random() < 1 / (1 + np.exp(-1.5 * z)) else "no",
            }
        )
    return found


def write(path, cells, without=()):
    names = [name for name in cells[0] if name not in without]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells)
    return path


def settings(folder, features, columns):
    own = ["--datalists", folder, "--kind", "tabular", "--classes", "no,yes", "--set", "label=died"]
    return [*own, "--set", f"features={features}", "--set", f"columns={json.dumps(columns)}"]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        write(folder / f"{site}.csv", patients(site))
    return folder


@pytest.fixture(scope="module")
def mixed_run(hospitals, tmp_path_factory):
    own = settings(hospitals, "icd,stage,smoker,seen,crp", COLUMNS)
    return run(tmp_path_factory.mktemp("use") / "mixed", "fedavg", *own, "--rounds", 3)


def risks(capsys, folder, table, out, *more):
    code, _, err = call(capsys, "predict", folder, table, "--out", out, *more)
    assert code == 0, err
    return {row["id"]: float(row["p_yes"]) for row in rows(out)}


def test_a_patients_risk_is_that_of_any_file_that_holds_the_patient(mixed_run, tmp_path, capsys):
    every = {site: patients(site) for site in SITES}
    one = every["Ulm"][7]  # of the rare code
    files = {
        "alone": [one],
        "own": every["Ulm"],
        "among others": [*every["Köln"], one, *every["Mainz"]],
        "few": [*every["Köln"][:5], one],
    }
    found = {}
    for name, cells in files.items():
        write(tmp_path / f"{name}.csv", cells, without=("died", "split"))
        for site in ("", *SITES):
            more = ("--site", site) if site else ()
            table, out = tmp_path / f"{name}.csv", tmp_path / f"{name} {site}"
            found[name, site] = risks(capsys, mixed_run, table, out, *more)[one["id"]]
    assert len(found) == 16
    assert max(found.values()) - min(found.values()) < 1e-6
    assert 0 < found["alone", ""] < 1


def test_other_patients_have_other_risks(mixed_run, tmp_path, capsys):
    found = risks(capsys, mixed_run, write(tmp_path / "t.csv", patients("Ulm")), tmp_path / "p")
    assert np.std(list(found.values())) > 0.05


def test_an_exported_model_prepares_a_table_likewise(mixed_run, tmp_path, capsys):
    from fairflare.inference import apply

    table = write(tmp_path / "t.csv", patients("Mainz"))
    own = risks(capsys, mixed_run, table, tmp_path / "p")
    code, _, err = call(capsys, "export-model", mixed_run, "--format", "torchscript", "--out", tmp_path / "ts")
    assert code == 0, err
    code, _, err = call(capsys, "export-model", mixed_run, "--format", "bundle", "--out", tmp_path / "b")
    assert code == 0, err
    content = json.loads((tmp_path / "b" / "configs" / "inference.json").read_text())["preprocessing"]
    content.pop("_target_")
    with torch.no_grad():
        p = torch.jit.load(str(tmp_path / "ts" / "model.ts"))(apply.Table(**content).tensor(str(table)))[:, 1]
    assert np.abs(p.numpy() - np.array(list(own.values()))).max() < 1e-5


def test_unseen_levels_and_missing_columns_are_named(mixed_run, tmp_path, capsys):
    cells = patients("Ulm")[:3]
    cells[1]["icd"] = "Z99"
    table = write(tmp_path / "t.csv", cells, without=("crp",))
    code, _, err = call(capsys, "predict", mixed_run, table, "--out", tmp_path / "p")
    said = " ".join(err.split())
    assert code == 0 and "icd: 1 row with an unknown value, e.g. 'Z99'" in said and "column crp: is missing" in said
    other = {row["id"]: float(row["p_yes"]) for row in rows(tmp_path / "p")}[cells[1]["id"]]
    cells[1]["icd"] = "another"
    assert risks(capsys, mixed_run, write(table, cells, without=("crp",)), tmp_path / "q")[cells[1]["id"]] == other


def test_the_scaling_is_that_of_all_training_rows_pooled(hospitals, mixed_run):
    options = json.loads((mixed_run / "config.json").read_text())["options"]
    frames = [pd.read_csv(hospitals / f"{site}.csv") for site in SITES]
    train = pd.concat([frame[frame.split == "train"] for frame in frames])
    seen = (pd.to_datetime(train.seen) - pd.to_datetime(train.admitted)).dt.days
    scaling = json.loads(options["scaling"])
    assert scaling["mean"] == pytest.approx([seen.mean(), train.crp.mean()], rel=1e-7)
    assert scaling["std"] == pytest.approx([seen.std(ddof=0), train.crp.std(ddof=0)], rel=1e-7)
    assert scaling["fill"] == scaling["mean"]
    columns = json.loads(options["columns"])
    assert columns["icd"]["levels"] == list(ICD)  # no site has ten of Q99
    assert columns["stage"] == {"kind": "category", "levels": ["I", "II", "III", "IV"], "missing": True}


def test_a_site_that_scales_by_its_own_rows_is_to_be_named(hospitals, tmp_path, capsys):
    own = settings(hospitals, "seen,crp", {name: COLUMNS[name] for name in ("seen", "crp")})
    folder = run(tmp_path / "r", "fedavg", *own, "--set", "task.scaling=site", "--rounds", 1)
    table = write(tmp_path / "t.csv", patients("Ulm"))
    code, _, err = call(capsys, "predict", folder, table, "--out", tmp_path / "p")
    assert code == 2 and "expected --site NAME" in " ".join(err.split())
    here, there = (risks(capsys, folder, table, tmp_path / s, "--site", s) for s in ("Ulm", "Köln"))
    assert here != there


@pytest.mark.slow
def test_a_signal_of_categories_alone_reaches_pooled_logistic_regression(hospitals, tmp_path, capsys):
    """One-hot by hand and scikit-learn on everybody's rows: what a federation that lost no category can reach."""
    features = ("icd", "stage", "smoker")
    own = settings(hospitals, ",".join(features), {name: COLUMNS[name] for name in features})
    folder = run(tmp_path / "r", "fedavg", *own, "--set", "task.model=linear")
    every = pd.DataFrame([row for site in SITES for row in patients(site)])
    one_hot = pd.get_dummies(every[list(features)].replace({"smoker": {"y": "Yes", "n": "No"}})).to_numpy(float)
    train, test = (every.split == "train").to_numpy(), (every.split == "test").to_numpy()
    pooled = LogisticRegression(max_iter=1000).fit(one_hot[train], every.died[train])
    truth = (every.died[test] == "yes").to_numpy()
    best = roc_auc_score(truth, pooled.predict_proba(one_hot[test])[:, 1])
    table = write(tmp_path / "t.csv", [row for site in SITES for row in patients(site) if row["split"] == "test"])
    found = risks(capsys, folder, table, tmp_path / "p")
    federated = roc_auc_score(truth, list(found.values()))
    assert best > 0.8 and federated > best - 0.02


def test_a_plan_is_of_what_the_run_has(hospitals):
    values = {
        "datalists": str(hospitals),
        "site_names": ",".join(SITES),
        "labels": "no,yes",
        "label": "died",
        "features": "icd,crp",
        "columns": json.dumps({"icd": COLUMNS["icd"]}),
    }
    one = make_config("fedavg", "tabular", values=values)
    named = make_config("fedavg", "tabular:default", values=values)
    assert one.options["scaling"] == named.options["scaling"] != ""
    assert one.options["columns"] == named.options["columns"]
    own = make_config("fedavg", "tabular", values={**values, "scaling": "site"})
    assert own.options["scaling"] == "site"
