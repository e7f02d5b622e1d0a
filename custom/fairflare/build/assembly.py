# SPDX-License-Identifier: Apache-2.0
"""Builds a federation's two sides from a ``RunConfig``; every transport starts here, so they cannot differ."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairflare.build import after, benefit, clinical, tasks
from fairflare.build.about import about
from fairflare.build.chosen import composed_title
from fairflare.build.config import RunConfig, site_of_client
from fairflare.build.config_checks import refuse_pooling
from fairflare.build.initial import keep
from fairflare.build.method_parts import part
from fairflare.build.parts import Parts
from fairflare.build.scored import is_scored, scorer
from fairflare.build.secure_sums import server_part, site_part, summed
from fairflare.clinic import external
from fairflare.clinic.described import described
from fairflare.clinic.external import constant_results
from fairflare.clinic.networks import normalisation
from fairflare.clinic.preflight import preflight
from fairflare.clinic.site_config import SiteConfig, find_site_config, stricter
from fairflare.clinic.tasks.script import Script
from fairflare.clinic.trivial import trivial_results
from fairflare.core import registry
from fairflare.core.errors import DataError
from fairflare.core.execution import Execution, default_device, keep_freed_memory, shared_gpu
from fairflare.core.findings import Finding
from fairflare.core.metric import Metric
from fairflare.core.types import SiteData, Training
from fairflare.core.versions import versions
from fairflare.federation.asked import Asked, asked_file
from fairflare.federation.audit import AuditLog
from fairflare.federation.best import NO_CHOICE, Choice
from fairflare.federation.clinical import View
from fairflare.federation.early_end import EarlyEnd
from fairflare.federation.files import AUDIT, CONFIG, MOST_JSON, read_bytes
from fairflare.federation.gate import Gate
from fairflare.federation.loop import Federation, Observer
from fairflare.federation.memory import SiteMemory
from fairflare.federation.messages import Transport
from fairflare.federation.scoring import LAST, Beside
from fairflare.federation.site import Site
from fairflare.federation.state import save_json
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE, Credentials, sealed_sizes

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
        after=after.at_server(config, parts, view),
        choice=choice_of(config, parts.task.metric(parts.task.headline)),
        benefit=benefit.at_server(config, parts),
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


def allowed(parts: Parts, secure_sum: str) -> Egress:
    """What of that a method's parts and its task say."""
    secret = secure_sum != NONE
    return Egress(
        model=parts.shared,
        scalars=() if secret else parts.scalars(anchored=False) + parts.scalars(anchored=True),
        metrics=parts.metrics,
        groups=parts.grouping.names,
        sealed=sealed_sizes(secure_sum, summed(parts.rule).n_terms) if secret else range(0),
        personal=parts.has_personal,
        tensors={} if secret else parts.sent_tensors,
    )


def leaves(config: RunConfig, parts: Parts, min_count: int | None, own: SiteConfig | None = None) -> Egress:
    """What may leave a site in this run, in its rounds and after them.

    Args:
        config: the run.
        parts: its objects.
        min_count: the fewest patients whose numbers leave; None: none do.
        own: the site's own configuration.
    """
    egress = after.may_leave(config, parts, allowed(parts, config.secure_sum))
    least = min_count if own is None or own.clinical else None
    return clinical.may_leave(config, parts, benefit.may_leave(config, parts, egress), least)


def build_site(
    config: RunConfig,
    parts: Parts,
    name: str,
    memory: Path | None = None,
    local: Path | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
    credentials: Credentials | None = None,
) -> Site:
    """One site's side, whose data are read when they are first needed; raises DataError for a site the task lacks.

    Args:
        config: the run.
        parts: its objects.
        name: the site, as FLARE calls it.
        memory: the file in which it keeps its memory; None keeps it in the process.
        local: the folder where the site's own configuration may lie, see ``site_config``.
        tell: called with what preflight finds at the site.
        credentials: what the site has been given for secure sums; nothing by default.
    """
    known, own = site_of_client(config, parts.task), find_site_config(local, name)
    if known and name not in known:
        raise DataError("site", f"site {name!r}: not a site of task {config.task}; known: {', '.join(known)}")
    training = _training(config, own)
    execution = _execution(own, training, place=list(known).index(name) if name in known and not local else 0)
    min_count = stricter(own.min_count, config.min_count) if own else config.min_count
    if own and own.secure_sum and config.secure_sum == NONE:
        raise DataError("secure_sum", f"site {name}: takes part in jobs with secure_sum only")
    kept = SiteMemory(memory)
    return Site(
        name=name,
        data=None,
        network=parts.network,
        trainer=parts.trainer,
        probes=parts.probes,
        training=training,
        scoring=parts.task,
        seed=config.seed,
        execution=execution,
        objective=parts.task.objective,
        groups=parts.grouping.names,
        min_count=min_count,
        memory=kept,
        egress=leaves(config, parts, min_count, own),
        clinical=clinical.at_site(config, parts, min_count, name) if own is None or own.clinical else None,
        after=after.at_site(config, parts, min_count, memory),
        keeps_best=config.best_by != NO_CHOICE,
        alone=benefit.at_site(config, parts, memory),
        asked=Asked(None if memory is None else asked_file(memory)),
        trivial=partial(
            constant_results if config.evaluation else trivial_results,
            parts.task,
            min_count=min_count if config.secure_sum == NONE else None,
        ),
        look=partial(_look, config, parts, known.get(name, name), own, min_count, execution.device),
        tell=tell,
        describe=(lambda data: {}) if config.evaluation else described,
        aggregation=site_part(config, parts, name, kept, credentials or Credentials()),
        receives=parts.received_tensors,
    )


def _training(config: RunConfig, own: SiteConfig | None) -> Training:
    """The job's local training, with the site's own batch size if it has one."""
    training: Training = part(Training, config.training)
    return dataclasses.replace(training, batch_size=own.batch_size) if own and own.batch_size else training


def _look(
    config: RunConfig, parts: Parts, site: str, own: SiteConfig | None, min_count: int | None, device: torch.device
) -> tuple[list[Finding], SiteData | None]:
    """What preflight finds in the data of the task's ``site``, and the data on ``device`` where they can be used."""
    if config.evaluation:
        found, data = external.look(parts.task, site, own, parts.grouping, min_count)
    else:
        found, data = preflight(parts.task, site, own, parts.grouping, min_count, parts.needs, config.accept)
    return found, data.on(device) if data is not None else None


def _execution(own: SiteConfig | None, training: Training, place: int) -> Execution:
    """How a site computes.

    Args:
        own: its configuration.
        training: of the job.
        place: the site's number among those that one machine simulates; they take its GPUs in turn.
    """
    keep_freed_memory()  # in a process that trains; a server gives back what it held of a round
    if own is None:
        return Execution(default_device(shared_gpu(place)), training.precision)
    first, *others = own.gpu_numbers or (shared_gpu(place) if own.gpu is None else own.gpu,)
    device = default_device(first)
    # Without a GPU there is one device, the CPU.
    beside = tuple(default_device(other) for other in others) if device.type == "cuda" else ()
    return Execution(device, training.precision, layout=own.layout, compiler=own.compiler, beside=beside)


def site_names(config: RunConfig) -> list[str]:
    """The run's sites, in the task's order."""
    return list(site_of_client(config, tasks.load(config.task, config.preset, **config.options)))
