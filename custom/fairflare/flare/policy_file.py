# SPDX-License-Identifier: Apache-2.0
"""A site's own rules for jobs, ``local/fairflare_policy.yaml``: what it takes part in. No job can read or change it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.settings import document
from fairflare.core.validation import Entries, Range, expected
from fairflare.engine.files import read_json
from fairflare.engine.memory import SPENT_ENDING
from fairflare.engine.setup import tasks
from fairflare.engine.setup.at_site import event_of
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.method_parts import NO_STEP
from fairflare.privacy.secure_sum.schemes import NONE

FILES = ("fairflare_policy.yaml", "fairflare_policy.yml", "fairflare_policy.json")
SOLO, JOIN = "solo", "join"
"""In ``after``: the benefit of joining for the site, of the run's own models, and in a job that asks nothing else."""
HERE = "this site's policy file"
"""What a submitter reads in place of its path."""
SHARES = "a list of numbers between 0 and 1"
Names = Annotated[list[str], Entries(words="a list of names")]
Count = Annotated[int, Range(0, 10**18)]


@dataclasses.dataclass(frozen=True)
class Policy:
    """What a site allows; without a file, whatever FLARE's own policies do.

    Attributes:
        allow_code: False refuses jobs that bring code, whoever submits them.
        methods: ids of the methods; None: all.
        tasks: names of the tasks; None: all.
        max_rounds: the most rounds of a job; None: any number.
        min_count: the least ``min_count`` of a job; None: any.
        secure_sum: True takes jobs with secure sums only.
        after: steps after the last round that jobs may have, which ask for numbers over single cases: "recalibrate",
            "shares", "conformal", "solo" for the benefit of joining, and "join" for jobs that ask it fold by fold.
            None: all.
        thresholds: risks from which on jobs may count patients as flagged (the run key ``threshold``, else the task's),
            since two that lie close tell of the few between; None: all.
        epsilon: the most that jobs together may spend of it, by their sum in the site's ``*.privacy.json``; then every
            job's trainer must be private (dp-sgd). None: any, spent or not.
        delta: the same, of delta.
        names: what jobs may name in the site's own ``local/custom``, as module.Name; None: everything defined there.
        classes: FLARE components that jobs may have beside this package's and FLARE's privacy filters.
    """

    allow_code: bool = True
    methods: Names | None = None
    tasks: Names | None = None
    max_rounds: Count | None = None
    min_count: Count | None = None
    secure_sum: bool = False
    after: Names | None = None
    thresholds: Annotated[list[Annotated[float, Range(0, 1)]], Entries(words=SHARES)] | None = None
    epsilon: Annotated[float, Range(0, 1e6)] | None = None
    delta: Annotated[float, Range(0, 1)] | None = None
    names: Names | None = None
    classes: Names = dataclasses.field(default_factory=list)

    def check(self, config: RunConfig) -> None:
        """Raise UserError, which says what this site expects, unless ``config`` keeps to it."""
        for key, chosen, allowed in (("method", config.method, self.methods), ("task", config.task, self.tasks)):
            if allowed is not None and chosen not in allowed:
                raise UserError(f"{key}: expected one of {', '.join(allowed)}, got {chosen!r}")
        rounds, count = config.training.get("rounds"), config.min_count
        if self.max_rounds is not None and not (type(rounds) is int and rounds <= self.max_rounds):
            raise UserError(f"rounds: expected at most {self.max_rounds}, got {rounds!r}")
        if self.min_count is not None and count is not None and not (type(count) is int and count >= self.min_count):
            raise UserError(f"min_count: expected at least {self.min_count}, got {count!r}")
        if self.secure_sum and config.secure_sum == NONE:
            raise UserError("secure_sum: expected masks or ckks, got none")
        if self.after is not None and config.after not in (NO_STEP, *self.after):
            raise UserError(f"after: expected one of {', '.join((NO_STEP, *self.after))}, got {config.after!r}")
        if self.after is not None and config.solo and SOLO not in self.after:
            raise UserError("solo: expected false, for this site does not report its benefit of joining")
        if self.after is not None and config.join and JOIN not in self.after:
            raise UserError("join: expected none, for this site does not report its benefit of joining")
        if self.thresholds is not None:
            self._check_threshold(config)
        private = registry.get_trainer(config.trainer).private
        if private and config.settings.get("trainer.draws") == "seed":
            raise UserError("trainer.draws: expected system, got seed")
        for key, left in (("epsilon", self.epsilon), ("delta", self.delta)):
            if left is not None and not private:
                raise UserError(f"trainer: expected dp-sgd, got {config.trainer!r}")
            if left is not None and not config.settings[f"trainer.{key}"] <= left:
                words = f"at most {left:g}, which is left of this site's budget"
                raise UserError(f"trainer.{key}: expected {words}, got {config.settings[f'trainer.{key}']:g}")

    def _check_threshold(self, config: RunConfig) -> None:
        task = tasks.load(config.task, config.preset, **config.options)
        if event_of(task) is None:
            return
        chosen = task.threshold if config.threshold is None else config.threshold
        if chosen not in (self.thresholds or ()):
            known = ", ".join(f"{value:g}" for value in self.thresholds or ()) or "none"
            raise UserError(f"threshold: expected one of {known}, got {chosen:g}")


def after_spending(policy: Policy, state: Path) -> Policy:
    """``policy`` with what is left of its budget after the runs that the site's ledgers in ``state`` name."""
    runs = [run for path in state.glob(f"*{SPENT_ENDING}") for run in read_json(path)["runs"].values()]
    left = {
        key: max(0.0, whole - sum(run[key] for run in runs))
        for key, whole in (("epsilon", policy.epsilon), ("delta", policy.delta))
        if whole is not None
    }
    return dataclasses.replace(policy, **left)


def read_policy(local: Path, name: str = "") -> Policy:
    """The rules in ``local``: in the file ``name``, which must be there, or in the first of ``FILES``, if any.

    Raises:
        UserError: the file is missing, not a mapping, or has an unknown key or a value of another kind.
    """
    import yaml

    found = [local / name] if name else [local / file for file in FILES if os.path.lexists(local / file)]
    if not found:
        return Policy()
    try:
        content = yaml.safe_load(found[0].read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{HERE} cannot be read ({type(error).__name__}); its administrator has to mend it") from None
    if len(found) > 1 or not isinstance(content, dict):
        raise UserError(f"{HERE}: expected one file with keys and values")
    try:
        values = document(Policy, content)
        for key, value in values.items():  # an empty line is no rule that lets everything in
            expected(key, value is not None, "a value, or no such line", value)
        return Policy(**values)
    except UserError as error:
        raise UserError(f"{HERE}: {str(error).partition(', got ')[0]}") from None  # no job reads what stands there
