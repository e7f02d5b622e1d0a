# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: it trains alone from the initial model, then compares the two models.

``engine.alone`` trains, ``engine.benefit`` compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fairflare.core import registry
from fairflare.core.schema import Answer, Instruction, Transport
from fairflare.core.types import MOST_EXAMPLES, Cost, Number, Round, StateDict
from fairflare.engine.alone import SHARE, Alone
from fairflare.engine.answers import PlainAtSite
from fairflare.engine.benefit import DRAWS, HIGH, LEVEL, LOW, ROUNDS, N, Pair, measured, reports
from fairflare.engine.checks import TIMES, Refused, Rejection, checked_scalars, first_good, left_out, silent
from fairflare.engine.exchanges.base import Ended, Exchange, OfRun
from fairflare.engine.exchanges.train import TrainAtSite
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import AskedAgain, check_last
from fairflare.engine.straggler_policy import LATE, EarlyEnd
from fairflare.trainers.base import PlainTrainer, Trainer

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.site import Site

PLAIN = "sgd"
"""The trainer of a site alone where the run's own exchanges more than models."""
OTHER_FIRST = "this machine makes another initial model than the run began with"


@dataclass
class BenefitAtSite:
    """The site's half.

    Attributes:
        alone: the model that it trains by itself.
    """

    alone: Alone

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"solo": self._solo, "benefit": self._benefit}

    def by_itself(self, site: Site) -> Site:
        """The site as it would be in a run of the method ``solo``: nothing that it answers leaves."""
        own: dict[str, Any] = {"trainer": self.alone.trainer, "memory": self.alone.memory, "aggregation": PlainAtSite()}
        train = {"train": TrainAtSite(validates=False)}
        none: dict[str, Any] = {"exchanges": train, "egress": None, "referee": None, "receives": {}, "probes": ()}
        return dataclasses.replace(site, **own, **none)

    def _solo(self, site: Site, instruction: Instruction) -> Answer:
        """Train alone from the initial model as far as the time allows; raises AskedAgain."""
        check_last(instruction.round, site.training.rounds)
        site.asked.once("solo", model_hash(instruction.model))
        rounds = self.alone.advance(instruction.model, self.by_itself(site).handle)
        return Answer(site=site.name, round=instruction.round.number, benefit={ROUNDS: float(rounds)})

    def _benefit(self, site: Site, instruction: Instruction) -> Answer:
        """Both models on the site's own test cases; raises AskedAgain."""
        model, _ = site.question(instruction)
        if self.alone.done < site.training.rounds:
            raise AskedAgain("before the site has trained alone")
        site.asked.once("benefit", model)
        federated, alone = site.predict("test"), self.by_itself(site)
        site.network.load_state_dict(self.alone.model)
        pair = Pair(federated, alone.predict("test"), site.patients("test"))
        numbers = measured(pair, site.scoring, site.groups, site.min_count, site.seed, site.name)
        return Answer(site=site.name, round=instruction.round.number, benefit=numbers)


@dataclass(frozen=True)
class BenefitAtServer:
    """Asks every site to train alone, and what the federation's model gives it beyond that."""

    numbers: tuple[Number, ...]
    trainer: str
    metrics: tuple[str, ...] = ()
    group_metrics: tuple[str, ...] = ()
    early_end: EarlyEnd = field(default_factory=EarlyEnd)

    event: ClassVar[str] = "benefit"
    needs_first: ClassVar[bool] = True
    of_training_sites: ClassVar[bool] = True

    def run(self, ended: Ended) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says, and the rejections."""
        transport, models, round, declared = ended.transport, ended.models, ended.round, ended.declared
        if ended.first is None:
            other = [Rejection(site, "first_model", OTHER_FIRST) for site in models]
            models, first = {}, StateDict()
        else:
            other, first = [], ended.first
        ready, rejections = self._trained(transport, first, list(models), round)
        asked = {site: Instruction("benefit", round, models[site]) for site in ready}
        answers = list(transport.exchange(asked)) if asked else []
        most = {site: TIMES * declared[site] for site in declared}

        def check(answer: Answer) -> dict[str, float]:
            return self._checked(answer, round, most.get(answer.site, MOST_EXAMPLES))

        found, refused, _ = first_good(answers, check, round.number)
        about = {"metrics": list(self.metrics), "group_metrics": list(self.group_metrics)}
        content = {"trainer": self.trainer, "draws": DRAWS, "level": LEVEL, **about}
        sites = {site: found[site] for site in sorted(found)}
        rejections += left_out(refused, found) + self._missing(asked, answers, round)
        return {**content, "sites": sites}, rejections + other

    def _trained(
        self, transport: Transport, first: StateDict, sites: Sequence[str], round: Round
    ) -> tuple[list[str], list[Rejection]]:
        """The sites whose own model is done; one that needs longer is asked again while it gets on."""
        done, rejections, waiting = dict.fromkeys(sites, 0.0), list[Rejection](), sorted(sites)
        while waiting:
            asked = {site: Instruction("solo", round, first) for site in waiting}
            answers = list(transport.exchange(asked))
            found, refused, _ = first_good(answers, lambda one: self._checked(one, round, MOST_EXAMPLES), round.number)
            rejections += left_out(refused, found) + self._missing(asked, answers, round)
            rounds = {site: numbers.get(ROUNDS, 0.0) for site, numbers in found.items()}
            stuck = [site for site in sorted(rounds) if rounds[site] <= done[site]]
            rejections += [Rejection(site, "no_progress", "trains alone and gets no further") for site in stuck]
            done |= rounds
            waiting = [site for site in sorted(rounds) if site not in stuck and rounds[site] < round.total]
        left = {rejection.site for rejection in rejections}
        return [site for site in sorted(sites) if site not in left], rejections

    def _missing(self, asked: Mapping[str, Instruction], answers: Sequence[Answer], round: Round) -> list[Rejection]:
        """The rejections of sites of which nothing came: late where the exchange ended without them."""
        rules = {one.task: self.early_end.of(one.task, round.total) for one in asked.values()}
        late = {site for rule in rules.values() for site in rule.late(asked, answers)}
        ended = f"the question ended with the answers of {len(asked) - len(late)} of {len(asked)} sites"
        missing = silent(asked, answers)
        return [Rejection(one.site, LATE, ended) if one.site in late else one for one in missing]

    def _checked(self, answer: Answer, round: Round, most: int) -> dict[str, float]:
        numbers = checked_scalars(answer.benefit, self.numbers)
        counts = {name: value for name, value in numbers.items() if name.partition("/")[0] in (N, ROUNDS)}
        sizes = [value for name, value in counts.items() if name.startswith(f"{N}/")]
        if any(value != int(value) for value in counts.values()) or counts.get(ROUNDS, 0.0) > round.total:
            raise Refused("count_mismatch", f"{N}, {ROUNDS}: expected whole numbers")
        if counts.get(N, 0.0) > most or sum(sizes) > counts.get(N, 0.0):
            raise Refused("count_mismatch", f"{N}: expected at most {most}, and of groups no more in all")
        for name, low in numbers.items():
            kind, _, rest = name.partition(".")
            if kind == LOW and not low <= numbers.get(f"{HIGH}.{rest}", -2.0):
                raise Refused("scalar_range", f"scalar {name!r}: expected the lower end of an interval")
        return numbers


@dataclass(frozen=True)
class Benefit(Exchange):
    """ "solo", again and again until a site has trained alone, then "benefit"."""

    tasks = ("solo", "benefit")
    fields = ("benefit",)
    cost = Cost(forward=1, backward=1)

    def at_site(self, run: OfRun) -> BenefitAtSite:
        """With a trainer that exchanges nothing."""
        config, own = run.config, run.parts.trainer
        trainer: Trainer = own if own.is_alone else PlainTrainer()
        if own.alone:
            trainer = registry.get_trainer(own.alone)(**dataclasses.asdict(own))  # type: ignore[call-overload]  # the class is known by its id alone
        alone = Alone(trainer, config.training.rounds, run.memory, SHARE * config.task_timeout)
        return BenefitAtSite(alone)

    def at_server(self, run: OfRun) -> BenefitAtServer:
        """It ends as a round does."""
        config, task = run.config, run.parts.task
        ends = EarlyEnd(config.min_responses, config.grace)
        return BenefitAtServer(
            self.numbers(run), trains_alone(config.trainer), task.measures, task.group_measures, ends
        )

    def numbers(self, run: OfRun) -> tuple[Number, ...]:
        """See ``benefit.reports``."""
        task, groups = run.parts.task, run.parts.grouping.names

        def range_of(name: str) -> tuple[float, float]:
            return task.metric(name).range

        return reports(task.measures, task.group_measures, groups, range_of)


EXCHANGE = Benefit()


def trains_alone(trainer: str) -> str:
    """Id of the trainer with which a site trains by itself: the run's own where that exchanges nothing else."""
    own = registry.get_trainer(trainer)
    return own.alone or (trainer if own().is_alone else PLAIN)
