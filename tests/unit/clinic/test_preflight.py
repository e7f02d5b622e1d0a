# SPDX-License-Identifier: Apache-2.0
"""Preflight: every kind of broken data is a finding with split and cause, and nothing that leaves names a patient."""

import json

import numpy as np
import pytest
from PIL import Image

from fairflare.app.cli import main
from fairflare.app.preflight import check_site
from fairflare.core.errors import UserError
from fairflare.core.findings import CODES, accepted_codes


def save(path, pixels):
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture
def site(tmp_path):
    """A healthy site with 12 + 6 + 4 images and masks; returns its folder and its list."""
    root = tmp_path / "data"
    root.mkdir()
    rng = np.random.default_rng(0)
    lists = {"training": [], "validation": [], "testing": []}
    for i in range(22):
        save(root / f"{i}.png", rng.integers(0, 255, (20, 24)))
        save(root / f"{i}_mask.png", np.eye(20, 24) * 255)
        split = "training" if i < 12 else "validation" if i < 18 else "testing"
        entry = {"image": f"{i}.png", "label": i % 2, "sex": "fm"[i % 2], "patient_id": f"patient {i}"}
        lists[split].append(entry)
    (tmp_path / "site.yaml").write_text("data_root: data\ndatalist: list.json\n")
    return tmp_path, lists


def findings(site, kind="classification", classes="2", **values):
    folder, lists = site
    (folder / "data" / "list.json").write_text(lists if isinstance(lists, str) else json.dumps(lists))
    return check_site(folder / "site.yaml", kind, classes, values)


def codes(found):
    return [(f.level, f.code, f.split, f.count) for f in found]


def test_healthy_data_have_no_findings(site):
    assert findings(site, group_by="none") == []


def test_small_groups_are_named_at_the_site(site):
    found = findings(site)
    assert codes(found) == [("warning", "small_group", "train", 1)] * 2 and "min_count 10" in found[0].text


def masks(lists):
    return {
        split: [{**entry, "label": entry["image"].replace(".png", "_mask.png")} for entry in entries]
        for split, entries in lists.items()
    }


def test_healthy_masks_have_no_findings(site):
    folder, lists = site
    assert findings((folder, masks(lists)), "segmentation", "lesion") == []


BREAKS = {
    "json": (lambda folder, lists: "{", ("error", "datalist", "", 1)),
    "few": (lambda folder, lists: {**lists, "training": lists["training"][:1]}, ("error", "few_examples", "train", 1)),
    "label": (lambda folder, lists: lists["training"][3].update(label=7), ("error", "label", "train", 1)),
    "key": (lambda folder, lists: lists["validation"][0].pop("image"), ("error", "missing_key", "val", 1)),
    "escape": (
        lambda folder, lists: lists["testing"][0].update(image="../site.yaml"),
        ("error", "path_outside", "test", 1),
    ),
    "gone": (lambda folder, lists: (folder / "data" / "3.png").unlink(), ("error", "missing_file", "train", 1)),
    "torn": (lambda folder, lists: (folder / "data" / "13.png").write_bytes(b"x"), ("error", "unreadable", "val", 1)),
    "one class": (
        lambda folder, lists: [e.update(label=0) for e in lists["training"]],
        ("error", "one_class", "train", 12),
    ),
    "patients": (
        lambda folder, lists: lists["testing"][0].update(patient_id="patient 0"),
        ("error", "patient_overlap", "test", 1),
    ),
    "no validation": (lambda folder, lists: lists["validation"].clear(), ("warning", "empty_split", "val", 0)),
    "no test": (lambda folder, lists: lists.pop("testing"), ("error", "empty_split", "test", 0)),
    "three to validate on": (
        lambda folder, lists: lists["validation"].__delitem__(slice(3, None)),
        ("warning", "few_examples", "val", 3),
    ),
    "one class to validate on": (
        lambda folder, lists: [e.update(label=1) for e in lists["validation"]],
        ("warning", "one_class", "val", 6),
    ),
    "small training": (
        lambda folder, lists: lists["training"].__delitem__(slice(4, None)),
        ("warning", "few_examples", "train", 4),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_fault_is_one_finding(name, site):
    folder, lists = site
    change, expected = BREAKS[name]
    changed = change(folder, lists)
    found = findings((folder, changed if isinstance(changed, (str, dict)) and name in ("json", "few") else lists))
    assert expected in codes(found)
    for finding in found:
        assert "\n" not in finding.text and "patient 0" not in finding.text
        assert set(finding.public) == {"level", "code", "split", "count"}


@pytest.mark.parametrize("name", ["no validation", "three to validate on", "one class to validate on"])
def test_what_only_some_methods_need_is_an_error_for_those(name, site):
    folder, lists = site
    change, (_, code, split, count) = BREAKS[name]
    change(folder, lists)
    (folder / "data" / "list.json").write_text(json.dumps(lists))

    def levels(**given):
        found = check_site(folder / "site.yaml", "classification", "2", {"group_by": "none"}, **given)
        return [f.level for f in found if (f.code, f.split, f.count) == (code, split, count)]

    assert levels() == levels(method="fedavg") == levels(method="fedism-plus") == ["warning"]
    assert levels(method="fedce") == ["error"]
    assert levels(method="fedce", accepted=[code]) == ["accepted"]


DANGERS = ["label", "key", "escape", "gone", "torn", "patients", "few"]


@pytest.mark.parametrize("name", DANGERS)
def test_a_danger_is_never_accepted(name, site):
    folder, lists = site
    changed = BREAKS[name][0](folder, lists)
    lists = changed if isinstance(changed, dict) and name == "few" else lists
    (folder / "data" / "list.json").write_text(json.dumps(lists))
    found = check_site(folder / "site.yaml", "classification", "2", {}, accepted=list(CODES))
    assert BREAKS[name][1] in codes(found)
    if name != "few":  # its code can be accepted, of other splits
        with pytest.raises(UserError, match="accept: expected codes among"):
            accepted_codes([BREAKS[name][1][1]])


def test_masks_that_do_not_fit(site):
    folder, lists = site
    lists = masks(lists)
    save(folder / "data" / "0_mask.png", np.zeros((5, 5)))
    save(folder / "data" / "1_mask.png", np.full((20, 24), 77))
    found = findings((folder, lists), "segmentation", "lesion")
    assert codes(found) == [("error", "shape", "train", 1), ("error", "mask_values", "train", 1)]
    assert "20x24 pixels, its mask has 5x5" in found[0].text and "got 77" in found[1].text


def test_missing_attributes_are_counted(site):
    folder, lists = site
    lists["training"][0].pop("sex")
    found = findings(site, attribute_values="sex=f|m", group_by="sex")
    assert ("warning", "attribute", "train", 1) in codes(found)


def test_without_a_minimum_count_no_group_is_told_of(site):
    folder, _ = site
    (folder / "site.yaml").write_text("data_root: data\ndatalist: list.json\nmin_count: null\n")
    assert codes(findings(site)) == [("warning", "no_min_count", "train", 2)]


def test_many_faults_of_a_kind_are_summed_up(site):
    folder, lists = site
    for entry in lists["training"][:9]:
        entry["label"] = 9
    found = [f for f in findings(site) if f.code == "label"]
    assert [f.count for f in found] == [1, 1, 1, 6]


def test_the_command_prints_lines_and_exits(site, capsys):
    folder, lists = site
    lists["training"][2]["image"] = "gone.png"
    (folder / "data" / "list.json").write_text(json.dumps(lists))
    command = ["preflight", str(folder / "site.yaml"), "--kind", "classification", "--classes", "2"]
    for extra, there in (([], True), (["--json"], False)):
        with pytest.raises(SystemExit) as end:
            main([*command, *extra])
        streams = capsys.readouterr()
        assert end.value.code == 1 and ("gone.png" in streams.out) == there and "Traceback" not in streams.err


def test_a_table_with_one_outcome(tmp_path):
    (tmp_path / "t.csv").write_text("age,label\n" + "\n".join(f"{i},0" for i in range(30)))
    (tmp_path / "site.yaml").write_text("data_root: .\ndatalist: t.csv\nmin_count: 5\n")
    found = check_site(tmp_path / "site.yaml", "tabular", "2", {"features": "age"})
    assert ("error", "one_class", "train") in [c[:3] for c in codes(found)]
    found = check_site(tmp_path / "site.yaml", "tabular", "2", {"features": "height"})
    assert codes(found) == [("error", "column", "", 1)] and "expected a column 'height'" in found[0].text
