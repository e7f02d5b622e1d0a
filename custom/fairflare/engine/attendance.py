# SPDX-License-Identifier: Apache-2.0
"""Who is asked to train: a site that let a deadline pass costs no second one, and nobody trains without preflight.

A site that a round ended without (``early_end``) is late and not absent: it costs no deadline, and is asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from fairflare.engine.checks import Rejection
from fairflare.engine.messages import Answer

LATE = "late"
"""Code of a site that a round ended without."""


class Participation:
    """Who may train: sites that have passed preflight, until they let a deadline pass.

    All others are sent a preflight that nobody waits for, and train once they have passed it.
    """

    def __init__(self, passed: Iterable[str] = ()) -> None:
        self._present = set(passed)
        self._missed: dict[str, int] = {}

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
            passed: those of them that have passed preflight; they train from the next round on.
            refused: those that answered and may not train, with the reason.
            late: those asked that the round ended without; they are asked to train in the next one too.
        """
        rejections = [refused.get(site) or missing for site, missing in zip(away, self.absent(away))]
        self._present |= set(passed)
        heard = {answer.site for answer in answers}
        missed = sorted(set(asked) - heard - set(late))
        self.missed(round, missed)
        rejections += [Rejection(site, "no_answer", "no answer in time") for site in missed]
        ended = f"the round ended with the answers of {len(heard & set(asked))} of {len(asked)} sites"
        return rejections + [Rejection(site, LATE, ended) for site in sorted(late)]

    def missed(self, round: int, sites: Iterable[str]) -> None:
        """Take note of ``sites`` that let a deadline of this round pass."""
        for site in sites:
            self._present.discard(site)
            self._missed[site] = round

    def absent(self, away: Iterable[str]) -> list[Rejection]:
        return [Rejection(site, "absent", self._since(site)) for site in away]

    def _since(self, site: str) -> str:
        if site in self._missed:
            return f"no answer since round {self._missed[site]}"
        return "was not there at the start"
