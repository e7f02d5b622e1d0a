# SPDX-License-Identifier: Apache-2.0
"""A site's side of a ``RunConfig``, and what may leave it: every transport builds its sites here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from fairflare.core.errors import DataError
from fairflare.core.execution import Execution, default_device, keep_freed_memory, shared_gpu
from fairflare.core.findings import Finding
from fairflare.core.types import Number, SiteData, Training
from fairflare.data.site_config import SiteConfig, find_site_config, stricter
from fairflare.data.tensors import described
from fairflare.engine.benefit.alone import SHARE, Alone
from fairflare.engine.benefit.measured import reports
from fairflare.engine.choices import NO_CHOICE
from fairflare.engine.memory import SiteMemory
from fairflare.engine.query_budget import Asked, asked_file
from fairflare.engine.setup import after, clinical
from fairflare.engine.setup.method_parts import part
from fairflare.engine.setup.run_config import RunConfig, site_of_client
from fairflare.engine.setup.secure_sums import site_part, summed
from fairflare.engine.setup.site_parts import Parts
from fairflare.engine.site import Site
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE, Credentials, sealed_sizes
from fairflare.tasks import external
from fairflare.tasks.external import constant_results
from fairflare.tasks.kind import trivial_results
from fairflare.tasks.preflight import preflight
from fairflare.trainers.base import Trainer
from fairflare.trainers.sgd import PlainTrainer

PLAIN = "sgd"
"""The trainer of a site alone where the run's own exchanges more than models."""


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
    return clinical.may_leave(config, parts, benefit_may_leave(config, parts, egress), least)


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
        alone=benefit_at_site(config, parts, memory),
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


def benefit_at_site(config: RunConfig, parts: Parts, memory: Path | None) -> Alone | None:
    """How a site trains alone for what joining gives it; None where the run does not ask.

    Args:
        config: the run.
        parts: its objects.
        memory: the file in which the site keeps its memory; None keeps the model in the process.
    """
    if not config.solo:
        return None
    trainer: Trainer = parts.trainer if parts.trainer.is_alone else PlainTrainer()
    return Alone(trainer, config.training["rounds"], memory, SHARE * config.task_timeout)


def benefit_may_leave(config: RunConfig, parts: Parts, egress: Egress) -> Egress:
    """``egress`` with what a site says of its benefit."""
    return dataclasses.replace(egress, benefit=benefit_reports(parts)) if config.solo else egress


def benefit_reports(parts: Parts) -> tuple[Number, ...]:
    """The numbers that a site may report of its benefit."""
    task = parts.task
    return reports(task.measures, task.group_measures, parts.grouping.names, lambda name: task.metric(name).range)
