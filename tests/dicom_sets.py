# SPDX-License-Identifier: Apache-2.0
"""DICOM archives as hospitals have them, small and drawn from seeds, each with the truth about every file.

A builder writes below a folder and returns {file, relative with "/": (site, class, patient)}. Unless it says otherwise
files lie as SITE/CLASS/..., nothing in a file's name tells the patient, and a patient has one class.
"""

from __future__ import annotations

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    CTImageStorage,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    MRImageStorage,
    MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    RLELossless,
    SegmentationStorage,
    UltrasoundImageStorage,
    generate_uid,
)

SITES = ("charite", "mayo", "ucl")
CLASSES = ("benign", "malignant")
EDGE = 32
STORAGE = {
    "CT": CTImageStorage,
    "DX": DigitalXRayImageStorageForPresentation,
    "MR": MRImageStorage,
    "US": UltrasoundImageStorage,
    "OT": MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    "SEG": SegmentationStorage,
}
MAKERS = {"charite": "SIEMENS", "mayo": "GE MEDICAL SYSTEMS", "ucl": "Philips"}


def uid(*parts):
    """The same UID for the same parts."""
    return generate_uid(entropy_srcs=[str(part) for part in parts])


def dataset(pixels, patient, *, study=0, series=0, instance=1, modality="CT", photometric="MONOCHROME2", **more):
    """One image in memory, uncompressed.

    Args:
        pixels: uint8, uint16 or int16 (H, W), (H, W, 3) or, with NumberOfFrames in ``more``, (frames, H, W).
        patient: PatientID.
        study: of the patient's, its number or name.
        series: likewise.
        instance: InstanceNumber.
        modality: see ``STORAGE``.
        photometric: PhotometricInterpretation.
        more: keyword -> value; None leaves an attribute out.
    """
    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.SOPClassUID = found.file_meta.MediaStorageSOPClassUID = STORAGE[modality]
    one = uid("instance", patient, study, series, instance)
    found.SOPInstanceUID = found.file_meta.MediaStorageSOPInstanceUID = one
    found.PatientID, found.PatientName, found.Modality = patient, f"Doe^{patient}", modality
    found.StudyInstanceUID, found.SeriesInstanceUID = uid("study", patient, study), uid("s", patient, study, series)
    found.InstanceNumber, found.SeriesNumber = instance, 1
    colour = pixels.ndim == 3 and "NumberOfFrames" not in more
    found.Rows, found.Columns = pixels.shape[:2] if colour else pixels.shape[-2:]
    found.SamplesPerPixel, found.PhotometricInterpretation = 3 if colour else 1, photometric
    if colour:
        found.PlanarConfiguration = 0
    bits = 8 * pixels.dtype.itemsize
    found.BitsAllocated, found.BitsStored, found.HighBit = bits, bits, bits - 1
    found.PixelRepresentation = int(pixels.dtype.kind == "i")
    found.PixelSpacing, found.ImageOrientationPatient = [0.8, 0.8], [1, 0, 0, 0, 1, 0]
    found.ImagePositionPatient, found.SliceThickness = [0, 0, 5 * instance], 5
    found.PixelData = pixels.tobytes()
    for keyword, value in more.items():
        if value is None:
            delattr(found, keyword)
        else:
            setattr(found, keyword, value)
    return found


def segmentation(images, masks, labels):
    """A binary segmentation of one patient's ``images``: a frame for each structure and image that has it."""
    frames = [(k, number) for number in range(1, len(labels) + 1) for k in range(len(images)) if number in masks[k]]
    pixels = np.stack([masks[k] == number for k, number in frames]).astype(np.uint8)
    found = dataset(pixels, images[0].PatientID, series="seg", modality="SEG", NumberOfFrames=len(frames))
    found.BitsAllocated, found.BitsStored, found.HighBit, found.SegmentationType = 1, 1, 0, "BINARY"
    found.PixelData = np.packbits(pixels.ravel(), bitorder="little").tobytes()
    found.SegmentSequence = [of(SegmentNumber=k, SegmentLabel=label) for k, label in enumerate(labels, start=1)]
    found.PerFrameFunctionalGroupsSequence = [
        of(
            SegmentIdentificationSequence=[of(ReferencedSegmentNumber=number)],
            DerivationImageSequence=[of(SourceImageSequence=[of(ReferencedSOPInstanceUID=images[k].SOPInstanceUID)])],
        )
        for k, number in frames
    ]
    return found


def of(**values):
    """A data set with these values."""
    found = Dataset()
    for keyword, value in values.items():
        setattr(found, keyword, value)
    return found


def save(path, found, syntax=None):
    """Write ``found``, compressed where a transfer syntax that pydicom encodes is given; folders are made."""
    if syntax is not None:
        found.compress(syntax, generate_instance_uid=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)


def texture(rng, ill, edge=EDGE):
    """float (edge, edge) in [0, 1]: a bright disc on noise, wide where ``ill``; nothing symmetric."""
    y, x = np.mgrid[:edge, :edge] / edge
    disc = (y - rng.uniform(0.3, 0.5)) ** 2 + (x - rng.uniform(0.3, 0.6)) ** 2 < (0.28 if ill else 0.12) ** 2
    return np.clip(0.2 + 0.5 * disc + rng.normal(0, 0.04, disc.shape), 0, 1)


def about(site, k, rng):
    """Whom and what the image is of, as headers say it: sex, age, scanner, station."""
    return {
        "PatientSex": "FM"[k % 2],
        "PatientAge": f"{int(rng.integers(30, 85)):03d}Y",
        "Manufacturer": MAKERS.get(site, "ACME"),
        "ManufacturerModelName": f"{MAKERS.get(site, 'ACME').split()[0]}-{1 + k % 2}",
        "StationName": f"{site[:3].upper()}CT{1 + k % 2}",
        "InstitutionName": site,
    }


def people(sites=SITES, n=10):
    """Site, number, class's number, PatientID and a generator of each of ``n`` patients a site."""
    for s, site in enumerate(sites):
        for k in range(n):
            yield site, k, k % 2, f"MRN{7000 + 613 * s + 37 * k}", np.random.default_rng([s, k])


def patients(root, n=10, slices=6):
    """CT, ``n`` patients of ``slices`` slices a site; names count through the slices of all patients in a mixed order.

    SITE/CLASS/img_0007.dcm
    """
    truth, numbers = {}, {}
    for site, k, ill, patient, rng in people(n=n):
        if (site, ill) not in numbers:
            numbers[site, ill] = list(np.random.default_rng(len(numbers)).permutation(n * slices))
        scanner = about(site, k, rng)
        for i in range(slices):
            hounsfield = np.round(-100 + 400 * texture(rng, ill))
            name = f"{site}/{CLASSES[ill]}/img_{numbers[site, ill].pop():04d}.dcm"
            stored = (hounsfield + 1024).astype(np.uint16)
            save(
                root / name, dataset(stored, patient, instance=i + 1, RescaleSlope=1, RescaleIntercept=-1024, **scanner)
            )
            truth[name] = site, CLASSES[ill], patient
    return truth


def anonymised(root, patient="", n=10, slices=3):
    """As ``patients``, but every file has the same PatientID: empty, or a word; the study tells who it is.

    The truth's patient is the StudyInstanceUID.
    """
    truth = {}
    for site, k, ill, mrn, rng in people(n=n):
        study = uid("study", mrn)
        for i in range(slices):
            name = f"{site}/{CLASSES[ill]}/{site[0]}{(k * slices + i) * 7919 % 10007:05d}.dcm"
            pixels = (1000 * texture(rng, ill)).astype(np.uint16)
            found = dataset(pixels, mrn, instance=i + 1, modality="MR", StudyInstanceUID=study)
            found.PatientID = found.PatientName = patient
            save(root / name, found)
            truth[name] = site, CLASSES[ill], str(study)
    return truth


def mixed_monochrome(root, n=12):
    """Radiographs of which every second patient's is MONOCHROME1: the lowest value is white. 12 bits in 16."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        stored = np.round(4095 * texture(rng, ill)).astype(np.uint16)
        one = k % 4 in (1, 2)
        photometric = "MONOCHROME1" if one else "MONOCHROME2"
        found = dataset(4095 - stored if one else stored, patient, modality="DX", photometric=photometric)
        found.BitsStored, found.HighBit = 12, 11
        name = f"{site}/{CLASSES[ill]}/dx{k * 7 % 12:02d}.dcm"
        save(root / name, found)
        truth[name] = site, CLASSES[ill], patient
    return truth


def ct_offset(root, n=24, offset=40, sites=SITES):
    """CT whose classes have the same texture and differ by ``offset`` Hounsfield units alone; two ways to store it.

    Every second patient is stored with slope 1 and intercept -1024, the others signed with slope 2 and intercept 0.
    """
    truth = {}
    for site, k, ill, patient, rng in people(sites, n):
        hounsfield = 20 + 60 * rng.random((EDGE, EDGE)) + offset * ill
        slope, intercept = ((1, -1024), (2, 0))[k // 2 % 2]
        stored = np.round((hounsfield - intercept) / slope).astype(np.int16)
        name = f"{site}/{CLASSES[ill]}/{k * 5 % n:03d}.dcm"
        save(root / name, dataset(stored, patient, RescaleSlope=slope, RescaleIntercept=intercept))
        truth[name] = site, CLASSES[ill], patient
    return truth


def suffixless(root, n=10, slices=2):
    """As a PACS exports: no suffixes, a folder per study, and files between that are no images.

    SITE/CLASS/00001A2B/I0000001; beside them VERSION, a report R0000001 that is DICOM without pixels, SITE/README and
    SITE/DICOMDIR.
    """
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        folder = f"{site}/{CLASSES[ill]}/{k * 40503 % 65536:08X}"
        for i in range(slices):
            pixels = (1000 * texture(rng, ill)).astype(np.uint16)
            name = f"{folder}/I{i + 1:07d}"
            save(root / name, dataset(pixels, patient, instance=i + 1, modality="MR"))
            truth[name] = site, CLASSES[ill], patient
        (root / folder / "VERSION").write_text("1.0\n")
        report = dataset(pixels, patient, instance=99, modality="MR", Modality="SR", Rows=None, PixelData=None)
        save(root / folder / "R0000001", report)
    for site in SITES:
        (root / site / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
        (root / site / "README").write_text("exported from the archive\n")
    return truth


def multiframe(root, n=10, frames=4):
    """Files of several frames each; the truth is of files, every frame has the file's class and patient."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        pixels = (1000 * np.stack([texture(rng, ill) for _ in range(frames)])).astype(np.uint16)
        name = f"{site}/{CLASSES[ill]}/cine{k * 7 % n:02d}.dcm"
        save(root / name, dataset(pixels, patient, modality="OT", NumberOfFrames=frames))
        truth[name] = site, CLASSES[ill], patient
    return truth


def series(root, n=8, slices=5):
    """CT series: a folder of single slices for each; the files' names run against the slices' order in space.

    SITE/CLASS/series_03/slice_2.dcm; every second patient has two series, of one study.
    """
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        for j in range(1 + k % 2):
            for i in range(slices):
                stored = np.round(1024 - 100 + 400 * texture(rng, ill)).astype(np.uint16)
                name = f"{site}/{CLASSES[ill]}/series_{2 * k + j:02d}/slice_{slices - i}.dcm"
                found = dataset(stored, patient, series=j, instance=i + 1, RescaleSlope=1, RescaleIntercept=-1024)
                save(root / name, found)
                truth[name] = site, CLASSES[ill], patient
    return truth


def compressed(root, n=10):
    """MR slices in RLE Lossless, which pydicom decodes with numpy alone."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        pixels = (1000 * texture(rng, ill)).astype(np.uint16)
        name = f"{site}/{CLASSES[ill]}/rle{k}.dcm"
        save(root / name, dataset(pixels, patient, modality="MR"), RLELossless)
        truth[name] = site, CLASSES[ill], patient
    return truth


def colour(root, n=10):
    """Ultrasound in RGB, every second file plane by plane."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        grey = 200 * texture(rng, ill)
        pixels = np.stack([grey, 0.5 * grey, 30 + 0 * grey], axis=-1).astype(np.uint8)
        found = dataset(pixels, patient, modality="US", photometric="RGB")
        if k % 4 > 1:
            found.PlanarConfiguration, found.PixelData = 1, np.moveaxis(pixels, -1, 0).tobytes()
        name = f"{site}/{CLASSES[ill]}/us{k}.dcm"
        save(root / name, found)
        truth[name] = site, CLASSES[ill], patient
    return truth


def signed(root, n=10):
    """16-bit signed MR with values below zero."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        pixels = (4000 * texture(rng, ill) - 1500).astype(np.int16)
        name = f"{site}/{CLASSES[ill]}/mr{k}.dcm"
        save(root / name, dataset(pixels, patient, modality="MR"))
        truth[name] = site, CLASSES[ill], patient
    return truth


def palette(root, n=10):
    """Ultrasound whose pixels are numbers of colours: red grows with the number, blue falls, green is even."""
    ramp = np.arange(256, dtype=np.uint16) * 257
    tables = {"Red": ramp, "Green": np.full(256, 128 * 257, np.uint16), "Blue": ramp[::-1] // 2}
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        pixels = (255 * texture(rng, ill)).astype(np.uint8)
        found = dataset(pixels, patient, modality="US", photometric="PALETTE COLOR")
        for name, values in tables.items():
            setattr(found, f"{name}PaletteColorLookupTableDescriptor", [256, 0, 16])
            setattr(found, f"{name}PaletteColorLookupTableData", values.tobytes())
        name = f"{site}/{CLASSES[ill]}/p{k}.dcm"
        save(root / name, found)
        truth[name] = site, CLASSES[ill], patient
    return truth


def masks(root, n=10):
    """Segmentation: SITE/ct0.dcm with SITE/ct0_mask.dcm beside it, masks of 0 and 1; the truth's class is ""."""
    truth = {}
    for site, k, ill, patient, rng in people(n=n):
        image = texture(rng, ill)
        mask = (image > 0.45).astype(np.uint8)
        stored = np.round(1024 - 100 + 400 * image).astype(np.uint16)
        name = f"{site}/ct{k}.dcm"
        save(root / name, dataset(stored, patient, RescaleSlope=1, RescaleIntercept=-1024))
        save(root / f"{site}/ct{k}_mask.dcm", dataset(mask, patient, series="mask", modality="OT"))
        truth[name] = site, "", patient
    return truth


SETS = {
    one.__name__: one
    for one in (
        patients,
        anonymised,
        mixed_monochrome,
        ct_offset,
        suffixless,
        multiframe,
        series,
        compressed,
        colour,
        signed,
        palette,
        masks,
    )
}
"""Name -> builder, all of them to be called with the folder alone."""
