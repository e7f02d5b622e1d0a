# SPDX-License-Identifier: Apache-2.0
"""Slices of NIfTI volumes: pairs of files, z-scores, and what is refused in one line."""

import nibabel
import numpy as np
import pytest

from cases import each
from fairflare.core.errors import DataError
from fairflare_lab.datasets import prostate
from fairflare_lab.datasets.on_disk import dealt

EDGE, DEPTH = 32, 5


def volume(rng):
    """float32 (x, y, slices) and labels 0, 1 and 2 on all slices but the outer ones."""
    label = np.zeros((EDGE, EDGE, DEPTH), np.uint8)
    label[10:16, 8:24, 1:-1], label[16:22, 8:24, 1:-1] = 1, 2
    return rng.normal(300, 30, label.shape).astype(np.float32), label


def save(array, path):
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)


def test_pairs_are_found_in_any_letter_case(tmp_path):
    for name in (
        "case02.nii.gz",
        "Case02_segmentation.nii.gz",
        "Case10.nii",
        "case10_SEGMENTATION.nii.gz",
        "notes.txt",
    ):
        (tmp_path / name).write_bytes(b"")
    assert [(c.name, c.image.name, c.label.name) for c in prostate.cases_in(tmp_path)] == [
        ("case02", "case02.nii.gz", "Case02_segmentation.nii.gz"),
        ("case10", "Case10.nii", "case10_SEGMENTATION.nii.gz"),
    ]


def test_extreme_values_are_cut(tmp_path):
    image = np.zeros((40, 40, 10), np.float32)
    image[:2, :8], image[30, 30, 5] = 100, 1e9  # one in a hundred, and one voxel that counts for nothing
    save(image, tmp_path / "i.nii.gz")
    stored = prostate.standardised(tmp_path / "i.nii.gz")
    assert stored.shape == (10, 40, 40) and stored.max() == 255 == stored[5, 30, 30] and stored[0, 0, 0] == 255
    assert abs(int(np.median(stored)) - round((5 - 0.1) / 10 * 255)) <= 1
    save(np.full((8, 8, 2), 7, np.int16), tmp_path / "flat.nii")
    assert set(np.unique(prostate.standardised(tmp_path / "flat.nii"))) == {128}


def broken_volumes(folder):
    """What is done to a folder's files -> what is said; each starts from good ones."""
    image, label = volume(np.random.default_rng(0))
    holes = np.where(label > 0, np.nan, image)
    one, mask = folder / "Case00.nii.gz", folder / "Case00_Segmentation.nii.gz"
    yield lambda: mask.unlink(), r"Case00.nii.gz: expected case00_segmentation.nii.gz beside it, found none"
    yield lambda: one.unlink(), r"Case00_Segmentation.nii.gz: expected case00.nii.gz beside it, found none"
    yield lambda: save(image, folder / "case00.nii"), r"case00.nii: expected one such file, got Case00.nii.gz too"
    yield lambda: mask.write_bytes(b"x"), r"Case00_Segmentation.nii.gz: cannot be read as a NIfTI volume"
    yield lambda: one.write_bytes(b"x"), r"Case00.nii.gz: cannot be read as a NIfTI volume"
    yield lambda: save(holes, one), r"Case00.nii.gz: expected finite numbers"
    yield (
        lambda: save(image[..., 0], one),
        r"Case00.nii.gz: expected axial slices .* got an array of shape \(32, 32\)",
    )
    yield (
        lambda: save(image.T.copy(), one),
        r"Case00.nii.gz: expected axial slices along the third of three axes, got .* \(5, 32, 32\)",
    )
    yield lambda: save(image[:, :30].copy(), one), r"Case00.nii.gz: 32x30x5 voxels, its segmentation has 32x32x5"
    yield (
        lambda: save(image.astype(np.int16), mask),
        r"Case00_Segmentation.nii.gz: expected labels such as 0, 1, 2, got \d+,",
    )
    yield lambda: save(-label.astype(np.int16), mask), r"Case00_Segmentation.nii.gz: expected labels .* got -2, -1, 0$"
    yield (
        lambda: save(label * 0.5, mask),
        r"Case00_Segmentation.nii.gz: expected labels such as 0, 1, 2, got 0, 0.5, 1$",
    )
    yield lambda: save(label * 0, mask), r"Case00_Segmentation.nii.gz: expected voxels above 0, got none"


@each("k", range(13))
def test_broken_volumes_are_named_in_one_line(k, tmp_path):
    image, label = volume(np.random.default_rng(0))
    save(image, tmp_path / "Case00.nii.gz")
    save(label, tmp_path / "Case00_Segmentation.nii.gz")
    spoil, message = list(broken_volumes(tmp_path))[k]
    spoil()
    reader = prostate.SliceReader(32, 1, {"prostate": (1,)})
    with pytest.raises(DataError, match=f"{tmp_path.name}/{message}") as caught:
        for case in prostate.cases_in(tmp_path):
            for item in prostate.slices_of(case, foreground=True):
                reader(item)
    assert "\n" not in str(caught.value)


def test_names_are_dealt_by_seed():
    names = [f"c{i:02d}" for i in range(30)]
    one = dealt(names, 0.2, 0.2, 5)
    assert {split: len(part) for split, part in one.items()} == {"train": 18, "val": 6, "test": 6}
    assert sorted(sum(one.values(), [])) == names and all(part == sorted(part) for part in one.values())
    assert one == dealt(names[::-1], 0.2, 0.2, 5) != dealt(names, 0.2, 0.2, 6)
    assert {split: len(part) for split, part in dealt(names[:3], 0.1, 0.1, 0).items()} == {
        "train": 1,
        "val": 1,
        "test": 1,
    }
