# SPDX-License-Identifier: Apache-2.0
"""Large tensors in pieces: what comes out is what went in, and what does not fit together is refused."""

import pytest
import torch

from fairflare.flare import wire
from fairflare.flare.wire import joined, split

TENSORS = {
    "a.weight": torch.arange(60.0).view(3, 4, 5),
    "b": torch.tensor(7),
    "c": torch.zeros(0, 3),
    "d": torch.arange(9, dtype=torch.float64),
    "e": torch.ones(2),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(wire, "LARGEST", 16)


def test_pieces_are_small_share_their_tensors_memory_and_make_them_again():
    found, shapes = split(TENSORS)
    assert max(piece.nbytes for piece in found.values()) <= 16 and shapes == {"a.weight": [3, 4, 5], "d": [9]}
    start = TENSORS["a.weight"].untyped_storage().data_ptr()
    assert found["a.weight/piece 3"].untyped_storage().data_ptr() == start
    back = joined(found, shapes)
    assert list(back) == list(TENSORS)
    for name, value in TENSORS.items():
        assert torch.equal(back[name], value) and back[name].dtype == value.dtype and back[name].shape == value.shape


def test_small_tensors_travel_whole():
    found, shapes = split({"e": TENSORS["e"]})
    assert found == {"e": TENSORS["e"]} and not shapes


def test_a_tensor_with_the_name_of_a_piece_is_refused():
    with pytest.raises(ValueError, match="names without"):
        split({"a/piece 0": torch.zeros(1)})


@pytest.mark.parametrize("missing", ["a.weight/piece 0", "a.weight/piece 7", "a.weight/piece 14", "all"])
def test_missing_pieces_are_an_error(missing):
    found, shapes = split(TENSORS)
    left = {key: value for key, value in found.items() if key != missing and (missing != "all" or "a.w" not in key)}
    with pytest.raises((ValueError, RuntimeError)):
        joined(left, shapes)


@pytest.mark.parametrize("shape", [[3, 4, 6], [61], "x", None, [-1, -1], [2.5]])
def test_pieces_that_do_not_make_the_shape_are_an_error(shape):
    found, shapes = split(TENSORS)
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        joined(found, {**shapes, "a.weight": shape})
