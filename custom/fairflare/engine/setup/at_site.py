# SPDX-License-Identifier: Apache-2.0
"""A site's side of a ``RunConfig``, and what may leave it: every transport builds its sites here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from fairflare.core.errors import DataError
from fairflare.core.execution import Execution, default_device, keep_freed_memory, placed, shared_gpu
from fairflare.core.findings import Finding
from fairflare.core.seeds import derive
from fairflare.core.types import Ledger, SiteData, Training
from fairflare.data.site_config import SiteConfig, find_site_config, stricter
from fairflare.data.tensors import described
from fairflare.engine.answers import PlainAtSite, SitePart
from fairflare.engine.exchanges.base import Exchange, OfRun, named
from fairflare.engine.exchanges.evaluate import EvaluateAtSite
from fairflare.engine.memory import (
    ANSWERED_ENDING,
    ASKED_ENDING,
    SPENT_ENDING,
    AnsweredFile,
    Asked,
    SiteMemory,
    SpentFile,
    beside,
)
from fairflare.engine.setup.run_config import RunConfig, site_of_client, without_members
from fairflare.engine.setup.site_parts import FEATURES, Parts
from fairflare.engine.site import Site
from fairflare.participation import Selector
from fairflare.privacy import referee as referees
from fairflare.privacy.egress import Egress, FieldCheck
from fairflare.privacy.identity import Credentials
from fairflare.privacy.schemes import NONE, module_of
from fairflare.tasks.kind import trivial_results
from fairflare.tasks.preflight import preflight
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.exchanges.sums import Sums

EXTERNAL = "fairflare.tasks.external"
"""What reads the data of a site that only evaluates: by a name that no reader of imports follows."""


def of_run(
    config: RunConfig, parts: Parts, site: str = "", min_count: int | None = None, memory: Path | None = None
) -> OfRun:
    """What the exchanges of a run are made from; without ``site`` at the server."""
    return OfRun(config, parts, site, min_count, memory, config.after_step)


def leaves(config: RunConfig, parts: Parts, min_count: int | None, own: SiteConfig | None = None) -> Egress:
    """What may leave a site in this run, in its rounds and after them."""
    secure, run = config.secure_sum != NONE, of_run(config, parts, min_count=min_count)
    checks: dict[str, FieldCheck] = {}
    for exchange in _at_site(config, parts, own).values():
        checks |= exchange.leaves(run)
    return Egress(
        model=parts.shared,
        scalars=() if secure else parts.scalars(anchored=False) + parts.scalars(anchored=True),
        metrics=parts.metrics,
        groups=parts.grouping.names,
        secure=secure,
        personal=parts.has_personal,
        tensors={} if secure else parts.sent_tensors,
        checks=checks,
        budget=parts.budget_of(config),
    )


def _at_site(config: RunConfig, parts: Parts, own: SiteConfig | None) -> dict[str, Exchange]:
    """Name -> exchange of those that a site takes part in."""
    found = named(config, parts.task)
    if own is not None and not own.clinical:
        found.pop("clinical", None)
    return found


def build_site(
    config: RunConfig,
    parts: Parts,
    name: str,
    memory: Path | None = None,
    local: Path | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
    credentials: Credentials | None = None,
    ledger: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Site:
    """One site's side, whose data are read when they are first needed; raises DataError for a site the task lacks.

    Args:
        memory: the file in which it keeps its memory; None keeps it in the process.
        local: the folder where the site's own configuration may lie, see ``site_config``.
        credentials: what the site has been given for secure sums; nothing by default.
        progress: called with how far the site is before its first round, in words.
        ledger: beside it lies what private trainers have spent, run by run; None: beside the memory, if there is one.
    """
    known, own = site_of_client(config, parts.task), find_site_config(local, name)
    if known and name not in known:
        raise DataError("site", f"site {name!r}: not a site of task {config.task}; known: {', '.join(known)}")
    training = config.training
    if own and own.batch_size:
        training = dataclasses.replace(training, batch_size=own.batch_size)
    execution = _execution(own, training, place=list(known).index(name) if name in known and not local else 0)
    min_count = stricter(own.min_count, config.min_count) if own else config.min_count
    if own and own.secure_sum and config.secure_sum == NONE:
        raise DataError("secure_sum", f"site {name}: takes part in jobs with secure_sum only")
    if own and parts.trainer.private and config.settings.get("trainer.draws") == "seed":
        raise DataError("privacy", f"site {name}: trainer.draws: expected system on a site's own data, got seed")
    kept, home = SiteMemory(memory), ledger or (memory and memory.with_suffix(""))
    history = referees.Forgetful() if home is None else AnsweredFile(home.with_name(home.name + ANSWERED_ENDING))
    referee = referees.Referee(
        run=spender(config),
        subject=referees.named(config.task, config.preset, without_members(config.options)),
        exact=parts.trainer.sums_only,
        draws=draws(parts),
        history=history,
    )
    spent: Ledger | None = _spent(config, home) if parts.trainer.private else None
    trainer: Any = parts.trainer
    untrained = importlib.import_module(EXTERNAL).constant_results if config.evaluation else trivial_results
    run, asked = of_run(config, parts, name, min_count, memory), _at_site(config, parts, own)
    aggregation: SitePart = PlainAtSite()
    if sums := cast("Sums | None", asked.pop("sums", None)):
        aggregation = sums.at_site(run, kept, credentials, _spent(config, home, " hospital"), referee)
    halves: dict[str, Any] = {}
    for of, exchange in asked.items():
        more = {"clinical": halves.get("clinical")} if of == "after" else {}
        halves[of] = exchange.at_site(run, **more)
    least = min_count if config.secure_sum == NONE else None
    keep = (lambda data: {}) if config.evaluation else described
    halves["evaluate"] = EvaluateAtSite(keep, partial(untrained, parts.task, min_count=least))
    if "/" in config.fold:  # one of many, whose patients are looked at together
        halves["evaluate"] = EvaluateAtSite(keep, intervals=False)
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
        asked=Asked(None if memory is None else beside(memory, ASKED_ENDING), config.sha256()),
        look=partial(_look, config, parts, known.get(name, name), own, min_count, execution.device, progress),
        tell=tell,
        aggregation=aggregation,
        exchanges=halves,
        referee=referee,
        receives=parts.received_tensors,
        family=parts.task.kind.family or Site.family,
        ledger=spent,
        budget=parts.budget_of(config),
        exchange=getattr(torch, config.exchange),
        records=None if spent is None else trainer.budget(spent, derive(config.seed, "records", name)),
    )


def draws(parts: Parts) -> bool:
    """Whether the run draws its sites anew for every round."""
    return type(parts.selector).select is not Selector.select


def spender(config: RunConfig) -> str:
    """What the keys of a run in a site's ledger begin with."""
    return f"{config.federation} {config.lineage()}"


def _spent(config: RunConfig, home: Path | None, of: str = "") -> SpentFile:
    """Where a site keeps what it has spent in this run."""
    return SpentFile(home and home.with_name(home.name + SPENT_ENDING), spender(config) + of)


def _look(
    config: RunConfig,
    parts: Parts,
    site: str,
    own: SiteConfig | None,
    min_count: int | None,
    device: torch.device,
    progress: Callable[[str], None],
) -> tuple[list[Finding], SiteData | None]:
    """What preflight finds in the data of the task's ``site``, and the data on ``device`` where they can be used."""
    if config.evaluation:
        found, data = importlib.import_module(EXTERNAL).look(parts.task, site, own, parts.grouping, min_count)
    else:
        found, data = preflight(parts.task, site, own, parts.grouping, min_count, parts.needs, config.accept)
        if data is not None:
            n, least = data.size("train"), parts.trainer.fewest(parts.model, min_count)
            if n < least:
                text = f"{n} examples, at least {least} are needed: {parts.trainer.few}"
                return [Finding("error", "few_examples", "train", n, text), *found], None
    if data is None:
        return found, None
    plain = type(parts.trainer).site_data is Trainer.site_data and not parts.selector.pools
    data = data.on(device)
    if config.tune == "head" and plain:
        cache: Any = importlib.import_module(FEATURES)
        folder = cache.Folder(Path(own.features), own.features_gb * 1e9) if own and own.features else None
        network = placed(parts.network, device)
        data = cache.featured(data, network, config.tune_views, derive(config.seed, "views", site), folder, progress)
    return found, data


def _execution(own: SiteConfig | None, training: Training, place: int) -> Execution:
    """How a site computes; those that one machine simulates take its GPUs in turn, by their ``place``."""
    keep_freed_memory()  # in a process that trains; a server gives back what it held of a round
    if own is None:
        return Execution(default_device(shared_gpu(place)), training.precision)
    first, *others = own.gpu_numbers or (shared_gpu(place) if own.gpu is None else own.gpu,)
    device = default_device(first)
    # Without a GPU there is one device, the CPU.
    beside = tuple(default_device(other) for other in others) if device.type == "cuda" else ()
    return Execution(device, training.precision, layout=own.layout, compiler=own.compiler, beside=beside)


def new_credentials(config: RunConfig) -> tuple[Credentials, Credentials]:
    """The sites' and the server's for a run on one machine."""
    if config.secure_sum != "ckks":
        return Credentials(), Credentials()
    at_site, at_server = importlib.import_module(module_of("ckks")).new_contexts()
    # Not lambdas: the sites' go to processes that may have been spawned.
    return Credentials(ckks=partial(bytes, at_site)), Credentials(ckks=partial(bytes, at_server))
