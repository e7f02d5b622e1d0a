# SPDX-License-Identifier: Apache-2.0
"""Where the golden vectors are: FAIRFLARE_GOLDEN, or this folder."""

import os
from pathlib import Path


def folder() -> Path:
    """The folder that the golden tests read."""
    return Path(os.environ.get("FAIRFLARE_GOLDEN") or Path(__file__).parent)
