# SPDX-License-Identifier: Apache-2.0
"""``fairflare evaluate``: a run's model on the labelled data of a hospital that did not train it.

A hospital in this process answers as a site of a federation does after the last round: the same object scores, the same
checks decide what may be told, and the page is made of that answer alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
import torch
from torch import Tensor

from fairflare.core.errors import DataError, RunFailed, UserError
from fairflare.core.execution import Execution, default_device, placed
from fairflare.core.findings import Finding
from fairflare.core.metric import finite
from fairflare.core.schema import IN_USE, Instruction
from fairflare.core.seeds import derive
from fairflare.core.types import INTERVALS, Round, SplitName, Training
from fairflare.core.validation import some
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.files import FileSplit
from fairflare.data.readers.geometry import geometry_of
from fairflare.data.site_config import SiteConfig, stricter
from fairflare.data.tensors import Split, TensorData, as_float
from fairflare.engine.after.base import Cases, plain
from fairflare.engine.benefit import Pair, measured
from fairflare.engine.clinical import NOTHING
from fairflare.engine.evaluation import LEVEL, Predictions, over_patients, predict
from fairflare.engine.exchanges import clinical
from fairflare.engine.exchanges.evaluate import EvaluateAtSite
from fairflare.engine.gate import inspect_evaluation
from fairflare.engine.setup.assembly import about as about_task
from fairflare.engine.setup.at_site import leaves, of_run
from fairflare.engine.setup.config import RunConfig, evaluation_of
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.site import Site
from fairflare.functional.calibration import UNCHANGED
from fairflare.functional.intervals import Array, Owners
from fairflare.functional.recalibration import recalibrated, temperature
from fairflare.functional.survival import baseline
from fairflare.import_data.tables import read_again
from fairflare.inference.loaded_run import Opened, hospitals
from fairflare.inference.predict import about as about_model
from fairflare.inference.predict import of_images, of_table
from fairflare.report.clinical import views
from fairflare.report.external import evaluation, paired
from fairflare.report.values import plural
from fairflare.tasks.base import Task
from fairflare.tasks.external import Labelled, constant_results, labelled, of_split, preflight
from fairflare.tasks.kinds.survival import Cox

HALVES = 2
PENALTY = 2.0
"""How strongly what is fitted is drawn to leaving the model as it is, in cases' worth of information."""
LEAST = 20
"""Cases below which nothing is fitted."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Refit:
    """What came of it: an "intercept", "slope" or "temperature".

    Attributes:
        outputs: float64 (N, C) logits of every case after the fit to the half that it is not in.
        folds: what was fitted to each half.
        fitted: the same, fitted to all cases: what a hospital that uses the model would use.
    """

    kind: str
    outputs: Array
    folds: Sequence[Mapping[str, float]]
    fitted: Mapping[str, float]
    words: str


def cross_fitted(outputs: Array, targets: Ints, patients: Owners | None, kind: str, seed: int) -> Refit:
    """Fit to each half of the patients and apply to the other half; UserError where cases or patients are too few.

    Two classes: an intercept, or intercept and slope ("slope"), on the logit; more: a temperature.

    Args:
        outputs: float64 (N, C), finite logits.
        patients: (N,) whose cases they are; None: each is another patient's.
    """
    kind = kind if outputs.shape[1] == 2 else "temperature"
    changed, folds = np.empty_like(outputs), []
    for fit, held_out in _halves(targets, patients, seed):
        found, part = _fitted(outputs[fit], targets[fit], kind), outputs[held_out]
        folds.append(found)
        if kind == "temperature":
            changed[held_out] = part / found["temperature"]
        else:
            changed[held_out] = 0.0
            changed[held_out, 1] = found["intercept"] + found["slope"] * (part[:, 1] - part[:, 0])
    whole = _fitted(outputs, targets, kind)
    said = ", ".join(f"{name} {value:.3f}" for name, value in whole.items())
    words = "Recalibrated: each case's risk comes from a fit to the other half of the patients; fitted to all of them"
    return Refit(kind, changed, folds, whole, f"{words}: {said}.")


def _halves(targets: Ints, patients: Owners | None, seed: int) -> list[tuple[Ints, Ints]]:
    """Two pairs of case numbers, nobody in both of a pair, the classes as even as that allows."""
    from sklearn.model_selection import StratifiedGroupKFold

    n = len(targets)
    if n < LEAST or len(np.unique(targets)) < HALVES:
        got = f"{n}" if n < LEAST else f"{n} of one class"
        raise UserError(f"--recalibrate: expected at least {LEAST} labelled cases of more than one class, got {got}")
    groups = np.arange(n) if patients is None else patients
    if len(np.unique(groups)) < HALVES:
        raise UserError("--recalibrate: expected more than one patient, got one")
    folds = StratifiedGroupKFold(HALVES, shuffle=True, random_state=derive(seed, "recalibration") % 2**32)
    found = [(fit.astype(np.int64), rest.astype(np.int64)) for fit, rest in folds.split(targets, targets, groups)]
    if any(not len(part) or len(np.unique(targets[fit])) < HALVES for fit, rest in found for part in (fit, rest)):
        raise UserError("--recalibrate: expected patients of more than one class in either half")
    return found


def _fitted(outputs: Array, targets: Ints, kind: str) -> dict[str, float]:
    if kind == "temperature":
        return {"temperature": temperature(outputs, targets, PENALTY)}
    logits = outputs[:, 1] - outputs[:, 0]
    line, _ = recalibrated(logits, targets.astype(np.float64), UNCHANGED, PENALTY, slope=kind == "slope")
    return {"intercept": line.intercept, "slope": line.slope}


ALL = "all"
GUESSING = 0.5
LOOKED_AT = 200
"""Images that are held against the training's."""
DISTINCT = 0.9
"""Share of a site's rows that differ from each other, from which on they tell whose a table is."""
LAST = Round(1, 1)
Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is asked of a model.

    Attributes:
        split: "all" labelled cases, or those of "val" or "test".
        label: a table's column with the label; empty: the run's.
        group_by: groups of patients; empty: by what the run knows of them.
        min_count: the fewest patients whose numbers are told; None: the run's.
        recalibrate: "", "intercept" or "slope" (which has an intercept too).
        own: another run, whose model is held against this one's on the same cases.
    """

    split: str = ALL
    label: str = ""
    group_by: str = ""
    min_count: int | None = None
    recalibrate: str = ""
    own: Opened | None = None


def evaluate(opened: Opened, hospitals: Mapping[str, SiteConfig], asked: Asked) -> tuple[Json, list[str]]:
    """The content of ``evaluation.json``, and what a user should know beside it, a line each.

    UserError where a hospital's data (``hospitals``: by name) cannot be read, are too few, or do not fit the run.
    """
    config = evaluation_of(
        opened.config, opened.task, list(hospitals), group_by=asked.group_by, min_count=asked.min_count
    )
    parts = dataclasses.replace(build_parts(config, at_site=True), network=opened.network, task=_scored(opened))
    answers, beside, remarks = dict[str, Json](), dict[str, Json](), [*opened.remarks]
    table = opened.task.table_inputs()
    if table is not None and table.fixed is None and opened.scaling is None and asked.split == ALL:
        remarks.append("numbers are scaled by each hospital's own labelled rows: every site of the run scales its own")
    trained = _trained_rows(opened) if asked.split == ALL else {}
    for name, own in hospitals.items():
        one = _Hospital(name, own, opened, config, parts, asked, trained)
        remarks += [f"{name}: {text}" for text in one.remarks]
        answers[name], beside[name] = one.answer(), one.beside()
    about = {**about_task(config, parts), **about_evaluation(opened, config, asked.split)}
    content = evaluation(about, answers, beside)
    for name, site in content["sites"].items():
        if (area := site["metrics"].get("auc_ovo") or {}).get("high") and area["high"] < GUESSING:
            text = f"an area under the curve of {area['value']:.2f} is worse than guessing"
            remarks.append(f"{name}: {text}: is the outcome coded the other way round?")
    return content, remarks


def _scored(opened: Opened) -> Task:
    """The run's task; with a hospital's baseline hazard one whose log risks are scored as probabilities, too."""
    if opened.with_baseline is None:
        return opened.task
    kind = opened.task.kind.scored(opened.with_baseline)  # type: ignore[attr-defined]  # Cox's
    made, own = copy.copy(opened.task), type(opened.task)
    changed = type(own.__name__, (own,), {"kind": kind, "headline": opened.task.headline})
    object.__setattr__(made, "__class__", changed)  # whether a kind is a property depends on the task
    return made


def about_evaluation(opened: Opened, config: RunConfig, split: str) -> Json:
    model = {key: value for key, value in about_model(opened).items() if key != "adjusted"}
    told = {"model": model, "min_count": config.min_count, "level": LEVEL, "split": split, "by": config.group_by}
    return {**told, "outcome": str(config.options.get("label") or "")}


def _trained_rows(opened: Opened) -> dict[str, set[bytes]]:
    """Site -> the rows that it trained on, as far as its table is on this machine, and tells its rows apart."""
    folder, found = Path(str(opened.config.options.get("datalists") or "")), dict[str, set[bytes]]()
    if not folder.name or not folder.is_dir() or opened.task.table_inputs() is None:
        return {}
    for site in opened.trained:
        try:
            own = opened.task.site_data(site)
        except UserError:  # its table is not there, or no longer what it was
            continue
        rows = _bytes_of_rows(own, "train") + _bytes_of_rows(own, "val")
        if len(distinct := set(rows)) >= DISTINCT * len(rows):
            found[site] = distinct
    return found


def _known_rows(trained: Mapping[str, set[bytes]], data: TensorData) -> list[str]:
    """A remark where most rows of a table are those that sites trained on, whatever the table is called."""
    rows = _bytes_of_rows(data, "test")
    same = {site: sum(row in known for row in rows) for site, known in trained.items()}
    told = {site: n for site, n in same.items() if 2 * n >= len(rows)}
    if trained and not told:
        whole = set[bytes]().union(*trained.values())
        told = {some([site for site, n in same.items() if n], 6): sum(row in whole for row in rows)}
    return [
        f"{n} of {len(rows)} rows trained the model, at {site}: this is no external validation"
        for site, n in told.items()
        if 2 * n >= len(rows) > 0
    ]


def _bytes_of_rows(data: Any, split: SplitName) -> list[bytes]:
    found = data.splits.get(split)
    return [row.tobytes() for row in found.inputs.cpu().numpy()] if isinstance(found, Split) else []


class _Hospital:
    def __init__(
        self,
        name: str,
        own: SiteConfig,
        opened: Opened,
        config: RunConfig,
        parts: Parts,
        asked: Asked,
        trained: Mapping[str, set[bytes]],
    ) -> None:
        self._name, self._own, self._opened, self._asked = name, own, opened, asked
        self._config, self._parts = config, parts
        self._least = stricter(own.min_count, config.min_count)
        self._device = default_device(own.gpu)
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._data = self._read(opened)
        known = _known_rows(trained, self._data)
        self._notes, self._trained = [*self._notes, *known], bool(known)

    def _read(self, opened: Opened) -> TensorData:
        task, name, own, asked, grouping = opened.task, self._name, self._own, self._asked, self._parts.grouping
        try:
            if asked.split == ALL:
                made = labelled(task, name, own, scaling=opened.scaling, label=asked.label, read=self._table)
                made = made.grouped(grouping)
            else:
                made = of_split(task, name, own, asked.split).grouped(grouping)
            found, data = preflight(made, task, self._least)
        except (DataError, ValueError) as error:
            raise UserError(f"{name}: {error}") from None
        if data is None:
            raise UserError(f"{name}: {found[0].text}")
        self._findings = found
        return data.on(self._device)

    def _table(self, path: Path) -> pandas.DataFrame:
        task = self._opened.task
        inputs, (first, *more) = task.table_inputs(), task.outcome_columns
        assert inputs is not None  # they have asked for a table
        outcome = (self._asked.label or first, *more)
        found, self._notes = read_again(path, inputs, outcome, task.classes)
        known = task.kind.known(found, outcome) if {*outcome} <= {*found} else []
        if gone := len(known) - sum(known):
            self._notes.append(
                f"{plural(gone, 'row is', 'rows are')} left out, without an outcome ({some(outcome, 3)})"
            )
        return found

    @property
    def remarks(self) -> list[str]:
        """What its data are like that a reader of the figures should know, a line each."""
        whose = self._data.patients("test")
        several = [] if whose is None else [f"{len(whose)} cases of {len(np.unique(whose))} patients"]
        inputs, scaling = self._opened.task.table_inputs(), self._opened.scaling
        rows = self._data.table if isinstance(self._data, Labelled) else None
        unlike = of_table(inputs, *rows, scaling) if inputs and rows and scaling else []
        images, split = self._opened.task.image_inputs(), self._data.splits["test"]
        empty = [key for key in self._parts.grouping.keys if not any(split.attributes.get(key, (key,)))]
        unlike += [f"{key}: no row says it: is there such a column? None of its groups is told of" for key in empty]
        if images and not images.volumes and isinstance(split, FileSplit):
            chosen = range(0, len(split), -(-len(split) // LOOKED_AT))
            seen = {file: row for row in chosen if isinstance(file := split.items[row].image, (Path, Frame))}
            places = {file.name: place for file in seen if (place := geometry_of(file)) is not None}
            means = {file.name: float(as_float(split.example(row)[0]).mean()) for file, row in seen.items()}
            unlike += of_images(images, self._opened.inputs, places, means)
        return [*self._notes, *(one.text for one in self._findings), *several, *unlike]

    def _site(self) -> Site:
        config, parts, least = self._config, self._parts, self._least
        evaluate = EvaluateAtSite(trivial=partial(constant_results, parts.task, min_count=least))
        return Site(
            name=self._name,
            data=self._data,
            network=parts.network,
            trainer=parts.trainer,
            probes=(),
            training=self._training,
            scoring=parts.task,
            seed=config.seed,
            execution=Execution(self._device, "auto"),
            objective=parts.task.objective,
            groups=parts.grouping.names,
            min_count=least,
            egress=leaves(config, parts, least, self._own),
            exchanges={"evaluate": evaluate} | ({"clinical": half} if (half := self._clinical) is not None else {}),
        )

    @property
    def _clinical(self) -> Any:
        """The site's half of ``exchanges.clinical``; None: the hospital or the task has none."""
        run = of_run(self._config, self._parts, self._name, self._least)
        return clinical.EXCHANGE.at_site(run) if self._own.clinical and clinical.view_of(run) is not NOTHING else None

    @property
    def _training(self) -> Training:
        made = self._config.training
        return dataclasses.replace(made, batch_size=self._own.batch_size) if self._own.batch_size else made

    def answer(self) -> Json:
        """What a site of a federation would have sent, as its server would have accepted it."""
        model = {key: value.detach().cpu().clone() for key, value in self._parts.network.state_dict().items()}
        answer = self._site().handle(Instruction("evaluate", LAST, model, {IN_USE: 1.0}))
        if answer.error:
            raise RunFailed(f"{self._name}: {answer.error}")
        view = clinical.view_of(of_run(self._config, self._parts))
        groups, metrics = self._parts.grouping.names, self._parts.metrics
        found, rejected = inspect_evaluation([answer], LAST.number, groups, metrics, False, view)
        if rejected:
            raise RunFailed(f"{self._name}: {rejected[0].detail}")
        return found[self._name]

    def beside(self) -> Json:
        """What needs the cases themselves: the hospital's own model, recalibration, and whether most trained."""
        found: Json = {"trained": True} if self._trained else {}
        if self._asked.own is not None:
            found["own"] = self._paired(self._asked.own)
        if self._asked.recalibrate:
            found["recalibration"] = self._recalibrated()
        return found

    def _predicted(self, network: torch.nn.Module, data: TensorData, condense: Any = None) -> Predictions:
        way = condense or self._parts.task.condense
        return predict(placed(network, self._device), data.fixed("test", self._training.batch_size), self._device, way)

    def _paired(self, other: Opened) -> Json:
        if list(other.task.classes) != list(self._opened.task.classes):
            raise UserError(f"--own {other.folder.name}: expected the classes of {self._opened.folder.name}")
        data = self._read(other)
        ours, theirs = self._predicted(self._parts.network, self._data), self._predicted(other.network, data)
        pair = Pair(ours, theirs, self._data.patients("test"))
        if not torch.equal(pair.federated[1], pair.solo[1]):
            raise UserError(f"--own {other.folder.name}: reads other cases from {self._name} than this run")
        config, task = self._config, self._parts.task
        found = measured(pair, task, self._parts.grouping.names, self._least, config.seed, self._name)
        return paired(found, other.folder.name, {name: task.metric(name).label for name in task.measures})

    def _recalibrated(self) -> Json:
        """The model with a line (or a temperature) that was fitted to the other half of the patients."""
        task = self._parts.task
        if not task.kind.has_classes:
            got = "masks" if task.kind.has_masks else f"one of {task.kind.name}"
            raise UserError(f"--recalibrate: expected a model of classes, got {got}")
        outputs, targets, members = self._predicted(self._parts.network, self._data, plain)
        if not bool(torch.isfinite(outputs).all()):
            raise UserError("--recalibrate: the model's outputs are not finite")
        whose = self._data.patients("test")
        refit = cross_fitted(outputs.numpy(), targets.numpy(), whose, self._asked.recalibrate, self._config.seed)
        return self._shown(refit, Cases(outputs, targets, members, whose))

    def _shown(self, refit: Refit, cases: Cases) -> Json:
        from scipy.special import log_softmax

        task, least = self._parts.task, self._least
        if least is None or cases.n < max(least, 1):
            return {}
        changed: Tensor = torch.from_numpy(refit.outputs)
        metrics = finite(task.evaluate(*task.condense(changed, cases.targets)))
        found = (*task.condense(changed, cases.targets), cases.members)
        ends = over_patients(found, task, least, metrics, cases.patients)
        kept, none = ends.get(INTERVALS, {}), {"low": None, "high": None}
        site = self._clinical
        numbers = site.after(cases, np.exp(log_softmax(refit.outputs, axis=1)), None) if site is not None else {}
        threshold = clinical.view_of(of_run(self._config, self._parts)).threshold
        return {
            "kind": refit.kind,
            "folds": refit.folds,
            "fitted": refit.fitted,
            "words": refit.words,
            "metrics": {name: {"value": value, **kept.get(name, none)} for name, value in metrics.items()},
            "calibration": views(numbers, threshold).get(""),
        }


WITHOUT = (
    "a log risk puts patients in order and is no probability; --baseline TABLE, a hospital's patients with times and "
    "events, adds survival at the horizons"
)
LEAST_LOG = -1e30
"""For the log of a hazard of 0, as a number that files can hold."""


def with_baseline(opened: Opened, table: Path | None) -> Opened:
    """The run with Breslow's baseline of one hospital's patients under its model, or a remark where there is none.

    It is told at the horizons at which enough patients have left the risk set since the last one and as many remain,
    and stays on this machine, in what is predicted and exported. ``table``: the patients, as ``fairflare evaluate``
    takes them. UserError where the run's model gives no log risk, or they are too few or without an event.
    """
    kind = opened.task.kind
    if not isinstance(kind, Cox):
        if table is not None:
            raise UserError("--baseline: expected a run whose model gives a log risk (task.output=cox)")
        return opened
    if table is None:
        return dataclasses.replace(opened, remarks=(*opened.remarks, WITHOUT))
    found = hospitals(opened, table)
    if len(found) != 1:
        raise UserError(f"--baseline: expected the patients of one hospital, got {len(found)}")
    ((name, own),) = found.items()
    least = max(stricter(own.min_count, opened.config.min_count) or 0, 1)
    device = default_device(own.gpu)
    inputs, outcome = opened.task.table_inputs(), opened.task.outcome_columns
    assert inputs is not None  # a log risk is of a table
    data = labelled(
        opened.task, name, own, scaling=opened.scaling, read=lambda path: read_again(path, inputs, outcome)[0]
    )
    data = data.on(device)
    problems, ready = preflight(data, opened.task, least)
    if ready is None:
        raise UserError(f"--baseline {name}: {problems[-1].text}")
    outputs, targets, _ = predict(opened.network.to(device), data.fixed("test", 256), device)
    times, events = targets.double().numpy().T
    if not events.any():
        raise UserError(f"--baseline {name}: {problems[-1].text}")
    kept, before = list[float](), len(times)
    for end in kind.ends:
        left = int((times > end).sum())
        if min(before - left, left) >= least:
            kept.append(end)
            before = left
    if not kept:
        text = f"until which at least {least} patients have left and after which as many are observed, got none"
        raise UserError(f"--baseline {name}: expected a horizon {text}")
    logs = log_hazards(times, events, outputs[:, 0].double().numpy(), kept)
    return dataclasses.replace(opened, with_baseline=dataclasses.replace(kind, ends=tuple(kept), log_hazards=logs))


def log_hazards(times: Array, events: Array, risks: Array, ends: Sequence[float]) -> tuple[float, ...]:
    """The logs of Breslow's cumulative hazard at ``ends`` of a patient of log risk 0; risks (N,) may be of any size."""
    middle = float(risks.max())
    with np.errstate(divide="ignore"):
        found = np.log(baseline(times, events, risks - middle, np.array(ends))) - middle
    return tuple(np.clip(found, LEAST_LOG, -LEAST_LOG).tolist())
