# SPDX-License-Identifier: Apache-2.0
"""Should a hospital join, and with which model: federations of folds, every patient tested by models that never saw it.

The federation is computed on this machine, and so are the sums over each hospital's patients. ``report.join`` makes the
answer of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import expected, shown
from fairflare.data.tensors import Split
from fairflare.decision.decide import Decision
from fairflare.decision.study import MAX_COLUMNS, decision_of, left_aside
from fairflare.engine.files import save_json, save_text
from fairflare.engine.preflight import SMALL
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.functional.decision import TREES, Array, Design, own_model
from fairflare.functional.exchange import Deployed
from fairflare.functional.reasons import Models, explained
from fairflare.inference.mix import event_index
from fairflare.report.decision import page as decision_page
from fairflare.report.join import OWN, OutOfFold, answers, page
from fairflare.report.sentences import study
from fairflare.studies import candidates as offered
from fairflare.studies import display
from fairflare.studies.candidates import keep_own
from fairflare.studies.folders import DECISION, JOIN, JOIN_PAGE, QUESTION, check_collection, created, opened
from fairflare.studies.forecast import question_of
from fairflare.studies.joined import by_group, differences, write_sheets
from fairflare.studies.labels import folder_name, split_method
from fairflare.studies.parallel import Workers
from fairflare.studies.runs import run_once
from fairflare.studies.study import SHARED, Study, config_of, facts
from fairflare.tasks.folds import ALL, FEWEST, TOO_FEW, dealt, everyone, outcomes, untestable

Json = dict[str, Any]
SEEDED = "seed"
"""Draws of ``dp-sgd`` that protect nobody."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of methods, "name:key=value" as in ``compare``, on a task of classes, times or masks in memory.

    A shared model counts with an own intercept, too.
    """

    methods: tuple[str, ...]
    task: str
    design: Design = dataclasses.field(default_factory=Design)
    margin: float = 0.002
    """A loss (Brier score) that does not matter; 0: strict."""
    new_size: int = 100
    """Patients of a hospital that is not in yet."""
    seed: int = 0
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Rounds, sites and values of ``make_config``."""
    made: Mapping[str, RunConfig] = dataclasses.field(default_factory=dict)
    """Method -> its run, where that is made already."""
    event: str = ""
    """The class whose risk is asked for, against all others; "": the task's own of two classes."""
    shares: bool = False
    """Whether a shared model counts with the hospital's own class shares, too."""

    def runs(self) -> dict[str, RunConfig]:
        """Folder name -> run, for every method, deal and fold."""
        found = {}
        for label, config in self.each().items():
            for deal, number in self._folds():
                fold = f"{number}/{self.design.folds}/{deal}"
                found[self.name(label, deal, number)] = offered.on_fold(config, fold)
        return found

    def deployed(self) -> dict[str, RunConfig]:
        """Folder name -> run on all patients, which ``combine`` needs anyhow."""
        return {f"{folder_name(label)}-{ALL}": offered.on_fold(config, ALL) for label, config in self.each().items()}

    def each(self) -> dict[str, RunConfig]:
        """Method -> its run, without a fold."""
        choices = (self.task, self.seed, self.choices)
        return {label: self.made.get(label) or config_of(label, *choices, draw=False) for label in self.methods}

    def privacy(self) -> Json:
        """Method trained with differential privacy -> whose ("record", "hospital") -> epsilon and delta of a run."""
        found = dict[str, Json]()
        for label, config in self.each().items():
            trainer: Any = config.components.trainer
            one = {}
            if trainer.private and trainer.draws != SEEDED:
                one["record"] = {"epsilon": trainer.epsilon, "delta": trainer.delta}
            if config.site_epsilon:
                one["hospital"] = {"epsilon": config.site_epsilon, "delta": config.site_delta}
            found |= {label: one} if one else {}
        return found

    def name(self, label: str, deal: int, fold: int) -> str:
        return f"{folder_name(label)}-fold{fold}of{self.design.folds}-deal{deal}"

    def _folds(self) -> list[tuple[int, int]]:
        return [(deal, fold) for deal in range(self.design.repeats) for fold in range(self.design.folds)]


def asked(
    configs: Sequence[RunConfig], folds: int, repeats: int, margin: float, new_size: int, shares: bool = False
) -> Question:
    """The question whether to join one of these runs, which share their data; raises UserError."""
    labels, first = [config.method for config in configs], configs[0]
    expected("join", len(set(labels)) == len(labels), "methods of different names", ", ".join(labels))
    expected("folds", folds >= FEWEST, f"at least {FEWEST}", folds)
    expected("repeats", repeats >= 1, "at least 1", repeats)
    expected("no_harm", 0 <= margin <= 0.1, "a loss from 0 to 0.1", margin)
    for config in configs:
        fits = _data(config) == _data(first)
        expected(f"join: {config.method}", fits, f"the data, sites and seed of {first.method}", "others")
    made = {config.method: dataclasses.replace(config, solo=False) for config in configs}
    task, design = f"{first.task}:{first.preset}", Design(folds, repeats)
    return Question(tuple(labels), task, design, margin, new_size, first.seed, made=made, shares=shares)


def _data(config: RunConfig) -> dict[str, Any]:
    """What candidates have alike; a method may bring a network of its own."""
    options = {key: value for key, value in config.options.items() if key != "model"}
    return {"options": options, **{key: getattr(config, key) for key in ("task", "preset", "seed", *SHARED)}}


def measure_join(
    question: Question, folder: Path, *, force: bool = False, workers: Workers | None = 1
) -> dict[str, Any]:
    """Make the runs that are missing, and report the benefit of joining for each hospital.

    ``folder`` gets a folder per run, join.json, join.html and the folder ``sheets``. Returns as ``report.join.answers``
    with title, task, methods, privacy (see ``Question.privacy``), refused (site -> why) and own_models (site -> kind ->
    folds in which it was the better one). Raises UserError: the task has no class to ask for, or examples in files, a
    method's models cannot be asked one by one, or the folder holds something else.
    """
    runs = question.runs()
    config = next(iter(runs.values()))
    first = build_parts(config, at_site=True)
    deployed = question.deployed() if _checked(first, question, runs) else {}
    design = question.design
    words = f"{design.folds} folds, {design.repeats} repetitions"
    display.note(
        f"{len(runs)} federated trainings ({len(question.methods)} candidate methods, {words}), {len(deployed)} on all "
        f"patients, and an own model for each fold at each of {len(first.task.sites())} sites"
    )
    with Study(runs | deployed).finished(folder, partial(run_once, force=force, page=False), workers=workers):
        tested, names, kinds, refused = _tested(question, runs, folder)
        if not tested:
            raise UserError(f"join: no site has patients enough: {next(iter(refused.values()))}")
        if plain := not first.task.kind.has_classes:
            found = differences(tested, names, design)
        else:
            tested = _with_deployed(question, deployed, folder, tested, names)
            found = answers(tested, names, design, question.margin, question.new_size)
            task = build_parts(dataclasses.replace(config, fold=""), at_site=True).task
            sites = site_of_client(config, task)
            for client, one in tested.items():
                attributes = everyone(task.site_data(sites[client])).attributes
                found["sites"][client]["groups"] = by_group(one, attributes, names, design)
        title = titled(config, first)
        told = {"title": title, "task": question.task, "methods": list(question.methods)}
        more = {"not_validated": [found["score"]] if plain else [], "new_size": question.new_size}
        more |= {"event": question.event, "privacy": question.privacy(), "refused": refused}
        if deployed:
            bare = dataclasses.replace(config, fold="")
            decided, _ = _decision(question, bare, build_parts(bare, at_site=True))
            more |= {"decision": decided} if decided else {}
        more |= {"own_models": kinds, **facts()}
        result = {**told, **found, **({} if plain else _why(tested, names, question)), **more}
        save_json(folder / JOIN, result)
        save_text(folder / JOIN_PAGE, page(result))
        write_sheets(result, folder)
    return result


def measure_decision(
    question: Question, folder: Path, *, threshold: float | None = None, worthwhile: float = 0.0
) -> dict[str, Any]:
    """Answer every hospital, alone, use or join, from one federated training (``decision``), and write the page.

    Of ``question`` task, design, event and choices count. ``threshold``: the risk from which on the clinic treats;
    ``worthwhile``: the smallest net benefit per patient that matters. Returns the content of decision.json: as
    ``decision.study.decision_of`` with title, task and refused (site -> why). Raises UserError: no table of two
    classes, or the folder holds something else.
    """
    config = next(iter(question.each().values()))
    parts = build_parts(config, at_site=True)
    if not _checked(parts, dataclasses.replace(question, methods=()), {}):
        raise UserError(f"join decide: expected a table of two classes, or --event CLASS, got {question.task}")
    check_collection(folder)
    with created(folder), opened(folder):
        found, made = _decision(question, config, parts, threshold, worthwhile)
        if made is None:
            raise UserError(
                f"join decide: expected two hospitals or more, and at most {MAX_COLUMNS} features, got others"
            )
        rows = sum(one["rows"] for one in found["sites"].values() if "rows" in one)
        result = {"title": titled(config, parts), "task": question.task, **found, **facts()}
        save_json(folder / DECISION, result)
        save_json(folder / QUESTION, question_of(config, _event(parts, question), rows, made.training))
        save_text(folder / JOIN_PAGE, decision_page(result))
    return result


def _decision(
    question: Question, config: RunConfig, parts: Parts, threshold: float | None = None, worthwhile: float = 0.0
) -> tuple[Json, Decision | None]:
    """Empty of one hospital, and of a table that is too wide."""
    everybody, refused = _everybody(parts, site_of_client(config, parts.task))
    width = next(iter(everybody.values())).inputs.shape[1]
    if width > MAX_COLUMNS or len(everybody) < 2:
        return {}, None
    table, design, event = parts.task.table_inputs(), question.design, _event(parts, question)
    features = () if table is None else (*table.numbers, *table.plain)
    columns = {1 + k: f.column for k, f in enumerate(features) if not (f.values or f.missing or f.other)}
    found, made = decision_of(everybody, event, columns, design.folds, design.repeats, threshold, worthwhile)
    found["sites"] |= {site: left_aside(why) for site, why in refused.items()}
    return found, made


def titled(config: RunConfig, parts: Parts) -> str:
    """What the pages call the study: by its outcome where the table is a hospital's own."""
    return study({"task": {"title": parts.task.title, "options": config.options}})


def _checked(parts: Parts, question: Question, runs: Mapping[str, RunConfig]) -> bool:
    """Whether the task is a table of classes; raises UserError for what cannot be asked."""
    task = parts.task
    plain = task.kind.has_times or task.kind.has_masks
    if not plain and (not task.kind.has_classes or (len(task.classes) != 2 and not question.event)):
        raise UserError(
            f"join: expected a task of two classes, or --event CLASS, got {question.task}: {', '.join(task.classes)}"
        )
    if plain and question.shares:
        raise UserError(f"--class-shares: expected a task of two classes, or --event CLASS, got {question.task}")
    if question.event and (plain or question.event not in task.classes):
        raise UserError(f"--event: expected one of {', '.join(task.classes)}, got {shown(question.event)}")
    one = next(iter(_everybody(parts, {site: site for site in task.sites()})[0].values()), None)
    if one is None:
        raise UserError(f"join: {question.task}: expected a hospital with patients enough, got none")
    for label in question.methods:
        made = build_parts(runs[question.name(label, 0, 0)], at_site=True)
        if made.rule.alone or not made.trainer.shares_model:
            raise UserError(f"join: {label}: expected a method with a shared model, or one for each site from all")
    return len(one.inputs.shape) == 2 and not plain


def _everybody(parts: Parts, names: Mapping[str, str]) -> tuple[dict[str, Split], dict[str, str]]:
    """All patients of each site, and why the others have too few to be read; ``names``: of the task's sites."""
    found, refused = dict[str, Split](), dict[str, str]()
    for client, site in names.items():
        try:
            found[client] = everyone(parts.task.site_data(site))
        except DataError as error:
            if error.code not in SMALL:
                raise
            refused[client] = TOO_FEW
    return found, refused


def _tested(
    question: Question, runs: Mapping[str, RunConfig], folder: Path
) -> tuple[dict[str, OutOfFold], list[str], dict[str, dict[str, int]], dict[str, str]]:
    """Each site's patients with all risks out of fold; the candidates; kinds of own models; sites that are refused."""
    config = next(iter(runs.values()))
    plain = build_parts(dataclasses.replace(config, fold=""), at_site=True)
    names = site_of_client(config, plain.task)
    everybody, refused = _everybody(plain, names)
    labels = {client: outcomes(found) for client, found in everybody.items()}
    event = _event(plain, question) if plain.task.kind.has_classes else -1
    reasons = {client: untestable(found, everybody[client].patients) for client, found in labels.items()}
    refused |= {client: why for client, why in reasons.items() if why}
    risks: dict[str, dict[str, Array]] = {client: {} for client in labels if client not in refused}
    kinds: dict[str, dict[str, int]] = {client: {} for client in risks}
    design = question.design
    deals = range(design.repeats)
    place = {
        one: [dealt(labels[one], design.folds, deal, names[one], everybody[one].patients) for deal in deals]
        for one in risks
    }
    for deal, fold in question._folds():
        for label in question.methods:
            name = question.name(label, deal, fold)
            one = offered.Trained(build_parts(runs[name], at_site=True), runs[name], folder / name, event)
            for client in risks:
                data = one.parts.task.site_data(names[client])
                found = one.risks(label, client, data, question.shares)
                if label == question.methods[0]:
                    found[OWN], kind = one.own(data)
                    kinds[client][kind] = kinds[client].get(kind, 0) + 1
                for candidate, values in found.items():
                    whole = risks[client].setdefault(candidate, np.full((design.repeats, len(labels[client])), np.nan))
                    whole[deal, place[client][deal] == fold] = values
    candidates = [name for name in next(iter(risks.values()), {}) if name != OWN]
    tested = {}
    for client, found in risks.items():
        all_risks = np.stack([found[name] for name in (OWN, *candidates)])
        folds = np.stack(place[client]).astype(np.float64)
        right = everybody[client].targets.numpy() if event < 0 else labels[client] == event
        whose = everybody[client].patients
        tested[client] = OutOfFold(right.astype(np.float64), all_risks, folds=folds, patients=whose)
        if not np.isfinite(all_risks).all():
            raise UserError(f"join: {client}: a model's risks are not finite; it has diverged")
    return tested, candidates, kinds, refused


def _with_deployed(
    question: Question,
    runs: Mapping[str, RunConfig],
    folder: Path,
    tested: Mapping[str, OutOfFold],
    names: Sequence[str],
) -> dict[str, OutOfFold]:
    """With what the models of all patients say, but at sites whose own model is trees, which know their patients."""
    found: dict[str, dict[str, Array]] = {client: {} for client in tested}
    features = {}
    for label, (name, config) in zip(question.methods, runs.items()):
        parts = build_parts(config, at_site=True)
        run, sites = (
            offered.Trained(parts, config, folder / name, _event(parts, question)),
            site_of_client(config, parts.task),
        )
        for client, one in tested.items():
            data = parts.task.site_data(sites[client])
            found[client] |= run.risks(label, client, data, question.shares, "train")
            if client not in features:
                x = np.asarray(data.splits["train"].inputs, dtype=np.float64)  # type: ignore[union-attr]  # examples are in memory
                model, kind = own_model(x, one.labels, one.patients)
                keep_own(folder, client, (model, kind), x, one.labels)
                found[client][OWN] = model.predict_proba(x)[:, 1]
                features[client] = None if kind == TREES else np.hstack([np.ones((len(x), 1)), x])
    more = {
        client: Deployed(x, tested[client].labels, np.stack([found[client][name] for name in (OWN, *names)]))
        for client, x in features.items()
        if x is not None
    }
    return {client: dataclasses.replace(one, deployed=more.get(client)) for client, one in tested.items()}


def _why(tested: Mapping[str, OutOfFold], names: Sequence[str], question: Question) -> Json:
    """Why FedAvg loses or gains at each hospital, if exact regression is a candidate beside it; else nothing."""
    first = {name: next((m for m in question.methods if split_method(m)[0] == name), "") for name in ("fedavg", "glm")}
    chain = [first["fedavg"], first["glm"], first["glm"] + offered.INTERCEPT]
    if not set(chain) <= set(names):
        return {}
    at = [*(1 + names.index(name) for name in chain), 0]
    models = {site: (one.labels, Models(*(one.risks[k] for k in at)), one.patients) for site, one in tested.items()}
    return dict(zip(("why", "why_average"), explained(models, question.design), strict=True))


def _event(parts: Parts, question: Question) -> int:
    return list(parts.task.classes).index(question.event) if question.event else event_index(parts)
