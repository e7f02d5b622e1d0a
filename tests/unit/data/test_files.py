# SPDX-License-Identifier: Apache-2.0
"""Reading ahead and keeping change nothing but time: same batches, every error raised, nothing left running."""

import threading

import pytest
import torch

from fairflare.core.errors import DataError
from fairflare.data.readers import files
from fairflare.data.readers.files import FileSplit, Room
from fairflare.data.tensors import TensorData


class Disk:
    """Twenty images; counts how often each is read, and some cannot be."""

    def __init__(self, broken=()):
        self.broken, self.reads = broken, []

    def __call__(self, item):
        self.reads.append(item)
        if item in self.broken:
            raise DataError("unreadable", f"{item}.png: cannot be read")
        return torch.full((1, 16, 16), item, dtype=torch.uint8), torch.tensor(item % 2)


def split(disk, n=20, **options):
    return FileSplit(range(n), disk, torch.arange(n) % 2, {}, **options)


def data(disk, **options):
    return TensorData(train=split(disk, **options), val=split(disk, 4), test=split(disk, 3), n_classes=2, augment=True)


@pytest.mark.parametrize("options", [{}, {"cache_rate": 0.0}, {"cache_rate": 0.5, "num_workers": 3}])
def test_batches_do_not_depend_on_threads_or_cache(options):
    plain, other = data(Disk(), cache_rate=0.0, num_workers=0), data(Disk(), **options)
    for _ in range(2):
        for a, b in zip(plain.training(8, 3), other.training(8, 3), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b))
    assert torch.equal(plain.class_counts, torch.tensor([10, 10]))


@pytest.mark.parametrize("rate, reads", [(1.0, 20), (0.5, 20 + 10), (0.0, 40)])
def test_the_cache_keeps_its_share(rate, reads):
    disk = Disk()
    found = split(disk, cache_rate=rate, num_workers=2)
    for _ in range(2):
        list(found.read(torch.arange(20).split(6)))
    assert len(disk.reads) == reads


SIZE = 16 * 16 + 8
"""Bytes of an image and its label."""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cache_of_several_splits_has_one_bound_in_bytes_and_changes_no_batch(workers):
    room, disk = Room(30 * SIZE), Disk()
    first, second = (split(disk, num_workers=workers, room=room) for _ in range(2))
    batches = [found for one in (first, second) for _ in range(2) for found in one.read(torch.arange(20).split(6))]
    assert len(disk.reads) == 20 + 20 + 10 and first.in_memory and not second.in_memory
    plain = list(split(Disk(), cache_rate=0.0).read(torch.arange(20).split(6))) * 4
    assert all(torch.equal(a, b) for one, other in zip(batches, plain, strict=True) for a, b in zip(one, other))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_memory_has_no_room_for_lies_on_a_disk_in_a_file_without_a_name(workers, tmp_path):
    disk = Disk()
    found = split(disk, num_workers=workers, room=Room(3 * SIZE, str(tmp_path)))
    batches = [one for _ in range(2) for one in found.read(torch.arange(20).split(6))]
    assert sorted(disk.reads) == list(range(20)) and not found.in_memory and not list(tmp_path.iterdir())
    plain = list(split(Disk(), cache_rate=0.0).read(torch.arange(20).split(6))) * 2
    assert all(torch.equal(a, b) for one, other in zip(batches, plain, strict=True) for a, b in zip(one, other))


def test_a_disk_without_room_leaves_memory_its_share(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full)
    disk = Disk()
    found = split(disk, room=Room(5 * SIZE, str(tmp_path)))
    for _ in range(2):
        list(found.read(torch.arange(20).split(6)))
    assert len(disk.reads) == 20 + 15


def test_grey_images_for_a_network_of_three_channels_take_a_third_and_change_no_batch():
    def read(item):
        image = torch.randint(256, (1 if item % 4 else 3, 16, 16), generator=torch.Generator().manual_seed(item))
        return image.expand(3, -1, -1).to(torch.uint8), torch.tensor(item % 2)

    for rows in (torch.tensor([1, 2, 3, 5, 6]), torch.arange(20)):  # grey alone, and with colours
        room, batches = Room(100 * 3 * SIZE), rows.split(6)
        kept, plain = (FileSplit(range(20), read, rows % 2, {}, rate, room=room) for rate in (1.0, 0.0))
        for _ in range(2):
            pairs = zip(kept.read(batches), plain.read(batches), strict=True)
            assert all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other))
        held = sum(part[: kept._used[times]].nbytes for times, block in kept._blocks.items() for part in block)
        assert held == sum(8 + (1 if row % 4 else 3) * 256 for row in rows.tolist())


def test_what_a_split_held_is_free_again_when_nobody_needs_it(monkeypatch):
    monkeypatch.setattr(files, "HERE", room := Room(20 * SIZE))
    for _ in range(3):
        found = split(Disk())
        list(found.read([torch.arange(20)]))
        assert found.in_memory and room.take(1, SIZE) == 0
        del found
    assert room.take(30, SIZE) == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_read_is_an_error_and_not_a_short_epoch(workers):
    found = split(Disk(broken=(17,)), num_workers=workers)
    with pytest.raises(DataError, match="17.png"):
        list(found.read(torch.arange(20).split(6)))


def test_all_errors_are_found_in_one_pass_and_the_rest_is_kept():
    disk = Disk(broken=(3, 11))
    found = split(disk, num_workers=2)
    assert [str(e)[:2] for e in found.errors()] == ["3.", "11"] and len(disk.reads) == 20
    list(found.read([torch.tensor([0, 1, 2])]))
    assert len(disk.reads) == 20


def test_reading_stays_a_little_ahead_and_stops_when_nobody_listens():
    disk, before = Disk(), threading.active_count()
    batches = split(disk, cache_rate=0.0, num_workers=2).read(torch.arange(20).split(4))
    next(batches)
    assert len(disk.reads) <= 3 * 4 + 2
    batches.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_files_that_are_all_kept_lie_ready_for_the_network(rate):
    disk = Disk()
    found = TensorData(train=split(disk, cache_rate=rate), val=split(disk, 4), test=split(disk, 3), n_classes=2)
    first = [batch.inputs for batch in found.fixed("train", 6)]
    assert found._at_hand("train") is None or rate == 1
    assert (found._at_hand("train") is not None) == (rate == 1)
    assert all(torch.equal(a, b.inputs) for a, b in zip(first, found.fixed("train", 6)))
    assert found._at_hand("test") is None  # nothing of it has been read
