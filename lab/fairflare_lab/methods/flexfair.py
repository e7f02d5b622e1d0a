# SPDX-License-Identifier: Apache-2.0
"""FlexFair as a federation can do it: examples of cells whose loss is above the mean weigh more, the others less.

    L_g, n_g    mean loss of the received model on cell g and its size: a site, or a group of patients over all sites
    c_g         slope of the penalty in L_g (functional/group_rates.py)
    1 + lam c_g n / n_g                 an example's weight in the next round, clamped at 0; n over the cells

The gradient of sum_k n_k/n L_k + lam P, taken at the losses of the round before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from fairflare.aggregators.base import Notes, State, SummedRule, example_shares, shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS, Info, Offer, Reply, Training, Weights
from fairflare.core.validation import Range, within
from fairflare_lab.functional.terms import Cell, slope_of, variance_penalty

MOST = 1e15
"""Of what a site keeps under secure sums, whatever sums it was told."""
LARGEST, LEAST = 10.0, -1.0
"""Bounds of a weight that multiplies a loss (``apply=local``): with SGD it multiplies the step, too."""
EXTRA = "What an example's weight differs from 1 by in the next round, before it is bounded."


class Found(NamedTuple):
    """What one round says: cell -> lam c_g n / n_g, not yet clamped, 0 for one that no penalty is of; the sum of the
    penalties P, and how many cells they are of."""

    extra: Mapping[str, float]
    penalty: float
    cells: int


@method(
    "flexfair",
    title="FlexFair",
    summary="FedAvg with a penalty on how much the losses of sites, or of groups of patients, differ.",
    trainer="weighted",
    probes=("group-loss",),
    paper="Xing et al.: Achieving flexible fairness metrics in federated medical imaging. Nature Communications 2025. "
    "https://doi.org/10.1038/s41467-025-58549-0",
)
@dataclass(frozen=True)
class FlexFair(SummedRule):
    """n_k / n with the penalty on the variance of losses (Nat. Commun. 2025, 10.1038/s41467-025-58549-0).

    Args:
        lam: lambda >= 0; 0 is FedAvg bit for bit. The authors take 1 to 2 and sweep it to 10.
        cells: what is to have equal losses: "sites", or the "groups" of the run's grouping.
        mean: m is the mean over "examples", or over "cells" (the authors' cervical data).
        criterion: "all" cells under one penalty; "dp" adds one penalty per class, and "eo" takes that of class
            ``positive`` alone, over groups by ``group_by=label+ATTRIBUTE`` (the authors' names: both are surrogates of
            equalised odds).
        positive: the class of "eo".
        apply: "split": sites train with weights relative to their own mean, by which the server weighs their updates,
            so that whole sites' weights act under any optimizer; "local": the weights multiply the local loss and
            the server weighs by n_k. Weights are then at most 10: one site's word on a group is in everybody's.
        raw: weights below 0 stay so, down to -1; needs "local".
    """

    n_terms, counted = 5, 4
    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("penalty", "Variance of the losses", "nats^2", "round", meaning="The penalty without lambda."),
        Note("penalised", "Cells of the penalty", "cells", "round", meaning="Sites or groups that have losses."),
        Note("bounded", "Bounded weights", "cells", "round", meaning="Cells whose next weight is at its bound."),
        Note("site_extra", "Extra weight of the sites", "", "site", meaning=EXTRA),
        Note("group_extra", "Extra weight of the groups", "", "group", meaning=EXTRA),
    )
    lam: Annotated[float, Range(0, 1e6)] = 1.0
    cells: Literal["sites", "groups"] = "sites"
    mean: Literal["examples", "cells"] = "examples"
    criterion: Literal["all", "dp", "eo"] = "all"
    positive: str = ""
    apply: Literal["split", "local"] = "split"
    raw: bool = False

    def __post_init__(self) -> None:
        within(self, lam="[0, inf)")
        if self.raw and self.apply != "local":
            raise ValueError("raw: expected apply=local, for a site's update cannot weigh less than nothing")
        if self.criterion != "all" and self.cells != "groups":
            raise ValueError(f"criterion: expected cells=groups with {self.criterion}, got {self.cells}")

    @property
    def wanted(self) -> tuple[str, ...]:
        return ("loss",) if self.cells == "sites" and self.lam else ()

    @property
    def useful(self) -> tuple[str, ...]:
        return (GROUP_LOSS, GROUP_COUNT) if self.cells == "groups" and self.lam else ()

    @property
    def heeded(self) -> tuple[str, ...]:
        return () if self._by_server else ("weight",)

    def missing(self, offer: Offer) -> str:
        if self.cells == "groups" and len(offer.groups) < 2:
            return "cells=groups needs at least two groups of examples: set group_by to what patients differ in"
        if self.criterion == "all":
            return ""
        classes = sorted({_class(name) for name in offer.groups})
        if any(", " not in name for name in offer.groups):
            return f"criterion={self.criterion} compares groups within classes: set group_by=label+ATTRIBUTE"
        if self.criterion == "eo" and self.positive not in classes:
            return f"criterion=eo needs positive=CLASS, one of {', '.join(classes)}"
        return ""

    def caution(self, training: Training) -> str:
        if self.apply == "split" or training.optimizer != "adam":
            return ""
        return "apply=local under optimizer=adam: the weight of a whole site has no effect; use sgd or apply=split"

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """Weights of this site's examples: "weight" for all, "weight/GROUP" to be added; "relative" to their mean.

        None where whole sites are weighed at the server: relative to its mean, a site's weight is 1.
        """
        extra = state.get("extra", {})
        if not self.lam or not extra or self._by_server:
            return {}
        if self.cells == "sites":
            return {"weight": self._weight(extra.get(site, 0.0))}
        relative = {"relative": 1.0} if self.apply == "split" else {}
        return {"weight": 1.0, **relative, **{f"weight/{g}": self._weight(v) - 1 for g, v in extra.items()}}

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        following, _ = self._next(replies, state)
        if self.apply == "local" or not state.get("extra") or not self.lam:
            return example_shares(replies), following
        return shares({r.site: r.n_examples * self._mean_weight(r, state["extra"]) for r in replies}), following

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        if not self.lam:
            return {}
        _, found = self._next(replies, before)
        known = {"site_extra" if self.cells == "sites" else "group_extra": after["extra"]}
        beyond = sum(not self._least - 1 <= e <= LARGEST - 1 for e in found.extra.values())
        bounded = {"bounded": beyond} if self.apply == "local" else {}
        return {"penalty": found.penalty, "penalised": found.cells, **known, **bounded}

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """n_k s_k with the weight s_k of the round before, n_k L_k, n_k, L_k and 1."""
        loss = max(scalars["loss"], 0.0)
        return n_examples * self._weight(kept or 0.0), n_examples * loss, float(n_examples), loss, 1.0

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        """See ``weigh``, of which this is one site's part; kept is lam c_k n / n_k."""
        # Sums may come decrypted, and a sum is never less than a summand.
        amount, total, size = terms[0], max(sums[0], terms[0]), max(round(sums[4]), 1)
        weight = amount / total if total > 0 else 1 / size
        mean = sums[1] / max(sums[2], terms[2]) if self.mean == "examples" else sums[3] / size
        rest = sums[3] - size * mean if self.mean == "examples" else 0.0
        share = terms[2] / max(sums[2], terms[2])
        extra = self.lam * slope_of(terms[3] - mean, share, rest, size) / share
        return weight, extra if abs(extra) <= MOST else 0.0

    def unsummable(self) -> str:
        """Only whole sites are weighed by what follows from sums at the site itself."""
        if not self.lam:
            return "lam=0 needs no number beside n_k"
        if self._by_server:
            return ""
        return "FlexFair's weights of groups, and those of apply=local, are needed while a site trains"

    @property
    def _by_server(self) -> bool:
        """Whether all weights act at the server."""
        return self.cells == "sites" and self.apply == "split"

    def _next(self, replies: Sequence[Reply], state: State) -> tuple[State, Found]:
        """The next state, of the sites that are here; a cell without losses keeps its weight."""
        if not self.lam:
            return state, Found({}, 0.0, 0)
        if self.cells == "sites":
            cells = {r.site: Cell(float(r.n_examples), r.n_examples * max(r.scalars["loss"], 0.0)) for r in replies}
        else:
            cells = _groups(replies)
        found = self._found(cells)
        return {"extra": {**state.get("extra", {}), **found.extra}}, found

    def _found(self, cells: Mapping[str, Cell]) -> Found:
        extra, penalty, counted = dict.fromkeys(sorted(cells), 0.0), 0.0, 0
        for names in self._penalised(cells):
            value, slopes = variance_penalty({name: cells[name] for name in names}, self.mean == "examples")
            n = sum(cell.n for cell in cells.values())
            extra |= {name: self.lam * slope * n / cells[name].n for name, slope in slopes.items()}
            penalty, counted = penalty + value, counted + len(slopes)
        return Found(extra, penalty, counted)

    def _penalised(self, cells: Mapping[str, Cell]) -> list[list[str]]:
        """The cells of each penalty."""
        if self.criterion == "all":
            return [list(cells)]
        classes = [self.positive] if self.criterion == "eo" else sorted({_class(name) for name in cells})
        return [[name for name in cells if _class(name) == one] for one in classes]

    def _weight(self, extra: float) -> float:
        weight = max(self._least, 1 + extra)
        return min(weight, LARGEST) if self.apply == "local" else weight

    @property
    def _least(self) -> float:
        return LEAST if self.raw else 0.0

    def _mean_weight(self, reply: Reply, extra: Mapping[str, float]) -> float:
        """The mean weight of a site's examples, as far as the server knows their groups."""
        if self.cells == "sites":
            return self._weight(extra.get(reply.site, 0.0))
        known = {name: cell.n for name, cell in _groups([reply]).items() if name in extra}
        # Where no group's size may leave the site, its patients count as spread evenly over the groups.
        known = known or dict.fromkeys(extra, 1.0)
        return sum(n * self._weight(extra[name]) for name, n in known.items()) / sum(known.values())


def _class(group: str) -> str:
    """The class of a group of ``group_by=label+ATTRIBUTE``, as "died" of "died, female"."""
    return group.partition(", ")[0]


def _groups(replies: Sequence[Reply]) -> dict[str, Cell]:
    """Group -> its examples over the replies, of sites that let size and loss leave."""
    cells: dict[str, Cell] = {}
    for reply in replies:
        for name, loss in reply.scalars.items():
            family, _, group = name.partition("/")
            n = reply.scalars.get(f"{GROUP_COUNT}/{group}", 0.0)
            if family == GROUP_LOSS and n > 0:
                before = cells.get(group, Cell(0.0, 0.0))
                cells[group] = Cell(before.n + n, before.total + n * loss)
    return cells
