# SPDX-License-Identifier: Apache-2.0
"""A folder from elsewhere, or one that says more of patients than a run needs, given to ``fairflare init``."""

import gzip
import io
import json
import os
import shutil

import nibabel
import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

import five_layouts
from fairflare.cli import console
from fairflare.core.errors import DataError, UserError
from fairflare.data.readers import pictures
from fairflare.engine.setup import tasks
from fairflare.import_data.detect import look
from fairflare.import_data.proposal import Choices
from fairflare.import_data.write import contents, write
from fairflare.studies.display import Terminal


def folder_with_a_list(root, **more):
    """12 images of one site; ``more``: key -> what entry i says."""
    entries = []
    for i in range(12):
        five_layouts.save(root / f"{i}.png", np.full((28, 28), 20 * i))
        about = {key: say(i) for key, say in more.items()}
        entries.append({"image": f"{i}.png", "label": "xy"[i % 2], "sex": "fm"[i // 2 % 2], **about})
    (root / "site-1.json").write_text(json.dumps({"training": entries}))
    return root


def folder_of_classes(root, begins=""):
    """12 images of one site in a folder for each class; names begin with ``begins``."""
    for k in range(12):
        five_layouts.save(root / ("ill", "normal")[k % 2] / f"{begins}{k}.png", np.full((28, 28), 20 * k))
    return root


def test_no_key_of_a_list_that_may_name_a_patient_becomes_a_group(tmp_path):
    """Groups and their values are settings of the task: they stand in the run's configuration and in jobs."""
    root = folder_with_a_list(
        tmp_path / "d",
        name=lambda i: f"Doe {i}",
        mrn=lambda i: 9000 + i,
        study_uid=lambda i: f"1.2.{i % 3}",
        age=lambda i: 30 + 5 * i,
    )
    proposal = look(root, Choices())
    files = contents(root, proposal)
    options = json.loads(files["dataset.json"])["options"]
    assert options["attribute_values"] == "sex=f|m; age_band=40 to 59|60 to 79|80 and over|under 40"
    text = b"".join(files.values()).decode()
    assert "Doe" not in text and "900" not in text and "1.2." not in text


RED = "\x1b[31m"


@pytest.mark.parametrize("key", ["label", "sex", "patient_id", "image"])
def test_no_control_character_of_a_folder_is_written_down(tmp_path, key):
    if key == "image":
        root = folder_of_classes(tmp_path / "d", RED)
    else:
        root = folder_with_a_list(tmp_path / "d", **{key: lambda i: f"{RED}{i % 2}"})
    with pytest.raises(UserError, match="without control characters") as refused:
        look(root, Choices())
    assert RED not in str(refused.value)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    root = folder_of_classes(tmp_path / "d")
    os.rename(root / "ill" / "0.png", os.fsencode(root / "ill") + b"/\xff.png")
    with pytest.raises(UserError, match="without control characters"):
        look(root, Choices())


def test_an_image_whose_header_says_that_it_is_huge_is_not_read(tmp_path, monkeypatch):
    """A few KB of an archive may say that they are gigabytes: no memory is asked for."""
    header = nibabel.Nifti1Header()
    header.set_data_shape((30_000, 30_000, 1))
    header.set_data_dtype(np.float64)
    for name, packed in (("slice.nii.gz", gzip.compress), ("slice.nii", bytes)):
        (tmp_path / name).write_bytes(packed(header.binaryblock + bytes(4 + 1000)))
    scan = Dataset()
    scan.Rows, scan.Columns, scan.NumberOfFrames, scan.SOPClassUID = 60_000, 60_000, "9", "1.2.840.10008.5.1.4.1.1.2"
    scan.file_meta = FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    scan.save_as(tmp_path / "scan.dcm", enforce_file_format=False)
    for reads in ("nibabel.load", "pydicom.pixels.pixel_array"):
        monkeypatch.setattr(reads, lambda *values, **more: pytest.fail("read"))
    for name in ("slice.nii.gz", "slice.nii", "scan.dcm"):
        with pytest.raises(DataError, match="cannot be read as an image") as refused:
            pictures.stored(tmp_path / name)
        assert refused.value.code == "unreadable"


def test_what_a_message_quotes_does_not_command_the_terminal(capsys):
    """Colours and titles of a terminal are harmless; others change what was shown before."""
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=False)
    terminal.print(f"a.png {RED}\x9b2J\u202egnp.exe\r")
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(file.getvalue()) and "a.png \\x1b" in file.getvalue()
    console.say(f"a.png {RED}\nnext\tline")
    assert capsys.readouterr().out == "a.png \\x1b[31m\nnext\tline\n"


def linked(root, outside):
    """A folder of classes whose images are links to files ``outside``, after ``init`` where somebody has said yes."""
    for path in list(folder_of_classes(root).rglob("*.png")):
        (outside / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.move(path, outside / path.parent.name / path.name)
        path.symlink_to(outside / path.parent.name / path.name)
    proposal = look(root, Choices())
    assert proposal.links
    write(root, contents(root, proposal))
    return tasks.load("classification", datalists=str(root / "fairflare"), site_names="d", labels="ill,normal")


@pytest.mark.parametrize("name", ["rows.csv", "a.json"])
def test_a_table_or_list_that_is_a_link_out_of_the_folder_is_said_to_be_one(tmp_path, name):
    """What it leads to would be copied into the folder, and with that folder to somebody else."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    if name == "a.json":
        entries = [{"image": f"{k}.png", "label": ("ill", "normal")[k % 2]} for k in range(10)]
        for entry in entries:
            Image.new("L", (8, 8)).save(root / entry["image"])
        (elsewhere / name).write_text(json.dumps({"training": entries}))
    else:
        rows = [f"{40 + k},{'died' if k % 2 else 'lived'}" for k in range(40)]
        (elsewhere / name).write_text("\n".join(["age,outcome", *rows]))
    (root / name).symlink_to(elsewhere / name)
    chosen = Choices(label="outcome") if name == "rows.csv" else Choices()
    notes = look(root, chosen).notes
    assert any(f"1 of 1 lists or tables are symbolic links out of {root}, e.g. {name}" in note for note in notes)
    (root / name).unlink()
    shutil.copy(elsewhere / name, root / name)
    assert not any("symbolic links" in note for note in look(root, chosen).notes)


def test_links_out_are_followed_where_somebody_at_this_machine_has_allowed_them(tmp_path):
    assert linked(tmp_path / "d", tmp_path / "files").site_data("d").size("train")


@pytest.mark.parametrize("says", [True, "true", "1", None])
def test_a_folder_from_elsewhere_does_not_allow_its_links_itself(tmp_path, says):
    """An archive that was unpacked here holds what its maker wrote: ``links``, or what ``init`` wrote elsewhere."""
    linked(tmp_path / "made" / "d", tmp_path / "files")
    root = tmp_path / "d"
    shutil.copytree(tmp_path / "made" / "d", root, symlinks=True)
    described = json.loads((root / "fairflare" / "dataset.json").read_text())
    if says is not None:
        (root / "fairflare" / "dataset.json").write_text(json.dumps(described | {"links": says}))
    task = tasks.load("classification", datalists=str(root / "fairflare"), site_names="d", labels="ill,normal")
    with pytest.raises(DataError, match="symbolic link out of the data root"):
        task.site_data("d")
