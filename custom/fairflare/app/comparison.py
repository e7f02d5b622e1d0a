# SPDX-License-Identifier: Apache-2.0
"""A comparison: a study of methods and seeds on the same data, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.app.folders import COMPARISON, COMPARISON_PAGE, check_path, content
from fairflare.app.parallel import Workers
from fairflare.app.runs import run_once
from fairflare.app.study import Study
from fairflare.core.errors import UserError
from fairflare.core.versions import all_versions
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.state import save_json, save_text
from fairflare.report.compare import PARETO, compare
from fairflare.report.compare_tables import WHOLE, comparison_tables, main_table
from fairflare.report.compare_tables import comparison_csv as as_csv
from fairflare.report.compare_tables import comparison_markdown as as_markdown
from fairflare.report.page import render_compare
from fairflare.report.table_files import as_csv as tables_as_csv
from fairflare.report.table_files import as_latex


def compare_all(
    configs: Sequence[tuple[str, RunConfig]],
    folder: Path,
    *,
    env: str = "local",
    force: bool = False,
    sim_threads: int | None = None,
    workers: Workers | None = 1,
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
    study, one = Study(dict(configs)), partial(run_once, env=env, force=force, sim_threads=sim_threads)
    with study.finished(folder, one, workers=workers, env=env) as reports:
        found = [(config, folder / name, reports[name]["detail"]) for name, config in configs]
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
