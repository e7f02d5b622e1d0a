# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join, asked of a federation of hospitals: the sums of ``decision.sums``, one question for each.

"decide" asks for a hospital's part of the next sum, "decided" tells the total. After the last one every hospital makes
its own decision, which stays in its file; in the clear it tells the numbers that ``decision.study`` lists, with secure
sums none. A run of ``glm`` on a table names it (``exchanges=decide``); ``config.decision`` holds its settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Cost, StateDict
from fairflare.core.user_code import check_name
from fairflare.core.validation import expected
from fairflare.decision.decide import Site as Hospital
from fairflare.decision.own import RIDGE, TREES
from fairflare.decision.study import (
    COUNTS,
    MAX_COLUMNS,
    NET_BENEFIT,
    OF_FEW,
    content,
    folds_of,
    hospital_at,
    measurements,
    numbers,
    row_from,
    row_of,
    told,
)
from fairflare.decision.sums import MOMENTS, PLACES, Known, Plan
from fairflare.decision.verdicts import MIN_PATIENTS
from fairflare.engine.checks import Refused, Rejection, checked_scalars, first_good, left_out, silent
from fairflare.engine.exchanges.base import Ended, Exchange, OfRun
from fairflare.engine.files import is_there, read_json, save_json
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import DECISION_ENDING, AskedAgain, beside, check_last
from fairflare.privacy.schemes import NONE

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work
    from fairflare.engine.setup.run_config import RunConfig
    from fairflare.engine.site import Site
    from fairflare.privacy.egress import FieldCheck
    from fairflare.tasks.base import Task

ATTEMPTS = 2
"""Times that all sums are made, in the clear; a hospital that was silent in the first is left out of the second."""
MIN_SECRET = 5
"""Hospitals below which a sum of theirs hides too little."""
Json = dict[str, Any]


def plan_of(config: RunConfig, task: Task) -> tuple[Plan, int]:
    """What ``config.decision`` asks, and the index of the class whose risk is asked for; raises UserError."""
    known = {**dataclasses.asdict(Plan()), "event": ""}
    said = {**known, **config.decision}
    expected("decision", set(said) == set(known), f"keys among {', '.join(sorted(known))}", ", ".join(map(str, said)))
    for key, (low, high) in {"folds": (2, 20), "deals": (1, 50)}.items():
        expected(f"decision: {key}", type(said[key]) is int and low <= said[key] <= high, f"{low} to {high}", said[key])
    for key in ("threshold", "worthwhile"):
        value = said[key]
        fits = (value is None and key == "threshold") or (type(value) in (int, float) and 0 <= value < 1)
        expected(f"decision: {key}", fits, "a number from 0 to 1", value)
    own, shared = said["own_model"], said["shared_patients"]
    if own not in (RIDGE, TREES):
        check_name(own, "decision: own_model")
    expected("decision: shared_patients", type(shared) is bool, "true or false", shared)
    event, classes = said.pop("event"), list(task.classes)
    named = event in classes if event else task.kind.has_classes and len(classes) == 2
    expected("decision: event", named, f"a task of two classes, or one of {', '.join(classes)}", event or classes)
    if config.secure_sum != NONE and config.min_sites < MIN_SECRET:
        raise UserError(
            f"min_sites: expected at least {MIN_SECRET} with secure_sum and a decision, got {config.min_sites}"
        )
    index = classes.index(event) if event else task.event
    return Plan(**{**said, "worthwhile": float(said["worthwhile"])}), 1 if index is None else index


def first_known(run: OfRun, model: StateDict) -> Known:
    """Before the first sum, which begins at the coefficients of an exact regression's model, else at 0."""
    config, task, network = run.config, run.parts.task, run.parts.network
    plan, _ = plan_of(config, task)
    weight: Any = getattr(network, "weight", None)
    width = weight.numel() if run.parts.trainer.sums_only and weight is not None else 0
    most = f"the method glm on a table of at most {MAX_COLUMNS} features (in a job; more without --env)"
    expected("decision", 0 < width <= MAX_COLUMNS, most, width)
    start = np.zeros(width + 1)
    if {"weight", "bias"} <= model.keys():
        at = np.concatenate([model["bias"].double().numpy(), model["weight"].double().numpy().ravel()])
        start = at if at.shape == start.shape and np.isfinite(at).all() else start
    clients = config.clients or list(task.sites())
    return Known(plan, tuple(start.tolist()), () if run.secure else tuple(clients))


@dataclass
class DecideAtSite:
    """The site's half; asked twice for one sum, it gives the first answer."""

    run: OfRun
    _known: Known | None = None
    _hospital: Hospital | None = None
    _said: dict[int, list[float]] = field(default_factory=dict)
    _begun: int = 0

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"decide": self._decide, "decided": self._decided}

    def _decide(self, site: Site, instruction: Instruction) -> Answer:
        """The site's part of the next sum; raises AskedAgain for another place, EgressRefused by the referee."""
        check_last(instruction.round, site.training.rounds)
        place = int(instruction.orders["place"])
        if (
            place == 0
            and self._begun < (1 if self.run.secure else ATTEMPTS)
            and (self._known is None or self._known.sums)
        ):
            self._known, self._said, self._hospital = first_known(self.run, instruction.model), {}, None
            self._begun += 1
        known = self._known
        if known is None or known.next != place:
            raise AskedAgain("a sum of a decision out of turn")
        if self._hospital is None:
            hospital = self._patients(site)
            self._admit(site, instruction, hospital)
            self._hospital = hospital  # a site that has refused is asked to admit once more
        if self._hospital.trains and site.referee is not None:
            for weights in self._hospital.support(known):
                site.referee.check_support({kind: _tensor(each) for kind, each in weights.items()})
        if place not in self._said:
            self._said[place] = self._hospital.terms(known)
        leaves = site.aggregation.further(self._said[place], instruction, place, _told_so_far(known))
        return Answer(site=site.name, round=instruction.round.number, **leaves)

    def _decided(self, site: Site, instruction: Instruction) -> Answer:
        """Take the total; after the last one make the decision."""
        known, number = self._known, instruction.round.number
        if known is None or known.next not in self._said or self._hospital is None:
            raise AskedAgain("the total of a sum that this site has no part in")
        total = site.aggregation.further_total(instruction, known.length(known.next))
        if not np.isfinite(total).all():
            raise AskedAgain("a total that is not finite")
        self._known = known = known.after(total)
        if known.next < PLACES:
            return Answer(site=site.name, round=number)
        row = row_of(self._hospital.answer(known), known.plan)
        if self.run.memory is not None:
            own = {"site": site.name, **content(known.plan, {site.name: row}, known)}
            save_json(beside(self.run.memory, DECISION_ENDING), own)
        reports = {} if self.run.secure else told(row, known.plan, self._hidden())
        return Answer(site=site.name, round=number, reports=reports)

    def _hidden(self) -> tuple[str, ...]:
        """What of the row is of fewer patients than may leave."""
        assert self._hospital is not None
        one, least = self._hospital.hospital, self.run.min_count
        if least is None or one.n < least or not self._hospital.assessed:
            return (*COUNTS, *OF_FEW)
        if min(one.patients_with(0), one.patients_with(1)) < least:
            return OF_FEW
        return NET_BENEFIT if any(0 < n < least for n in self._hospital.counted) else ()

    def _patients(self, site: Site) -> Hospital:
        """With too few of them, or in a fold that sums tell of, the site adds zeros.

        In the clear no number rests on fewer patients than coefficients. Raises EgressRefused: no key, if it is needed.
        """
        assert self._known is not None
        config, task = self.run.config, self.run.parts.task
        plan, event = plan_of(config, task)
        one = hospital_at(site.data, event)
        least = self.run.min_count
        if plan.shared_patients and not getattr(site.data, "keyed", False):
            raise EgressRefused("patient_key: expected a key in the site's file, for shared patients, got none")
        found = Hospital(site.name, one, plan, folds_of(site.name, one, plan), measurements(task))
        fewest = one.n
        if plan.shared_patients and found.folds is not None:  # sums without a fold tell of it
            places = found.folds[:, np.unique(one.patient, return_index=True)[1]]
            fewest = min(int(np.bincount(deal, minlength=plan.folds).min()) for deal in places)
        width = 0 if self.run.secure else one.x.shape[1]
        return dataclasses.replace(found, trains=least is not None and fewest >= max(least, MIN_PATIENTS, width))

    def _admit(self, site: Site, instruction: Instruction, one: Hospital) -> None:
        """Note whom the site tells of; two decisions on nearly the same patients would tell of those between."""
        if site.referee is None or not one.trains:
            return
        if self.run.secure:
            roster = tuple(instruction.sealed["statements"])
            site.referee.received(model_hash(instruction.model), instruction.model, {})
            site.referee.admit("decision", instruction.round.number, roster)
        patients = model_hash({"x": _tensor(one.hospital.x), "y": _tensor(one.hospital.y)})
        told = None if self.run.secure else one.plan.threshold
        site.referee.decided(patients, one.hospital.n, max(self.run.min_count or 0, 1), told)


def _tensor(values: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def _told_so_far(known: Known) -> str:
    """A name of all that a sum depends on; where sites were told otherwise their masks do not cancel."""
    totals = {str(place): _tensor(np.array(total)) for place, total in known.sums.items()}
    return model_hash({"start": _tensor(np.array(known.start)), **totals})


@dataclass(frozen=True)
class DecideAtServer:
    """The server's half."""

    run_of: OfRun

    event: ClassVar[str] = "exchange"
    needs_first: ClassVar[bool] = False
    of_training_sites: ClassVar[bool] = True

    def run(self, ended: Ended) -> tuple[dict[str, Any], list[Rejection]]:
        """The decision, with the numbers of hospitals that tell theirs, and the rejections."""
        models, gone = dict(ended.models), list[Rejection]()
        for _ in range(1 if self.run_of.secure else ATTEMPTS):
            found, lost = self._sums(ended, models)
            gone += lost
            if found is not None or not lost:
                break
            models = {site: model for site, model in models.items() if site not in {one.site for one in gone}}
        about: Json = {"exchange": "decide", "secure": self.run_of.secure, "hospitals": sorted(models), "sites": {}}
        if found is None:
            return {**about, "failed": "; ".join(f"{r.site}: {r.code} {r.detail}".strip() for r in gone)}, gone
        known, rows = found
        return {**about, **content(known.plan, {}, known), "sites": rows}, gone

    def _sums(self, ended: Ended, models: dict[str, StateDict]) -> tuple[Any, list[Rejection]]:
        """All sums and the hospitals' numbers; None where one was not made."""
        if len(models) < 2:
            return None, [Rejection(site, "few_sites", "expected two hospitals or more") for site in models]
        known, task = first_known(self.run_of, next(iter(models.values()))), self.run_of.parts.task
        declared, columns = numbers(known.plan), measurements(task)
        while (place := known.next) < PLACES:
            terms = known.length(place)

            def checked(answer: Answer, terms: int = terms, known: Known = known) -> list[float]:
                part, rows = _checked(answer.sums, terms), round(ended.declared.get(answer.site, 0))
                if place == 0 and not known.counts_itself(part, answer.site, rows):
                    raise Refused("sums", "sums: expected a hospital's own counts of its patients alone")
                if place > MOMENTS and not known.is_plausible(part, rows):
                    raise Refused("sums", "sums: expected what so many patients add, got more weight or other terms")
                return part

            asked = {"place": float(place)}
            total = ended.aggregation.total(
                ended.transport, models, ended.round, checked, terms, task="decide", orders=asked
            )
            if total.rejections or set(total.sites) != set(models):
                return None, total.rejections
            instructions = {site: Instruction("decided", ended.round, {}, **total.told) for site in models}
            answers = list(ended.transport.exchange(instructions))
            rows, refused, _ = first_good(
                answers, lambda one: checked_scalars(one.reports, declared), ended.round.number
            )
            if missing := left_out(refused, rows) + silent(instructions, answers):
                return None, missing
            known = known.after(ended.aggregation.read(total.told, terms))
        try:
            for row in rows.values():
                if row:
                    row_from(row, columns)
        except ValueError as error:
            return None, [Rejection(site, "reports", str(error)) for site in models]
        return (known, {site: dict(row) for site, row in sorted(rows.items()) if row}), []


def _checked(sums: object, terms: int) -> list[float]:
    """A site's part of a sum in the clear; raises Refused."""
    if not isinstance(sums, (list, tuple)) or len(sums) != terms or any(type(v) is not float for v in sums):
        raise Refused("sums", f"sums: expected {terms} numbers")
    if not all(0 <= value < float("inf") for value in sums):
        raise Refused("sums", "sums: expected finite numbers of at least 0")
    return list(sums)


@dataclass(frozen=True)
class Decide(Exchange):
    """ "decide" and "decided", for every sum."""

    tasks = ("decide", "decided")
    fields = ("sums", "reports")
    cost = Cost(forward=0)

    def at_site(self, run: OfRun) -> DecideAtSite:
        return DecideAtSite(run)

    def at_server(self, run: OfRun) -> DecideAtServer:
        return DecideAtServer(run)

    def numbers(self, run: OfRun) -> Any:
        plan, _ = plan_of(run.config, run.parts.task)
        return () if run.secure else numbers(plan)

    def leaves(self, run: OfRun) -> Mapping[str, FieldCheck]:
        """Parts of sums, each of one of the lengths that there are, and the numbers of a decision."""
        lengths = self.lengths(run)

        def check(value: Any, task: str) -> None:
            if task == "decide":
                try:
                    _checked(value, len(value) if len(value) in lengths else -1)
                except (Refused, TypeError) as error:
                    raise EgressRefused(f"sums: {error}") from None

        return {**super().leaves(run), "sums": check}

    def lengths(self, run: OfRun) -> set[int]:
        known = first_known(run, {})
        return {known.length(place) for place in range(PLACES)}

    def sealed(self, run: OfRun) -> Mapping[str, Mapping[str, Collection[int]]]:
        return {"decide": {"sum": self.lengths(run)}}


EXCHANGE = Decide()


def own_answer(path: Any) -> Json:
    """What a site keeps of a decision; raises UserError where ``path`` is no such file."""
    kept = read_json(path) if is_there(path) else {}
    if not {"site", "sites", "averages"} <= kept.keys():
        raise UserError(f"{path}: expected the file of a decision that a site keeps, SITE{DECISION_ENDING}")
    return kept
