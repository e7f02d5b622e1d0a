# SPDX-License-Identifier: Apache-2.0
"""Whole volumes: from files to one grid, patches, windows, and how far outlines are apart."""

import gzip

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.errors import DataError, UserError
from fairflare.data.readers.datalist import Frame, Item
from fairflare.data.readers.files import FileSplit
from fairflare.data.readers.looks import volume_looked_at
from fairflare.data.readers.volumes import MOST, VolumeData, VolumeReader, patch_of, read
from fairflare.data.tensors import Split
from fairflare.engine.setup.tasks import load
from fairflare.networks.volumes import DENSENETS, UNETS, Windowed, classifier, segmenter
from fairflare.tasks.kinds.masks import UNDEFINED, VOLUME_MASKS, of_volumes, surfaces
from fairflare.tasks.preflight_files import of_files
from volume_files import ball, turned, write, write_series

READER = VolumeReader((2.0, 2.0, 2.0), (32, 32, 32), {"ball": (1,)}, window="300,600")


@pytest.fixture
def volume():
    return ball(np.random.default_rng(0))


@each("axes", ["RAS", "LPS", "ASL", "IPR"])
def test_the_grid_does_not_depend_on_how_axes_are_stored(tmp_path, volume, axes):
    image, mask, affine = volume
    ours = READER(Item(write(tmp_path / "a.nii.gz", image, affine), write(tmp_path / "m.nii", mask, affine)))
    other = Item(
        write(tmp_path / "b.nii", *turned(image, affine, axes)),
        write(tmp_path / "n.nii.gz", *turned(mask, affine, axes)),
    )
    third = Item(
        write(tmp_path / "c.nrrd", *turned(image, affine, axes)),
        write(tmp_path / "c.seg.nrrd", *turned(mask, affine, axes), encoding="raw", endian="big"),
    )
    for mine, its, nrrd in zip(ours, READER(other), READER(third), strict=True):
        assert torch.equal(mine, nrrd)
        assert mine.shape == (1, 32, 32, 32) and mine.dtype == torch.uint8 and torch.equal(mine, its)
    assert ours[1].max() == 1 and ours[0][ours[1] == 1].float().mean() > 200 > 100 > ours[0].float().mean()


def test_a_mask_that_the_grid_cuts_is_found(tmp_path, volume):
    """What lies outside counts as no lesion: a model that finds nothing would be right."""
    image, mask, affine = volume
    path = write(tmp_path / "a.nii", np.pad(image, ((0, 0), (0, 0), (60, 0))), affine)
    far = write(tmp_path / "m.nii", np.pad(mask, ((0, 0), (0, 0), (60, 0))), affine)
    near = write(tmp_path / "n.nii", np.pad(mask, ((0, 0), (0, 0), (30, 30))), affine)
    splits = {"train": FileSplit([Item(path, far), Item(path, near)], READER, torch.empty(0), {})}
    found = {one.code: one for one in of_files(splits, lambda done, total: None)}
    assert found["mask_cut"].count == 1 and "m.nii" in found["mask_cut"].text
    assert int(READER(Item(path, far))[1].sum()) < int(READER(Item(path, near))[1].sum())


def test_voxels_are_where_the_files_millimetres_say(tmp_path, volume):
    image, _, affine = volume
    linear = np.indices(image.shape)[2].astype(np.float32) * 2.5 + 10  # each voxel's height in mm
    grid, _ = VolumeReader((2.0, 2.0, 2.0), (32, 32, 32), window="50,100").placed(
        write(tmp_path / "a.nii", linear, affine)
    )
    heights = (grid.affine @ torch.tensor([0, 0, 1.0, 0]).double())[2]
    inside = grid[0, 16, 16, 4:28].as_tensor().double() / 255 * 100
    places = grid.affine[2, 3] + heights * torch.arange(4, 28)
    assert torch.allclose(inside, places, atol=1e-3)


def test_a_series_of_dicom_is_the_volume_that_it_was_made_of(tmp_path, volume):
    image, mask, affine = volume
    first = write_series(tmp_path / "series", image.round(), affine)
    write_series(tmp_path / "series", image[:, :, :3], affine, series=1)  # the folder's other series
    found = read(first)
    assert found.stored.hounsfield and found.stored.pixels.shape == (36, 40, 30)
    nifti = write(tmp_path / "a.nii.gz", image.round() - 100, affine)
    reader = VolumeReader((2.0, 2.0, 2.0), (32, 32, 32), window="200,600")
    assert torch.equal(reader.image(first), reader.image(nifti))
    both = READER(Item(first, write(tmp_path / "m.nii.gz", mask, affine)))
    assert both[1].sum() > 0


def broken_files(tmp_path, image, mask, affine):
    """What is wrong -> the item, the code of the error, and a part of its text."""
    good, own = write(tmp_path / "good.nii.gz", image, affine), write(tmp_path / "mask.nii.gz", mask, affine)
    cut = tmp_path / "cut.nii.gz"
    cut.write_bytes(good.read_bytes()[:-2000])
    text = tmp_path / "text.nii.gz"
    text.write_bytes(gzip.compress(b"no volume at all"))
    gap = write_series(tmp_path / "gap", image, affine, skip=(11,))
    beside = affine.copy()
    beside[0, 3] += 30  # somebody moved the table half way
    write_series(tmp_path / "beside", image, affine, skip=range(15))
    aside = write_series(tmp_path / "beside", image, beside, skip=range(15, 30))
    other = affine.copy()
    other[2, 3] += 5
    png = tmp_path / "x.png"
    png.write_bytes(b"")
    return {
        "4d": (Item(write(tmp_path / "4d.nii", np.stack([image] * 9, 3), affine), own), "not_3d", "40x36x30x9"),
        "contrasts": (Item(write(tmp_path / "2.nii", np.stack([image] * 2, 3), affine), own), "shape", "got 2"),
        "masks": (Item(good, write(tmp_path / "m.nii", np.stack([mask] * 2, 3), affine)), "not_3d", "got 2 contrasts"),
        "flat": (Item(write(tmp_path / "2d.nii", image[:, :, :1], affine), own), "not_3d", "40x36x1"),
        "picture": (Item(png, own), "not_3d", "a picture"),
        "cut": (Item(cut, own), "unreadable", "cut.nii.gz"),
        "text": (Item(text, own), "unreadable", "text.nii.gz"),
        "nan": (Item(write(tmp_path / "nan.nii", image * np.nan, affine), own), "nonfinite", "nan.nii"),
        "spacing": (Item(write(tmp_path / "s.nii", image, affine @ np.diag([900, 9, 9, 1])), own), "spacing", "mm"),
        "gap": (Item(gap, own), "series", "2.5 to 5 mm apart"),
        "aside": (Item(aside, own), "series", "mm beside the others"),
        "alone": (Item(write_series(tmp_path / "one", image[:, :, :1], affine), own), "series", "1 slice"),
        "shape": (Item(good, write(tmp_path / "less.nii", mask[:-1], affine)), "shape", "39x36x30"),
        "moved": (Item(good, write(tmp_path / "moved.nii", mask, other)), "shape", "lies elsewhere"),
        "values": (Item(good, write(tmp_path / "seven.nii", mask * 7, affine)), "mask_values", "got 7"),
        "slice": (Item(Frame(good, 3), own), "entry", "slice"),
    }  # fmt: skip


def test_what_is_no_volume_is_one_line(tmp_path, volume):
    for what, (item, code, text) in broken_files(tmp_path, *volume).items():
        with pytest.raises(DataError) as error:
            READER(item)
        assert error.value.code == code and text in str(error.value), f"{what}: {error.value}"
        assert "\n" not in str(error.value) and str(tmp_path) not in str(error.value), what


def test_a_link_beside_a_slice_is_not_followed(tmp_path, volume):
    image, _, affine = volume
    first = write_series(tmp_path / "a", image[:, :, :4], affine)
    (tmp_path / "a" / "999.dcm").symlink_to(next((tmp_path / "a").glob("002*.dcm"), first))
    assert read(first).stored.pixels.shape[2] == 4


def test_what_a_fingerprint_is_made_of(tmp_path, volume):
    image, _, affine = volume
    found = volume_looked_at(write(tmp_path / "a.nii", *turned(image, affine, "ASL")))
    assert found.voxels == (40, 36, 30) and np.allclose(found.edges, (2, 2, 2.5)) and not found.coloured


def random_masks(seed, shape=(2, 2, 20, 18, 16)):
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(seed)
    noise = np.stack(
        [[gaussian_filter(rng.normal(size=shape[2:]), 2) for _ in range(shape[1])] for _ in range(shape[0])]
    )
    return torch.from_numpy(noise > 0.05)


@each("spacing", [(1.0, 1.0, 1.0), (0.7, 1.5, 3.0)])
def test_surfaces_are_monais(spacing):
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    mine, true = random_masks(0), random_masks(1)
    logits = torch.where(mine, 1.0, -1.0)
    sums, _ = of_volumes(logits, true.to(torch.uint8), spacing, 1.6)
    arguments = dict(include_background=True, spacing=list(spacing))
    dice = compute_surface_dice(mine, true, [1.6, 1.6], **arguments)
    far = compute_hausdorff_distance(mine, true, percentile=95, **arguments)
    assert torch.allclose(sums[..., 4], dice.double(), atol=1e-6)
    assert torch.allclose(sums[..., 5], far.double(), atol=1e-5)


def test_a_surface_that_is_not_there_has_no_distance():
    some, none = random_masks(0)[0, 0], torch.zeros(20, 18, 16, dtype=torch.bool)
    assert surfaces(none, none, (1, 1, 1), 1) == (UNDEFINED, UNDEFINED)
    assert surfaces(some, none, (1, 1, 1), 1) == surfaces(none, some, (1, 1, 1), 1) == (0.0, UNDEFINED)
    assert surfaces(some, some, (1, 1, 1), 0) == (1.0, 0.0)
    truth = torch.stack((some, none))[None]
    logits = torch.where(truth, 1.0, -1.0)
    found = VOLUME_MASKS.evaluate(VOLUME_MASKS.names(("a", "b")), *VOLUME_MASKS.condense(logits, truth), ("a", "b"))
    assert found["surface_dice"] == 1.0 and found["hd95"] == 0.0 and found["dice_b"] == 1.0
    nothing = VOLUME_MASKS.condense(logits[:, 1:], truth[:, 1:])
    assert not {"surface_dice", "hd95"} & set(VOLUME_MASKS.evaluate(("dice", "surface_dice", "hd95"), *nothing, ("b",)))


def held(n=6, edge=32, patch=(16, 16, 16), **more):
    draw = torch.Generator().manual_seed(0)
    masks = torch.zeros(n, 2, edge, edge, edge, dtype=torch.uint8)
    masks[:, 0, 4:8, 4:8, 4:8], masks[:, 1, 20:30, 20:30, 20:30] = 1, 1
    images = torch.randint(256, (n, 1, edge, edge, edge), generator=draw, dtype=torch.uint8)
    split = Split(images, masks)
    return VolumeData(train=split, val=split, test=split, n_classes=0, patch=patch, mean=(0.5,), std=(0.25,), **more)


def test_patches_are_a_function_of_the_seed():
    data = held(patches=2)
    first, again, other = (list(data.training(4, seed)) for seed in (1, 1, 2))
    assert [len(batch.targets) for batch in first] == [4, 4, 4]
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again))
    assert not torch.equal(first[0].inputs, other[0].inputs)
    assert first[0].inputs.shape == (4, 1, 16, 16, 16) and first[0].targets.shape == (4, 2, 16, 16, 16)
    torch.manual_seed(5)
    assert torch.equal(next(data.training(4, 1)).inputs, first[0].inputs)


def test_patches_lie_as_often_in_each_structure():
    mask = held().splits["train"].targets[0]
    cut = [patch_of(mask, (8, 8, 8), seed) for seed in range(150)]
    hit = np.array([[bool(mask[c][at].any()) for c in range(2)] for at in cut]).mean(0)
    assert (hit > 0.25).all(), hit  # the first structure is 0.2 % of the voxels
    assert all(mask[0][patch_of(torch.zeros_like(mask), (8, 8, 8), seed)].shape == (8, 8, 8) for seed in range(5))


def test_probes_see_one_fixed_patch_of_each_training_volume():
    data = held(n=12)
    once, twice = (list(data.fixed("train", 64)) for _ in range(2))
    assert [len(batch.targets) for batch in once] == [MOST, 4]
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(once, twice))
    assert once[0].inputs.shape[2:] == (16, 16, 16)
    assert next(data.fixed("val", 64)).inputs.shape == (MOST, 1, 32, 32, 32)
    assert next(data.whole("train", 4, 3)).targets.shape == (3, 2, 32, 32, 32)


def test_the_constant_mask_is_of_whole_volumes():
    data = held()
    answers = VOLUME_MASKS.baseline(None, data).answers(torch.zeros(2, 1, 32, 32, 32))
    assert torch.equal(answers > 0, data.splits["val"].targets[:2] > 0)


def test_a_window_slides_as_monais():
    from monai.inferers import sliding_window_inference

    torch.manual_seed(0)
    network = segmenter("small-unet3d", (16, 16, 16), 2, "instance").eval()
    volume = torch.rand(2, 1, 24, 16, 32)
    with torch.no_grad():
        found = network(volume)
        expected = sliding_window_inference(volume, (16, 16, 16), 3, network.network, 0.25, mode="gaussian")
        assert torch.equal(found, expected) and found.shape == (2, 2, 24, 16, 32)
        patch = volume[:, :, :16, :, :16]
        assert torch.equal(network(patch), network.network(patch))


@each("model", [*UNETS])
def test_segmenters(model):
    network = segmenter(model, (32, 32, 32), 3, "batch" if model == "unet3d" else "instance")
    assert isinstance(network, Windowed) and network(torch.rand(2, 1, 32, 32, 32)).shape == (2, 3, 32, 32, 32)


def test_convolutions_of_the_slice_model_are_flat():
    network = segmenter("small-unet-slices", (16, 16, 16), 1, "group").network
    assert all(m.kernel_size[2] == 1 for m in network.modules() if hasattr(m, "kernel_size"))


@each("model", ["small-densenet3d"])
def test_classifiers(model):
    assert model in DENSENETS
    assert classifier(model, (32, 32, 32), 3, "group")(torch.rand(2, 1, 32, 32, 32)).shape == (2, 3)


@each(
    "options, text",
    [
        ({"spacing": "2,2"}, "spacing: expected three numbers of 0.01 to 100"),
        ({"spacing": "2,2,nan"}, "spacing: expected three numbers"),
        ({"shape": "64,64,8"}, "shape: expected three whole numbers of 16 to 512"),
        ({"shape": "512,512,512"}, "shape: expected at most"),
        ({"patch": "96,32,32"}, "patch: expected at most the volumes' 64,64,64"),
        ({"window": "file"}, "window: expected CENTRE,WIDTH or percentiles"),
        ({"model": "unet"}, "model: expected one of small-unet3d"),
        ({"mask_values": "ball=x"}, "mask_values: expected"),
    ],
)
def test_options_that_cannot_be(options, text):
    with pytest.raises(UserError, match=text):
        load("volume-segmentation", None, labels="ball", **options)
