# SPDX-License-Identifier: Apache-2.0
"""A site trains alone: round by round what the method ``solo`` does, without its updates ever leaving."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairflare.aggregators.base import add_weighted, without_negative_variances
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Reply, Round, StateDict
from fairflare.engine.files import is_there, read_tensors, save_tensors
from fairflare.engine.memory import ALONE_ENDING, WORK_ENDING, SiteMemory, beside
from fairflare.privacy.egress import all_finite
from fairflare.trainers.base import Trainer

SHARE = 0.5
"""Of the time that a site has for one task."""
KEPT_AFTER = 60.0
"""Seconds of training after which a site writes down how far it is: a kill or a withdrawn task costs no more."""


@dataclass
class Alone:
    """The site's own model, and how far it is trained; it survives a kill where there is a file.

    Attributes:
        path: of the site's memory, beside which its files lie; None: nothing is kept.
        seconds: how long one call of ``advance`` may take, at least one round's time; a later call goes on.
    """

    trainer: Trainer
    rounds: int
    path: Path | None = None
    seconds: float = 1800.0
    memory: SiteMemory = field(default_factory=SiteMemory, init=False)
    model: StateDict = field(default_factory=dict, init=False)
    done: int = field(default=0, init=False)

    def advance(self, first: StateDict, train: Callable[[Instruction], Answer]) -> int:
        """Train on from where the site stands, and return the number of rounds that it has done."""
        began = kept = time.monotonic()
        self.begin(first)
        before = self.done
        while self.done < self.rounds:
            self._round(train)
            now = time.monotonic()
            if now - began + (now - began) / (self.done - before) > self.seconds:
                break
            if now - kept > KEPT_AFTER:
                self._save()
                kept = now
        self._save()
        return self.done

    def begin(self, first: StateDict) -> None:
        """From ``first``, or from where the file stands."""
        if self.model:
            return
        self.model = {key: value.detach().clone() for key, value in first.items()}
        if self.path is None:
            return
        if not is_there(beside(self.path, WORK_ENDING)):
            return
        content = read_tensors(beside(self.path, WORK_ENDING))
        if isinstance(content, dict) and content.get("rounds") != self.rounds:  # of an earlier segment
            return
        kept = _checked(content, first, self.rounds)
        self.done, self.model = kept["done"], kept["model"]
        self.memory.keep(max(self.done, 1), kept["memory"])

    @property
    def instruction(self) -> Instruction:
        """To train the next round."""
        return Instruction("train", Round(self.done + 1, self.rounds), self.model)

    def _round(self, train: Callable[[Instruction], Answer]) -> None:
        """One round."""
        answer = train(self.instruction)
        if answer.error:
            raise RuntimeError("a round of training alone failed")
        update, model = answer.update, self.model
        if all(all_finite(value) for value in update.values()):
            reply = Reply("", update, answer.n_examples)
            model = without_negative_variances(add_weighted(model, [reply], {"": 1.0}))
        self.take(model)

    def take(self, model: StateDict) -> None:
        """A round has made this of the model; what is not finite is not taken over, as no server would."""
        if all(all_finite(value) for value in model.values()):
            self.model = model
        self.done += 1

    def _save(self) -> None:
        if self.path is None:
            return
        if self.done == self.rounds:
            save_tensors(beside(self.path, ALONE_ENDING), self.model)
        content = {
            "done": self.done,
            "rounds": self.rounds,
            "model": self.model,
            "memory": self.memory.before(self.done + 1),
        }
        save_tensors(beside(self.path, WORK_ENDING), content)


def _checked(content: Any, first: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """What the file holds; raises ValueError for anything that this class does not write."""
    found = content if isinstance(content, dict) else {}
    model, done = found.get("model"), found.get("done")
    proper = isinstance(found.get("memory"), dict) and type(done) is int and 0 <= done <= rounds
    shapes = {key: value.shape for key, value in model.items()} if isinstance(model, dict) else {}
    if not proper or shapes != {key: value.shape for key, value in first.items()}:
        raise ValueError("expected a model that is being trained alone")
    return found
