# SPDX-License-Identifier: Apache-2.0
"""A site that pretends to have data: its training split is one image of its own, again and again.

The free rider of FedCE (Jiang et al., CVPR 2023, arXiv:2303.16520), for methods that are to find it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

REMARK = "repeats one image"
"""Added to what a report says of the site."""


def with_one_image(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``rows`` with as many training rows as before, all of them the first; validation and test rows as they are.

    Args:
        rows: split -> numbers of a site's images, (n,) each.
    """
    return {**rows, "train": np.full_like(rows["train"], rows["train"][0])}
