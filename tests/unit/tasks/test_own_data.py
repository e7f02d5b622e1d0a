# SPDX-License-Identifier: Apache-2.0
"""A user's own images and tables: datalists, file formats, runs with one command, and mistakes in one line."""

import json

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from command_line import call
from fairflare.core.errors import UserError
from fairflare.data.readers.datalist import read_datalist
from fairflare.data.readers.pictures import Reader
from fairflare.data.site_config import SiteConfig, find_site_config, read_site_config
from fairflare.engine.audit import verify
from fairflare.engine.setup import tasks
from own_folder import SITES, picture, write_images, write_tables


@pytest.mark.parametrize("method", ["fedavg", "fedce", "fedlwr"])
def test_a_folder_of_images_and_masks_trains_with_one_command(method, tmp_path, capsys):
    data = write_images(tmp_path / "data", masks=True)
    own = ("--datalists", data, "--kind", "segmentation", "--classes", "lesion", "--set", "size=32")
    code, out, err = call(
        capsys, "run", method, *own, "--rounds", "2", "--no-solo", "--out", tmp_path / "run", "--json"
    )
    assert code == 0, err
    report = json.loads(out)["report"]
    assert set(report["sites"]) == set(SITES) and report["fairness"]["metric"] == "dice"
    for row in report["sites"].values():
        assert 0 <= row["metrics"]["dice_lesion"] <= 1 and row["n_train"] == 12 and row["n_test"] == 6


def test_images_with_classes_and_an_attribute(tmp_path, capsys):
    data = write_images(tmp_path / "data", masks=False)
    own = ("--datalists", data, "--kind", "classification", "--classes", "well,ill", "--set", "size=32")
    grouped = ("--set", "attribute_values=sex=f|m", "--set", "group_by=label+sex", "--set", "min_count=1")
    code, out, err = call(
        capsys, "run", "fedufo", *own, *grouped, "--rounds", "2", "--no-solo", "--out", tmp_path / "r", "--json"
    )
    assert code == 0, err
    evaluation = next(e for e in verify(tmp_path / "r" / "audit.jsonl") if e["event"] == "evaluation")
    groups = evaluation["sites"]["north"]["groups"]["test"]
    assert set(groups) <= {"well, f", "well, m", "ill, f", "ill, m"} and sum(g["n"] for g in groups.values()) == 6


def test_a_table_with_a_sensitive_column(tmp_path, capsys):
    data = write_tables(tmp_path / "data")
    own = ("--datalists", data, "--kind", "tabular", "--classes", "lived,died", "--set", "label=outcome")
    columns = ("--set", "features=age,score", "--set", "attribute_values=sex=f|m", "--set", "group_by=label+sex")
    code, out, err = call(
        capsys, "run", "fedufo", *own, *columns, "--rounds", "6", "--no-solo", "--out", tmp_path / "r", "--json"
    )
    assert code == 0, err
    report = json.loads(out)["report"]
    assert report["fairness"]["mean"] > 0.6 and all(row["n_test"] == 16 for row in report["sites"].values())


def test_the_same_table_gives_the_same_split_and_scaling(tmp_path):
    data = write_tables(tmp_path / "data")
    values = {"datalists": str(data), "site_names": "north", "labels": "lived,died", "label": "outcome"}
    one, two = (tasks.load("tabular", **values, features="age,score").site_data("north") for _ in range(2))
    for split in ("train", "val", "test"):
        assert torch.equal(one.splits[split].inputs, two.splits[split].inputs)
    train = one.splits["train"].inputs
    assert torch.allclose(train.mean(0), torch.zeros(2), atol=1e-5) and torch.allclose(
        train.std(0, correction=0), torch.ones(2), atol=1e-5
    )


def test_nifti_and_colour_files(tmp_path):
    rng = np.random.default_rng(0)
    image, mask = picture(rng, True)
    nibabel.save(nibabel.Nifti1Image(image.astype(np.float32) * 10 - 300, np.eye(4)), tmp_path / "i.nii.gz")
    nibabel.save(nibabel.Nifti1Image((mask > 0).astype(np.uint8), np.eye(4)), tmp_path / "m.nii.gz")
    Image.fromarray(np.stack([image] * 3, axis=-1)).save(tmp_path / "c.png")
    Image.fromarray(np.stack([image] * 4, axis=-1)).save(tmp_path / "a.png")
    nifti, colour = Reader(40, 1).image(tmp_path / "i.nii.gz"), Reader(40, 3).image(tmp_path / "c.png")
    assert nifti.shape == (1, 40, 40) and nifti.dtype == torch.uint8 and nifti.max() > 200 and nifti.min() < 50
    assert colour.shape == (3, 40, 40) and torch.equal(colour[0], colour[2])
    assert torch.equal(Reader(40, 3).image(tmp_path / "a.png"), colour)
    assert Reader(40, 1, {"x": (1,)}).mask(tmp_path / "m.nii.gz").sum() > 0


def test_a_dicom_slice(tmp_path):
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset

    stored = (np.add.outer(np.arange(24), np.arange(30)) * 20).astype(np.int16)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        pydicom.uid.CTImageStorage,
        pydicom.uid.generate_uid(),
    )
    dataset = FileDataset(str(tmp_path / "s.dcm"), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = stored.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 1
    dataset.RescaleSlope, dataset.RescaleIntercept = 1, -1000
    dataset.PixelSpacing, dataset.ImageOrientationPatient = [1, 1], [1, 0, 0, 0, 1, 0]
    dataset.ImagePositionPatient, dataset.SliceThickness = [0, 0, 0], 1
    dataset.PixelData = stored.tobytes()
    dataset.save_as(tmp_path / "s.dcm", enforce_file_format=True)
    image = Reader(24, 1).image(tmp_path / "s.dcm")[0].int()
    # Brighter down and to the right, as stored.
    assert image[0, 0] < 10 and image[-1, -1] > 245
    assert (image[1:] >= image[:-1]).all() and (image[:, 1:] >= image[:, :-1]).all()


def test_unreadable_files_are_named(tmp_path):
    for name in ("x.png", "x.nii.gz", "x.dcm"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(UserError, match=f"{name}: cannot be read as an image") as error:
            Reader(32, 1).image(tmp_path / name)
        assert "\n" not in str(error.value)


def test_structures_may_share_pixel_values(tmp_path):
    """Cup 0, rim 128, background 255, as in fundus data: the disc is cup and rim."""
    stored = np.full((32, 32), 255, np.uint8)
    stored[8:24, 8:24], stored[12:20, 12:20] = 128, 0
    Image.fromarray(stored).save(tmp_path / "m.png")
    task = tasks.load("segmentation", labels="disc,cup", mask_values="disc=128|0; cup=0; background=255", size=32)
    values, background = task.values()
    with pytest.raises(UserError, match=r"expected pixel values \[0, 128\], got 255"):
        Reader(32, 1, values).mask(tmp_path / "m.png")
    both = Reader(32, 1, values, background).mask(tmp_path / "m.png")
    assert both[0].sum() == 256 and both[1].sum() == 64 and not (both[1] & ~both[0] & 1).any()


def broken_lists(root):
    good = {"image": "a.png", "label": 0}
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(root / "a.png")
    (root.parent / "secret.png").write_bytes(b"")
    return {
        "expected JSON": "not json",
        'expected {"training"': "[]",
        "training\\[1\\]: expected the key 'image', got 'label'": {"training": [good, {"label": 0}]},
        "training\\[1\\]: label: expected a whole number from 0 to 1 or one of a, b, got 2": {
            "training": [good, {**good, "label": 2}]
        },
        "training\\[1\\]: label: .* got True": {"training": [good, {**good, "label": True}]},
        "training\\[1\\]: image: no such file: 'b.png'": {"training": [good, {**good, "image": "b.png"}]},
        "inside the data root, got '../secret.png'": {"training": [good, {**good, "image": "../secret.png"}]},
        "validation: expected a list, got str": {"training": [good, good], "validation": "none"},
    }


def test_broken_datalists_name_split_entry_and_cause(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for message, content in broken_lists(root).items():
        (root / "x.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(UserError, match=message.replace("{", "\\{")) as error:
            read_datalist(root / "x.json", root, masks=False, classes=("a", "b"))
        assert "\n" not in str(error.value)


def test_a_number_in_a_list_is_a_classs_name_where_names_are_numbers(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    entries = [{"image": "a.png", "label": label} for label in (0, 1, "1")]
    (tmp_path / "x.json").write_text(json.dumps({"training": entries}))

    def read(*classes):
        return [
            one.label for one in read_datalist(tmp_path / "x.json", tmp_path, masks=False, classes=classes)["train"]
        ]

    assert read("1", "0") == [1, 0, 0] and read("0", "1") == [0, 1, 1]
    with pytest.raises(UserError, match=r"label: expected one of 1, 2, got 0"):
        read("1", "2")


@pytest.mark.parametrize(
    "change, message",
    [
        (("label=outcome", "features=age,height"), "expected a column 'height'; it has: age, score, sex, outcome"),
        (("label=outcome", "features=age,sex"), "row 1: sex: expected a number, got"),
        (("label=sex", "features=age"), "row 1: sex: expected lived, died, got"),
        (("label=outcome", "features=age,outcome"), "features: expected no 'outcome', which is the label"),
        (("label=outcome",), "features: expected columns of the table"),
    ],
)
def test_broken_tables_name_column_row_and_cause(change, message, tmp_path, capsys):
    data = write_tables(tmp_path / "data")
    own = ("--datalists", data, "--kind", "tabular", "--classes", "lived,died", "--out", tmp_path / "r")
    code, _, err = call(capsys, "run", "fedavg", *own, *(a for pair in change for a in ("--set", pair)))
    # Options are refused at once; what is wrong with the data is found at each site, one line each.
    lines = [line for line in err.splitlines() if line and not line.startswith("start: ")]
    assert (code, len(lines)) in ((2, 1), (1, 5)) and message in err and "Traceback" not in err


def test_what_goes_with_datalists(tmp_path, capsys):
    assert "--task: expected a task, or your own data" in call(capsys, "run", "fedavg")[2]
    assert "go with --datalists" in call(capsys, "run", "fedavg", "--task", "support2", "--kind", "tabular")[2]
    empty = ("--datalists", tmp_path, "--kind", "tabular")
    assert "expected a folder with a <SITE>.csv per site" in call(capsys, "run", "fedavg", *empty)[2]
    assert "expected --kind" in call(capsys, "run", "fedavg", "--datalists", tmp_path)[2]
    assert "nowhere: expected a folder" in call(capsys, "run", "fedavg", "--data", tmp_path / "nowhere")[2]
    assert "name its sites" in call(capsys, "run", "fedavg", "--task", "tabular")[2]


def test_a_site_configuration_finds_the_sites_data(tmp_path):
    data = write_images(tmp_path / "data", masks=True)
    (tmp_path / "fairflare_site.yaml").write_text("data_root: data\ndatalist: client_west.json\nbatch_size: 4\n")
    own = find_site_config(tmp_path)
    assert own == SiteConfig(str(data), "client_west.json", batch_size=4) and own.gpu_numbers == ()
    task = tasks.load("segmentation", labels="lesion", size=32)
    assert task.local_data("hospital", own).size("train") == 12
    with pytest.raises(UserError, match="site hospital: expected a site configuration"):
        task.local_data("hospital", None)


@each(
    "text, message",
    [
        ("datalists: x", r"unknown key 'datalists'; did you mean datalist\?"),
        ("min_count: -1", "min_count: expected a whole number from 0 to 1000000, got -1"),
        ("batch_size: 1", "batch_size: expected a whole number from 2 to 65536, got 1"),
        ("cache_rate: null", "cache_rate: expected a number, got None"),
        ("cache_folder: nowhere", "cache_folder: expected a folder that this user may write into, got 'nowhere'"),
        ("{data_root: a, datalist: ../b.json}", "datalist: expected a path inside data_root, got '../b.json'"),
        ("cache_rate: 2", "cache_rate: expected a number from 0 to 1, got 2"),
        ("gpu: first", "gpu: expected a whole number"),
        ("gpus: first", "gpus: expected different numbers below 1024, as in 0,1, got 'first'"),
        ("gpus: 0,0", "gpus: expected different numbers below 1024, as in 0,1, got '0,0'"),
        ("gpus: 0,1024", "gpus: expected different numbers below 1024"),
        ("gpus: [0, 1]", "gpus: expected text"),
        ("{gpu: 0, gpus: '0,1'}", "gpus: expected gpu or gpus, got 'both'"),
        ("{compiler: inductor, gpus: '0,1'}", "gpus: expected no compiler beside several GPUs, got 'inductor'"),
        ("data_root: 3", "data_root: expected text, got 3"),
        ("[1, 2]", "expected keys and values, got list"),
        ("a: [", "expected a YAML or JSON file"),
    ],
)
def test_site_configurations_refuse_what_they_do_not_know(text, message, tmp_path):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_site_config(tmp_path / "s.yaml")
    assert "\n" not in str(error.value)


def test_the_variable_comes_before_the_local_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.json").write_text('{"min_count": null}')
    (tmp_path / "fairflare_site.yaml").write_text("min_count: 30")
    assert find_site_config(tmp_path).min_count == 30 and find_site_config(tmp_path / "none") is None
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "mine.json"))
    assert find_site_config(tmp_path).min_count is None
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(tmp_path / "gone.json"))
    with pytest.raises(UserError, match="gone.json: expected a YAML or JSON file"):
        find_site_config()


@pytest.mark.parametrize("text", ["disc=x; cup=0", "disc=1", "disc=1; cup=2; rim=3"])
def test_mask_values_fit_the_structures(text):
    with pytest.raises(UserError, match="mask_values: expected"):
        tasks.load("segmentation", labels="disc,cup", mask_values=text)


def test_an_exported_job_carries_no_folder_of_this_machine(tmp_path, capsys):
    data = write_images(tmp_path / "data", masks=True)
    own = ("--datalists", data, "--kind", "segmentation", "--classes", "lesion")
    code, _, err = call(capsys, "export", "fedlwr", *own, "--out", tmp_path / "job")
    assert code == 0, err
    for name in ("server", "client"):
        (file,) = (tmp_path / "job").glob(f"*/config/config_fed_{name}.json")
        assert str(tmp_path) not in file.read_text()


def test_a_parquet_table_reads_as_its_csv(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    write_tables(tmp_path, sites=("north",))
    table = pandas.read_csv(tmp_path / "north.csv")
    values = {"datalists": str(tmp_path), "labels": "lived,died", "label": "outcome", "features": "age,score"}
    task = tasks.load("tabular", site_names="north", attribute_values="sex=f|m", **values)
    from_csv = task.site_data("north")
    table.to_parquet(tmp_path / "north.parquet")
    (tmp_path / "north.csv").unlink()
    from_parquet = task.site_data("north")
    for split in ("train", "val", "test"):
        a, b = from_csv.splits[split], from_parquet.splits[split]
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) and a.attributes == b.attributes
    (tmp_path / "north.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="table north.parquet: cannot be read as Parquet"):
        task.site_data("north")


def test_a_folder_of_site_configurations_serves_several_sites_on_one_machine(tmp_path, capsys, monkeypatch):
    data = write_images(tmp_path / "data", masks=False)
    configs = tmp_path / "sites"
    configs.mkdir()
    for site in SITES[:2]:
        text = f"data_root: {data}\ndatalist: client_{site}.json\nnum_workers: 2\ncache_rate: 0.5\nmin_count: 1\n"
        (configs / f"{site}.yaml").write_text(text)
    monkeypatch.setenv("FAIRFLARE_SITE_CONFIG", str(configs))
    own = ("--kind", "classification", "--classes", "2", "--set", "size=32")
    names = ("--set", "site_names=east,north")
    code, out, err = call(
        capsys, "run", "fedavg", *own, *names, "--rounds", "1", "--no-solo", "--out", tmp_path / "r", "--json"
    )
    assert code == 0, err
    assert set(json.loads(out)["report"]["sites"]) == {"east", "north"}
    with_third = ("--set", "site_names=east,north,nobody")
    code, _, err = call(capsys, "run", "fedavg", *own, *with_third, "--rounds", "1", "--out", tmp_path / "s")
    assert code == 2 and "nobody.yaml" in err and err.strip().count("\n") == 0


def test_two_sites_whose_names_differ_in_case_alone():
    with pytest.raises(UserError, match="site_names: expected names that differ by more than upper and lower case"):
        tasks.load("tabular", site_names="North,north", features="age")
