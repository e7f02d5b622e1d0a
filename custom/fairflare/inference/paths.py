# SPDX-License-Identifier: Apache-2.0
"""Where a site's own files lie: in the run's folder, or in a deployed site's workspace under longer names."""

from __future__ import annotations

import re
from pathlib import Path

from fairflare.core.errors import UserError


def site_file(place: Path, site: str, ending: str) -> Path | None:
    """``SITE<ending>`` in ``place``, or a deployed site's ``SITE.<hash><ending>``; None where there is none.

    Raises:
        UserError: there are several, of several configurations or users.
    """
    if (place / f"{site}{ending}").is_file():
        return place / f"{site}{ending}"
    name = re.compile(rf"{re.escape(site)}\.[0-9a-f]{{32}}{re.escape(ending)}")
    items = sorted(place.iterdir()) if place.is_dir() else []
    found = [path for path in items if name.fullmatch(path.name) and path.is_file()]
    if len(found) > 1:
        raise UserError(f"{place}: holds {len(found)} files {site}.*{ending}; give the folder of one federation's")
    return found[0] if found else None
