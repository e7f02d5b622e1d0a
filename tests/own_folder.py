# SPDX-License-Identifier: Apache-2.0
"""A folder of four hospitals' files and lists, as a new user prepares it: masks, classes or a table."""

import json

import numpy as np
from PIL import Image

SITES = ("east", "north", "south", "west")


def picture(rng, ill):
    """A bright disc on a dark square, wide where ``ill``, and its mask."""
    y, x = np.mgrid[:40, :48]
    mask = (y - rng.uniform(15, 25)) ** 2 + (x - rng.uniform(18, 30)) ** 2 < (11 if ill else 5) ** 2
    image = np.clip(0.2 + 0.6 * mask + rng.normal(0, 0.05, mask.shape), 0, 1)
    return (255 * image).astype(np.uint8), (255 * mask).astype(np.uint8)


def write_images(root, masks, sites=SITES):
    """12 training, 4 validation and 6 test images per site, as <root>/client_<site>.json and <root>/<site>/*.png."""
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        (root / site).mkdir(parents=True)
        found = {"training": [], "validation": [], "testing": []}
        for i in range(22):
            image, mask = picture(rng, i % 2)
            Image.fromarray(image).save(root / site / f"{i}.png")
            Image.fromarray(mask).save(root / site / f"{i}_mask.png")
            split = "training" if i < 12 else "validation" if i < 16 else "testing"
            label = f"{site}/{i}_mask.png" if masks else i % 2
            found[split].append({"image": f"{site}/{i}.png", "label": label, "sex": "fm"[i // 2 % 2], "patient_id": i})
        (root / f"client_{site}.json").write_text(json.dumps(found))
    return root


def write_class_folders(root, sites=SITES):
    """24 images per site in a folder for each class, as <root>/<site>/<class>/*.png, and no list."""
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        for i in range(24):
            path = root / site / ("well", "ill")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(rng, i % 2)[0]).save(path)
    return root


def write_tables(root, sites=SITES, patients=80):
    """Patients per site with age, score (some missing), sex and outcome, as <root>/<site>.csv."""
    for k, site in enumerate(sites):
        rng = np.random.default_rng(k)
        root.mkdir(exist_ok=True)
        lines = ["age,score,sex,outcome"]
        for _ in range(patients):
            ill = rng.random() < 0.5
            age, score = rng.normal(60 + 5 * ill, 8), rng.normal(2 * ill, 1)
            gap = "" if rng.random() < 0.1 else f"{score:.3f}"
            lines.append(f"{age:.1f},{gap},{rng.choice(['f', 'm'])},{'died' if ill else 'lived'}")
        (root / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return root
