# SPDX-License-Identifier: Apache-2.0
"""`fairflare inspect`: what an exported job runs, reads and sends at a hospital."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.options import PATH, as_json


@click.command()
@click.argument("job", type=PATH)
@as_json
@click.pass_context
def inspect(context: click.Context, job: Path, as_json: bool) -> None:
    """What the exported JOB runs at a hospital: entry point, files and lines, what is read, what leaves, where it is
    checked.

    Nothing of the job is imported. Exits with 1 where its files are not those that MANIFEST.json lists
    (docs/audit-a-job.md).
    """
    from fairflare.app import console
    from fairflare.app.inspection import inspected, show

    found = inspected(job)
    console.dump(found) if as_json else show(found)
    if any(found[side].get("matches", True) is not True for side in ("site", "server")):
        context.exit(1)
