# SPDX-License-Identifier: Apache-2.0
"""FedHEAL's digits in miniature: 300 images for training and 40 for tests in each domain, in the published formats."""

import bz2
import gzip
import struct

import numpy as np
from PIL import Image
from scipy.io import savemat

from fairflare_lab.datasets.digits5 import DOMAINS

SIZES = {"train": 300, "test": 40}
SHAPES = {"MNIST": (28, 28), "USPS": (16, 16), "SVHN": (32, 32, 3), "SYN": (32, 32, 3)}


def drawn(domain, split):
    """Noise on grey of 20 * label + 20."""
    rng = np.random.default_rng([DOMAINS.index(domain), SIZES[split]])
    labels = rng.permutation(np.arange(SIZES[split]) % 10)
    images = rng.integers(0, 20, (SIZES[split], *SHAPES[domain]))
    images += 20 * labels.reshape(-1, *[1] * len(SHAPES[domain])) + 20
    return images.astype(np.uint8), labels


def label_of(image):
    return round((float(np.mean(image)) - 29) / 20)


def write_idx(path, array, opened=gzip.open):
    with opened(path, "wb") as file:
        file.write(struct.pack(f">{array.ndim + 1}I", 0x800 + array.ndim, *array.shape))
        file.write(array.astype(np.uint8).tobytes())


def write_usps(path, images, labels):
    values = images.reshape(len(images), -1) / 255 * 2 - 1
    lines = [f"{y + 1} " + " ".join(f"{j}:{v:.7f}" for j, v in enumerate(x, 1)) for x, y in zip(values, labels)]
    path.write_bytes(bz2.compress("\n".join(lines).encode() + b"\n"))


def write_svhn(path, images, labels):
    savemat(path, {"X": np.moveaxis(images, 0, -1), "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]})


def write_syn(folder, images, labels, order=1):
    for i in range(len(images))[::order]:
        (folder / str(labels[i])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(folder / str(labels[i]) / f"{i:04d}.png")


def write_files(root, order=1):
    (root / "MNIST" / "raw").mkdir(parents=True)
    for split, start, usps, syn in (("train", "train", "usps.bz2", "train"), ("test", "t10k", "usps.t.bz2", "val")):
        images, labels = drawn("MNIST", split)
        write_idx(root / "MNIST" / "raw" / f"{start}-images-idx3-ubyte.gz", images)
        write_idx(root / "MNIST" / "raw" / f"{start}-labels-idx1-ubyte", labels, open)
        write_usps(root / usps, *drawn("USPS", split))
        write_svhn(root / f"{split}_32x32.mat", *drawn("SVHN", split))
        write_syn(root / "syn" / syn, *drawn("SYN", split), order)
    return root
