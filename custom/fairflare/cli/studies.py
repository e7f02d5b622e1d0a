# SPDX-License-Identifier: Apache-2.0
"""The command ``compare``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fairflare.cli import options
from fairflare.cli.choices import Grouped, choices_options
from fairflare.studies.labels import comparison_name, on_grid
from fairflare.studies.run_file import say_reasons


@click.command(cls=Grouped)
@click.argument("methods", nargs=-1, required=True, metavar="METHOD METHOD...")
@choices_options
@options.listed_text("--seeds", default=["0"], metavar="0,1,2", help="Seeds, matched across methods.")
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B,C", help="Every METHOD that has KEY, at each value; repeatable."
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@options.env_option
@options.workers_option
@options.cache_option
@options.out_option
@click.option("--tables", type=options.PATH, metavar="DIR", help="Also write CSV, Markdown and JSON here.")
@click.option(
    "--resample",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Also intervals over seeds and, N times for each, over resampled test patients; 200 will do.",
)
@options.one_by_one_option
@click.option("--solo", is_flag=True, help="Each site also reports its benefit of joining, against a model of its own.")
@options.force_option
@options.as_json
@click.pass_obj
def compare(
    command: str | None,
    methods: tuple[str, ...],
    task: str,
    choices: dict[str, Any],
    seeds: str,
    grid: tuple[str, ...],
    fixed_data: bool,
    env: str,
    out: Path | None,
    tables: Path | None,
    resample: int,
    one_by_one: bool,
    solo: bool,
    **how: Any,
) -> options.Told:
    """Run methods on the same data, the same initial models and matched seeds, and compare them.

    Each seed draws the data anew where a task draws them (not with --fixed-data or --set data_seed=N). A METHOD may
    carry settings of its own: fedism-plus:state=L,q=1. --grid sweeps them: --grid radius=0,0.1,1 --grid beta=0,0.5,1
    runs fedufo nine times and fedavg once. Finished runs found in --out are reused. docs/comparing.md says what each
    number means.
    """
    from fairflare.cli import results
    from fairflare.engine.setup.config import can_ask, with_benefit
    from fairflare.studies import comparison
    from fairflare.studies.study import arms

    common = {**choices, "fixed_data": fixed_data}
    configs = arms(on_grid(methods, grid), task, options.parse_seeds(seeds), **common)
    say_reasons(configs[0][1])
    if solo:
        configs = [(name, with_benefit(config, can_ask(config))) for name, config in configs]
    folder = out or Path("runs") / comparison_name(task, {**common, "env": env, **({"solo": True} if solo else {})})
    if tables:
        comparison.check_tables(tables)
    found = comparison.compare_all(configs, folder, env=env, lockstep=not one_by_one, resamples=resample, **how)
    if tables:
        comparison.write_comparison(found, tables, command or "fairflare compare")
    return found, partial(results.comparison, found, folder)
