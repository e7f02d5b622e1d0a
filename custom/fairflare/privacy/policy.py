# SPDX-License-Identifier: Apache-2.0
"""What a site itself has decided; a job may be stricter than its site, never laxer."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fairflare.errors import UserError

VARIABLE = "FAIRFLARE_SITE_CONFIG"
FILE = "fairflare_site.json"


def site_min_count(job: int | None, local: Path | None = None) -> int | None:
    """The fewest examples of a group whose numbers leave this site: the site's or the job's, whichever is more.

    The site's stands in the JSON file that ``FAIRFLARE_SITE_CONFIG`` names, or in ``fairflare_site.json`` in the
    folder ``local``, under "min_count": a whole number, or null, which lets nothing leave. A site without such a file
    has nothing to add to the job.

    Raises:
        UserError: the file cannot be read or its min_count is something else.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else local / FILE if local else None
    if path is None or (not named and not path.is_file()):
        return job
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{VARIABLE}: expected a JSON file") from None
    if not isinstance(content, dict) or "min_count" not in content:
        return job
    own = content["min_count"]
    if own is not None and (type(own) is not int or own < 0):
        raise UserError(f"{VARIABLE}: min_count: expected a whole number of at least 0 or null, got {own!r}")
    return None if own is None or job is None else max(own, job)
