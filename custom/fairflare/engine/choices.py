# SPDX-License-Identifier: Apache-2.0
"""Names and defaults of a configuration that sites check too, without the server's code that follows them."""

from __future__ import annotations

NO_CHOICE = "none"
BY = (NO_CHOICE, "mean", "worst", "trade-off")
"""What the choice of a run's best model goes by, see ``engine.best``."""
RATIO = 100.0
"""Default of the run key ``max_norm_ratio``. Honest sites stayed below 7 times the others, see docs/gate.md."""
