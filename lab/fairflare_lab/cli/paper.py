# SPDX-License-Identifier: Apache-2.0
"""The command ``paper``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fairflare.cli import options
from fairflare_lab.cli import exhibits


@click.command()
@click.argument("name", required=False)
@options.listed_text("--seeds", metavar="0,1,2", help="Seeds; the table's own by default.")
@click.option("--rounds", type=int, metavar="N", help="Communication rounds; the preset's by default.")
@click.option(
    "--preset", "presets", multiple=True, metavar="T:PRESET", help="Another preset of task T; repeat for more."
)
@click.option("--data", multiple=True, metavar="KEY", help="Only this data set of a table of several; repeatable.")
@click.option("--stand-in", is_flag=True, help="Measure on the embedded tasks, whatever data are there.")
@options.set_option
@options.workers_option
@options.cache_option
@options.option("--out", type=options.PATH, default=Path("runs"), metavar="DIR", help="Where the runs go.")
@options.as_json
@click.pass_obj
def paper(
    command: str | None, name: str | None, seeds: str | None, presets: Any, workers: Any, out: Path, **choices: Any
) -> options.Told:
    """Make table or figure NAME of a paper, e.g. fedheal-table-5; without NAME, list them all with time and data.

    The paper's data are read from the folder that FAIRFLARE_DATA names; where they are not there, an embedded task
    stands for them, and the caption says so. Runs lie in --out as those of compare; what is finished is reused, and
    the same command goes on after an interruption. Tables are written to --out/papers as Markdown, CSV, HTML
    and JSON, figures as SVG beside them.
    """
    from fairflare_lab.studies.paper_list import paper_rows, preset_pairs

    if name is None:
        return (rows := paper_rows(out)), partial(exhibits.papers, rows)
    from fairflare_lab.papers.declaration import named
    from fairflare_lab.studies.paper import Choices, make_exhibit

    asked = None if seeds is None else tuple(options.parse_seeds(seeds))
    chosen = Choices(seeds=asked, presets=preset_pairs(presets), **choices)
    found = make_exhibit(named(name), out, chosen, command=command or f"fairflare paper {name}", workers=workers)
    return found, partial(exhibits.exhibit, found)
