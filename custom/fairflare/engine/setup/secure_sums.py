# SPDX-License-Identifier: Apache-2.0
"""A site's side of a configuration's aggregation, in the clear or secure sums; the server's is in ``at_server``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fairflare.aggregators.base import Rule, SummedRule
from fairflare.core.errors import UserError
from fairflare.engine.aggregation.base import PlainAtSite, SitePart
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.run_config import RunConfig
from fairflare.privacy.secure_sum.schemes import NONE, Credentials, number_scheme

if TYPE_CHECKING:
    from fairflare.engine.setup.site_parts import Parts


def summed(rule: Rule) -> SummedRule:
    """The rule, whose weights follow from sums over the sites; raises UserError for any other."""
    if not isinstance(rule, SummedRule):
        raise UserError(f"secure_sum: {type(rule).__name__} weighs by more than sums over the sites")
    return rule


def site_part(config: RunConfig, parts: Parts, name: str, kept: SiteMemory, own: Credentials) -> SitePart:
    """A site's part of the run's aggregation."""
    if config.secure_sum == NONE:
        return PlainAtSite()
    from fairflare.engine.aggregation.site_sums import SiteSums
    from fairflare.privacy.secure_sum.graph import graph_of
    from fairflare.privacy.secure_sum.keys import PairwiseKeys
    from fairflare.privacy.secure_sum.ring import Ring

    graph = graph_of(config.mask_neighbours, len(parts.task.sites()) - bool(config.leave_out))
    keys = PairwiseKeys(name, config.sha256(), own.identity, graph)
    scheme = number_scheme(config.secure_sum, keys, own)
    scalars = parts.scalars(anchored=False)
    ring = Ring(config.mask_bits, parts.trainable)
    return SiteSums(summed(parts.rule), scheme, keys, kept, scalars, config.min_sites, config.federation, ring)


def new_credentials(config: RunConfig) -> tuple[Credentials, Credentials]:
    """The sites' and the server's for a run on one machine."""
    if config.secure_sum != "ckks":
        return Credentials(), Credentials()
    from fairflare.privacy.secure_sum.ckks import new_contexts

    at_site, at_server = new_contexts()
    # Not lambdas: the sites' go to processes that may have been spawned.
    return Credentials(ckks=partial(bytes, at_site)), Credentials(ckks=partial(bytes, at_server))
