# SPDX-License-Identifier: Apache-2.0
"""Any method on any task as a FLARE recipe: run it in the simulator, export it, submit it."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nvflare.recipe.spec  # noqa: F401  (takes --export from the command line before the script's own parser sees it)
from nvflare.apis.filter import Filter
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.fed_app_config import FedAppConfig
from nvflare.job_config.fed_job_config import FedJobConfig
from nvflare.recipe.spec import Recipe

from fairflare.core import plugins, user_code
from fairflare.core.errors import UserError
from fairflare.engine.exchanges.base import find
from fairflare.engine.files import INITIAL, START, save_tensors
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.config_checks import refuse_pooling
from fairflare.engine.setup.parts import build_parts, is_scored, without_folders, without_weights
from fairflare.engine.setup.weights import keep
from fairflare.flare.compat import (
    ask_for_no_model,
    client_app,
    for_all_sites,
    metrics_writer,
    server_app,
)
from fairflare.flare.controller import FairController
from fairflare.flare.egress import EgressFilter
from fairflare.flare.executor import TASKS, FairExecutor
from fairflare.flare.paths import escaped
from fairflare.flare.persistor import FairPersistor
from fairflare.flare.staging import APPS, CACHES, PACKAGE, stage

PERSISTOR = "persistor"
README = Path(__file__).with_name("texts") / "job_readme.md"
"""Why a job has the components that it has: its configurations are JSON, which has no comments."""
SITES_POLL = 0.25
"""Seconds between two questions of a site for its next task, where all processes are on one machine: FLARE's 2 s would
be most of a run. (After a question in vain its simulator waits 0.5 s, whatever is said here.)"""
LOOK = 0.02
"""Seconds between two looks of the simulator's server at its tasks: one process, and nothing travels."""


class FairRecipe(Recipe):
    """One federation as a FLARE job that carries this package.

    FLARE's helpers for recipes work on it, but all sites run the same app, and no site's own model leaves it:
    cross-site evaluation asks every site for the metrics of the final model.

    Example:
        >>> recipe = FairRecipe(make_config("fedism-plus", "ich-phantom:small"))  # doctest: +SKIP
        >>> recipe.execute(SimEnv(clients=recipe.sites))                          # doctest: +SKIP
    """

    framework = FrameworkType.PYTORCH
    """FLARE's evaluation helpers ask."""

    def __init__(
        self,
        config: RunConfig,
        *,
        name: str | None = None,
        simulation: bool = True,
        preinstalled: bool = False,
        poll: float | None = None,
    ) -> None:
        """
        Args:
            name: the job's name; made of method and task when None.
            preinstalled: True makes a job without code, for sites that have this package and take no code from jobs.
            poll: seconds between two questions of a site for its next task; None: FLARE's own 2, in a simulation 0.25.

        Raises:
            UserError: the run is stacked, or pools data; or preinstalled, and needs the user's own files, which only a
                job with code can carry.
        """
        if config.stacked:
            raise UserError("stacked: expected false in a FLARE job, where each site is a process of its own")
        refuse_pooling(config.components.selector, "a FLARE job")
        if preinstalled and (own := [*user_code.code_files(), *plugins.files()]):
            raise UserError(f"--preinstalled: the job would have to carry {own[0].name}")
        self.config, self.simulation, self.preinstalled = config, simulation, preinstalled
        self._tasks = tasks_of(config)
        poll = SITES_POLL if poll is None and simulation else poll
        self._made = _make_job(config, name or job_name(config), simulation, preinstalled, poll)
        super().__init__(self._made)
        for_all_sites(self, _refuse)
        self._staging: tempfile.TemporaryDirectory | None = None

    @property
    def sites(self) -> list[str]:
        """Names of the task's sites, as ``SimEnv(clients=...)`` takes them."""
        return site_names(self.config)

    def add_client_output_filter(
        self, filter: Filter, tasks: list[str] | None = None, clients: list[str] | None = None
    ) -> None:
        """Add a filter for results, of all tasks by default; it runs before the egress filter, which has the last word.

        Raises:
            UserError: an unknown task, or ``clients``.
        """
        config = client_app(self._made)
        config.task_result_filters[:] = [
            ({task}, list(filters)) for chain, filters in config.task_result_filters for task in chain
        ]
        for task in _named(tasks, self._tasks):
            super().add_client_output_filter(filter, [task], clients)

    def add_client_input_filter(
        self, filter: Filter, tasks: list[str] | None = None, clients: list[str] | None = None
    ) -> None:
        for task in _named(tasks, self._tasks):
            super().add_client_input_filter(filter, [task], clients)

    def add_server_output_filter(self, filter: Filter, tasks: list[str] | None = None) -> None:
        for task in _named(tasks, self._tasks):
            super().add_server_output_filter(filter, [task])

    def add_server_input_filter(self, filter: Filter, tasks: list[str] | None = None) -> None:
        for task in _named(tasks, self._tasks):
            super().add_server_input_filter(filter, [task])

    def add_cse_validator_if_needed(self) -> None:
        """FLARE's ``add_cross_site_evaluation`` calls this last: no site is asked for its own model."""
        for controller in _evaluations(self._made):
            ask_for_no_model(controller)
        warnings.warn(
            "cross-site evaluation of a FairRecipe: sites evaluate the final model; no site's own leaves it",
            stacklevel=3,
        )

    def set_per_site_config(self, config: dict[str, dict]) -> None:
        raise UserError("per-site config: all sites of a FairRecipe run the same app; a site's own is in its site file")

    def process_env(self, env: Any) -> None:
        """FLARE calls this before it runs a recipe; before 2.9 it finalizes none."""
        self.finalize()

    def export(self, job_dir: str, *others: Any, **options: Any) -> None:
        """As FLARE's, finalized."""
        self.finalize()
        super().export(job_dir, *others, **options)

    def finalize(self) -> None:
        """Put the user's own files and given weights into the job; this package comes when its folder is written.

        Raises:
            UserError: a filter is registered for a task that there is not; FLARE would never run it.
        """
        for app in (server_app(self._made), client_app(self._made)):
            for chain in app.task_data_filters + app.task_result_filters:
                _named(chain[0], self._tasks)
        chains = client_app(self._made).task_result_filters
        chains[:] = _egress_last(chains, self._tasks)
        if self._staging is not None:
            return
        self._staging = tempfile.TemporaryDirectory(prefix="fairflare_")
        folder = Path(self._staging.name)
        if self.config.init_from:  # weights are no code: they go with an app's configuration
            keep(self.config.init_from, folder)
            start, frozen = INITIAL, self.config.tune != "all"
            if frozen and not is_scored(parts := build_parts(self.config)):
                start = START
                save_tensors(folder / start, parts.model)
            self._made.add_file_to_server(str(folder / start), app_folder_type="config")
            if frozen and self.config.body == "job":
                self._made.add_file_to_clients(str(folder / INITIAL), app_folder_type="config")
        for path in [] if self.preinstalled else user_code.code_files():
            name = path.name if path.is_dir() else None
            if name:
                path = shutil.copytree(path, folder / name, ignore=CACHES)
            self._made.add_file_to_server(str(path), dest_dir=name)
            self._made.add_file_to_clients(str(path), dest_dir=name)


class StagedApps(FedJobConfig):
    """Writes a job's folder with an app for its server and one for its sites, each with what it needs of this package.

    FLARE's own has one app for all, or one per site; it takes names of sites only where every site is named.
    """

    def __init__(self, config: RunConfig, code: bool, **options: Any) -> None:
        super().__init__(min_clients=config.min_sites, **options)
        self.set_app_packages([PACKAGE])  # FLARE copies no file of these; they are staged
        self._config, self._code = config, code

    def add_fed_app(self, app_name: str, fed_app: FedAppConfig) -> None:
        """FLARE's one app for all as two."""
        super().add_fed_app(APPS["server"], FedAppConfig(server_app=fed_app.server_app))
        super().add_fed_app(APPS["site"], FedAppConfig(client_app=fed_app.client_app))

    def set_site_app(self, site_name: str, app_name: str) -> None:
        """As FLARE says "all": the server and every site has its own."""
        for site in [SERVER_SITE_NAME, *site_names(self._config)]:
            super().set_site_app(site, APPS["server" if site == SERVER_SITE_NAME else "site"])

    def generate_job_config(self, job_root: str) -> None:
        """As FLARE's, with a README; the manifests come last."""
        super().generate_job_config(job_root)
        shutil.copy(README, Path(job_root, self.job_name, "README.md"))
        for side, app in APPS.items():
            stage(Path(job_root, self.job_name, app), side, self._config, code=self._code)


def job_name(config: RunConfig) -> str:
    """E.g. "fedism_plus_ich_phantom"."""
    return f"{config.method}_{config.task}".replace("-", "_")


def tasks_of(config: RunConfig) -> list[str]:
    """The tasks that a job's sites know, those of its plugins' exchanges among them."""
    return [*TASKS, *(task for name in config.exchanges for task in find(name).tasks)]


def _refuse(clients: list[str]) -> None:
    raise UserError(f"clients={clients}: all sites of a FairRecipe run the same app; see its site file")


def _named(tasks: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """The tasks, all of them when None. FLARE finds filters by a task's exact name: one for "*" would never run."""
    chosen = known if tasks is None else sorted(tasks)
    for task in chosen:
        if task not in known:
            raise UserError(f"filter for task {task!r}: no such task; known: {', '.join(known)}")
    return list(chosen)


def _egress_last(
    chains: list[tuple[set[str], list[Filter]]], known: Sequence[str]
) -> list[tuple[set[str], list[Filter]]]:
    """The filters of each task in their order, the egress filter last; tasks that share all share a chain."""
    egress = next(one for _, filters in chains for one in filters if isinstance(one, EgressFilter))
    own: dict[str, list[Filter]] = {task: [] for task in known}
    for tasks, filters in chains:
        for task in tasks:
            own[task] += [one for one in filters if one is not egress]
    groups: dict[tuple[int, ...], tuple[set[str], list[Filter]]] = {}
    for task in known:
        chain = [*own[task], egress]
        groups.setdefault(tuple(map(id, chain)), (set(), chain))[0].add(task)
    return list(groups.values())


def _evaluations(job: FedJob) -> list[CrossSiteModelEval]:
    """FLARE's evaluation workflows in the job."""
    workflows = [one.controller for one in server_app(job).workflows]
    return [controller for controller in workflows if isinstance(controller, CrossSiteModelEval)]


def _make_job(config: RunConfig, name: str, simulation: bool, preinstalled: bool, poll: float | None) -> FedJob:
    job = FedJob(name=name)
    job.job = StagedApps(config, not preinstalled, job_name=name)
    content = config.to_json()
    if not simulation:
        content["options"] = without_folders(config.options)
    content = escaped(content)
    env, period = ("sim", LOOK) if simulation else ("flare", min(poll or 0.5, 0.5))
    job.to_server(FairController(content, task_check_period=period, env=env))
    job.to_server(FairPersistor(config.federation, config.lineage() if config.federation else ""), id=PERSISTOR)
    job.comp_ids = {"persistor_id": PERSISTOR}  # where FLARE's evaluation helpers look
    if writer := metrics_writer():
        job.to_server(writer, id="metrics_artifact_writer")
    for_sites = {**content, "options": without_weights(content["options"])}
    job.to_clients(FairExecutor(for_sites), tasks=tasks_of(config))
    egress = EgressFilter()
    for task in tasks_of(
        config
    ):  # FLARE's sets of tasks are equal or disjoint, and a user's filter may be for one task alone
        job.to_clients(egress, tasks=[task], filter_type=FilterType.TASK_RESULT)
    if poll is not None:
        job.to_server({"server": {"task_request_interval": poll}})
        job.to_clients({"default_task_fetch_interval": poll})
    return job
