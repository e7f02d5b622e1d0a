# SPDX-License-Identifier: Apache-2.0
"""Headers of NIfTI and DICOM that cannot be, or ask for more memory than there is: one line, and nothing is read."""

import gzip
import struct
import tracemalloc

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from cases import each
from dicom_sets import dataset, save
from fairflare.core.errors import DataError
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.geometry import frames, geometry_of
from fairflare.data.readers.pictures import Reader

READER = Reader(32, 1)


def nifti_header(shape=(8, 8, 2), **fields):
    """The first 352 bytes of a file, with wrong ``fields``."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header["dim"][: len(shape) + 1] = [len(shape), *shape]
    header["vox_offset"], header["magic"], header["scl_slope"] = 352, b"n+1", 1
    header["scl_inter"] = 0
    for name, value in fields.items():
        header[name] = value
    return header.binaryblock + bytes(4)


BROKEN_NIFTI = {
    "no NIfTI header": b"x" * 1000,
    "a header of 8x0x2 voxels": nifti_header((8, 0, 2)) + bytes(1000),
    r"32000x32000x32000 voxels are 65536000000352 bytes, the file has 1352": nifti_header((32000,) * 3) + bytes(1000),
    "scl_slope inf, scl_inter 0; expected finite numbers": nifti_header(scl_slope=np.inf) + bytes(1000),
    "scl_slope 1, scl_inter nan": nifti_header(scl_inter=np.nan) + bytes(1000),
    r"a header of 1e\+09 bytes": nifti_header(vox_offset=1e9) + bytes(1000),
    "a header extension of 2147483632 bytes where 648 are left": nifti_header(vox_offset=1000)[:-4]
    + struct.pack("<4bii", 1, 0, 0, 0, 2147483632, 6)
    + bytes(2000),
    "voxels of type c64": nifti_header(datatype=32, bitpix=64) + bytes(1000),
}


@each("why", BROKEN_NIFTI)
@each("suffix", [".nii", ".nii.gz"])
def test_a_nifti_header_that_cannot_be_is_one_line(tmp_path, why, suffix):
    path, content = tmp_path / f"x{suffix}", BROKEN_NIFTI[why]
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    said = why.replace("the file has 1352", r"the file can hold \d+") if suffix.endswith("gz") else why
    tracemalloc.start()
    for look in (lambda: READER.image(Frame(path, 0)), lambda: frames(path)):
        with pytest.raises(DataError, match=rf"^x{suffix}: cannot be read as an image \(.*{said}.*\)$") as error:
            look()
        assert error.value.code == "unreadable" and "\n" not in str(error.value)
    assert tracemalloc.get_traced_memory()[1] < 5e6 and geometry_of(path) is None
    tracemalloc.stop()


def nrrd_file(more="", sizes="8 8 2", content=bytes(128), encoding="raw"):
    head = f"NRRD0004\ntype: uint8\ndimension: {len(sizes.split())}\nsizes: {sizes}\nencoding: {encoding}\n{more}\n"
    return head.encode() + content


BROKEN_NRRD = {
    "no end of its header": b"NRRD0004\ntype: uint8",
    "a header of 8x0x2 voxels": nrrd_file(sizes="8 0 2"),
    "expected at most 8,589,934,592 bytes unpacked": nrrd_file(sizes="32000 32000 32000"),
    "8x8x200 voxels, and the file can hold 128 bytes": nrrd_file(sizes="8 8 200"),
    "data file; expected one file": nrrd_file("data file: /etc/passwd\n"),
    "'bzip2'; expected one file, raw or gzip": nrrd_file(encoding="bzip2"),
    "NRRDError": nrrd_file(encoding="gzip", content=gzip.compress(bytes(7))),
    "3 axes of 'domain, vector'; expected axes in space": nrrd_file("kinds: vector domain domain\n"),
    "4 axes of 'domain, list'; .*overlapping segments": nrrd_file("kinds: list domain domain domain\n", "1 8 8 2"),
    "error": nrrd_file(encoding="gzip", content=b"no gzip"),
}


@each("why", BROKEN_NRRD)
def test_an_nrrd_header_that_cannot_be_is_one_line(tmp_path, why):
    path = tmp_path / "x.nrrd"
    path.write_bytes(BROKEN_NRRD[why])
    with pytest.raises(DataError, match=f"^x.nrrd: .*{why}") as error:
        READER.image(Frame(path, 0))
    assert error.value.code == "unreadable" and "\n" not in str(error.value)


def test_no_more_of_an_nrrd_file_is_unpacked_than_its_header_says(tmp_path):
    path = tmp_path / "x.nrrd"
    path.write_bytes(nrrd_file(encoding="gzip", content=gzip.compress(bytes(2**28))))
    tracemalloc.start()
    assert frames(path) == 2 and READER.image(Frame(path, 1)).shape == (1, 32, 32)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_pages_of_a_tiff_are_its_slices(tmp_path):
    path, rng = tmp_path / "x.tif", np.random.default_rng(0)
    pages = [rng.integers(0, high, (32, 30)).astype(kind) for high, kind in ((255, np.uint8), (4000, np.uint16))]
    first, *rest = map(Image.fromarray, pages)
    first.save(path, save_all=True, append_images=rest)
    assert frames(path) == 2 and geometry_of(Frame(path, 1)).width == 30
    for k, kept in enumerate(pages):
        Image.fromarray(kept).save(tmp_path / "one.png")
        assert torch.equal(READER.image(Frame(path, k)), READER.image(tmp_path / "one.png"))
    for odd, text in ((path, "expected one 2D slice, got 2"), (Frame(path, 2), "expected a frame from 0 to 1, got 2")):
        with pytest.raises(DataError, match=text):
            READER.image(odd)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="^x.tif: cannot be read as an image"):
        READER.image(Frame(path, 1))


@each("mode", ["RGB", "CMYK", "1", "L"])
def test_pictures_are_as_bright_and_upright_as_they_are_shown(mode, tmp_path):
    pixels = np.zeros((20, 30), np.uint8)
    pixels[:8, :10] = 255
    path = tmp_path / f"x.{'png' if mode == '1' else 'jpg'}"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown a quarter turned to the right
    Image.fromarray(pixels).convert(mode).save(path, exif=exif)
    place, image = geometry_of(path), Reader(30, 1).image(path)[0].float()
    assert (place.height, place.width) == (30, 20)
    assert image[:8, 20:].min() > 150 and image[:, :15].max() < 100 and image[15:].max() < 100


def test_values_that_are_no_numbers_are_counted(tmp_path):
    values = np.ones((8, 8), np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "x.nii")
    with pytest.raises(DataError, match="x.nii: expected finite numbers, got 3 pixels") as error:
        READER.image(tmp_path / "x.nii")
    assert error.value.code == "nonfinite"
    (tmp_path / "y.nii").write_bytes(nifti_header((8, 8), scl_slope=3e38) + np.full(64, 100, np.int16).tobytes())
    with pytest.raises(DataError, match="y.nii: expected finite numbers, got 64 pixels"):
        READER.image(tmp_path / "y.nii")


@each(
    ("change", "why"),
    [
        ({"Rows": 60000, "Columns": 60000}, "expected at most 200,000,000 pixels, got 3,600,000,000"),
        ({"Rows": 4000}, "1 x 4000 x 32 pixels are 256000 bytes, the file has"),
        ({"NumberOfFrames": 2_000_000}, "expected at most 100,000 frames, got 2,000,000"),
        ({"NumberOfFrames": -3}, "a header of -3 x 32 x 32 pixels"),
        ({"SamplesPerPixel": 60}, "pixels with 60 values each"),
        ({"PhotometricInterpretation": "RGB"}, "RGB with 1 values a pixel"),
        ({"PhotometricInterpretation": "CMYK"}, "photometric interpretation CMYK"),
        ({"PhotometricInterpretation": None}, "photometric interpretation missing"),
        ({"RescaleSlope": 0, "RescaleIntercept": 0}, r"\(RescaleSlope 0\)"),
        ({"RescaleSlope": 1, "RescaleIntercept": "1e300"}, r"\(RescaleIntercept 1e\+300\)"),
        ({"BitsAllocated": 24}, "1 x 32 x 32 pixels are 3072 bytes"),
        ({"BitsStored": 20}, "ValueError"),
        ({"PixelData": None}, "1 x 32 x 32 pixels are 2048 bytes, the file has"),
    ],
)
def test_a_dicom_header_that_cannot_be_is_one_line(tmp_path, change, why):
    save(tmp_path / "x.dcm", dataset(np.arange(1024, dtype=np.uint16).reshape(32, 32), "P1", **change))
    with pytest.raises(DataError, match=rf"^x\.dcm: .*{why}") as error:
        READER.image(Frame(tmp_path / "x.dcm", 0))
    assert error.value.code == "unreadable"
