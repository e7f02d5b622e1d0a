# SPDX-License-Identifier: Apache-2.0
"""A comparison: a study of methods and seeds on the same data, its files, and its models evaluated again.

Resampled test patients need outcomes of single patients, which only a comparison has: all its data are on this machine.
Intervals alone are kept. Methods whose results are those of the sites' own
models are left out: these models stay at the sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.manifest import all_versions
from fairflare.core.seeds import derive
from fairflare.engine.files import BEST, MODEL, is_file, read_model, save_json, save_text
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.functional.intervals import Owners, resamples
from fairflare.report.comparable import complete, grouped
from fairflare.report.compare import compare
from fairflare.report.compare_page import comparison_markdown as as_markdown
from fairflare.report.compare_page import render_compare
from fairflare.report.compare_tables import comparison_csv as as_csv
from fairflare.report.fairness import gap, hierarchical, mean, std, worst
from fairflare.report.personal import COUNTED, SHOWN
from fairflare.studies.folders import COMPARISON, COMPARISON_PAGE, check_path, content
from fairflare.studies.runs import predicted, run_once
from fairflare.studies.study import Study
from fairflare.tasks.base import Task

Json = dict[str, Any]
RESAMPLED = ("mean", "worst", "std", "gap")
"""The quantities that resampled patients give."""
Arms = Mapping[str, Mapping[int, tuple[RunConfig, Path]]]
"""Label of a method -> seed -> its run's configuration and folder."""
Runs = Sequence[tuple[RunConfig, Path, Json]]
"""Configuration, folder and summary (the "detail" of report.json) of each run of a comparison."""


def compare_all(
    configs: Sequence[tuple[str, RunConfig]],
    folder: Path,
    *,
    env: str = "local",
    workers: int | None = 1,
    resamples: int = 0,
    lockstep: bool = True,
    **how: Any,
) -> dict[str, Any]:
    """Run every configuration into a folder of its own below ``folder`` and write compare.html and compare.json.

    Runs are made by ``run_once`` with ``how``, those of small models together (``lockstep``). ``resamples``: of test
    patients, see ``resampled``. ``fairflare report`` writes a run's own page.
    """
    study, one = Study(dict(configs)), partial(run_once, env=env, page=False, **how)
    with study.finished(folder, one, workers=workers, env=env, lockstep=lockstep and env == "local") as reports:
        found = [(config, folder / name, reports[name]["detail"]) for name, config in configs]
        comparison = compare([detail for *_, detail in found])
        if resamples:
            comparison = resampled(comparison, _arms_of(comparison, found), resamples)
        save_json(folder / COMPARISON, comparison)
        save_text(folder / COMPARISON_PAGE, render_compare(comparison))
    return comparison


def check_tables(folder: Path) -> None:
    """Raise UserError unless ``folder`` is new, empty or holds the tables of a comparison."""
    check_path(folder)
    if alien := content(folder) if not (folder / COMPARISON).is_file() else []:
        raise UserError(f"--tables {folder}: expected a new folder or tables of a comparison, found {alien[0].name!r}")


def write_comparison(comparison: Mapping[str, Any], folder: Path, command: str) -> None:
    """Write a comparison to ``folder`` with the command that made it: compare.json (everything), compare.csv (the
    quantities) and compare.md."""
    check_tables(folder)
    folder.mkdir(exist_ok=True)
    save_json(folder / COMPARISON, {**comparison, "command": command})
    save_text(folder / "compare.csv", as_csv(comparison))
    save_text(folder / "compare.md", as_markdown(comparison, command, all_versions()))


def _arms_of(comparison: Mapping[str, Any], runs: Runs) -> Arms:
    place = {detail["provenance"]["chain_head"]: (config, folder) for config, folder, detail in runs}
    own = {method["label"] for method in comparison["methods"] if SHOWN in method}
    found: dict[str, dict[int, tuple[RunConfig, Path]]] = {}
    for label, by_seed in grouped(complete([detail for *_, detail in runs])[0]).items():
        heads = {seed: run["provenance"]["chain_head"] for seed, run in by_seed.items() if COUNTED not in run}
        if label not in own and set(comparison["seeds"]) <= set(heads):
            found[label] = {seed: place[heads[seed]] for seed in comparison["seeds"]}
    return found


def resampled(comparison: Json, arms: Arms, resamples: int) -> Json:
    """The comparison with ``bootstrap`` in the paired differences of ``RESAMPLED``: seeds and, within a site, patients.

    A verdict then needs both intervals on the same side of zero. All methods see the same resamples of a seed's
    patients, so that these cancel in the difference. Where every seed has the same test patients, as with natural
    splits or fixed data, all seeds see the same resamples too.
    A method that is not among the ``arms`` gets no interval.
    """
    first = comparison["reference"]
    higher = comparison["higher_is_better"]
    crossed = _same_patients([config for found in arms.values() for config, _ in found.values()])
    values = {
        label: {seed: _quantities(*run, resamples, higher, 0 if crossed else seed) for seed, run in by_seed.items()}
        for label, by_seed in arms.items()
    }
    for method in comparison["methods"][1:]:
        if first not in values or method["label"] not in values:
            continue
        for name in RESAMPLED:
            own, reference = ({s: q[name] for s, q in values[label].items()} for label in (method["label"], first))
            found = hierarchical(own, reference, crossed=crossed) | {"resamples": resamples, "crossed": crossed}
            _add(method["versus_first"][name], found)
    missing = [m["label"] for m in comparison["methods"] if m["label"] not in values]
    return {**comparison, "notes": [*comparison["notes"], *_without("Resampled patients", missing)]}


def _same_patients(configs: Sequence[RunConfig]) -> bool:
    """Whether the test patients are the same with every seed: the task draws nothing, or with one seed of its own."""
    return all(config.options == configs[0].options for config in configs)


def _add(paired: Json, found: Json) -> None:
    """``found`` as "bootstrap"; where it includes zero, or lies on the other side, the verdict is withdrawn."""
    paired["bootstrap"] = found
    sides = [(one["low"] > 0) - (one["high"] < 0) for one in (paired, found) if one["low"] is not None]
    if paired["verdict"] in ("better", "worse") and sides != [sides[0], sides[0]]:
        paired["verdict"] = "cannot be told"


def _quantities(config: RunConfig, folder: Path, resamples: int, higher: bool, drawn_by: int) -> dict[str, list[float]]:
    """Each of ``RESAMPLED`` for every resample of the patients, whose seed is ``drawn_by``; nan where undefined."""
    parts = with_shown_model(config, folder)
    names = site_of_client(config, parts.task)
    data = {name: parts.task.site_data(site) for name, site in names.items()}
    outputs = {name: (*predicted(parts, config, own), own.patients("test")) for name, own in data.items()}
    found: dict[str, list[float]] = {name: [] for name in RESAMPLED}
    for number in range(resamples):
        values = {site: headline_of(parts.task, *_redrawn(drawn_by, site, number, *p)) for site, p in outputs.items()}
        for name, value in summary_of(values, higher).items():
            found[name].append(float("nan") if value is None else value)
    return found


def _redrawn(
    seed: int, site: str, number: int, outputs: Tensor, targets: Tensor, patients: Owners | None
) -> tuple[Tensor, Tensor]:
    """As many of a site's patients, with replacement and all their rows; the same ones for every method."""
    counts = next(resamples(len(targets), 1, derive(seed, "resample", site, number), patients))[0]
    rows = torch.from_numpy(np.repeat(np.arange(len(targets)), counts.astype(np.int64)))
    return outputs[rows], targets[rows]


def summary_of(values: Mapping[str, float | None], higher: bool) -> dict[str, float | None]:
    return {"mean": mean(values), "worst": worst(values, higher)[1], "std": std(values), "gap": gap(values)}


def headline_of(task: Task, outputs: Tensor, targets: Tensor) -> float | None:
    return task.kind.evaluate((task.headline,), outputs, targets, task.classes).get(task.headline)


def with_shown_model(config: RunConfig, folder: Path) -> Parts:
    """The run's parts, with the shared model that its report is about in the network."""
    parts = build_parts(config, at_site=True)
    best = config.headline == "best" and is_file(folder / BEST)
    parts.network.load_state_dict(read_model(folder / (BEST if best else MODEL)))
    return parts


def _without(what: str, labels: Sequence[str]) -> list[str]:
    if not labels:
        return []
    reason = "their results are those of the sites' own models, or not every seed is there"
    return [f"{what} are not given for {', '.join(labels)}: {reason}."]
