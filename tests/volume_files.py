# SPDX-License-Identifier: Apache-2.0
"""Volumes as hospitals have them, small and drawn from seeds: NIfTI in any orientation, series of DICOM."""

import json

import nibabel
import nrrd
import numpy as np

from dicom_sets import dataset, save

SITES = ("east", "north", "south")


def ball(rng, shape=(40, 36, 30), spacing=(2.0, 2.0, 2.5), ill=True):
    """A bright ball in noise, its mask, and the affine: RAS, its first voxel at (-30, -40, 10) mm."""
    places = np.stack(np.meshgrid(*(np.arange(n) * e for n, e in zip(shape, spacing)), indexing="ij"), axis=-1)
    middle = np.array(shape) * spacing / 2 + rng.uniform(-6, 6, 3)
    mask = ((places - middle) ** 2).sum(-1) < (18 if ill else 9) ** 2
    image = 100 + 400 * mask + rng.normal(0, 40, shape)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = (-30, -40, 10)
    return image.astype(np.float32), mask.astype(np.uint8), affine


def turned(image, affine, axes="RAS"):
    """The same volume with its axes stored in another order and direction."""
    from nibabel.orientations import axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform

    change = ornt_transform(io_orientation(affine), axcodes2ornt(axes))
    found = nibabel.orientations.apply_orientation(image, change)
    return found, affine @ inv_ornt_aff(change, image.shape)


def write(path, image, affine, **more):
    """NIfTI, or NRRD as 3D Slicer writes it; ``more``: keys of the header of NRRD."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".nrrd":
        lps = np.diag([-1, -1, 1]) @ affine[:3]
        place = {"space": "left-posterior-superior", "space directions": lps[:, :3].T, "space origin": lps[:, 3]}
        nrrd.write(str(path), image, {**place, "kinds": ["domain"] * 3, "encoding": "gzip", **more})
        return path
    nibabel.save(nibabel.Nifti1Image(image, affine), path)
    return path


def write_series(folder, image, affine, *, skip=(), series=0, hounsfield=True, patient="p1", **headers):
    """Axial slices of a volume whose axes are RAS, one file each; returns the first."""
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    for k in range(image.shape[2]):
        if k in skip:
            continue
        corner = affine[:3] @ (0, 0, k, 1)
        place = [float(v) for v in (-corner[0], -corner[1], corner[2])]
        more = {
            "ImagePositionPatient": place,
            "ImageOrientationPatient": [-1, 0, 0, 0, -1, 0],
            "PixelSpacing": [float(spacing[1]), float(spacing[0])],
            "SliceThickness": float(spacing[2]),
        }
        more |= {"RescaleSlope": 1, "RescaleIntercept": -100} if hounsfield else {}
        pixels = image[:, :, k].T.round().astype(np.int16)
        name = f"{series}{(7 * k) % 100:03d}.dcm"  # names say nothing of the order
        save(folder / name, dataset(pixels, patient, series=series, instance=k + 1, **more, **headers))
    return min(folder.glob("*.dcm"))


def write_masked(root, sites=SITES, patients=12, shape=(36, 34, 20)):
    """Pairs of volume and mask at each site, each site with an orientation and a spacing of its own, and no list."""
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        for i in range(patients):
            image, mask, affine = ball(rng, shape, (2.0, 2.0, 3.0 + k))
            axes = ("RAS", "LPS", "PSR")[k % 3]
            write(root / site / f"p{i:02d}.nii.gz", *turned(image, affine, axes))
            write(root / site / f"p{i:02d}_mask.nii.gz", *turned(mask, affine, axes))
    return root


def write_classes(root, sites=SITES, patients=12):
    """A folder for each class at each site."""
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        for i in range(patients):
            image, _, affine = ball(rng, (24, 24, 16), (3.0, 3.0, 4.0), ill=i % 2)
            write(root / site / ("healthy", "tumour")[i % 2] / f"p{i:02d}.nii.gz", image, affine)
    return root


def write_list(root, site, pairs):
    """``pairs`` of paths below ``root``, or of a path and a class, as a site's list; the last two are for testing."""
    entries = [{"image": image, "label": label} for image, label in pairs]
    lists = {"training": entries[:-4], "validation": entries[-4:-2], "testing": entries[-2:]}
    (root / f"{site}.json").write_text(json.dumps(lists))
