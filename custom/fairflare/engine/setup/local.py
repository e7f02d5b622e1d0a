# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine, in one process or with worker processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from fairflare.core.findings import Finding
from fairflare.core.types import Round, SiteData, StateDict
from fairflare.core.workers import start_method
from fairflare.data.centralised import pooled
from fairflare.data.tensors import TensorData
from fairflare.engine.files import SUFFIX
from fairflare.engine.in_process import InProcess
from fairflare.engine.in_workers import InWorkers
from fairflare.engine.loop import Observer
from fairflare.engine.memory import forget
from fairflare.engine.messages import Transport
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.secure_sums import new_credentials
from fairflare.engine.site import Site
from fairflare.privacy.secure_sum.schemes import Credentials

T = TypeVar("T")
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
        if config.stacked:
            from fairflare.engine.vmap_sites import Stacked

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
        own = folder / SITES / f"{name}{SUFFIX}"
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
