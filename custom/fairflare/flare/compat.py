# SPDX-License-Identifier: Apache-2.0
"""Names of FLARE's server and tools that differ between its releases 2.7 to 2.9, and every private one that is used.

A private name stands here with the reason why no public one does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from nvflare.apis.job_def import ALL_SITES, SERVER_SITE_NAME
from nvflare.apis.workspace import Workspace
from nvflare.app_common.app_constant import AppConstants

METRICS_AGGREGATION_INFO = getattr(AppConstants, "METRICS_AGGREGATION_INFO", "metrics_aggregation_info")
METRICS_SELECTION_INFO = getattr(AppConstants, "METRICS_SELECTION_INFO", "metrics_selection_info")
"""New in 2.9, with the writer that reads them; under earlier releases nobody does."""


class NoReference:
    """In the place of a class that FLARE does not have yet: nothing is one."""

    file_path, key = "", ""


try:  # private: the receiving cell takes the folder by this name only, and no public class is of a tensor in a file
    from nvflare.app_common.utils.tensor_disk_offload_context import _ENABLE_TENSOR_DISK_OFFLOAD as ENABLE
    from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR as ROOT
    from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef as LazyRef
except ImportError:  # 2.7 keeps what arrives in memory
    ENABLE, ROOT, LazyRef = "enable_tensor_disk_offload", "tensor_disk_offload_root_dir", NoReference


def harden_client(check_job_id: Any) -> None:
    """Take from a site's client the shell commands of its server, and check ids of jobs with ``check_job_id``.

    Private both: FLARE asks no policy of a site before either.
    """
    from nvflare.private.fed.client.shell_cmd import SHELL_CMD_VALIDATORS

    SHELL_CMD_VALIDATORS.clear()  # "cat" shows any file, and it is the server that says who asks
    Workspace._check_job_id = staticmethod(check_job_id)  # the folder of a job "local" could be deleted


def signs_of_life(communicator: Any) -> dict[str, float]:
    """Site -> the monotonic second in which FLARE's server last heard of its job, kept up to date.

    Private: FLARE tells a controller of a site that is silent only once the site's own client has reported it.
    """
    heard: dict[str, float] = {}
    take = communicator.client_is_active

    def note(client_name: str, *others: Any, **options: Any) -> None:
        heard[client_name] = time.monotonic()
        take(client_name, *others, **options)

    communicator.client_is_active = note
    return heard


def excuse_sites() -> None:
    """Have FLARE's server take a site's return code for an answer, as any other, and not end the job for all sites.

    Private: no setting says so, and it ends the job before a controller hears of the code.
    """
    from nvflare.private.fed.server.server_runner import ServerRunner

    ServerRunner.ABORT_RETURN_CODES = []


def job_of(recipe: Any) -> Any:
    """A recipe's job: public until 2.8, private since then, though no method lists a recipe's components."""
    return recipe._job if hasattr(recipe, "_job") else recipe.job


def server_app(job: Any) -> Any:
    """The configuration of a job's server app. Private: no method lists or orders its components."""
    return job._deploy_map[SERVER_SITE_NAME].app_config


def client_app(job: Any) -> Any:
    """The same of the app that all its sites run, private, too."""
    return job._deploy_map[ALL_SITES].app_config


def for_all_sites(recipe: Any, refuse: Callable[[list[str]], None]) -> None:
    """Have ``refuse`` called with the sites where something is meant for some of a recipe's sites only.

    Private: FLARE's helpers outside of the recipe call this method, and no other one meets them all.
    """
    add = recipe._add_to_client_apps

    def checked(component: Any, clients: list[str] | None = None, **options: Any) -> None:
        if clients is not None:
            refuse(clients)
        add(component, **options)

    recipe._add_to_client_apps = checked


def ask_for_no_model(evaluation: Any) -> None:
    """Have FLARE's cross-site evaluation ask no site for its own model. Private: its helper sets the task's name."""
    evaluation._submit_model_task_name = ""


def metrics_writer() -> Any | None:
    """The server's component that writes ``metrics/round_metrics.jsonl``; None before 2.9."""
    try:
        from nvflare.app_common.widgets.metrics_artifact_writer import MetricsArtifactWriter
    except ImportError:
        return None
    return MetricsArtifactWriter()


def admin_of(kit: Path) -> tuple[str, Path]:
    """Name and folder of the user whose startup kit ``kit`` is; raises ValueError for another folder.

    2.7 has no function for it, and its kits hold the name in the certificate alone.
    """
    try:
        from nvflare.tool.kit.kit_config import resolve_admin_user_and_dir_from_startup_kit
    except ImportError:
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise ValueError("no startup kit of a user") from None
        certificate = load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
        return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value), kit
    user, folder = resolve_admin_user_and_dir_from_startup_kit(str(kit))
    return user, Path(folder)


def open_session(user: str, kit: Path, timeout: float) -> Any:
    """A session with the server, tried once: since 2.8 FLARE would go on trying, 2.7 does not."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    once = {"auto_login_max_tries": 1} if "auto_login_max_tries" in signature(new_secure_session).parameters else {}
    return new_secure_session(user, str(kit), timeout=timeout, **once)


def simulator_modules() -> tuple[Any, Any]:
    """The simulator's runner and deployer. Private: its public command starts a new Python, and takes any port."""
    from nvflare.private.fed.app.deployer import simulator_deployer
    from nvflare.private.fed.app.simulator import simulator_runner

    return simulator_runner, simulator_deployer


def allow_default_classes(env: Any, workspace: str) -> None:
    """Write the simulator's allow-list of classes. Private: only ``SimEnv.deploy`` writes it, since 2.9."""
    getattr(env, "_ensure_default_component_policy", lambda folder: None)(workspace)
