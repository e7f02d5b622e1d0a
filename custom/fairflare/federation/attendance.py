# SPDX-License-Identifier: Apache-2.0
"""Who is asked to train: a site that let a deadline pass costs no second one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairflare.federation.checks import Rejection
from fairflare.federation.messages import Answer


class Attendance:
    """Sites that did not answer in time are absent until they answer a knock, which nobody waits for.

    Attributes:
        absent: site -> the round whose deadline it missed.
    """

    def __init__(self) -> None:
        self.absent: dict[str, int] = {}

    def of(self, sites: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those of ``sites`` that are to train, and those that are to be knocked at."""
        known = list(sites)
        return [s for s in known if s not in self.absent], [s for s in known if s in self.absent]

    def note(self, round: int, asked: Sequence[str], answers: Sequence[Answer]) -> list[Rejection]:
        """Take note of a round's answers; returns the rejections of sites that were or are absent.

        Args:
            round: its number.
            asked: the sites that were to train.
            answers: of these, and to knocks. A site that answers a knock trains from the next round on, with an error
                too: it is there.
        """
        heard = {answer.site for answer in answers}
        rejections = [Rejection(s, "absent", f"no answer since round {r}") for s, r in sorted(self.absent.items())]
        self.absent = {site: since for site, since in self.absent.items() if site not in heard}
        for site in sorted(set(asked) - heard):
            self.absent[site] = round
            rejections.append(Rejection(site, "no_answer", "no answer in time"))
        return rejections
