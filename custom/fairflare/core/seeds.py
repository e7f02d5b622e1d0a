# SPDX-License-Identifier: Apache-2.0
"""One seed per purpose, so that a result does not depend on which process or in which order work is done."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def derive(seed: int, *labels: object) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(0, "train", "site-1", 3)``; other labels give unrelated seeds."""
    text = "\x1f".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (dropout and initialisation read torch's)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _of_torch().manual_seed(seed)


def forget_seeds() -> None:
    """Seed the global generators from the system's entropy: nobody can foretell what is drawn next."""
    random.seed()
    np.random.seed()
    _of_torch().seed()


def _of_torch() -> Any:
    """What seeds torch: without a GPU its generator, since torch itself notes a stack trace for GPUs that may come."""
    return torch if torch.cuda.is_available() else torch.default_generator
