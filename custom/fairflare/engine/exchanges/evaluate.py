# SPDX-License-Identifier: Apache-2.0
"""How a model does on a site's own splits; after the last round with intervals, and what a model must be better than.

The server's half, what it accepts of an answer, is ``gate.inspect_evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fairflare.core.schema import IN_USE, Answer, Instruction
from fairflare.core.types import TRIVIAL, SiteData, SplitName, StateDict
from fairflare.engine.evaluation import Cases, Predictions, joined, over_patients, plain, results
from fairflare.engine.hashes import model_hash
from fairflare.privacy.disclosure import disclosed

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.site import Site


@dataclass
class EvaluateAtSite:
    """The site's half.

    Attributes:
        describe: what the site keeps of its training inputs, for new ones, with the final model.
        trivial: its data -> split -> metrics of an answer that needs no network, to read the final model's against.
        intervals: whether the final model's results have intervals over the site's test patients.
    """

    describe: Callable[[SiteData], Mapping[str, Any]] = lambda data: {}
    trivial: Callable[[SiteData], Mapping[str, Mapping[str, float]]] = lambda data: {}
    intervals: bool = True

    def __post_init__(self) -> None:
        self._untrained: dict[str, Any] | None = None

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"evaluate": self.evaluate}

    def evaluate(self, site: Site, instruction: Instruction) -> Answer:
        """The results of the shared model, and at the end of the run also those of the site's personal one."""
        shared, cases = self._results(site, instruction.model, instruction)
        own, personal = site.personal(instruction), dict[str, Any]()
        if own is not None:
            personal, cases = self._results(site, own, instruction)
            # Not before both models have proved to be some.
            site.memory.save_personal(own)
        final = site.is_final(instruction.round)
        if final and site.data is not None:
            site.memory.save_inputs(self.describe(site.data))
            if self._untrained is None:
                self._untrained = dict(self.trivial(site.data))
            shared |= {TRIVIAL: self._untrained} if self._untrained else {}
        model, clinical = instruction.model if own is None else own, dict[str, float]()
        if cases is not None and site.asked.is_of(model_hash(model)):
            clinical = site.exchanges["clinical"].of_model(cases)
        n = site.count(site.examples)
        content: dict[str, Any] = {"metrics": shared, "personal": personal, "clinical": clinical}
        if site.budget:
            site.memory.save_results(content)
            content["metrics"] = self._noised(site, instruction)
        answer = Answer(site.name, instruction.round.number, n_examples=n, **content)
        return disclosed(answer, "evaluate", site.budget)

    def _noised(self, site: Site, instruction: Instruction) -> dict[str, Any]:
        """What the budget releases of the results of the model that the site uses after the last round."""
        if site.records is None or not site.is_final(instruction.round) or not instruction.orders.get(IN_USE):
            return {}
        site.network.load_state_dict(instruction.model)
        outputs, targets, _ = site.predict("test")
        return site.records.results(model_hash(instruction.model), site.scoring, outputs, targets)

    def _results(
        self, site: Site, model: StateDict, instruction: Instruction
    ) -> tuple[dict[str, dict[str, Any]], Cases | None]:
        """What ``model`` does on the site's own splits, with intervals over its test cases, and these cases.

        Args:
            model: a state dict, which stays loaded. Of one that the site does not use no cases are kept.
        """
        site.network.load_state_dict(model)
        kept: list[Predictions] = []
        shows = site.is_final(instruction.round)

        def both(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            """What is kept of a batch; beside it, of the same pass, what calibration is of."""
            kept.append((*plain(outputs, targets), targets))
            return site.scoring.condense(outputs, targets)

        keeps = shows and bool(instruction.orders.get(IN_USE)) and "clinical" in site.exchanges
        found: dict[SplitName, Predictions] = {"val": site.predict("val")}
        found["test"] = site.predict("test", both if keeps else None)
        shown = results(found, site.examples, site.scoring, site.groups, site.min_count)
        if shows and self.intervals:
            shown |= over_patients(found["test"], site.scoring, site.min_count, shown["test"], site.patients("test"))
        return shown, Cases(*joined(kept)[:2], found["test"][-1], site.patients("test")) if keeps else None
