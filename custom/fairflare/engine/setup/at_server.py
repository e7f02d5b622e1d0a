# SPDX-License-Identifier: Apache-2.0
"""The server's sides of what a configuration asks for: the aggregation, the step after it, what joining gives."""

from __future__ import annotations

from fairflare.core import registry
from fairflare.engine.after.base import AfterStep
from fairflare.engine.after.server import After, Benefit
from fairflare.engine.aggregation.base import Aggregation, Plain
from fairflare.engine.clinical import View
from fairflare.engine.setup.after import shape_of, step_of
from fairflare.engine.setup.at_site import PLAIN, benefit_reports
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.secure_sums import summed
from fairflare.engine.setup.site_parts import Parts
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.privacy.secure_sum.protocol import LEAST
from fairflare.privacy.secure_sum.schemes import NONE, Credentials, combiner, sealed_sizes

TRAINED = "the model was trained on these cases: it fits them better than new ones, and no guarantee holds"
MEASURED = "parts of the method measured on these cases in every round: they are not quite new to the model"
OWN = "fitted to the model that each site uses, which is its own"
NEW = "the method's parts did not use these cases; whether anyone chose settings by them this log cannot know"


def server_part(config: RunConfig, parts: Parts, own: Credentials) -> Aggregation:
    """The server's part of the run's aggregation."""
    if config.secure_sum == NONE:
        return Plain()
    from fairflare.engine.aggregation.server_sums import Secure, ServerSums
    from fairflare.privacy.secure_sum.keys import verified
    from fairflare.privacy.secure_sum.ring import Ring

    context = config.sha256()
    sums = ServerSums(
        combine=combiner(config.secure_sum, own),
        vouched=lambda site, said: verified(context, site, said, own.identity),
        sizes=sealed_sizes(config.secure_sum, summed(parts.rule).n_terms),
        least=max(config.min_sites, LEAST),
        ring=Ring(config.mask_bits, parts.trainable),
    )
    return Secure(sums)


def after_at_server(config: RunConfig, parts: Parts, view: View) -> After | None:
    """The step after the last round; ``view``: what sites say of calibration and decisions."""
    step = step_of(config)
    if step is None:
        return None
    return After(config.after, step, shape_of(config, parts), config.secure_sum != NONE, _remark(step, parts), view)


def trains_alone(trainer: str) -> str:
    """Id of the trainer with which a site trains by itself: the run's own where that exchanges nothing else."""
    return trainer if registry.get_trainer(trainer)().is_alone else PLAIN


def benefit_at_server(config: RunConfig, parts: Parts) -> Benefit | None:
    """What joining gives each site; None where the run does not ask."""
    if not config.solo:
        return None
    task, ends = parts.task, EarlyEnd(config.min_responses, config.grace)
    return Benefit(benefit_reports(parts), trains_alone(config.trainer), task.measures, task.group_measures, ends)


def _remark(step: AfterStep, parts: Parts) -> str:
    """What a reader must know of the calibration cases, and of whose model they are."""
    measured = any(need.split == step.split for need in parts.needs)
    cases = TRAINED if step.split == "train" else MEASURED if measured else NEW
    return f"{cases}; {OWN}" if parts.has_personal or parts.rule.counts_own else cases
