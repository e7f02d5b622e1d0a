# SPDX-License-Identifier: Apache-2.0
"""What a hospital installs: few libraries at once, and for what it lacks one line with the extra that brings it."""

import configparser
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fairflare.core.extras import EXTRAS

MAX_DEPENDENCIES = 16
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(sum(EXTRAS.values(), ()))}))  # an import of each fails
from fairflare.cli.main import main
main()
"""
"""A command line where no extra is installed."""


def bare(*arguments):
    return subprocess.run([sys.executable, "-c", BARE, *map(str, arguments)], capture_output=True, text=True)


def test_a_hospital_installs_sixteen_libraries_at_most():
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parents[2] / "setup.cfg")
    assert len(settings["options"]["install_requires"].split()) <= MAX_DEPENDENCIES


def test_tables_need_no_extra(tmp_path):
    (tmp_path / "own").mkdir()
    rows = [f"{k % 7},{k % 2}\n" for k in range(80)]
    for n, site in ((80, "a"), (78, "b")):
        (tmp_path / "own" / f"{site}.csv").write_text("x,label\n" + "".join(rows[:n]))
    done = bare("init", tmp_path / "own", "--label", "label", "--yes")
    assert done.returncode == 0, done.stderr
    done = bare("run", "fedavg", "--data", tmp_path / "own", "--rounds", 1, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr


def test_images_name_their_extra(tmp_path):
    noise = np.random.default_rng(0)
    for place in ("a/x", "a/y", "b/x", "b/y"):
        (tmp_path / place).mkdir(parents=True)
        for k in range(6):
            Image.fromarray(noise.integers(0, 255, (24, 24), dtype=np.uint8)).save(tmp_path / place / f"{k}.png")
    done = bare("init", tmp_path, "--site", "folder1", "--label", "folder2", "--yes")
    if done.returncode == 0:
        done = bare("run", "fedavg", "--data", tmp_path)
    assert done.returncode == 2 and "pip install 'fairflare[images]'" in done.stderr.splitlines()[-1], done.stderr
