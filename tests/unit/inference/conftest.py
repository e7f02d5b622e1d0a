# SPDX-License-Identifier: Apache-2.0
"""Three finished runs: a table, photographs and masks."""

import pytest
from PIL import Image

from model_use import run
from own_folder import write_images


@pytest.fixture(scope="session")
def heart_run(tmp_path_factory):
    """Three rounds with recalibration, whose figures are of the test split."""
    folder = tmp_path_factory.mktemp("use") / "heart"
    return run(folder, "fedavg", "--task", "heart:full", "--rounds", 3, "--set", "after=recalibrate")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Images of 64 pixels would need no resampling; these are 48 x 40."""
    return write_images(tmp_path_factory.mktemp("use") / "photos", masks=False)


@pytest.fixture(scope="session")
def photo_run(photos, tmp_path_factory):
    own = ["--datalists", photos, "--kind", "classification", "--classes", "healthy,ill", "--set", "size=32"]
    return run(tmp_path_factory.mktemp("use") / "photo", "fedavg", *own, "--rounds", 2)


@pytest.fixture(scope="session")
def mask_data(tmp_path_factory):
    """As the network takes them: 64 x 64, so that masks are scored as the sites score them."""
    root = write_images(tmp_path_factory.mktemp("use") / "masks", masks=True)
    for path in root.rglob("*.png"):
        size = Image.open(path).resize((64, 64), Image.Resampling.NEAREST)
        size.save(path)
    return root


@pytest.fixture(scope="session")
def mask_run(mask_data, tmp_path_factory):
    own = ["--datalists", mask_data, "--kind", "segmentation", "--classes", "lesion"]
    return run(tmp_path_factory.mktemp("use") / "mask", "fedavg", *own, "--rounds", 3)
