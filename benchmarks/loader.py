# SPDX-License-Identifier: Apache-2.0
"""What part of a training step is spent waiting for the next batch.

    python benchmarks/loader.py [--slices 128] [--batch 32] [--epochs 2] [--device cpu|cuda] [--folder DIR] [--toy]
    python benchmarks/loader.py --files 50000 [--pixels 1024]

Two data sets train ResNet-18 at 224 pixels with Adam, as ``ich-phantom:paper`` does: that task's first site, whose
images are drawn once, and a set of DICOM slices of 512 x 512 written to a temporary folder (or to --folder), read with
all of it in the cache, half of it and nothing, without and with threads that read ahead. The share is the time in which
the loop waits for a batch over the time of the epoch; the first epoch, which fills the cache, is shown on its own.

With ``--files`` nothing trains. So many JPEG files of a few hundred contents are read for a network of 224 pixels by a
site that keeps a tenth of a gigabyte in memory and the rest on a disk: CPU seconds of two epochs, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fairflare.core.execution import Execution, default_device
from fairflare.core.types import LocalWork, Round, Training
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.engine.setup import tasks
from fairflare.trainers.base import PlainTrainer, make_optimizer


def main() -> None:
    """Measure and print."""
    options = parse()
    device = torch.device(options.device) if options.device else default_device()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, {device}")
    if options.files:
        many_files(options)
        return
    print(f"{'data':36} {'first epoch':>12} {'later epochs':>13}   waiting / step")
    preset = "small" if options.toy else "paper"
    small = {"images": 200, "n_sites": 2, "corrupted": 1} if options.toy else {}
    small["site_test_images"] = 0  # what is timed here is training
    phantom = tasks.load("ich-phantom", preset, **small)
    show(f"ich-phantom:{preset}, site-1", phantom, phantom.site_data("site-1"), options, device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        write_slices(folder, options.slices)
        task = tasks.load("classification", preset, labels="2")
        for rate, workers in ((1.0, 0), (0.5, 2), (0.0, 2), (0.0, 0)):
            own = SiteConfig(str(folder), "ct.json", num_workers=workers, cache_rate=rate)
            name = f"DICOM, cache_rate {rate:g}, num_workers {workers}"
            show(name, task, task.local_data("site", own), options, device)
    if options.toy:
        options.files, options.pixels = 40, 64
        many_files(options)


def many_files(options: argparse.Namespace) -> None:
    """The CPU seconds of two epochs of a loader alone."""
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        write_files(folder, options.files, options.pixels)
        own = SiteConfig(str(folder), "images.json", cache_gb=0.1, cache_folder=scratch)
        data, seconds = tasks.load("classification", labels="2", size=224).local_data("site", own), []
        for epoch in range(2):
            started = time.process_time()
            images = sum(len(batch.targets) for batch in data.training(options.batch, epoch))
            seconds.append(time.process_time() - started)
        first, second = seconds
        print(f"{images} files of {options.pixels} px: {first:.1f} and {second:.1f} CPU s, ratio {second / first:.3f}")


def write_files(folder: Path, n: int, pixels: int) -> None:
    """``n`` grey JPEG files, of which every 200th has the same content, and images.json."""
    from PIL import Image

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (200, 64, 64), dtype=np.uint8)
    for i in range(n + 8):
        if i < len(coarse):
            Image.fromarray(coarse[i]).resize((pixels, pixels), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")
        else:
            (folder / f"{i}.jpg").hardlink_to(folder / f"{i % len(coarse)}.jpg")
    entries = [{"image": f"{i}.jpg", "label": i % 2} for i in range(n + 8)]
    lists = {"training": entries[:n], "validation": entries[n : n + 4], "testing": entries[n + 4 :]}
    (folder / "images.json").write_text(json.dumps(lists))


def show(name: str, task, data: TensorData, options: argparse.Namespace, device: torch.device) -> None:
    """Train some epochs and print how long the loop waited."""
    network, execution = task.network(), Execution(device, "auto")
    execution.place(network)
    training = Training(batch_size=options.batch, lr=3e-4)
    work = LocalWork(network.train(), data.on(device), training, Round(1, 1), seed=0, execution=execution)
    optimizer, trainer, objective = make_optimizer(network, training), PlainTrainer(), work.loss()
    shares, seconds = [], 0.0
    for epoch in range(options.epochs):
        waiting, started, steps = 0.0, time.perf_counter(), 0
        asked = started
        for batch in data.training(training.batch_size, epoch):
            waiting += time.perf_counter() - asked
            trainer.step(work, optimizer, objective, batch.to(device))
            if device.type == "cuda":
                torch.cuda.synchronize()
            steps, asked = steps + 1, time.perf_counter()
        seconds = time.perf_counter() - started
        shares.append(waiting / seconds)
    later = f"{100 * sum(shares[1:]) / len(shares[1:]):.1f} %" if len(shares) > 1 else "-"
    waited = 1000 * shares[-1] * seconds / steps
    print(
        f"{name:36} {100 * shares[0]:10.1f} % {later:>13}   {waited:.0f} / {1000 * seconds / steps:.0f} ms", flush=True
    )


def write_slices(folder: Path, n: int) -> None:
    """``n`` training slices of 512 x 512 int16 as uncompressed DICOM files, and ct.json."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(n + 8):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, ExplicitVRLittleEndian
        meta.MediaStorageSOPInstanceUID = generate_uid()
        slice_ = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
        slice_.Rows = slice_.Columns = 512
        slice_.SamplesPerPixel, slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit = 1, 16, 16, 15
        slice_.PixelRepresentation, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.RescaleSlope, slice_.RescaleIntercept = 1, -1024
        slice_.SOPClassUID, slice_.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        slice_.PixelData = rng.normal(1060 + 20 * (i % 2), 60, (512, 512)).astype(np.int16).tobytes()
        slice_.save_as(folder / f"{i}.dcm", enforce_file_format=True)
    entries = [{"image": f"{i}.dcm", "label": i % 2} for i in range(n + 8)]
    lists = {"training": entries[:n], "validation": entries[n : n + 4], "testing": entries[n + 4 :]}
    (folder / "ct.json").write_text(json.dumps(lists))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("--slices", 128), ("--batch", 32), ("--epochs", 2), ("--files", 0), ("--pixels", 1024)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--device")
    parser.add_argument("--folder")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, which say nothing about speed")
    options = parser.parse_args()
    if options.toy:
        options.slices, options.batch = 8, 4
    return options


if __name__ == "__main__":
    main()
