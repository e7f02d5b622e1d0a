# SPDX-License-Identifier: Apache-2.0
"""A comparison: every method with every seed, each seed on data of its own, which all methods share, and its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.app.arguments import folder_name, split_method
from fairflare.app.folders import COMPARISON, COMPARISON_PAGE, check_collection, check_path, content, created, opened
from fairflare.app.parallel import budget, run_all
from fairflare.app.references import same_headline
from fairflare.app.runs import run_once
from fairflare.build import tasks
from fairflare.build.config import RunConfig, make_config
from fairflare.core.errors import UserError
from fairflare.core.seeds import derive
from fairflare.core.versions import all_versions
from fairflare.federation.state import save_json, save_text
from fairflare.report.compare import PARETO, compare
from fairflare.report.compare_tables import WHOLE, comparison_tables, main_table
from fairflare.report.page import render_compare
from fairflare.report.table_files import as_csv as tables_as_csv
from fairflare.report.table_files import as_latex
from fairflare.report.tables import as_csv, as_markdown

DATA_SEED = "data_seed"
SHARED = ("group_by", "leave_out", "clients")
"""What the methods of one comparison have alike, beside the data."""


def arms(
    labels: Sequence[str],
    task: str,
    seeds: Sequence[int],
    *,
    rounds: int | None = None,
    sites: int | None = None,
    values: Mapping[str, Any] | None = None,
    fixed_data: bool = False,
) -> list[tuple[str, RunConfig]]:
    """(folder name, run) of every method with every seed.

    With seed s the task's data are drawn with ``data_seed_of(s)``, the same for all methods, where the task draws
    anything (``Task.drawn``) and nothing else is asked for.

    Args:
        labels: methods, each with settings of its own if any: "fedism-plus:state=L,q=1".
        task: name or name:preset.
        seeds: different numbers >= 0.
        rounds: T, the preset's when None.
        sites: number of sites, the preset's when None.
        values: settings of all methods; a ``data_seed`` among them fixes the data.
        fixed_data: every seed has the preset's own data.

    Raises:
        UserError: a setting is wrong, or a method would not have the others' data, groups or sites.
    """
    shared, found = dict(values or {}), []
    fixed_data = fixed_data or _sets_data_seed(shared)
    for label in labels:
        name, own = split_method(label)
        if _sets_data_seed(own):
            raise UserError(f"{DATA_SEED}: expected the same for all methods (--set {DATA_SEED}=N), got {label}")
        for seed in seeds:
            made = partial(make_config, name, task, rounds=rounds, sites=sites, seed=seed, over=own)
            config = made(values=shared)
            if drawn := {} if fixed_data else data_values(config, shared, seed):
                config = made(values=shared | drawn)
            found.append((f"{folder_name(label)}-seed{seed}", config))
    _require_same_data(found)
    return found if "headline" in " ".join((*shared, *labels)) else same_headline(found)


def compare_all(
    configs: Sequence[tuple[str, RunConfig]],
    folder: Path,
    *,
    env: str = "local",
    force: bool = False,
    sim_threads: int | None = None,
    workers: int | None = 1,
    pareto: tuple[str, str] = PARETO,
    again: Callable[..., dict[str, Any]] = lambda comparison, runs: comparison,
    shared: bool = False,
) -> dict[str, Any]:
    """Run every configuration into a folder of its own below ``folder`` and write compare.html and compare.json.

    Args:
        configs: (folder name, run); a finished run of the very same configuration found there is not run again.
        folder: holds the comparison; one that holds something else is refused.
        env: "local" or "sim".
        force: runs everything again.
        sim_threads: see ``execute``.
        workers: processes that compute side by side, see ``parallel.budget``.
        pareto: the two quantities of the Pareto front, see ``compare``.
        again: adds to a comparison what it finds in the runs, see ``second_look.look_again``.
        shared: the shared models' results, also where sites use models of their own, see ``compare``.
    """
    check_collection(folder)
    at_once = budget(workers, env, configs)
    with created(folder), opened(folder):
        one = partial(run_once, env=env, force=force, sim_threads=sim_threads)
        summaries = run_all(configs, folder, one, at_once)
        found = [(config, folder / name, summary["detail"]) for (name, config), summary in zip(configs, summaries)]
        comparison = again(compare([detail for *_, detail in found], pareto, shared), found)
        save_json(folder / COMPARISON, comparison)
        save_text(folder / COMPARISON_PAGE, render_compare(comparison))
    return comparison


def check_tables(folder: Path) -> None:
    """Raise UserError unless ``folder`` is new, empty or holds the tables of a comparison."""
    check_path(folder)
    if alien := content(folder) if not (folder / COMPARISON).is_file() else []:
        raise UserError(f"--tables {folder}: expected a new folder or tables of a comparison, found {alien[0].name!r}")


def write_comparison(comparison: Mapping[str, Any], folder: Path, command: str) -> None:
    """Write a comparison to ``folder``, with the command that made it.

    compare.json (everything), compare.csv (the quantities), compare.md, compare.tex, and tables.csv (every table's
    cells: sites, metrics, domains, statistics).
    """
    check_tables(folder)
    folder.mkdir(exist_ok=True)
    save_json(folder / COMPARISON, {**comparison, "command": command})
    save_text(folder / "compare.csv", as_csv(comparison))
    save_text(folder / "compare.md", as_markdown(comparison, command, all_versions()))
    tables = [main_table(comparison), *comparison_tables(comparison, most_rows=WHOLE)]
    save_text(folder / "compare.tex", as_latex(*tables))
    save_text(folder / "tables.csv", tables_as_csv(*tables))


def _sets_data_seed(values: Mapping[str, Any]) -> bool:
    return DATA_SEED in values or f"task.{DATA_SEED}" in values


def data_seed_of(seed: int) -> int:
    """The ``data_seed`` of a comparison's seed, in 0..10**9-1.

    Not the seed itself: a partition that leaves a site too small is drawn again with the next number, so that two
    neighbouring ones may be the same partition.
    """
    return derive(seed, "data") % 10**9


def data_values(config: RunConfig, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The setting that draws the data of a seed; {} where the task draws nothing or ``values`` fix it."""
    return {} if _sets_data_seed(values) or not _draws(config) else {f"task.{DATA_SEED}": data_seed_of(seed)}


def _draws(config: RunConfig) -> bool:
    return bool(tasks.load(config.task, config.preset, **config.options).drawn())


def _require_same_data(found: Sequence[tuple[str, RunConfig]]) -> None:
    """Raise UserError, before anything runs, where runs of one seed differ in more than the method and its training."""
    first: dict[int, tuple[str, RunConfig]] = {}
    for name, config in found:
        other, twin = first.setdefault(config.seed, (name, config))
        kinds = [(config.options, twin.options), (dataclasses.asdict(config), dataclasses.asdict(twin))]
        for keys, (own, its) in zip((sorted(config.options), SHARED), kinds):
            for key in keys:
                if own[key] != its[key]:
                    raise UserError(
                        f"{key}: expected the same for all methods of a comparison (--set {key}=...), "
                        f"got {own[key]} in {name} and {its[key]} in {other}"
                    )
