# SPDX-License-Identifier: Apache-2.0
"""``federation.yaml``: a run file that says which hospitals there are and what their columns mean, for all of them."""

import json

import numpy as np
import pytest
import yaml

from fairflare.core.errors import UserError
from fairflare.studies.run_file import RunFile, federation_text, read_run_file
from model_use import call

FILE = {
    "method": "fedism-plus",
    "rounds": 3,
    "sites": ["A", "B", "C"],
    "kind": "tabular",
    "classes": ["no", "yes"],
    "outcome": "died",
    "columns": {
        "age": {"unit": "years", "usual": [40, 80], "range": [0, 120]},
        "creatinine": {"unit": "mg/dL", "usual": [0.6, 1.5]},
        "sex": {"codes": {"1": "male", "2": "female"}},
        "smoker": {"yes": ["y"], "no": ["n"], "empty": ["?"]},
        "beds": None,
    },
    "groups": ["sex"],
    "min_count": 12,
}


def written(folder, **changes):
    path = folder / "federation.yaml"
    path.write_text(yaml.safe_dump({**FILE, **changes}, sort_keys=False))
    return path


def hospital(folder, site, *, factor=1.0, columns=("age", "creatinine", "sex", "smoker", "beds"), women="2"):
    """A hospital's table of 80 patients and its site file; ``factor``: of its unit of creatinine."""
    rng = np.random.default_rng(ord(site))
    rows = []
    for i in range(80):
        age, ill = rng.normal(60, 10), rng.random() < 0.4
        cells = {"age": f"{age:.0f}", "creatinine": f"{factor * rng.normal(1, 0.15):.3f}", "beds": "5"}
        cells |= {"sex": ("1", women)[i % 2], "smoker": "yn?"[i % 3]}
        rows.append(",".join([*(cells[name] for name in columns), "yes" if ill else "no"]))
    (folder / site).mkdir()
    (folder / site / "table.csv").write_text("\n".join([",".join((*columns, "died")), *rows]) + "\n")
    own = folder / site / "fairflare_site.yaml"
    own.write_text("data_root: .\ndatalist: table.csv\n")
    return own


def findings(capsys, own, file, site):
    code, said, _ = call(capsys, "preflight", own, "--federation", file, "--site", site, "--json")
    return code, {(one["level"], one["code"]) for one in json.loads(said)}


def test_it_is_a_run_file_in_which_the_settings_are_said(tmp_path):
    found = read_run_file(written(tmp_path))
    assert isinstance(found, RunFile) and found.hospitals == ["A", "B", "C"] and found.sites is None
    assert found.values["label"] == "died" and found.values["features"] == "age,creatinine,sex,smoker,beds"
    assert json.loads(found.values["columns"]) == {
        "age": {"kind": "number", "range": [0, 120]},
        "sex": {"kind": "category", "levels": ["1", "2"]},
        "smoker": {"kind": "yes_no", "yes": ["y"], "no": ["n"], "codes": ["?"]},
    }
    config = found.config()
    assert config.options["site_names"] == "A,B,C" and config.min_count == 12 and config.training.rounds == 3
    assert config.options["attribute_values"] == "sex=1|2" and config.options["labels"] == "no,yes"
    assert read_run_file(written(tmp_path, sites=4)).sites == 4


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sites": ["A", "A"]}, "sites"),
        ({"columns": {"age": {"units": "years"}}}, "columns: age: "),
        ({"columns": {"age": {"usual": [80, 40]}}}, "columns: age: usual"),
        ({"groups": ["age"]}, "groups"),
        ({"set": {"label": "dead"}}, "label"),
    ],
)
def test_what_does_not_fit_is_one_line_with_its_key(tmp_path, changes, key):
    with pytest.raises(UserError) as error:
        read_run_file(written(tmp_path, **changes))
    assert key in str(error.value) and "\n" not in str(error.value) and "federation.yaml" in str(error.value)


def test_every_hospital_is_held_to_it(tmp_path, capsys):
    file = written(tmp_path)
    assert findings(capsys, hospital(tmp_path, "A"), file, "A") == (0, set())
    own = hospital(tmp_path, "B", factor=88.42)
    assert findings(capsys, own, file, "B") == (1, {("error", "far")})
    code, said, _ = call(capsys, "preflight", own, "--federation", file, "--site", "B")
    rule = said[said.index("scale: ") :].partition(" [far]")[0]
    own.write_text(f"{own.read_text()}{rule}\n")  # as the line says
    assert code == 1 and findings(capsys, own, file, "B") == (0, set())
    code, found = findings(capsys, hospital(tmp_path, "C", columns=("age", "sex", "smoker", "beds")), file, "C")
    assert code == 1 and ("error", "column") in found
    code, _, said = call(capsys, "preflight", own, "--federation", file, "--site", "D")
    assert code == 2 and "A, B, C" in said


def test_other_codes_are_found(tmp_path, capsys):
    _, found = findings(capsys, hospital(tmp_path, "A", women="f"), written(tmp_path), "A")
    assert {level for level, _ in found} and found != {("error", "far")}


def test_the_job_has_what_the_file_says(tmp_path, capsys):
    code, _, said = call(capsys, "export", written(tmp_path), "--out", tmp_path / "job")
    assert code == 0, said
    server = json.loads((tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text())
    text = json.dumps(server)
    assert '"site_names": "A,B,C"' in text and '"min_count": 12' in text and "usual" not in text


def test_init_drafts_one(tmp_path, capsys):
    hospital(tmp_path, "A")
    table, file = tmp_path / "A" / "table.csv", tmp_path / "federation.yaml"
    code, _, said = call(capsys, "init", table, "--label", "died", "--yes", "--federation", file)
    assert code == 0, said
    drafted = read_run_file(file)
    assert drafted.kind == "tabular" and drafted.values["label"] == "died" and "creatinine" in drafted.columns
    assert drafted.values["run.min_count"] == "10"


def test_a_draft_of_images_says_kind_and_classes(tmp_path):
    described = {"kind": "segmentation", "classes": ["lesion"], "options": {"mask_values": "lesion=1"}}
    (tmp_path / "federation.yaml").write_text(federation_text(described, ["A", "B"]))
    found = read_run_file(tmp_path / "federation.yaml")
    assert (found.kind, found.classes, found.hospitals) == ("segmentation", "lesion", ["A", "B"])
    assert found.values["mask_values"] == "lesion=1"
