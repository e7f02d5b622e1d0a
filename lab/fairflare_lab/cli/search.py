# SPDX-License-Identifier: Apache-2.0
"""The command ``search``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairflare.cli import options
from fairflare.cli.choices import choices_options
from fairflare.studies.labels import comparison_name


@click.command()
@click.argument("method")
@choices_options
@click.option("--over", multiple=True, metavar="KEY=LOW..HIGH[:log]", help="A setting to search; or KEY=A,B,C. Repeat.")
@options.option(
    "--objective",
    type=click.Choice(["mean", "worst", "trade-off"]),
    default="mean",
    help="What is made best, of the headline metric on the sites' validation splits.",
)
@options.option("--weight", type=click.FloatRange(0, 1), default=0.5, help="Of the trade-off.")
@options.option("--trials", type=click.IntRange(1, 10_000), default=20, metavar="N", help="In all.")
@options.option("--seed", type=int, default=0, help="Of every trial's run, and of the search.")
@options.workers_option
@options.cache_option
@options.out_option
@options.as_json
def search(
    task: str, choices: Any, over: tuple[str, ...], seed: int, workers: Any, out: Path | None, **asked: Any
) -> options.Told:
    """Search METHOD's settings with Optuna: trials see no test example, the best is tested once at the end.

    The score is mean, worst site, or mean - w (mean - worst) of the final model on the sites' own validation splits.
    The same command goes on where it was stopped; a larger --trials adds to it.
    """
    from fairflare.report.values import label
    from fairflare_lab.studies.search import Search, parse_over, run_search

    choices = {**choices, "seed": seed}
    wanted = Search(task=task, space=parse_over(over), choices=choices, **asked)
    told_apart = {**choices, "over": list(over), "by": (wanted.method, wanted.objective, wanted.weight)}
    folder = out or Path("runs") / comparison_name(task, told_apart, "search")
    found = run_search(wanted, folder, workers=workers)
    best, test = found["best"], found["test"]
    settings = ", ".join(f"{key}={value}" for key, value in best["values"].items())
    said = f"""best of {len(found["trials"])} trials: {settings}
validation: {found["objective"]} {label(found["metric"], {})} {best["score"]:.4f}
test, once: mean {test["mean"]:.4f}, worst site ({test["worst_site"]}) {test["worst"]:.4f}
run it:     {found["command"]}
page:       {folder / "search.html"}"""
    return found, said
