# SPDX-License-Identifier: Apache-2.0
"""CT is scaled by one window that the sites agree on, so that classes that differ by an offset are learned."""

import json

import nibabel
import numpy as np
import pytest
import torch

import dicom_sets
from dicom_sets import dataset, save
from fairflare.data.readers.pictures import Reader, stored
from fairflare.engine.setup import plans, tasks
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.inference.loaded_run import open_run
from fairflare.tasks.fingerprint import Fingerprint, fingerprint
from fairflare.tasks.planning import cautions, plan
from model_use import call, reported, rows, run, run_bundle


def lists_of(root, truth, sites=dicom_sets.SITES):
    """Datalists of a set; of each class of a site every fifth is to validate, and two of five to test."""
    for site in sites:
        found = {"training": [], "validation": [], "testing": []}
        for label in dicom_sets.CLASSES:
            own = [name for name, about in truth.items() if about[:2] == (site, label)]
            for k, name in enumerate(own):
                split = ("training", "training", "validation", "testing", "training", "testing")[k % 6]
                found[split].append({"image": name, "label": label})
        (root / f"{site}.json").write_text(json.dumps(found))
    return {"datalists": str(root), "site_names": ",".join(sites), "labels": ",".join(dicom_sets.CLASSES)}


def head(root, n=24):
    """CT with air around and bone: 45 of 100 pixels are air, and the classes differ by 40 Hounsfield units within.

    Every second patient is stored with slope 1 and intercept -1024, the others signed with slope 2 and intercept 0.
    """
    truth = {}
    y, x = np.mgrid[:48, :48] / 48 - 0.5
    for site, k, ill, patient, rng in dicom_sets.people(n=n):
        from_centre = np.hypot(x + rng.uniform(-0.03, 0.03), y + rng.uniform(-0.03, 0.03))
        values = np.where(from_centre < 0.42, 1000.0, -1000.0)
        inside = from_centre < 0.37
        values[inside] = 25 + 40 * ill + rng.normal(0, 15, inside.sum())
        name = f"{site}/{dicom_sets.CLASSES[ill]}/{k}.dcm"
        slope, intercept = ((1, -1024), (2, 0))[k // 2 % 2]
        stored = np.round((values + rng.normal(0, 4, values.shape) - intercept) / slope)
        stored = stored.clip(0).astype(np.uint16) if slope == 1 else stored.astype(np.int16)
        save(root / name, dataset(stored, patient, RescaleSlope=slope, RescaleIntercept=intercept))
        truth[name] = site, dicom_sets.CLASSES[ill], patient
    return truth


def test_the_sites_agree_on_a_window_around_the_tissue(tmp_path):
    task = tasks.load("classification", None, **lists_of(tmp_path, head(tmp_path)))
    prints = {site: fingerprint(task, site, None, 10) for site in task.sites()}
    assert all(Fingerprint.from_json(json.loads(json.dumps(one.to_json())), "a") == one for one in prints.values())
    chosen = {one.setting: one.value for one in plan("classification", prints)}
    centre, width = map(float, chosen["task.window"].split(","))
    assert centre - width / 2 < 0 and 90 < centre + width / 2 < 300 and not cautions(prints)
    # What the plan says of mean and spread is what the reader makes of the images.
    reader = Reader(chosen["task.size"], 1, window=chosen["task.window"])
    images = torch.cat(
        [reader.image(item.image) for site in task.sites() for item in task.site_data(site).splits["train"].items]
    )
    assert float(chosen["task.mean"]) == pytest.approx(images.float().mean().item() / 255, abs=0.02)
    assert float(chosen["task.std"]) == pytest.approx(images.float().std().item() / 255, abs=0.02)
    own = tasks.load("classification", None, **lists_of(tmp_path, head(tmp_path)), window="40,400")
    assert fingerprint(own, "mayo", None, 10).values is None


def test_a_window_of_the_users_is_the_one_that_mean_and_spread_are_of(tmp_path):
    values = lists_of(tmp_path, head(tmp_path))
    own = make_config("fedavg", "classification", values={**values, "window": "40,400"})
    free = make_config("fedavg", "classification", values=values)
    assert own.options["window"] == "40,400" != free.options["window"] and own.options["mean"] != free.options["mean"]
    reader = Reader(own.options["size"], 1, window="40,400")
    images = torch.cat([reader.image(path) for path in sorted(tmp_path.rglob("*.dcm"))])
    assert float(own.options["mean"]) == pytest.approx(images.float().mean().item() / 255, abs=0.02)
    for config in (own, free):
        said = [line.partition(" ")[0] for line in plans.reasons(config)]
        assert ("window" in said) == (config is free) and {"mean", "std", "size"} <= set(said)


def test_a_run_that_was_begun_before_there_were_windows_is_scaled_as_it_was(tmp_path):
    config = make_config("fedavg", "classification:small", values={"site_names": "a", "window": "percentiles"})
    content = config.to_json()
    assert "window" not in content["options"]
    again = RunConfig.from_json(json.loads(json.dumps(content)))
    assert again == config and again.sha256() == config.sha256()
    assert (
        make_config("fedavg", "classification:small", values={"site_names": "a"}).to_json()["options"]["window"] == ""
    )


def test_sites_with_other_units_are_named():
    ct, stored = (np.linspace(low, high, 100).tolist() for low, high in ((-1000.0, 400.0), (0.0, 20000.0)))
    one = {"coloured": False, "mean": [0.3], "std": [0.2], "n_train": 20}
    prints = {"a": Fingerprint(**one, values=ct), "b": Fingerprint(**one, values=stored)}
    assert "between -1000 and 400 at a and between 0 and 20000 at b" in cautions(prints)[0]
    mixed = {"a": Fingerprint(**one, values=ct), "b": Fingerprint(**one)}
    assert "at a and not at b" in cautions(mixed)[0]
    assert "task.window" not in {one.setting for one in plan("classification", mixed)}
    for wrong in ([0.0, 1.0], [1.0] * 100, list(reversed(ct))):
        with pytest.raises(ValueError, match="values: expected 100 rising percentiles"):
            Fingerprint(**one, values=wrong)


@pytest.mark.parametrize("kind", ["mr", "ct"])
def test_nifti_has_a_window_where_its_values_are_measured(tmp_path, kind):
    rng = np.random.default_rng(0)
    for k in range(12):
        values = rng.normal(300, 60, (16, 16)) if kind == "mr" else rng.normal(-400, 500, (16, 16))
        nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), np.eye(4)), tmp_path / f"{k}.nii.gz")
    items = [{"image": f"{k}.nii.gz", "label": k % 2} for k in range(12)]
    (tmp_path / "a.json").write_text(json.dumps({"training": items}))
    task = tasks.load("classification", None, datalists=str(tmp_path), site_names="a", labels="2")
    found = plan("classification", {"a": fingerprint(task, "a", None, 10)})
    assert ("task.window" in {one.setting for one in found}) == (kind == "ct")


@pytest.fixture(scope="module")
def ct_run(tmp_path_factory):
    """A run on CT with nothing set; what it is of, its lists' options and its folder."""
    root = tmp_path_factory.mktemp("ct")
    truth = head(root / "data")
    options = lists_of(root / "data", truth)
    own = ["--datalists", root / "data", "--kind", "classification", "--classes", options["labels"]]
    return truth, root / "data", run(root / "run", "fedavg", *own)


def window_of(folder):
    return json.loads((folder / "config.json").read_text())["options"]["window"]


@pytest.mark.slow
def test_classes_that_differ_by_an_offset_are_learned(ct_run):
    """40 Hounsfield units, the same texture, no setting, inside a head with bone in air."""
    for site in dicom_sets.SITES:
        assert reported(ct_run[2], site)["balanced_accuracy"] > 0.9


@pytest.mark.slow
def test_files_as_they_are_exported_are_predicted_as_in_training(ct_run, tmp_path, capsys):
    """Without suffix, in MONOCHROME1, and as frames of one file: the same probabilities."""
    truth, data, folder = ct_run
    names = [name for name, about in truth.items() if about[0] == "ucl"][:4]
    values = [np.round(stored(data / name)[0]) for name in names]
    (tmp_path / "in").mkdir()
    for k, name in enumerate(names):
        (tmp_path / "in" / f"1.2.3.{k}").write_bytes((data / name).read_bytes())
    frames = np.stack(values).astype(np.int16)
    about = {"NumberOfFrames": 4, "RescaleSlope": 1, "RescaleIntercept": 0}
    save(tmp_path / "in" / "all", dataset(frames, "P", **about))
    code, out, err = call(capsys, "predict", folder, tmp_path / "in", "--out", tmp_path / "p", "--json")
    assert code == 0, err
    assert "1 file holds 4 slices: each is one input" in json.loads(out)["unlike"]
    found = {row["file"]: row for row in rows(tmp_path / "p")}
    assert list(found) == [*(f"1.2.3.{k}" for k in range(4)), *(f"all[{k}]" for k in range(4))]
    for k, name in enumerate(names):
        assert found[f"1.2.3.{k}"]["class"] == truth[name][1]
        one, two = (float(found[file]["p_malignant"]) for file in (f"1.2.3.{k}", f"all[{k}]"))
        assert one == pytest.approx(two, abs=1e-6)
    assert open_run(folder).task.image_inputs().reader.window == window_of(folder) != ""


@pytest.mark.slow
def test_a_bundle_scales_by_the_runs_window(ct_run, tmp_path, capsys):
    """MONAI's runner, without this package, on DICOM that has no suffix."""
    truth, data, folder = ct_run
    names = [name for name, about in truth.items() if about[0] == "mayo"][:6]
    (tmp_path / "in").mkdir()
    for k, name in enumerate(names):
        (tmp_path / "in" / f"1.2.3.{k}").write_bytes((data / name).read_bytes())
    (tmp_path / "in" / "README").write_text("no image")
    code, _, err = call(capsys, "export-model", folder, "--format", "bundle", "--out", tmp_path / "bundle")
    assert code == 0, err
    assert call(capsys, "predict", folder, tmp_path / "in", "--out", tmp_path / "p")[0] == 0
    ends = [f"{float(c) + sign * float(w) / 2:g}" for c, w in [window_of(folder).split(",")] for sign in (-1, 1)]
    card = (tmp_path / "bundle" / "docs" / "README.md").read_text()
    assert f"values from {ends[0]} to {ends[1]} of DICOM and NIfTI, rescaled" in card
    here, there = rows(tmp_path / "p"), rows(run_bundle(tmp_path / "bundle", tmp_path / "in", tmp_path / "out"))
    assert [row["file"] for row in here] == [row["file"] for row in there] == [f"1.2.3.{k}" for k in range(6)]
    for one, two in zip(here, there):
        assert float(one["p_malignant"]) == pytest.approx(float(two["p_malignant"]), abs=1e-4)
    assert {row["class"] for row in there} == set(dicom_sets.CLASSES)
