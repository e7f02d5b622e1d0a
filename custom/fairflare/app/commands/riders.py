# SPDX-License-Identifier: Apache-2.0
"""`fairflare riders`: simulated free riders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.arguments import comparison_name, on_grid, parse_seeds
from fairflare.app.options import as_json, cache_option, choices_options, force_option, out_option, spread_options

if TYPE_CHECKING:
    from fairflare.app.parallel import Workers


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@choices_options
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Each with data and a rider of its own.")
@click.option("--kinds", default="zeros,noise,stale,copied", show_default=True, metavar="A,B", help="Also: repeated.")
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@spread_options
@cache_option
@out_option
@force_option
@as_json
def riders(
    methods: tuple[str, ...],
    task: str,
    choices: dict[str, Any],
    seeds: str,
    kinds: str,
    fixed_data: bool,
    workers: Workers | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Simulate free riders under each METHOD: who finds them, and who is accused instead.

    One site, another for each seed, sends zeros, noise, the last global step, another site's update, or trains with one
    image again and again. Detectors see what the server sees. docs/comparing.md says what each of them marks.
    """
    from fairflare.app import console, results
    from fairflare.app.contribution import Question
    from fairflare.app.free_riders import measure_riders

    others = tuple(on_grid(methods, ())[1:])
    question = Question(methods[0], task, tuple(parse_seeds(seeds)), others, fixed_data=fixed_data, choices=choices)
    folder = out or Path("runs") / comparison_name(task, {**choices, "fixed_data": fixed_data}).replace(
        "compare", "riders", 1
    )
    wanted = [kind.strip() for kind in kinds.split(",")]
    found = measure_riders(question, wanted, folder, force=force, workers=workers)
    console.dump(found) if as_json else results.riders(found, folder)
