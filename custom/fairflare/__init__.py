# SPDX-License-Identifier: Apache-2.0
"""FairFLARE: fair federated learning for hospitals, as NVIDIA FLARE jobs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import fairflare.tasks as tasks
    from fairflare.api import Federation as Federation
    from fairflare.api import compare as compare
    from fairflare.api import decide as decide
    from fairflare.core.metric import Metric as Metric
    from fairflare.estimators import FederatedClassifier as FederatedClassifier
    from fairflare.estimators import FederatedRegressor as FederatedRegressor
    from fairflare.estimators import FederatedSurvival as FederatedSurvival
    from fairflare.inference.frames import metric_frame as metric_frame
    from fairflare.studies.study import Study as Study

__version__ = "0.2.0"
_HOMES = {
    "FederatedClassifier": "fairflare.estimators",
    "FederatedRegressor": "fairflare.estimators",
    "FederatedSurvival": "fairflare.estimators",
    "Federation": "fairflare.api",
    "Metric": "fairflare.core.metric",
    "Study": "fairflare.studies.study",
    "compare": "fairflare.api",
    "decide": "fairflare.api",
    "metric_frame": "fairflare.inference.frames",
    "tasks": "",
}
"""Name -> its module, which is imported when the name is first used: a job's processes and ``--help`` do without."""
__all__ = [
    "FederatedClassifier",
    "FederatedRegressor",
    "FederatedSurvival",
    "Federation",
    "Metric",
    "Study",
    "__version__",
    "compare",
    "decide",
    "metric_frame",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """What ``from fairflare import NAME`` gives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairflare' has no attribute {name!r}")
    if not _HOMES[name]:
        return importlib.import_module(f"fairflare.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, and no others."""
    return sorted(__all__)
