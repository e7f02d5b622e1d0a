# SPDX-License-Identifier: Apache-2.0
"""All exhibits by the name of their command."""

from __future__ import annotations

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.papers import fedce, fedheal, fedism, fedlwr, fedufo, flamby
from fairflare.papers.declaration import Exhibit, Paper

PAPERS: tuple[Paper, ...] = (fedism.PAPER, fedlwr.PAPER, fedheal.PAPER, fedufo.PAPER, fedce.PAPER, flamby.PAPER)


BECAME = {
    "fedism-figure-4": "the learning curves; the loss around the final models is fedism-figure-7",
    "fedism-figure-5": "the sweeps of q and beta; radius and tau are in fedism-figure-4",
    "fedism-figure-6": "the share of clients with poor images; q and beta are fedism-figure-5",
    "fedism-figure-7": "the loss around the final models; the share of poor clients is fedism-figure-6",
    "fedheal-3": "Ditto and FedFV; the hosts on Office-Caltech are in fedheal-table-2",
    "fedheal-4": "the sweep of FAEL's beta; hosts with and without FedHEAL are in fedheal-table-2",
    "fedheal-figure-6": "the sweep of tau; beta is fedheal-table-4",
    "fedufo-1": "disparity over clients; all metrics of COVID-19 are spread over fedufo-table-1 to -4 and -9",
    "fedufo-9": "overall accuracy; the group recognised worst is in fedufo-table-10",
    "fedufo-11": "patients per client and class; bytes and seconds stand in every run's report",
    "fedufo-figure-3": "the trade-offs of radius and beta; curves over rounds stand in every run's report",
    "fedufo-figure-4": "the numbers of clients and epochs; gamma is fedufo-gamma, beta and radius are fedufo-figure-3",
    "fedce-4": "leaving out on retina; the ablation is fedce-figure-6",
    "fedce-figure-3": "validation Dice over the rounds; leave-one-out shares are fedce-table-4 and -5",
    "fedce-figure-4": "free riders at six rounds; the shift between scanners is fedce-shift",
    "fedce-figure-5": "weights with and without client 5",
    "fedce-figure-6": "the ablation; mean Dice over the rounds is fedce-figure-3",
    "fedce-figure-8": "example segmentations",
    "fedce-figure-9": "example segmentations; the ablation is fedce-figure-6",
}
"""What a name of version 0.2 shows now where that is something else: exhibits have the numbers that papers print."""


def exhibits() -> dict[str, Exhibit]:
    return {exhibit.name: exhibit for paper in PAPERS for exhibit in paper.exhibits}


def named(name: str) -> Exhibit:
    """The exhibit of this name; "fedheal-2", as version 0.2 named it, is "fedheal-table-2".

    Raises:
        UserError: there is none.
    """
    found = exhibits()
    now = current(name)
    if now not in found:
        raise UserError(f"paper: expected one of {', '.join(found)}, got {shown(name)}")
    return found[now]


def current(name: str) -> str:
    """The name that an earlier one stands for."""
    paper, _, number = name.partition("-")
    return f"{paper}-table-{number}" if number.isdigit() else name


def became(name: str) -> str:
    """A line on what an earlier name shows now; "" where that is what it was."""
    moved = "" if current(name) == name else f", now {current(name)}"
    return f"{name}{moved}: {BECAME.get(name, 'the same exhibit')}" if moved or name in BECAME else ""
