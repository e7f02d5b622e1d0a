# SPDX-License-Identifier: Apache-2.0
"""What hospitals have is read right, or refused with both readings: folders, tables, DICOM archives and their truth."""

import csv
import itertools
import json
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

import dicom_sets
import hospital_folders
import hospital_habits
import hospital_tables
import import_situations
from cases import each
from command_line import call
from dicom_sets import dataset, save
from fairflare.core.errors import DataError, UserError
from fairflare.data.inputs import TableInputs
from fairflare.data.readers.datalist import Contrasts, Frame, Item
from fairflare.data.readers.pictures import Reader
from fairflare.data.site_config import SiteConfig, read_site_config
from fairflare.engine.setup import tasks
from fairflare.import_data.detect import look
from fairflare.import_data.labels import known_after, says_class, says_site
from fairflare.import_data.proposal import Choices
from fairflare.import_data.tables import read_again
from fairflare.import_data.write import lines as lines_of
from fairflare.tasks.kinds.own import INSIDE
from volume_files import ball, turned
from volume_files import write as write_volume


def written(root):
    """(site, split, image, frame, label, patient) of every entry that `init` has written."""
    for path in sorted((root / INSIDE).glob("*.json")):
        if path.stem != "dataset":
            for split, entries in json.loads(path.read_text()).items():
                for one in entries:
                    yield path.stem, split, one["image"], one.get("frame"), one["label"], one.get("patient_id", "")


def no_patient_in_two_splits(root, truth):
    """Patients of the truth, or files where it knows none."""
    splits = defaultdict(set)
    for site, split, image, _, _, _ in written(root):
        splits[site, truth[image][2] or image].add(split)
    return bool(splits) and all(len(where) == 1 for where in splits.values())


@each("name", hospital_folders.FOLDERS)
def test_folders_are_read_right_or_refused_with_both_readings(name, tmp_path, capsys):
    root = tmp_path / "data"
    root.mkdir()
    truth = hospital_folders.FOLDERS[name](root)
    if truth.says:
        code, out, err = call(capsys, "init", root, "--yes")
        assert code == 2 and err.count("\n") == 1 and not out and all(part in err for part in truth.says), err
        assert not (root / INSIDE).exists()
    if not truth.files:
        return
    code, _, err = call(capsys, "init", root, "--yes", *truth.flags)
    assert code == 0, err
    found = {image: (site, label, patient) for site, _, image, _, label, patient in written(root)}
    whose = {number: truth.files[image][2] for image, (_, _, number) in found.items()}
    assert {image: (site, label, whose[number]) for image, (site, label, number) in found.items()} == truth.files
    assert len({*whose.values()}) == len(whose), "one number a patient"
    assert no_patient_in_two_splits(root, truth.files)
    assert {split for _, split, *_ in written(root)} == {"training", "validation", "testing"}


@each("name", hospital_tables.TABLES)
def test_tables_are_read_right_or_refused_with_both_readings(name, tmp_path, capsys):
    root = tmp_path / "data"
    root.mkdir()
    truth = hospital_tables.TABLES[name](root)
    code, out, err = call(capsys, "init", root / truth.path, "--yes", *truth.flags)
    if truth.says:
        assert code == 2 and err.count("\n") == 1 and not out and all(part in err for part in truth.says), err
        assert not (root / INSIDE).exists()
        return
    assert code == 0, err
    described = json.loads((root / INSIDE / "dataset.json").read_text())
    assert tuple(described["classes"]) == truth.classes
    assert {
        site: sum(n[split] for split in ("train", "val", "test")) for site, n in described["sites"].items()
    } == truth.sites
    names = next(csv.reader([described["options"]["features"]]))
    specs = json.loads(described["options"].get("columns", "{}"))
    assert {one: specs.get(one, {"kind": "number"})["kind"] for one in names} == truth.features
    assert not set(truth.without) & set(names)
    for site in truth.sites:
        with (root / INSIDE / f"{site}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["split"] for row in rows} == {"train", "val", "test"}
        for one in names:
            if specs.get(one, {"kind": "number"})["kind"] == "number":
                assert all(float(row[one]) >= 0 for row in rows if row[one]) and any(row[one] for row in rows)
    if truth.patients:
        found = look(root, Choices())
        splits = defaultdict(set)
        for one in found.examples:
            splits[one.site, one.patient].add(one.split)
        assert len(splits) > 20 and all(len(where) == 1 for where in splits.values())


@each("name", dicom_sets.SETS)
def test_dicom_archives_are_read_by_their_headers(name, tmp_path, capsys):
    root = tmp_path / "data"
    truth = dicom_sets.SETS[name](root)
    slices = ("--slices", "1") if name in SEVERAL else ()
    code, _, err = call(capsys, "init", root, "--yes", *slices)
    assert code == 0, err
    entries = list(written(root))
    of = {image: (site, "" if name == "masks" else label) for site, _, image, _, label, _ in entries}
    assert of == {image: (site, label) for image, (site, label, _) in truth.items()}
    assert no_patient_in_two_splits(root, truth)
    text = (root / INSIDE / "dataset.json").read_text() + "".join(p.read_text() for p in root.glob(f"{INSIDE}/sites/*"))
    assert not any(patient and patient in text for _, _, patient in truth.values())


SEVERAL = ("multiframe",)


def test_volumes_are_sliced_only_where_it_is_asked_for(tmp_path, capsys):
    dicom_sets.SETS["multiframe"](tmp_path / "data")
    code, _, err = call(capsys, "init", tmp_path / "data", "--yes")
    assert code == 2 and "--slices 1 takes every slice" in err


@each("flag", ["--patient", "--site", "--label", "--groups"])
@each("make", [hospital_folders.famous_clinics, hospital_tables.plain])
def test_names_that_are_nowhere_are_errors(flag, make, tmp_path, capsys):
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    code, _, err = call(capsys, "init", root, "--yes", flag, "nonsense")
    assert code == 2 and err.count("\n") == 1 and flag in err and "nonsense" in err, err


def test_a_header_that_is_asked_for_groups_the_patients(tmp_path, capsys):
    root = tmp_path / "data"
    dicom_sets.patients(root)
    code, _, err = call(
        capsys, "init", root, "--yes", "--groups", "sex,age,Manufacturer", "--patient", "StudyInstanceUID"
    )
    assert code == 0, err
    groups = json.loads((root / INSIDE / "dataset.json").read_text())["options"]["attribute_values"]
    assert "sex=F|M" in groups and "age_band=" in groups and "Manufacturer=" in groups


def test_a_choice_at_a_terminal_decides(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    hospital_folders.numbers_for_both(root)
    asked = []

    def second(what, readings):
        asked.append((what, [one.flags for one in readings]))
        return 1

    found = look(root, Choices(ask=second))
    assert found.sites == ["0", "1"] and found.classes == ("01", "02", "03")
    assert asked == [
        ("folders may be read in two ways", ["--site folder1 --label folder2", "--site folder2 --label folder1"])
    ]
    with pytest.raises(UserError, match="--site folder1 --label folder2"):
        look(root, Choices())


def test_what_names_say():
    assert all(map(known_after, ("time", "fu_days", "OS_months", "Sterbedatum", "Überleben_Tage")))
    assert not any(map(known_after, ("os", "time_since_onset", "fundus")))
    assert all(
        map(
            says_site,
            ("Charité", "St. Josef Krankenhaus", "東京病院", "site-3", "UniKlinik Süd", "hospital_B", "CHU Lille"),
        )
    )
    assert not any(map(says_site, ("parasitized", "hospitalized", "opposite", "benign", "grade 2", "central")))
    assert all(map(says_class, ("benign", "grade 2", "class_0", "Nevus", "non-tumor", "No Finding")))
    assert not any(map(says_class, ("Lyon", "charite", "P0123", "1234", "01")))
    assert all(
        map(known_after, ("days_to_event", "lengthOfStay", "Days_hospital_to_outcome", "death_date", "follow_up"))
    )
    assert not any(map(known_after, ("age", "time_since_diagnosis", "systolic", "previous_stroke")))


@each("name", hospital_habits.HABITS)
def test_what_cannot_be_read_right_is_refused_in_a_line(name, tmp_path, capsys):
    root = tmp_path / "data"
    root.mkdir()
    says = hospital_habits.HABITS[name](root)
    code, out, err = call(capsys, "init", root, "--yes")
    if says:
        assert code == 2 and err.count("\n") == 1 and not out and all(part in err for part in says), err
        assert not (root / INSIDE).exists()
    else:
        assert code == 0, err


def test_folders_give_the_sites_that_a_table_lacks(tmp_path):
    hospital_habits.table_beside_hospitals(tmp_path)
    assert look(tmp_path, Choices()).sites == ["Klinik A", "Klinik B"]


def test_a_column_of_files_is_taken_for_the_images(tmp_path):
    hospital_habits.ages_that_are_file_names(tmp_path)
    found = {one.image: one.label for one in look(tmp_path, Choices()).examples}
    assert found == {f"{k}.png": ("ill", "well")[k % 2] for k in range(1, 61)}


LIPASE = "about 0.9706 at B and 9.706 at A: are the units the same?"
CODED = {
    "glucose": (lambda k: 90 + k, lambda k: 5 + k / 18, "about 6.639 at B and 119.5 at A: are the units the same?"),
    "chol": (lambda k: 200 + k, lambda k: 0, "about 0 at B and 229.5 at A: are the units the same?"),
    "alcohol": (
        lambda k: ("ja", "nein")[k % 2],
        lambda k: k % 2,
        "ja, nein at A and 0, 1 at B: are the codes the same?",
    ),
    "lipase": (lambda k: 2 ** (k / 9), lambda k: 2 ** (k / 9) / 10, LIPASE),
    "diabetes": (lambda k: k % 2, lambda k: 1 + k % 2, "0, 1 at A and 1, 2 at B: are the codes the same?"),
    "lactate": (lambda k: k, lambda k: None, "B has no value"),
}


def test_notes_say_which_columns_differ_between_sites(tmp_path):
    table = hospital_tables.cohort(sites=("A", "B")).assign(ort=["Köln", "Bern"] * 60)
    for here in (True, False):
        for name, (a, b, _) in CODED.items():
            table[name] = [(b if k % 2 and here else a)(k // 2) for k in range(len(table))]
        hospital_habits.write(tmp_path, table)
        notes = look(tmp_path, Choices()).notes
        assert [f"{name}: {note}" in notes for name, (_, _, note) in CODED.items()] == [here] * len(CODED), notes
    assert any("have one value at each site" in note and note.endswith(": ort") for note in notes)


@pytest.mark.parametrize("other", ["{}.0", "0{}", "{}.00"])
def test_an_id_is_of_one_patient_in_every_spelling(other, tmp_path):
    """pandas writes 1050 as 1050.0 in a column with gaps: such patients lay in two splits."""
    one, people = hospital_tables.cohort(sites=("A",)), range(1050, 1170)
    again = one.assign(crp=range(120), smoker="no")
    hospital_habits.write(tmp_path, pd.concat([one.assign(pid=people), again.assign(pid=[*map(other.format, people)])]))
    found = look(tmp_path, Choices())
    assert found.patients == "column pid"
    splits = [one.split for one in found.examples]
    assert splits[:120] == splits[120:] and len({*splits}) == 3


@each("column, refused", [("survived", True), ("died", False)])
def test_a_model_s_other_tables_do_not_say_survived_in_other_words(column, refused, tmp_path):
    hospital_habits.write(tmp_path, hospital_tables.cohort()[["died"]].rename(columns={"died": column}))
    read = partial(read_again, tmp_path / "cohort.csv", TableInputs(()), (column,))
    if refused:
        with pytest.raises(DataError, match="survived: expected alive, dead, got 0, 1, which may mean either of them"):
            read(("alive", "dead"))
    else:
        assert read(("alive", "dead"))[1] == ["died: 0, 1 are read as alive, dead"]
    assert not read(("0", "1"))[1] and read(("no", "yes"))[1] == [f"{column}: 0, 1 are read as no, yes"]


def test_a_code_for_missing_is_found_as_pandas_writes_it_and_in_one_column_alone(tmp_path):
    table = hospital_tables.cohort().assign(sex=[0.0, 1.0, 1.0, 9.0] * 30, nodes=[9, 8, 7, 6] * 30)
    hospital_habits.write(tmp_path, table)
    found = look(tmp_path, Choices(missing=("sex=9", "999")))
    assert [sum(not one.cells[name] for one in found.examples) for name in ("sex", "nodes")] == [30, 0]
    kept = json.loads(found.options["columns"])
    assert [kept[name]["codes"] for name in ("sex", "nodes")] == [["9", "999"], ["999"]]


def test_the_risk_is_that_of_yes_and_dates_of_two_digits_are_no_category(tmp_path):
    on = [f"{1 + k % 20:02d}.03.21" for k in range(120)]
    hospital_habits.write(tmp_path, hospital_tables.cohort().assign(died=["ja", "nein"] * 60, admitted=on))
    found = look(tmp_path, Choices())
    assert found.classes == ("nein", "ja") and "admitted" not in found.options["features"]


@pytest.mark.parametrize("name", ["censored", "alive"])
def test_a_column_called_censored_is_no_event_by_itself(name, tmp_path):
    table = hospital_tables.cohort().rename(columns={"died": name}).assign(days=range(120))
    hospital_habits.write(tmp_path, table)
    chosen = Choices(time="days", event=name, horizons="60")
    with pytest.raises(UserError, match="its name may say that 1 is no event"):
        look(tmp_path, chosen)
    assert look(tmp_path, replace(chosen, event_value=("1",))).kind == "survival"
    with pytest.raises(UserError, match="in the unit of days: 119 at most, got 365"):
        look(tmp_path, replace(chosen, event_value=("1",), horizons="60,365"))


def test_an_outcome_s_numbers_are_checked_as_a_predictor_s(tmp_path):
    table = hospital_tables.cohort(sites=("A", "B")).drop(columns="died").assign(hba1c=[5 + k / 40 for k in range(120)])
    hospital_habits.write(tmp_path, table.assign(hba1c=[999 if k % 40 == 0 else 5 + k / 40 for k in range(120)]))
    chosen = Choices(kind="regression", label="hba1c")
    with pytest.raises(UserError, match="hba1c: 999 stands 3 times .*--missing hba1c=999"):
        look(tmp_path, chosen)
    assert len(look(tmp_path, replace(chosen, missing=("hba1c=999",))).examples) == 117
    hospital_habits.write(
        tmp_path, table.assign(hba1c=table["hba1c"].where(table["hospital"] == "A", 40 + table["age"]))
    )
    assert any(note.startswith("hba1c: about 6.475 at A and ") for note in look(tmp_path, chosen).notes)


def test_dates_that_may_mean_two_days_are_left_out(tmp_path):
    hospital_habits.dates_of_two_kinds(tmp_path)
    found = look(tmp_path, Choices(since="born"))
    assert "seen" not in next(csv.reader([found.options["features"]]))
    assert any("if day or month comes first: seen" in note for note in found.notes)


@pytest.mark.parametrize(
    ("names", "patients"),
    [
        (("P07_slice3", "P07_slice4"), 12),
        (("T{p}-0-1", "T{p}-0-2"), 12),
        (("slice00_P{p}", "slice01_P{p}"), 12),
        (("{p}-L", "{p}-R"), 12),
    ],
)
def test_the_part_of_a_name_that_is_the_patient(names, patients, tmp_path):
    drawn = hospital_folders.Drawn()
    for p in range(12):
        for name in names:
            text = name.replace("07", f"{p:02d}") if "{p}" not in name else name.format(p=f"{p:02d}")
            drawn.save(tmp_path / "site-1" / ("normal", "tumor")[p % 2] / f"{text}.png", p % 2)
    found = look(tmp_path, Choices())
    assert len({one.patient for one in found.examples}) == patients
    splits = defaultdict(set)
    for one in found.examples:
        splits[one.patient].add(one.split)
    assert all(len(where) == 1 for where in splits.values())


def test_patients_are_looked_for_at_each_site(tmp_path):
    """One site's list, or its headers, say nothing of those at another."""
    drawn = hospital_folders.Drawn()
    for site in "ABC":
        entries = []
        for k in range(32):
            name_of = f"PB{k // 4:02d}_slice{k % 4}" if site == "B" else str(k)
            drawn.save(tmp_path / "lists" / site / f"{name_of}.png", k // 4 % 2)
            own = {"patient_id": k // 4} if site == "A" else {}
            entries.append({"image": f"{name_of}.png", "label": k // 4 % 2, **own})
        (tmp_path / "lists" / site / "dataset.json").write_text(json.dumps({"training": entries}))
    found = look(tmp_path / "lists", Choices())
    assert found.patients == "patient_id of the lists and the beginning of the files' names"
    assert [len({one.patient for one in found.of(site)}) for site in found.sites] == [8, 8, 1]
    assert any(note.startswith("C: patients are not known of all") for note in found.notes)
    assert any("nobody known is in two" in line for line in lines_of(tmp_path, found, {}))
    with pytest.raises(UserError, match="--patient: unknown level 'ward'; known: folder1, name"):
        look(tmp_path / "lists", Choices(patient="ward"))
    for site, number, k in itertools.product(("north", "south"), range(10), range(2)):
        who, pixels = "ANON" if site == "north" else f"S{number}", np.full((9, 9), 9 * number, np.uint16)
        file = dataset(pixels, who, study=f"{site}{number}", instance=k)
        save(tmp_path / "headers" / site / ("benign", "malignant")[number % 2] / f"{number}_{k}.dcm", file)
    found = look(tmp_path / "headers", Choices())
    assert found.patients == "the DICOM header PatientID (StudyInstanceUID at north)"
    for site in found.sites:
        splits = {(one.patient, one.split) for one in found.of(site)}
        assert len(splits) == len({patient for patient, _ in splits}) == 10


def test_spellings_of_one_patient_stay_together(tmp_path):
    table = hospital_tables.cohort()
    table["patient_id"] = [("p{:03d}", "P{:03d}")[k % 2].format(k // 4) for k in range(len(table))]
    table.to_csv(tmp_path / "cohort.csv", index=False)
    splits = defaultdict(set)
    for one in look(tmp_path, Choices()).examples:
        splits[one.site, one.patient.lower()].add(one.split)
    assert all(len(where) == 1 for where in splits.values())


def test_localizers_are_left_out_and_what_tells_the_class_at_a_site_is_said(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for site in ("charite", "mayo"):
        for k in range(24):
            folder, maker = (
                tmp_path / site / ("benign", "malignant")[k % 2],
                ("GE", "Philips")[k % 2 * (site == "mayo")],
            )
            for series, of in enumerate(("AXIAL", "LOCALIZER", "SCREEN SAVE")[: 2 + (k < 2)]):
                pixels = rng.integers(0, 900, (32, 32 + series)).astype(np.int16)
                more = {"series": series, "ImageType": ["ORIGINAL", "PRIMARY", of], "Manufacturer": maker}
                more["modality"] = "MR" if site == "charite" else "CT"
                save(folder / f"{k}_{series}.dcm", dataset(pixels, f"{site}{k:03d}", **more))
    (tmp_path / "notes").write_text("a;b\n1;2\n3;4\n")
    found = look(tmp_path, Choices())
    assert len(found.examples) == 48 and all(one.image.endswith("_0.dcm") for one in found.examples)
    assert any(note.startswith("52 images are localizers") for note in found.notes)
    assert any(note.startswith("modalities differ: MR (24), CT (24)") for note in found.notes)
    assert found.suspects == ("Manufacturer alone tells the class at mayo (area under the curve 1.000)",)
    assert any(note.startswith("notes: a table that is not read") for note in found.notes)
    (tmp_path / "alone" / "B").mkdir(parents=True)
    (tmp_path / "notes").rename(tmp_path / "alone" / "cohort.dat")
    for path in (tmp_path / "alone", tmp_path / "alone" / "cohort.dat"):
        code, _, err = call(capsys, "init", path, "--yes")
        assert code == 2 and err.count("\n") == 1 and ".csv" in err, err
    for name in ("A.csv", "B/b.dat", "c.csv.gz"):
        hospital_habits.write(tmp_path / "alone", hospital_tables.cohort(), name)
    notes = look(tmp_path / "alone", Choices()).notes
    assert any(note.startswith("B/b.dat, cohort.dat: a table that is not read") for note in notes)
    assert any(note.startswith("1 files of other formats are not read, e.g. c.csv.gz is packed") for note in notes)


def test_a_format_or_a_size_that_tells_the_class_is_said(tmp_path):
    drawn = hospital_folders.Drawn()
    for k in range(48):
        path = tmp_path / "AB"[k // 24] / ("normal", "tumor")[k % 2] / f"{k}.{'jpg' if k % 2 and k < 24 else 'png'}"
        drawn.save(path)
        if k % 2 and k >= 24:
            Image.open(path).resize((30, 30)).save(path)
    suspects = look(tmp_path, Choices()).suspects
    alone = "alone tells the class at {} (area under the curve 1.000)".format
    assert suspects == (f"the files' format {alone('A')}", f"the images' size {alone('B')}")


def test_slices_that_run_along_other_axes_are_said(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(16):
        image, mask, affine = ball(rng, (20, 18, 15))
        for name, voxels in ((f"{k}.nii", image), (f"{k}_mask.nii", mask)):
            write_volume(tmp_path / "AB"[k // 8] / name, *turned(voxels, affine, ("RAS", "PSR")[k // 8]))
    notes = look(tmp_path, Choices(slices=5)).notes
    assert any(note.startswith("axes RAS of A/0.nii (A), PSR of B/8.nii (B): slices are read") for note in notes)


def test_one_slices_mask_is_not_that_of_a_volume(tmp_path):
    for k in range(6):
        image, mask, affine = ball(np.random.default_rng(k), (20, 18, 15))
        write_volume(tmp_path / f"{k}.nii", image, affine)
        write_volume(tmp_path / f"{k}_mask.nii", mask[..., 7:8], affine)
    with pytest.raises(UserError, match="init: 0_mask.nii: expected 15 slices as of 0.nii, got 1"):
        look(tmp_path, Choices(slices=5))


def test_each_frame_of_an_image_has_the_mask_that_names_it(tmp_path, capsys):
    """And those that none names have an empty one."""
    masks = np.zeros((4, 16, 16), np.uint8)
    masks[1, :4], masks[3, 12:] = 1, 2
    for p in range(6):
        image = dataset(masks + np.uint8(p), f"P{p}", modality="US", NumberOfFrames=4)
        found = dicom_sets.segmentation([image] * 4, masks, ["liver", "tumour"])
        for number, group in zip((2, 4), found.PerFrameFunctionalGroupsSequence):
            group.DerivationImageSequence[0].SourceImageSequence[0].ReferencedFrameNumber = number
        save(tmp_path / f"{p}.dcm", image)
        save(tmp_path / f"{p}_seg.dcm", found)
    assert call(capsys, "init", tmp_path, "--slices", "1", "--yes")[0] == 0
    entries, reader = [*written(tmp_path)], Reader(16, 1, {"liver": (1,), "tumour": (2,)})
    assert len(entries) == 24
    for _, _, name, frame, mask, _ in entries:
        item = Item(Frame(tmp_path / name, frame), tmp_path / mask)
        assert np.array_equal(reader(item)[1], [masks[frame] == 1, masks[frame] == 2])
    del group.DerivationImageSequence[0].SourceImageSequence[0].ReferencedFrameNumber
    save(tmp_path / f"{p}_seg.dcm", found)
    with pytest.raises(UserError, match="5_seg.dcm: expected one frame of 4 as the source of each mask, got 'None'"):
        look(tmp_path, Choices(slices=1))


@pytest.mark.parametrize("form", ["table", "list"])
def test_a_column_that_tells_the_class_of_images_is_said(form, tmp_path):
    drawn, rows = hospital_folders.Drawn(), []
    for k in range(48):
        drawn.save(tmp_path / f"{k}.png", k % 2)
        side = "LR"[k % 2 if k < 24 else k // 2 % 2]
        rows.append({"image": f"{k}.png", "label": ("ill", "well")[k % 2], "laterality": side, "site": "AB"[k // 24]})
    if form == "table":
        hospital_habits.write(tmp_path, pd.DataFrame(rows))
    for site in "AB" if form == "list" else "":
        own = [row for row in rows if row["site"] == site]
        (tmp_path / f"{site}.json").write_text(json.dumps({"training": own}))
    suspects = look(tmp_path, Choices()).suspects
    assert suspects == ("laterality alone tells the class at A (area under the curve 1.000)",)


def test_images_of_two_sites_of_two_rows_and_of_none_are_said(tmp_path):
    drawn = hospital_folders.Drawn()
    for k in range(24):
        drawn.save(tmp_path / "a" / f"{k}.png", k % 2)
    for k in range(12):
        (tmp_path / "a" / f"{k}.png").rename(tmp_path / "a" / f"s{k}.png")
        shutil.copy(tmp_path / "a" / f"s{k}.png", tmp_path / "a" / f"t{k}.png")
    names = [f"{where}{k}" for where in "st" for k in range(12)]
    rows = [{"image": f"{name}.png", "label": "xy"[k % 2], "site": "AB"[k // 12]} for k, name in enumerate(names)]
    hospital_habits.write(tmp_path, pd.DataFrame([*rows, *rows[:3]]))
    notes = look(tmp_path, Choices()).notes
    assert "3 rows name an image that another row names, too: it counts twice" in notes
    assert "12 images are in no row and are left out, e.g. a/12.png" in notes
    assert "12 images are files of another site, too, e.g. a/t0.png and a/s0.png" in notes


def test_codes_in_lists_are_the_same_columns_at_every_site_and_in_use(tmp_path, capsys):
    rng, rows = np.random.default_rng(3), []
    for site, pool in {"A": ("I10", "E11", "J44", "N18"), "B": ("I10", "E11", "C34"), "C": ("J44", "I10")}.items():
        for _ in range(90):
            codes = rng.permutation(pool)[: rng.integers(0, len(pool) + 1)]
            died = int(rng.random() < 0.2 + 0.4 * ("I10" in codes))
            rows.append({"hospital": site, "icd": "; ".join(codes), "age": rng.integers(20, 90), "died": died})
    table = pd.DataFrame(rows)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert call(capsys, "init", tmp_path / "t.csv", "--label", "died", "--yes")[0] == 0
    options = json.loads((tmp_path / INSIDE / "dataset.json").read_text())["options"]
    levels = ["C34", "E11", "I10", "J44", "N18"]
    spec = {"kind": "category", "levels": levels, "separator": ";", "missing": True}
    assert json.loads(options["columns"])["icd"] == spec
    assert call(capsys, "run", "fedavg", "--data", tmp_path, "--rounds", "2", "--out", tmp_path / "run")[0] == 0
    agreed = json.loads((tmp_path / "run" / "config.json").read_text())["options"]["columns"]
    assert json.loads(agreed)["icd"] == spec  # of all sites' fingerprints, though each lacks some
    task = tasks.load("tabular", None, **{**options, "labels": "0,1"})
    inputs = task.table_inputs()
    _, plain = inputs.features("t.csv", {name: list(table[name].astype(str)) for name in table})
    dummies = table["icd"].str.get_dummies("; ")[levels]
    expected = dummies.assign(other=0, gap=(table["icd"] == "").astype(int))
    assert np.array_equal(plain, expected.to_numpy())
    new = pd.DataFrame({"icd": ["I10;E11", "E11 ;I10;I10", "X99;I10", "X99", ""], "age": 50})
    _, plain = inputs.features("new.csv", {name: list(new[name].astype(str)) for name in new})
    assert plain.tolist() == [
        [0, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    new.to_csv(tmp_path / "new.csv", index=False)
    code, _, err = call(capsys, "predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "found")
    risks = pd.read_csv(tmp_path / "found" / "predictions.csv")["p_1"]
    assert code == 0 and risks[0] == risks[1] and risks.nunique() == 4, err
    odd = tmp_path / INSIDE / "C.csv"
    pd.read_csv(odd, dtype=str).assign(icd="401.9;250.0").to_csv(odd, index=False)
    assert "rows have none of C34, E11" in call(capsys, "preflight", tmp_path)[1]


def test_contrasts_of_one_place_are_channels_in_training_and_use(tmp_path, capsys):
    rng, root = np.random.default_rng(0), tmp_path / "data"
    for site in "ab":
        for k in range(24):
            home = root / site / ("ill", "well")[k % 2]
            home.mkdir(parents=True, exist_ok=True)
            for name in ("t1", "t2"):  # t2 alone shows the class
                pixels = rng.integers(0, 60, (20, 20)) + 150 * (name == "t2" and k % 2)
                Image.fromarray(pixels.astype(np.uint8)).save(home / f"p{k:02d}_{name}.png")
    assert call(capsys, "init", root, "--yes")[0] == 0
    first = json.loads((root / INSIDE / "a.json").read_text())["training"][0]
    assert [path[-6:] for path in first["image"]] == ["t1.png", "t2.png"]
    how = ("--data", root, "--rounds", "2", "--set", "size=16", "--out", tmp_path / "run")
    assert call(capsys, "run", "fedavg", *how)[0] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["options"]["channels"] == 2 and len(config["options"]["mean"].split(",")) == 2
    parts = tuple(root / path for path in first["image"])
    stack = Reader(16, 2).image(Contrasts(parts))
    assert torch.equal(stack, torch.cat([Reader(16, 1).image(path) for path in parts]))
    (tmp_path / "new").mkdir()
    for path in (*(root / "a").rglob("p0?_t?.png"), *(root / "a").rglob("p10_t1.png")):
        shutil.copy(path, tmp_path / "new")
    code, out, err = call(capsys, "predict", tmp_path / "run", tmp_path / "new", "--out", tmp_path / "found")
    found = pd.read_csv(tmp_path / "found" / "predictions.csv")
    assert code == 0 and list(found["file"]) == [f"p{k:02d}_t1.png" for k in range(10)], err
    assert "1 files lack a contrast" in out + err
    code, _, err = call(capsys, "predict", tmp_path / "run", parts[0], "--out", tmp_path / "one")
    assert code != 0 and "expected an image of 2 contrasts or channels, got 1" in err
    small = tmp_path / "small.png"
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(small)
    with pytest.raises(DataError, match="expected contrasts on the same pixels, got 20x20 and 9x9"):
        Reader(16, 2).image(Contrasts((parts[0], small)))


def test_dates_that_sites_write_differently_are_converted_by_the_lines_that_are_printed(tmp_path, capsys):
    """A writes ISO, B as in America, C as Excel counts, D day first; E's days and months have changed places."""
    rng, sites = np.random.default_rng(4), tmp_path / "sites"
    sites.mkdir()
    spec = {"op": {"kind": "days", "since": "admitted"}, "icd": {"kind": "category", "separator": ";"}}
    how = ("--kind", "tabular", "--classes", "0,1", "--set", "label=died", "--set", "features=age,op,icd")
    how += ("--set", f"columns={json.dumps(spec)}")
    leveled = {**spec, "icd": {**spec["icd"], "levels": ["E11", "I10.9", "J44"]}}
    agreed = (*how[:-1], f"columns={json.dumps(leveled)}")
    forms = {"A": "%Y-%m-%d", "B": "%m/%d/%Y", "C": "", "D": "%d/%m/%Y", "E": "%Y-%d-%m"}
    true = {}
    for site, form in forms.items():
        first = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 900, 200), "D")
        first = first.where(first.day < 13, first - pd.to_timedelta(first.day - 1, "D")) if site == "E" else first
        first = first.map(lambda day: day.replace(day=1 + day.month % 12)) if site == "E" else first
        later = first + pd.to_timedelta(0 if site == "E" else rng.integers(0, 9, 200), "D")
        true[site] = np.asarray((later - first).days, dtype=float)
        dates = {"admitted": first, "op": later}
        written = {k: [one.strftime(form) for one in v] if form else (v - pd.Timestamp("1899-12-30")).days
                   for k, v in dates.items()}  # fmt: skip
        codes = rng.choice(["I10.9;E11", "I10.9", "E11;J44", "J44"], 200)
        codes = [one.lower().replace(".", "") for one in codes] if site == "D" else codes
        table = pd.DataFrame({"age": rng.normal(60, 9, 200).round(1), **written, "icd": codes})
        table.assign(died=rng.integers(0, 2, 200)).to_csv(tmp_path / f"{site}.csv", index=False)
        (sites / f"{site}.yaml").write_text(f"data_root: ..\ndatalist: {site}.csv\n")

    def plan():
        prints = [tmp_path / f"{site}.fp.json" for site in forms]
        for site, path in zip(forms, prints, strict=True):
            assert call(capsys, "fingerprint", sites / f"{site}.yaml", *how, "--out", path)[0] == 0
        assert "2019-" not in prints[0].read_text() and '"dates"' in prints[0].read_text()
        return call(capsys, "plan", *prints)[1]

    code, out, err = call(capsys, "preflight", sites / "B.yaml", *agreed)
    assert code == 1, out + err
    assert "a line of the site's file says how it is read: dates: {" in " ".join(out.split())
    first = plan()
    assert "no day of op at E lies after the 12th: have day and month changed places?" in first
    assert "op is written MM/DD/YYYY at B" in first and "admitted is written excel at C" in first
    assert "A convert" not in first
    for site, lines in re.findall(r"lines of the file of (\w) convert: (.*)", first):
        for line in re.findall(r"(?:recode|dates): \{.*?\}+(?= and |\n|$)", lines + "\n"):
            file = sites / f"{site}.yaml"
            file.write_text(file.read_text() + line + "\n")
    assert "convert" not in plan() and call(capsys, "preflight", sites, *agreed)[0] == 0
    task = tasks.load("tabular", None, labels="0,1", label="died", features="age,op,icd", columns=json.dumps(spec))
    for site in forms:
        found = task._columns(tmp_path / f"{site}.csv", read_site_config(sites / f"{site}.yaml"))
        days = (pd.to_datetime(found["op"]) - pd.to_datetime(found["admitted"])).days
        assert np.array_equal(days, true[site]) and {*found["icd"]} == {"I10.9;E11", "I10.9", "E11;J44", "J44"}, site


def test_outcomes_and_codes_that_differ_between_sites_are_converted_by_the_lines_that_are_printed(tmp_path, capsys):
    rng = np.random.default_rng(5)
    sites = tmp_path / "sites"
    sites.mkdir()
    how = ("--kind", "tabular", "--classes", "no,yes", "--set", "label=died", "--set", "features=age,smoker")
    words = {"A": ("no", "yes"), "B": ("nein", "ja"), "C": ("yes", "no"), "D": ("0", "1")}  # C has them turned
    for site, (none, event) in words.items():
        n = 300
        ill, smoker = rng.random(n) < 0.15, rng.random(n) < 0.2
        table = pd.DataFrame({"age": rng.normal(60, 9, n).round(3), "died": np.where(ill, event, none)})
        table.assign(smoker=(smoker != (site == "D")).astype(int)).to_csv(tmp_path / f"{site}.csv", index=False)
        (sites / f"{site}.yaml").write_text(f"data_root: ..\ndatalist: {site}.csv\n")

    def paste(text):
        for site, line in re.findall(r"lines of the file of (\w) convert: (recode: \{.*?\}+)", text):
            file = sites / f"{site}.yaml"
            known = yaml.safe_load(file.read_text())
            known.setdefault("recode", {}).update(yaml.safe_load(line)["recode"])
            file.write_text(yaml.safe_dump(known))

    code, out, _ = call(capsys, "preflight", sites, *how)
    assert code == 1 and 'of the file of B convert: recode: {"died": {"nein": "no", "ja": "yes"}}' in out
    assert 'of the file of D convert: recode: {"died": {"0": "no", "1": "yes"}}' in out
    assert 'of the file of C convert: recode: {"died": {"no": "yes", "yes": "no"}}' in out
    paste(out)
    code, out, _ = call(capsys, "preflight", sites, *how)
    assert (
        code == 0 and 'of the file of D convert: recode: {"smoker": {"0": "1", "1": "0"}}' in out and "units" not in out
    )
    prints = [tmp_path / f"{site}.fp.json" for site in words]
    for site, path in zip(words, prints, strict=True):
        assert call(capsys, "fingerprint", sites / f"{site}.yaml", *how, "--out", path)[0] == 0
    assert 'of the file of D convert: recode: {"smoker": {"0": "1", "1": "0"}}' in call(capsys, "plan", *prints)[1]
    paste(out)
    code, out, _ = call(capsys, "preflight", sites, *how)
    assert code == 0 and "nothing found" in out and "convert" not in out


def test_a_table_as_the_hospital_has_it_is_predicted_and_evaluated_as_init_reads_it(tmp_path, capsys):
    """Names, a row of units, commas, units in cells, dates, outcomes and what is no number."""
    days = pd.date_range("2020-01-01", periods=240)
    whole = import_situations.base(sites="AB", sodium=lambda rng, t: rng.integers(120, 150, 240)).assign(
        admitted=days, operated=days + pd.Timedelta(days=3)
    )
    for site, own in whole.astype(object).groupby("hospital"):
        own = own.drop(columns="hospital").assign(age=[f"{age} years" for age in own["age"]])
        if site == "B":
            crp = [f"{v:.1f}".replace(".", "," if k % 2 else ".") for k, v in enumerate(own["crp"])]
            own["crp"], own["sodium"] = crp, [*own["sodium"][:-1], "hemolysed"]
            own["died"] = own["died"].map({0: "nein", 1: "ja"})
            own["operated"] = own["operated"].map(lambda day: f"{day:%d/%m/%Y}")
            own = own.rename(columns={"crp": "CRP", "age": "Age ", "sodium": "Natrium", "died": "Gestorben"})
        own.to_csv(tmp_path / f"{site}.csv", index=False)
    how = ("--rename", "Natrium=sodium,Gestorben=died", "--since", "admitted", "--yes")
    code, out, err = call(capsys, "init", tmp_path, "--label", "died", *how)
    assert code == 0, err
    run = tmp_path / "run"
    code, _, err = call(capsys, "run", "fedavg", "--data", tmp_path, "--rounds", "1", "--workers", "1", "--out", run)
    assert code == 0, err
    answers = []
    for name, table in (("at-init", tmp_path / INSIDE / "B.csv"), ("raw", tmp_path / "B.csv")):
        pd.read_csv(table, dtype=str)[5:].to_csv(
            table := tmp_path / f"{name}.csv", index=False
        )  # no list of the training
        code, text, err = call(capsys, "predict", run, table, "--out", tmp_path / f"p-{name}")
        assert code == 0, err
        risks = pd.read_csv(tmp_path / f"p-{name}" / "predictions.csv").iloc[:, -1].to_numpy()
        code, more, err = call(capsys, "evaluate", run, table, "--name", "new", "--out", tmp_path / f"e-{name}")
        assert code == 0, err
        content = json.loads((tmp_path / f"e-{name}" / "evaluation.json").read_text())["sites"]["new"]["metrics"]
        answers.append((np.sort(risks), {key: one["value"] for key, one in content.items()}))
        said = " ".join((text + more + err).split())
    assert np.array_equal(answers[0][0], answers[1][0]) and answers[0][1] == pytest.approx(answers[1][1])
    names = "Age, CRP, Natrium and 1 more are read as age, crp, sodium and 1 more"
    for part in (names, "nein, ja are read as 0, 1", "is read as", "1 cells are no numbers"):
        assert part in said, said


def test_a_groups_values_are_known_however_whole_numbers_are_written(tmp_path, capsys):
    """A column with gaps is written as 1.0 by pandas, and another hospital has 1."""
    numbered = import_situations.base(sites="AB").replace({"sex": {"f": "0.0", "m": "1.0"}})
    for site, own in numbered.groupby("hospital"):
        own.drop(columns="hospital").to_csv(tmp_path / f"{site}.csv", index=False)
    new, run = tmp_path / "new.csv", tmp_path / "run"
    assert call(capsys, "init", tmp_path, "--label", "died", "--groups", "sex", "--yes")[0] == 0
    assert call(capsys, "run", "fedavg", "--data", tmp_path, "--rounds", "1", "--workers", "1", "--out", run)[0] == 0
    numbered[5:].replace({"sex": {"0.0": "0", "1.0": "1"}}).drop(columns="hospital").to_csv(new, index=False)
    for table in (new, tmp_path / "A.csv"):
        code, out, err = call(capsys, "predict", run, table, "--out", tmp_path / f"p-{table.stem}")
        assert code == 0 and "unknown value" not in out + err, out + err
    code, _, err = call(capsys, "evaluate", run, new, "--group-by", "sex", "--out", tmp_path / "e")
    assert code == 0, err
    groups = json.loads((tmp_path / "e" / "evaluation.json").read_text())["sites"]["new"]["groups"]
    assert [row["group"] for row in groups] == ["0.0", "1.0"] and sum(row["n"] for row in groups) == len(numbered) - 5
    code, _, err = call(capsys, "evaluate", run, new, "--group-by", "age_band", "--out", tmp_path / "bands")
    groups = json.loads((tmp_path / "bands" / "evaluation.json").read_text())["sites"]["new"]["groups"]
    ages = numbered[5:]["age"]
    assert code == 0 and {row["group"]: row["n"] for row in groups} == {
        "under 40": sum(ages < 40),
        "40 to 59": sum((ages >= 40) & (ages < 60)),
        "60 to 79": sum((ages >= 60) & (ages < 80)),
        "80 and over": sum(ages >= 80),
    }
    pd.read_csv(new, dtype=str).assign(sex="").to_csv(tmp_path / "none.csv", index=False)
    code, _, err = call(capsys, "evaluate", run, tmp_path / "none.csv", "--group-by", "sex", "--out", tmp_path / "none")
    assert code == 0 and "sex: no row says it: is there such a column?" in " ".join(err.split())


def check_models_use(folder, capsys, monkeypatch, converted):
    """A model that was trained on the converted table predicts and evaluates the site's own as the converted one."""
    sites, run = folder / INSIDE / "sites", folder / "run"
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(sites))
    assert call(capsys, "run", "fedavg", "--data", folder, "--rounds", "2", "--workers", "1", "--out", run)[0] == 0
    monkeypatch.delenv("FAIRFLARE_SITE_CONFIG")
    own, theirs = folder / "own.csv", folder / "converted.csv"
    pd.read_csv(folder / INSIDE / "B.csv", dtype=str)[5:].to_csv(own, index=False)  # no list of the training
    converted[5:].to_csv(theirs, index=False)
    new = folder / "new.yaml"
    lines = (sites / "B.yaml").read_text().splitlines()
    new.write_text("\n".join(["data_root: .", "datalist: own.csv", *(one for one in lines if "{" in one)]))

    def risks(number, *how):
        out = folder / f"risks{number}"
        code, text, err = call(capsys, "predict", run, *how, "--out", out)
        assert code == 0, err
        return pd.read_csv(out / "predictions.csv")["p_1"].to_numpy(), text + err

    true, _ = risks(0, theirs)
    for number, how in enumerate(((own, "--site", "B"), (own, "--site-config", sites / "B.yaml")), 1):
        found, said = risks(number, *how)
        assert np.array_equal(found, true) and "converted as the site's file says" in said
    odd, said = risks(3, own)
    assert not np.allclose(odd, true) and "are the units the same?" in said

    patients = pd.read_csv(theirs, dtype=str)
    patients.drop(columns="age").to_csv(folder / "lacks.csv", index=False)
    patients.assign(age=12 * patients["age"].astype(float)).to_csv(folder / "months.csv", index=False)
    assert "column age: is missing" in risks(4, folder / "lacks.csv")[1]
    assert "age: a mean of" in risks(5, folder / "months.csv")[1]

    def area(number, *how):
        out = folder / f"area{number}"
        code, _, err = call(capsys, "evaluate", run, *how, "--out", out)
        assert code == 0, err
        (site,) = json.loads((out / "evaluation.json").read_text())["sites"].values()
        return {name: one["value"] for name, one in site["metrics"].items()}

    true = area(0, theirs)
    assert area(1, own, "--name", "new", "--site-config", sites / "B.yaml") == true
    assert area(2, new) == true
    assert area(3, own, "--name", "other") != true
    decimal = folder / "decimal.csv"
    patients.assign(died=patients["died"] + ".0").to_csv(decimal, index=False)
    assert area(6, decimal) == true
    test = area(4, sites / "B.yaml", "--name", "B", "--split", "test")  # as the site was in training
    assert area(5, folder, "--name", "B", "--split", "test") == test
    code, _, err = call(capsys, "evaluate", run, folder, "--split", "test", "--site-config", sites / "B.yaml")
    assert code == 2 and "--site-config" in err and "--name" in err


def test_units_and_codes_of_a_site_are_converted_by_the_lines_that_are_printed(tmp_path, capsys, monkeypatch):
    rng, rows = np.random.default_rng(1), []
    for site in "ABC":
        for k in range(80):
            crea, warm = rng.normal(90, 12), rng.normal(37, 0.5)
            own = {"crea": crea, "temp": warm, "sex": "fm"[k % 2], "ward": f"{'uvw'[k % 3]}1"}
            if site == "B":
                own = {
                    "crea": crea / 88.42,
                    "temp": warm * 1.8 + 32,
                    "sex": str(k % 2 + 1),
                    "ward": f"{'uvw'[k % 3]} 1",
                }
            own["crea"] = 999 if k == 7 else own["crea"]
            rows.append({"hospital": site, **own, "age": rng.integers(20, 90), "died": int(rng.random() < 0.4)})
    pd.DataFrame(rows).round(3).to_csv(tmp_path / "t.csv", index=False)
    given = ("--missing", "crea=999", "--categories", "sex", "--categories", "ward")
    assert call(capsys, "init", tmp_path / "t.csv", "--label", "died", "--yes", *given)[0] == 0
    sites = tmp_path / INSIDE / "sites"

    file = sites / "B.yaml"

    def paste(text):
        for line in re.findall(r"(?:scale|shift|recode): \{.*?\}+(?= |\n|$)", text):
            file.write_text(file.read_text() + line + "\n")

    described = json.loads((tmp_path / INSIDE / "dataset.json").read_text())
    asked = [part for key, value in described["options"].items() for part in ("--set", f"{key}={value}")]

    def plan():
        prints = [tmp_path / f"{site}.fp.json" for site in "ABC"]
        for site, path in zip("ABC", prints):
            how = ("--kind", "tabular", "--classes", "0,1", "--out", path, *asked)
            assert call(capsys, "fingerprint", sites / f"{site}.yaml", *how)[0] == 0
        code, out, err = call(capsys, "plan", *prints)
        assert code == 0, err
        return out

    first = plan()
    for said in (
        "crea: a mean of 1.0",
        "temp: a mean of 3",
        'scale: {"crea": 88.42, "temp": 0.55556} and shift: {"temp": -17.7778}',
        'recode: {"sex": {"1": "f", "2": "m"}, "ward": {"u 1": "u1", "v 1": "v1", "w 1": "w1"}}',
    ):
        assert said in first, first
    assert call(capsys, "preflight", tmp_path)[1] == call(capsys, "preflight", sites)[1].replace("\n\n", "\n")
    code, out, _ = call(capsys, "preflight", sites)
    assert code == 0 and "half of crea are about" in out and "A, C: nothing found" in out
    paste(out)
    assert "nothing found" in call(capsys, "preflight", sites)[1]
    left = plan()
    assert "of the file of B convert: recode:" in left and "units" not in left
    paste(left)
    assert "are different levels" not in plan() and "convert" not in plan()
    own = read_site_config(file)
    task = tasks.load("tabular", None, **{**described["options"], "labels": "0,1"})
    cells = task._columns(tmp_path / INSIDE / "B.csv", own)
    assert SiteConfig(scale={"x": 2}, shift={"x": 1}).converted("x", ["1.5", "999", "", "a"], {"999"}) == [
        "4", "999", "", "a",
    ]  # fmt: skip
    assert {*cells["sex"]} == {"f", "m"} and {*cells["ward"]} == {"u1", "v1", "w1"}
    assert 80 < pd.to_numeric(pd.Series(cells["crea"])).median() < 100
    assert 36 < pd.to_numeric(pd.Series(cells["temp"])).median() < 38
    check_models_use(tmp_path, capsys, monkeypatch, pd.DataFrame(cells))
    file.write_text(file.read_text().replace('"crea"', '"creatinine"'))
    code, out, _ = call(capsys, "preflight", file)
    assert code == 1 and "expected a column among" in out and "creatinine" in out


def table_of(seed, n=40):
    rng = np.random.default_rng(seed)
    own = {"age": rng.integers(30, 90, n), "crea": rng.normal(1, 0.3, n).round(2), "died": rng.integers(0, 2, n)}
    return pd.DataFrame(own)


def put(root, **tables):
    for name, table in tables.items():
        path = root / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False)


def refused(root, **chosen):
    with pytest.raises(UserError) as error:
        look(root, Choices(label="died", **chosen))
    return str(error.value)


def test_no_table_in_a_folder_is_passed_over(tmp_path):
    """It was left out without a word, and a hospital with it."""
    put(tmp_path, Mitte=table_of(1), Nord=table_of(2))
    put(tmp_path / "Süd", Haus=table_of(3))
    text = refused(tmp_path)
    assert "Süd/Haus.csv: a table in a folder, beside tables that are in none" in text and "Mitte.csv" in text
    shutil.move(tmp_path / "Süd" / "Haus.csv", tmp_path / "Süd.csv")
    assert sorted(look(tmp_path, Choices(label="died")).sites) == ["Mitte", "Nord", "Süd"]


def test_a_copy_of_a_hospitals_file_does_not_double_it(tmp_path):
    put(tmp_path, **{"Nord/Daten": table_of(1), "Nord/Daten_alt": table_of(1), "Mitte/Daten": table_of(2)})
    assert "Nord/Daten_alt.csv: expected other rows than those of Nord/Daten.csv, got a copy" in refused(tmp_path)


def test_an_id_whose_rows_are_not_one_persons_is_named_and_no_predictor(tmp_path):
    tables = {}
    for seed, site in enumerate(("Mitte", "Nord")):
        sex, ids = np.random.default_rng(seed).choice(["m", "f"], 40), 1001 + np.arange(40) // 2
        tables[site] = table_of(seed).assign(id=ids, Belegnummer=ids + 5000, sex=sex)
    put(tmp_path, **tables)
    found = look(tmp_path, Choices(label="died"))
    assert any("id repeats, but sex differs within one value" in note for note in found.notes)
    assert found.options["features"] == "age,crea,sex"


def test_what_init_says_of_patients_and_of_what_is_left_out_is_so(tmp_path, capsys):
    sex, whole = np.random.default_rng(0).choice(["m", "f"], 40), table_of(0)
    put(tmp_path / "a", Mitte=whole.assign(id=range(1001, 1041)))
    found = look(tmp_path / "a", Choices(label="died"))
    assert not found.patients and [str(one) for one in found.reading if "id: id (" in str(one)]
    assert not any(": patient (" in str(one) for one in found.reading)
    put(tmp_path / "b", Mitte=whole.assign(id=1001 + np.arange(40) // 2, sex=sex, patient_id=np.arange(40) + 501))
    known = look(tmp_path / "b", Choices(label="died"))
    assert known.patients == "column patient_id" and not any("a person of its own" in note for note in known.notes)
    times = whole.drop(columns="died").assign(days=[""] * 3 + [*range(5, 42)], dead=["yes", "no"] * 18 + [""] * 4)
    put(tmp_path / "c", Mitte=times)
    timed = Choices(time="days", event="dead", event_value=("yes",), horizons="20")
    assert "7 rows have no dead or no days and are left out" in look(tmp_path / "c", timed).notes
    assert call(capsys, "init", tmp_path / "a", "--label", "died", "--yes")[0] == 0
    assert not any("not read" in note for note in look(tmp_path / "a", Choices(label="died")).notes)


def test_a_hospital_without_the_outcome_is_not_told_to_leave_the_outcome_out(tmp_path):
    put(tmp_path, Mitte=table_of(1), Nord=table_of(2), Süd=table_of(3).drop(columns="died"))
    text = refused(tmp_path)
    assert (
        "Süd.csv: expected the columns of Mitte.csv; lacks died (a hospital without the outcome: --without 'Süd'"
        in text
    )
    assert "leave-out" not in text
    assert look(tmp_path, Choices(label="died", without=("Süd",))).sites == ["Mitte", "Nord"]
    assert "unknown site" in refused(tmp_path, without=("Ost",)) or "lacks died" in refused(tmp_path, without=("Ost",))


def test_a_table_of_a_header_alone_is_one_clear_line(tmp_path):
    put(tmp_path, Mitte=table_of(1), Nord=table_of(2).iloc[:0])
    found = look(tmp_path, Choices(label="died"))
    assert found.sites == ["Mitte"] and any("Nord.csv holds no rows" in note for note in found.notes)


def test_a_hospital_of_few_patients_is_left_out_of_a_run_as_preflight_says(tmp_path, capsys):
    put(tmp_path / "data", A=table_of(1, 80), B=table_of(2, 80), C=table_of(3, 8).assign(died=[0, 1] * 4))
    assert call(capsys, "init", tmp_path / "data", "--yes", "--label", "died")[0] == 0
    code, said, _ = call(capsys, "preflight", tmp_path / "data")
    assert code == 0 and "C: too few patients: a run leaves them out" in said
    run = ("run", "fedavg", "--data", tmp_path / "data", "--rounds", "1", "--out", tmp_path / "run")
    code, _, err = call(capsys, *run)
    assert code == 0 and "C left out: preflight (few_examples" in err, err
    for name in ("A", "B"):
        (tmp_path / "data" / f"{name}.csv").unlink()
    put(tmp_path / "data", A=table_of(1, 8), B=table_of(2, 80), C=table_of(3, 8).assign(died=[0, 1] * 4))
    shutil.rmtree(tmp_path / "data" / INSIDE)
    assert call(capsys, "init", tmp_path / "data", "--yes", "--label", "died")[0] == 0
    code, _, err = call(capsys, *run[:-1], tmp_path / "other")
    assert code != 0 and "expected at least 10 rows with a label, got 8" in err
