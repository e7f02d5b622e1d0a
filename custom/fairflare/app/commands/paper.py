# SPDX-License-Identifier: Apache-2.0
"""`fairflare paper`: a paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairflare.app.arguments import parse_pairs, parse_seeds
from fairflare.app.options import PATH, as_json, cache_option, rounds_option, set_option, spread_options

if TYPE_CHECKING:
    from fairflare.app.parallel import Workers


@click.command()
@click.argument("name", required=False)
@click.option("--seeds", metavar="0,1,2", help="Seeds; the table's own by default.")
@rounds_option
@click.option(
    "--preset", "presets", multiple=True, metavar="T:PRESET", help="Another preset of task T; repeat for more."
)
@click.option("--data", multiple=True, metavar="KEY", help="Only this data set of a table of several; repeatable.")
@click.option("--stand-in", is_flag=True, help="Measure on the embedded tasks, whatever data are there.")
@set_option
@spread_options
@cache_option
@click.option("--out", type=PATH, default=Path("runs"), show_default=True, metavar="DIR", help="Where the runs go.")
@as_json
@click.pass_obj
def paper(
    command: str | None,
    name: str | None,
    seeds: str | None,
    rounds: int | None,
    presets: tuple[str, ...],
    data: tuple[str, ...],
    stand_in: bool,
    pairs: tuple[str, ...],
    workers: Workers | None,
    out: Path,
    as_json: bool,
) -> None:
    """Make table or figure NAME of a paper, e.g. fedheal-5; without NAME, list them all with time and data.

    The paper's data are read from the folder that FAIRFLARE_DATA names; where they are not there, an embedded task
    stands for them, and the caption says so. Runs lie in --out as those of compare; what is finished is reused, and
    the same command goes on after an interruption. Tables are written to --out/papers as Markdown, CSV, LaTeX, HTML
    and JSON, figures as SVG beside them.
    """
    from fairflare.app import console
    from fairflare.app.paper_list import paper_rows, preset_pairs, show_papers, show_written

    if name is None:
        rows = paper_rows(out)
        console.dump(rows) if as_json else show_papers(rows)
        return
    from fairflare.app.paper import make_exhibit
    from fairflare.app.paper_plan import Choices
    from fairflare.papers.index import named

    chosen = Choices(
        seeds=tuple(parse_seeds(seeds)) if seeds is not None else None,
        rounds=rounds,
        values=parse_pairs(pairs),
        presets=preset_pairs(presets),
        stand_in=stand_in,
        data=data,
    )
    found = make_exhibit(named(name), out, chosen, command=command or f"fairflare paper {name}", workers=workers)
    console.dump(found) if as_json else show_written(found)
