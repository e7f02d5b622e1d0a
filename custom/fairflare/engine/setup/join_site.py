# SPDX-License-Identifier: Apache-2.0
"""A site's side of a join: tests its patients fold by fold, keeps their risks, and tells means over all of them once.

Only a join's job carries this module. Of a fold nothing leaves but what training needs; no answer has a metric. Risks
out of fold lie beside the site's memory until the site has made its own answer, ``SITE.join.json``, which never leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairflare.core.errors import DataError, EgressRefused
from fairflare.core.findings import Finding
from fairflare.core.schema import Answer, Instruction
from fairflare.data.site_config import SiteConfig, find_site_config
from fairflare.engine.evaluation import predict
from fairflare.engine.exchanges.base import refusing
from fairflare.engine.exchanges.clinical import event_of
from fairflare.engine.exchanges.site_sums import SumsAtSite
from fairflare.engine.exchanges.sums import sealed_check
from fairflare.engine.exchanges.train import TrainAtSite
from fairflare.engine.files import (
    SUFFIX,
    is_there,
    locked,
    private_folder,
    read_json,
    read_tensors,
    save_json,
    save_tensors,
)
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import WAIT, AskedAgain, check_last, claimed
from fairflare.engine.setup.at_site import build_site, leaves
from fairflare.engine.setup.join_plan import INTERCEPT, ON_ALL, Plan, plan_of
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import site_parts
from fairflare.engine.site import Site
from fairflare.functional import decision, exchange
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import Array, Owners
from fairflare.functional.slopes import sigmoid
from fairflare.privacy.egress import Egress, FieldCheck
from fairflare.privacy.identity import Credentials
from fairflare.privacy.secure_sums import masked_sizes
from fairflare.tasks.folds import untestable

if TYPE_CHECKING:
    from fairflare.engine.exchanges.base import Work

LEAST_OF_CLASS = 5
ENDING, LEDGER_ENDING = ".join.json", ".joins.json"
MOST_OF_A = 1e6
"""The largest part that can be right of a direction in which models hardly differ."""
EMPTY = 0.0
"""What a site tells that is not tested: as many of these as others tell numbers."""


class Phases:
    """Stands for the site in every phase of a join, as ``Site`` does in a run.

    Args:
        memory: names the files beside which everything is kept.
        ledger: beside it lies what this site has told of its patients before; None: nothing is kept of that.
    """

    def __init__(
        self,
        config: RunConfig,
        name: str,
        memory: Path,
        local: Path | None = None,
        tell: Callable[[Finding], None] = lambda finding: None,
        credentials: Credentials | None = None,
        ledger: Path | None = None,
    ) -> None:
        self.plan, self.name, self.stop_if_aborted = plan_of(config), name, lambda: None
        self._config, self._memory = config, memory
        self._ledger = ledger and ledger.with_name(ledger.name + LEDGER_ENDING)

        def build(run: RunConfig, at: Path) -> Site:
            return build_site(run, site_parts(run), name, at, local, tell, credentials)

        self._build = build
        self._own = find_site_config(local, name)
        self._phase = -1
        self._site: Site | None = None
        self._claim = contextlib.ExitStack()

    def prepare(self, instruction: Instruction) -> Answer:
        return self._at(instruction).prepare(instruction)

    def finish(self, instruction: Instruction, answer: Answer) -> Answer:
        return self._at(instruction).finish(instruction, answer)

    def handle(self, instruction: Instruction) -> Answer:
        return self._at(instruction).handle(instruction)

    def close(self) -> None:
        """Another process may take the memory's place."""
        self._claim.close()

    memory, aggregation = (property(attrgetter(f"_now.{name}")) for name in ("memory", "aggregation"))

    @property
    def _now(self) -> Site:
        assert self._site is not None  # an instruction came first
        return self._site

    def _at(self, instruction: Instruction) -> Site:
        phase = instruction.phase
        if phase is None:
            raise ValueError("join: expected the number of a phase, got none")
        if phase != self._phase:
            self._site, self._phase = None, phase  # the last one's data and network go first
            self._claim.close()
            at = self._memory.with_name(f"{self._memory.stem}.phase{phase}{SUFFIX}")
            self._claim.enter_context(claimed(at))
            index = phase % self.plan.phases
            folds = self.plan.folds
            self._site = self._fold(index, at) if index < folds else self._sum_site(index - folds, at)
        self._now.stop_if_aborted = self.stop_if_aborted
        return self._now

    def _fold(self, index: int, at: Path) -> Site:
        if is_there(self._sums):
            raise AskedAgain("a fold after the sums: what was told stays as it is")
        label, _, _, run = self.plan.fold(index)
        site, first = self._build(run, at), index % len(self.plan.runs) == 0
        event, split = event_of(site_parts(run).task) or 0, "train" if run.fold == ON_ALL else "test"
        site.exchanges |= {"train": FoldTrain(), "evaluate": FoldTest(label, first, self._risks(index), event, split)}
        site.egress = of_fold(site.egress)
        return site

    def _sum_site(self, place: int, at: Path) -> Site:
        site = self._build(self.plan.fold(0)[3], at)
        site.exchanges.pop("clinical", None)
        site.egress = of_sum(site.egress, self.plan, place)
        answer = self._memory.with_name(self._memory.stem + ENDING)
        mine = (self._tested, self._sums, answer, self._clean, self._refused)
        site.exchanges["after"] = JoinSums(self.plan, self.name, place, site.min_count, *mine)
        return site

    @property
    def _sums(self) -> Path:
        return self._memory.with_name(f"{self._memory.stem}.sums{SUFFIX}")

    def _risks(self, index: int) -> Path:
        return self._memory.with_name(f"{self._memory.stem}.fold{index}{SUFFIX}")

    def _tested(self) -> exchange.Hospital:
        """This site's patients; none where the site tests nobody."""
        found = [read_tensors(self._risks(index)) for index in range(self.plan.tested)]
        deal = self.plan.folds // self.plan.design.repeats

        def row(name: str) -> Array:
            """(R, n) in the order of the folds."""
            deals = [found[i : i + deal] for i in range(0, len(found), deal)]
            return np.stack([np.concatenate([one[name].numpy() for one in some if name in one]) for some in deals])

        risks = np.stack([row(name) for name in ("own", *self.plan.names)])
        patients = row("patients") if any("patients" in one for one in found) else None
        return exchange.Hospital(row("labels"), risks, self._deployed() if risks.size else None, patients=patients)

    def _deployed(self) -> exchange.Deployed | None:
        """With the models of all patients; None where the own one is trees, or the table has other columns."""
        found: dict[str, Any] = {}
        for index in range(self.plan.tested, self.plan.folds):
            found |= read_tensors(self._risks(index))
        if found.get("kind") != decision.REGRESSION or found["x"].shape[1] != self.plan.features:
            return None
        x = found["x"].numpy()
        risks = np.stack([found[name].numpy() for name in ("own", *self.plan.names)])
        return exchange.Deployed(np.hstack([np.ones((len(x), 1)), x]), found["labels"].numpy(), risks)

    def _refused(self, n: int) -> str:
        """Why this site has no part in a further join; "" where it has, of which note is then taken."""
        if self._ledger is None:
            return ""
        entry = {"federation": self._config.federation, "config": self._config.sha256(), "n": n}
        least = self._own.min_count if self._own else self._config.min_count
        return Ledger(self._ledger, self._own, self._config).admit(entry, max(least or 0, self._config.min_count or 0))

    def _clean(self) -> None:
        """After the site's own answer what it was made of goes."""
        for kind in ("fold", "phase"):
            for path in self._memory.parent.glob(f"{self._memory.stem}.{kind}*{SUFFIX}"):
                path.unlink(missing_ok=True)


class FoldTrain(TrainAtSite):
    """A round of a fold, as of any run, but no metric leaves."""

    def train(self, site: Site, instruction: Instruction) -> Answer:
        return dataclasses.replace(super().train(site, instruction), metrics={})


@dataclass
class FoldTest:
    """In the place of ``evaluate``: the site tests its patients of the fold and tells nothing of them.

    Attributes:
        split: whose risks are kept: "test"; "train" where all patients train.
    """

    label: str
    fits_own: bool
    path: Path
    event: int
    split: str

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"evaluate": self.evaluate}

    def evaluate(self, site: Site, instruction: Instruction) -> Answer:
        """Only the number of training examples leaves."""
        if site.is_final(instruction.round):
            self._test(site, instruction)
        return Answer(site.name, instruction.round.number, n_examples=site.examples.size("train"))

    def _test(self, site: Site, instruction: Instruction) -> None:
        own = site.personal(instruction)
        site.network.load_state_dict(instruction.model if own is None else own)
        (fit, seen), (new, labels) = self._logits(site, "train"), self._logits(site, self.split)
        found = {self.label: sigmoid(new)}
        if own is None:
            found[self.label + INTERCEPT] = sigmoid(new + fitted(fit, seen).intercept) if len(new) else new
        kind = {}
        if self.fits_own:
            x, new = self._table(site, "train"), self._table(site, self.split)
            own_risks, kind["kind"] = self._own_risks(x, seen, new, _patients(site, "train"))
            found |= {"labels": labels, "own": own_risks, **({"x": x} if self.split == "train" else {})}
            if (whose := _patients(site, self.split)) is not None:
                found["patients"] = whose
        if not all(np.isfinite(values).all() for values in found.values()):
            raise ValueError("a model's risks are not finite; it has diverged")
        save_tensors(self.path, {name: torch.from_numpy(np.array(values)) for name, values in found.items()} | kind)

    def _logits(self, site: Site, split: Any) -> tuple[Array, Array]:
        """(N,) logits of the event, and labels, 1 for the event."""
        if not site.examples.size(split):
            return np.zeros(0), np.zeros(0)
        batches = site.examples.fixed(split, site.training.batch_size)
        outputs, targets, _ = predict(site.network, batches, site.execution.device, site.scoring.condense)
        found = outputs.double().numpy()
        return found[:, self.event] - found[:, 1 - self.event], (targets.numpy() == self.event).astype(np.float64)

    def _table(self, site: Site, split: Any) -> Array:
        """(N, F) features."""
        found = np.asarray(site.data.splits[split].inputs.cpu(), dtype=np.float64)  # type: ignore[union-attr]  # in memory, see ``tasks.folds``
        if found.ndim != 2:
            raise DataError("table", "join: expected a table")
        return found

    def _own_risks(self, x: Array, y: Array, new: Array, patients: Owners | None) -> tuple[Array, str]:
        """The own model's risks of ``new`` and its kind; of a site that tests nobody neither."""
        if not len(new) or (self.split == "train" and untestable(y.astype(np.int64), patients)):
            return np.zeros(len(new)), ""
        return decision.own_risks(x, y, new, patients)


def _patients(site: Site, split: Any) -> Owners | None:
    """(N,) whose row each is; None: each row is another patient."""
    found: Owners | None = site.data.splits[split].patients  # type: ignore[union-attr]  # in memory, see ``tasks.folds``
    return found


@dataclass
class JoinSums(SumsAtSite):
    """What a site adds to one of the sums, and what it makes of the totals; they are asked with no model.

    Attributes:
        place: which of the sums, from 0.
        min_count: the fewest patients whose numbers leave; None: none do.
        path: where totals, and what was said, are kept from one sum to the next.
        answer: gets the site's own answer after the last total.
        clean: called then: what it was made of goes.
        admit: patients -> why they are in no further join, "" where they are.
    """

    plan: Plan
    site: str
    place: int
    min_count: int | None
    tested: Callable[[], exchange.Hospital]
    path: Path
    answer: Path
    clean: Callable[[], None]
    admit: Callable[[int], str]

    @property
    def terms(self) -> int:
        """Numbers of the total that is told."""
        return self.plan.nothing_known.length(self.place)

    def question(self, site: Site, instruction: Instruction) -> tuple[str, tuple[str, ...]]:
        check_last(instruction.round, site.training.rounds)
        return model_hash(instruction.model), tuple(instruction.sealed.get("statements", ()))

    def sums(self, cases_of: Any) -> list[float]:
        """What leaves: in the clear the site's numbers, with secure sums its terms, which are sealed next.

        What was said once stays as it is.
        """
        kept, key = self._kept(), f"said{self.place}"
        if key not in kept:
            known, one = self._known(kept), self._hospital()
            found = self._said(known, one) if one else [EMPTY] * sizes(self.plan, self.place)
            kept = self._keep({key: torch.tensor(found, dtype=torch.float64)})
        return list(kept[key].tolist())

    def _said(self, known: exchange.Known, one: exchange.Hospital) -> list[float]:
        if self.plan.secure or self.place < exchange.FIRST:
            return one.terms(known)
        told = one.told(known)
        if self.place == exchange.FIRST:
            return told.row.numbers()
        if self.place == exchange.THIRD:
            found = one.by_regression(known, self.plan.margin)
            return [EMPTY] * sizes(self.plan, exchange.THIRD) if found is None else found.tolist()
        assert told.seconds is not None
        means = np.zeros(known.candidates + 1) if told.means is None else told.means
        return [*told.seconds.tolist(), float(told.means is not None), *means.tolist()]

    def adjust(self, total: Sequence[float], cases_of: Any, model: str) -> dict[str, float]:
        """Keep the total; after the last one the site's own answer. Nothing leaves."""
        known = self._known(self._kept()).after(total)
        self._keep({str(self.place): torch.tensor(total, dtype=torch.float64)})
        if self.place == exchange.THIRD and not is_there(self.answer):
            names, design, margin = self.plan.names, self.plan.design, self.plan.margin
            about = {"score": "brier", "folds": design.folds, "repeats": design.repeats, "margin": margin}
            about |= {"site": self.site, "hospitals": known.sites}
            about["weights"] = dict(zip(names, map(float, known.weights), strict=True))
            one = self._hospital()
            own: Mapping[str, Any] = {"refused": self._kept()["why"]}
            if one:
                own = known.answer(one.told(known), names, margin, one.by_regression(known, margin))
            save_json(self.answer, {**about, "together": known.together(names, self.plan.new_size), **own})
        if self.place == exchange.THIRD:
            self.clean()
        return {}

    def _known(self, kept: Mapping[str, Any]) -> exchange.Known:
        """After the sums before this one."""
        sums = {place: tuple(kept[str(place)].tolist()) for place in range(self.place) if str(place) in kept}
        known = dataclasses.replace(self.plan.nothing_known, sums=sums)
        if known.next != self.place:
            raise AskedAgain("a later sum before the first")
        return known

    def _hospital(self) -> exchange.Hospital | None:
        """This site's patients; None: it tells nothing, and it is kept why. In the clear few tell no regression."""
        one, kept = self.tested(), self._kept()
        if "why" not in kept:
            kept = self._keep({"why": self._untold(one.labels)})
        if kept["why"]:
            return None
        least = 2 * max(exchange.many_by_regression(len(self.plan.names)), self.plan.features)
        few = not self.plan.secure and one.labels.shape[1] < least
        return exchange.Hospital(one.labels, one.risks) if few else one

    def _kept(self) -> dict[str, Any]:
        return read_tensors(self.path) if is_there(self.path) else {}

    def _keep(self, more: Mapping[str, Any]) -> dict[str, Any]:
        kept = {**self._kept(), **more}
        save_tensors(self.path, kept)
        return kept

    def _untold(self, labels: Array) -> str:
        n, c = labels.shape[1], len(self.plan.names)
        least = max(exchange.LEAST_PATIENTS, self.min_count or 0)
        if self.min_count is None or n < least or min(labels[0].sum(), n - labels[0].sum()) < LEAST_OF_CLASS:
            return f"expected at least {least} patients, and {LEAST_OF_CLASS} of each class"
        told = exchange.many(c) + 3
        if not self.plan.secure and 2 * told > n:
            return f"expected at least {2 * told} patients for {told} numbers, or secure sums"
        return self.admit(n)


class Ledger:
    """Whom a site has told of its patients: two answers of nearly the same patients would tell of the few between.

    A file of the site's own, of sizes alone. It cannot know which patients are the same: a job's options can change
    what they look like. So a number of patients that lies within ``least`` of one before is refused, whoever asks. The
    hospital may take a line out.
    """

    def __init__(self, path: Path, own: SiteConfig | None, config: RunConfig) -> None:
        self._path = path
        self._table = f"{own.data_root}/{own.datalist}" if own and own.datalist else config.task

    def admit(self, entry: Mapping[str, Any], least: int) -> str:
        """Why ``entry`` (federation, config, n) is refused; "" where it is not, and then it is written down first."""
        mine = {**entry, "table": self._table}
        private_folder(self._path.parent)
        with locked(self._path.parent, f".{self._path.name}.lock", wait=WAIT):  # another join may ask at the same time
            told = read_json(self._path)["told"] if is_there(self._path) else []
            near = [one for one in told if one["table"] == self._table and abs(one["n"] - entry["n"]) < max(least, 1)]
            if not near:
                save_json(self._path, {"told": [*told, mine]})
                return ""
        before, apart = near[0]["n"], f"fewer than {least} apart ({self._path.name})"
        return f"this site has joined before with {before} patients, and these are {entry['n']}: {apart}"


class FoldEgress(Egress):
    """As in every run, but no metric of any split leaves."""

    def check(self, task: str, answer: Answer) -> None:
        if task != "preflight" and (answer.metrics or answer.personal or answer.clinical):
            raise EgressRefused("metrics: a fold's do not leave")
        super().check(task, answer)


def of_fold(egress: Egress | None) -> Egress | None:
    return egress and FoldEgress(**{f.name: getattr(egress, f.name) for f in dataclasses.fields(Egress)})


def of_sum(egress: Egress | None, plan: Plan, place: int) -> Egress | None:
    """``egress`` for one of the sums: its numbers, and no others."""
    if egress is None:
        return None
    checks: dict[str, FieldCheck] = {"sums": refusing(lambda sums: checked(sums, plan, place), "sums")}
    if plan.secure:
        checks["sealed"] = sealed_check({"calibrate": {"sum": masked_sizes(plan.nothing_known.length(place))}})
    return dataclasses.replace(egress, checks=checks)


def sizes(plan: Plan, place: int) -> int:
    """Numbers that a site sends for a sum: in the clear its own, with secure sums its terms."""
    c, known = len(plan.names), plan.nothing_known
    return (
        known.length(place)
        if plan.secure or place < exchange.FIRST
        else (exchange.many(c), c + 5, 4 * c + 5)[place - exchange.FIRST]
    )


def checked(sums: object, plan: Plan, place: int) -> list[float]:
    """A site's numbers in the clear, as the server may use them; raises ValueError."""
    expected = sizes(plan, place)
    if not isinstance(sums, (list, tuple)) or len(sums) != expected or any(type(v) is not float for v in sums):
        raise ValueError(f"expected {expected} numbers")
    found, values = list(sums), np.array(sums)
    if not np.isfinite(values).all() or (place < exchange.FIRST and values.min() < 0):
        raise ValueError("expected terms of a sum")
    if place == exchange.FIRST and any(found):
        exchange.Row.of(found, len(plan.names))
    if place >= exchange.SECOND and ((np.abs(values) > MOST_OF_A).any() or (exchange.rounded(values) != values).any()):
        raise ValueError("expected second moments, or what a regression says")
    if place == exchange.SECOND and (
        min(found[0], found[2]) < 0 or found[3] not in (0, 1) or np.abs(values[:3]).max() > 2
    ):
        raise ValueError("expected second moments")
    return found


def told_of(row: exchange.Row, second: Sequence[float]) -> exchange.Told:
    """What a site tells for the second sum."""
    return exchange.Told(row, np.array(second[:3]), np.array(second[4:]) if second[3] else None)


def leaves_in(config: RunConfig, phase: int | None, min_count: int | None, own: SiteConfig | None) -> Egress | None:
    """What may leave in a phase, for a filter that rebuilds an answer."""
    plan = plan_of(config)
    index = (phase or 0) % plan.phases
    run = plan.fold(index if index < plan.folds else 0)[3]
    egress = leaves(run, site_parts(run), min_count, own)
    return of_fold(egress) if index < plan.folds else of_sum(egress, plan, index - plan.folds)
