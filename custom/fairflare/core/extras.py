# SPDX-License-Identifier: Apache-2.0
"""Libraries that only some installations need, by the extra of this package that brings them."""

from __future__ import annotations

from importlib.util import find_spec

from fairflare.core.errors import UserError

EXTRAS = {"images": ("monai", "nibabel", "nrrd", "pydicom")}
"""Extra -> the modules that it brings; matplotlib brings Pillow to everybody."""


def need(extra: str, what: str) -> None:
    """Raise UserError where a library of ``extra`` is missing; ``what`` needs it, in the user's words."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise UserError(f"{what}: needs {', '.join(missing)}, not installed: pip install 'fairflare[{extra}]'")
