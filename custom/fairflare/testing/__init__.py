# SPDX-License-Identifier: Apache-2.0
"""The contract kit: what the author of a part, a task or a metric runs in a test of their own."""

from fairflare.testing.laws import check_method, check_rule
from fairflare.testing.probes import check_probe
from fairflare.testing.server_parts import check_selector, check_server_optimizer
from fairflare.testing.tasks import check_metric, check_task
from fairflare.testing.trainers import check_trainer

__all__ = [
    "check_method",
    "check_metric",
    "check_probe",
    "check_rule",
    "check_selector",
    "check_server_optimizer",
    "check_task",
    "check_trainer",
]
