# SPDX-License-Identifier: Apache-2.0
"""`fairflare preflight` and `fairflare prepare`: a site's data before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairflare.app.arguments import own_names, parse_pairs
from fairflare.app.options import PATH, AnyPath, accept_option, as_json, set_option, without_option
from fairflare.core.errors import RunFailed, UserError
from fairflare.tasks.forms import FORMS

FEW = 3
"""Sites with errors that are named with the flags that leave them out."""


@click.command()
@click.argument("path", type=PATH)
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data are, where `fairflare init` has not said it.")
@click.option("--task", metavar="T[:PRESET]", help="Another task that reads files, e.g. prostate:paper.")
@click.option("--classes", metavar="N", help="Classes or structures: a number, or names A,B,C.")
@click.option("--site", metavar="NAME", help="The site's name in the task; the configuration file's by default.")
@click.option("--method", metavar="METHOD", help="The method that the data are for: what only it needs is an error.")
@accept_option
@without_option
@set_option
@as_json
def preflight(
    path: Path,
    kind: str | None,
    task: str | None,
    classes: str | None,
    site: str | None,
    method: str | None,
    accept: tuple[str, ...],
    without: tuple[str, ...],
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look for what is wrong with the data at PATH; exit code 1 when a run would be refused.

    PATH is a site's configuration file, a folder of such files, or the folder of all sites that `fairflare init` has
    seen. One line per site and kind of problem. Run it at the hospital: its lines may name files. With --json it prints
    what may leave a site: no counts but the bands they lie in.
    """
    from fairflare.app import console
    from fairflare.app.display import Counter
    from fairflare.core.findings import accepted_codes
    from fairflare.core.order import some

    if kind and task:
        raise UserError("preflight: expected either --kind or --task")
    values, accepted = own_names(parse_pairs(pairs), "task", "run"), accepted_codes(list(accept))
    with Counter("looking at the data") as counter:
        from fairflare.app.preflight import Question, check, leaving

        asked = Question(kind or task or "", classes, values, site, method, accepted, without)
        found = check(path, asked, counter.saw)
    if as_json:
        shown: dict[str, Any] = {site: leaving(path, site, one) for site, one in found.items()}
        console.dump(shown if path.is_dir() else next(iter(shown.values())))
    else:
        console.findings(found, path.is_dir())
    if broken := [site for site, one in found.items() if any(f.level == "error" for f in one)]:
        where = f" at {some(broken)}" if path.is_dir() else ""
        other = len(broken) < len(found) and len(broken) <= FEW
        left = f"; without {_these(broken)}: {' '.join(f'--without {one}' for one in broken)}" if other else ""
        raise RunFailed(f"preflight: the data{where} have errors, no run can start{left}")


def _these(sites: list[str]) -> str:
    return "it" if len(sites) == 1 else "them"


@click.command()
@click.argument("dataset")
@click.argument("source", type=AnyPath(path_type=Path, exists=True, file_okay=False))
@click.argument("dest", type=PATH)
@set_option
@as_json
def prepare(dataset: str, source: Path, dest: Path, pairs: tuple[str, ...], as_json: bool) -> None:
    """Write DATASET, which lies below SOURCE, to DEST as images of one size with a datalist per site.

    DATASET is a task that reads images from disk, e.g. rsna-ich or prostate:paper; --set changes its options. Corrupted
    images that it lacks are made, once and seeded. Nothing is downloaded.
    """
    from fairflare.app import console
    from fairflare.app.display import Counter
    from fairflare.app.preparation import prepare_dataset

    with Counter(f"preparing {dataset}") as counter:
        found = prepare_dataset(dataset, source, dest, own_names(parse_pairs(pairs), "task"), counter.saw)
    console.dump(found) if as_json else console.prepared(found, dest)
