# SPDX-License-Identifier: Apache-2.0
"""Preflight: every kind of broken data is a finding with split and cause, and nothing that leaves names a patient."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fairflare.cli import console
from fairflare.cli.main import main
from fairflare.cli.preflight import Question, between, check, check_site
from fairflare.core.errors import DataError, UserError
from fairflare.core.findings import CODES, Finding, accepted_codes, merged
from fairflare.data.readers.datalist import Contrasts, Frame, Item, read_datalist
from fairflare.data.readers.pictures import Reader
from fairflare.engine.audit import verify
from fairflare.engine.setup import tasks
from fairflare.tasks.preflight import far_outside
from own_folder import write_images


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
    return check_site(folder / "site.yaml", Question(kind, classes, values))


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


def test_copies_in_two_splits_and_masks_that_are_inverted_or_empty_are_said(site):
    folder, lists = site
    for copy, of in ((12, 3), (18, 12), (19, 5)):
        (folder / "data" / f"{copy}.png").write_bytes((folder / "data" / f"{of}.png").read_bytes())
    for flat in (0, 13, 20):
        save(folder / "data" / f"{flat}.png", np.zeros((20, 24)))  # a slice of air is like any other
    found = findings(site, group_by="none")
    two = [("warning", "copies", "", 1)]  # 3 and its copy 12
    assert codes(found) == [("warning", "copies", "val", 1), ("warning", "copies", "test", 2), *two]
    assert found[2].text.startswith("1 images have copies with another label, e.g. 18.png (test)")
    assert found[0].text.endswith("e.g. 12.png of 3.png (train)")
    for pixels, said in (
        (255 - np.eye(20, 24) * 255, "are they inverted"),
        (np.zeros((20, 24)), "all masks are empty"),
    ):
        for k in range(22):
            save(folder / "data" / f"{k}_mask.png", pixels)
        found = findings((folder, masks(lists)), "segmentation", "lesion")
        assert [said in one.text for one in found if one.code == "mask_share"] == [True]


def test_a_slices_mask_lies_on_its_pixels(tmp_path):
    import nibabel

    rng, mirrored, moved = np.random.default_rng(0), np.diag([-1.0, 1, 3, 1]), np.eye(4)
    mirrored[0, 3], moved[:3, 3] = 19, (0, 1, 0)
    item, plain = Item(Frame(tmp_path / "x.nii.gz", 2), tmp_path / "m.nii"), np.eye(4)
    nowhere, line = np.zeros((4, 4)), np.diag([1.0, 0, 1, 1])
    places = ((plain, plain, 1), (plain, mirrored, 0), (plain, moved, 0), (plain, None, 1))
    for image, mask, fits in (
        *places,
        (nowhere, nowhere, 0),
        (nowhere, plain, 0),
        (plain, nowhere, 0),
        (line, line, 0),
    ):
        for path, affine in ((item.image.path, image), (item.label, mask)):
            pixels = rng.integers(0, 2, (20, 20, 4)).astype(np.uint8)
            made = nibabel.Nifti1Image(pixels, None if affine is None else plain)  # without one it says no place
            made.set_sform(affine, 0 if affine is None else 1)
            nibabel.save(made, path)
        try:
            assert Reader(16, 1, {"lesion": (1,)})(item)[1].shape == (1, 16, 16) and fits
        except DataError as error:
            assert "turned, of other spacing, elsewhere or nowhere" in str(error) and not fits


def test_a_volumes_mask_lies_on_its_slices(tmp_path):
    """Of the same slices in the same order, also where only the normal tells; so do contrasts."""
    import nibabel

    def written(name, affine, slices=8):
        nibabel.save(nibabel.Nifti1Image(np.eye(20, dtype=np.uint8)[..., None].repeat(slices, -1), affine), name)
        return name

    plain, turned = np.diag([1.0, 1, 3, 1]), np.diag([1.0, 1, -3, 1])
    below, thin, near = plain.copy(), np.diag([1.0, 1, 1.2, 1]), plain.copy()
    turned[2, 3], below[2, 3], near[2, 3] = 21, -300, 1
    image, reader = written(tmp_path / "x.nii", plain), Reader(20, 1, {"lesion": (1,)})
    for k, (affine, slices, said) in enumerate(
        [(plain, 8, ""), (near, 8, ""), (plain, 9, "expected a mask of 8 slices, got 9")]
        + [(one, 8, "turned, of other spacing, elsewhere") for one in (turned, below, thin)]
    ):
        other = written(tmp_path / f"{k}.nii", affine, slices)
        pair = Contrasts((Frame(image, 3), Frame(other, 3)))
        if not said:
            assert reader(Item(Frame(image, 3), other))[1].sum() == 20
            assert Reader(20, 2, {"lesion": (1,)})(Item(pair, other))[0].shape == (2, 20, 20)
            continue
        with pytest.raises(DataError, match=said):
            reader(Item(Frame(image, 3), other))
        with pytest.raises(DataError, match="contrasts on the same pixels"):
            Reader(20, 2).image(pair)
    apart = [written(tmp_path / f"{k}.nii", affine, 1) for k, affine in enumerate((plain, below))]
    with pytest.raises(DataError, match="turned, of other spacing, elsewhere"):
        reader(Item(*apart))


@pytest.mark.parametrize("affine", [np.eye(4), None])
def test_a_picture_is_no_mask_of_nifti(affine, tmp_path):
    """Whose columns come first, so that one of the two is read transposed."""
    import nibabel

    pixels = np.eye(20, dtype=np.uint8)
    save(tmp_path / "x.png", pixels)
    nibabel.save(nibabel.Nifti1Image(pixels[..., None], affine), tmp_path / "x.nii")
    paths, reader = (tmp_path / "x.png", tmp_path / "x.nii"), Reader(20, 1, {"lesion": (1,)})
    for pair in (paths, paths[::-1]):
        with pytest.raises(DataError, match="NRRD store columns first: save both in one format") as caught:
            reader(Item(*pair))
        assert caught.value.code == "shape"
        with pytest.raises(DataError, match="contrasts on the same pixels"):
            Reader(20, 2).image(Contrasts(pair))
    for path in paths:
        assert reader(Item(path, path))[1].sum() == 20


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
        found = check_site(folder / "site.yaml", Question("classification", "2", {"group_by": "none"}, **given))
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
    found = check_site(folder / "site.yaml", Question("classification", "2", accepted=list(CODES)))
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


def test_many_faults_of_a_kind_are_one_finding(site):
    folder, lists = site
    for entry in [*lists["training"][:9], lists["testing"][0]]:
        entry["label"] = 9
    found = [f for f in findings(site) if f.code == "label"]
    assert [(f.split, f.count) for f in found] == [("train", 9), ("test", 1)]
    [line] = merged(found)
    assert str(line).startswith("error: 10 examples (train 9, test 1), e.g. datalist list.json: training[0]: label: ")


def test_missing_labels_are_counted_and_left_out(site):
    folder, lists = site
    lists["training"][0].pop("label")
    lists["training"][1]["label"] = None
    lists["training"][2]["label"] = ""
    found = findings(site, group_by="none")
    assert codes(found) == [("warning", "no_label", "train", 3)] and "training[0]: has no label" in found[0].text
    root = folder / "data"
    kept = read_datalist(root / "list.json", root, masks=False, classes=("well", "ill"))
    assert len(kept["train"]) == 9 and len(kept["val"]) == 6


def test_labels_may_be_names_of_classes(site):
    folder, lists = site
    for entry in lists["training"][:8]:
        entry["label"] = ("well", "ill")[entry["label"]]
    assert findings(site, classes="well,ill", group_by="none") == []
    kept = read_datalist(folder / "data" / "list.json", folder / "data", masks=False, classes=("well", "ill"))
    assert [item.label for item in kept["train"]] == [i % 2 for i in range(12)]
    lists["training"][0]["label"] = "Ill"
    [found] = [f for f in findings(site, classes="well,ill") if f.level == "error"]
    assert "expected a whole number from 0 to 1 or one of well, ill, got 'Ill'" in found.text


def linked(site, number, target):
    """Image ``number`` of the site as a link to ``target``."""
    path = site[0] / "data" / f"{number}.png"
    path.rename(target) if not target.exists() else path.unlink()
    path.symlink_to(target)


def test_a_link_out_of_the_data_root_is_called_one(site):
    linked(site, 0, site[0] / "outside.png")
    linked(site, 1, site[0] / "data" / "inside.png")
    [found] = [f for f in findings(site, group_by="none")]
    assert codes([found]) == [("error", "link_outside", "train", 1)] and "'0.png' is a symbolic link" in found.text
    (site[0] / "outside.png").unlink()
    (site[0] / "data" / "1.png").unlink()
    (site[0] / "data" / "1.png").symlink_to("gone.png")
    found = findings(site, group_by="none")
    assert {f.code for f in found} == {"link_outside", "missing_file"}
    assert any("'1.png' (a symbolic link whose file is gone)" in f.text for f in found)


def test_a_site_may_allow_its_links_and_no_list_may_use_them_to_climb(site):
    folder, lists = site
    linked(site, 0, folder / "outside.png")
    (folder / "elsewhere" / "deep").mkdir(parents=True)
    (folder / "elsewhere" / "secret.png").write_bytes((folder / "outside.png").read_bytes())
    (folder / "data" / "link").symlink_to(folder / "elsewhere" / "deep")
    (folder / "site.yaml").write_text("data_root: data\ndatalist: list.json\nlinks: true\n")
    assert findings(site, group_by="none") == []
    for text in ("link/../secret.png", "../outside.png", str(folder / "outside.png")):
        lists["training"][0]["image"] = text
        assert ("error", "path_outside", "train", 1) in codes(findings(site, group_by="none"))


def test_links_in_a_circle_and_names_that_are_none(site):
    folder, lists = site
    (folder / "data" / "loop.png").symlink_to("loop.png")
    for text in ("loop.png", "x" * 5000, "a\0b", 7, ""):
        lists["training"][0]["image"] = text
        [found] = [f for f in findings(site, group_by="none") if f.level == "error"]
        assert found.code in ("unreadable", "missing_file", "entry") and len(found.text) < 300


def test_the_list_of_the_decathlon_is_read(site):
    folder, lists = site
    content = masks(lists)
    tests = [f"./{entry['image']}" for entry in content.pop("testing")]
    about = {"name": "Brain", "modality": {"0": "MRI"}, "labels": {"0": "background", "255": "eye"}, "numTest": 4}
    (folder / "data" / "dataset.json").write_text(json.dumps({**about, **content, "test": tests}))
    (folder / "site.yaml").write_text("data_root: data\ndatalist: dataset.json\n")
    found = check_site(folder / "site.yaml", Question("segmentation", "eye"))
    assert codes(found) == [("error", "empty_split", "test", 0), ("warning", "no_label", "test", 4)]


def test_a_folder_that_nobody_has_looked_at(tmp_path):
    with pytest.raises(UserError, match="nothing says what .* holds; `fairflare init .*` finds out, or --kind"):
        check(tmp_path, Question())
    with pytest.raises(UserError, match="expected a folder with a <SITE>.json per site; `fairflare init"):
        check(tmp_path, Question("classification"))


@pytest.mark.slow
def test_a_folder_of_sites_has_a_line_for_each_site_and_kind_of_problem(tmp_path, capsys):
    sites = [f"site-{k}" for k in range(1, 13)]
    write_images(tmp_path / "data", masks=False, sites=sites)
    for site in sites[2:]:
        path = tmp_path / "data" / f"client_{site}.json"
        lists = json.loads(path.read_text())
        for entry in lists["training"][:5] + lists["testing"][:2]:
            entry["label"] = 7
        path.write_text(json.dumps(lists))
    own = [str(tmp_path / "data"), "--kind", "classification", "--classes", "2"]
    with pytest.raises(SystemExit) as end:
        main(["preflight", *own, "--set", "group_by=none"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert end.value.code == 1 and len(lines) == 11 and err.count("\n") == 1 and len(err) < 160
    assert [line.split(":")[0] for line in lines[:-1]] == sites[2:]
    assert lines[-1] == "site-1, site-2: nothing found: the data can be used"
    with pytest.raises(SystemExit):
        main(["preflight", *own, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (
        list(shown) == sites and {"level": "error", "code": "label", "split": "train", "count": ""} in shown["site-3"]
    )
    with pytest.raises(SystemExit):
        main(["run", "fedavg", "--datalists", *own, "--rounds", "1", "--out", str(tmp_path / "r")])
    told = capsys.readouterr().err.splitlines()
    refused = [line for line in told if line.startswith("fairflare: ")]
    assert sum("label" in line and "error" in line for line in told) == 10 and len(refused) == 1
    assert refused[0].startswith("fairflare: preflight: site-3, site-4, site-5, site-6, site-7 and 5 more: ")
    assert len(refused[0]) < 200


def test_a_folder_of_configurations(site, tmp_path):
    folder, lists = site
    (folder / "data" / "list.json").write_text(json.dumps(lists))
    (tmp_path / "sites").mkdir()
    for name in ("b10", "b9"):
        (tmp_path / "sites" / f"{name}.yaml").write_text("data_root: ../data\ndatalist: list.json\n")
    asked = Question("classification", "2", {"group_by": "none"})
    assert check(tmp_path / "sites", asked) == {"b9": [], "b10": []}
    with pytest.raises(UserError, match="--site: goes with one site's configuration"):
        check(tmp_path / "sites", Question("classification", "2", site="b9"))


@pytest.mark.parametrize("kind, size", [("segmentation", 28), ("classification", 28), ("classification", 16)])
def test_images_of_any_size(kind, size):
    options = {"labels": "a,b", "size": size, "channels": 1}
    network = tasks.load(kind, **options).network()
    shape = network(torch.rand(2, 1, size, size)).shape
    assert shape == ((2, 2, size, size) if kind == "segmentation" else (2, 2))
    plain = tasks.load(kind, **{**options, "size": 64}).network().state_dict()
    assert {k: v.shape for k, v in network.state_dict().items()} == {k: v.shape for k, v in plain.items()}


def test_rows_without_an_outcome_are_counted_and_left_out(tmp_path):
    rows = [f"{i},{['0', '1', ''][i % 3]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("age,label\n" + "\n".join(rows))
    (tmp_path / "site.yaml").write_text("data_root: .\ndatalist: t.csv\nmin_count: 5\n")
    found = check_site(tmp_path / "site.yaml", Question("tabular", "2", {"features": "age", "group_by": "none"}))
    assert codes(found) == [("warning", "no_label", "", 20)]


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


def test_a_tables_copies_and_codes_that_the_federation_does_not_know_are_said(tmp_path):
    rows = [f"{k**1.5:.3f},{'mw'[k % 2]},{k // 2 % 2},{('train', 'val', 'test')[k % 3]}" for k in range(90)]
    copies = [f"{row.rpartition(',')[0]},test" for row in rows[:9]]
    (tmp_path / "t.csv").write_text("\n".join(["age,sex,label,split", *rows, *copies]))
    (tmp_path / "site.yaml").write_text("data_root: .\ndatalist: t.csv\nmin_count: 5\n")
    columns = '{"sex": {"kind": "category", "levels": ["female", "male"]}}'
    values = {"features": "age,sex", "columns": columns, "group_by": "none"}
    found = check_site(tmp_path / "site.yaml", Question("tabular", "2", values))
    assert codes(found) == [("warning", "levels", "train", 30), ("warning", "copies", "test", 6)]
    assert found[0].text == "sex: 30 rows have none of female, male: are the codes the same?"
    others = [f"{age},{sex},{1 - int(label)},test" for age, sex, label, _ in (row.split(",") for row in rows[:12])]
    (tmp_path / "t.csv").write_text("\n".join(["age,sex,label,split", *rows[:60], *others]))
    assert "copies" not in {one.code for one in check_site(tmp_path / "site.yaml", Question("tabular", "2", values))}
    (tmp_path / "t.csv").write_text("\n".join(["age,sex,label,split", *rows[:24], copies[0]]))
    found = check_site(tmp_path / "site.yaml", Question("tabular", "2", values))
    assert "1 row is a copy of one in an earlier split" in {one.text for one in found}


def test_a_table_with_one_outcome(tmp_path):
    (tmp_path / "t.csv").write_text("age,label\n" + "\n".join(f"{i},0" for i in range(30)))
    (tmp_path / "site.yaml").write_text("data_root: .\ndatalist: t.csv\nmin_count: 5\n")
    found = check_site(tmp_path / "site.yaml", Question("tabular", "2", {"features": "age"}))
    assert ("error", "one_class", "train") in [c[:3] for c in codes(found)]
    found = check_site(tmp_path / "site.yaml", Question("tabular", "2", {"features": "height"}))
    assert codes(found) == [("error", "column", "", 1)] and "expected a column 'height'" in found[0].text


def test_a_site_with_warnings_alone_is_said_to_be_usable(capsys):
    found = [Finding(level, code, "train", 12, "text") for level, code in (("warning", "label"), ("error", "label"))]
    console.findings({"a": found[:1], "b": found, "c": [], "d": found[:1]}, True)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "c: nothing found: the data can be used",
        "a, d: no errors: the data can be used",
    ]
    console.findings({"a": found[:1]}, False)
    assert capsys.readouterr().out.splitlines()[-1] == "no errors: the data can be used"


def test_a_tiny_site_is_left_out_where_others_remain_and_else_named_with_the_flag(tmp_path, capsys):
    sites = ["north", "south", "tiny"]
    write_images(tmp_path / "data", masks=False, sites=sites)
    path = tmp_path / "data" / "client_tiny.json"
    lists = json.loads(path.read_text())
    path.write_text(json.dumps({key: found[:1] for key, found in lists.items()}))
    own = [str(tmp_path / "data"), "--kind", "classification", "--classes", "2", "--set", "group_by=none"]
    with pytest.raises(SystemExit) as ended:
        main(["preflight", *own])
    assert not ended.value.code and "tiny: too few patients: a run leaves them out" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["preflight", *own, "--without", "north"])
    assert ended.value.code and capsys.readouterr().err.endswith("no run can start; without it: --without tiny\n")
    with pytest.raises(SystemExit):
        main(["preflight", *own, "--without", "tiny"])
    assert "tiny" not in capsys.readouterr().out
    run = ["run", "fedavg", "--datalists", *own, "--rounds", "1", "--no-solo", "--out"]
    with pytest.raises(SystemExit) as ended:
        main([*run, str(tmp_path / "by-rule")])
    assert not ended.value.code, capsys.readouterr().err
    entries = verify(tmp_path / "by-rule" / "audit.jsonl")
    left = [entry["rejected"]["tiny"] for entry in entries if "tiny" in entry.get("rejected", {})]
    assert {entry["event"] for entry in entries if "tiny" in entry.get("rejected", {})} >= {"start", "evaluation"}
    assert all("too few patients" in str(one) or "few_examples" in str(one) for one in left)
    with pytest.raises(SystemExit):
        main([*run, str(tmp_path / "refused"), "--without", "north"])
    assert "; left out with --without tiny" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*run, str(tmp_path / "run"), "--without", "tiny"])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["options"]["site_names"] == "north,south"
    capsys.readouterr()
    for left, words in (
        ("tinny", "--without: unknown site 'tinny'; did you mean tiny?"),
        ("", "--without: unknown site"),
    ):
        with pytest.raises(SystemExit):
            main([*run, str(tmp_path / "none"), "--without", left])
        assert words in capsys.readouterr().err


def test_numbers_far_outside_of_their_column_are_named_and_skewed_ones_are_not():
    rng = np.random.default_rng(0)
    plain, skewed = rng.normal(0, 1, 400), np.exp(rng.normal(1, 2, 400))
    mostly_zero = np.where(rng.random(400) < 0.8, 0.0, rng.poisson(3, 400))
    for healthy in (plain, skewed, mostly_zero, rng.integers(0, 2, 400), np.full(400, 7.0), 60 + 15 * plain):
        assert not far_outside(healthy.astype(float)).any()
    for values, odd in ((plain, 1000.0), (plain, -1000.0), (60 + 15 * plain, 15_060.0), (100 + plain, 1e5)):
        found = far_outside(np.append(values, odd))
        assert np.flatnonzero(found).tolist() == [400]


def test_a_table_with_a_number_1000_standard_deviations_away_has_a_warning(tmp_path):
    rng = np.random.default_rng(1)
    rows = [f"{age:.1f},{k % 2},{('train', 'val', 'test')[k % 3]}" for k, age in enumerate(rng.normal(60, 15, 300))]
    for odd, expected in (("", []), ("15060,1,train", [("warning", "far", "train", 1)])):
        (tmp_path / "a.csv").write_text("\n".join(["age,label,split", *rows, *filter(None, [odd])]) + "\n")
        (tmp_path / "site.yaml").write_text("data_root: .\ndatalist: a.csv\n")
        found = check_site(tmp_path / "site.yaml", Question("tabular", "2", {"features": "age", "group_by": "none"}))
        assert [one for one in codes(found) if one[1] == "far"] == expected


def test_a_number_that_a_site_has_in_few_rows_or_none_is_compared_by_these(tmp_path):
    rng = np.random.default_rng(3)
    for site, known in (("a", 90), ("b", 90), ("c", 0), ("d", 12)):
        rows = [f"{rng.normal(60, 9):.4f},{rng.normal(80, 4):.1f}" for _ in range(90)]
        rows = [row if k < known else f"{row.split(',')[0]}," for k, row in enumerate(rows)]
        rows = [f"{row},{k // 2 % 2},{('train', 'val', 'test')[k % 3]}" for k, row in enumerate(rows)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,weight,label,split", *rows]) + "\n")
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / f"{site}.yaml").write_text(f"data_root: {tmp_path}\ndatalist: {site}.csv\n")
    columns = '{"weight": {"kind": "number", "range": [0, 400]}, "age": {"kind": "number", "range": [0, 120]}}'
    values = {"features": "age,weight", "columns": columns, "group_by": "none"}
    found = check(tmp_path / "sites", Question("tabular", "2", values))
    assert {site: codes(own) for site, own in found.items()} == {"a": [], "b": [], "c": [], "d": []}


def test_a_site_with_another_unit_is_named_among_sites_and_alike_ones_are_not():
    rng = np.random.default_rng(2)
    sites = {site: {"glucose": rng.normal(100, 25, 50)} for site in ("a", "b", "c")}
    assert between(sites) == {}
    found = between(sites | {"d": {"glucose": rng.normal(5.5, 1.4, 50)}})
    assert {site: codes(own) for site, own in found.items()} == {"d": [("warning", "far", "train", 1)]}
