# SPDX-License-Identifier: Apache-2.0
"""The two sides of a configuration's secure sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairflare.config import RunConfig
from fairflare.federation.memory import SiteMemory
from fairflare.federation.site_sums import SiteSums
from fairflare.federation.sums import ServerSums
from fairflare.privacy.ckks import new_contexts
from fairflare.privacy.pairs import PairwiseKeys, verified
from fairflare.privacy.schemes import NONE, Credentials, combiner, number_scheme, sealed_sizes
from fairflare.privacy.sums import LEAST

if TYPE_CHECKING:
    from fairflare.assembly import Parts


def server_sums(config: RunConfig, parts: Parts, own: Credentials) -> ServerSums | None:
    """The server's side; None where the run has none."""
    if config.secure_sum == NONE:
        return None
    context = config.sha256()
    return ServerSums(
        combine=combiner(config.secure_sum, own),
        vouched=lambda site, said: verified(context, site, said, own.identity),
        sizes=sealed_sizes(config.secure_sum, parts.rule.n_terms),
        least=max(config.min_sites, LEAST),
    )


def site_sums(config: RunConfig, parts: Parts, name: str, kept: SiteMemory, own: Credentials) -> SiteSums | None:
    """A site's side; None where the run has none."""
    if config.secure_sum == NONE:
        return None
    keys = PairwiseKeys(name, config.sha256(), own.identity)
    scheme = number_scheme(config.secure_sum, keys, own)
    return SiteSums(parts.rule, scheme, keys, kept, parts.scalars(anchored=False), config.min_sites)


def new_credentials(config: RunConfig) -> tuple[Credentials, Credentials]:
    """The sites' and the server's for a run of one process."""
    if config.secure_sum != "ckks":
        return Credentials(), Credentials()
    at_site, at_server = new_contexts()
    return Credentials(ckks=lambda: at_site), Credentials(ckks=lambda: at_server)
