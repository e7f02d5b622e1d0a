# SPDX-License-Identifier: Apache-2.0
"""One method for each way in which methods keep state, exchange and train: what a kill or an absence can meet.

`make test` kills, silences and breaks a run of each of these; `make test-long` one of every method.
"""

from fairflare.aggregators.base import Rule
from fairflare.core import registry
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.trainers.base import SERVER_HALF, Trainer

RULE_SAYS = ("own_models", "counts_own", "alone", "donates")
RULE_DOES = ("anchor", "anchors", "orders", "tensors_for")
TRAINER_DOES = (*SERVER_HALF, "personal_entries", "site_model", "site_data")


def mechanism(id):
    """What of the loop, the checkpoint and the sites' memory a run of this method uses."""
    entry = registry.get_method(id)
    parts = default_parts(entry)
    return (entry.selector, entry.server_optimizer, *of_rule(parts.rule), *of_trainer(parts.trainer))


def of_rule(rule):
    """What of the loop and the checkpoint a rule uses."""
    said = [bool(getattr(rule, name)) for name in RULE_SAYS]
    return (*said, *(getattr(type(rule), name) is not getattr(Rule, name) for name in RULE_DOES))


def of_trainer(trainer):
    """What of the loop and the sites' memory a trainer uses."""
    does = [getattr(type(trainer), name) is not getattr(Trainer, name) for name in TRAINER_DOES]
    return (*does, trainer.keeps_personal_model, trainer.shares_model, bool(trainer.sends), bool(trainer.heeds))


def representatives(names=None, of=mechanism):
    """The first name of each mechanism; by default of all methods."""
    found = {}
    for id in sorted(names or registry.methods()):
        found.setdefault(of(id), id)
    return sorted(found.values())
