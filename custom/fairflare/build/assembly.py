# SPDX-License-Identifier: Apache-2.0
"""Builds a federation's two sides from a ``RunConfig``; every transport starts here, so they cannot differ."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fairflare.build import after, tasks
from fairflare.build.about import about
from fairflare.build.chosen import composed_title
from fairflare.build.config import RunConfig, site_of_client
from fairflare.build.config_checks import refuse_pooling
from fairflare.build.method_parts import method_parts, part
from fairflare.build.secure_sums import new_credentials, server_part, site_part, summed
from fairflare.clinic.base import Task, TestSet
from fairflare.clinic.grouping import Grouping
from fairflare.clinic.networks import normalisation
from fairflare.clinic.pooled import pooled
from fairflare.clinic.preflight import preflight
from fairflare.clinic.site_config import SiteConfig, find_site_config, stricter
from fairflare.clinic.tensors import TensorData
from fairflare.core import registry, user_code
from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import Execution, default_device, keep_freed_memory, shared_gpu
from fairflare.core.findings import Finding
from fairflare.core.schema import Slot, numbers_of, slots_of, tensors_of
from fairflare.core.seeds import forget_seeds, seed_everything
from fairflare.core.types import Batch, Need, Number, Outline, Round, SiteData, StateDict, Training, metric_range
from fairflare.core.versions import versions
from fairflare.core.workers import start_method
from fairflare.federation.audit import AuditLog
from fairflare.federation.early_end import EarlyEnd
from fairflare.federation.evaluation import finite, predict
from fairflare.federation.files import AUDIT, CONFIG, MOST_JSON, read_bytes
from fairflare.federation.gate import Gate
from fairflare.federation.in_process import InProcess
from fairflare.federation.in_workers import InWorkers
from fairflare.federation.loop import Federation, Observer
from fairflare.federation.memory import SiteMemory, forget
from fairflare.federation.messages import Transport
from fairflare.federation.scoring import LAST, Beside, Score
from fairflare.federation.site import Site
from fairflare.federation.stacked import Stacked
from fairflare.federation.state import save_json
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE, Credentials, sealed_sizes
from fairflare.probes.base import Probe
from fairflare.rules.base import Rule
from fairflare.rules.bounded import bounded
from fairflare.selectors.all import All
from fairflare.selectors.base import Selector
from fairflare.server_optimizers.base import ServerOptimizer
from fairflare.server_optimizers.none import Add
from fairflare.trainers.base import Trainer
from fairflare.trainers.together import unstackable

T = TypeVar("T")
SITES = "sites"
"""Folder of an in-process run where the sites keep their memories."""
BESIDE = {"local": Beside.NOTHING, "sim": Beside.EVALUATION, "flare": Beside.ROUNDS}
"""Where the federation runs -> what its sites may do while the server scores."""


@dataclass(frozen=True)
class Parts:
    """The objects that a configuration names."""

    task: Task
    rule: Rule
    trainer: Trainer
    probes: tuple[Probe, ...]
    network: nn.Module
    model: StateDict
    """The initial model w^0."""
    grouping: Grouping
    selector: Selector = field(default_factory=All)
    server_optimizer: ServerOptimizer = field(default_factory=Add)

    @property
    def outline(self) -> Outline:
        """What server and sites know alike."""
        return Outline(self.model, self.grouping.names, len(self.task.classes))

    def scalars(self, *, anchored: bool) -> tuple[Number, ...]:
        """The numbers that sites may report in a round's first exchange, or in its second."""
        probes = [p for p in self.probes if (p.when == "anchored") == anchored]
        found = {s.name: s for probe in probes for s in probe.scalars(self.outline)}
        return tuple((found if anchored else found | {s.name: s for s in numbers_of(self.trainer)}).values())

    @property
    def sent_tensors(self) -> dict[str, Slot]:
        """The tensors that sites may send beside their updates; those that the rule wants must be there."""
        parts = (self.trainer, *(probe for probe in self.probes if probe.when != "anchored"))
        return slots_of((s for part in parts for s in tensors_of(part)), self.outline, self.rule.wanted)

    @property
    def received_tensors(self) -> dict[str, Slot]:
        """The tensors that the rule may send beside the model."""
        parts: tuple[Trainer | Probe, ...] = (self.trainer, *self.probes)
        return slots_of((s for part in parts for s in part.receives), self.outline)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the method needs of every site's data."""
        parts: tuple[Rule | Trainer | Probe, ...] = (self.rule, *self.probes, self.trainer)
        return tuple(need for part in parts for need in part.needs)

    @property
    def metrics(self) -> dict[str, tuple[float, float]]:
        """The metrics that sites may report, with their ranges."""
        names = (*self.task.metrics, "loss", "train_loss")
        return {name: metric_range(name) for name in names} | dict(self.task.metric_ranges)

    @property
    def personal(self) -> frozenset[str]:
        """The model's entries that stay at the sites.

        Raises:
            UserError: the trainer finds none to keep, names others than the model's, or would leave none to share.
        """
        entries = self.trainer.personal_entries(self.model)
        shared = [key for key, value in self.model.items() if value.is_floating_point() and key not in entries]
        if not entries <= set(self.model) or not shared or (entries and self.trainer.keeps_personal_model):
            raise UserError(f"trainer {type(self.trainer).__name__}: personal entries: expected a part of the model's")
        return entries

    @property
    def has_personal(self) -> bool:
        """Whether sites have personal models, be it in some entries alone."""
        return self.trainer.keeps_personal_model or bool(self.personal)

    @property
    def counts_own(self) -> bool:
        """Whether sites use models of their own, so that the results of the run are those of these."""
        return self.rule.counts_own or bool(self.personal) or not self.trainer.shares_model

    @property
    def shared(self) -> StateDict:
        """The initial model without the entries that stay at the sites."""
        personal = self.personal
        return {key: value for key, value in self.model.items() if key not in personal}

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the trainable parameters."""
        return frozenset(name for name, p in self.network.named_parameters() if p.requires_grad)


def build_parts(config: RunConfig, *, at_site: bool = False) -> Parts:
    """Task, rule, the probes that the rule wants, and the network.

    Args:
        config: the run.
        at_site: True where the network only ever holds received models: pretrained weights, which are a file of the
            server's machine, are not looked for.
    """
    torch.set_num_threads(config.threads)
    user_code.check(config.code)
    method = registry.get_method(config.method)
    options = without_weights(config.options) if at_site else config.options
    task = tasks.load(config.task, config.preset, **options)
    made = method_parts(method, config.settings, **config.parts)
    seed_everything(task.initial_seed(config.seed))
    network = task.network()
    forget_seeds()  # FLARE draws ports from Python's generator: two servers must not draw the same ones
    model = {key: value.detach().clone() for key, value in network.state_dict().items()}
    grouping = task.grouping(config.group_by)
    outline = Outline(model, grouping.names, len(task.classes))
    chosen = chosen_probes(made.rule, made.probes, outline, made.trainer)
    rule = bounded(made.rule, config.bounds)
    parts = Parts(task, rule, made.trainer, chosen, network, model, grouping, made.selector, made.server_optimizer)
    parts.personal  # noqa: B018  (whatever is wrong with it is said before anything starts)
    if reason := made.trainer.unsuited(network):
        raise UserError(f"trainer {config.trainer or method.trainer}: {reason}")
    if config.stacked and (
        reason := unstackable(network, made.trainer, part(Training, config.training), default_device())
    ):
        raise UserError(f"stacked: {reason}")
    return parts


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
    header = {
        "method": config.method,
        "task": f"{config.task}:{config.preset}",
        "seed": config.seed,
        "config_sha256": config.sha256(),
        "config_json_sha256": hashlib.sha256(read_bytes(folder / CONFIG, MOST_JSON)).hexdigest(),
        "versions": versions(),
    }
    numbers = parts.scalars(anchored=False)
    gate = Gate(
        trainable=parts.trainable,
        scalars=numbers,
        wanted=tuple(name for name in parts.rule.wanted if name in {number.name for number in numbers}),
        tensors=parts.sent_tensors,
        anchored=parts.scalars(anchored=True),
        max_norm_ratio=config.max_norm_ratio,
        metrics=parts.metrics,
        personal=parts.personal,
        personal_results=parts.has_personal,
    )
    return Federation(
        rule=parts.rule,
        aggregation=server_part(config, parts, credentials or Credentials()),
        gate=gate,
        transport=transport,
        rounds=config.training["rounds"],
        lr=config.training["lr"],
        min_sites=config.min_sites,
        folder=folder,
        header=header,
        observers=observers,
        groups=parts.grouping.names,
        leave_out=config.leave_out,
        accept=config.accept,
        score=scorer(parts, config.training["batch_size"]) if _is_scored(parts) else None,
        scored_rounds=LAST if parts.task.table_sets() else 1,
        beside=BESIDE[env],
        selector=parts.selector,
        server_optimizer=parts.server_optimizer,
        trainer=parts.trainer,
        seed=config.seed,
        early_end=EarlyEnd(config.min_responses, config.grace),
        after=after.at_server(config, parts),
    )


def _is_scored(parts: Parts) -> bool:
    """Whether there are shared test sets, and one model that the sites use."""
    return parts.task.has_test_sets and not parts.counts_own


def save_config(config: RunConfig, parts: Parts, folder: Path, env: str) -> None:
    """Write ``config.json``: the run's configuration and what a reader should know beside it."""
    method = registry.get_method(config.method)
    described = {
        "about": about(config, parts),
        "title": composed_title(method, config.parts),
        "paper": str(method.paper),
        "probes": list(registry.probes_of(method, config.trainer)),
        "normalisation": normalisation(parts.network),
    }
    save_json(folder / CONFIG, {**config.to_json(), **described, "env": env, "versions": versions()})


def _has_begun(folder: Path) -> bool:
    """Whether the log in ``folder`` has a first line, which holds the hash of the ``config.json`` beside it."""
    return (folder / AUDIT).is_file() and bool(AuditLog(folder / AUDIT).first)


def allowed(parts: Parts, secure_sum: str) -> Egress:
    """What may leave a site in this run."""
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


def scorer(parts: Parts, batch_size: int) -> Score:
    """Scores models on the task's shared test sets, which are built at the first call and kept.

    A model that is not the final one only on those of the papers' tables, which are of the last rounds' mean.
    """
    # Without the initial model, which nobody needs once the run has begun.
    task, network, shared = parts.task, parts.network, parts.trainer.shared_batches
    found: list[TestSet] = []
    tabled = set(task.table_sets().values())

    def score(model: StateDict, final: bool, before_batch: Callable[[], None]) -> dict[str, Any]:
        found.extend(() if found else task.test_sets())
        device = default_device()
        network.to(device).load_state_dict(model)
        del model  # as large as the network
        return {
            test.name: {
                "corrupted": test.corrupted,
                "n": len(test.targets),
                "metrics": _scored(task, network, shared(partial(test.batches, batch_size)), device, before_batch),
            }
            for test in found
            if final or test.name in tabled
        }

    return score


def _scored(
    task: Task, network: nn.Module, batches: Iterator[Batch], device: torch.device, before_batch: Callable[[], None]
) -> dict[str, float]:
    found = predict(network, batches, device, task.condense, before_batch)
    return finite(task.evaluate(*found[:2]))


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
    training = part(Training, config.training)
    if own and own.batch_size:
        training = dataclasses.replace(training, batch_size=own.batch_size)
    execution = _execution(own, training, place=list(known).index(name) if name in known and not local else 0)
    min_count = stricter(own.min_count, config.min_count) if own else config.min_count

    def look() -> tuple[list[Finding], SiteData | None]:
        found, data = preflight(
            parts.task, known.get(name, name), own, parts.grouping, min_count, parts.needs, config.accept
        )
        return found, data.on(execution.device) if data is not None else None

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
        egress=after.may_leave(config, parts, allowed(parts, config.secure_sum)),
        after=after.at_site(config, parts, min_count, memory),
        look=look,
        tell=tell,
        aggregation=site_part(config, parts, name, kept, credentials or Credentials()),
        receives=parts.received_tensors,
    )


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
    gpu = shared_gpu(place) if own.gpu is None else own.gpu
    return Execution(default_device(gpu), training.precision, layout=own.layout, compiler=own.compiler)


def without_weights(options: Mapping[str, Any]) -> dict[str, Any]:
    """Task options without the path of a file on the server's machine."""
    return {key: None if key == "pretrained_weights" else value for key, value in options.items()}


def without_folders(options: Mapping[str, Any]) -> dict[str, Any]:
    """Task options without the folder that a researcher's datalists lie in: in a federation each site has its own."""
    return {key: "" if key == "datalists" else value for key, value in options.items()}


def site_names(config: RunConfig) -> list[str]:
    """The run's sites, in the task's order."""
    return list(site_of_client(config, tasks.load(config.task, config.preset, **config.options)))


def run_local(
    config: RunConfig,
    folder: Path,
    observers: Sequence[Observer] = (),
    on_site: Callable[[str], None] = lambda name: None,
    parts: Parts | None = None,
    tell: Callable[[str, Finding], None] = lambda name, finding: None,
    sites: LocalSites | None = None,
) -> StateDict:
    """A whole federation on this machine, in this process and the workers of ``sites``.

    ``on_site`` is called with each site before its data are read, ``tell`` with what preflight finds at each.

    ``parts`` are those of ``config`` where the caller has built them already; nothing may have trained in them.
    ``sites`` are those of ``config`` and ``folder`` where the caller has started them already, as it must before any
    thread runs if they are to be forked; without it they live in this process.
    """
    parts = parts or build_parts(config)
    with contextlib.ExitStack() as stack:
        sites = sites or stack.enter_context(LocalSites(config, folder, parts))
        sites.on_site, sites.tell = on_site, tell
        federation = build_federation(config, parts, sites.transport, folder, "local", observers, sites.at_server)
        final = federation.run(parts.model)
    forget(folder / SITES, site_of_client(config, parts.task))  # nothing is left to continue
    return final


class LocalSites:
    """The sites of a run on this machine, in this process or in worker processes; as a context it ends these.

    Attributes:
        transport: reaches the sites.
        at_server: the server's credentials, which go with the sites'.
        on_site: called with each site before its data are read.
        tell: called with what preflight finds at each site.
    """

    def __init__(self, config: RunConfig, folder: Path, parts: Parts, workers: int = 1) -> None:
        """
        Args:
            config: the run.
            folder: where the sites keep their memories.
            parts: those of ``config``.
            workers: processes that the sites are spread over; 1: none beside this one, as for a stacked run.
        """
        self.on_site: Callable[[str], None] = lambda name: None
        self.tell: Callable[[str, Finding], None] = lambda name, finding: None
        at_site, self.at_server = new_credentials(config)
        names = list(site_of_client(config, parts.task))
        workers, method = 1 if config.stacked else min(workers, len(names)), start_method(config.threads)
        build = partial(local_sites, config, folder, at_site, parts if workers == 1 or method == "fork" else None)
        back = (lambda name: self.on_site(name), lambda name, finding: self.tell(name, finding))
        self.transport: Transport
        if workers == 1:
            self.transport = (Stacked if config.stacked else InProcess)(build(names, *back))
        else:
            self.transport = InWorkers(names, workers, build, method, config.threads, *back)

    def __enter__(self) -> LocalSites:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self.transport, InWorkers):
            self.transport.close()


def local_sites(
    config: RunConfig,
    folder: Path,
    credentials: Credentials,
    parts: Parts | None,
    names: Sequence[str],
    on_site: Callable[[str], None],
    tell: Callable[[str, Finding], None],
) -> dict[str, Site]:
    """Those sites of a run on this machine that live in one process; see ``run_local``.

    Args:
        config: the run.
        folder: its own.
        credentials: the sites'.
        parts: those of ``config``; None builds them, in a process that has none.
        names: the sites.
        on_site: called with each site before its data are read.
        tell: called with what preflight finds at each site.
    """
    parts, sites = parts or build_parts(config, at_site=True), {}
    known = site_of_client(config, parts.task)
    training = [name for name in known if name != config.leave_out]
    pooling = parts.selector.select(training, Round(1, 1), config.seed, 1) if parts.selector.pools else ()
    for name in names:
        own = folder / SITES / f"{name}.pt"
        site = build_site(config, parts, name, memory=own, tell=partial(tell, name), credentials=credentials)
        if name in pooling:
            site.look = partial(_pooled, site.look, parts, [known[n] for n in training if n != name])
        site.look = partial(_announced, site.look, partial(on_site, name))
        sites[name] = site
    return sites


def _pooled(
    look: Callable[[], tuple[list[Finding], SiteData | None]], parts: Parts, others: Sequence[str]
) -> tuple[list[Finding], SiteData | None]:
    """What a site finds of its data, to which the training examples of ``others`` are added."""
    found, own = look()
    if not isinstance(own, TensorData):
        return found, own
    return found, pooled(own, [parts.task.site_data(name) for name in others]).grouped(parts.grouping)


def _announced(look: Callable[[], T], announce: Callable[[], None]) -> T:
    announce()
    return look()


def chosen_probes(rule: Rule, probes: Sequence[Probe], outline: Outline, trainer: Trainer) -> tuple[Probe, ...]:
    """The probes that report something the rule or the trainer's server half uses.

    Args:
        rule: the server's.
        probes: the method's.
        outline: of the run.
        trainer: the sites', which may send numbers and tensors itself.

    Raises:
        UserError: something that the rule wants is reported by none.
    """
    sent = [spec.name for spec in trainer.sends]
    reported = {probe: {s.name for s in probe.scalars(outline)} | {s.name for s in probe.sends} for probe in probes}
    missing = [name for name in rule.wanted if name not in sent and not any(name in n for n in reported.values())]
    if missing:
        raise UserError(f"rule {type(rule).__name__}: neither trainer nor probes of the method report {missing[0]!r}")
    used = {*rule.wanted, *rule.useful}
    own = tuple(registry.get_probe(id) for id in trainer.probes)
    return tuple(
        p for p in probes if isinstance(p, own) or any(n in used or n.partition("/")[0] in used for n in reported[p])
    )
