# SPDX-License-Identifier: Apache-2.0
"""Builds a federation's two sides from a ``RunConfig``; every transport starts here, so they cannot differ."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fairflare import registry, user_code
from fairflare.clinic import tasks
from fairflare.clinic.base import Task, TestSet
from fairflare.clinic.grouping import Grouping
from fairflare.clinic.networks import normalisation
from fairflare.clinic.preflight import preflight
from fairflare.config import RunConfig, part, site_of_client
from fairflare.contracts import Batch, Outline, Scalar, SiteData, StateDict, Training
from fairflare.errors import DataError, UserError
from fairflare.execution import Execution, default_device
from fairflare.federation.audit import AuditLog
from fairflare.federation.gate import Gate
from fairflare.federation.in_process import InProcess
from fairflare.federation.loop import AUDIT, Federation, Observer
from fairflare.federation.memory import SiteMemory
from fairflare.federation.messages import Transport
from fairflare.federation.site import Site, predict
from fairflare.federation.state import save_json
from fairflare.findings import Finding
from fairflare.privacy.egress import Egress
from fairflare.privacy.schemes import NONE, Credentials, sealed_sizes
from fairflare.probes.base import Probe
from fairflare.rules.base import Rule
from fairflare.secure_sums import new_credentials, server_sums, site_sums
from fairflare.seeds import derive, seed_everything
from fairflare.site_config import find_site_config, stricter
from fairflare.versions import versions

T = TypeVar("T")
CONFIG = "config.json"
SITES = "sites"
"""Folder of an in-process run where the sites keep their memories."""


@dataclass(frozen=True)
class Parts:
    """The objects that a configuration names."""

    task: Task
    rule: Rule
    probes: tuple[Probe, ...]
    network: nn.Module
    model: StateDict
    """The initial model w^0."""
    grouping: Grouping

    @property
    def outline(self) -> Outline:
        """What server and sites know alike."""
        return Outline(self.model, self.grouping.names)

    def scalars(self, *, anchored: bool) -> tuple[Scalar, ...]:
        """The numbers that sites may report in a round's first exchange, or in its second."""
        probes = [p for p in self.probes if (p.when == "anchored") == anchored]
        return tuple({s.name: s for probe in probes for s in probe.scalars(self.outline)}.values())

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
    rule = part(method.rule, config.settings)
    probes = tuple(part(registry.get_probe(id), config.settings) for id in method.probes)
    seed_everything(derive(config.seed, "initial model"))
    network = task.network()
    model = {key: value.detach().clone() for key, value in network.state_dict().items()}
    grouping = task.grouping(config.group_by)
    chosen = chosen_probes(rule, probes, Outline(model, grouping.names))
    return Parts(task, rule, chosen, network, model, grouping)


def build_federation(
    config: RunConfig,
    parts: Parts,
    transport: Transport,
    folder: Path,
    env: str,
    observers: Sequence[Observer] = (),
    credentials: Credentials | None = None,
) -> Federation:
    """The server's side, writing to ``folder``, where ``config.json`` is put first."""
    method = registry.get_method(config.method)
    about = {
        "title": method.title,
        "paper": str(method.paper),
        "probes": list(method.probes),
        "normalisation": normalisation(parts.network),
    }
    if not _is_of_another(folder, config):
        save_json(folder / CONFIG, {**config.to_json(), **about, "env": env, "versions": versions()})
    header = {
        "method": config.method,
        "task": f"{config.task}:{config.preset}",
        "seed": config.seed,
        "config_sha256": config.sha256(),
        "versions": versions(),
    }
    gate = Gate(
        trainable=parts.trainable,
        scalars=parts.scalars(anchored=False),
        wanted=parts.rule.wanted,
        anchored=parts.scalars(anchored=True),
    )
    return Federation(
        rule=parts.rule,
        sums=server_sums(config, parts, credentials or Credentials()),
        gate=gate,
        transport=transport,
        rounds=config.training["rounds"],
        min_sites=config.min_sites,
        folder=folder,
        header=header,
        observers=observers,
        groups=parts.grouping.names,
        leave_out=config.leave_out,
        score=scorer(parts, config.training["batch_size"]),
    )


def _is_of_another(folder: Path, config: RunConfig) -> bool:
    """Whether ``folder`` holds a run of another configuration, which the federation is about to refuse."""
    begun = AuditLog(folder / AUDIT).first if (folder / AUDIT).is_file() else {}
    return bool(begun) and begun.get("config_sha256") != config.sha256()


def allowed(parts: Parts, secure_sum: str) -> Egress:
    """What may leave a site in this run."""
    secret = secure_sum != NONE
    return Egress(
        model=parts.model,
        scalars=() if secret else parts.scalars(anchored=False) + parts.scalars(anchored=True),
        metrics=frozenset((*parts.task.metrics, "loss", "train_loss")),
        groups=parts.grouping.names,
        sealed=sealed_sizes(secure_sum, parts.rule.n_terms) if secret else range(0),
    )


def scorer(parts: Parts, batch_size: int) -> Callable[[StateDict], dict[str, Any]]:
    """Scores models on the task's shared test sets, which are built at the first call and kept."""
    found: list[TestSet] = []

    def score(model: StateDict) -> dict[str, Any]:
        found.extend(() if found else parts.task.test_sets())
        device = default_device()
        parts.network.to(device).load_state_dict(model)
        return {
            test.name: {
                "corrupted": test.corrupted,
                "n": len(test.targets),
                "metrics": _scored(parts, test.batches(batch_size), device),
            }
            for test in found
        }

    return score


def _scored(parts: Parts, batches: Iterator[Batch], device: torch.device) -> dict[str, float]:
    return parts.task.evaluate(*predict(parts.network, batches, device, parts.task.condense)[:2])


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
    execution = Execution(default_device(own.gpu if own else None), training.precision)
    min_count = stricter(own.min_count, config.min_count) if own else config.min_count

    def look() -> tuple[list[Finding], SiteData | None]:
        found, data = preflight(parts.task, known.get(name, name), own, parts.grouping, min_count)
        return found, data.on(execution.device) if data is not None else None

    if own and own.secure_sum and config.secure_sum == NONE:
        raise DataError("secure_sum", f"site {name}: takes part in jobs with secure_sum only")
    kept = SiteMemory(memory)
    return Site(
        name=name,
        data=None,
        network=parts.network,
        trainer=part(registry.get_trainer(config.trainer), config.settings),
        probes=parts.probes,
        training=training,
        scoring=parts.task,
        seed=config.seed,
        execution=execution,
        objective=parts.task.objective,
        groups=parts.grouping.names,
        min_count=min_count,
        memory=kept,
        egress=allowed(parts, config.secure_sum),
        look=look,
        tell=tell,
        sums=site_sums(config, parts, name, kept, credentials or Credentials()),
    )


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
) -> StateDict:
    """A whole federation in this process.

    ``on_site`` is told of each site before its data are read, ``tell`` of what preflight finds at each.

    ``parts`` are those of ``config`` where the caller has built them already; nothing may have trained in them.
    """
    parts = parts or build_parts(config)
    initial = parts.model
    at_site, at_server = new_credentials(config)
    sites = {}
    for name in site_of_client(config, parts.task):
        own = folder / SITES / f"{name}.pt"
        site = build_site(config, parts, name, memory=own, tell=partial(tell, name), credentials=at_site)
        site.look = partial(_announced, site.look, partial(on_site, name))
        sites[name] = site
    final = build_federation(config, parts, InProcess(sites), folder, "local", observers, at_server).run(initial)
    shutil.rmtree(folder / SITES, ignore_errors=True)  # nothing is left to continue
    return final


def _announced(look: Callable[[], T], announce: Callable[[], None]) -> T:
    announce()
    return look()


def chosen_probes(rule: Rule, probes: Sequence[Probe], outline: Outline) -> tuple[Probe, ...]:
    """The probes that report something the rule uses; raises UserError when something wanted is reported by none."""
    reported = {probe: {s.name for s in probe.scalars(outline)} for probe in probes}
    missing = [name for name in rule.wanted if not any(name in names for names in reported.values())]
    if missing:
        raise UserError(f"rule {type(rule).__name__}: no probe of the method reports {missing[0]!r}")
    used = {*rule.wanted, *rule.useful}
    return tuple(p for p in probes if any(n in used or n.partition("/")[0] in used for n in reported[p]))
