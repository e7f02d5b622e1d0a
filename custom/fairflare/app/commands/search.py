# SPDX-License-Identifier: Apache-2.0
"""`fairflare search`: a method's settings by validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.arguments import comparison_name
from fairflare.app.options import as_json, cache_option, choices_options, out_option, spread_options

if TYPE_CHECKING:
    from fairflare.app.parallel import Workers


@click.command()
@click.argument("method")
@choices_options
@click.option("--over", multiple=True, metavar="KEY=LOW..HIGH[:log]", help="A setting to search; or KEY=A,B,C. Repeat.")
@click.option(
    "--objective",
    type=click.Choice(["mean", "worst", "trade-off"]),
    default="mean",
    show_default=True,
    help="What is made best, of the headline metric on the sites' validation splits.",
)
@click.option("--weight", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Of the trade-off.")
@click.option("--trials", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="In all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of every trial's run, and of the search.")
@spread_options
@cache_option
@out_option
@as_json
def search(
    method: str,
    task: str,
    choices: dict[str, Any],
    over: tuple[str, ...],
    objective: str,
    weight: float,
    trials: int,
    seed: int,
    workers: Workers | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Search METHOD's settings with Optuna: trials see no test example, the best is tested once at the end.

    The score is mean, worst site, or mean - w (mean - worst) of the final model on the sites' own validation splits.
    The same command goes on where it was stopped; a larger --trials adds to it.
    """
    from fairflare.app import console
    from fairflare.app.search import Search, run_search
    from fairflare.app.search_space import parse_over

    choices = {**choices, "seed": seed}
    wanted = Search(method, task, parse_over(over), objective, weight, trials, choices)
    name = comparison_name(task, {**choices, "over": list(over), "by": (method, objective, weight)})
    folder = out or Path("runs") / name.replace("compare", "search", 1)
    found = run_search(wanted, folder, workers=workers)
    console.dump(found) if as_json else _say(found, folder)


def _say(found: dict[str, Any], folder: Path) -> None:
    from fairflare.app import console

    best, test = found["best"], found["test"]
    settings = ", ".join(f"{key}={value}" for key, value in best["values"].items())
    console.say(f"best of {len(found['trials'])} trials: {settings}")
    console.say(f"validation: {found['objective']} {found['metric']} {best['score']:.4f}")
    console.say(f"test, once: mean {test['mean']:.4f}, worst site ({test['worst_site']}) {test['worst']:.4f}")
    console.say(f"run it:     {found['command']}")
    console.say(f"page:       {folder / 'search.html'}")
