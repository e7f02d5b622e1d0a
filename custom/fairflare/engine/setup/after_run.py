# SPDX-License-Identifier: Apache-2.0
"""A step after the last round, or what joining gave, of a run that has ended and whose sites' data are here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import Round, StateDict
from fairflare.core.versions import all_versions
from fairflare.engine.aggregation.base import Aggregation
from fairflare.engine.entries import by_site
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import forget
from fairflare.engine.messages import Instruction, Transport
from fairflare.engine.preflight import inspect_preflight, refusal
from fairflare.engine.setup.at_server import after_at_server, benefit_at_server, server_part
from fairflare.engine.setup.clinical import view_of
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.local import SITES, LocalSites
from fairflare.engine.setup.parts import Parts, build_parts


@dataclass(frozen=True)
class Ended:
    """What a run that has ended left.

    Attributes:
        model: its final model.
        models: site -> a model of its own, if the rule gave it one.
        declared: site -> training examples that it declared.
        first: hash of the model that it began with.
    """

    model: StateDict
    models: Mapping[str, StateDict]
    declared: Mapping[str, int]
    first: str = ""


def step_after(config: RunConfig, folder: Path, ended: Ended) -> dict[str, Any]:
    """What the log says of the step that ``config`` names; the sites keep what they fit in ``folder``.

    Args:
        config: of the run, with the step.
        folder: the run's.
        ended: what it left.

    Raises:
        UserError: the sites have personal models, which are theirs and not in the folder's model.
        RunFailed: a site's data have errors.
    """
    parts = build_parts(config, at_site=True)
    after = after_at_server(config, parts, view_of(config, parts))
    assert after is not None  # the configuration names one
    with _sites_of(config, folder, parts, ended, f"--set after={config.after}") as (transport, aggregation):
        own = parts.rule.in_use(ended.model, ended.models, transport.sites())
        found, rejections = after.run(transport, aggregation, own, _last(config), ended.declared)
    return {**found, "rejected": by_site(rejections)}


def benefit_after(config: RunConfig, folder: Path, ended: Ended) -> dict[str, Any]:
    """What the log says of what joining gave each site, which trains alone now; its model stays in ``folder``.

    Args:
        config: of the run, with ``solo``.
        folder: the run's.
        ended: what it left.

    Raises:
        UserError: the sites have personal models, or this machine makes another initial model than the run's.
        RunFailed: a site's data have errors.
    """
    parts = build_parts(config)
    question = benefit_at_server(config, parts)
    assert question is not None  # the configuration asks
    if model_hash(parts.model) != ended.first:
        raise UserError("solo: this machine makes another initial model than the run began with; run it with --solo")
    first = {key: value.clone() for key, value in parts.model.items()}
    with _sites_of(config, folder, parts, ended, "--solo") as (transport, _):
        training = [site for site in transport.sites() if site != config.leave_out]
        own = parts.rule.in_use(ended.model, ended.models, training)
        found, rejections = question.run(transport, first, own, _last(config), ended.declared)
    return {**found, "rejected": by_site(rejections)}


@contextlib.contextmanager
def _sites_of(
    config: RunConfig, folder: Path, parts: Parts, ended: Ended, instead: str
) -> Iterator[tuple[Transport, Aggregation]]:
    """The run's sites, which have passed preflight anew and forget afterwards what they were asked."""
    if parts.has_personal:
        raise UserError(f"{config.method}: keeps personal models at the sites; run it with {instead}")
    parts.task.check_data()
    forget(folder / SITES, site_of_client(config, parts.task))  # whose folder it is may take any number of steps
    with LocalSites(config, folder, parts) as sites:
        aggregation = server_part(config, parts, sites.at_server)
        asked = {site: Instruction("preflight", _last(config), {}) for site in sites.transport.sites()}
        answers = list(sites.transport.exchange(asked))
        statements, refused = inspect_preflight(answers, all_versions(), ended.declared, config.accept)
        if reason := refusal(statements, refused + aggregation.learn(answers)):
            raise RunFailed(reason)
        yield sites.transport, aggregation
    forget(folder / SITES, asked)


def _last(config: RunConfig) -> Round:
    return Round(config.training["rounds"], config.training["rounds"])
