# SPDX-License-Identifier: Apache-2.0
"""The transport that calls the sites in this process: no processes, no polling, no sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairflare.engine.messages import Answer, Instruction
from fairflare.engine.site import Site


class InProcess:
    """Sites as plain objects, asked one after the other in name order.

    Another way to have the sites of a run do their work is another class with these two methods: ``InWorkers`` keeps
    them in worker processes. It yields each answer as soon as it is there, in any order: nothing in the loop may depend
    on the order. ``engine.setup.local.LocalSites`` chooses between them.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = dict(sorted(sites.items()))

    def sites(self) -> list[str]:
        return list(self._sites)

    def members(self) -> list[Site]:
        """The sites' objects, for who changes what they have before a run."""
        return list(self._sites.values())

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """One answer per instruction; a site's exception is a bug here, not a fault of a network, and is raised."""
        for name in sorted(instructions):
            yield self._sites[name].handle(instructions[name])
