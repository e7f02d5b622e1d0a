# SPDX-License-Identifier: Apache-2.0
"""From a folder to lists: five usual layouts, what is written, and bad folders in one line."""

import contextlib
import csv
import fcntl
import json
import os
import pty
import re
import stat
import struct
import subprocess
import sys
import termios
from collections import defaultdict

import numpy as np
import pytest
import yaml

import five_layouts
from cases import each
from command_line import call
from fairflare.core.errors import UserError
from fairflare.import_data.detect import look, with_splits
from fairflare.import_data.proposal import Choices, Example, Found
from fairflare.import_data.write import contents, lines, sizes, write
from fairflare.tasks.kinds.own import mark_of
from five_layouts import SITES, Case


def blocks(n=12, edge=28, sites=SITES, patients=True):
    """Bright and dark images, two per patient: site -> cases without a split."""
    rng, found = np.random.default_rng(0), {}
    for site in sites:
        found[site] = []
        for i in range(n):
            pixels = rng.integers(0, 60, (edge, edge)) + 120 * (i // 2 % 2)
            about = {"patient_id": f"{site} no {i // 2}"} if patients else {}
            found[site].append(Case(pixels, ("dark", "light")[i // 2 % 2], "", {**about, "sex": "fm"[i // 4 % 2]}))
    return found


def masked(n=12):
    """As ``blocks``, with a square of value 1 and one of value 2 as the label."""
    found = blocks(n)
    for cases in found.values():
        for case in cases:
            case.label = np.zeros((28, 28), np.uint8)
            case.label[4:12, 4:12], case.label[14:20, 14:20] = 1, 2
    return found


def numbers(n=40):
    """Rows with two features and an age, two per patient."""
    rng, found = np.random.default_rng(0), {}
    for site in SITES:
        found[site] = [
            Case(
                {"x": f"{rng.normal():.2f}", "age": str(30 + i)},
                ("lived", "died")[i // 2 % 2],
                "",
                {"sex": "fm"[i // 4 % 2], "patient_id": f"{site} no {i // 2}"},
            )
            for i in range(n)
        ]
    return found


def links_to(folder):
    return lambda root: five_layouts.class_folders(root, blocks(), links=folder.with_name("elsewhere"))


WRITERS = {
    "flat": lambda root: five_layouts.flat_with_masks(root, masked()),
    "classes": lambda root: five_layouts.class_folders(root, blocks()),
    "decathlon": lambda root: five_layouts.decathlon(root, masked()),
    "table of images": lambda root: five_layouts.table_and_images(root, blocks()),
    "tables": lambda root: five_layouts.table_per_site(root, numbers()),
}
KINDS = {
    "flat": ("segmentation", ("structure 1", "structure 2"), 11),
    "classes": ("classification", ("dark", "light"), 12),
    "decathlon": ("segmentation", ("grey", "white", "ventricles"), 9),
    "table of images": ("classification", ("dark", "light"), 11),
    "tables": ("tabular", ("lived", "died"), 39),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_kind_classes_and_sites_of_each_layout(layout, tmp_path):
    root = WRITERS[layout](tmp_path / "data")
    proposal = look(root, Choices())
    kind, classes, n = KINDS[layout]
    assert (proposal.kind, proposal.classes, proposal.sites) == (kind, classes, list(SITES))
    for site in SITES:
        own = proposal.of(site)
        assert len(own) == n and {one.split for one in own} == {"training", "validation", "testing"}
    shown = lines(root, proposal, contents(root, proposal))
    assert max(map(len, shown)) <= 80 and [line.split()[0] for line in shown if line.startswith("site-")] == list(SITES)
    assert look(root, Choices()) == proposal


def test_of_two_classes_it_says_whose_risk_is_reported(tmp_path):
    root = WRITERS["tables"](tmp_path / "data")

    def risk(*classes):
        proposal = look(root, Choices(classes=classes))
        shown = lines(root, proposal, contents(root, proposal))
        return [line for line in shown if line.startswith("risk:")]

    assert risk() == ["risk:       of died, the second class (--classes died,lived: of the other)"]
    assert risk("died", "lived") == ["risk:       of lived, the second class (--classes lived,died: of the other)"]


@pytest.mark.parametrize("layout", ["table of images", "tables"])
def test_no_patient_is_in_two_splits(layout, tmp_path):
    found = look(WRITERS[layout](tmp_path / "data"), Choices())
    assert found.patients == "column patient_id"
    splits = defaultdict(set)
    for one in found.examples:
        splits[one.site, one.patient].add(one.split)
    assert len(splits) > 3 * len(SITES) and all(len(where) == 1 for where in splits.values())


@pytest.mark.parametrize("layout", WRITERS)
def test_what_is_written_is_what_is_shown_and_nothing_else_changes(layout, tmp_path):
    root = WRITERS[layout](tmp_path / "data")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    proposal = look(root, Choices())
    files = contents(root, proposal)
    there = write(root, files)
    assert there == root / "fairflare" and {p: p.read_bytes() for p in before} == before
    assert {p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()} == set(files)
    assert {path.parent for path in root.rglob(".*")} == set()
    suffix = ".csv" if layout == "tables" else ".json"
    assert set(files) == {
        "dataset.json",
        "preview.html",
        *(f"{s}{suffix}" for s in SITES),
        *(f"sites/{s}.yaml" for s in SITES),
    }
    own = yaml.safe_load(files["sites/site-2.yaml"])
    assert own == {"data_root": str(root.resolve()), "datalist": f"fairflare/site-2{suffix}", "min_count": 10}
    with pytest.raises(UserError, match="fairflare exists; remove it"):
        write(root, files)


def test_a_tables_copy_holds_no_patient_and_names_its_groups(tmp_path):
    root = WRITERS["tables"](tmp_path / "data")
    files = contents(root, look(root, Choices()))
    head, *rows = files["site-1.csv"].decode().splitlines()
    assert head == "outcome,x,age,sex,age_band,patient,split" and len(rows) == 39 and b"no 3" not in files["site-1.csv"]
    options = json.loads(files["dataset.json"])["options"]
    assert options == {
        "label": "outcome",
        "features": "x,age,sex",
        "columns": '{"sex": {"kind": "category", "levels": ["f", "m"]}}',
        "attribute_values": "age_band=40 to 59|60 to 79|under 40; sex=f|m",
    }


def test_a_list_of_images_has_numbers_in_place_of_patients_names(tmp_path):
    root = WRITERS["table of images"](tmp_path / "data")
    found = look(root, Choices())
    text = contents(root, found)["site-1.json"]
    whose = {one["image"]: one["patient_id"] for part in json.loads(text).values() for one in part}
    assert b"no 3" not in text and all(number.isdigit() for number in whose.values())
    pairs = {(one.patient, whose[one.image]) for one in found.of("site-1")}
    assert len(pairs) == 6 == len({number for _, number in pairs})


def test_splits_of_the_folder_stand_and_a_patient_in_two_is_refused(tmp_path):
    cases = blocks(20)
    for own in cases.values():
        for i, case in enumerate(own):
            case.split = five_layouts.split_of(i, len(own))
    root = five_layouts.class_folders(tmp_path / "data", cases, splits=True)
    proposal = look(root, Choices())
    assert proposal.splits == ("as they are at site-1, site-2, site-10",)
    counted = [sum(one.split == "validation" for one in proposal.of(site)) for site in SITES]
    assert counted == [3, 3, 2] and proposal.classes == ("dark", "light")
    rows = [
        {"image": f"{site}/{case.split}/{case.label}/{i}.png", "label": case.label, "site": site, "split": case.split}
        | {"patient": f"{site} no {i % 10}"}
        for site, own in cases.items()
        for i, case in enumerate(own)
    ]
    five_layouts.write_rows(root / "all.csv", rows)
    with pytest.raises(
        UserError, match="site-1: 8 patients are in two splits, by column patient; --new-splits draws them"
    ):
        look(root, Choices())
    assert look(root, Choices(new_splits=True)).splits == ("drawn by patient at site-1, site-2, site-10",)


def test_patients_by_folder_and_by_name(tmp_path):
    for site in SITES[:2]:
        for i in range(20):
            label = ("no", "yes")[i // 2 % 2]
            five_layouts.save(tmp_path / "a" / site / label / f"P{i // 2:02d}_slice{i % 2}.png", np.full((20, 20), i))
            name = f"{site}/P{i // 2:02d}/{i % 2}"
            five_layouts.save(tmp_path / "b" / f"{name}.png", np.full((20, 20), i))
            five_layouts.save(tmp_path / "b" / f"{name}_seg.png", np.eye(20) * 255)
    by_name, by_folder = look(tmp_path / "a", Choices()), look(tmp_path / "b", Choices())
    assert by_name.patients == "the beginning of the files' names" and by_folder.patients == "their folders"
    for found in (by_name, by_folder):
        assert len({one.patient for one in found.of("site-1")}) == 10
    alone = look(tmp_path / "a", Choices(patient="none"))
    assert not alone.patients and not any(one.patient for one in alone.examples)


def test_one_hospital_alone(tmp_path):
    root = five_layouts.class_folders(tmp_path, blocks(sites=("Our Hospital",))) / "Our Hospital"
    found = look(root, Choices())
    assert found.sites == ["Our Hospital"] and found.classes == ("dark", "light")
    with pytest.raises(UserError, match="--classes: expected the labels of the data, which have 'light' too"):
        look(root, Choices(classes=("dark", "bright")))
    assert look(root, Choices(classes=("light", "dark", "none"))).classes == ("light", "dark", "none")


def test_amounts_and_counts_are_split_by_the_shares(tmp_path):
    rng = np.random.default_rng(0)
    for site in SITES[:2]:
        rows = [f"{rng.normal():.3f},{rng.normal(60, 9):.2f},{rng.poisson(3)}" for _ in range(200)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,cost,falls", *rows]))
    for label, other in (("cost", "falls"), ("falls", "cost")):
        found = look(tmp_path, Choices(kind="regression", label=label, leave_out=(other,)))
        assert [sizes(found, site) for site in found.sites] == [{"train": 120, "val": 30, "test": 50}] * 2


@pytest.mark.parametrize("labelled", [False, True])
def test_patients_of_any_number_are_divided_within_one_of_the_shares(labelled):
    for n in range(4, 130):
        rare = [k % 5 == 0 for k in range(n)]
        examples = [Example("a", f"{k}.png", f"{labelled and rare[k]}") for k in range(n)]
        found = with_splits(Found("classification", "", examples), anew=False)
        split_of = {one.image: one.split for one in found.examples}
        of_rare = [split_of[f"{k}.png"] for k in range(n) if rare[k]]
        for split, share in {"training": 0.6, "validation": 0.15, "testing": 0.25}.items():
            assert abs([*split_of.values()].count(split) - share * n) < 1, (n, split)
            assert not labelled or abs(of_rare.count(split) - share * len(of_rare)) < 2, (n, split)


def test_sets_of_several_labels_are_split_by_the_shares_and_frequent_ones_evenly(tmp_path):
    rng = np.random.default_rng(0)
    rare = ["|".join(f"f{k}" for k in np.flatnonzero(rng.random(10) < 0.5)) or "f0" for _ in range(60)]
    for site, more in ((SITES[0], 0), (SITES[1], 40)):
        rows = [f"{rng.normal():.3f},{one}" for one in (*rare, *["f0|f1"] * more)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,findings", *rows]))
    found = look(tmp_path, Choices(kind="multilabel", label="findings"))
    shares = [{"train": 36, "val": 9, "test": 15}, {"train": 60, "val": 15, "test": 25}]
    assert [sizes(found, site) for site in found.sites] == shares
    assert sum(one.label == "f0|f1" for one in found.of(SITES[1]) if one.split == "testing") in (9, 10, 11)


def test_links_out_are_shown_and_allowed(tmp_path):
    root = links_to(tmp_path / "data")(tmp_path / "data")
    (root / "site-1" / "dark" / "gone.png").symlink_to(tmp_path / "nowhere")
    (root / "site-1" / "loop").symlink_to(root)
    proposal = look(root, Choices())
    files = contents(root, proposal)
    shown = "\n".join(lines(root, proposal, files))
    assert len(proposal.links) == 36 and "36 images are symbolic links out of" in shown
    assert any("1 symbolic links lead nowhere" in note for note in proposal.notes)
    assert yaml.safe_load(files["sites/site-1.yaml"])["links"] is True
    assert json.loads(files["dataset.json"])["links"] == mark_of(root)


def empty(root):
    root.mkdir()


def unlabelled(root):
    for i in range(9):
        five_layouts.save(root / f"{i}.png", np.full((9, 9), i))


def only_sites(root):
    for site in SITES:
        five_layouts.save(root / site / "x.png", np.zeros((9, 9)))


def volumes(root):
    import nibabel

    for i in range(5):
        for kind in ("images", "masks"):
            (root / kind).mkdir(parents=True, exist_ok=True)
            content = np.ones((8, 8, 8), np.uint8)
            nibabel.save(nibabel.Nifti1Image(content, np.eye(4)), root / kind / f"{i}.nii.gz")


def smeared(root):
    for i in range(5):
        five_layouts.save(root / f"{i}.png", np.zeros((16, 16)))
        five_layouts.save(root / f"{i}_mask.png", np.arange(256).reshape(16, 16))


def no_outcome(root):
    five_layouts.write_rows(root / "a.csv", [{"age": i, "score": i} for i in range(20)])


def many_labels(root):
    five_layouts.write_rows(root / "a.csv", [{"age": i, "outcome": i / 7} for i in range(80)])


def two_spellings(root):
    rows = [{"x": i, "label": i % 2, "site": ("North", "north")[i // 2 % 2]} for i in range(40)]
    five_layouts.write_rows(root / "a.csv", rows)


def few(root):
    for label in ("dark", "light"):
        five_layouts.save(root / "s" / label / "9.png", np.zeros((9, 9)))


def other_columns(root):
    five_layouts.write_rows(root / "a.csv", [{"x": 1, "label": 1}])
    five_layouts.write_rows(root / "b.csv", [{"y": 1, "label": 1}])


def torn(root):
    five_layouts.flat_with_masks(root, masked())
    (root / "site-1" / "case_3_mask.png").write_bytes(b"nothing")


BAD = {
    "empty": (empty, "holds no image that can be read, no table and no datalist"),
    "unlabelled": (unlabelled, "9 images and nothing that says their labels; expected a folder for each class"),
    "sites": (only_sites, "the folders site-1, site-2, site-10 are sites, and nothing says the labels"),
    "volumes": (volumes, "5 files hold up to 8 slices, e.g. images/0.nii.gz: expected 2D images; --slices 1"),
    "smeared": (smeared, "at most 8 whole pixel values beside 0, got 255.*masks kept as JPEG lose their values"),
    "no outcome": (
        no_outcome,
        "init: --label COLUMN says which is the outcome; the table has: score, age; most likely .--label score.",
    ),
    "many labels": (
        many_labels,
        "outcome: expected classes, got 80 different numbers from 0 to 11.2857: either they are an amount",
    ),
    "two spellings": (two_spellings, "sites 'North' and 'north' differ by upper and lower case alone"),
    "few": (few, "init: s: expected at least 3 patients or examples to divide, got 2"),
    "columns": (other_columns, "b.csv: expected the columns of a.csv; lacks x, has y"),
    "torn": (torn, "site-1/case_3_mask.png: cannot be read as an image"),
    "missing": (lambda root: None, "init: expected a folder, or a table .*, got"),
}


@each("name", BAD)
def test_bad_folders_give_one_clear_line(name, tmp_path, capsys):
    make, message = BAD[name]
    make(tmp_path / "data")
    code, out, err = call(capsys, "init", tmp_path / "data", "--yes")
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err and not out
    assert re.search(message, err), err
    assert not list(tmp_path.rglob("fairflare")) and not list(tmp_path.rglob(".fairflare*"))


def test_nothing_is_written_without_a_yes(tmp_path, capsys):
    root = WRITERS["classes"](tmp_path / "data")
    code, out, err = call(capsys, "init", root)
    assert code == 2 and "expected --yes or --dry-run" in err and not out
    code, out, _ = call(capsys, "init", root, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["sites"]["site-2"] == {"train": 7, "val": 2, "test": 3, "patients": None}
    assert not (root / "fairflare").exists()
    assert "--kind: expected classification" in call(capsys, "init", root, "--dry-run", "--kind", "tabular")[2]
    (root / "fairflare").mkdir()
    assert "exists; remove it to look at the folder anew" in call(capsys, "init", root, "--yes")[2]


def at_a_terminal(answer, *arguments):
    """Exit code and output of a command in a terminal of 80 columns that is answered its question."""
    main_end, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    command = [sys.executable, "-m", "fairflare", *map(str, arguments)]  # no fork of ours: that of threads may crash
    child = subprocess.Popen(command, stdin=child_end, stdout=child_end, stderr=child_end)
    os.close(child_end)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while part := os.read(main_end, 4096):
            shown += part
            if answer and shown.endswith(b"[Y/n]: "):
                os.write(main_end, answer)
                answer = b""
    os.close(main_end)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode().replace("\r\n", "\n"))
    return child.wait(60), "\n".join(line.rpartition("\r")[2] for line in plain.split("\n"))


@pytest.mark.slow
def test_somebody_at_a_terminal_is_asked(tmp_path):
    root = WRITERS["classes"](tmp_path / "our data")
    code, shown = at_a_terminal(b"n\n", "init", root)
    assert code == 0 and "write them? [Y/n]: n" in shown and not (root / "fairflare").exists()
    code, shown = at_a_terminal(b"\n", "init", root)
    assert code == 0 and f"fairflare run fedavg --data '{root}'" in shown
    assert (root / "fairflare" / "dataset.json").is_file()
    assert all(len(line) <= 80 or str(tmp_path) in line for line in shown.splitlines())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    root = WRITERS["classes"](tmp_path / "data")
    root.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(UserError, match="cannot be written to"):
        write(root, {"a": "b"})
    root.chmod(stat.S_IRWXU)


def test_nothing_is_half_written(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    root = WRITERS["classes"](tmp_path / "data")
    before = sorted(root.rglob("*"))
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(UserError, match="cannot be written to .No space left on device"):
        write(root, {"dataset.json": b"{}", "sites/a.yaml": b""})
    assert sorted(root.rglob("*")) == before


RUNS = {**WRITERS, "links": None}
PREDICTED = {"tables": 40}
"""Cases in what is named: all images of three sites, one site's rows; masks are none."""


@pytest.mark.slow
@each("layout", RUNS)
def test_each_layout_goes_from_init_over_preflight_and_a_run_to_predictions(layout, tmp_path, capsys):
    root = (RUNS[layout] or links_to(tmp_path / "data"))(tmp_path / "data")
    code, out, err = call(capsys, "init", root, "--yes")
    assert code == 0 and f"fairflare run fedavg --data {root}" in out and not err
    code, out, err = call(capsys, "preflight", root, "--json")
    found = json.loads(out)
    assert code == 0 and list(found) == list(SITES), (out, err)
    assert not [one for own in found.values() for one in own if one["level"] == "error"]
    assert "no 3" not in out and str(tmp_path) not in out
    code, out, _ = call(capsys, "preflight", root / "fairflare" / "sites" / "site-2.yaml", "--json")
    assert code == 0 and json.loads(out) == found["site-2"]
    run = tmp_path / "run"
    code, out, err = call(capsys, "run", "fedavg", "--data", root, "--rounds", "1", "--no-solo", "--out", run, "--json")
    assert code == 0, err
    report = json.loads(out)["report"]
    assert list(report["sites"]) == list(SITES)
    described = json.loads((root / "fairflare" / "dataset.json").read_text())
    for site, row in report["sites"].items():
        assert (row["n_train"], row["n_test"]) == (described["sites"][site]["train"], described["sites"][site]["test"])
    for path in run.rglob("*"):
        if path.suffix in (".jsonl", ".html", ".txt") or path.name == "report.json":
            text = path.read_text()
            assert "no 3" not in text and "case_3" not in text and str(tmp_path / "elsewhere") not in text
    named = root / "site-2.csv" if layout == "tables" else root
    code, out, err = call(capsys, "predict", run, named, "--out", tmp_path / "predicted", "--json")
    assert code == 0, err
    with (tmp_path / "predicted" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == json.loads(out)["cases"] == PREDICTED.get(layout, 36)
    if layout in ("flat", "decathlon"):
        assert all((tmp_path / "predicted" / row["mask"]).is_file() for row in rows)
    else:
        assert {row["class"] for row in rows} <= set(described["classes"])


def test_all_unclear_columns_are_named_in_one_line(tmp_path, capsys):
    rows = [(k, died := int(k % 3 == 0), died + 0.1 * (k % 2), 99999 if k % 20 == 0 else k % 7) for k in range(200)]
    rows = [(*row, row[1] * 5 + k % 2) for k, row in enumerate(rows)]
    text = "\n".join(",".join(map(str, row)) for row in [("pulse", "died", "score", "lactate", "ward"), *rows])
    (tmp_path / "clinic.csv").write_text(text)
    code, _, err = call(capsys, "data", "init", tmp_path, "--outcome", "died", "--yes")
    assert code == 2 and err.count("\n") == 1 and not (tmp_path / "fairflare").exists()
    for way in ("--leave-out score", "--leave-out ward", "--missing lactate=99999"):
        assert way in err, err
    ways = ("--leave-out", "score,ward", "--missing", "lactate=99999")
    assert call(capsys, "init", tmp_path, "--label", "died", "--yes", *ways)[0] == 0
