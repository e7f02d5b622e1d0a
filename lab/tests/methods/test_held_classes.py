# SPDX-License-Identifier: Apache-2.0
"""Which classes a site says it holds: none that its minimum count does not cover."""

import dataclasses

import pytest
import torch

from fairflare.core.types import LocalWork, Outline, Round
from fairflare_lab.methods.held_classes import HeldClasses
from helpers import TRAINING, Blobs, small_network


@pytest.mark.parametrize("min_count, expected", [(0, [0, 1, 1]), (1, [0, 1, 1]), (10, [0, 0, 1]), (None, [])])
def test_a_class_below_the_minimum_count_looks_absent(min_count, expected):
    data = Blobs(2)
    data.class_counts = torch.tensor([0, 9, 10])
    work = LocalWork(small_network(), data, TRAINING, Round(1, 2), seed=1)
    found = HeldClasses().measure(dataclasses.replace(work, min_count=min_count))
    assert list(found.values()) == expected
    declared = {number.name for number in HeldClasses().scalars(Outline({}, classes=3))}
    assert set(found) <= declared
