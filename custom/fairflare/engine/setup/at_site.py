# SPDX-License-Identifier: Apache-2.0
"""A site's side of a ``RunConfig``, and what may leave it: every transport builds its sites here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fairflare.aggregators.base import Rule, SummedRule
from fairflare.core import registry
from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import Execution, default_device, keep_freed_memory, shared_gpu
from fairflare.core.findings import Finding
from fairflare.core.seeds import derive
from fairflare.core.types import MOST_EXAMPLES, Ledger, Number, SiteData, Training
from fairflare.data.site_config import SiteConfig, find_site_config, stricter
from fairflare.data.tensors import LABEL, Grouping, described
from fairflare.engine.after.base import Shape
from fairflare.engine.aggregation import PlainAtSite, SitePart
from fairflare.engine.alone import SHARE, Alone
from fairflare.engine.benefit import reports
from fairflare.engine.checks import NO_CHOICE
from fairflare.engine.clinical import NOTHING, ClinicalAtSite, View
from fairflare.engine.memory import (
    AFTER_ENDING,
    ANSWERED_ENDING,
    ASKED_ENDING,
    SPENT_ENDING,
    AnsweredFile,
    Asked,
    SiteMemory,
    SpentFile,
    beside,
)
from fairflare.engine.setup.run_config import RunConfig, site_of_client
from fairflare.engine.setup.site_parts import Parts, shape
from fairflare.engine.site import Site
from fairflare.participation import Selector
from fairflare.privacy.egress import Egress
from fairflare.privacy.referee import Forgetful, Referee, named
from fairflare.privacy.secure_sums import NONE, Credentials, masked_sizes, module_of, number_scheme, sealed_sizes
from fairflare.tasks.base import Task
from fairflare.tasks.kind import trivial_results
from fairflare.tasks.preflight import preflight
from fairflare.trainers.base import PlainTrainer, Trainer

if TYPE_CHECKING:
    from fairflare.engine.after.site import AfterAtSite

BINARY = 2
EXTERNAL = "fairflare.tasks.external"
"""What reads the data of a site that only evaluates: by a name that no reader of imports follows, as is the next."""
CURVES, AFTER = "fairflare.engine.curves", "fairflare.engine.after.site"
SITE_NOISE = "fairflare.privacy.differential_privacy"
PLAIN = "sgd"
"""The trainer of a site alone where the run's own exchanges more than models."""


def leaves(config: RunConfig, parts: Parts, min_count: int | None, own: SiteConfig | None = None) -> Egress:
    """What may leave a site in this run, in its rounds and after them."""
    secret, step, view = config.secure_sum != NONE, config.after_step, view_of(config, parts)
    told = (own is None or own.clinical) and view is not NOTHING and min_count is not None

    def clinical(value: Any, as_binned: bool) -> Any:
        return view.checked(value, MOST_EXAMPLES, min_count or 0, as_binned=as_binned)

    egress = Egress(
        model=parts.shared,
        scalars=() if secret else parts.scalars(anchored=False) + parts.scalars(anchored=True),
        metrics=parts.metrics,
        groups=parts.grouping.names,
        sealed=sealed_sizes(config.secure_sum, summed(parts.rule).n_terms) if secret else range(0),
        personal=parts.has_personal,
        tensors={} if secret else parts.sent_tensors,
        benefit=benefit_reports(config, parts) if config.solo else (),
        clinical=clinical if told else None,
        budget=parts.budget_of(config),
    )
    if step is None:
        return egress
    shape = shape_of(config, parts)
    return dataclasses.replace(
        egress,
        sums=lambda sums: step.checked(sums, shape, MOST_EXAMPLES),
        adjusted=step.reports(shape, secure=secret),
        sealed_sums=masked_sizes(step.terms(shape)) if secret else range(0),
    )


def build_site(
    config: RunConfig,
    parts: Parts,
    name: str,
    memory: Path | None = None,
    local: Path | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
    credentials: Credentials | None = None,
    ledger: Path | None = None,
) -> Site:
    """One site's side, whose data are read when they are first needed; raises DataError for a site the task lacks.

    Args:
        memory: the file in which it keeps its memory; None keeps it in the process.
        local: the folder where the site's own configuration may lie, see ``site_config``.
        credentials: what the site has been given for secure sums; nothing by default.
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
    history = Forgetful() if home is None else AnsweredFile(home.with_name(home.name + ANSWERED_ENDING))
    referee = Referee(
        run=spender(config),
        subject=named(config.task, config.preset, config.options),
        exact=parts.trainer.sums_only,
        draws=draws(parts),
        history=history,
    )
    spent: Ledger | None = _spent(config, home) if parts.trainer.private else None
    trainer: Any = parts.trainer
    untrained = importlib.import_module(EXTERNAL).constant_results if config.evaluation else trivial_results
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
        clinical=clinical_at_site(config, parts, min_count, name) if own is None or own.clinical else None,
        after=after_at_site(config, parts, min_count, memory),
        keeps_best=config.best_by != NO_CHOICE,
        alone=benefit_at_site(config, parts, memory),
        trees=partial(parts.task.kind.trees, classes=parts.task.classes) if config.trees else lambda data: None,
        asked=Asked(None if memory is None else beside(memory, ASKED_ENDING)),
        trivial=partial(untrained, parts.task, min_count=min_count if config.secure_sum == NONE else None),
        look=partial(_look, config, parts, known.get(name, name), own, min_count, execution.device),
        tell=tell,
        describe=(lambda data: {}) if config.evaluation else described,
        aggregation=site_part(
            config, parts, name, kept, credentials or Credentials(), _spent(config, home, " hospital"), referee
        ),
        referee=referee,
        receives=parts.received_tensors,
        family=parts.task.kind.family or Site.family,
        ledger=spent,
        budget=parts.budget_of(config),
        records=None if spent is None else trainer.budget(spent, derive(config.seed, "records", name)),
    )


def draws(parts: Parts) -> bool:
    """Whether the run draws its sites anew for every round."""
    return type(parts.selector).select is not Selector.select


def spender(config: RunConfig) -> str:
    """What the keys of a run in a site's ledger begin with."""
    return f"{config.federation} {config.sha256()}"


def _spent(config: RunConfig, home: Path | None, of: str = "") -> SpentFile:
    """Where a site keeps what it has spent in this run."""
    return SpentFile(home and home.with_name(home.name + SPENT_ENDING), spender(config) + of)


def _look(
    config: RunConfig, parts: Parts, site: str, own: SiteConfig | None, min_count: int | None, device: torch.device
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
    return found, data.on(device) if data is not None else None


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


def benefit_at_site(config: RunConfig, parts: Parts, memory: Path | None) -> Alone | None:
    """How a site trains alone for its benefit of joining; None where the run does not ask."""
    if not config.solo:
        return None
    own = parts.trainer
    trainer: Trainer = own if own.is_alone else PlainTrainer()
    if own.alone:
        trainer = registry.get_trainer(own.alone)(**dataclasses.asdict(own))  # type: ignore[call-overload]  # the class is known by its id alone
    return Alone(trainer, config.training.rounds, memory, SHARE * config.task_timeout)


def benefit_reports(config: RunConfig, parts: Parts) -> tuple[Number, ...]:
    task, names = parts.task, parts.grouping.names
    return reports(task.measures, task.group_measures, names, lambda name: task.metric(name).range, trees=config.trees)


def shape_of(config: RunConfig, parts: Parts) -> Shape:
    """What server and sites know alike of the run's task.

    Nobody is calibrated among those of whom it came true: recalibration has no use for groups by label.
    """
    by_label = config.after in ("recalibrate", "shares") and LABEL in config.group_by.split("+")
    return shape(parts.task, () if by_label else parts.grouping.names)


def after_at_site(config: RunConfig, parts: Parts, min_count: int | None, memory: Path | None) -> AfterAtSite | None:
    """A site's side of the step after the last round; None: there is none."""
    step = config.after_step
    if step is None:
        return None
    path = None if memory is None else beside(memory, AFTER_ENDING)
    of_step: type[AfterAtSite] = importlib.import_module(AFTER).AfterAtSite
    return of_step(step, shape_of(config, parts), min_count, path, config.secure_sum != NONE)


def view_of(config: RunConfig, parts: Parts) -> View:
    """What server and sites know alike; ``NOTHING`` where cases have no single class and are no times."""
    task = parts.task
    if task.kind.has_times:
        ends = task.kind.ends  # type: ignore[attr-defined]  # of a kind of times
        made: View = _curves().Curves(None, 0.5, *_cells(parts.grouping), config.secure_sum != NONE, ends)
        return made
    if not task.kind.has_classes or len(task.classes) < BINARY:
        return NOTHING
    names, of_group = _cells(parts.grouping)
    threshold = task.threshold if config.threshold is None else config.threshold
    return View(event_of(task), threshold, names, of_group, config.secure_sum != NONE)


def _curves() -> Any:
    """The module, by a name that no reader of imports follows: jobs on classes or masks do not carry it."""
    return importlib.import_module(CURVES)


def event_of(task: Task) -> int | None:
    """Index of the class whose risk is looked at: that which the task names, of two the second; None: no one class."""
    if task.class_of_interest:
        return task.classes.index(task.class_of_interest)
    return 1 if len(task.classes) == BINARY else None


def clinical_at_site(config: RunConfig, parts: Parts, min_count: int | None, name: str) -> ClinicalAtSite | None:
    """What the site says of calibration and decisions, or of curves; None: nothing."""
    view = view_of(config, parts)
    if parts.task.kind.has_times:
        made: ClinicalAtSite = _curves().CurvesAtSite(view, min_count, kind=parts.task.kind)
        return made
    return None if view is NOTHING else ClinicalAtSite(view, min_count, config.seed, name)


def _cells(grouping: Grouping) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of the groups without the label, which nobody knows of a new patient, and each group's place in them."""
    kept = [place for place, key in enumerate(grouping.keys) if key != LABEL]
    if not kept:
        return (), ()
    names = list(product(*(grouping.values[place] for place in kept)))
    index = {name: number for number, name in enumerate(names)}
    of_group = tuple(index[tuple(cell[place] for place in kept)] for cell in product(*grouping.values))
    return tuple(", ".join(name) for name in names), of_group


def summed(rule: Rule) -> SummedRule:
    """The rule, whose weights follow from sums over the sites; raises UserError for any other."""
    if not isinstance(rule, SummedRule):
        raise UserError(f"secure_sum: {type(rule).__name__} weighs by more than sums over the sites")
    return rule


def site_part(
    config: RunConfig,
    parts: Parts,
    name: str,
    kept: SiteMemory,
    own: Credentials,
    spent: SpentFile | None = None,
    referee: Referee | None = None,
) -> SitePart:
    """What seals and masks the answers of the site ``name``, or sends them as they are; raises as ``summed``."""
    if config.secure_sum == NONE:
        return PlainAtSite()
    from fairflare.engine.aggregation import SiteSums
    from fairflare.privacy.secure_sums import Ring
    from fairflare.privacy.sum_keys import PairwiseKeys
    from fairflare.privacy.sum_protocol import graph_of

    graph = graph_of(config.mask_neighbours, len(parts.task.sites()) - bool(config.leave_out))
    keys = PairwiseKeys(name, config.sha256(), own.identity, graph)
    scheme = number_scheme(config.secure_sum, keys, own)
    scalars = parts.scalars(anchored=False)
    ring = Ring(config.mask_bits, parts.trainable)
    noise = None
    if config.site_epsilon:
        budget = (config.site_clip, config.site_epsilon, config.site_delta, config.site_colluders)
        noise = importlib.import_module(SITE_NOISE).SiteNoise(*budget, config.training.rounds, spent)
    about = (config.min_sites, config.federation, ring, noise, referee)
    return SiteSums(summed(parts.rule), scheme, keys, kept, scalars, *about)


def new_credentials(config: RunConfig) -> tuple[Credentials, Credentials]:
    """The sites' and the server's for a run on one machine."""
    if config.secure_sum != "ckks":
        return Credentials(), Credentials()
    at_site, at_server = importlib.import_module(module_of("ckks")).new_contexts()
    # Not lambdas: the sites' go to processes that may have been spawned.
    return Credentials(ckks=partial(bytes, at_site)), Credentials(ckks=partial(bytes, at_server))
