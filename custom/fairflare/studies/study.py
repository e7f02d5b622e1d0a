# SPDX-License-Identifier: Apache-2.0
"""A study: a grid of methods, tasks, seeds and settings, each run in a folder of its own, and their results as tables.

``compare``, ``contribution``, ``riders``, ``search`` and ``paper`` are questions to a study.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import UserError
from fairflare.core.manifest import all_versions
from fairflare.core.seeds import derive
from fairflare.core.validation import expected
from fairflare.core.workers import raise_here
from fairflare.engine.files import CONFIG, read_json
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.report import REPORT
from fairflare.report.frames import machine
from fairflare.report.personal import as_used
from fairflare.report.write import verify_run
from fairflare.studies.folders import check_collection, created, is_complete, opened
from fairflare.studies.labels import DATA_SEED, as_text, flat_settings, folder_name, on_grid, split_method
from fairflare.studies.parallel import Failure, One, Report, budget, run_all
from fairflare.studies.runs import as_before, run_once

if TYPE_CHECKING:
    import pandas

Reports = dict[str, Report]
SHARED = ("group_by", "leave_out", "clients")
"""What the methods of a grid have alike, beside the data."""


def arms(
    labels: Sequence[str], task: str, seeds: Sequence[int], *, fixed_data: bool = False, **choices: Any
) -> list[tuple[str, RunConfig]]:
    """(folder name, run) of every method with every seed; ``choices`` as of ``config_of``.

    With seed s the task's data are drawn with ``data_seed_of(s)``, the same for all methods, where the task draws
    anything (``Task.drawn``) and no ``data_seed`` is among the ``values``, which are settings of all methods. Raises
    UserError: a setting is wrong, or a method would not have the others' data, groups or sites.
    """
    found = []
    expected("seeds", not isinstance(seeds, int), "several numbers, e.g. [0, 1]", seeds)
    for label in labels:
        if _sets_data_seed(split_method(label)[1]):
            raise UserError(f"{DATA_SEED}: expected the same for all methods (--set {DATA_SEED}=N), got {label}")
        for seed in seeds:
            config = config_of(label, task, seed, choices, draw=not fixed_data)
            found.append((f"{folder_name(label)}-seed{seed}", config))
    _require_same_data(found)
    return found if "headline" in " ".join((*(choices.get("values") or ()), *labels)) else same_headline(found)


def config_of(
    label: str, task: str, seed: int, choices: Mapping[str, Any], *, draw: bool, over: Mapping[str, Any] | None = None
) -> RunConfig:
    """The run of a METHOD label with a seed.

    With ``draw`` it draws its data with the seed, too, where the task draws any and no ``data_seed`` is given.
    ``choices``: rounds, sites and values of ``make_config``; ``over``: settings that win over all others.
    """
    (name, own), values = split_method(label), dict(choices.get("values") or {})
    made = partial(make_config, name, task, seed=seed, over={**own, **(over or {})})
    config = made(**{**choices, "values": values})
    if not draw or _sets_data_seed(values) or not tasks.load(config.task, config.preset, **config.options).drawn():
        return config
    return made(**{**choices, "values": {**values, f"task.{DATA_SEED}": data_seed_of(seed)}})


class Study:
    """Runs that belong together, each in a folder of its own below the study's.

    Example:
        >>> from fairflare import Study                                                   # doctest: +SKIP
        >>> study = Study.grid(["fedavg", "qffl"], "support2", seeds=range(3), grid={"q": [0.5, 2]})   # doctest: +SKIP
        >>> study.fit("runs/study", workers=2).table                                      # doctest: +SKIP

    Attributes:
        runs: path of a run's folder below the study's -> run.
        about: path -> what tells the run from the others, as columns of the tables.
        folder: where the runs lie; None before they are made.
        reports: path -> content of ``report.json``, of the runs that ended well.
        failures: path -> why another has none.
    """

    def __init__(self, runs: Mapping[str, RunConfig], about: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.runs = dict(runs)
        self.about = {path: dict((about or {}).get(path) or _about(path, config)) for path, config in runs.items()}
        self.folder: Path | None = None
        self.reports: dict[str, Report] = {}
        self.failures: dict[str, Failure] = {}

    @classmethod
    def grid(
        cls,
        methods: str | Sequence[str],
        tasks: str | Sequence[str],
        *,
        seeds: Sequence[int] = (0,),
        grid: Mapping[str, Sequence[Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        sites: int | None = None,
        fixed_data: bool = False,
    ) -> Study:
        """Every method with every seed on every task; the folders are those of ``fairflare compare``.

        Args:
            methods: ids, each with settings of its own if any: "fedism-plus:state=L,q=1".
            tasks: name or name:preset. With several, each has a folder for its runs.
            seeds: different numbers >= 0; each draws the data anew where a task draws them, alike for all methods.
            grid: setting -> its values; every method that has the setting is run at each of them.
            settings: of all runs, as ``--set`` takes them, flat or by owner.
            rounds: communication rounds; the preset's by default.
            sites: number of sites; the preset's by default.
            fixed_data: every seed has the preset's own data.

        Raises:
            UserError: a name or setting is wrong, or a method would not have the others' data.
        """
        names = [(one,) if isinstance(one, str) else tuple(one) for one in (methods, tasks)]
        labels = on_grid(names[0], tuple(f"{key}={as_text(list(values))}" for key, values in (grid or {}).items()))
        values = dict(flat_settings(settings or {}))
        runs, about = {}, {}
        for task in names[1]:
            made = arms(labels, task, seeds, rounds=rounds, sites=sites, values=values, fixed_data=fixed_data)
            prefix = f"{task.replace(':', '-')}/" if len(names[1]) > 1 else ""
            asked = [(label, seed) for label in labels for seed in seeds]
            for (label, seed), (name, config) in zip(asked, made, strict=True):
                method, own = split_method(label)
                runs[prefix + name] = config
                about[prefix + name] = {"method": method, **{k: _value(v) for k, v in own.items()}}
                about[prefix + name] |= {"task": f"{config.task}:{config.preset}", "seed": seed}
        return cls(runs, about)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Study:
        """The finished runs in ``folder``, e.g. a comparison's, each checked as by ``fairflare verify``."""
        place = Path(folder)
        found = sorted(path.parent for path in place.rglob(CONFIG) if is_complete(path.parent))
        if not found:
            raise UserError(f"{place}: expected a folder with finished runs, found none")
        for run in found:
            verify_run(run)
        made = cls({run.relative_to(place).as_posix(): RunConfig.from_json(read_json(run / CONFIG)) for run in found})
        made.folder, made.reports = place, {path: read_json(place / path / REPORT) for path in made.runs}
        return made

    def fit(
        self, out: str | os.PathLike[str], *, workers: int | None = 1, force: bool = False, progress: bool = True
    ) -> Study:
        """Make the runs that are missing in ``out``, and return the study.

        Finished runs of the very same configuration are taken as they are, one cut short goes on. A run that fails
        takes no other with it; the same call makes it again.

        Args:
            out: the study's folder.
            workers: processes that compute side by side; 1: in this process.
            force: makes all runs again.
            progress: shows how far they are on stderr.

        Raises:
            FairFlareError: of the first run that failed, after the others have ended.
        """
        finished = self.finished(Path(out), partial(run_once, force=force), workers=workers)
        with as_before(progress=progress), finished:
            return self

    @property
    def table(self) -> pandas.DataFrame:
        """A row per run: what tells it from the others, status, metric, and that over the sites' test splits.

        Columns: those of ``about``, ``status`` ("finished", "missing" or why it failed), ``metric``, ``mean``,
        ``worst``, ``worst_site``, ``gap``; of each site's own model where sites use such.
        """
        import pandas

        rows = {path: {**self.about[path], **self._result(path)} for path in self.runs}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("run")

    @property
    def sites(self) -> pandas.DataFrame:
        """A row per finished run and site: what tells the run from the others, and ``Federation.sites``."""
        import pandas

        found = []
        for path, report in self.reports.items():
            table = sites_table(report).reset_index()
            head = table.assign(run=path)[["run", "site"]].assign(**self.about[path])
            found.append(head.join(table.drop(columns="site")))
        return pandas.concat(found, ignore_index=True) if found else pandas.DataFrame(columns=["run", "site"])

    def _result(self, path: str) -> dict[str, Any]:
        if path not in self.reports:
            return {"status": f"failed: {self.failures[path][0]}" if path in self.failures else "missing"}
        found = as_used(self.reports[path]["detail"])["fairness"]
        worst = {"worst": found["worst"]["value"], "worst_site": found["worst"]["site"]}
        return {"status": "finished", "metric": found["metric"], "mean": found["mean"], **worst, "gap": found["gap"]}

    @contextlib.contextmanager
    def finished(
        self,
        folder: Path,
        one: One = run_once,
        *,
        workers: int | None = 1,
        env: str = "local",
        is_part: Callable[[str], bool] = lambda name: True,
        lockstep: bool = False,
    ) -> Iterator[Reports]:
        """Within: every run has ended well, and no other command works in the study's folders; path -> report.

        A ``folder`` that holds something else is refused; ``is_part`` says of which names its runs' folders may be.
        ``one`` makes a run, or takes the one that is there. ``workers`` and ``env`` are as of ``parallel.budget``,
        ``lockstep`` as of ``parallel.run_all``.
        Raises as ``make``.
        """
        self.check(folder, is_part)
        at_once = budget(workers, env, self.runs)
        with contextlib.ExitStack() as stack:
            for place in self._folders(folder):
                stack.enter_context(created(place))
                stack.enter_context(opened(place))
            yield self.make(folder, one, at_once, lockstep)

    def check(self, folder: Path, is_part: Callable[[str], bool] = lambda name: True) -> None:
        """Raise UserError unless the study's folders are new or hold runs of such studies alone."""
        for place in self._folders(folder):
            check_collection(place, is_part)

    def make(self, folder: Path, one: One, workers: int, lockstep: bool = False) -> Reports:
        """The reports of all runs, which ``one`` makes; whoever calls it has the folder to itself.

        Raises FairFlareError: of the first run that failed, after the others have ended.
        """
        self.folder = folder
        self.reports, self.failures = run_all(self.runs, folder, one, workers, lockstep)
        for path in self.runs:
            if path in self.failures:
                raise_here(*self.failures[path])
        return {path: self.reports[path] for path in self.runs}

    def _folders(self, folder: Path) -> list[Path]:
        return sorted({(folder / path).parent for path in self.runs})

    def __repr__(self) -> str:
        return f"<Study: {len(self.runs)} runs; {self.folder or 'not run'}>"


def _about(path: str, config: RunConfig) -> dict[str, Any]:
    """Of a run of which only the folder's name says more: "fedavg-lr=0.1-seed3"."""
    label = path.rpartition("/")[2].removesuffix(f"-seed{config.seed}")
    return {"label": label, "method": config.method, "task": f"{config.task}:{config.preset}", "seed": config.seed}


def _value(text: str) -> Any:
    """A number or a truth value, where a setting's text is one."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def _sets_data_seed(values: Mapping[str, Any]) -> bool:
    return DATA_SEED in values or f"task.{DATA_SEED}" in values


def data_seed_of(seed: int) -> int:
    """The ``data_seed`` of a comparison's seed, in 0..10**9-1.

    Not the seed itself: a partition that leaves a site too small is drawn again with the next number, so that two
    neighbouring ones may be the same partition.
    """
    return derive(seed, "data") % 10**9


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


def same_headline(found: list[tuple[str, RunConfig]]) -> list[tuple[str, RunConfig]]:
    """Final models of all runs where one of them cannot choose among its rounds: a choice would favour the others."""
    if len({config.headline for _, config in found}) < 2:
        return found
    return [(name, dataclasses.replace(config, headline="final")) for name, config in found]


def facts() -> dict[str, str]:
    """What a decision's pages say of its making: the day (UTC), the machine, and the versions of what ran."""
    versions = ", ".join(f"{name} {text}" for name, text in sorted(all_versions().items()))
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine(), "versions": versions}


def leaving_out(config: RunConfig, sites: Sequence[str]) -> dict[str, RunConfig]:
    """Site -> the run that does not train on it."""
    fewer = min(config.min_sites, len(sites) - 1)
    require = config.require if config.require == "all" else min(config.require, len(sites) - 1)
    return {site: dataclasses.replace(config, leave_out=site, min_sites=fewer, require=require) for site in sites}


def sites_table(report: Mapping[str, Any]) -> pandas.DataFrame:
    """``Federation.sites``."""
    import pandas

    rows = {name: _row(site) for name, site in report["sites"].items()}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("site")


def groups_table(report: Mapping[str, Any]) -> pandas.DataFrame:
    """``Federation.groups``."""
    import pandas

    found = report["detail"].get("groups") or {"rows": [], "metric": None}
    rows = []
    for row in found["rows"]:
        ends = {end: row[end]["value"] for end in ("lowest", "highest")}
        rows.append({**row, **ends, **{f"{end}_site": row[end]["site"] for end in ends}, "metric": found["metric"]})
    names = ["group", "metric", "n", "value", "sites", "lowest", "lowest_site", "highest", "highest_site"]
    return pandas.DataFrame(rows, columns=names)


def history_table(report: Mapping[str, Any]) -> pandas.DataFrame:
    """``Federation.history``."""
    import pandas

    detail = report["detail"]
    rows = [
        {"round": one["round"], "site": site, "metric": detail["headline"], "value": one["metric"].get(site)}
        | {"weight": one["weights"].get(site), "accepted": site in one["metric"]}
        for one in detail["rounds"]
        for site in report["sites"]
    ]
    return pandas.DataFrame(rows, columns=["round", "site", "metric", "value", "weight", "accepted"])


def benefit_table(report: Mapping[str, Any]) -> pandas.DataFrame:
    """``Federation.benefit``."""
    import pandas

    found = report["detail"].get("benefit")
    if not found:
        raise UserError("benefit: the run has not asked: settings={'solo': True}")
    each = ((metric, row) for metric, one in found["metrics"].items() for row in (*one["sites"], *one["groups"]))
    rows = [{"metric": metric, "group": "", **row} for metric, row in each]
    names = ["site", "group", "metric", "n", "federated", "solo", "benefit", "low", "high", "verdict"]
    return pandas.DataFrame(rows, columns=names)


def _row(site: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: site[key] for key in ("kind", "n_train", "n_val", "n_test")}
    kinds = {"": "metrics", "val_": "val_metrics", "personal_": "personal_metrics"}
    for prefix, name in kinds.items():
        row |= {f"{prefix}{metric}": value for metric, value in (site[name] or {}).items()}
    counted = [weight for weight in site["weight"] if weight is not None]
    return {**row, "weight": sum(counted) / len(counted) if counted else None}
