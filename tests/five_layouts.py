# SPDX-License-Identifier: Apache-2.0
"""Folders as hospitals have them, made of the embedded tasks: five usual layouts, with what usually is odd in them.

Images are of 28 pixels, some are links to a folder beside, some have no label; ``site-10`` has two images to validate
on where a layout brings splits of its own.
"""

import csv
import json
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from fairflare.engine.setup import tasks

SITES = ("site-1", "site-2", "site-10")
EDGE = 28


@dataclass
class Case:
    """One image or row: pixels (H, W) or columns, a class or a mask of values 0, 1, 2 ..., and what is known beside."""

    data: object
    label: object
    split: str
    about: dict = field(default_factory=dict)


def digit_cases(sites=SITES, per_site=24, classes=("one", "three")):
    """Images of ones and threes, 28 pixels: site -> cases; two images per patient."""
    found = {}
    for k, site in enumerate(sites, start=1):
        data = tasks.load("digits", "small").site_data(f"site-{k}").splits["train"]
        of = {label: [i for i, found in enumerate(data.labels.tolist()) if found == label] for label in (1, 3)}
        rows = [of[1 + 2 * (j // 2 % 2)][j // 2 % len(of[1 + 2 * (j // 2 % 2)])] for j in range(per_site)]
        found[site] = [
            Case(
                data.inputs[i].float().mean(0).numpy().astype(np.uint8)[2:30, 2:30],
                classes[int(data.labels[i]) // 2],
                split_of(j, per_site),
                {"patient_id": f"{site}/p{j // 2}", "sex": "fm"[j // 2 % 2]},
            )
            for j, i in enumerate(rows)
        ]
    return found


def brain_cases(sites=SITES, per_site=20):
    """Sections with masks of grey (1) and white (2) matter and the ventricles (3), cropped to 28 pixels."""
    found = {}
    for k, site in enumerate(sites, start=1):
        data = tasks.load("brain-seg", "small", images=160, site_test_images=4).site_data(f"site-{k}").splits["train"]
        found[site] = []
        for j in range(per_site):
            i = j % len(data)
            masks = data.targets[i].numpy()[:, ::2, ::2][:, 2:30, 2:30]
            values = (masks * np.arange(1, len(masks) + 1)[:, None, None]).max(0).astype(np.uint8)
            pixels = data.inputs[i, 0].numpy()[::2, ::2][2:30, 2:30]
            found[site].append(Case(pixels, values, split_of(j, per_site), {"patient_id": f"p{j // 2}"}))
    return found


def table_cases(sites=SITES, per_site=60):
    """SUPPORT2's patients: age, blood pressure and 4 more columns as text, survived or died, and their sex."""
    found = {}
    for k, site in enumerate(sites, start=1):
        data = tasks.load("support2").site_data(f"site-{k}").splits["train"]
        names = [f"x{c}" for c in range(6)]
        found[site] = [
            Case(
                {name: f"{data.inputs[i, c]:.3f}" for c, name in enumerate(names)},
                ("survived", "died")[int(data.targets[i])],
                split_of(i, per_site),
                {"sex": data.attributes["sex"][i], "patient_id": f"{site}-{i // 2}"},
            )
            for i in range(per_site)
        ]
    return found


def split_of(i, n):
    """60, 15 and 25 per cent, by pairs."""
    return "training" if i < 0.6 * n else "validation" if i < 0.75 * n else "testing"


def flat_with_masks(root, cases=None, suffix="_mask"):
    """<site>/case_3.png and <site>/case_3_mask.png; one image per site has no mask."""
    for site, found in (cases or brain_cases()).items():
        for i, case in enumerate(found):
            save(root / site / f"case_{i}.png", case.data)
            if i:
                save(root / site / f"case_{i}{suffix}.png", case.label)
    return root


def class_folders(root, cases=None, links=None, splits=False):
    """<site>/<class>/3.png; with ``links`` every file is a link into that folder.

    With ``splits`` <site>/<split>/<class>/3.png, where site-10 has two images to validate on, of one class.
    """
    for site, found in (cases or digit_cases()).items():
        for i, case in enumerate(found):
            if (
                splits
                and site == "site-10"
                and case.split == "validation"
                and case.label != min(one.label for one in found)
            ):
                case.split = "training"
            path = root / site / (case.split if splits else "") / case.label / f"{i}.png"
            save((links or root) / path.relative_to(root), case.data)
            if links:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to((links / path.relative_to(root)).resolve())
    return root


def decathlon(root, cases=None):
    """<site>/dataset.json of the Medical Segmentation Decathlon with imagesTr, labelsTr and imagesTs, in NIfTI."""
    import nibabel

    for site, found in (cases or brain_cases()).items():
        trained, tests = [], []
        for i, case in enumerate(found):
            last = i >= len(found) - 3
            image, label = (f"./{kind}T{'s' if last else 'r'}/brain_{i}.nii.gz" for kind in ("images", "labels"))
            (root / site / image).parent.mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(case.data.astype(np.float32), np.eye(4)), root / site / image)
            if last:
                tests.append(image)
                continue
            (root / site / label).parent.mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(case.label, np.eye(4)), root / site / label)
            trained.append({"image": image, "label": label})
        content = {
            "name": "BRAIN",
            "description": "sections",
            "tensorImageSize": "2D",
            "modality": {"0": "MRI"},
            "labels": {"0": "background", "1": "grey", "2": "white", "3": "ventricles"},
            "numTraining": len(trained),
            "numTest": len(tests),
            "training": trained,
            "test": tests,
        }
        (root / site / "dataset.json").write_text(json.dumps(content))
    return root


def table_and_images(root, cases=None):
    """data.csv with columns file, diagnosis, hospital, patient_id, sex, and images/*.png; some diagnoses are empty."""
    rows = []
    for site, found in (cases or digit_cases()).items():
        for i, case in enumerate(found):
            name = f"{site}_{i}.png"
            save(root / "images" / name, case.data)
            label = "" if i == 5 else case.label
            rows.append({"file": f"images/{name}", "diagnosis": label, "hospital": site, **case.about})
    write_rows(root / "data.csv", rows)
    return root


def table_per_site(root, cases=None):
    """<site>.csv with columns of numbers, outcome, sex and patient_id; some outcomes are empty."""
    for site, found in (cases or table_cases()).items():
        rows = [{**case.data, "outcome": "" if i == 7 else case.label, **case.about} for i, case in enumerate(found)]
        write_rows(root / f"{site}.csv", rows)
    return root


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


LAYOUTS = {
    "flat with masks": flat_with_masks,
    "class folders": class_folders,
    "decathlon": decathlon,
    "table and images": table_and_images,
    "table per site": table_per_site,
}
