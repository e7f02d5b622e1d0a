# SPDX-License-Identifier: Apache-2.0
"""Who is asked to train, and when an exchange ends before every site that was asked has answered.

A site that let a deadline pass is out for one round at least, for two after the second deadline in a row, then for
4, 8 and so on: a slow site costs fewer and fewer of them. Nobody trains without preflight. A site that a round ended
without is late and not absent: it costs no deadline, and is asked again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fairflare.core.schema import Answer
from fairflare.engine.checks import Rejection

ENDED = ("train", "benefit")
"""The exchanges that end as the run says."""
ALONE = "solo"
"""That in which each site trains alone for as long as all rounds take."""
LATE = "late"
"""Code of a site that a round ended without."""


@dataclass(frozen=True)
class EarlyEnd:
    """What a run says of it; by default every site is waited for.

    Attributes:
        min_responses: answers without an error after which the exchange ends; None: those of all sites that were asked.
        grace: seconds after them in which further answers still count, >= 0.
    """

    min_responses: int | None = None
    grace: float = 0.0

    def caution(self) -> str:
        """What whoever starts a run should know of it; empty where every site is waited for."""
        if self.min_responses is None:
            return ""
        return (
            f"min_responses: over FLARE a round ends {self.grace:g} s after {self.min_responses} answers, and slower "
            "sites are left out of it: these are no random choice, and the model may serve them less well (in process "
            "every site answers)"
        )

    def of(self, task: str, rounds: int) -> EarlyEnd:
        """The rule of one exchange: every site is waited for where none trains.

        Args:
            task: its name; the benefit of joining is asked for as a round is.
            rounds: T. A site that trains alone for so many is given as often the grace of one.
        """
        if task == ALONE:
            return replace(self, grace=self.grace * rounds)
        return self if task in ENDED else EarlyEnd()

    def needed(self, asked: int) -> int:
        """How many answers end an exchange of so many sites, at most ``asked``."""
        return asked if self.min_responses is None else min(self.min_responses, asked)

    def is_met(self, asked: Collection[str], answers: Sequence[Answer]) -> bool:
        """Whether enough of the sites have answered; an error is no contribution to a round and does not end it."""
        return len(_heard(asked, [answer for answer in answers if not answer.error])) >= self.needed(len(asked))

    def late(self, asked: Collection[str], answers: Sequence[Answer]) -> list[str]:
        """The sites that an exchange ended without although they were in time for its deadline, sorted.

        Empty where it did not end early: sites that are missing then have let the deadline pass.
        """
        missing = sorted(set(asked) - _heard(asked, answers))
        return missing if missing and self.is_met(asked, answers) else []


class Ending:
    """Whether one exchange is over; asked again and again while it lasts."""

    def __init__(
        self,
        rule: EarlyEnd,
        asked: Collection[str],
        clock: Callable[[], float] = time.monotonic,
        counts: Callable[[Answer], bool] = lambda answer: True,
    ) -> None:
        """``counts``: whether an answer may be accepted; one that may not must not end the round for others."""
        self._rule, self._asked, self._clock, self._counts = rule, frozenset(asked), clock, counts
        self._since: float | None = None
        self._good: list[Answer] = []
        self._seen = 0

    def is_reached(self, answers: Sequence[Answer]) -> bool:
        """True once every site has answered, or enough of them have and the grace time is over.

        ``answers``: all so far, in the order in which they came.
        """
        if self._asked <= _heard(self._asked, answers):
            return True
        if self._rule.min_responses is None:
            return False
        self._good += filter(self._counts, answers[self._seen :])
        self._seen = len(answers)
        if self._since is None and self._rule.is_met(self._asked, self._good):
            self._since = self._clock()
        return self._since is not None and self._clock() - self._since >= self._rule.grace


def _heard(asked: Collection[str], answers: Sequence[Answer]) -> set[str]:
    return {answer.site for answer in answers} & set(asked)


class Participation:
    """Who may train: sites that have passed preflight, until they let a deadline pass.

    All others are sent a preflight that nobody waits for, and train once they have passed it.
    """

    def __init__(self, passed: Iterable[str] = (), barred: Mapping[str, Rejection] = MappingProxyType({})) -> None:
        """``barred``: sites that have answered and may not train, with the reason."""
        self._present, self._barred = set(passed), barred
        self._missed: dict[str, int] = {}
        self._in_a_row, self._back = Counter[str](), dict[str, int]()

    def of(self, sites: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those of ``sites`` that are to train, and those that are absent."""
        known = list(sites)
        return [s for s in known if s in self._present], [s for s in known if s not in self._present]

    def note(
        self,
        round: int,
        asked: Sequence[str],
        answers: Sequence[Answer],
        away: Sequence[str],
        passed: Iterable[str],
        refused: Mapping[str, Rejection],
        late: Collection[str] = (),
    ) -> list[Rejection]:
        """Take note of a round; returns the rejections of sites that were late, or were or are absent.

        Args:
            answers: theirs. An error is an answer: the site is there.
            away: the absent sites, which were sent a preflight.
            passed: those of them that have passed preflight; they train from the next round on, if their pause is over.
            refused: those that answered and may not train, with the reason.
            late: those asked that the round ended without; they are asked to train in the next one too.
        """
        rejections = [refused.get(site) or missing for site, missing in zip(away, self.absent(away))]
        self._present |= {site for site in passed if round >= self._missed.get(site, 0) + self._pause(site)}
        heard = {answer.site for answer in answers}
        for site in heard & set(asked):
            self._back.setdefault(site, round)
        missed = sorted(set(asked) - heard - set(late))
        self.missed(round, missed)
        rejections += [Rejection(site, "no_answer", "no answer in time") for site in missed]
        ended = f"the round ended with the answers of {len(heard & set(asked))} of {len(asked)} sites"
        return rejections + [Rejection(site, LATE, ended) for site in sorted(late)]

    def missed(self, round: int, sites: Iterable[str]) -> None:
        """Take note of ``sites`` that let a deadline of this round pass."""
        for site in sites:
            self._present.discard(site)
            if self._back.pop(site, round) < round:  # it was in time for a round since, all exchanges of it
                del self._in_a_row[site]
            self._missed[site] = round
            self._in_a_row[site] += 1

    def _pause(self, site: str) -> int:
        """For how many rounds the site is out after its last deadline: slow sites, too, pass preflight in time."""
        return 1 << max(0, self._in_a_row[site] - 1)

    def absent(self, away: Iterable[str]) -> list[Rejection]:
        why = {site: f"no answer since round {round}" for site, round in self._missed.items()}
        none = "was not there at the start"
        return [self._barred.get(site) or Rejection(site, "absent", why.get(site, none)) for site in away]
