# SPDX-License-Identifier: Apache-2.0
"""A site's side of a join: tests its patients fold by fold, keeps their risks, and tells means over all of them once.

Only a join's job carries this module. Of a fold nothing leaves but what training needs; no answer has a metric. Risks
out of fold lie beside the site's memory until the site has made its own answer, ``SITE.join.json``, which never leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fairflare.core.errors import DataError
from fairflare.core.findings import Finding
from fairflare.core.schema import Answer, Instruction
from fairflare.data.site_config import SiteConfig, find_site_config
from fairflare.engine.evaluation import predict
from fairflare.engine.files import SUFFIX, is_there, read_json, read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import AskedAgain, check_last, claimed
from fairflare.engine.setup.at_site import build_site, event_of, leaves
from fairflare.engine.setup.join.plan import INTERCEPT, SUMS, Plan, plan_of
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import site_parts
from fairflare.engine.site import Site
from fairflare.engine.state import save_json, save_tensors
from fairflare.functional.decision import Array
from fairflare.functional.exchange import LEAST_PATIENTS, Known, Row, many, mix_seconds, row_of
from fairflare.functional.recalibration import fitted
from fairflare.privacy.egress import Egress, EgressRefused
from fairflare.privacy.secure_sum.schemes import Credentials, masked_sizes

OWN_MODEL = "fairflare.studies.own_model"
"""What fits a hospital's own model: imported by name, for it belongs to the desk in every other job."""
LEAST_OF_CLASS = 5
ENDING, LEDGER_ENDING = ".join.json", ".joins.json"
EMPTY = 0.0
"""What a site tells that is not tested: as many of these as others tell numbers."""


class Phases:
    """Stands for the site in every phase of a join, as ``Site`` does in a run.

    Args:
        config: of the job, with ``join``.
        name: the site.
        memory: names the files beside which everything is kept.
        local: folder of the site's own configuration.
        tell: called with what preflight finds.
        credentials: for secure sums.
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

    @property
    def memory(self) -> Any:
        return self._now.memory

    @property
    def aggregation(self) -> Any:
        return self._now.aggregation

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
            self._site = (
                self._fold(index, at) if index < self.plan.folds else self._sum_site(index - self.plan.folds, at)
            )
        self._now.stop_if_aborted = self.stop_if_aborted
        return self._now

    def _fold(self, index: int, at: Path) -> Site:
        if is_there(self._sums):
            raise AskedAgain("a fold after the sums: what was told stays as it is")
        label, _, _, run = self.plan.fold(index)
        site = _as(FoldSite, self._build(run, at))
        site.label, site.fits_own, site.path = label, index % len(self.plan.runs) == 0, self._risks(index)
        site.event = event_of(site_parts(run).task) or 0
        site.egress = of_fold(site.egress)
        return site

    def _sum_site(self, place: int, at: Path) -> Site:
        site = _as(SumSite, self._build(self.plan.fold(0)[3], at))
        site.clinical = None
        site.egress = of_sum(site.egress, self.plan, place)
        after: Any = Exchange(self.plan, place, site.min_count, self._tested, self._sums, self._end, self._refused)
        site.after = after
        return site

    @property
    def _sums(self) -> Path:
        return self._memory.with_name(f"{self._memory.stem}.sums{SUFFIX}")

    def _risks(self, index: int) -> Path:
        return self._memory.with_name(f"{self._memory.stem}.fold{index}{SUFFIX}")

    def _tested(self) -> tuple[Array, Array]:
        """(R, n) labels and (1 + C, R, n) risks out of fold; n is 0 where the site tests nobody."""
        found = [read_tensors(self._risks(index)) for index in range(self.plan.folds)]
        deal = self.plan.folds // self.plan.design.repeats

        def row(name: str) -> Array:
            """(R, n) in the order of the folds."""
            parts = [
                [one[name].numpy() for one in found[i : i + deal] if name in one] for i in range(0, len(found), deal)
            ]
            return np.stack([np.concatenate(one) for one in parts])

        return row("labels"), np.stack([row(name) for name in ("own", *self.plan.names)])

    def _refused(self, n: int) -> str:
        """Why this site has no part in a further join; "" where it has, of which note is then taken."""
        if self._ledger is None:
            return ""
        entry = {"federation": self._config.federation, "config": self._config.sha256(), "n": n}
        least = self._own.min_count if self._own else self._config.min_count
        return Ledger(self._ledger, self._own, self._config).admit(entry, max(least or 0, self._config.min_count or 0))

    def _end(self, content: Mapping[str, Any]) -> None:
        """Keep the site's own answer; what it was made of goes."""
        save_json(self._memory.with_name(self._memory.stem + ENDING), {"site": self.name, **content})
        for kind in ("fold", "phase"):
            for path in self._memory.parent.glob(f"{self._memory.stem}.{kind}*{SUFFIX}"):
                path.unlink(missing_ok=True)


S = TypeVar("S", bound=Site)


def _as(cls: type[S], site: Site) -> S:
    return cls(**{field.name: getattr(site, field.name) for field in dataclasses.fields(Site)})


class FoldSite(Site):
    """A site in one fold: trains as in every run, then tests its patients of the fold and says nothing of them."""

    label: str
    fits_own: bool
    path: Path
    event: int

    def _train(self, instruction: Instruction) -> Answer:
        return dataclasses.replace(super()._train(instruction), metrics={})

    def _evaluate(self, instruction: Instruction) -> Answer:
        if self._is_final(instruction.round):
            self._test(instruction)
        return Answer(self.name, instruction.round.number, n_examples=self._examples.size("train"))

    def _test(self, instruction: Instruction) -> None:
        own = self._personal(instruction)
        self.network.load_state_dict(instruction.model if own is None else own)
        (fit, seen), (new, labels) = self._logits("train"), self._logits("test")
        found = {self.label: _sigmoid(new)}
        if own is None:
            found[self.label + INTERCEPT] = _sigmoid(new + fitted(fit, seen).intercept) if len(new) else new
        if self.fits_own:
            found |= {"labels": labels, "own": self._own_risks(labels)}
        if not all(np.isfinite(values).all() for values in found.values()):
            raise ValueError("a model's risks are not finite; it has diverged")
        save_tensors(self.path, {name: torch.from_numpy(np.array(values)) for name, values in found.items()})

    def _logits(self, split: Any) -> tuple[Array, Array]:
        """(N,) logits of the event, and labels, 1 for the event."""
        if not self._examples.size(split):
            return np.zeros(0), np.zeros(0)
        batches = self._examples.fixed(split, self.training.batch_size)
        outputs, targets, _ = predict(self.network, batches, self.execution.device, self.scoring.condense)
        found = outputs.double().numpy()
        return found[:, self.event] - found[:, 1 - self.event], (targets.numpy() == self.event).astype(np.float64)

    def _own_risks(self, labels: Array) -> Array:
        if not len(labels):
            return labels
        train, test = self.data.splits["train"], self.data.splits["test"]  # type: ignore[union-attr]  # in memory, see ``tasks.folds``
        x, new = (np.asarray(part.inputs.cpu(), dtype=np.float64) for part in (train, test))
        if x.ndim != 2:
            raise DataError("table", "join: expected a table")
        fit = importlib.import_module(OWN_MODEL).own_risks
        return np.asarray(fit(x, (train.labels.cpu().numpy() == self.event).astype(np.float64), new)[0])


def _sigmoid(logits: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(logits))


class SumSite(Site):
    """A site in one of the sums: they are asked with no model."""

    def _question(self, instruction: Instruction) -> tuple[str, tuple[str, ...]]:
        check_last(instruction.round, self.training.rounds)
        return model_hash(instruction.model), tuple(instruction.sealed.get("statements", ()))


@dataclass
class Exchange:
    """What a site adds to one of the sums, and what it makes of the totals; in the place of ``AfterAtSite``.

    Attributes:
        place: which of the sums, from 0.
        min_count: the fewest patients whose numbers leave; None: none do.
        tested: all labels and risks out of fold.
        path: where totals are kept from one sum to the next.
        end: called with the site's own answer after the last total.
        admit: patients -> why they are in no further join, "" where they are.
    """

    plan: Plan
    place: int
    min_count: int | None
    tested: Callable[[], tuple[Array, Array]]
    path: Path
    end: Callable[[Mapping[str, Any]], None]
    admit: Callable[[int], str]

    shape: None = None

    @property
    def step(self) -> Exchange:
        return self

    def terms(self, shape: None) -> int:
        """Numbers of the total that is told."""
        return Known(len(self.plan.names), self.plan.design).lengths()[self.place]

    def sums(self, cases_of: Any) -> list[float]:
        """What leaves: in the clear the site's numbers, with secure sums its terms, which are sealed next."""
        known, row, seconds, _ = self._state()
        if self.plan.secure:
            return known.terms(row, seconds)
        if self.place == 0:
            return row.numbers() if row else [EMPTY] * many(len(self.plan.names))
        return [EMPTY] * 3 if seconds is None else seconds.tolist() if self.place == 1 else []

    def adjust(self, total: Sequence[float], cases_of: Any, model: str) -> dict[str, float]:
        """Keep the total; after the last one the site's own answer. Nothing leaves."""
        known, row, seconds, why = self._state()
        known = known.after(total)
        self._keep({str(self.place): torch.tensor(known.sums[-1], dtype=torch.float64)})
        if self.place == SUMS - 1:
            names, design, margin = self.plan.names, self.plan.design, self.plan.margin
            about = {"score": "brier", "folds": design.folds, "repeats": design.repeats, "margin": margin}
            about |= {"hospitals": known.sites, "weights": dict(zip(names, map(float, known.weights), strict=True))}
            told = row is not None and seconds is not None
            own = known.answer(row, seconds, names, margin) if told else {"refused": why}  # type: ignore[arg-type]  # see above
            self.end({**about, "together": known.together(names, self.plan.new_size), **own})
        return {}

    def _state(self) -> tuple[Known, Row | None, Array | None, str]:
        """What is known so far, the site's own numbers, and why it has none; what was told once stays as it is."""
        kept = read_tensors(self.path) if is_there(self.path) else {}
        known, c = Known(len(self.plan.names), self.plan.design), len(self.plan.names)
        if self.place and str(self.place - 1) not in kept:
            raise AskedAgain("a later sum before the first")
        for place in range(self.place):
            known = known.after(kept[str(place)].tolist())
        if "why" not in kept:
            labels, risks = self.tested()
            why = self._untold(labels)
            kept = self._keep(
                {"why": why}
                | ({} if why else {"row": torch.tensor(row_of(labels, risks).numbers(), dtype=torch.float64)})
            )
        if kept["why"]:
            return known, None, None, kept["why"]
        if self.place == 1 and "seconds" not in kept:
            kept = self._keep({"seconds": torch.from_numpy(mix_seconds(*self.tested(), known.weights))})
        seconds = kept["seconds"].numpy() if self.place else None
        return known, Row.of(kept["row"].tolist(), c), seconds, ""

    def _keep(self, more: Mapping[str, Any]) -> dict[str, Any]:
        kept = {**(read_tensors(self.path) if is_there(self.path) else {}), **more}
        save_tensors(self.path, kept)
        return kept

    def _untold(self, labels: Array) -> str:
        n, c = labels.shape[1], len(self.plan.names)
        least = max(LEAST_PATIENTS, self.min_count or 0)
        if self.min_count is None or n < least or min(labels[0].sum(), n - labels[0].sum()) < LEAST_OF_CLASS:
            return f"expected at least {least} patients, and {LEAST_OF_CLASS} of each class"
        if not self.plan.secure and 2 * (many(c) + 3) > n:
            return f"expected at least {2 * (many(c) + 3)} patients for {many(c) + 3} numbers, or secure sums"
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
        told = read_json(self._path)["told"] if is_there(self._path) else []
        mine = {**entry, "table": self._table}
        near = [one for one in told if one["table"] == self._table and abs(one["n"] - entry["n"]) < max(least, 1)]
        if near:
            return f"this site has joined before with {near[0]['n']} patients, and these are {entry['n']}: " + (
                f"fewer than {least} apart ({self._path.name})"
            )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        save_json(self._path, {"told": [*told, mine]})
        return ""


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
    c = len(plan.names)
    sizes = masked_sizes(Known(c, plan.design).lengths()[place]) if plan.secure else range(0)
    return dataclasses.replace(
        egress, sums=lambda sums: checked(sums, c, place), sealed_sums=sizes, clinical=None, benefit=(), adjusted=()
    )


def checked(sums: object, candidates: int, place: int) -> list[float]:
    """A site's numbers in the clear, as the server may use them; raises ValueError."""
    expected = (many(candidates), 3, 0)[place]
    if not isinstance(sums, (list, tuple)) or len(sums) != expected or any(type(v) is not float for v in sums):
        raise ValueError(f"expected {expected} numbers")
    found: list[float] = list(sums)
    if place == 0 and any(found):
        Row.of(found, candidates)
    if place == 1 and not (np.isfinite(found).all() and found[0] >= 0 and found[2] >= 0 and max(map(abs, found)) <= 2):
        raise ValueError("expected second moments")
    return found


def leaves_in(config: RunConfig, phase: int | None, min_count: int | None, own: SiteConfig | None) -> Egress | None:
    """What may leave in a phase, for a filter that rebuilds an answer."""
    plan = plan_of(config)
    index = (phase or 0) % plan.phases
    run = plan.fold(index if index < plan.folds else 0)[3]
    egress = leaves(run, site_parts(run), min_count, own)
    return of_fold(egress) if index < plan.folds else of_sum(egress, plan, index - plan.folds)
