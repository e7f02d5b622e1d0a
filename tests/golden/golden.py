# SPDX-License-Identifier: Apache-2.0
"""Where the golden vectors are: FAIRFLARE_GOLDEN, this folder, or that of the research distribution."""

import os
from pathlib import Path

HERE = Path(__file__).parent
LAB = HERE.parents[1] / "lab" / "tests" / "golden"


def folder() -> Path:
    """The folder that the golden tests of the house read."""
    return Path(os.environ.get("FAIRFLARE_GOLDEN") or HERE)


def file(name: str) -> Path:
    """The file of that name in ``folder()``, or beside the tests of the research distribution."""
    return next(path for path in (folder() / name, LAB / name, HERE / name) if path.exists())
