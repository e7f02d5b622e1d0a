# SPDX-License-Identifier: Apache-2.0
"""Any method on any task as a FLARE recipe: run it in the simulator, export it, submit it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nvflare.recipe.spec  # noqa: F401  (takes --export from the command line before the script's own parser sees it)
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe.spec import Recipe

import fairflare
from fairflare import registry, user_code
from fairflare.assembly import site_names, without_folders, without_weights
from fairflare.config import RunConfig
from fairflare.errors import UserError
from fairflare.flare.controller import FairController
from fairflare.flare.egress import EgressFilter
from fairflare.flare.executor import TASKS, FairExecutor

PACKAGE = "fairflare"
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")
SHORT = 0.02
"""Seconds between polls in the simulator, where FLARE's defaults (2 s, 0.5 s) would be most of the run."""


class FairRecipe(Recipe):
    """One federation as a FLARE job that carries this package.

    Example:
        >>> recipe = FairRecipe(make_config("fedism-plus", "ich-phantom:small"))  # doctest: +SKIP
        >>> recipe.execute(SimEnv(clients=recipe.sites))                          # doctest: +SKIP
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        name: str | None = None,
        simulation: bool = True,
        preinstalled: bool = False,
    ) -> None:
        """
        Args:
            config: what to run, from ``make_config``.
            name: the job's name; made of method and task when None.
            simulation: True polls every 0.02 s; False leaves FLARE's production intervals.
            preinstalled: True makes a job without code, for sites that have this package and take no code from jobs.

        Raises:
            UserError: preinstalled, and the run needs the user's own files, which only a job with code can carry.
        """
        if preinstalled and (own := [*user_code.code_files(), *registry.plugin_files()]):
            raise UserError(f"--preinstalled: the job would have to carry {own[0].name}")
        self.config, self.simulation, self.preinstalled = config, simulation, preinstalled
        super().__init__(_make_job(config, name or job_name(config), simulation))
        if preinstalled:
            self._job.set_app_packages([PACKAGE])  # FLARE copies no file of these
        self._staging: tempfile.TemporaryDirectory | None = None

    @property
    def sites(self) -> list[str]:
        """Names of the task's sites, as ``SimEnv(clients=...)`` takes them."""
        return site_names(self.config)

    def finalize(self) -> None:
        """Put a clean copy of the package into the job, and the user's own files, unless the sites have them."""
        if self._staging is None and not self.preinstalled:
            self._staging = tempfile.TemporaryDirectory(prefix="fairflare_")
            package = stage_package(Path(self._staging.name))
            self._job.add_file_to_server(str(package), dest_dir=PACKAGE)
            self._job.add_file_to_clients(str(package), dest_dir=PACKAGE)
            for path in user_code.code_files():
                folder = path.name if path.is_dir() else None
                if folder:
                    path = shutil.copytree(path, package.parent / folder, ignore=CACHES)
                self._job.add_file_to_server(str(path), dest_dir=folder)
                self._job.add_file_to_clients(str(path), dest_dir=folder)


def job_name(config: RunConfig) -> str:
    """E.g. "fedism_plus_ich_phantom"."""
    return f"{config.method}_{config.task}".replace("-", "_")


def stage_package(folder: Path) -> Path:
    """A copy of this package without caches, plugins among its rules; FLARE would ship links as empty folders."""
    target = folder / PACKAGE
    source = Path(fairflare.__file__).parent
    shutil.copytree(source, target, ignore=CACHES)
    for plugin in registry.plugin_files():
        if (target / "rules" / plugin.name).exists():
            raise UserError(f"plugin {plugin.name}: the package has a rule file of that name; rename the plugin")
        shutil.copy(plugin, target / "rules" / plugin.name)
    return target


def _make_job(config: RunConfig, name: str, simulation: bool) -> FedJob:
    job = FedJob(name=name, min_clients=config.min_sites)
    content = config.to_json()
    if not simulation:
        content["options"] = without_folders(config.options)
    env, period = ("sim", SHORT) if simulation else ("flare", 0.5)
    controller = FairController(content, task_check_period=period, env=env)
    # FLARE's export leaves out arguments at their defaults; a job should say what it does.
    controller._always_serialize_args = ["task_check_period", "env"]
    job.to_server(controller)
    for_sites = {**content, "options": without_weights(content["options"])}
    job.to_clients(FairExecutor(for_sites), tasks=TASKS)
    job.to_clients(EgressFilter(for_sites), tasks=TASKS, filter_type=FilterType.TASK_RESULT)
    if simulation:
        job.to_server({"server": {"task_request_interval": SHORT}})
        job.to_clients({"default_task_fetch_interval": SHORT})
    return job
