# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine, in one process or with worker processes, while it runs and once it has ended."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.findings import Finding
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Instruction, Transport
from fairflare.core.types import Round, SiteData, StateDict
from fairflare.core.workers import start_method
from fairflare.data.readers.files import FileSplit
from fairflare.data.tensors import Grouping, Split, TensorData
from fairflare.engine.checkpoint import Checkpoint
from fairflare.engine.checks import NO_CHOICE
from fairflare.engine.exchanges.base import Ended
from fairflare.engine.exchanges.clinical import view_of
from fairflare.engine.files import SUFFIX
from fairflare.engine.gate import by_site
from fairflare.engine.in_process import InProcess, InWorkers
from fairflare.engine.loop import Observer
from fairflare.engine.memory import forget
from fairflare.engine.preflight import inspect_preflight, refusal, too_small
from fairflare.engine.setup.assembly import at_server, build_federation, server_part
from fairflare.engine.setup.at_site import build_site, new_credentials, of_run
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.site import Site
from fairflare.privacy.identity import Credentials
from fairflare.privacy.schemes import NONE
from fairflare.probes.base import Probe
from fairflare.tasks.base import Task
from fairflare.trainers.base import Trainer

Look = Callable[[], tuple[list[Finding], SiteData | None]]
SITES = "sites"
"""Folder of an in-process run where the sites keep their memories."""


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
        at_server: the server's credentials, which go with the sites'.
        on_site: called with each site before its data are read.
        tell: called with what preflight finds at each site.
    """

    def __init__(self, config: RunConfig, folder: Path, parts: Parts, workers: int = 1, without: str = "") -> None:
        """``workers``: processes that the sites are spread over; 1: none beside this one, as for a stacked run.

        ``without``: a site that is not there at all, and asked for nothing.
        """
        self.on_site: Callable[[str], None] = lambda name: None
        self.tell: Callable[[str, Finding], None] = lambda name, finding: None
        at_site, self.at_server = new_credentials(config)
        names = [name for name in site_of_client(config, parts.task) if name != without]
        workers, method = 1 if config.stacked else min(workers, len(names)), start_method(config.threads)
        build = partial(local_sites, config, folder, at_site, parts if workers == 1 or method == "fork" else None)
        back = (lambda name: self.on_site(name), lambda name, finding: self.tell(name, finding))
        self.transport: Transport
        if config.stacked:
            from fairflare.engine.in_process import Stacked

            self.transport = Stacked(build(names, *back))
        elif workers == 1:
            self.transport = InProcess(build(names, *back))
        else:
            self.transport = InWorkers(names, workers, build, method, config.threads, *back)

    def __enter__(self) -> LocalSites:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self.transport, InWorkers):
            self.transport.close()

    def save(self) -> None:
        """Write the memories of sites in this process, which a run that does not last has not written."""
        if isinstance(self.transport, InProcess):
            for site in self.transport.members():
                site.memory.save()


def local_sites(
    config: RunConfig,
    folder: Path,
    credentials: Credentials,
    parts: Parts | None,
    names: Sequence[str],
    on_site: Callable[[str], None],
    tell: Callable[[str, Finding], None],
) -> dict[str, Site]:
    """The sites ``names`` of a run, which live in one process; it builds ``parts`` where it is given none."""

    def announced(name: str, look: Look) -> tuple[list[Finding], SiteData | None]:
        on_site(name)
        return look()

    parts, sites = parts or build_parts(config, at_site=True), {}
    known = site_of_client(config, parts.task)
    training = [name for name in known if name != config.leave_out]
    pooling = parts.selector.select(training, Round(1, 1), config.seed, 1) if parts.selector.pools else ()
    for name in names:
        own = folder / SITES / f"{name}{SUFFIX}"
        more: dict[str, Any] = {"tell": partial(tell, name), "credentials": credentials}
        far: Callable[[str], None] = partial(lambda of, text: on_site(f"{of}: {text}"), name)
        site = build_site(config, parts, name, memory=own, progress=far, **more)
        if name in pooling:
            site.look = partial(_pooled, site.look, parts, [known[n] for n in training if n != name])
        site.look = partial(announced, name, site.look)
        of = site.exchanges["evaluate"]
        of.trivial = partial(once_for_rows, of.trivial, parts.task)
        sites[name] = site
    return sites


def _pooled(look: Look, parts: Parts, others: Sequence[str]) -> tuple[list[Finding], SiteData | None]:
    """What a site finds of its data, to which the training examples of ``others`` are added."""
    found, own = look()
    if not isinstance(own, TensorData):
        return found, own
    return found, pooled(own, [parts.task.site_data(name) for name in others]).grouped(parts.grouping)


def once_for_rows(
    results: Callable[[SiteData], Mapping[str, Mapping[str, float]]], task: Task, data: SiteData
) -> Mapping[str, Mapping[str, float]]:
    """What needs no network, computed once for the same rows: the runs of a comparison are many, and on one table."""
    if not isinstance(data, TensorData) or not (rows := _rows(data)):
        return results(data)
    metrics = tuple(map(task.metric, task.metrics))
    key = (repr(results), type(task), repr(task), task.kind, metrics, type(data), rows)
    if key not in _known:
        _known[key] = results(data)
    return copy.deepcopy(_known[key])


_known: dict[tuple[Any, ...], Mapping[str, Mapping[str, float]]] = {}


def _rows(data: TensorData) -> str:
    """A hash of a table's three splits; empty where they are no table in memory."""
    digest = hashlib.sha256()
    for split in data.splits.values():
        if not isinstance(split, Split) or split.inputs.dim() != 2:
            return ""
        for tensor in (split.inputs, split.targets):
            digest.update(f"{tensor.shape}".encode())
            digest.update(tensor.numpy().tobytes())
        digest.update(repr(split.attributes).encode())
    return digest.hexdigest()


def starts_anew(config: RunConfig, parts: Parts) -> bool:
    """Whether every round follows from the server's checkpoint alone: no site keeps anything for the next one."""
    trainer, training = parts.trainer, config.training
    plain = all(getattr(type(trainer), name) is getattr(Trainer, name) for name in ("train", "_train", "finish"))
    steps = (training.local_steps, training.fewest_steps, training.most_steps)
    keeps = training.keep_optimizer or any(number is not None for number in steps)
    keeps |= any(type(probe).remember is not Probe.remember for probe in parts.probes)
    keeps |= config.exchange != "float32" or config.secure_sum != NONE or config.best_by != NO_CHOICE
    return plain and trainer.is_shared and not keeps


def step_after(config: RunConfig, folder: Path, model: StateDict, standing: Checkpoint) -> dict[str, Any]:
    """What the log says of the step that ``config`` names; the sites keep what they fit in the run's ``folder``.

    ``model`` is what the run has ended with, beside the rest of what it left.

    Raises:
        UserError: the sites have personal models, which are theirs and not in the folder's model.
        RunFailed: a site's data have errors.
    """
    parts = build_parts(config, at_site=True)
    if parts.has_personal:
        raise UserError(f"{config.method}: keeps personal models at the sites; run it with --set after={config.after}")
    halves = at_server(config, parts, view_of(of_run(config, parts)))
    after = next(one for one in halves if one.event == "after")
    parts.task.check_data()
    forget(folder / SITES, site_of_client(config, parts.task))  # whose folder it is may take any number of steps
    last = Round(config.training.rounds, config.training.rounds)
    with LocalSites(config, folder, parts) as sites:
        aggregation = server_part(config, parts, sites.at_server)
        asked = {site: Instruction("preflight", last, {}) for site in sites.transport.sites()}
        answers = list(sites.transport.exchange(asked))
        statements, refused = inspect_preflight(answers, all_versions(), standing.declared, config.accept)
        small = too_small(statements)
        if reason := refusal(statements, refused + aggregation.learn(answers), small):
            raise RunFailed(reason)
        own = parts.rule.in_use(model, standing.models, [site for site in asked if site not in small])
        found, rejections = after.run(Ended(sites.transport, aggregation, own, {}, last, standing.declared))
    forget(folder / SITES, asked)
    return {**found, "rejected": by_site(rejections)}


def pooled(own: TensorData, others: Sequence[TensorData]) -> TensorData:
    """``own`` with the training examples of ``others`` after its own; validation and test stay its own.

    Every example is as its own site prepares it, e.g. scaled by that site's patients: as all other methods see it.

    Args:
        own: of the site that trains; stays as it is. Its groups have to be told apart anew, see ``grouped``.
        others: of the other sites, in their order.

    Raises:
        UserError: the sites normalise or augment their images differently.
    """
    every = [own, *others]
    if any((data.mean, data.std, data.augment) != (own.mean, own.std, own.augment) for data in every):
        raise UserError("pooled: expected sites that prepare their images alike, and these do not")
    joined = copy.copy(own)
    joined.splits = {**own.splits, "train": _joined([data.splits["train"] for data in every])}
    joined.class_counts = torch.stack([data.class_counts for data in every]).sum(0)
    return joined.on(own.device).grouped(Grouping())


def _joined(splits: Sequence[Split | FileSplit]) -> Split | FileSplit:
    """All examples in their order; from files where any of them is."""
    names = {name for split in splits for name in split.attributes}
    attributes = {
        name: [v for split in splits for v in split.attributes.get(name, [""] * len(split))] for name in sorted(names)
    }
    held = [split for split in splits if isinstance(split, Split)]
    if len(held) == len(splits):
        return Split(torch.cat([s.inputs for s in held]), torch.cat([s.targets for s in held]), attributes)
    places = [(split, row) for split in splits for row in range(len(split))]
    workers = max(split.num_workers for split in splits if isinstance(split, FileSplit))
    labels = torch.cat([split.labels for split in splits])
    return FileSplit(places, _example, labels, attributes, cache_rate=0.0, num_workers=workers)


def _example(place: tuple[Split | FileSplit, int]) -> tuple[Tensor, Tensor]:
    split, row = place
    return split.example(row) if isinstance(split, FileSplit) else (split.inputs[row], split.targets[row])
