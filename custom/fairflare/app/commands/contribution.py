# SPDX-License-Identifier: Apache-2.0
"""`fairflare contribution`: what each site contributes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.arguments import contribution_name, on_grid, parse_seeds
from fairflare.app.options import as_json, cache_option, choices_options, force_option, out_option, spread_options

if TYPE_CHECKING:
    from fairflare.app.parallel import Workers


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@choices_options
@click.option("--seeds", "--seed", default="0", show_default=True, metavar="0,1,2", help="Each with data of its own.")
@click.option("--shapley", is_flag=True, help="Also train coalitions: all up to 6 sites, else those of drawn orders.")
@click.option(
    "--permutations",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Orders in which more than 6 sites join.",
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@spread_options
@cache_option
@out_option
@force_option
@as_json
def contribution(
    methods: tuple[str, ...],
    task: str,
    choices: dict[str, Any],
    seeds: str,
    shapley: bool,
    permutations: int,
    fixed_data: bool,
    workers: Workers | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure each site's contribution: METHOD once with all sites and once without each of them.

    With several seeds each site's drop has an interval and a p value. Every further METHOD is run with all
    sites, and its weights are compared with what sites contribute, as those of the first one are. Finished runs found
    in --out are reused, so that an interrupted measurement goes on where it stopped.
    """
    from fairflare.app import console, results
    from fairflare.app.contribution import Question, measure_contribution

    chosen, others = tuple(parse_seeds(seeds)), tuple(on_grid(methods, ())[1:])
    found = Question(methods[0], task, chosen, others, shapley, permutations, fixed_data, choices)
    folder = out or Path("runs") / contribution_name(methods[0], task, chosen)
    result = measure_contribution(found, folder, force=force, workers=workers)
    console.dump(result) if as_json else results.contribution(result, folder)
