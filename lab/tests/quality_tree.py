# SPDX-License-Identifier: Apache-2.0
"""The data folders of FedISM+ in miniature: tables sorted by class, images of 40 pixels that are all different."""

import csv

import numpy as np
from PIL import Image

SIZE = 40


def picture(number, label, colour):
    """Bright where the class says, and different for every number."""
    rng = np.random.default_rng(number)
    image = rng.integers(0, 60, (SIZE, SIZE, 3) if colour else (SIZE, SIZE))
    image[4 * label : 4 * label + 8] += 150
    return image.astype(np.uint8)


def write_table(path, counts, stem):
    """``counts``[c] rows of class c; the names."""
    rows = [(f"{stem}{c}x{i:05d}", c) for c, n in enumerate(counts) for i in range(n)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "class"), *rows])
    return rows


def write_tree(folder, counts, tests, suffix, colour, variants=("train/v", "test/w")):
    """Clean images and, as ``variants``, their negatives."""
    for name, numbers, offset in (("train", counts, 0), ("test", tests, 10**6)):
        rows = write_table(folder / f"{name}.csv", numbers, f"{name[1]}_")
        for i, (image, label) in enumerate(rows):
            pixels = picture(offset + i, label, colour)
            save(pixels, folder / name / "clean" / f"{image}{suffix}")
            for variant in variants:
                if variant.startswith(f"{name}/"):
                    save(255 - pixels, folder / variant / f"{image}{suffix}")
    return folder


def save(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def open_rgb(path):
    return np.moveaxis(np.asarray(Image.open(path).convert("RGB")), -1, 0)
