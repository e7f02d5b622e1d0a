# SPDX-License-Identifier: Apache-2.0
"""From a hospital's table to a decision: nothing that leaves a site holds a patient's id, name, day, value or path."""

import json

import numpy as np
import pandas as pd
import pytest

import import_situations
from fairflare.tasks.kinds.own import INSIDE
from model_use import call

NAMES = ["Zebedäus Quastenflosser", "Kuru-Xq", "Lachesis-Ward"]
"""A patient's name, a finding that one patient has, and a word in a free text."""
NUMBERS, DAYS = ["987.65432", "-41.7171"], ["1913-04-05", "05.04.1913"]


KEPT = ("run/config.json", "run/run.yaml")


def marked(root):
    """Two tables with several rows for some patients; the last patient of B is unlike all others."""
    days = pd.date_range("2020-01-01", periods=400)
    whole = import_situations.base(n=400, sites="ABCD", visits=2).astype(object)
    whole = whole.assign(
        mrn=[f"MRN-7{k // 2:05d}" for k in range(400)],
        full_name=[f"{NAMES[0]} {k // 2}" for k in range(400)],
        finding=np.resize(["none", "oedema", "effusion"], 400),
        note=[f"seen on {NAMES[2]} with complaint number {k} of the day" for k in range(400)],
        admitted=days.strftime("%Y-%m-%d"),
        operated=(days + pd.Timedelta(days=2)).strftime("%Y-%m-%d"),
    )
    last = whole.index[whole["hospital"] == "B"][-1]
    whole.loc[last, ["finding", "crp", "admitted", "operated"]] = [NAMES[1], NUMBERS[0], DAYS[0], "1913-04-09"]
    whole.loc[last - 1, "crp"] = NUMBERS[1]
    for site, own in whole.groupby("hospital"):
        own.drop(columns="hospital").to_csv(root / f"{site}.csv", index=False)
    return {*whole["mrn"]}


def found_in(text, marks):
    return sorted(mark for mark in marks if mark.lower() in text.lower())


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    root = tmp_path_factory.mktemp("x") / "Oberarzt-Geheim"
    root.mkdir()
    return root, marked(root)


@pytest.mark.slow
def test_no_page_log_or_message_that_leaves_holds_a_mark(hospital, tmp_path, capsys):
    root, ids = hospital
    marks = {*ids, *NAMES, *NUMBERS, *DAYS, root.name}
    code, out, err = call(
        capsys, "init", root, "--label", "died", "--patient", "mrn", "--since", "admitted", "--missing", "999",
        "--yes", "--federation", tmp_path / "federation.yaml",
    )  # fmt: skip
    assert code == 0, err
    said = []
    sites, how = root / INSIDE / "sites", ["--data", root, "--workers", "1"]
    prints = [tmp_path / f"{site}.fp.json" for site in "ABCD"]
    content = json.loads((root / INSIDE / "dataset.json").read_text())
    options = [word for key, value in content["options"].items() for word in ("--set", f"{key}={value}")]
    options += ["--kind", content["kind"], "--classes", ",".join(content["classes"])]
    for site, path in zip("ABCD", prints):
        said.append(call(capsys, "fingerprint", sites / f"{site}.yaml", *options, "--out", path))
    said.append(call(capsys, "preflight", sites, *options))
    said.append(call(capsys, "plan", *prints, "--out", tmp_path / "plan.json"))
    run, joined = tmp_path / "run", tmp_path / "join"
    said.append(call(capsys, "run", "fedavg", *how, "--rounds", "2", "--out", run))
    said.append(call(capsys, "report", run))
    said.append(call(capsys, "evidence", run, "--out", tmp_path / "evidence"))
    said.append(call(capsys, "join", "decide", *how, "--repeats", "1", "--out", joined))
    said.append(call(capsys, "join", "sheet", joined))
    said.append(call(capsys, "export", "fedavg", "--data", root, "--out", tmp_path / "job"))
    assert not any(code for code, *_ in said), [err for code, _, err in said if code]
    found = {f"message {k}": found_in(out + err, marks) for k, (_, out, err) in enumerate(said)}
    names = {path: path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    # A site keeps its folder, and the run's copy of the command says where the data of this machine are.
    read = {path: name for path, name in names.items() if "/sites/" not in name and name not in KEPT}
    assert {"run/audit.jsonl", "run/report.html", "run/report.json", "join/decision.json"} <= {*read.values()}
    found |= {name: found_in(path.read_bytes().decode("utf-8", "replace"), marks) for path, name in read.items()}
    assert not {name: own for name, own in found.items() if own}
    written = (root / INSIDE / "B.csv").read_text()
    assert NAMES[1] in written and NUMBERS[0] in written, "the marks are in what was trained on"
    json.loads((run / "report.json").read_text())
