# SPDX-License-Identifier: Apache-2.0
"""``fairflare predict``: what sites measured comes out again, in files that fit their inputs, and nothing is spoilt."""

import io
import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fairflare.core.errors import UserError
from fairflare.data.readers.geometry import geometry_of
from fairflare.datasets import heart
from fairflare.inference import atomic_output as whole
from fairflare.inference.apply import pixel_values, restored
from fairflare.inference.atomic_output import whole_folder
from fairflare.inference.loaded_run import open_run
from fairflare.inference.predict import images_of
from model_use import call, reported, rows, run, write_patients
from own_folder import picture

pytestmark = pytest.mark.slow


def test_a_hospitals_figures_come_out_again(heart_run, tmp_path, capsys):
    for site in heart.FILES:
        labels = write_patients(tmp_path / f"{site}.csv", site)
        arguments = ["predict", heart_run, tmp_path / f"{site}.csv", "--site", site, "--out", tmp_path / site]
        code, _, err = call(capsys, *arguments, "--plain")
        assert code == 0, err
        p = np.array([float(row["p_disease"]) for row in rows(tmp_path / site)])
        found = reported(heart_run, site)
        assert np.mean((p > 0.5) == labels) == pytest.approx(found["accuracy"], abs=1e-9)
        assert np.mean((p - labels) ** 2) == pytest.approx(found["brier_loss"], abs=1e-6)
        code, out, err = call(capsys, *arguments, "--force")
        assert code == 0 and f"recalibrate by site of {site}" in out, err
        p = np.array([float(row["p_disease"]) for row in rows(tmp_path / site)])
        log = [json.loads(line) for line in (heart_run / "audit.jsonl").read_text().splitlines()]
        brier = next(line for line in log if line["event"] == "after")["sites"][site]["own.brier"]
        assert np.mean((p - labels) ** 2) == pytest.approx(brier, abs=1e-6)


def test_where_each_site_scales_by_its_own_rows_a_table_needs_a_site(heart_run, tmp_path, capsys):
    write_patients(tmp_path / "new.csv", "Hungary")
    code, _, err = call(capsys, "predict", heart_run, tmp_path / "new.csv", "--out", tmp_path / "p")
    assert code == 2 and "scales by its own training rows: expected --site NAME" in " ".join(err.split())
    assert not (tmp_path / "p").exists()


def test_what_is_unlike_the_training_is_named(heart_run, tmp_path, capsys):
    write_patients(tmp_path / "t.csv", "Cleveland")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    names = lines[0].split(",")
    cells = [line.split(",") for line in lines[1:]]
    cells[0][names.index("age")], cells[1][names.index("cp")] = "600", "9"
    cells[4][names.index("oldpeak")] = "-99"
    cells[2][names.index("thalach")] = cells[3][names.index("thalach")] = "-9"
    for row in cells:
        row[names.index("trestbps")] = f"{float(row[names.index('trestbps')]) / 7.5:.1f}"  # kPa
    keep = [k for k, name in enumerate(names) if name != "chol"]
    text = "\n".join(",".join(row[k] for k in keep) for row in [names, *cells])
    pd.read_csv(io.StringIO(text), dtype=str).to_excel(tmp_path / "t.xlsx", index=False)
    code, out, err = call(
        capsys, "predict", heart_run, tmp_path / "t.xlsx", "--site", "Cleveland", "--out", tmp_path / "p", "--json"
    )
    unlike = "\n".join(json.loads(out)["unlike"])
    assert code == 0, err
    assert "column chol: is missing" in unlike and "cp: 1 row with an unknown value, e.g. '9'" in unlike
    assert "age: 1 row more than 6 standard deviations" in unlike and "600" in unlike
    assert "thalach: -9 in 2 rows: a code for missing?" in unlike and "oldpeak: -99 in 1 row: a code" in unlike
    assert unlike.count("are the units the same?") == 1 and "trestbps: a mean of 17." in unlike


def test_images_reproduce_the_validation_and_test_metric(photo_run, photos, tmp_path, capsys):
    lists = json.loads((photos / "client_east.json").read_text())
    for split, key in (("val", "validation"), ("test", "testing")):
        files = [photos / one["image"] for one in lists[key]]
        out = tmp_path / split
        code, _, err = call(capsys, "predict", photo_run, *files, "--site", "east", "--out", out)
        assert code == 0, err
        found = {row["file"]: row for row in rows(out)}
        truth = {one["image"].rpartition("/")[2]: ("healthy", "ill")[one["label"]] for one in lists[key]}
        right = np.mean([found[name]["class"] == label for name, label in truth.items()])
        assert right == pytest.approx(reported(photo_run, "east", split)["accuracy"], abs=1e-9)


def test_masks_reproduce_the_dice_and_fit_their_images(mask_run, mask_data, tmp_path, capsys):
    lists = json.loads((mask_data / "client_west.json").read_text())["testing"]
    folder = tmp_path / "images"
    folder.mkdir()
    for one in lists:
        shutil.copy(mask_data / one["image"], folder)
    code, _, err = call(capsys, "predict", mask_run, folder, "--site", "west", "--out", tmp_path / "p")
    assert code == 0, err
    dice = []
    for one, row in zip(lists, rows(tmp_path / "p"), strict=True):
        found = np.asarray(Image.open(tmp_path / "p" / row["mask"])) > 0
        truth = np.asarray(Image.open(mask_data / one["label"])) > 0
        both = found.sum() + truth.sum()
        dice.append(2 * (found & truth).sum() / both if both else 1.0)
    assert np.mean(dice) == pytest.approx(reported(mask_run, "west")["dice"], abs=1e-9)


def test_a_nifti_mask_has_the_geometry_of_its_image(mask_run, tmp_path, capsys):
    pixels, _ = picture(np.random.default_rng(0), True)
    affine = np.array([[0.7, 0.1, 0, -30], [-0.1, 0.9, 0, 12], [0, 0, 5, 100], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(pixels.astype(np.float32)[..., None], affine)
    nibabel.save(image, tmp_path / "slice.nii.gz")
    code, _, err = call(capsys, "predict", mask_run, tmp_path / "slice.nii.gz", "--out", tmp_path / "p")
    assert code == 0, err
    mask = nibabel.load(tmp_path / "p" / "masks" / "slice_mask.nii.gz")
    assert mask.shape == image.shape and np.allclose(mask.affine, affine)
    assert np.allclose(mask.header.get_zooms(), image.header.get_zooms())
    assert set(np.unique(np.asarray(mask.dataobj))) <= {0, 1} and np.asarray(mask.dataobj).any()


def test_every_slice_of_a_volume_gets_a_mask_in_its_place(mask_run, tmp_path, capsys):
    pixels = [picture(np.random.default_rng(k), True)[0].astype(np.float32) for k in range(3)]
    affine = np.array([[0.7, 0, 0, -30], [0, 0.9, 0, 12], [0, 0.2, 5, 100], [0, 0, 0, 1.0]])
    nibabel.save(nibabel.Nifti1Image(np.stack(pixels, axis=-1), affine), tmp_path / "v.nii.gz")
    nibabel.save(nibabel.Nifti1Image(pixels[1][..., None], affine), tmp_path / "one.nii.gz")
    code, _, err = call(capsys, "predict", mask_run, tmp_path, "--out", tmp_path / "p")
    assert code == 0, err
    found = {row["file"]: row["mask"] for row in rows(tmp_path / "p")}
    names = ["v.nii.gz[0]", "v.nii.gz[1]", "v.nii.gz[2]"]
    assert list(found) == ["one.nii.gz", *names]
    assert [found[name] for name in names] == [f"masks/v_{k}_mask.nii.gz" for k in range(3)]
    for k, name in enumerate(names):
        mask = nibabel.load(tmp_path / "p" / found[name])
        assert mask.shape == (40, 48, 1) and np.allclose(mask.affine[:3, :3], affine[:3, :3])
        assert np.allclose(mask.affine @ [2, 3, 0, 1], affine @ [2, 3, k, 1])
    alone, second = (np.asarray(nibabel.load(tmp_path / "p" / found[n]).dataobj) for n in ("one.nii.gz", names[1]))
    assert np.array_equal(alone, second) and second.any()


def test_a_mask_is_read_back_as_the_structures_that_were_found():
    values = {"disc": (128, 0), "cup": (0,)}
    truth = torch.zeros(2, 8, 8)
    truth[0, 2:7, 2:7], truth[1, 3:5, 3:5] = 1, 1
    mask = pixel_values(truth * 0.98 + 0.01, [0.5, 0.5], values, (255,), largest=True)
    for k, group in enumerate(values.values()):
        assert np.array_equal(np.isin(mask, group), truth[k].bool().numpy())
    outside = torch.zeros(2, 1, 1)
    outside[0], outside[1] = 0.4, 0.99  # a cup outside the disc: no value says so
    assert pixel_values(outside, [0.5, 0.5], values, (255,), largest=True).item() == 0
    at = torch.full((1, 1, 1), 0.3)
    assert pixel_values(at, [0.3], {"a": (1,)}, (0,), True).item() == 1  # a threshold of a run is reached
    assert pixel_values(torch.full((1, 1, 1), 0.5), [0.5], {"a": (1,)}, (0,), True).item() == 0
    assert torch.equal(restored(truth, 8, 8), truth) and restored(truth, 5, 13).shape == (2, 5, 13)


def test_masks_beside_their_images_are_no_inputs_and_folders_may_be_links(mask_data, tmp_path):
    (tmp_path / "hospital").symlink_to(mask_data / "east")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "alone.png").write_bytes((mask_data / "east" / "0_mask.png").read_bytes())
    files, notes = images_of([tmp_path])
    assert len(files) == 23 and {"hospital/0.png", "masks/alone.png"} <= set(files)
    assert not [name for name in files if name.endswith("_mask.png")]
    assert notes == ["22 masks lie beside their images and are left out, e.g. 'hospital/0_mask.png'"]
    named, notes = images_of([tmp_path / "hospital" / "0_mask.png"])
    assert list(named) == ["0_mask.png"] and not notes


def test_a_run_whose_sites_have_models_of_their_own_has_no_best_one(tmp_path):
    folder = run(tmp_path / "run", "solo", "--task", "heart:full", "--rounds", 1)
    assert open_run(folder, "VA").whose == "own"
    with pytest.raises(UserError, match="--which best: solo gives sites models of their own.*expected --which final"):
        open_run(folder, "VA", which="best")


def test_images_unlike_the_training_are_named(photo_run, tmp_path, capsys):
    Image.fromarray(np.full((300, 20, 3), 255, np.uint8)).save(tmp_path / "odd.png")
    code, out, _ = call(capsys, "predict", photo_run, tmp_path / "odd.png", "--out", tmp_path / "p", "--json")
    said = "\n".join(json.loads(out)["unlike"])
    assert code == 0
    for words in ("channels: 1 file", "height: 1 file", "mean intensity: 1 file", "odd.png"):
        assert words in said


def test_nothing_is_overwritten_and_nothing_half_written(heart_run, tmp_path, capsys):
    write_patients(tmp_path / "t.csv", "VA")
    place = ["predict", heart_run, tmp_path / "t.csv", "--site", "VA", "--out", tmp_path / "p"]
    assert call(capsys, *place)[0] == 0
    before = (tmp_path / "p" / "predictions.csv").read_bytes()
    code, _, err = call(capsys, *place)
    assert code == 2 and "--force" in err
    (tmp_path / "p" / "mine.txt").write_text("notes")
    code, _, err = call(capsys, *place, "--force")
    assert code == 2 and "mine.txt" in err and (tmp_path / "p" / "predictions.csv").read_bytes() == before
    (tmp_path / "bad.csv").write_text("age,sex\nold,1\n")
    code, _, err = call(capsys, "predict", heart_run, tmp_path / "bad.csv", "--site", "VA", "--out", tmp_path / "q")
    assert code == 2 and err.count("\n") == 1 and "age: expected a number, got 'old'" in err
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "p", "bad.csv"}
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "r", "model", force=False) as scratch:
        (scratch / "half").write_text("x")
        raise RuntimeError
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("renames", [1, 2])
@pytest.mark.parametrize("killed", [False, True])
def test_a_replacement_that_does_not_come_to_its_end_leaves_what_was_there(renames, killed, tmp_path, monkeypatch):
    def fill(text):
        with whole_folder(tmp_path / "r", "model", force=True) as folder:
            (folder / "text").write_text(text)

    def stopped(path, target):
        calls.append(path)
        if len(calls) == renames:
            monkeypatch.setattr(whole, "_settle", (lambda *places: None) if killed else settle)
            raise OSError("stopped")
        rename(path, target)

    fill("before")
    rename, settle, calls = Path.rename, whole._settle, []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopped)
        with pytest.raises(OSError, match="stopped"):
            fill("new")
    monkeypatch.setattr(whole, "_settle", settle)
    if not killed:
        assert (tmp_path / "r" / "text").read_text() == "before"
    fill("after")
    assert (tmp_path / "r" / "text").read_text() == "after" and [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_link_in_place_of_the_scratch_folder_is_not_followed(tmp_path):
    (tmp_path / "mine" / "new").mkdir(parents=True)
    (tmp_path / ".r.fairflare_export").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="cannot be written"), whole_folder(tmp_path / "r", "model", force=False):
        raise AssertionError
    assert (tmp_path / "mine" / "new").is_dir()


def test_a_personal_model_is_its_sites(tmp_path, capsys):
    folder = run(tmp_path / "run", "ditto", "--task", "heart:full", "--rounds", 2)
    labels = write_patients(tmp_path / "t.csv", "VA")
    code, out, err = call(capsys, "predict", folder, tmp_path / "t.csv", "--site", "VA", "--out", tmp_path / "p")
    assert code == 0 and "the personal model of VA" in out, err
    p = np.array([float(row["p_disease"]) for row in rows(tmp_path / "p")])
    own = json.loads((folder / "report.json").read_text())["sites"]["VA"]["personal_metrics"]
    assert np.mean((p - labels) ** 2) == pytest.approx(own["brier_loss"], abs=1e-6)
    (folder / "sites" / "VA.personal.safetensors").unlink()
    with pytest.raises(UserError, match="--site-files"):
        open_run(folder, "VA")


def test_geometry_of_pictures(tmp_path):
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(tmp_path / "a.png")
    place = geometry_of(tmp_path / "a.png")
    assert (place.height, place.width, place.channels, place.affine) == (7, 9, 1, None)
    (tmp_path / "b.png").write_text("no image")
    assert geometry_of(tmp_path / "b.png") is None
