# SPDX-License-Identifier: Apache-2.0
"""PNG files of other modes than 8 bits of grey: palettes, and 16 bits."""

import numpy as np
import pytest
import torch
from PIL import Image

from fairflare.data.readers.pictures import Reader, stored


@pytest.mark.parametrize("coloured", [False, True])
def test_a_palettes_numbers_are_colours_of_an_image_and_structures_of_a_mask(coloured, tmp_path):
    """Or greys, where it has no colour: programs sort these as they like."""
    numbers = np.arange(256, dtype=np.uint8).reshape(16, 16)
    colours = np.repeat(255 - numbers.ravel(), 3).reshape(256, 3)
    colours[0, 1:] -= 60 * coloured
    picture = Image.fromarray(numbers, mode="P")
    picture.putpalette(list(colours.ravel()))
    picture.save(tmp_path / "palette.png")
    Image.fromarray(colours.reshape(16, 16, 3)).save(tmp_path / "plain.png")
    reader = Reader(16, 1)
    assert torch.equal(reader.image(tmp_path / "palette.png"), reader.image(tmp_path / "plain.png"))
    assert np.array_equal(stored(tmp_path / "palette.png")[0], numbers if coloured else 255 - numbers)


def test_sixteen_bits_are_scaled_alike_whatever_the_brightest_pixel_is(tmp_path):
    ramp = np.linspace(0, 250, 256).astype(np.uint16).reshape(16, 16)
    for name, factor in (("dim", 1), ("bright", 100)):
        Image.fromarray(ramp * factor).save(tmp_path / f"{name}.png")
    reader = Reader(16, 1)
    dim, bright = (reader.image(tmp_path / f"{name}.png").int() for name in ("dim", "bright"))
    assert (dim - bright).abs().max() <= 1 and dim.max() == 255
