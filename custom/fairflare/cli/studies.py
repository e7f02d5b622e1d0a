# SPDX-License-Identifier: Apache-2.0
"""Commands that make many runs: compare, contribution, riders, search and paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import console, options
from fairflare.studies.labels import comparison_name, folder_name, on_grid

if TYPE_CHECKING:
    from fairflare.studies.contribution import Question


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD METHOD...")
@options.choices_options
@options.option("--seeds", default="0", metavar="0,1,2", help="Seeds, matched across methods.")
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B,C", help="Every METHOD that has KEY, at each value; repeatable."
)
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@options.env_option
@options.threads_option
@options.spread_options
@options.cache_option
@options.out_option
@click.option("--tables", type=options.PATH, metavar="DIR", help="Also write CSV, Markdown, LaTeX and JSON here.")
@options.option("--pareto", default="mean,worst", metavar="X,Y", help="Two quantities; dominated methods are marked.")
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
@click.option(
    "--trees",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Also N rounds of FLARE's XGBoost, and boosted trees of each site's own; tables with two classes.",
)
@click.option("--solo", is_flag=True, help="Each site also reports its benefit of joining, against a model of its own.")
@click.option("--shared", is_flag=True, help="The shared model's results, also where sites use models of their own.")
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
    pareto: str,
    resample: int,
    test_on: tuple[str, ...],
    trees: int,
    solo: bool,
    **how: Any,
) -> options.Told:
    """Run methods on the same data, the same initial models and matched seeds, and compare them.

    Each seed draws the data anew where a task draws them (not with --fixed-data or --set data_seed=N). A METHOD may
    carry settings of its own: fedism-plus:state=L,q=1. --grid sweeps them: --grid radius=0,0.1,1 --grid beta=0,0.5,1
    runs fedufo nine times and fedavg once. Finished runs found in --out are reused. docs/comparing.md says what each
    number means; --test-on alpha=1 is FedUFO's training with one skew and testing with another.
    """
    from fairflare.cli import results
    from fairflare.engine.setup.config import can_ask, with_benefit
    from fairflare.studies import comparison
    from fairflare.studies.comparison import check_trees
    from fairflare.studies.study import arms

    common = {**choices, "fixed_data": fixed_data}
    configs = arms(on_grid(methods, grid), task, options.parse_seeds(seeds), **common)
    options.say_reasons(configs[0][1])
    if solo:
        configs = [(name, with_benefit(config, can_ask(config))) for name, config in configs]
    folder = out or Path("runs") / comparison_name(task, {**common, "env": env, **({"solo": True} if solo else {})})
    front, elsewhere = options.parse_pareto(pareto), comparison.parse_options(test_on)
    for one in elsewhere:
        comparison.check_elsewhere(configs[0][1], one)
    if trees:
        check_trees(configs[0][1])
    if tables:
        comparison.check_tables(tables)
    again = partial(comparison.look_again, resamples=resample, options=elsewhere, trees=trees)
    found = comparison.compare_all(configs, folder, env=env, pareto=front, again=again, **how)
    if tables:
        comparison.write_comparison(found, tables, command or "fairflare compare")
    return found, partial(results.comparison, found, folder)


def _question(methods: tuple[str, ...], seeds: str, **asked: Any) -> Question:
    from fairflare.studies.contribution import Question

    chosen, others = tuple(options.parse_seeds(seeds)), tuple(on_grid(methods, ())[1:])
    return Question(methods[0], seeds=chosen, others=others, **asked)


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@options.choices_options
@options.option("--seeds", "--seed", default="0", metavar="0,1,2", help="Each with data of its own.")
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
    from fairflare.cli import results
    from fairflare.studies.contribution import measure_contribution

    question = _question(**asked)
    which = f"seed{question.seeds[0]}" if len(question.seeds) == 1 else "seeds"
    name = f"contribution-{folder_name(question.method)}-{question.task.replace(':', '-')}-{which}"
    folder = out or Path("runs") / name
    found = measure_contribution(question, folder, force=force, workers=workers)
    return found, partial(results.contribution, found, folder)


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD [METHOD...]")
@options.choices_options
@options.option("--seeds", default="0", metavar="0,1,2", help="Each with data and a rider of its own.")
@options.option("--kinds", default="zeros,noise,stale,copied", metavar="A,B", help="Also: repeated.")
@click.option("--fixed-data", is_flag=True, help="The same data for every seed, where a task draws them.")
@options.grid_options
def riders(kinds: str, out: Path | None, force: bool, workers: Any, **asked: Any) -> options.Told:
    """Simulate free riders under each METHOD: who finds them, and who is accused instead.

    One site, another for each seed, sends zeros, noise, the last global step, another site's update, or trains with one
    image again and again. Detectors see what the server sees. docs/comparing.md says what each of them marks.
    """
    from fairflare.cli import results
    from fairflare.studies.free_riders import measure_riders

    question = _question(**asked)
    shared = {**question.choices, "fixed_data": question.fixed_data}
    folder = out or Path("runs") / comparison_name(question.task, shared, "riders")
    wanted = [kind.strip() for kind in kinds.split(",")]
    found = measure_riders(question, wanted, folder, force=force, workers=workers)
    return found, partial(results.riders, found, folder)


@click.command()
@click.argument("method")
@options.choices_options
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
@options.spread_options
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
    from fairflare.studies.search import Search, parse_over, run_search

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


@click.command()
@click.argument("name", required=False)
@click.option("--seeds", metavar="0,1,2", help="Seeds; the table's own by default.")
@options.rounds_option
@click.option(
    "--preset", "presets", multiple=True, metavar="T:PRESET", help="Another preset of task T; repeat for more."
)
@click.option("--data", multiple=True, metavar="KEY", help="Only this data set of a table of several; repeatable.")
@click.option("--stand-in", is_flag=True, help="Measure on the embedded tasks, whatever data are there.")
@options.set_option
@options.spread_options
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
    the same command goes on after an interruption. Tables are written to --out/papers as Markdown, CSV, LaTeX, HTML
    and JSON, figures as SVG beside them.
    """
    from fairflare.studies.paper_list import paper_rows, preset_pairs

    if name is None:
        return (rows := paper_rows(out)), partial(console.papers, rows)
    from fairflare.papers.declaration import became, named
    from fairflare.studies.paper import Choices, make_exhibit

    if said := became(name):
        click.echo(said, err=True)

    asked = None if seeds is None else tuple(options.parse_seeds(seeds))
    chosen = Choices(seeds=asked, presets=preset_pairs(presets), **choices)
    found = make_exhibit(named(name), out, chosen, command=command or f"fairflare paper {name}", workers=workers)
    return found, partial(console.exhibit, found)
