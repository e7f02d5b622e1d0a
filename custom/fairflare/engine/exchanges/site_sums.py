# SPDX-License-Identifier: Apache-2.0
"""A site's half of sums over its cases: "calibrate" tells them once, "adjust" brings those of all sites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import SplitName
from fairflare.engine.after.base import Cases, plain

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.site import Site

CasesOf = Callable[[SplitName], Cases]


class SumsAtSite(ABC):
    """A site's half of "calibrate" and "adjust": its sums leave once, and what follows from those of all sites."""

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"calibrate": self._calibrate, "adjust": self._adjust}

    @property
    @abstractmethod
    def terms(self) -> int:
        """Numbers of the total."""

    @abstractmethod
    def sums(self, cases_of: CasesOf) -> list[float]:
        """The site's own numbers."""

    @abstractmethod
    def adjust(self, total: Sequence[float], cases_of: CasesOf, model: str) -> dict[str, float]:
        """What may leave once the total is known; ``model``: hash of the model that the site uses."""

    def question(self, site: Site, instruction: Instruction) -> tuple[str, tuple[str, ...]]:
        """What is asked, see ``Site.question``; raises AskedAgain before the last round."""
        return site.question(instruction)

    def cases(self, site: Site, split: SplitName) -> Cases:
        """The site's cases of a split under the loaded model."""
        return Cases(*site.predict(split, plain), site.patients(split))

    def calibrated(self, site: Site) -> dict[str, float]:
        """Calibration and decisions after ``adjust``, which may leave in ``Answer.clinical``."""
        return {}

    def _calibrate(self, site: Site, instruction: Instruction) -> Answer:
        """Sums over calibration cases, in the clear or sealed; raises AskedAgain."""
        question = self.question(site, instruction)
        site.asked.check(*question)
        leaves = site.aggregation.summed(self.sums(partial(self.cases, site)), instruction)
        site.asked.keep(*question)
        return Answer(site=site.name, round=instruction.round.number, **leaves)

    def _adjust(self, site: Site, instruction: Instruction) -> Answer:
        """Fit with the sums of all sites, and report what came of it; raises AskedAgain."""
        model, sites = self.question(site, instruction)
        total = site.aggregation.total(instruction, self.terms)
        site.asked.check(model, sites, total)
        site.asked.keep(model, sites, total)
        adjusted = self.adjust(total, partial(self.cases, site), model)
        number = instruction.round.number
        return Answer(site=site.name, round=number, adjusted=adjusted, clinical=self.calibrated(site))
