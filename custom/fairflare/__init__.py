# SPDX-License-Identifier: Apache-2.0
"""FairFLARE: fair federated learning for hospitals, as NVIDIA FLARE jobs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairflare.api import Federation as Federation
    from fairflare.api import join as join
    from fairflare.studies.joined import Joined as Joined
    from fairflare.studies.parallel import Cluster as Cluster
    from fairflare.studies.study import Study as Study

__version__ = "0.2.0"
__all__ = ["Cluster", "Federation", "Joined", "Study", "__version__", "join"]
_HOMES = {
    "Cluster": "fairflare.studies.parallel",
    "Federation": "fairflare.api",
    "Joined": "fairflare.studies.joined",
    "Study": "fairflare.studies.study",
    "join": "fairflare.api",
}
"""Name -> its module, which is imported when the name is first used: a job's processes and ``--help`` do without."""


def __getattr__(name: str) -> Any:
    """What ``from fairflare import NAME`` gives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairflare' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The names that can be imported."""
    return sorted([*globals(), *_HOMES])
