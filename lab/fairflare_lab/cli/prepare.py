# SPDX-License-Identifier: Apache-2.0
"""The command ``prepare``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from fairflare.cli import options
from fairflare.studies.run_file import Values
from fairflare_lab.cli.prepared import prepared


@click.command()
@click.argument("dataset")
@click.argument("source", type=options.AnyPath(path_type=Path, exists=True, file_okay=False))
@click.argument("dest", type=options.PATH)
@options.set_option
@options.as_json
def prepare(dataset: str, source: Path, dest: Path, values: Values) -> options.Told:
    """Write DATASET, which lies below SOURCE, to DEST as images of one size with a datalist per site.

    DATASET is a task that reads images from disk, e.g. rsna-ich or prostate:paper; --set changes its options. Corrupted
    images that it lacks are made, once and seeded. Nothing is downloaded.
    """
    from fairflare.studies.display import Counter
    from fairflare_lab.studies.prepare import prepare_dataset

    with Counter(f"preparing {dataset}") as counter:
        found = prepare_dataset(dataset, source, dest, options.own_names(values, "task"), counter.saw)
    return found, partial(prepared, found, dest)
