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
from nvflare.apis.job_def import ALL_SITES, SERVER_SITE_NAME
from nvflare.app_common.widgets.metrics_artifact_writer import MetricsArtifactWriter
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import ClientApp, FedJob, ServerApp
from nvflare.job_config.defs import FilterType
from nvflare.job_config.fed_app_config import ClientAppConfig, FedAppConfig
from nvflare.job_config.fed_job_config import FedJobConfig
from nvflare.recipe.spec import Recipe

from fairflare.core import plugins, user_code
from fairflare.core.errors import UserError
from fairflare.engine.exchanges.base import find
from fairflare.engine.files import INITIAL
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.config_checks import refuse_pooling
from fairflare.engine.setup.parts import without_folders, without_weights
from fairflare.engine.setup.weights import keep
from fairflare.flare.controller import FairController
from fairflare.flare.egress import EgressFilter
from fairflare.flare.executor import TASKS, FairExecutor
from fairflare.flare.paths import escaped
from fairflare.flare.persistor import FairPersistor
from fairflare.flare.staging import APPS, CACHES, PACKAGE, stage

PERSISTOR = "persistor"
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
        super().__init__(_make_job(config, name or job_name(config), simulation, preinstalled, poll))
        self._staging: tempfile.TemporaryDirectory | None = None

    @property
    def sites(self) -> list[str]:
        """Names of the task's sites, as ``SimEnv(clients=...)`` takes them."""
        return site_names(self.config)

    @property
    def _client_config(self) -> ClientAppConfig:
        return self._job._deploy_map[ALL_SITES].app_config

    def add_client_output_filter(
        self, filter: Filter, tasks: list[str] | None = None, clients: list[str] | None = None
    ) -> None:
        """Add a filter for results, of all tasks by default; it runs before the egress filter, which has the last word.

        Raises:
            UserError: an unknown task, or ``clients``.
        """
        config = self._client_config
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
        for controller in _evaluations(self._job):
            controller._submit_model_task_name = ""
        warnings.warn(
            "cross-site evaluation of a FairRecipe: sites evaluate the final model; no site's own leaves it",
            stacklevel=3,
        )

    def _add_to_client_apps(self, obj: Any, clients: list[str] | None = None, **options: Any) -> None:
        if clients is not None:
            raise UserError(f"clients={clients}: all sites of a FairRecipe run the same app; see its site file")
        super()._add_to_client_apps(obj, **options)

    def _apply_per_site_config(self, config: dict[str, dict]) -> None:
        raise UserError("per-site config: all sites of a FairRecipe run the same app; a site's own is in its site file")

    def finalize(self) -> None:
        """Put the user's own files and given weights into the job; this package comes when its folder is written.

        Raises:
            UserError: a filter is registered for a task that there is not; FLARE would never run it.
        """
        for app in self._job._deploy_map.values():
            for chain in app.app_config.task_data_filters + app.app_config.task_result_filters:
                _named(chain[0], self._tasks)
        chains = self._client_config.task_result_filters
        chains[:] = _egress_last(chains, self._tasks)
        if _evaluations(self._job) and PERSISTOR not in self._job._deploy_map[SERVER_SITE_NAME].app_config.components:
            # A server has to allow it in jobs without code: only those that need it name it.
            federation = self.config.federation
            persistor = FairPersistor(federation, self.config.lineage() if federation else "")
            self._job.to_server(persistor, id=PERSISTOR)
        if self._staging is not None:
            return
        self._staging = tempfile.TemporaryDirectory(prefix="fairflare_")
        folder = Path(self._staging.name)
        if self.config.init_from:  # weights are no code: they go with the server's configuration
            keep(self.config.init_from, folder)
            self._job.add_file_to_server(str(folder / INITIAL), app_folder_type="config")
            if self.config.tune != "all" and self.config.body == "job":
                self._job.add_file_to_clients(str(folder / INITIAL), app_folder_type="config")
        for path in [] if self.preinstalled else user_code.code_files():
            name = path.name if path.is_dir() else None
            if name:
                path = shutil.copytree(path, folder / name, ignore=CACHES)
            self._job.add_file_to_server(str(path), dest_dir=name)
            self._job.add_file_to_clients(str(path), dest_dir=name)


class SplitJob(FedJob):
    """A job that has an app for its server and another for its sites, each with what it needs of this package.

    FLARE's own has one app for all, or one per site; it takes names of sites only where every site is named.
    """

    def __init__(self, name: str, config: RunConfig, *, code: bool) -> None:
        super().__init__(name=name, min_clients=config.min_sites)
        self.job = StagedApps(config, code, job_name=name, min_clients=config.min_sites)
        self.job.set_app_packages([PACKAGE])  # FLARE copies no file of these; they are staged
        self._sites = site_names(config)

    def _set_all_app(self, client_app: ClientApp, server_app: ServerApp) -> None:
        self.job.add_fed_app(APPS["server"], FedAppConfig(server_app=server_app.get_app_config()))
        self.job.set_site_app(SERVER_SITE_NAME, APPS["server"])
        self.job.add_fed_app(APPS["site"], FedAppConfig(client_app=client_app.get_app_config()))
        for site in self._sites:
            self.job.set_site_app(site, APPS["site"])


class StagedApps(FedJobConfig):
    """Writes the job's folder, and into it what ``staging`` says."""

    def __init__(self, config: RunConfig, code: bool, **options: Any) -> None:
        super().__init__(**options)
        self._config, self._code = config, code

    def generate_job_config(self, job_root: str) -> None:
        """As FLARE's; the manifests come last."""
        super().generate_job_config(job_root)
        for side, app in APPS.items():
            stage(Path(job_root, self.job_name, app), side, self._config, code=self._code)


def job_name(config: RunConfig) -> str:
    """E.g. "fedism_plus_ich_phantom"."""
    return f"{config.method}_{config.task}".replace("-", "_")


def tasks_of(config: RunConfig) -> list[str]:
    """The tasks that a job's sites know, those of its plugins' exchanges among them."""
    return [*TASKS, *(task for name in config.exchanges for task in find(name).tasks)]


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
    workflows = [one.controller for one in job._deploy_map[SERVER_SITE_NAME].app_config.workflows]
    return [controller for controller in workflows if isinstance(controller, CrossSiteModelEval)]


def _make_job(config: RunConfig, name: str, simulation: bool, preinstalled: bool, poll: float | None) -> FedJob:
    job = SplitJob(name, config, code=not preinstalled)
    content = config.to_json()
    if not simulation:
        content["options"] = without_folders(config.options)
    content = escaped(content)
    env, period = ("sim", LOOK) if simulation else ("flare", min(poll or 0.5, 0.5))
    controller = FairController(content, task_check_period=period, env=env)
    # FLARE's export leaves out arguments at their defaults; a job should say what it does.
    controller._always_serialize_args = ["task_check_period", "env"]
    job.to_server(controller)
    job.comp_ids = {"persistor_id": PERSISTOR}  # where FLARE's evaluation helpers look
    job.to_server(MetricsArtifactWriter(), id="metrics_artifact_writer")
    for_sites = {**content, "options": without_weights(content["options"])}
    job.to_clients(FairExecutor(for_sites), tasks=tasks_of(config))
    egress = EgressFilter(for_sites)
    for task in tasks_of(
        config
    ):  # FLARE's sets of tasks are equal or disjoint, and a user's filter may be for one task alone
        job.to_clients(egress, tasks=[task], filter_type=FilterType.TASK_RESULT)
    if poll is not None:
        job.to_server({"server": {"task_request_interval": poll}})
        job.to_clients({"default_task_fetch_interval": poll})
    return job
