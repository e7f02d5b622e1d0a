# SPDX-License-Identifier: Apache-2.0
"""The schemes of secure sums by name and their limits: what a configuration is checked by where a run has none."""

from __future__ import annotations

from importlib.util import find_spec

from fairflare.core import plugins
from fairflare.core.errors import UserError

NONE = "none"
SCHEMES = (NONE, "masks", "ckks")
MOST_CKKS_Q = 4
"""(1e-10)^4 and (1e6)^4 times 1e12 examples are numbers that CKKS can sum."""
SITE_CONTEXT, SERVER_CONTEXT = "client_context.tenseal", "server_context.tenseal"
"""Where FLARE's ``HEBuilder`` puts them."""
HE = "he"
"""Folder of a simulated run with contexts of its own."""
LEAST = 3
"""Sites in a sum: of two each would learn the other's number by subtracting its own."""
AUTO, ALL = "auto", "all"
NEIGHBOURS = f"{AUTO}|{ALL}|[1-9][0-9]{{0,3}}"
"""What the run key ``mask_neighbours`` may be: as many as are safe, all others, or the fewest."""


def check_scheme(name: str) -> None:
    """Raise UserError unless there is a scheme ``name`` and this machine has what it needs."""
    if name not in SCHEMES:
        raise UserError(f"secure_sum: expected one of {', '.join(SCHEMES)}, got {name!r}")
    if name == "ckks":
        module_of(name)
        if find_spec("tenseal") is None:
            raise UserError("secure_sum=ckks needs TenSEAL: pip install 'fairflare-lab[he]'")


def module_of(name: str) -> str:
    """The module of a scheme that an installed distribution brings; UserError where none does."""
    module = plugins.modules_by_name(plugins.SECURE_SUMS).get(name)
    if module is None:
        raise UserError(
            plugins.absent("secure_sum", name) or f"secure_sum {name!r}: expected a scheme that is installed"
        )
    return module
