# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join: a question to a federation, in place or as one FLARE job, and its folder.

On a table of two classes the decision needs one federated regression (``decision``). METHODs of the house may be asked
besides, in place: for each fold a federation trains without it, so that every patient is tested by models that never
saw this patient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError, RunFailed, UserError
from fairflare.core.validation import expected, shown
from fairflare.data.tensors import Split
from fairflare.decision import methods as compared_methods
from fairflare.decision.decide import Answer
from fairflare.decision.methods import BRIER, C_INDEX, DICE
from fairflare.decision.own import RIDGE, maker
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Array, Hospital, Rows
from fairflare.decision.study import (
    content,
    decision_of,
    expected_false,
    hospital_of,
    left_aside,
    measurements,
    on_components,
    row_from,
    row_of,
    smallest_sample,
)
from fairflare.decision.sums import Plan
from fairflare.engine.audit import AuditLog
from fairflare.engine.exchanges.decide import MIN_SECRET, own_answer
from fairflare.engine.files import AUDIT, is_file, private_folder, read_json, save_json, save_text
from fairflare.engine.preflight import SMALL
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.inference.mix import save_mix
from fairflare.report.decision import LABELS, checklist, page, sheet_page
from fairflare.report.sentences import study
from fairflare.studies import candidates as offered
from fairflare.studies import display
from fairflare.studies.folders import (
    CHECKLIST,
    DECISION,
    JOIN_PAGE,
    MODELS,
    QUESTION,
    RUN,
    SHEETS,
    check_collection,
    created,
    opened,
)
from fairflare.studies.forecast import question_of
from fairflare.studies.labels import folder_name
from fairflare.studies.runs import execute_deployed, run_once
from fairflare.studies.study import SHARED, Study, config_of, facts
from fairflare.tasks.folds import TOO_FEW, WITHOUT, dealt, everyone, outcomes, untestable

Json = dict[str, Any]
DECIDE = "decide"
"""In place of a METHOD: its regressions."""
DATA_ONLY = "fedavg"
"""The method whose configuration says which data, where none is asked."""
SECRET = {"secure_sum": "masks", "min_sites": MIN_SECRET}
LAST = {"best_by": "none", "headline": "final"}
"""All patients train, so that none chooses a model."""
ROUNDS = 8
"""Of the exact regression that a job trains first."""
ENOUGH = 20
"""Rounds of a METHOD's exact regression: Newton's steps double its digits, and what separates the outcomes moves on by
one a step until nothing is left to gain, at about 15."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of a task, and of methods, "name:key=value" as in ``compare``.

    Attributes:
        choices: rounds, sites and values of ``make_config``.
        made: method -> its run, where that is made already.
        event: the class whose risk is asked for, against all others; "": the task's own of two classes.
        inputs: "decide:key=value": the same regressions on the same patients' other inputs, as of another encoder.
        outside: hospitals without which each method trains once more, for what its model is worth from outside.
    """

    task: str
    methods: tuple[str, ...] = ()
    plan: Plan = Plan()
    seed: int = 0
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    made: Mapping[str, RunConfig] = dataclasses.field(default_factory=dict)
    event: str = ""
    inputs: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def each(self) -> dict[str, RunConfig]:
        """Method -> its run, without a fold."""
        return {label: self.made.get(label) or self._run(label) for label in self.methods}

    def _run(self, label: str) -> RunConfig:
        """Of an exact regression as many rounds as it needs, where nobody says how many."""
        config = config_of(label, self.task, self.seed, self.choices, draw=False)
        exact = config.trainer == "newton" and getattr(config.components.trainer, "intercept", "") != "random"
        if not exact or self.choices.get("rounds") or config.training.rounds <= ENOUGH:
            return config
        return config_of(label, self.task, self.seed, {**self.choices, "rounds": ENOUGH}, draw=False)

    @property
    def base(self) -> RunConfig:
        """Says which data."""
        first = self.methods[0] if self.methods else DATA_ONLY
        return self.made.get(first) or config_of(first, self.task, self.seed, self.choices, draw=False)

    def runs(self) -> dict[str, RunConfig]:
        """Folder name -> run, for every method, deal and fold, and without each of ``outside``."""
        folds = [(deal, fold) for deal in range(self.plan.deals) for fold in range(self.plan.folds)]
        found = {}
        for label, config in self.each().items():
            for deal, fold in folds:
                found[self.name(label, deal, fold)] = offered.on_fold(config, f"{fold}/{self.plan.folds}/{deal}")
            for name in self.outside:
                found[self.without(label, name)] = offered.on_fold(config, WITHOUT + name)
        return found

    def without(self, label: str, hospital: str) -> str:
        return f"{folder_name(label)}-without-{hospital}"

    def name(self, label: str, deal: int, fold: int) -> str:
        return f"{folder_name(label)}-fold{fold}of{self.plan.folds}-deal{deal}"


def asked(configs: Sequence[RunConfig], plan: Plan, methods: bool = True, outside: Sequence[str] = ()) -> Question:
    """The question whether to join one of these runs, which share their data; raises UserError.

    ``methods``: whether their models are compared, too; ``outside``: as of ``Question``.
    """
    labels, first = [config.method for config in configs], configs[0]
    expected("join", len(set(labels)) == len(labels), "methods of different names", ", ".join(labels))
    expected("folds", 2 <= plan.folds <= 20, "2 to 20", plan.folds)
    expected("repeats", 1 <= plan.deals <= 50, "1 to 50", plan.deals)
    for config in configs:
        fits = _data(config) == _data(first)
        expected(f"join: {config.method}", fits, f"the data, sites and seed of {first.method}", "others")
    made = {config.method: dataclasses.replace(config, solo=False) for config in configs}
    task = f"{first.task}:{first.preset}"
    if not methods:
        labels, made = [], {DATA_ONLY: made[first.method]}
    return Question(task, tuple(labels), plan, first.seed, made=made, outside=tuple(outside))


def _data(config: RunConfig) -> dict[str, Any]:
    """What candidates have alike; a method may bring a network of its own."""
    options = {key: value for key, value in config.options.items() if key != "model"}
    return {"options": options, **{key: getattr(config, key) for key in ("task", "preset", "seed", *SHARED)}}


# In place.


def measure(
    question: Question, folder: Path, *, force: bool = False, workers: int | None = 1, lockstep: bool = True
) -> Json:
    """Answer every hospital, make the runs of METHODs that are missing, and write the folder.

    ``folder`` gets decision.json, question.json for a hospital outside, join.html, the folders ``sheets`` and
    ``models`` (each hospital's own model mixed with the member model as far as that is safe), and a folder per run.
    Returns the content of decision.json: as ``decision.study.content`` with title, task, and what METHODs bring
    (``decision.methods.compared``). ``lockstep``: runs of small models are trained together, see ``studies.lockstep``.
    Raises UserError: a task that cannot be asked, or the folder holds something else.
    """
    config = question.base
    parts = build_parts(config, at_site=True)
    _check_classes(parts, question)
    everybody, refused = _everybody(parts, site_of_client(config, parts.task))
    table = _checked(parts, question, everybody)
    runs = question.runs()
    result: Json = {"title": titled(config, parts), "task": question.task, "event": question.event, "sites": {}}
    hospitals: dict[str, Hospital] = {}
    if table:
        event = _event(parts, question)
        hospitals = {name: hospital_of(one, event) for name, one in everybody.items()}
        display.note(smallest_sample(hospitals))
        display_shared(hospitals, question.plan)
    if runs:
        words = f"{question.plan.folds} folds, {question.plan.deals} deals"
        display.note(f"{len(runs)} federated trainings ({len(question.methods)} methods, {words})")
    check_collection(folder)
    _check_question(folder, question, force)
    one = partial(run_once, force=force, page=False)
    with Study(runs).finished(folder, one, workers=workers, lockstep=lockstep):
        answers = dict[str, Answer]()
        if table:
            hospitals, components, _ = on_components(hospitals)
            made = decision_of(hospitals, question.plan, None if components else measurements(parts.task))
            answers = dict(made.answers)
            rows = {name: row_of(one, question.plan) for name, one in answers.items()}
            result |= content(question.plan, rows, made.known, components)
            if not components:
                save_json(folder / QUESTION, question_of(config, event, round(made.known.rows), made.training))
            if not components and question.plan.own_model == RIDGE:
                _save_models(folder / MODELS, config, parts, event, answers)
        result["sites"] |= {site: left_aside(why) for site, why in refused.items()}
        if question.inputs:
            result |= {"methods": _other_inputs(question, parts, hospitals, answers), "score": BRIER}
        if runs:
            found = _methods(question, runs, folder, everybody, answers)
            result |= {**found, "methods": result.get("methods", {}) | found["methods"]}
        result |= facts()
        _write(result, folder)
    return result


def display_shared(hospitals: Mapping[str, Hospital], plan: Plan) -> None:
    """Say so where patients are at several hospitals and are dealt as if they were not."""
    named = [np.unique(one.identities) for one in hospitals.values() if one.identities is not None]
    both = sum(map(len, named)) - len(np.unique(np.concatenate(named))) if named else 0
    if both and not plan.shared_patients:
        display.note(f"{both} patients are at more than one hospital: --shared-patients deals them alike")


def _check_question(folder: Path, question: Question, force: bool) -> None:
    """Raise UserError where ``folder`` holds the decision of another question, unless ``force``: it may be signed."""
    if force or not is_file(folder / DECISION):
        return
    there, asked = read_json(folder / DECISION), {"task": question.task, "event": question.event}
    for key, value in (asked | dataclasses.asdict(question.plan)).items():
        if key in there and there[key] != value:
            ways = "--out names another folder, --force replaces it"
            raise UserError(f"{folder}: holds the decision of another question, with {key} {there[key]!r}; {ways}")


def _write(result: Json, folder: Path) -> None:
    before = read_json(folder / DECISION) if is_file(folder / DECISION) else {}
    save_json(folder / DECISION, result)
    if {**read_json(folder / DECISION), **facts()} != {**before, **facts()}:
        for path in (folder / SHEETS).glob("*.html"):  # in any language, of what was decided before
            path.unlink()
    save_text(folder / JOIN_PAGE, page(result))
    if "averages" in result:
        save_text(folder / CHECKLIST, checklist(result))
    for site, row in result["sites"].items():
        if "estimands" in row:
            private_folder(folder / SHEETS)
            save_text(folder / SHEETS / f"{site}.html", sheet_page(result, site))


def titled(config: RunConfig, parts: Parts) -> str:
    """What the pages call the study: by its outcome where the table is a hospital's own."""
    return study({"task": {"title": parts.task.title, "options": config.options}})


def _check_classes(parts: Parts, question: Question) -> None:
    """Before any data are read: raise UserError where the task has not the classes that the question needs."""
    task, classes = parts.task, ", ".join(parts.task.classes)
    plain = task.kind.has_times or task.kind.has_masks
    if not plain and (not task.kind.has_classes or (len(task.classes) != 2 and not question.event)):
        raise UserError(f"join: expected a task of two classes, or --event CLASS, got {question.task}: {classes}")
    if question.event and (plain or question.event not in task.classes):
        raise UserError(f"--event: expected one of {classes}, got {shown(question.event)}")


def _checked(parts: Parts, question: Question, everybody: Mapping[str, Split]) -> bool:
    """Whether the task is a table of two classes, or of one against the others; raises UserError."""
    plain = parts.task.kind.has_times or parts.task.kind.has_masks
    if not everybody:
        raise UserError(f"join: {question.task}: expected a hospital with patients enough, got none")
    for label, config in question.each().items():
        made = build_parts(config, at_site=True)
        if made.rule.alone or not made.trainer.shares_model:
            raise UserError(f"join: {label}: expected a method with a shared model, or one for each site from all")
    if (own := question.plan.own_model) != RIDGE:
        maker(own)
    if question.outside:
        able = question.methods and len(everybody) > 2 and not question.base.clients
        fits = able and everybody.keys() >= set(question.outside)
        known = f"METHODs, and hospitals among three or more: {', '.join(everybody)}"
        expected("--for", bool(fits), known, ", ".join(question.outside))
    if question.plan.shared_patients and question.methods:
        raise UserError("--shared-patients: expected no METHOD, whose folds are each hospital's own")
    shape = next(iter(everybody.values())).inputs.shape
    table = len(shape) == 2 and not plain and len(everybody) > 1
    if not table and (question.inputs or not question.methods):
        why = "METHODs, whose J alone is told of times and masks" if plain else "METHODs"
        expected("join", False, f"a table of two hospitals or more, or {why}", ", ".join(question.inputs) or "none")
    return table


def _everybody(parts: Parts, names: Mapping[str, str]) -> tuple[dict[str, Split], dict[str, str]]:
    """All patients of each site, and why the others have too few to be read; ``names``: client -> the task's site."""
    found, refused = dict[str, Split](), dict[str, str]()
    for client, site in names.items():
        try:
            found[client] = everyone(parts.task.site_data(site))
        except DataError as error:
            if error.code not in SMALL:
                raise
            refused[client] = TOO_FEW
    return found, refused


def _event(parts: Parts, question: Question) -> int:
    if question.event:
        return list(parts.task.classes).index(question.event)
    found = parts.task.event
    return 1 if found is None else found


def _save_models(folder: Path, config: RunConfig, parts: Parts, event: int, answers: Mapping[str, Answer]) -> None:
    """Each hospital's model to use: its own, mixed with the member model by the safe share."""
    if parts.task.table_inputs() is None or len(parts.task.classes) != 2:
        return
    for name, answer in answers.items():
        if (one := answer.assessment) is not None:
            private_folder(folder / name)
            about = {**answer.mix._asdict(), "patients": answer.hospital.n}
            save_mix(folder / name, name, config, one.models[OWN], one.models[MEMBER], answer.mix.share, event, about)


def _other_inputs(
    question: Question, parts: Parts, hospitals: Mapping[str, Hospital], answers: Mapping[str, Answer]
) -> Json:
    """What own, outside and member models on other inputs are worth beside the own model, see ``decision.methods``."""
    assessed = {name: one.assessment for name, one in answers.items()}
    own = {name: one.risks[OWN] for name, one in assessed.items() if one is not None}
    found: Json = {}
    for label in question.inputs:
        base = label.replace(DECIDE, DATA_ONLY, 1)
        config = config_of(base, question.task, question.seed, question.choices, draw=False)
        task = build_parts(config, at_site=True).task
        sites = {name: site for name, site in site_of_client(config, task).items() if name in hospitals}
        event = _event(parts, question)
        other = {name: hospital_of(everyone(task.site_data(site)), event) for name, site in sites.items()}
        for name, one in hospitals.items():
            pairs = [(one.y, other[name].y), (one.patient, other[name].patient)] if name in other else [(0, 1)]
            same = all(np.array_equal(*pair) for pair in pairs)
            expected(f"join: {label}: {name}", same, "the same patients", "others")
        made = decision_of(on_components(other)[0], question.plan, None).answers
        for model in (OWN, OUTSIDE, MEMBER):
            each = {name: there.risks[model] for name in own if (there := made[name].assessment) is not None}
            kappa = 0.0 if model == OWN else None  # both learn from a hospital's patients alone
            found |= compared_methods.compared(
                hospitals, own, {f"{label}: {model}": each}, {}, question.plan.design, kappa=kappa
            )
    return found


def _methods(
    question: Question,
    runs: Mapping[str, RunConfig],
    folder: Path,
    everybody: Mapping[str, Split],
    answers: Mapping[str, Answer],
) -> Json:
    """What the methods' models are worth at each hospital, see ``decision.methods``."""
    config, plan = question.base, question.plan
    parts = build_parts(config, at_site=True)
    names, kind = site_of_client(config, parts.task), parts.task.kind
    score = C_INDEX if kind.has_times else DICE if kind.has_masks else BRIER
    event = _event(parts, question) if score == BRIER else -1
    labels = {client: outcomes(one) for client, one in everybody.items()}
    refused = {client: untestable(labels[client], one.patients) for client, one in everybody.items()}
    able = [client for client, why in refused.items() if not why]
    if not able:
        raise UserError(f"join: no site has patients enough: {next(iter(refused.values()))}")
    place = {
        client: np.stack(
            [
                dealt(labels[client], plan.folds, deal, names[client], everybody[client].patients)
                for deal in range(plan.deals)
            ]
        )
        for client in able
    }
    assessed = {client: answers[client].assessment for client in able if client in answers}
    own = {client: one.risks[OWN] for client, one in assessed.items() if one is not None}
    risks = _out_of_fold(question, runs, folder, place, names, event, set(able) - set(own))
    own |= {client: each.pop(OWN) for client, each in risks.items() if OWN in each}
    hospitals = {client: _hospital(everybody[client], event) for client in able}
    by_method = {label: {client: risks[client][label] for client in able} for label in question.methods}
    for label, each in by_method.items():
        for client, values in each.items():
            expected(f"join: {label}: {client}", bool(np.isfinite(values).all()), "finite risks", "a diverged model")
    attributes = {client: everybody[client].attributes for client in able}
    compared = partial(compared_methods.compared, hospitals, folds=place, design=plan.design, score=score)
    found = compared(own, by_method, attributes=attributes)
    for label in question.methods if question.outside else ():
        outside = {client: risks[client][OUTSIDE + label] for client in question.outside if client in able}
        member = {client: by_method[label][client] for client in outside}
        found |= compared(own, {f"{label}: {LABELS['U']}": outside})
        found |= compared(outside, {f"{label}: {LABELS['D']}": member}, kappa=0.0)
    left = {site: why for site, why in refused.items() if why}
    more = {"methods": found, "score": score, "refused": left}
    unsure = score if score != BRIER else "the rows of using and joining" if question.outside else ""
    return more | ({"not_validated": unsure} if unsure else {})


def _hospital(patients: Split, event: int) -> Hospital:
    """Of times and events, or masks, whose outcomes are not classes, too."""
    if event >= 0 and patients.inputs.dim() == 2:
        return hospital_of(patients, event)
    n = len(patients)
    y = (patients.labels.numpy() == event).astype(np.float64) if event >= 0 else np.zeros(n)
    one = Hospital.of(np.ones((n, 1)), y, patients.patients)
    return one if event >= 0 else dataclasses.replace(one, y=np.asarray(patients.targets, dtype=np.float64))


def _out_of_fold(
    question: Question,
    runs: Mapping[str, RunConfig],
    folder: Path,
    place: Mapping[str, Rows],
    names: Mapping[str, str],
    event: int,
    alone: set[str],
) -> dict[str, dict[str, Array]]:
    """Hospital -> method -> (R, N); of those in ``alone`` the own model's, too, and of methods from outside."""
    found: dict[str, dict[str, Array]] = {client: {} for client in place}
    for deal in range(question.plan.deals):
        for fold in range(question.plan.folds):
            for label in question.methods:
                name = question.name(label, deal, fold)
                one = offered.Trained(build_parts(runs[name], at_site=True), runs[name], folder / name, event)
                for client, dealt_to in place.items():
                    data = one.parts.task.site_data(names[client])
                    new = {label: one.risks(client, data)}
                    if client in question.outside:
                        there = folder / question.without(label, client)
                        outside = dataclasses.replace(one, folder=there, outside=True)
                        new[OUTSIDE + label] = outside.risks(client, data)
                    if label == question.methods[0] and client in alone:
                        new[OWN] = one.own(data)
                    for key, values in new.items():
                        whole = found[client].setdefault(key, np.full(dealt_to.shape, np.nan))
                        whole[deal, dealt_to[deal] == fold] = values
    return found


# As one FLARE job.


def job_of(question: Question, *, secure: bool = False) -> RunConfig:
    """The run of one FLARE job: exact regression, then the decision; ``secure``: sites send sums in secret alone.

    Raises UserError: METHODs, which need folds in place; no table of two classes; too few hospitals for secret sums.
    """
    if question.methods or question.inputs:
        methods = ", ".join((*question.methods, *question.inputs))
        raise UserError(f"join: expected no METHOD with --env, --secure and --export, got {methods}: `join decide`")
    values = {**LAST, **(SECRET if secure else {}), **(question.choices.get("values") or {}), "exchanges": "decide"}
    choices = {**question.choices, "rounds": ROUNDS, "values": values}
    config = config_of("glm", question.task, question.seed, choices, draw=False)
    plan = question.plan
    accept = sorted({*config.accept, "empty_split"})
    return dataclasses.replace(
        config, decision={**dataclasses.asdict(plan), "event": question.event}, fold="all", accept=accept, solo=False
    )


def measure_by_job(
    question: Question,
    folder: Path,
    *,
    secure: bool = False,
    env: str = "local",
    deployment: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Json:
    """The decision as one job in ``env``: in this process, FLARE's simulator, a POC or a provisioned federation.

    ``folder`` gets the run in ``run``, decision.json, join.html and sheets. With secure sums each hospital's row stays
    in its own file. Raises UserError, RunFailed: the job stopped, or a sum was not made.
    """
    config = job_of(question, secure=secure)
    check_collection(folder)
    _check_question(folder, question, force)
    with created(folder), opened(folder):
        if deployment:
            execute_deployed(config, folder / RUN, force=force, **deployment)
        else:
            run_once(config, folder / RUN, env=env, force=force)
        parts = build_parts(config, at_site=True)
        found = decided(folder / RUN, measurements(parts.task))
        result: Json = {"title": titled(config, parts), "task": question.task, "event": question.event}
        result |= {**found, **facts()}
        _write(result, folder)
    return result


def decided(run: Path, columns: Mapping[int, str] | None = None) -> Json:
    """The decision in a run's log; raises RunFailed where it has none.

    ``columns``: as of ``decision.verdicts.never_measured``.
    """
    entries: list[dict[str, Any]] = []
    AuditLog(run / AUDIT, entries.append)
    found = [one for one in entries if one.get("event") == "exchange" and one.get("exchange") == "decide"]
    if not found or "failed" in found[-1]:
        raise RunFailed(f"join: {found[-1]['failed'] if found else 'the run stopped before the decision'}")
    last = found[-1]
    rows = {site: row_from(numbers, columns) for site, numbers in last["sites"].items()}
    absent = (last.get("rejected") or {}).items()
    rows |= {site: left_aside(TOO_FEW) for site, why in absent if why["code"] == "preflight"}
    kept = {key: last[key] for key in (*content(Plan(), {}), "secure", "hospitals")}
    return {**kept, "sites": rows, "expected_false": expected_false(rows)}


def sheets_of(place: Path, sites: Sequence[str] = (), language: str = "en") -> list[Path]:
    """Write the sheets of ``sites``, or of all, of a decision's folder, or of the file that a site keeps.

    Returns the pages: SITE.html in English, else SITE.LANGUAGE.html. Raises UserError: another place, or no such
    hospital.
    """
    folder = place / SHEETS if place.is_dir() else place.parent
    found = read_json(place / DECISION) if place.is_dir() else own_answer(place)
    rows = {site: row for site, row in dict(found.get("sites") or {}).items() if "estimands" in row}
    if strange := [site for site in sites if site not in rows]:
        raise UserError(f"--site: expected one of {shown(', '.join(rows))}, got {shown(strange[0])}")
    if not rows:
        whys = ", ".join(f"{site}: {row.get('reason', '')}" for site, row in dict(found.get("sites") or {}).items())
        raise UserError(f"{place}: expected a hospital with an answer, got {whys or 'none'}")
    private_folder(folder)
    pages = []
    for site in sites or rows:
        path = folder / f"{site}{'' if language == 'en' else f'.{language}'}.html"
        save_text(path, sheet_page(found, site, language))
        pages.append(path)
    return pages
