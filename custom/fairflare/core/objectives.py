# SPDX-License-Identifier: Apache-2.0
"""What trainers that ``fairflare new`` wrote in version 0.2 import; it lies in ``fairflare.core.types``."""

from fairflare.core.types import Objective, local_objective

__all__ = ["Objective", "local_objective"]
