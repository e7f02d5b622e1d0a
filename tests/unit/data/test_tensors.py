# SPDX-License-Identifier: Apache-2.0
"""What a site's data promise to trainers and probes."""

import pytest
import torch

from fairflare.data import tensors
from fairflare.data.tensors import Split, TensorData, augmented


def images(n, seed=0, side=12):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 1, side, side), generator=generator, dtype=torch.uint8)
    return Split(pixels, torch.arange(n) % 3)


def site(n=17, **kwargs):
    return TensorData(train=images(n), val=images(4, 1), test=images(0), n_classes=4, **kwargs)


def gathered(batches):
    inputs, targets, _ = zip(*batches)
    return torch.cat(inputs), torch.cat(targets)


def test_sizes_and_class_counts():
    data = site()
    assert [data.size(s) for s in ("train", "val", "test")] == [17, 4, 0]
    assert data.class_counts.tolist() == [6, 6, 5, 0] and data.class_counts.dtype == torch.int64


def test_a_last_single_example_joins_the_batch_before():
    assert [len(y) for _, y, _ in site(17).training(8, 0)] == [8, 9]
    assert [len(y) for _, y, _ in site(18).training(8, 0)] == [8, 8, 2]
    assert [len(y) for _, y, _ in site(9).training(8, 0)] == [9]


def test_batches_of_one_are_refused():
    with pytest.raises(ValueError, match="batch_size: expected at least 2, got 1"):
        next(site().training(1, 0))
    with pytest.raises(ValueError, match="train: expected at least 2 examples, got 1"):
        site(1)


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_is_a_function_of_its_seed_alone(augment):
    data = site(augment=augment)
    first = gathered(data.training(8, 3))
    torch.manual_seed(99)
    state = torch.get_rng_state()
    second = gathered(data.training(8, 3))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first[0], gathered(data.training(8, 4))[0])


def test_an_epoch_visits_everyone_once():
    data = site()
    seen, _ = gathered(data.training(8, 5))
    stored, _ = gathered(data.fixed("train", 8))
    assert torch.equal(seen.flatten(1).sum(1).sort().values, stored.flatten(1).sum(1).sort().values)
    assert not torch.equal(seen, stored)


def test_fixed_keeps_the_stored_order_and_normalises():
    data = site(mean=(0.5,), std=(0.25,))
    inputs, targets = gathered(data.fixed("train", 5))
    assert inputs.dtype == torch.float32 and torch.equal(targets, torch.arange(17) % 3)
    torch.testing.assert_close(inputs, (images(17).inputs / 255 - 0.5) / 0.25)
    assert list(data.fixed("test", 5)) == []


def test_grey_images_take_the_channels_of_the_norm():
    inputs, *_ = next(site(mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 2.0)).fixed("val", 4))
    assert inputs.shape == (4, 3, 12, 12)
    torch.testing.assert_close(inputs[:, 0] - inputs[:, 1], torch.full((4, 12, 12), 0.1))


def test_augmentation_moves_little_and_flips_half():
    square = torch.zeros(400, 1, 40, 40)
    square[..., 17:23, 4:10] = 1.0
    moved, _ = augmented(square, torch.zeros(400), torch.Generator().manual_seed(0))
    columns = torch.arange(40.0)
    centre_x = (moved.sum((1, 2)) * columns).sum(1) / moved.sum((1, 2, 3))
    centre_y = (moved.sum((1, 3)) * columns).sum(1) / moved.sum((1, 2, 3))
    flipped = centre_x > 20
    assert 150 < flipped.sum() < 250
    assert (torch.where(flipped, 39 - centre_x, centre_x) - 6.5).abs().max() < 0.8 + 0.3
    # 13 pixels from the centre, a turn of 10 degrees moves it 2.3 pixels, the shift another 0.8.
    assert 2.0 < (centre_y - 19.5).abs().max() < 3.3
    assert moved.sum((1, 2, 3)).sub(36).abs().max() < 2


def test_tables_pass_unchanged():
    table = torch.randn(6, 3)
    split = Split(table, torch.zeros(6, dtype=torch.long), {"sex": ["f", "m"] * 3})
    data = TensorData(train=split, val=split, test=split, n_classes=2)
    assert torch.equal(gathered(data.fixed("val", 4))[0], table)
    assert data.attributes("val")["sex"][1] == "m"


def test_attributes_have_one_value_per_example():
    with pytest.raises(ValueError, match="sex: expected 6 values as there are inputs, got 5"):
        Split(torch.zeros(6, 3), torch.zeros(6, dtype=torch.long), {"sex": ["f"] * 5})


@pytest.mark.parametrize(
    "norm", [{}, {"mean": (0.5,), "std": (0.3,)}, {"mean": (0.1, 0.2, 0.3), "std": (0.9, 1.0, 2.0)}]
)
def test_images_that_lie_ready_are_those_that_every_batch_would_transform(norm, monkeypatch):
    def read(data):
        return [*data.training(8, 3), *data.fixed("train", 5), *data.fixed("val", 5, 3)]

    ready, each_time = site(**norm), site(**norm)
    found = read(ready)
    monkeypatch.setattr(tensors, "READY", 0)
    for a, b in zip(found, read(each_time), strict=True):
        assert all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(a, b))
    assert ready._at_hand("train") is not None and each_time._at_hand("train") is None


def test_large_images_are_not_kept_twice(monkeypatch):
    monkeypatch.setattr(tensors, "READY", 17 * 3 * 12 * 12 * 4 + 17 * 8 - 1)
    norm = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 2.0)}
    assert site(**norm)._at_hand("train") is None
    assert site(mean=(0.5,), std=(0.5,))._at_hand("train") is not None


def test_a_network_may_write_into_its_batches():
    table = torch.randn(6, 3)
    parts = Split(table.clone(), torch.zeros(6, dtype=torch.long))
    for data in (site(mean=(0.5,), std=(0.25,)), TensorData(train=parts, val=parts, test=parts, n_classes=2)):
        before = [batch.inputs.clone() for batch in data.fixed("train", 4)]
        for batch in (*data.training(4, 0), *data.fixed("train", 4)):
            batch.inputs.zero_()
        assert all(torch.equal(a, b.inputs) for a, b in zip(before, data.fixed("train", 4)))
