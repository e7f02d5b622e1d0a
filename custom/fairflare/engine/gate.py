# SPDX-License-Identifier: Apache-2.0
"""The update gate: every answer is accepted whole or rejected with a code before any arithmetic sees it.

What is accepted leaves a line in the audit log, and an outcome that may become the federation's next model.
``SumsCheck`` is what an exact regression's sums cannot be, whoever the patients are: refused before Newton's step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from fairflare.aggregators.base import Outcome, without_negative_variances
from fairflare.core.errors import RunFailed
from fairflare.core.schema import SPLITS, Answer, Slot, Spec, answer_fields, audited
from fairflare.core.tensor_files import gathered, held
from fairflare.core.types import INTERVALS, MOST_EXAMPLES, PERSONAL, TRIVIAL, Number, Reply, Round, StateDict
from fairflare.engine import checks, field_checks, norms
from fairflare.engine.checks import is_number
from fairflare.engine.clinical import CLINICAL, NOTHING, View
from fairflare.engine.evaluation import ALIKE, ENDS, Intervals
from fairflare.engine.field_checks import CHECKS, Against, Check, Form, Measured, Ranges, check_counts
from fairflare.privacy.egress import all_finite

SLACK = 1e-6
"""Of rounding: masks round at 1e-9."""
SUMS = ("score", "information", "value", "between", "own")
BY_PATIENTS = ("between", "own")
"""Entries that grow with a site's patients: other sites' are no measure for them, and ``doubt`` checks them."""


@dataclass(frozen=True)
class SumsCheck:
    """See ``networks.builtin.Regression`` for the entries, all of which are means over a site's patients.

    Attributes:
        family: of the outcome, see ``TaskKind.family``.
        intercept: of the trainer, see ``trainers.newton.Newton``.
    """

    family: str
    intercept: str

    def doubt(self, model: StateDict, update: Mapping[str, torch.Tensor], examples: int | None = None) -> str:
        """Why no patients have these sums, in one line; "" where some can.

        Args:
            update: what it sent back, less that; or what all sites sent, weighed and added.
            examples: patients of the site; None of all sites' sums.
        """
        moved = [key for key, value in update.items() if key not in SUMS and float(value.abs().max()) > SLACK]
        if moved:
            return f"{moved[0]}: expected no change, since a site sends sums"
        found = {key: (model[key] + update[key]).double() for key in SUMS}
        return self._of_likelihood(model, found) or ("" if examples is None else _of_site(found, examples))

    def _of_likelihood(self, model: StateDict, found: StateDict) -> str:
        score, information, value = found["score"], found["information"], float(found["value"])
        diagonal = information.diagonal()
        slack = SLACK * (1 + float(diagonal.abs().max()))
        if value > SLACK:
            return f"value: expected a log-likelihood of at most 0, got {value:.3g}"
        if float((information - information.T).abs().max()) > slack:
            return "information: expected a symmetric matrix"
        of_coefficients = information[:-1, :-1]  # a spread's or a dispersion's own may be indefinite on the way
        if self.intercept != "random" and float(torch.linalg.eigvalsh(of_coefficients)[0]) < -slack:
            return "information: expected no negative eigenvalue"
        if self.family != "bernoulli" or self.intercept == "site":
            return ""
        if abs(float(score[-2])) > 1 + SLACK or float(diagonal[-2]) > 0.25 + SLACK:
            return "score, information: expected at most 1 and 1/4 for the intercept of outcomes 0 and 1"
        first = not bool(model["weight"].any() or model["bias"].any())  # every risk is 1/2, every error is -/+ 1/2
        if self.intercept == "shared" and first and bool((score.square() > diagonal * (1 + SLACK) + slack).any()):
            return "score: expected at most the root of the information, in the first round"
        return ""


def _of_site(found: StateDict, examples: int) -> str:
    score, between, own = found["score"], found["between"], found["own"]
    outer = examples * torch.outer(score, score)
    if float((between - outer).abs().max()) > SLACK * (1 + float(outer.abs().max())):
        return "between: expected the outer product of the score"
    fits, weight, first, second, square = own * examples
    ones = (fits.abs() < SLACK) | ((fits - 1).abs() < SLACK)
    fit = (first.square() - weight * second).abs() <= SLACK * (1 + first.square())
    if bool((ones & fit & ((weight.square() - square).abs() <= SLACK * (1 + square.abs())) & (weight >= 0)).all()):
        return ""
    return "own: expected at most one fit for each coefficient"


@dataclass(frozen=True)
class Verdict:
    """What the gate made of one exchange.

    Attributes:
        replies: accepted, sorted by site.
        rejections: sorted by site; a site with an accepted answer has none.
        flags: site -> remarks on an accepted answer, e.g. "zero_update".
        tensors: name of a declared tensor -> median of its size over the accepted answers, see ``norms.medians``.
    """

    replies: list[Reply]
    rejections: list[checks.Rejection]
    flags: dict[str, list[str]]
    norms: dict[str, norms.Norms] = field(default_factory=dict)
    tensors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gate:
    """Checks answers against the model they answer to.

    Attributes:
        wanted: names of the scalars that the rule cannot do without.
        anchored: what probes report in a round's second exchange, with ranges.
        max_norm_ratio: how many times larger than others' an update may be, see ``norms.too_large``, or a declared
            tensor, see ``norms.tensors_too_large``.
        metrics: name -> range of the task's metrics, losses among them; None: any name, see ``core.metric.named``.
        tensors: "name/entry" -> slot of the tensors that the method's parts send.
        lenient: fields of the schema that may be missing although they are required: clients of a stock recipe know
            nothing of them.
        personal: entries that stay at the sites: an update must not hold them, and a rule sees them unchanged.
        personal_results: whether sites report results of personal models.
        view: what sites may say of calibration and decisions of the model that they use.
        sums: where sites send sums over patients: what these cannot be.
    """

    trainable: frozenset[str]
    scalars: tuple[Number, ...] = ()
    wanted: tuple[str, ...] = ()
    anchored: tuple[Number, ...] = ()
    max_norm_ratio: float = checks.RATIO
    metrics: Ranges | None = None
    lenient: frozenset[str] = frozenset()
    tensors: Mapping[str, Slot] = field(default_factory=dict)
    personal: frozenset[str] = frozenset()
    personal_results: bool = False
    view: View = NOTHING
    sums: SumsCheck | None = None

    def shared(self, model: StateDict) -> StateDict:
        """``model`` without the entries that stay at the sites."""
        return {key: value for key, value in model.items() if key not in self.personal}

    def inspect(
        self,
        answers: Sequence[Answer],
        model: StateDict,
        round: int,
        declared: Mapping[str, int],
        history: norms.History | None = None,
        own: Mapping[str, StateDict] | None = None,
    ) -> Verdict:
        """Accept or reject every answer; of several good answers of a site the first one counts.

        Args:
            model: w^t, which fixes keys, shapes and types.
            declared: n_k that each known site declared at the start.
            history: sizes of the sites' last accepted updates, and of declared tensors, see ``norms.remembered``.
            own: site -> the model that it was sent in place of w^t.
        """
        whole, model = model, self.shared(model)
        form = Form.of(model, self.trainable)
        sizes: dict[str, norms.Norms] = {}

        def accept(answer: Answer) -> Reply:
            other = (own or {}).get(answer.site)
            against = form if other is None else Form.of(self.shared(other), self.trainable)
            reply, sizes[answer.site] = self._accept(answer, against, declared.get(answer.site))
            return reply

        accepted, refused, repeated = checks.first_good(answers, accept, round)
        scales, history = norms.scales_of(model, self.trainable, form.sizes), history or {}
        compared = {name.partition("/")[0] for name, slot in self.tensors.items() if slot.compared}
        sent = {
            site: {name: one for name, one in r.tensors.items() if name in compared} for site, r in accepted.items()
        }
        beside = {site: {name: norms.size_of(one) for name, one in own.items()} for site, own in sent.items()}
        outliers = norms.tensors_too_large(beside, self.max_norm_ratio, norms.largest_medians(history))
        known = {site: sizes[site] for site in accepted}
        outliers |= norms.too_large(known, scales, self.max_norm_ratio, history)
        refused |= {site: checks.Rejection(site, "norm", detail) for site, detail in outliers.items()}
        kept = sorted(accepted.keys() - outliers.keys())
        if self.sums:
            doubts = {site: self.sums.doubt(model, accepted[site].update, accepted[site].n_examples) for site in kept}
            refused |= {site: checks.Rejection(site, "sums", why) for site, why in doubts.items() if why}
            kept = [site for site in kept if not doubts[site]]
        replies = self._completed([accepted[site] for site in kept], whole)
        zero = {site: [] if any(known[site].values()) else ["zero_update"] for site in kept}
        flags = {site: remarks for site in kept if (remarks := ["duplicate"] * repeated.count(site) + zero[site])}
        medians = norms.medians({site: beside[site] for site in kept})
        return Verdict(replies, checks.left_out(refused, kept), flags, {site: known[site] for site in kept}, medians)

    def may_count(
        self, models: Mapping[str, StateDict], round: int, declared: Mapping[str, int], answer: Answer
    ) -> bool:
        """Whether an answer passes all checks that need no other site's; ``models``: site -> what it was sent."""

        def accept(one: Answer) -> object:
            form = Form.of(self.shared(models[one.site]), self.trainable)
            return self._accept(one, form, declared.get(one.site))

        return bool(checks.first_good([answer], accept, round)[0])

    def implausible(self, total: StateDict, model: StateDict, history: norms.History | None = None) -> str:
        """Why a sum of updates cannot be one, in words; empty when it can: all that is seen with secure sums.

        The sum is held against the model and against the sums of the rounds before (``norms.SUM`` in ``history``).
        """
        sizes, scales = norms.norms_of(total, self.trainable), norms.scales_of(model, self.trainable)
        large = norms.too_large({norms.SUM: sizes}, scales, self.max_norm_ratio, history).get(norms.SUM, "")
        return large or (self.sums.doubt(model, total) if self.sums else "")

    def inspect_second(
        self, answers: Sequence[Answer], round: int
    ) -> tuple[dict[str, dict[str, float]], list[checks.Rejection]]:
        """Site -> the scalars of its answer to "compare", and the rejections."""

        def accept(answer: Answer) -> dict[str, float]:
            values = self._checked(answer, "compare", Against(Form.of({}, self.trainable), None, self.anchored, ()))
            return dict(values["scalars"])

        found, refused, _ = checks.first_good(answers, accept, round)
        return found, checks.left_out(refused, found)

    def _accept(self, answer: Answer, form: Form, declared: int | None) -> tuple[Reply, norms.Norms]:
        """The reply, and kind -> size of its update."""
        wanted = (*self.wanted, *(number.name for number in self.scalars if number.required))
        against = Against(form, declared, self.scalars, wanted, self.metrics, self.tensors)
        values = self._checked(answer, "train", against)
        check_counts(values["scalars"], self.scalars, values["n_examples"])
        measured: Measured = values["update"]
        sizes = measured.sizes
        if self.sums:
            compared = {key: value for key, value in measured.update.items() if key not in BY_PATIENTS}
            sizes = norms.norms_of(compared, self.trainable)
        return reply_of(answer.site, {**values, "update": measured.update}, self.trainable), sizes

    def _checked(self, answer: Answer, task: str, against: Against) -> dict[str, Any]:
        """Field -> its accepted value, for every field that travels in ``task``; the cheap checks come first."""
        values = {}
        for name, spec, check in _fields(task):
            if name not in self.lenient or getattr(answer, name) is not None:
                values[name] = check(name, getattr(answer, name), spec, against)
        return values

    def _completed(self, replies: list[Reply], model: StateDict) -> list[Reply]:
        """The replies with an update of zero for the entries that stay at the sites: the server's do not move."""
        if not self.personal:
            return replies
        entries = {key: value for key, value in model.items() if value.is_floating_point()}
        zeros = {key: torch.zeros_like(value) for key, value in entries.items() if key in self.personal}
        dtypes = {key: value.dtype for key, value in entries.items()}
        return [dataclasses.replace(r, update=gathered(zeros | held(r.update), dtypes)) for r in replies]


@cache
def _fields(task: str) -> list[tuple[str, Spec, Check]]:
    """The fields that travel in ``task`` with their checks; the cheap ones come first."""
    found = [(name, spec, CHECKS[spec.kind_in(task)]) for name, spec in answer_fields().items() if spec.travels(task)]
    checked = [(name, spec, check) for name, spec, check in found if check is not None]
    return sorted(checked, key=lambda field: field[1].kind in ("update", "tensors"))


def reply_of(site: str, values: Mapping[str, Any], trainable: frozenset[str] = frozenset()) -> Reply:
    """The reply that holds the accepted ``values``; counts that ``Reply`` does not name are in ``measured``."""
    own = {f.name for f in dataclasses.fields(Reply)}
    named = {name: value for name, value in values.items() if name in own}
    counts = {name: values[name] for name, spec in answer_fields().items() if spec.kind == "count" and name in values}
    measured = {name: float(value) for name, value in counts.items() if name not in own}
    return Reply(site=site, **named, trainable=trainable, measured=measured)


def steps_of(replies: Sequence[Reply]) -> dict[str, int]:
    """Site -> local optimizer steps of its accepted answer, for the sites whose answer says them."""
    return {r.site: int(r.measured["steps"]) for r in replies if "steps" in r.measured}


def inspect_evaluation(
    answers: Sequence[Answer],
    round: int,
    groups: Sequence[str] = (),
    metrics: Ranges | None = None,
    personal: bool = False,
    view: View = NOTHING,
    declared: Mapping[str, float] | None = None,
) -> tuple[dict[str, dict[str, Any]], list[checks.Rejection]]:
    """Site -> split -> metrics, "groups" -> split -> group -> {"n", "value"}, and the intervals; the rejections.

    Args:
        personal: whether a site may report the same of its personal model, which then stands under "personal".
        declared: site -> its training examples, of which a split may have ``TIMES`` as many.
    """

    def check(answer: Answer) -> dict[str, Any]:
        most = checks.TIMES * (declared or {}).get(answer.site, MOST_EXAMPLES)
        found = _checked_splits(answer.metrics, groups, metrics, most) | _checked_trivial(answer.metrics, metrics)
        if clinical := view.checked(answer.clinical, found["n"].get("test", 0.0)):
            found[CLINICAL] = clinical
        if isinstance(answer.personal, Mapping) and not answer.personal:
            return found
        if not personal:
            raise checks.Refused(PERSONAL, "personal: expected no results of a personal model, the trainer keeps none")
        return found | {PERSONAL: _checked_splits(answer.personal, groups, metrics, most)}

    found, refused, _ = checks.first_good(answers, check, round)
    return {site: found[site] for site in sorted(found)}, checks.left_out(refused, found)


def _checked_splits(content: Any, groups: Sequence[str], metrics: Ranges | None, most: float) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise checks.Refused("metrics", f"expected metrics per split, got {type(content).__name__}")
    cells = content.get("groups")
    cells = cells if isinstance(cells, Mapping) else {}
    found: dict[str, Any] = {split: field_checks.checked_metrics(content.get(split), metrics) for split in SPLITS}
    found["n"] = field_checks.checked_sizes(content.get("n"), SPLITS)
    if any(n > most for n in found["n"].values()):
        raise checks.Refused("count_mismatch", f"n: expected at most {most:g} examples in a split, got more")
    found["groups"] = {split: _checked_groups(cells.get(split), groups) for split in SPLITS}
    found |= checked_intervals(content, found["test"], metrics)
    for split, known in found["groups"].items():
        total = sum(cell["n"] for cell in known.values())
        if total > found["n"].get(split, 0.0):
            raise checks.Refused("count_mismatch", f"groups of {split}: {total:g} examples, more than the split has")
    return found


def _checked_trivial(content: Any, metrics: Ranges | None) -> dict[str, Any]:
    """What an answer that needs no network reaches, under ``TRIVIAL``, where the site says so."""
    beside = content.get(TRIVIAL) if isinstance(content, Mapping) else None
    if not isinstance(beside, Mapping) or not beside:
        return {}
    return {
        TRIVIAL: {split: field_checks.checked_metrics(beside[split], metrics) for split in SPLITS if split in beside}
    }


def _checked_groups(content: Any, groups: Sequence[str]) -> dict[str, dict[str, float]]:
    """The groups of the run that come with a size, a whole number of at least 1, and a value in [0, 1]."""
    content = content if isinstance(content, Mapping) else {}
    usable = {}
    for group in groups:
        cell = content.get(group)
        if (
            not isinstance(cell, Mapping)
            or not checks.is_number(cell.get("n"))
            or not checks.is_number(cell.get("value"))
        ):
            continue
        if 1 <= cell["n"] <= MOST_EXAMPLES and cell["n"] == int(cell["n"]) and 0 <= cell["value"] <= 1:
            usable[group] = {"n": float(cell["n"]), "value": float(cell["value"])}
    return usable


SAME = 1e-12
"""Weights that differ by less are noted as uniform."""


def round_entry(round: Round, verdict: Verdict, outcome: Outcome, answers: Sequence[Answer]) -> dict[str, Any]:
    """What the log keeps of a round beside hashes and seconds of the server."""
    notes = dict(outcome.notes)
    if len(outcome.weights) > 1 and max(outcome.weights.values()) - min(outcome.weights.values()) < SAME:
        notes["weights"] = "uniform"
    return {
        "round": round.number,
        "rounds": round.total,
        "accepted": {r.site: audited({**vars(r), **r.measured}) for r in verdict.replies},
        "rejected": by_site(verdict.rejections),
        "flags": verdict.flags,
        "norms": {site or "sum": sizes for site, sizes in verdict.norms.items()},
        "weights": dict(outcome.weights),
        "notes": notes,
        "site_seconds": site_seconds(answers),
    }


def site_seconds(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Site -> phase -> seconds over the round's exchanges."""
    seconds: dict[str, dict[str, float]] = {}
    for answer in answers:
        phases = seconds.setdefault(answer.site, {})
        for phase, spent in field_checks.checked_seconds(answer.seconds).items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return seconds


def by_site(rejections: Sequence[checks.Rejection]) -> dict[str, dict[str, str]]:
    """Site -> code and detail of its rejection."""
    return {r.site: {"code": r.code, "detail": r.detail} for r in rejections}


def too_few(round: int, accepted: int, needed: int, rejections: Sequence[checks.Rejection]) -> str:
    """Why a round ends the run, with every rejected site's reason."""
    reasons = "; ".join(f"{r.site}: {r.code} ({r.detail})" for r in rejections)
    return f"round {round}: {accepted} accepted sites, {needed} needed; {reasons or 'no other site'}"


def usable(outcome: Outcome, model: StateDict, round: Round) -> Outcome:
    """The outcome without negative variances; RunFailed where a model is not finite, or has other entries."""
    shared = without_negative_variances(outcome.model)
    own = {site: without_negative_variances(outcome.models[site]) for site in sorted(outcome.models)}
    for site, found in {"": shared, **own}.items():
        whose = f"round {round.number}: the rule's model" + (f" for site {site}" if site else "")
        if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in model.items()}:
            raise RunFailed(f"{whose} has other entries than the one that was sent; the one before it was kept")
        if not all(all_finite(value) for value in found.values()):
            raise RunFailed(f"{whose} is not finite; the one before it was kept")
    return dataclasses.replace(outcome, model=shared, models=own)


def checked_intervals(content: object, values: Mapping[str, float], ranges: Ranges | None) -> Intervals:
    """``INTERVALS`` of what a site has sent, at the server; a bad one is dropped, since it informs people alone.

    Args:
        values: the metrics on its test split that were accepted; an interval holds its metric's.
        ranges: name -> range of the task's metrics; None: they are not known, and no interval is kept.
    """
    sent = content.get(INTERVALS) if isinstance(content, Mapping) else None
    if not isinstance(sent, Mapping):
        return {}
    kept = {}
    for name in sorted(set(values) & set(ranges or ())):
        pair = sent.get(name)
        ends: list[Any] = [pair.get(end) for end in ENDS] if isinstance(pair, Mapping) else []
        found = [float(end) for end in ends if is_number(end)]
        (least, most), value = (ranges or {})[name], values[name]
        whole = len(found) == len(ENDS) and least <= found[0] <= value + ALIKE  # in order, but for rounding
        if whole and value - ALIKE <= found[1] <= most:
            kept[name] = dict(zip(ENDS, found, strict=True))
    return {INTERVALS: kept} if kept else {}
