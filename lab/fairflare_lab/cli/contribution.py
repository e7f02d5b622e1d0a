# SPDX-License-Identifier: Apache-2.0
"""The commands ``contribution`` and ``riders``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import options
from fairflare.cli.choices import choices_options
from fairflare.studies.labels import comparison_name, folder_name, on_grid

if TYPE_CHECKING:
    from fairflare_lab.studies.contribution import Question


def _question(methods: tuple[str, ...], seeds: str, **asked: Any) -> Question:
    from fairflare_lab.studies.contribution import Question

    chosen, others = tuple(options.parse_seeds(seeds)), tuple(on_grid(methods, ())[1:])
    return Question(methods[0], seeds=chosen, others=others, **asked)


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@choices_options
@options.listed_text("--seeds", "--seed", default=["0"], metavar="0,1,2", help="Each with data of its own.")
@click.option("--shapley", is_flag=True, help="Also train coalitions: all up to 6 sites, else those of drawn orders.")
@options.option(
    "--permutations",
    type=click.IntRange(2, 1000),
    default=10,
    metavar="N",
    help="Orders in which more than 6 sites join.",
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@options.grid_options
def contribution(out: Path | None, force: bool, workers: Any, **asked: Any) -> options.Told:
    """Measure each site's contribution: METHOD once with all sites and once without each of them.

    With several seeds each site's drop has an interval and a p value. Every further METHOD is run with all
    sites, and its weights are compared with what sites contribute, as those of the first one are. Finished runs found
    in --out are reused, so that an interrupted measurement goes on where it stopped.
    """
    from fairflare_lab.cli import contribution_tables as results
    from fairflare_lab.studies.contribution import measure_contribution

    question = _question(**asked)
    which = f"seed{question.seeds[0]}" if len(question.seeds) == 1 else "seeds"
    name = f"contribution-{folder_name(question.method)}-{question.task.replace(':', '-')}-{which}"
    folder = out or Path("runs") / name
    found = measure_contribution(question, folder, force=force, workers=workers)
    return found, partial(results.contribution, found, folder)


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@choices_options
@options.listed_text("--seeds", default=["0"], metavar="0,1,2", help="Each with data and a rider of its own.")
@options.listed_text("--kinds", default=["zeros,noise,stale,copied"], metavar="A,B", help="Also: repeated.")
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@options.grid_options
def riders(kinds: str, out: Path | None, force: bool, workers: Any, **asked: Any) -> options.Told:
    """Simulate free riders under each METHOD: who finds them, and who is accused instead.

    One site, another for each seed, sends zeros, noise, the last global step, another site's update, or trains with one
    image again and again. Detectors see what the server sees. docs/comparing.md says what each of them marks.
    """
    from fairflare_lab.cli import contribution_tables as results
    from fairflare_lab.studies.free_riders import measure_riders

    question = _question(**asked)
    shared = {**question.choices, "fixed_data": question.fixed_data}
    folder = out or Path("runs") / comparison_name(question.task, shared, "riders")
    wanted = [kind.strip() for kind in kinds.split(",")]
    found = measure_riders(question, wanted, folder, force=force, workers=workers)
    return found, partial(results.riders, found, folder)
