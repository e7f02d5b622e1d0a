# SPDX-License-Identifier: Apache-2.0
"""Four file formats of digits: their pixels and labels, and broken files in one line."""

import gzip
import struct

import numpy as np
import pytest
from scipy.io import savemat

from cases import each
from digit_tree import SIZES, drawn, write_files, write_idx
from fairflare.core.errors import DataError
from fairflare.core.findings import CODES
from fairflare_lab.datasets import digits5
from fairflare_lab.datasets.digits5 import Digits5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("digits5"))


@each("split", SIZES)
@each("domain", ["MNIST", "USPS", "SVHN"])
def test_every_format_gives_its_pixels_and_labels(domain, split, files):
    images, labels = Digits5().digits(files, domain, split)
    expected = drawn(domain, split)
    assert images.dtype == np.uint8 and images.shape == expected[0].shape
    # USPS: the cut to whole numbers can take one from what had been a whole number.
    assert np.abs(images.astype(int) - expected[0]).max() <= (domain == "USPS")
    assert labels.dtype == np.int64 and (labels == expected[1]).all() and set(labels) == set(range(10))


def test_rendered_digits_lie_by_class_and_name(files):
    paths, labels = Digits5().digits(files, "SYN", "train")
    expected = drawn("SYN", "train")[1]
    assert (labels == np.sort(expected)).all()
    assert [int(path.stem) for path in paths] == np.argsort(expected, kind="stable").tolist()


def zeros(*shape):
    return np.zeros(shape, np.uint8)


BAD_FILES = {
    "not gzip": (lambda p: p.write_bytes(b"x" * 99), lambda p: digits5.read_idx(p, 3), "as an IDX file \\(BadGz"),
    "cut off": (lambda p: write_idx(p, zeros(3)), lambda p: digits5.read_idx(p, 3), "as an IDX file \\(error\\)"),
    "labels as images": (
        lambda p: write_idx(p, zeros(30)),
        lambda p: digits5.read_idx(p, 3),
        "an IDX file of bytes in 3 dimensions \\(magic number 2051\\), got 2049",
    ),
    "short": (
        lambda p: p.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 9) + b"abc")),
        lambda p: digits5.read_idx(p, 1),
        "expected 9 bytes for 9 values, got 3",
    ),
    "idx labels": (
        lambda p: write_idx(p, np.full(2, 11)),
        lambda p: digits5._paired(p, zeros(2, 4, 4), digits5.read_idx(p, 1), 0),
        "expected labels from 0 to 9, got 11",
    ),
    "not libsvm": (lambda p: p.write_bytes(b"1 a:b\n"), digits5.usps, "as LIBSVM text with 256 columns \\(Value"),
    "columns": (lambda p: p.write_bytes(b"1 300:0.5\n"), digits5.usps, "as LIBSVM text with 256 columns \\(Value"),
    "usps values": (lambda p: p.write_bytes(b"1 3:200\n"), digits5.usps, "values from -1 to 1, got 200"),
    "usps labels": (lambda p: p.write_bytes(b"0 3:1\n"), digits5.usps, "labels from 1 to 10, got 0"),
    "not mat": (lambda p: p.write_bytes(b"hello" * 99), digits5.svhn, "as a MATLAB file with X and y \\("),
    "no y": (lambda p: savemat(p, {"X": zeros(32, 32, 3, 2)}, appendmat=False), digits5.svhn, "X and y \\(KeyE"),
    "svhn shape": (
        lambda p: savemat(p, {"X": zeros(2, 32, 32, 3), "y": zeros(2) + 1}, appendmat=False),
        digits5.svhn,
        "X of type uint8 and shape 32 x 32 x 3 x N, got uint8 and 2 x 32 x 32 x 3",
    ),
    "svhn labels": (
        lambda p: savemat(p, {"X": zeros(32, 32, 3, 2), "y": zeros(2)}, appendmat=False),
        digits5.svhn,
        "labels from 1 to 10, got 0",
    ),
}


@each("case", BAD_FILES)
def test_bad_files_are_one_line(case, tmp_path):
    write, read, message = BAD_FILES[case]
    path = tmp_path / ("file.gz" if read not in (digits5.usps, digits5.svhn) else "file")
    write(path)
    with pytest.raises(DataError, match=message) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value) and error.value.code in CODES
