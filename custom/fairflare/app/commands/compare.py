# SPDX-License-Identifier: Apache-2.0
"""`fairflare compare`: methods on the same data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.arguments import comparison_name, on_grid, parse_pareto, parse_seeds
from fairflare.app.options import (
    PATH,
    as_json,
    cache_option,
    choices_options,
    env_option,
    force_option,
    out_option,
    say_reasons,
    spread_options,
    threads_option,
)

if TYPE_CHECKING:
    from fairflare.app.parallel import Workers


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD METHOD...")
@choices_options
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Seeds, matched across methods.")
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B,C", help="Every METHOD that has KEY, at each value; repeatable."
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@env_option
@threads_option
@spread_options
@cache_option
@out_option
@click.option("--tables", type=PATH, metavar="DIR", help="Also write CSV, Markdown, LaTeX and JSON here.")
@click.option(
    "--pareto",
    default="mean,worst",
    show_default=True,
    metavar="X,Y",
    help="Two quantities; dominated methods are marked.",
)
@click.option(
    "--resample",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Also intervals over seeds and, N times for each, over resampled test patients; 200 will do.",
)
@click.option(
    "--test-on",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Also score the final models on the test patients as these options of the task deal them; repeatable.",
)
@click.option("--solo", is_flag=True, help="Each site also says what joining gives it, against a model trained alone.")
@click.option("--shared", is_flag=True, help="The shared model's results, also where sites use models of their own.")
@force_option
@as_json
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
    sim_threads: int | None,
    workers: Workers | None,
    out: Path | None,
    tables: Path | None,
    pareto: str,
    resample: int,
    test_on: tuple[str, ...],
    solo: bool,
    shared: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Run methods on the same data, the same initial models and matched seeds, and compare them.

    Each seed draws the data anew where a task draws them (not with --fixed-data or --set data_seed=N). A METHOD may
    carry settings of its own: fedism-plus:state=L,q=1. --grid sweeps them: --grid radius=0,0.1,1 --grid beta=0,0.5,1
    runs fedufo nine times and fedavg once. Finished runs found in --out are reused. docs/comparing.md says what each
    number means; --test-on alpha=1 is FedUFO's training with one skew and testing with another.
    """
    from fairflare.app import console, results
    from fairflare.app.comparison import check_tables, compare_all, write_comparison
    from fairflare.app.reevaluation import check_elsewhere, look_again, parse_options
    from fairflare.app.study import arms
    from fairflare.engine.setup.config import can_ask, with_benefit

    common = {**choices, "fixed_data": fixed_data}
    configs = arms(on_grid(methods, grid), task, parse_seeds(seeds), **common)
    say_reasons(configs[0][1])
    if solo:
        configs = [(name, with_benefit(config, can_ask(config))) for name, config in configs]
    folder = out or Path("runs") / comparison_name(task, {**common, "env": env, **({"solo": True} if solo else {})})
    front, options = parse_pareto(pareto), parse_options(test_on)
    for one in options:
        check_elsewhere(configs[0][1], one)
    if tables:
        check_tables(tables)
    comparison = compare_all(
        configs,
        folder,
        env=env,
        force=force,
        sim_threads=sim_threads,
        workers=workers,
        pareto=front,
        shared=shared,
        again=partial(look_again, resamples=resample, options=options),
    )
    if tables:
        write_comparison(comparison, tables, command or "fairflare compare")
    console.dump(comparison) if as_json else results.comparison(comparison, folder)
