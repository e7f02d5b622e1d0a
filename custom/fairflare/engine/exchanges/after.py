# SPDX-License-Identifier: Apache-2.0
"""The step after the last round: sites send sums over calibration cases, and fit with the sums of all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import CLINICAL, LABEL, MOST_EXAMPLES, Cost, Round, SplitName
from fairflare.engine.after.base import AfterStep, Array, Cases, Chosen, Fit, Shape, plain
from fairflare.engine.checks import TIMES, Refused, Rejection, checked_scalars, first_good, left_out, silent
from fairflare.engine.exchanges.base import Ended, Exchange, OfRun, refusing
from fairflare.engine.exchanges.site_sums import CasesOf, SumsAtSite
from fairflare.engine.files import save_json
from fairflare.engine.memory import AFTER_ENDING, beside
from fairflare.privacy.counts import released
from fairflare.privacy.egress import FieldCheck, check_scalars

if TYPE_CHECKING:
    from fairflare.engine.site import Site

TRAINED = "the model was trained on these cases: it fits them better than new ones, and no guarantee holds"
MEASURED = "parts of the method measured on these cases in every round: they are not quite new to the model"
OWN = "fitted to the model that each site uses, which is its own"
NEW = "the method's parts did not use these cases; whether anyone chose settings by them this log cannot know"


@dataclass
class AfterAtSite(SumsAtSite):
    """Computes a site's sums and what follows for it.

    Attributes:
        min_count: the fewest cases whose sums leave the site; None: none leave.
        path: where what was fitted is kept; None: nowhere.
        secure: whether the run has secure sums: then the site's own parameters stay here.
        clinical: the site's half of ``exchanges.clinical``; None: calibration and decisions are not told.
    """

    step: AfterStep
    shape: Shape
    min_count: int | None = 10
    path: Path | None = None
    secure: bool = False
    clinical: Any = None

    def __post_init__(self) -> None:
        self._in_use: dict[int, Fit] = {}

    @property
    def terms(self) -> int:
        return self.step.terms(self.shape)

    def cases(self, site: Site, split: SplitName) -> Cases:
        return Cases(*site.predict(split, self.step.condense), site.patients(split))

    def calibrated(self, site: Site) -> dict[str, float]:
        if self.clinical is None:
            return {}
        changes = self.changes(self.cases(site, "test"))
        found: dict[str, float] = self.clinical.after(
            Cases(*site.predict("test", plain), site.patients("test")), *changes
        )
        return found

    def sums(self, cases_of: CasesOf) -> list[float]:
        """All rows of sums, one after the other; of too few cases zeros."""
        cases = self._calibrating(cases_of)
        rows = [self._row(cases, chosen, free) for chosen, free in self._chosen(cases)]
        return [float(value) for value in np.concatenate(rows)]

    def adjust(self, total: Sequence[float], cases_of: CasesOf, model: str) -> dict[str, float]:
        """Fit, keep what was fitted in the site's file, and return what may leave."""
        rows = np.asarray(total, dtype=np.float64).reshape(-1, self.step.length(self.shape))
        names = self.step.rows(self.shape)
        shared = {name: dict(self.step.shared(row, self.shape)) for name, row in zip(names, rows, strict=True)}
        cases = self._calibrating(cases_of)
        everyone = np.full(cases.n, cases.finite)
        own, remark = self.step.own(cases, everyone, rows[0], self.shape) if self.step.by == "site" else ({}, "")
        fits = {-1: own}
        if self.step.by != "site":
            fits = {-1: shared[""], **{g: shared[name] for g, name in enumerate(self.shape.groups)}}
        self._keep(own, shared, remark, model)
        self._in_use = fits
        found = self._parameters(shared, own, rows, cases)
        return found | self._results(cases_of("test"), {"own": fits, "shared": {-1: shared[""]}})

    def changes(self, cases: Cases) -> tuple[Array | None, float | None]:
        """What ``adjust`` came to: (N, C) probabilities of class labels, and the site's threshold; None: as before."""
        if not self.shape.has_classes or not any(self._in_use.values()):
            return None, None
        own = self._in_use.get(-1, {}) if self.step.by == "site" else {}
        return self.step.changed(cases, self._in_use, self.shape), self.step.threshold(own)

    def _calibrating(self, cases_of: CasesOf) -> Cases:
        """The calibration cases; where the step takes one of each patient, one at random."""
        cases = cases_of(self.step.split)
        if cases.patients is None or not self.step.once:
            return cases
        order = np.random.default_rng(0).permutation(cases.n)
        rows = np.sort(order[np.unique(cases.patients[order], return_index=True)[1]])
        return Cases(cases.outputs[rows], cases.targets[rows], cases.members[rows], cases.patients[rows])

    def _chosen(self, cases: Cases) -> list[tuple[Chosen, bool]]:
        """For every row of sums: which cases, and whether so many may leave."""
        everyone = np.ones(cases.n, dtype=bool)
        # Of a sum over sites nobody knows what is of whom.
        kinds = (everyone,) if self.secure else (everyone, *self.step.kinds(cases, self.shape))
        every = (everyone, self._enough(*kinds))
        if self.step.by == "site":
            return [every]
        groups = self._groups(cases)
        return [every, *zip(groups, self._free(groups, *kinds))]

    def _groups(self, cases: Cases) -> list[Chosen]:
        members = cases.members.numpy()
        return [members == g for g in range(len(self.shape.groups))]

    def _counted(self, cases: Cases) -> tuple[Chosen, Chosen, Chosen]:
        """All cases, those that the step counts, and the others, whose number follows from the two."""
        counts = self.step.counts(cases, self.shape)
        return np.ones(cases.n, dtype=bool), counts, ~counts

    def _enough(self, *kinds: Chosen) -> bool:
        """Whether numbers of a split may leave that tell how many cases of each kind there are."""
        counts, least = [int(kind.sum()) for kind in kinds], self.min_count
        return least is not None and counts[0] >= least and all(not n or n >= least for n in counts)

    def _free(self, groups: Sequence[Chosen], *kinds: Chosen) -> list[bool]:
        """Which groups' numbers may leave: the count of each kind must be free to, see ``released``."""
        verdicts = []
        for kind in kinds:
            counts = [int((group & kind).sum()) for group in groups]
            verdicts.append(released(counts, self.min_count, unknown=int(kind.sum()) - sum(counts)))
        return [all(verdict) for verdict in zip(*verdicts)]

    def _row(self, cases: Cases, chosen: Chosen, free: bool) -> Array:
        """Sums over the chosen cases, and where others see the site's own row, none that is of few of them."""
        row = self.step.sums(cases, chosen, self.shape) if free and chosen.any() and cases.finite else None
        if row is None or row[0] < (self.min_count or 0):
            return np.zeros(self.step.length(self.shape))
        return row if self.secure else self.step.coarse(row, self.shape, self.min_count or 1)

    def _keep(self, own: Fit, shared: Mapping[str, Fit], remark: str, model: str) -> None:
        if self.path is not None:
            said: dict[str, Any] = {"step": type(self.step).__name__.lower(), "by": self.step.by, "model": model}
            said["settings"] = {key: value for key, value in asdict(self.step).items() if key != "by"}
            save_json(self.path, {**said, "own": dict(own), "shared": dict(shared), "remark": remark})

    def _parameters(self, shared: Mapping[str, Fit], own: Fit, rows: Array, cases: Cases) -> dict[str, float]:
        found = self.step.of_all(rows, self.shape, shared)
        if self.secure or self.min_count is None or cases.n < self.min_count:
            return found
        if self._enough(*self._counted(cases)[1:]):
            found |= {f"own.{name}": float(value) for name, value in own.items()}
        return found | {"n_calibration": float(cases.n)}

    def _results(self, cases: Cases, fits: Mapping[str, Mapping[int, Fit]]) -> dict[str, float]:
        """Means over the test split, and over its groups where so few may leave; none of a model that has diverged."""
        found = {"n": float(cases.n)}
        groups, kinds = self._groups(cases), self._counted(cases)
        some = {name: group for name, group in zip(self.shape.groups, groups) if group.any()}
        may = [dict(zip(self.shape.groups, self._free(groups, *of))) for of in (kinds[:1], kinds)]
        whole, partial = ({name for name in some if free[name]} for free in may)
        found |= {f"n/{name}": float(some[name].sum()) for name in sorted(whole)}
        for stage in self.step.stages if cases.n and cases.finite else ():
            values = self.step.values(cases, stage, fits.get(stage, {}), self.shape)
            for metric, each in values.items():
                is_partial = metric in self.step.partial
                shown = {"": kinds[0]} if not is_partial or self._enough(*kinds[1:]) else {}
                shown |= {f"/{name}": some[name] for name in sorted(partial if is_partial else whole)}
                for where, chosen in shown.items():
                    found |= self._means(stage, metric, each[chosen], kinds[is_partial][chosen], where)
        return found

    def _means(self, stage: str, metric: str, values: Array, expected: Chosen, where: str) -> dict[str, float]:
        """The mean where all expected cases have a value, and how many they are if they need not be all."""
        known = ~np.isnan(values)
        if not known.any() or (known != expected).any():
            return {}
        counted = {f"n_{metric}{where}": float(known.sum())} if metric in self.step.partial else {}
        return {f"{stage}.{metric}{where}": float(values[known].mean()), **counted}


@dataclass(frozen=True)
class AfterAtServer:
    """Sums the sites' calibration cases, tells them the sums, and takes what came of it.

    Attributes:
        remark: for readers.
        view: what sites may report of calibration and decisions, see ``engine.clinical``; None: nothing.
    """

    name: str
    step: AfterStep
    shape: Shape
    secure: bool = False
    remark: str = ""
    view: Any = None

    event: ClassVar[str] = "after"
    needs_first: ClassVar[bool] = False
    of_training_sites: ClassVar[bool] = False

    def run(self, ended: Ended) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says of the step, and the rejections."""
        transport, models, round, declared = ended.transport, ended.models, ended.round, ended.declared
        check = {site: TIMES * declared[site] if site in declared else MOST_EXAMPLES for site in models}

        def checked(answer: Answer) -> list[float]:
            try:
                return self.step.checked(answer.sums, self.shape, check.get(answer.site, MOST_EXAMPLES))
            except ValueError as error:
                raise Refused("sums", f"sums: {error}") from None

        total = ended.aggregation.total(transport, models, round, checked, self.step.terms(self.shape))
        asked = {site: Instruction("adjust", round, models[site], **total.told) for site in total.sites}
        answers = list(transport.exchange(asked)) if asked else []
        found, clinical, rejections = self._inspect(answers, round, check)
        content = {"step": self.name, "by": self.step.by, "split": self.step.split, "needs": self.step.needs}
        content |= {"remark": self.remark, "shared": self._shared(total.told) if asked else {}, "sites": found}
        content |= {CLINICAL: clinical} if clinical else {}
        return content, total.rejections + rejections + silent(asked, answers)

    def _shared(self, told: Mapping[str, Any]) -> dict[str, float]:
        """What follows for all from the sums that the sites were told; nothing where the server cannot read them."""
        if self.secure:
            return {}
        sums = [told["orders"][str(i)] for i in range(self.step.terms(self.shape))]
        return self.step.of_all(np.array(sums).reshape(-1, self.step.length(self.shape)), self.shape)

    def _inspect(
        self, answers: Sequence[Answer], round: Round, most: Mapping[str, int]
    ) -> tuple[dict[str, Any], dict[str, Any], list[Rejection]]:
        """Site -> its numbers, site -> those of calibration and decisions, and the rejections."""
        known = self.step.reports(self.shape, secure=self.secure)

        def check(answer: Answer) -> tuple[dict[str, float], dict[str, float]]:
            numbers, many = checked_scalars(answer.adjusted, known), most.get(answer.site, MOST_EXAMPLES)
            self._check_counts(numbers, many)
            if self.view is None:
                return numbers, checked_scalars(answer.clinical, ())
            return numbers, self.view.checked(answer.clinical, numbers.get("n", many), as_binned=False)

        found, refused, _ = first_good(answers, check, round.number)
        clinical = {site: found[site][1] for site in sorted(found) if found[site][1]}
        return {site: found[site][0] for site in sorted(found)}, clinical, left_out(refused, found)

    def _check_counts(self, numbers: Mapping[str, float], most: int) -> None:
        """Groups are parts of a split, and cases that have a metric parts of both; raises Refused."""
        counts = {name: value for name, value in numbers.items() if name.startswith("n")}
        n = counts.get("n", 0.0)
        groups = [value for name, value in counts.items() if name.startswith("n/")]
        parts = [
            counts[name] <= counts.get("n" + where, 0.0)
            for metric in self.step.partial
            for where in ("", *(f"/{group}" for group in self.shape.groups))
            if (name := f"n_{metric}{where}") in counts
        ]
        sizes = [n, counts.get("n_calibration", 0.0)]
        if any(v != int(v) for v in counts.values()) or max(sizes) > most or sum(groups) > n or not all(parts):
            raise Refused("count_mismatch", f"n: expected whole numbers of at most {most}, and of parts no more in all")


@dataclass(frozen=True)
class After(Exchange):
    """ "calibrate", then "adjust"; the steps are in ``engine.after``."""

    tasks = ("calibrate", "adjust")
    fields = ("sums", "adjusted")
    cost = Cost(forward=2)

    def at_site(self, run: OfRun, clinical: Any = None) -> AfterAtSite:
        """``clinical``: the site's half of ``exchanges.clinical``."""
        path = None if run.memory is None else beside(run.memory, AFTER_ENDING)
        return AfterAtSite(step_of(run), shape_of(run), run.min_count, path, run.secure, clinical)

    def at_server(self, run: OfRun, view: Any = None) -> AfterAtServer:
        """``view``: what sites may report of calibration and decisions."""
        step, parts = step_of(run), run.parts
        measured = any(need.split == step.split for need in parts.needs)
        remark = TRAINED if step.split == "train" else MEASURED if measured else NEW
        remark += f"; {OWN}" if parts.has_personal or parts.rule.counts_own else ""
        return AfterAtServer(run.config.after, step, shape_of(run), run.secure, remark, view)

    def leaves(self, run: OfRun) -> Mapping[str, FieldCheck]:
        """Proper sums, and the numbers that the step declares."""
        step, shape = step_of(run), shape_of(run)
        adjusted = step.reports(shape, secure=run.secure)
        return {
            "sums": refusing(lambda sums: step.checked(sums, shape, MOST_EXAMPLES), "sums"),
            "adjusted": lambda value, task: check_scalars(value, adjusted),
        }

    def terms(self, run: OfRun) -> int:
        """Numbers in a site's sums."""
        return step_of(run).terms(shape_of(run))


EXCHANGE = After()


def step_of(run: OfRun) -> AfterStep:
    """The step that the configuration names."""
    assert run.step is not None  # the configuration names one
    return run.step


def shape_of(run: OfRun) -> Shape:
    """What server and sites know alike of the run's task.

    Nobody is calibrated among those of whom it came true: recalibration has no use for groups by label.
    """
    task = run.parts.task
    by_label = run.config.after == "recalibrate" and LABEL in run.config.group_by.split("+")
    groups = () if by_label else run.parts.grouping.names
    return AfterStep.shape_of(task, groups)
