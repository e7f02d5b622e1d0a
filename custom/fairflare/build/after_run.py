# SPDX-License-Identifier: Apache-2.0
"""A step after the last round of a run that has ended, whose sites' data are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.build.after import at_server
from fairflare.build.clinical import view_of
from fairflare.build.config import RunConfig, site_of_client
from fairflare.build.local import SITES, LocalSites
from fairflare.build.parts import build_parts
from fairflare.build.secure_sums import server_part
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import Round, StateDict
from fairflare.core.versions import all_versions
from fairflare.federation.entries import by_site
from fairflare.federation.memory import forget
from fairflare.federation.messages import Instruction
from fairflare.federation.preflight import inspect_preflight, refusal


def step_after(
    config: RunConfig, folder: Path, model: StateDict, models: Mapping[str, StateDict], declared: Mapping[str, int]
) -> dict[str, Any]:
    """What the log says of the step that ``config`` names; the sites keep what they fit in ``folder``.

    Args:
        config: of the run, with the step.
        folder: the run's.
        model: its final model.
        models: site -> a model of its own, if the rule gave it one.
        declared: site -> training examples that it declared.

    Raises:
        UserError: the sites have personal models, which are theirs and not in the folder's model.
        RunFailed: a site's data have errors.
    """
    parts = build_parts(config, at_site=True)
    if parts.has_personal:
        raise UserError(f"{config.method}: keeps personal models at the sites; run it with --set after={config.after}")
    after = at_server(config, parts, view_of(config, parts))
    assert after is not None  # the configuration names one
    parts.task.check_data()
    last = Round(config.training["rounds"], config.training["rounds"])
    forget(folder / SITES, site_of_client(config, parts.task))  # whose folder it is may take any number of steps
    with LocalSites(config, folder, parts) as sites:
        aggregation = server_part(config, parts, sites.at_server)
        asked = {site: Instruction("preflight", last, {}) for site in sites.transport.sites()}
        answers = list(sites.transport.exchange(asked))
        statements, refused = inspect_preflight(answers, all_versions(), declared, config.accept)
        if reason := refusal(statements, refused + aggregation.learn(answers)):
            raise RunFailed(reason)
        own = {site: models.get(site, model) if parts.rule.counts_own else model for site in asked}
        found, rejections = after.run(sites.transport, aggregation, own, last, declared)
    forget(folder / SITES, asked)
    return {**found, "rejected": by_site(rejections)}
