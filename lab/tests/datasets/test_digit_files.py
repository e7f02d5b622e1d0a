# SPDX-License-Identifier: Apache-2.0
"""Four file formats of digits: their pixels and labels, broken files in one line, and no pickle that runs code."""

import gzip
import pickle
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


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def good_pair():
    return np.zeros((4, 8, 8), np.uint8), np.arange(4)


@each(
    "make, message",
    [
        (lambda p: Harmful(p), "cannot be read as a pickle of NumPy arrays \\(it names (_?io).open, which is no part"),
        (lambda p: (np.array([Harmful(p)], object), np.arange(1)), "something else than numbers"),
        (lambda p: np.dtype([("a", "O")]), "something else than numbers"),
        (lambda p: {"images": 1}, "expected a pickle of two NumPy arrays \\(images, labels\\), got dict"),
        (
            lambda p: (good_pair()[0].astype(float), good_pair()[1]),
            "images of type uint8 .*, got float64 and 4 x 8 x 8",
        ),
        (lambda p: (good_pair()[0], np.arange(3)), "expected 4 labels as there are images, got 3"),
        (lambda p: (good_pair()[0], np.arange(4) + 7), "expected labels from 0 to 9, got 10"),
    ],
)
def test_pickles_of_anything_else_are_refused(make, message, tmp_path):
    path, mark = tmp_path / "test.pkl", tmp_path / "mark"
    path.write_bytes(pickle.dumps(make(mark)))
    with pytest.raises(DataError, match=message) as error:
        digits5.pickled(path)
    assert not mark.exists() and "\n" not in str(error.value) and error.value.code in CODES


def test_pickles_from_before_numpy_2_are_read(tmp_path):
    content = pickle.dumps(good_pair(), 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core" in content
    (tmp_path / "a.pkl").write_bytes(content)
    assert digits5.pickled(tmp_path / "a.pkl")[1].tolist() == [0, 1, 2, 3]
    (tmp_path / "b.pkl").write_bytes(pickle.dumps((np.zeros((2, 9, 9), np.uint8), np.arange(2))))
    with pytest.raises(DataError, match="b.pkl: expected images of 8 x 8 as in a.pkl, got 9 x 9"):
        digits5.joined([tmp_path / "a.pkl", tmp_path / "b.pkl"])


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
