# SPDX-License-Identifier: Apache-2.0
"""Folders of images as hospitals keep them, each with the truth about every file.

A builder writes below a folder and returns its ``Truth``: what `fairflare init` must read, or the two readings that it
must name, and the flags that lead to the truth. Images are 20 pixels wide; every one is different.
"""

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

LESIONS = ("AK", "BCC", "MEL", "NV", "SCC")


@dataclass
class Truth:
    """What a layout holds.

    Attributes:
        files: image, relative with "/" -> (site, label, patient); patient "" where nothing can tell.
        flags: what has to be said where a layout can be read in two ways; empty: it is read right as it is.
        says: a part of the refusal, both readings' flags among them.
        sites: where the data have names that are changed, and the root's name: truth's -> as it is read.
    """

    files: dict
    flags: tuple = ()
    says: tuple = ()
    kind: str = "classification"
    more: dict = field(default_factory=dict)


class Drawn:
    """Draws images, each different."""

    def __init__(self):
        self.n = 0

    def save(self, path, bright=False):
        self.n += 1
        rng = np.random.default_rng(self.n)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 90, (20, 20), dtype=np.uint8) + 100 * bright).save(path)


def grid(root, outer, inner, name, n=12, sites="outer"):
    """outer/inner/<name(outer, inner, k)>, ``n`` images each -> the files."""
    drawn, files = Drawn(), {}
    for a in outer:
        for b in inner:
            site, label = (a, b) if sites == "outer" else (b, a)
            for k in range(n):
                path, patient = name(a, b, k)
                drawn.save(root / path, label == inner[0])
                files[path] = (site, label, patient)
    return files


def plain(a, b, k):
    return f"{a}/{b}/img{k:03d}.png", ""


SAYS = ("--site folder1 --label folder2", "--site folder2 --label folder1")


def places_of_lesions(root):
    """Three clinics whose names say nothing, five classes whose names say little: a full grid."""
    return Truth(
        grid(root, ("berlin", "rochester", "london"), ("q1x", "q2x", "q3x", "q4x", "q5x"), plain),
        SAYS[:1][0].split(),
        SAYS,
    )


def famous_clinics(root):
    return Truth(grid(root, ("charite", "mayo", "ucl"), LESIONS, plain))


def classes_outside(root):
    """The class is the outer folder, the hospital the inner one: the classes' names alone do not turn folders round."""
    files = grid(root, ("benign", "malignant"), ("Berlin", "Rom", "Wien"), plain, sites="inner")
    return Truth(files, SAYS[1].split(), SAYS)


def cities_abroad(root):
    return Truth(grid(root, ("München", "東京病院"), ("eins", "zwei", "drei"), plain))


def german_clinics(root):
    return Truth(grid(root, ("Klinikum Nord", "Uniklinik Süd", "St. Josef Krankenhaus"), ("gesund", "krank"), plain))


def numbers_for_both(root):
    """Nothing tells hospitals 01, 02, 03 from classes 0, 1."""
    return Truth(grid(root, ("01", "02", "03"), ("0", "1"), plain), SAYS[0].split(), SAYS)


def parasites(root):
    """ "parasitized" holds the letters of "site"."""
    return Truth(
        grid(root, ("Parasitized", "Uninfected"), ("Accra", "Lagos", "Quito"), plain, sites="inner"),
        SAYS[1].split(),
        SAYS,
    )


def stems_that_repeat(root):
    """CH000_1, CH000_2: two images of each patient, told by names alone."""

    def name(a, b, k):
        patient = f"CH{'0' if b == 'normal' else '1'}{k // 2:02d}"
        return f"{a}/{b}/{patient}_{k % 2 + 1}.png", patient

    return Truth(grid(root, ("site-1", "site-2"), ("normal", "effusion"), name, n=16))


def left_and_right_eyes(root):
    def name(a, b, k):
        patient = f"{7000 + 100 * (b == 'glaucoma') + k // 2}"
        return f"{a}/{b}/{patient}-{'LR'[k % 2]}.png", patient

    return Truth(grid(root, ("clinic_a", "clinic_b"), ("normal", "glaucoma"), name, n=16))


def folders_of_patients(root):
    """site/class/patient/slice."""

    def name(a, b, k):
        patient = f"P{50 * (b == 'tumor') + k // 4:03d}"
        return f"{a}/{b}/{patient}/{k % 4}.png", patient

    return Truth(grid(root, ("hospital A", "hospital B"), ("healthy", "tumor"), name, n=24))


def visits_of_patients(root):
    """site/patient/visit/class: the class is the innermost folder."""
    drawn, files = Drawn(), {}
    for site in ("site-1", "site-2"):
        for p in range(12):
            for visit in ("ses-01", "ses-02"):
                label = ("absent", "present")[p % 2]
                path = f"{site}/sub-{p:02d}/{visit}/{label}/a.png"
                drawn.save(root / path, p % 2)
                files[path] = (site, label, f"sub-{p:02d}")
    return Truth(files)


def one_hospital(root):
    """Classes alone."""
    files = {}
    drawn = Drawn()
    for label in ("covid", "normal", "pneumonia"):
        for k in range(12):
            drawn.save(root / label / f"x{k}.jpg", label == "covid")
            files[f"{label}/x{k}.jpg"] = (root.name, label, "")
    return Truth(files)


def one_hospital_by_name(root):
    """One folder that is the hospital, classes inside, splits given."""
    files, drawn = {}, Drawn()
    for split, n in (("train", 10), ("val", 4), ("test", 5)):
        for label in ("yes", "no"):
            for k in range(n):
                path = f"Royal Infirmary/{split}/{label}/{k}.png"
                drawn.save(root / path, label == "yes")
                files[path] = ("Royal Infirmary", label, "")
    return Truth(files)


def only_hospitals(root):
    """Hospitals without labels: not to be learned."""
    drawn = Drawn()
    for site in ("Mayo", "Charité", "UCL"):
        for k in range(9):
            drawn.save(root / site / f"{k}.png")
    return Truth({}, (), ("are sites, and nothing says the labels",))


def lesions_with_masks(root):
    """Ultrasound as it is often published: images of two classes, and the masks beside them."""
    drawn, files = Drawn(), {}
    for label in ("benign", "malignant"):
        for k in range(12):
            path = f"{label}/{label} ({k}).png"
            drawn.save(root / path, label == "benign")
            drawn.save(root / f"{label}/{label} ({k})_mask.png")
            files[path] = (root.name, label, "")
    return Truth(files, ("--kind", "classification"), ("--kind segmentation", "--kind classification"))


def labels_spelled_apart(root):
    """Every hospital has its own words for the same two classes."""
    drawn, files, first = Drawn(), {}, ("healthy", "sick")
    for site, labels in (("site-1", first), ("site-2", ("normal", "ill"))):
        for label, read in zip(labels, first, strict=True):
            for k in range(9):
                drawn.save(root / site / label / f"{k}.png")
                files[f"{site}/{label}/{k}.png"] = (site, read, "")
    return Truth(files)


def table_of_patients(root):
    """BIDS: folders sub-XX, and participants.tsv says the diagnosis."""
    drawn, files, rows = Drawn(), {}, ["participant_id\tsex\tdiagnosis\tcentre"]
    for p in range(24):
        label, site = ("control", "patient")[p % 2], ("Lyon", "Oslo")[p // 12]
        rows.append(f"sub-{p:02d}\t{'fm'[p // 2 % 2]}\t{label}\t{site}")
        for k in range(3):
            path = f"sub-{p:02d}/anat/slice{k}.png"
            drawn.save(root / path, p % 2)
            files[path] = (site, label, f"sub-{p:02d}")
    (root / "participants.tsv").write_text("\n".join(rows) + "\n")
    return Truth(files)


FOLDERS = {
    one.__name__: one
    for one in (
        places_of_lesions,
        famous_clinics,
        classes_outside,
        cities_abroad,
        german_clinics,
        numbers_for_both,
        parasites,
        stems_that_repeat,
        left_and_right_eyes,
        folders_of_patients,
        visits_of_patients,
        one_hospital,
        one_hospital_by_name,
        only_hospitals,
        lesions_with_masks,
        labels_spelled_apart,
        table_of_patients,
    )
}
