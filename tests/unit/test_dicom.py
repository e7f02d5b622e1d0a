# SPDX-License-Identifier: Apache-2.0
"""DICOM and NIfTI slices become what their headers say, or one line says what is wrong with them."""

import io
import json
import struct
import tracemalloc

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from pydicom.dataset import Dataset

import dicom_sets
from cases import each
from dicom_sets import dataset, save, texture
from fairflare.core.errors import DataError, UserError
from fairflare.data.readers import dicom
from fairflare.data.readers.datalist import Frame, Item, read_datalist
from fairflare.data.readers.geometry import frames, geometry_of, looks_like_image, slices_of
from fairflare.data.readers.looks import looked_at
from fairflare.data.readers.pictures import Reader, stored
from fairflare.engine.setup import tasks
from fairflare.import_data.folders import headers

READER = Reader(32, 1)
WINDOWS = ("", "percentiles", "900,1500", "file")


def drawn(seed=0, top=4095):
    """Whole numbers from 0 to ``top``, (32, 32)."""
    return np.round(top * texture(np.random.default_rng(seed), True)).astype(np.uint16)


def write(path, pixels, **more):
    save(path, dataset(pixels, "P1", **more))
    return path


def ramp(path, low=-1000, high=1000, **more):
    """Hounsfield units that rise from left to right, (32, 32)."""
    values = np.tile(np.linspace(low, high, 32).round(), (32, 1))
    return write(path, (values + 1024).astype(np.uint16), RescaleSlope=1, RescaleIntercept=-1024, **more)


@each("photometric", ["MONOCHROME1", "MONOCHROME2"])
@each("padding", [-2000, (-32768, -2000)])
def test_what_was_not_measured_is_dark_and_takes_no_grey_values(photometric, padding, tmp_path):
    """As a file with the darkest value in its place; US for signed pixels, as some scanners write it."""
    pixels = drawn().astype(np.int16)
    dark = pixels.max() if photometric == "MONOCHROME1" else pixels.min()
    about = {"modality": "DX", "photometric": photometric}
    plain = write(tmp_path / "plain.dcm", np.where(np.arange(32) < 8, dark, pixels).astype(np.int16), **about)
    image = dataset(np.where(np.arange(32) < 8, -2000, pixels).astype(np.int16), "P1", **about)
    ends = padding if isinstance(padding, tuple) else (padding,)
    for end, tag in zip(ends, (0x00280120, 0x00280121)):
        image.add_new(tag, "US", end % 65536)
    save(tmp_path / "padded.dcm", image)
    assert torch.equal(READER.image(tmp_path / "padded.dcm"), READER.image(plain))


@each("window", WINDOWS)
@each("signed", [False, True])
def test_a_copy_in_monochrome1_is_the_same_tensor(tmp_path, window, signed):
    """The copy's stored values are turned round, and so is its window."""
    low, high = (-2048, 2047) if signed else (0, 4095)
    two = (drawn().astype(np.int32) + low).astype(np.int16 if signed else np.uint16)
    about = {"modality": "DX", "BitsStored": 12, "HighBit": 11, "WindowWidth": 1501}
    one = (low + high - two.astype(np.int32)).astype(two.dtype)
    write(tmp_path / "2.dcm", two, photometric="MONOCHROME2", WindowCenter=low + 900.5, **about)
    write(tmp_path / "1.dcm", one, photometric="MONOCHROME1", WindowCenter=high - 900 + 0.5, **about)
    for size in (32, 24):
        reader = Reader(size, 1, window=window)
        first, second = reader.image(tmp_path / "1.dcm"), reader.image(tmp_path / "2.dcm")
        assert torch.equal(first, second) and first.float().std() > 20
    # As many tools turn round, by the largest value that is there; and with a scale of the maker's.
    own = (two.astype(np.int32).max() + two.astype(np.int32).min() - two).astype(two.dtype)
    scale = {"RescaleSlope": 2.5, "RescaleIntercept": 7}
    write(tmp_path / "3.dcm", own, photometric="MONOCHROME1", **about, **scale)
    write(tmp_path / "4.dcm", two, photometric="MONOCHROME2", **about, **scale)
    assert torch.equal(READER.image(tmp_path / "3.dcm"), READER.image(tmp_path / "4.dcm"))


def test_a_table_of_the_modality_is_applied_before_monochrome1_is_turned_round(tmp_path):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    density = (np.log1p(np.arange(256)) / np.log(256) * 4000 + 95).round().astype(np.uint16)
    table = Dataset()
    table.LUTDescriptor, table.ModalityLUTType, table.LUTData = [256, 0, 16], "OD", density.tobytes()
    table["LUTDescriptor"].VR, table["LUTData"].VR = "US", "OW"
    for photometric, expected in (("MONOCHROME2", density), ("MONOCHROME1", 4190 - density)):
        more = {"modality": "DX", "photometric": photometric, "ModalityLUTSequence": [table]}
        path = write(tmp_path / f"{photometric}.dcm", grey, **more)
        assert np.array_equal(stored(path, mask=False)[0], expected[grey])


def test_every_radiograph_of_a_mixed_archive_has_its_disc_bright(tmp_path):
    kinds = set()
    for name in dicom_sets.mixed_monochrome(tmp_path):
        image = READER.image(tmp_path / name)[0].float()
        corner, brightest = image[-6:, -6:].mean(), image.flatten().sort().values[-20:].mean()
        assert corner < 80 and brightest > 200, name
        kinds.add(pydicom.dcmread(tmp_path / name).PhotometricInterpretation)
    assert kinds == {"MONOCHROME1", "MONOCHROME2"}


def test_ct_is_scaled_by_one_window_however_it_is_stored(tmp_path):
    values = 2 * np.arange(1024).reshape(32, 32) - 1000
    write(tmp_path / "u.dcm", (values + 1024).astype(np.uint16), RescaleSlope=1, RescaleIntercept=-1024)
    write(tmp_path / "s.dcm", (values // 2).astype(np.int16), RescaleSlope=2, RescaleIntercept=0)
    write(
        tmp_path / "i.dcm",
        (values // 2).astype(np.int16),
        photometric="MONOCHROME1",
        RescaleSlope=2,
        RescaleIntercept=0,
    )
    for window, (low, high) in {"": (-1000, 1000), "40,400": (-160, 240)}.items():
        expected = np.round(np.clip((values - low) / (high - low), 0, 1) * 255)
        for name in ("u", "s", "i"):
            found = Reader(32, 1, window=window).image(tmp_path / f"{name}.dcm")[0].numpy()
            assert np.abs(found - expected).max() <= 1
    own = Reader(32, 1, window="percentiles").image(tmp_path / "u.dcm")
    assert own.min() == 0 and own.max() == 255
    # An offset is seen, which percentiles of each picture take away.
    write(tmp_path / "o.dcm", (values + 1064).astype(np.uint16), RescaleSlope=1, RescaleIntercept=-1024)
    for window, differ in {"": True, "40,400": True, "percentiles": False}.items():
        one, two = (Reader(32, 1, window=window).image(tmp_path / name) for name in ("u.dcm", "o.dcm"))
        assert (not torch.equal(one, two)) == differ


def test_the_files_own_window_is_applied_as_the_standard_says(tmp_path):
    values = np.tile(np.linspace(-1000, 1000, 32).round(), (32, 1))
    shown = Reader(32, 1, window="file")
    ramp(tmp_path / "l.dcm", WindowCenter=[40, 600], WindowWidth=[400, 2000])
    assert (
        np.abs(shown.image(tmp_path / "l.dcm")[0].numpy() - np.clip((values - 39.5) / 399 + 0.5, 0, 1) * 255).max()
        <= 0.5
    )
    ramp(tmp_path / "e.dcm", WindowCenter=40, WindowWidth=400, VOILUTFunction="LINEAR_EXACT")
    assert (
        np.abs(shown.image(tmp_path / "e.dcm")[0].numpy() - np.clip((values - 40) / 400 + 0.5, 0, 1) * 255).max() <= 0.5
    )
    ramp(tmp_path / "s.dcm", WindowCenter=40, WindowWidth=400, VOILUTFunction="SIGMOID")
    assert (
        np.abs(shown.image(tmp_path / "s.dcm")[0].numpy() - 255 / (1 + np.exp(-4 * (values - 40) / 400))).max() <= 0.5
    )
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4, 0, 16], struct.pack("<4H", 0, 65535, 0, 65535)
    write(tmp_path / "t.dcm", np.tile(np.arange(4, dtype=np.uint16), (4, 1)), modality="MR", VOILUTSequence=[table])
    assert Reader(4, 1, window="file").image(tmp_path / "t.dcm")[0, 0].tolist() == [0, 255, 0, 255]
    with pytest.raises(DataError, match=r"r\.dcm: .*window=file, and its header has none"):
        shown.image(ramp(tmp_path / "r.dcm"))
    image = nibabel.Nifti1Image(values.astype(np.float32), np.eye(4))
    image.header["cal_min"], image.header["cal_max"] = -160, 240
    nibabel.save(image, tmp_path / "n.nii.gz")
    assert (
        np.abs(shown.image(tmp_path / "n.nii.gz")[0].numpy() - np.clip((values + 160) / 400, 0, 1) * 255).max() <= 0.5
    )


def test_scale_and_window_of_a_frame_are_its_own(tmp_path):
    def group(slope, intercept):
        values, found = Dataset(), Dataset()
        values.RescaleSlope, values.RescaleIntercept, values.RescaleType = slope, intercept, "HU"
        found.PixelValueTransformationSequence = [values]
        return found

    pixels = np.stack([np.full((8, 8), 1064), np.full((8, 8), 20)]).astype(np.uint16)
    groups = [group(1, -1024), group(2, 0)]
    write(tmp_path / "e.dcm", pixels, NumberOfFrames=2, PerFrameFunctionalGroupsSequence=groups)
    first, second = (Reader(8, 1, window="40,400").image(Frame(tmp_path / "e.dcm", k)) for k in (0, 1))
    assert torch.equal(first, second) and set(first.flatten().tolist()) == {128}
    assert looked_at(Frame(tmp_path / "e.dcm", 1)).measured


@each("window", ["40", "40,400,3", "40,0", "40,-5", "nan,4", "1,inf", "File", "brain"])
def test_a_window_that_is_none_is_refused(window):
    for kind in ("classification", "segmentation"):
        with pytest.raises(UserError, match="window: expected CENTRE,WIDTH as in 40,400, or file, or percentiles; got"):
            tasks.load(kind, window=window)


def test_the_window_of_a_task_reaches_every_reader():
    for kind in ("classification", "segmentation"):
        task = tasks.load(kind, window="40,400")
        assert task.reader().window == task.image_inputs().reader.window == "40,400"


def test_files_without_a_suffix_are_known_by_what_they_hold(tmp_path):
    truth = dicom_sets.suffixless(tmp_path)
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name, path in files.items() if looks_like_image(path)} == set(truth) and len(files) > len(truth)
    first = next(iter(truth))
    assert READER.image(tmp_path / first).float().std() > 20 and geometry_of(tmp_path / first).height == 32
    (tmp_path / first).rename(tmp_path / "1.2.840.113619.2.55")  # a UID: the last number is no suffix
    named = tmp_path / "1.2.840.113619.2.55"
    assert looks_like_image(named) and READER.image(named).float().std() > 20 and geometry_of(named).width == 32
    (tmp_path / "notes").write_text("DICM")
    assert not looks_like_image(tmp_path / "notes") and not looks_like_image(tmp_path / "gone")
    report = next(path for name, path in files.items() if name.endswith("R0000001"))
    with pytest.raises(DataError, match="R0000001: cannot be read as an image .DICOM without an image, modality SR"):
        READER.image(report)


def test_one_frame_of_several_is_read_alone(tmp_path):
    name = next(iter(dicom_sets.multiframe(tmp_path)))
    path, whole = tmp_path / name, pydicom.dcmread(tmp_path / name).pixel_array
    assert frames(path) == 4 and slices_of(path) == [Frame(path, k) for k in range(4)]
    for k in range(4):
        single = write(tmp_path / f"{k}.dcm", whole[k], modality="OT")
        assert torch.equal(READER.image(Frame(path, k)), READER.image(single)) and frames(single) == 1
        assert slices_of(single) == [single]
    with pytest.raises(DataError, match='expected one 2D slice, got 4; name one in its list, "frame": 0 to 3') as error:
        READER.image(path)
    assert error.value.code == "not_2d"
    with pytest.raises(DataError, match=r"expected a frame from 0 to 3, got 4"):
        READER.image(Frame(path, 4))


def test_one_slice_of_a_volume_is_read_alone(tmp_path):
    rng = np.random.default_rng(0)
    volume = rng.normal(size=(20, 24, 5)).astype(np.float32)
    affine = np.array([[0.7, 0, 0, -30], [0, 0.9, 0, 12], [0, 0.2, 5, 100], [0, 0, 0, 1.0]])
    nibabel.save(nibabel.Nifti1Image(volume, affine), tmp_path / "v.nii.gz")
    nibabel.save(nibabel.Nifti1Image((volume > 0).astype(np.uint8), affine), tmp_path / "m.nii.gz")
    nibabel.save(nibabel.Nifti1Image((volume[..., 3] > 0).astype(np.uint8), affine), tmp_path / "m3.nii")
    assert frames(tmp_path / "v.nii.gz") == 5
    third = Frame(tmp_path / "v.nii.gz", 3)
    assert np.array_equal(stored(third)[0], volume[..., 3])
    reader = Reader(32, 1, {"a": (1,)})
    for mask in ("m.nii.gz", "m3.nii"):  # of the volume's slices, or of this one alone
        target = reader(Item(third, tmp_path / mask))[1]
        assert torch.equal(target, reader.mask((volume[..., 3] > 0).astype(np.uint8)))
    place = geometry_of(third)
    assert (place.height, place.width, place.channels, place.shape) == (20, 24, 1, (20, 24, 1))
    assert np.allclose(place.affine @ [4, 5, 0, 1], affine @ [4, 5, 3, 1])
    with pytest.raises(DataError, match="v.nii.gz: expected one 2D slice, got 5"):
        reader.image(tmp_path / "v.nii.gz")


def test_a_slice_of_a_huge_volume_takes_the_memory_of_a_slice(tmp_path):
    header = nibabel.Nifti1Header()
    header.set_data_shape((512, 512, 2000))
    header.set_data_dtype(np.int16)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    with (tmp_path / "v.nii").open("wb") as file:
        file.write(header.binaryblock + bytes(4))
        file.truncate(352 + 512 * 512 * 2000 * 2)  # a gigabyte that takes no place on the disk
        file.seek(352 + 512 * 512 * 1500 * 2)
        file.write(np.full(512 * 512, 7, np.int16).tobytes())
    tracemalloc.start()
    assert set(np.unique(stored(Frame(tmp_path / "v.nii", 1500)))) == {7} and frames(tmp_path / "v.nii") == 2000
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_list_names_a_slice(tmp_path):
    dicom_sets.multiframe(tmp_path)
    root = tmp_path / "mayo" / "benign"
    name = sorted(path.name for path in root.iterdir())[0]

    def items(**entry):
        (root / "l.json").write_text(json.dumps({"training": [{"image": name, "label": 0, **entry}]}))
        return read_datalist(root / "l.json", root, masks=False, classes=("a", "b"))["train"]

    assert items(frame=2, sex="f") == [Item((Frame(root.resolve() / name, 2)), 0, {"sex": "f"})]
    assert isinstance(items()[0].image, type(root))
    for wrong in (-1, "2", 1.0, True):
        with pytest.raises(DataError, match=r"training\[0\]: frame: expected a whole number from 0, got"):
            items(frame=wrong)


def test_compressed_files_are_those_that_were_compressed(tmp_path):
    for name in list(dicom_sets.compressed(tmp_path))[:3]:
        found = pydicom.dcmread(tmp_path / name)
        assert found.file_meta.TransferSyntaxUID == pydicom.uid.RLELossless
        plain = write(tmp_path / "plain.dcm", found.pixel_array, modality="MR")
        assert torch.equal(READER.image(tmp_path / name), READER.image(plain))


@pytest.mark.parametrize(("photometric", "subsampling"), [("YBR_FULL_422", 2), ("YBR_FULL", 0), ("MONOCHROME2", 0)])
def test_jpeg_in_dicom_has_its_colours(tmp_path, photometric, subsampling):
    y, x = np.mgrid[:32, :32]
    pixels = np.stack([8 * x, 8 * y, 0 * x + 128], axis=-1).astype(np.uint8)
    pixels = pixels[..., 0] if photometric == "MONOCHROME2" else pixels
    text = io.BytesIO()
    Image.fromarray(pixels).save(text, "JPEG", quality=95, subsampling=subsampling)
    found = dataset(pixels, "P1", modality="US", photometric=photometric)
    found.file_meta.TransferSyntaxUID = pydicom.uid.JPEGBaseline8Bit
    found.PixelData = pydicom.encaps.encapsulate([text.getvalue()])
    save(tmp_path / "j.dcm", found)
    image = dicom.read(tmp_path / "j.dcm").pixels
    assert np.abs(image - np.moveaxis(np.atleast_3d(pixels), -1, 0)).mean() < 2


@pytest.mark.parametrize(
    ("syntax", "package"),
    [
        (pydicom.uid.JPEGLosslessSV1, "JPEG Lossless.*: pip install pylibjpeg pylibjpeg-libjpeg"),
        (pydicom.uid.JPEG2000Lossless, "JPEG 2000.*: pip install pylibjpeg pylibjpeg-openjpeg"),
        (pydicom.uid.MPEG2MPML, "its compression is not read: MPEG2"),
    ],
)
def test_a_compression_that_cannot_be_read_is_named_with_the_package(tmp_path, monkeypatch, syntax, package):
    found = dataset(drawn(), "P1")
    found.file_meta.TransferSyntaxUID = syntax
    found.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8 not really \xff\xd9"])
    save(tmp_path / "c.dcm", found)
    for decoder in {syntax} & {pydicom.uid.JPEGLosslessSV1, pydicom.uid.JPEG2000Lossless}:
        monkeypatch.setattr(type(pydicom.pixels.get_decoder(decoder)), "is_available", False)
    with pytest.raises(DataError, match=rf"^c\.dcm: cannot be read as an image \(.*{package}.*\)$") as error:
        READER.image(tmp_path / "c.dcm")
    assert error.value.code == "unreadable" and "\n" not in str(error.value)


def test_colours_are_colours_however_they_are_stored(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    expected = torch.from_numpy(np.moveaxis(rgb, -1, 0).copy())
    write(tmp_path / "rgb.dcm", rgb, modality="US", photometric="RGB")
    planes = np.moveaxis(rgb, -1, 0).tobytes()
    write(tmp_path / "planes.dcm", rgb, modality="US", photometric="RGB", PlanarConfiguration=1, PixelData=planes)
    ybr = pydicom.pixels.convert_color_space(rgb, "RGB", "YBR_FULL")
    write(tmp_path / "ybr.dcm", ybr, modality="US", photometric="YBR_FULL")
    for name, near in {"rgb": 0, "planes": 0, "ybr": 2}.items():
        found = Reader(32, 3).image(tmp_path / f"{name}.dcm")
        assert (found.int() - expected.int()).abs().max() <= near, name
        assert looked_at(tmp_path / f"{name}.dcm").coloured and geometry_of(tmp_path / f"{name}.dcm").channels == 3
    name = next(iter(dicom_sets.palette(tmp_path)))
    numbers = pydicom.dcmread(tmp_path / name).pixel_array.astype(int)
    red, green, blue = Reader(32, 3).image(tmp_path / name).int().numpy()
    assert np.abs(red - numbers).max() <= 1 and set(green.flat) == {128}
    assert np.abs(blue - (255 - numbers) / 2).max() <= 1 and geometry_of(tmp_path / name).channels == 3


def test_masks_keep_their_values(tmp_path):
    name = next(iter(dicom_sets.masks(tmp_path)))
    mask = tmp_path / name.replace(".dcm", "_mask.dcm")
    values = pydicom.dcmread(mask).pixel_array
    reader = Reader(32, 1, {"a": (1,)}, window="40,400")
    assert torch.equal(reader(Item(tmp_path / name, mask))[1][0], torch.from_numpy(values))
    for number, photometric in enumerate(("MONOCHROME1", "MONOCHROME2")):
        again = write(tmp_path / f"{number}.dcm", values, modality="SEG", photometric=photometric, WindowWidth=1)
        assert np.array_equal(stored(again)[0], values)


def test_negative_values_keep_their_order(tmp_path):
    for name in list(dicom_sets.signed(tmp_path))[:4]:
        values = pydicom.dcmread(tmp_path / name).pixel_array
        image = READER.image(tmp_path / name)[0].numpy()
        order = np.argsort(values, axis=None, kind="stable")
        assert values.min() < 0 and (np.diff(image.flatten()[order].astype(int)) >= 0).all() and image.std() > 20


def test_headers_of_many_files(tmp_path):
    truth = dicom_sets.patients(tmp_path, n=3)
    paths = [tmp_path / name for name in truth]
    (tmp_path / "a.png").write_bytes(b"no DICOM")
    found = headers([*paths, tmp_path / "a.png", tmp_path / "gone.dcm"])
    assert found.index.tolist()[: len(paths)] == paths
    assert found["PatientID"].tolist() == [patient for _, _, patient in truth.values()] + ["", ""]
    assert found["StationName"].tolist()[:-2] == [
        site[:3].upper() + found["StationName"].iloc[i][3:] for i, (site, _, _) in enumerate(truth.values())
    ]
    assert set(found["PatientSex"]) == {"F", "M", ""} and set(found["Modality"]) == {"CT", ""}
    assert all(type(cell) is str for cell in found.to_numpy().flat)
    several = headers(paths[:1], ["ImagePositionPatient", "PatientName", "AccessionNumber"]).iloc[0].tolist()
    assert several[0].count("\\") == 2 and several[1].startswith("Doe^MRN") and several[2] == ""
    for wrong, said in {
        "PatientIdd": "unknown DICOM keyword 'PatientIdd'; did you mean PatientID",
        "nonsense": "unknown DICOM keyword 'nonsense'; expected one such as PatientID",
        "PixelData": "PixelData: expected one whose values are text or numbers",
    }.items():
        with pytest.raises(UserError, match=said):
            headers(paths[:1], [wrong])


def test_no_header_is_read_beyond_what_is_asked(tmp_path, monkeypatch):
    path = write(tmp_path / "x.dcm", drawn())
    monkeypatch.setattr("pydicom.pixels.pixel_array", lambda *a, **k: pytest.fail("pixels"))
    assert headers([path]).iloc[0]["PatientID"] == "P1" and frames(path) == 1 and dicom.is_dicom(path)
    assert looks_like_image(path) and geometry_of(path).spacing == (0.8, 0.8)
