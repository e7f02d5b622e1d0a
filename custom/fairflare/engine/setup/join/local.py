# SPDX-License-Identifier: Apache-2.0
"""A join of sites in one process: the same objects as over FLARE."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.engine.files import SUFFIX
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import new_credentials
from fairflare.engine.setup.join.server import Join
from fairflare.engine.setup.join.site import Phases
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.run_config import RunConfig


def run_join(config: RunConfig, folder: Path, tell: Any = lambda name, finding: None) -> dict[str, Any]:
    """The join that ``config`` describes, in ``folder``, where it goes on if it was cut short.

    Args:
        tell: called with a site and what preflight finds there.
    """
    at_site, at_server = new_credentials(config)
    home = folder / SITES
    with contextlib.ExitStack() as stack:
        sites: dict[str, Any] = {}
        for name in site_names(config):
            memory, own = home / f"{name}{SUFFIX}", partial(tell, name)
            sites[name] = Phases(config, name, memory, tell=own, credentials=at_site, ledger=home / name)
            stack.callback(sites[name].close)
        return Join(config, InProcess(sites), folder, "local", at_server).run()
