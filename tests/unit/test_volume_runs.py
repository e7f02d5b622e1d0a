# SPDX-License-Identifier: Apache-2.0
"""Runs on whole volumes: the papers' methods, and a hospital's own NIfTI from the folder to masks at its voxels."""

import json

import nibabel
import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.tasks import load
from fairflare.testing import check_metric, check_task
from model_use import call, rows, run
from volume_files import SITES, ball, turned, write, write_classes, write_list, write_masked, write_series

TINY = {"images": 64, "site_test_images": 0, "size": 32, "patch": 16, "patches": 1, "solo": False}
PAPERS = {
    "fedism-plus": {"rho_max": 0.02},
    "fedlwr": {},
    "fedheal": {"tau": 0.6},
    "fedufo": {"level": "client"},
    "fedce": {},
}


def entries_of(log, event):
    return [entry for entry in log if entry["event"] == event]


@each("method", PAPERS, short=["fedism-plus", "fedce"])
def test_the_papers_methods_run_on_volumes(method, tmp_path):
    """Three sites, two rounds: weights are a distribution, every site answers, and says what the method asks for.

    FedHEAL asks for nothing, and tests/flare/test_volumes_sim.py has FedLWR's second exchange.
    """
    run_local(make_config(method, "brain-seg3d:small", rounds=2, values={**TINY, **PAPERS[method]}), tmp_path)
    log = verify(tmp_path / "audit.jsonl")
    found, final = entries_of(log, "round"), entries_of(log, "evaluation")[0]["sites"]
    assert log[-1]["status"] == "completed" and len(found) == 2 and len(final) == 3
    for entry in found:
        assert len(entry["accepted"]) == 3 and not entry["rejected"]
        assert sum(entry["weights"].values()) == pytest.approx(1)
    asked = {"fedism-plus": "sharpness", "fedlwr": "similarity", "fedufo": "loss", "fedce": "minus_error"}.get(
        method, ""
    )
    scalars = set(next(iter(found[-1]["accepted"].values()))["scalars"])
    assert not asked or any(name.startswith(asked) for name in scalars), scalars
    for answer in final.values():
        assert 0 <= answer["test"]["dice"] <= 1 and answer["trivial"]["test"]["dice"] > 0.2


def test_the_brain_is_a_task_like_any_other():
    small = {name: value for name, value in TINY.items() if name != "solo"}
    check_task("brain-seg3d", "small", **small)
    task = load("brain-seg3d", "small", **small)
    data = task.site_data("site-2")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "val": 4, "test": 4}
    shares = data.splits["train"].targets.float().mean((0, 2, 3, 4))
    assert 0.08 < shares[0] < 0.2 and 0.03 < shares[1] < 0.12 and 0 < shares[2] < 0.01
    for options, text in (({"size": 144}, "size"), ({"patch": 64}, "patch"), ({"augment": True}, "augment")):
        with pytest.raises(UserError, match=text):
            load("brain-seg3d", "small", **options)


@each("name", ["surface_dice", "hd95"])
def test_metrics_of_outlines_keep_the_contract(name):
    check_metric(name)


OPTIONS = ["--set", "shape=32,32,32", "--set", "spacing=3,3,3", "--set", "patch=16,16,16", "--rounds", "2"]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return write_masked(tmp_path_factory.mktemp("volumes") / "lesions")


@pytest.fixture(scope="module")
def segmented(hospitals, tmp_path_factory):
    """The folder's run, as `init` and `run` make it."""
    from fairflare.cli.main import main

    with pytest.raises(SystemExit) as stop:
        main(["init", str(hospitals), "--kind", "volume-segmentation", "--yes"])
    assert stop.value.code == 0
    return run(tmp_path_factory.mktemp("runs") / "run", "fedavg", "--data", hospitals, *OPTIONS)


def test_volumes_that_nobody_has_asked_for_are_refused(tmp_path, capsys):
    write_masked(tmp_path / "all", sites=("a",), patients=5)
    code, _, said = call(capsys, "init", tmp_path / "all", "--yes")
    assert code and "--kind volume-segmentation whole volumes" in said and "--slices 1" in said
    code, _, said = call(capsys, "init", tmp_path / "all", "--yes", "--kind", "volume-segmentation", "--slices", "2")
    assert code and "--slices: goes with images" in said


def test_a_folder_of_pairs_becomes_a_run(segmented, hospitals):
    described = json.loads((hospitals / "fairflare" / "dataset.json").read_text())
    assert described["kind"] == "volume-segmentation" and set(described["sites"]) == set(SITES)
    log = verify(segmented / "audit.jsonl")
    final = entries_of(log, "evaluation")[0]["sites"]
    assert set(final) == set(SITES) and all("dice" in answer["test"] for answer in final.values())


def test_masks_lie_at_the_files_own_voxels(segmented, hospitals, tmp_path, capsys):
    """In each site's own orientation: the share of voxels, shape, affine and codes are the file's."""
    files = [hospitals / site / "p00.nii.gz" for site in SITES]
    for site, file in zip(SITES, files):
        code, _, said = call(capsys, "predict", segmented, file, "--out", tmp_path / site)
        assert not code, said
        row = rows(tmp_path / site)[0]
        image, mask = nibabel.load(file), nibabel.load(tmp_path / site / row["mask"])
        assert mask.shape == image.shape and np.allclose(mask.affine, image.affine)
        assert set(np.unique(np.asarray(mask.dataobj))) <= {0, 1}
        for name in ("sform_code", "qform_code", "xyzt_units"):
            assert mask.header[name] == image.header[name]


def test_a_models_mask_is_where_its_outputs_are(segmented, hospitals, tmp_path):
    """Whatever the orientation, what is predicted on the grid is what is written."""
    from fairflare.inference.loaded_run import open_run
    from fairflare.inference.predict import at_home, write_volume_mask

    reader = open_run(segmented).task.image_inputs().reader
    for site in SITES:
        file, truth = (hospitals / site / f"p01{end}.nii.gz" for end in ("", "_mask"))
        masked = at_home(reader, file, reader.mask(truth).float())
        write_volume_mask(tmp_path / f"{site}.nii.gz", masked, [0.5], reader)
        ours, its = (np.asarray(nibabel.load(path).dataobj) > 0 for path in (tmp_path / f"{site}.nii.gz", truth))
        assert 2 * (ours & its).sum() / (ours.sum() + its.sum()) > 0.9, site  # by way of a coarser grid


def test_contrasts_of_volumes_become_channels(tmp_path, capsys):
    """Each patient's FLAIR and T1, at one site with their axes stored in another order; the mask is written for both.

    The second contrast alone shows the ball, so that a model of the first one would find nothing.
    """
    root = tmp_path / "glioma"
    for k, site in enumerate(SITES[:2]):
        rng = np.random.default_rng(k)
        for i in range(10 + 10 * k):
            image, mask, affine = ball(rng, (36, 34, 20), (2.0, 2.0, 3.0))
            home = root / site / f"p{i:02d}"
            write(home / "scan_flair.nii.gz", rng.normal(100, 40, image.shape).astype(np.float32), affine)
            write(home / "scan_t1.nii.gz", *turned(image, affine, ("RAS", "PSR")[k]))
            write(home / "scan_seg.nii.gz", mask, affine)
    code, _, said = call(capsys, "init", root, "--kind", "volume-segmentation", "--yes")
    assert not code, said
    found = run(tmp_path / "run", "fedavg", "--data", root, *OPTIONS[:-1], "20")
    options = json.loads((found / "config.json").read_text())["options"]
    assert options["channels"] == 2 and options["mean"].count(",") == 1, options
    final = entries_of(verify(found / "audit.jsonl"), "evaluation")[0]["sites"]
    assert all(answer["test"]["dice"] > 0.3 for answer in final.values()), final
    code, _, said = call(capsys, "predict", found, root / SITES[1], "--out", tmp_path / "p")
    assert not code and len(rows(tmp_path / "p")) == 20, said
    one = rows(tmp_path / "p")[0]
    shape = nibabel.load(root / SITES[1] / one["file"]).shape
    assert one["file"] == "p00/scan_flair.nii.gz" and nibabel.load(tmp_path / "p" / one["mask"]).shape == shape
    code, _, said = call(capsys, "predict", found, root / SITES[0] / "p00" / "scan_t1.nii.gz", "--out", tmp_path / "q")
    assert code and "scan_t1.nii.gz: expected 2 contrasts, got 1" in said
    write(root / SITES[0] / "p00" / "scan_t1.nii.gz", image[:-2], affine)
    (root / "fairflare").rename(tmp_path / "first")
    code, _, said = call(capsys, "init", root, "--kind", "volume-segmentation", "--yes")
    assert code and "the contrast scan_t1.nii.gz has 34x34x20" in said and said.count("\n") == 1


def test_contrasts_on_a_fourth_axis_and_series_of_a_study_become_channels(tmp_path, capsys):
    """From init to what is predicted; the second contrast alone shows the ball."""
    forms = {
        "axis": (["--kind", "volume-segmentation"], OPTIONS[:6], "p00.nii.gz"),
        "series": (["--kind", "volume-classification"], OPTIONS[:4], "healthy/p00/first/0000.dcm"),
    }
    for k, site in enumerate(SITES[:2]):
        rng = np.random.default_rng(k)
        for i in range(10):
            image, mask, affine = ball(rng, (24, 24, 16), (3.0, 3.0, 4.0), ill=i % 2)
            both = rng.normal(100, 40, image.shape), image
            write(tmp_path / "axis" / site / f"p{i:02d}.nii.gz", np.stack(both, axis=-1).astype(np.float32), affine)
            write(tmp_path / "axis" / site / f"p{i:02d}_seg.nii.gz", mask, affine)
            home = tmp_path / "series" / site / ("healthy", "tumour")[i % 2] / f"p{i:02d}"
            for j, (name, one) in enumerate(zip(("first", "second"), both)):
                more = {"series": j, "patient": f"{site}{i}", "SeriesDescription": name, "modality": "MR"}
                write_series(home / name, one, affine, hounsfield=False, **more)
    for name, (kind, options, file) in forms.items():
        code, said, err = call(capsys, "init", tmp_path / name, *kind, "--yes")
        assert not code and "channels:   2" in said, err
        found = run(tmp_path / f"{name}-run", "fedavg", "--data", tmp_path / name, *options, "--rounds", "1")
        assert json.loads((found / "config.json").read_text())["options"]["channels"] == 2
        code, _, said = call(capsys, "predict", found, tmp_path / name / SITES[0], "--out", tmp_path / f"{name}-p")
        answers = rows(tmp_path / f"{name}-p")
        assert not code and len(answers) == 10 and answers[0]["file"] == file, said
    mask = nibabel.load(tmp_path / "axis-p" / rows(tmp_path / "axis-p")[0]["mask"])
    assert mask.shape == (24, 24, 16) and np.allclose(mask.affine, affine)


def test_evaluate_and_export(segmented, hospitals, tmp_path, capsys):
    code, _, said = call(
        capsys, "evaluate", segmented, hospitals, "--split", "test", "--out", tmp_path / "e", "--min-count", "1"
    )
    assert not code, said
    found = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert set(SITES) == set(found["sites"])
    code, _, said = call(capsys, "export-model", segmented, "--format", "state-dict", "--out", tmp_path / "x")
    assert not code and set(torch.load(tmp_path / "x" / "model.pt")), said
    code, _, said = call(capsys, "export-model", segmented, "--format", "torchscript", "--out", tmp_path / "t")
    assert code and "sliding" not in said and "use --format state-dict" in said


def test_classes_of_volumes(tmp_path, capsys):
    folder = write_classes(tmp_path / "scans")
    code, _, said = call(capsys, "init", folder, "--kind", "volume-classification", "--yes")
    assert not code, said
    small = ["--set", "shape=16,16,16", "--set", "spacing=5,5,5", "--rounds", "2"]
    folder_of_run = run(tmp_path / "run", "fedavg", "--data", folder, *small)
    code, _, said = call(capsys, "predict", folder_of_run, folder / "east" / "tumour", "--out", tmp_path / "p")
    assert not code and len(rows(tmp_path / "p")) == 6, said
    for form in ("torchscript", "state-dict"):
        code, _, said = call(capsys, "export-model", folder_of_run, "--format", form, "--out", tmp_path / form)
        assert not code, said
    code, _, said = call(capsys, "export-model", folder_of_run, "--format", "bundle", "--out", tmp_path / "b")
    assert code and "bundle: reads images and tables" in said


def test_what_is_wrong_with_a_site_is_said_there_alone(tmp_path, capsys):
    """A line names site and code; the file's name stays at the site."""
    root = write_masked(tmp_path / "all", sites=("east", "north"), patients=8)
    for site in ("east", "north"):
        write_list(root, site, [(f"{site}/p{i:02d}.nii.gz", f"{site}/p{i:02d}_mask.nii.gz") for i in range(8)])
    broken = root / "north" / "p03.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-3000])
    image = nibabel.load(root / "north" / "p02.nii.gz")
    both = np.stack([np.asarray(image.dataobj)] * 2, axis=3)
    nibabel.save(nibabel.Nifti1Image(both, image.affine), root / "north" / "p02.nii.gz")
    given = ["--datalists", root, "--kind", "volume-segmentation", "--classes", "ball"]
    small = ["--set", "shape=16,16,16", "--set", "patch=16,16,16", "--workers", "1", "--out", tmp_path / "run"]
    code, _, said = call(capsys, "run", "fedavg", *given, *small)
    left = said.splitlines()[-1]  # the line that a server would have
    assert code and "north" in left and "p03" not in left and "shape" in left and "unreadable" in left
    code, out, said = call(capsys, "preflight", root, "--kind", "volume-segmentation", "--classes", "ball")
    assert code and "p03.nii.gz" in out + said and "p02.nii.gz" in out + said
