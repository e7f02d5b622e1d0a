# SPDX-License-Identifier: Apache-2.0
"""``--accept CODE``: an error that is no danger becomes a warning, which the log and the report keep."""

import json

import numpy as np
import pytest
from PIL import Image

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.core.findings import ACCEPTABLE, CODES, Finding, accept, band, band_text, packed, unpacked
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import RunConfig, make_config


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Two sites with images; the second has two to validate on, both of one class."""
    folder = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(0)
    for k in range(8):
        Image.fromarray(rng.integers(0, 255, (32, 32), dtype=np.uint8)).save(folder / f"{k}.png")
    for site, n_val in (("a", 8), ("b", 2)):
        sizes = {"training": 12, "validation": n_val, "testing": 4}
        entries = {
            split: [{"image": f"{k % 8}.png", "label": 0 if n == 2 else k % 2} for k in range(n)]
            for split, n in sizes.items()
        }
        (folder / f"{site}.json").write_text(json.dumps(entries))
    return folder


def command(lists, out, method, *more):
    own = ["--datalists", str(lists), "--kind", "classification", "--classes", "2"]
    small = ["--set", "size=32", "--set", "channels=1", "--set", "batch_size=8", "--rounds", "1"]
    return ["run", method, *own, *small, "--out", str(out), *more]


def run(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def found_at(folder, site):
    start = verify(folder / "audit.jsonl")[0]
    return sorted((f["level"], f["split"], f["code"]) for f in start["preflight"][site]["findings"])


def test_a_method_that_needs_no_validation_runs_on_two_images(lists, tmp_path, capsys):
    assert run(command(lists, tmp_path / "run", "fedavg")) == 0
    found = found_at(tmp_path / "run", "b")
    assert ("warning", "val", "few_examples") in found and ("warning", "val", "one_class") in found
    assert "FedCE" not in capsys.readouterr().err


def test_a_method_that_needs_it_says_so_and_can_be_told_to_go_on(lists, tmp_path, capsys):
    assert run(command(lists, tmp_path / "run", "fedce")) == 1
    error = capsys.readouterr().err
    assert "b: val: few_examples" in error and "b: val: one_class" in error and "a: " not in error
    accepted = ["--accept", "few_examples", "--accept", "one_class"]
    assert run(command(lists, tmp_path / "run", "fedce", *accepted)) == 0
    found = found_at(tmp_path / "run", "b")
    assert ("accepted", "val", "few_examples") in found and ("accepted", "val", "one_class") in found
    report = json.loads((tmp_path / "run" / "report.json").read_text())["detail"]["preflight"]
    assert [(r["level"], r["code"], r["count"]) for r in report[:2]] == [
        ("accepted", "few_examples", ""),
        ("accepted", "one_class", ""),
    ]
    assert "accepted" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["accept"] == ["few_examples", "one_class"]


def test_a_job_carries_what_is_accepted(tmp_path):
    assert run(["export", "fedavg", "--task", "support2", "--accept", "one_class", "--out", str(tmp_path / "job")]) == 0
    client = json.loads((tmp_path / "job" / "app_sites" / "config" / "config_fed_client.json").read_text())
    assert '"accept": ["one_class"]' in json.dumps(client)


@each("code", ["unreadable", "patient_overlap", "versions", "path_outside", "shape", "nonsense", "x,y"])
def test_a_danger_cannot_be_accepted(code, tmp_path, capsys):
    assert run(["run", "fedavg", "--task", "support2", "--accept", code, "--out", str(tmp_path / "run")]) == 2
    assert "accept: expected codes among empty_split, few_examples" in capsys.readouterr().err
    content = make_config("fedavg", "support2").to_json() | {"accept": [code]}
    with pytest.raises(UserError, match="accept: expected one of"):
        RunConfig.from_json(content)


def test_every_acceptable_code_is_known_and_few_are():
    assert set(ACCEPTABLE) < set(CODES) and len(ACCEPTABLE) == 4


def test_only_errors_that_are_no_danger_change():
    found = [Finding("error", code, split, 1, "") for code in CODES for split in ("", "train", "val", "test")]
    after = accept(found, list(CODES))
    changed = {(f.code, f.split) for f in after if f.level == "accepted"}
    assert {code for code, _ in changed} == set(ACCEPTABLE)
    assert ("few_examples", "train") not in changed and ("empty_split", "train") not in changed
    assert accept(found, []) == found


def test_bands_are_told_from_the_minimum_on():
    assert [band(n, 10) for n in (0, 1, 9, 10, 19, 20, 49, 50, 99, 100, 10**8)] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 22]
    assert [band_text(k) for k in (0, 1, 3, 4, 22)] == ["", "10-19", "50-99", "100-199", "100000000+"]
    assert band(17, 15) == 0 and band(20, 15) == 2 and band(500, None) == 0 and band(3, 0) == 0


def test_findings_of_a_kind_are_counted_together_and_travel_as_a_band():
    found = [Finding("error", "label", "train", n, "3.png: ...") for n in (1, 1, 1, 30)]
    bands = packed(found, 10)
    assert bands == {"error/train/label": 2.0}
    back = unpacked(bands)[0]
    assert back.public == {"level": "error", "code": "label", "split": "train", "count": "20-49"}
    assert back.text == "a label is no class of the task (20-49)"
