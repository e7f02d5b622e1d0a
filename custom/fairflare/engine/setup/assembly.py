# SPDX-License-Identifier: Apache-2.0
"""Builds a federation's two sides from a ``RunConfig``; every transport starts here, so they cannot differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairflare.core import registry
from fairflare.core.metric import Metric
from fairflare.core.versions import versions
from fairflare.engine.audit import AuditLog
from fairflare.engine.best import Choice
from fairflare.engine.clinical import View
from fairflare.engine.files import AUDIT, CONFIG, MOST_JSON, read_bytes
from fairflare.engine.gate import Gate
from fairflare.engine.loop import Federation, Observer
from fairflare.engine.messages import Transport
from fairflare.engine.scoring import LAST, Beside
from fairflare.engine.setup import clinical, tasks
from fairflare.engine.setup.about import about
from fairflare.engine.setup.at_server import after_at_server, benefit_at_server, server_part
from fairflare.engine.setup.at_site import allowed, build_site, leaves
from fairflare.engine.setup.chosen import composed_title
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.config_checks import refuse_pooling
from fairflare.engine.setup.initial import keep
from fairflare.engine.setup.parts import Parts
from fairflare.engine.setup.scored import is_scored, scorer
from fairflare.engine.state import save_json
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.networks.builtin import normalisation
from fairflare.privacy.secure_sum.schemes import Credentials
from fairflare.tasks.own.script import Script

__all__ = [
    "CONFIG",
    "Credentials",
    "allowed",
    "build_federation",
    "build_site",
    "choice_of",
    "leaves",
    "save_config",
    "site_names",
]

BESIDE = {"local": Beside.NOTHING, "sim": Beside.EVALUATION, "flare": Beside.ROUNDS}
"""Where the federation runs -> what its sites may do while the server scores."""


def build_federation(
    config: RunConfig,
    parts: Parts,
    transport: Transport,
    folder: Path,
    env: str,
    observers: Sequence[Observer] = (),
    credentials: Credentials | None = None,
) -> Federation:
    """The server's side, writing to ``folder``, where ``config.json`` is put first; UserError for what it refuses."""
    if env != "local":
        refuse_pooling(parts.selector, f"a FLARE job ({env})")
    if not _has_begun(folder):
        save_config(config, parts, folder, env)
    view = clinical.view_of(config, parts)
    return Federation(
        rule=parts.rule,
        aggregation=server_part(config, parts, credentials or Credentials()),
        gate=_gate(config, parts, view),
        transport=transport,
        rounds=0 if config.evaluation else config.training["rounds"],
        lr=config.training["lr"],
        min_sites=config.min_sites,
        folder=folder,
        header=_header(config, folder),
        observers=observers,
        groups=parts.grouping.names,
        leave_out=config.leave_out,
        accept=config.accept,
        score=scorer(parts, config.training["batch_size"]) if is_scored(parts) else None,
        scored_rounds=LAST if parts.task.table_sets() else 1,
        beside=BESIDE[env],
        selector=parts.selector,
        server_optimizer=parts.server_optimizer,
        trainer=parts.trainer,
        seed=config.seed,
        early_end=EarlyEnd(config.min_responses, config.grace),
        after=after_at_server(config, parts, view),
        choice=choice_of(config, parts.task.metric(parts.task.headline)),
        benefit=benefit_at_server(config, parts),
    )


def _header(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What the log's first line says of the run."""
    return {
        "method": config.method,
        "task": f"{config.task}:{config.preset}",
        "seed": config.seed,
        "config_sha256": config.sha256(),
        "config_json_sha256": hashlib.sha256(read_bytes(folder / CONFIG, MOST_JSON)).hexdigest(),
        "versions": versions(),
    }


def _gate(config: RunConfig, parts: Parts, view: View) -> Gate:
    """The check of what sites answer, by what the method's parts declare."""
    numbers = parts.scalars(anchored=False)
    return Gate(
        trainable=parts.trainable,
        scalars=numbers,
        wanted=tuple(name for name in parts.rule.wanted if name in {number.name for number in numbers}),
        tensors=parts.sent_tensors,
        anchored=parts.scalars(anchored=True),
        max_norm_ratio=config.max_norm_ratio,
        metrics=parts.metrics,
        personal=parts.personal,
        personal_results=parts.has_personal,
        view=view,
    )


def choice_of(config: RunConfig, headline: Metric) -> Choice:
    """How the run chooses its best model."""
    shown = config.headline == "best"
    better = headline.higher_is_better
    return Choice(config.best_by, config.best_weight, headline.name, better, config.min_sites, shown)


def save_config(config: RunConfig, parts: Parts, folder: Path, env: str) -> None:
    """Write ``config.json``: the run's configuration and what a reader should know beside it; first given weights."""
    keep(config.init_from, folder)
    method = registry.get_method(config.method)
    described = {
        "about": about(config, parts),
        "title": _title(config, parts),
        "paper": str(method.paper),
        "probes": list(registry.probes_of(method, config.trainer)),
        "normalisation": normalisation(parts.network),
    }
    save_json(folder / CONFIG, {**config.to_json(), **described, "env": env, "versions": versions()})


def _title(config: RunConfig, parts: Parts) -> str:
    """The method and the parts that are not its own, or the script that trains in their place."""
    method = registry.get_method(config.method)
    if isinstance(parts.task, Script):
        return f"{composed_title(method, config.parts)}, script {parts.task.module}.py"
    return composed_title(method, config.parts)


def _has_begun(folder: Path) -> bool:
    """Whether the log in ``folder`` has a first line, which holds the hash of the ``config.json`` beside it."""
    return (folder / AUDIT).is_file() and bool(AuditLog(folder / AUDIT).first)


def site_names(config: RunConfig) -> list[str]:
    """The run's sites, in the task's order."""
    return list(site_of_client(config, tasks.load(config.task, config.preset, **config.options)))
