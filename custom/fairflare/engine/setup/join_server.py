# SPDX-License-Identifier: Apache-2.0
"""The server's side of a join: the federations of all folds over one transport, then the sums over hospitals.

Each federation is a run in a folder of its own, with its audit log and checkpoint, so that a join which was cut short
goes on in the middle of a fold. A hospital that falls silent is asked once more; then it is left out and all folds are
made again without it, so that the others' numbers are those of a join that never had it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import RunFailed
from fairflare.core.manifest import all_versions, versions
from fairflare.core.schema import Answer, Instruction, Transport
from fairflare.core.types import Round
from fairflare.engine.audit import AuditLog
from fairflare.engine.checks import Refused, first_good, left_out, silent
from fairflare.engine.files import AUDIT, private_folder, save_json
from fairflare.engine.preflight import inspect_preflight, refusal
from fairflare.engine.setup.assembly import build_federation, server_part
from fairflare.engine.setup.join_plan import LEAST_SECRET, ON_ALL, Plan, plan_of
from fairflare.engine.setup.join_site import checked, told_of
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.setup.run_config import RunConfig
from fairflare.functional.exchange import FIRST, PLACES, SECOND, Known, Row, Told, added
from fairflare.privacy.identity import Credentials
from fairflare.privacy.secure_sums import combine
from fairflare.tasks.folds import TOO_FEW

RESULT = "join.json"
ATTEMPTS = 2
"""Times that a fold is tried before a hospital that is silent is left out; it goes on after its last good round."""
NOT_TESTED = "took no part: too few patients, or nearly the same were asked about before; its own file says which"


class Dropped(Exception):
    """Hospitals are silent, or have too few patients: ``args[0]`` is hospital -> where, or why."""


@dataclasses.dataclass(frozen=True)
class OfPhase:
    """The transport as one phase sees it: of those hospitals that are still in, every instruction with its number."""

    transport: Transport
    phase: int
    among: frozenset[str]

    def sites(self) -> list[str]:
        return [site for site in self.transport.sites() if site in self.among]

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterable[Answer]:
        sent = {site: dataclasses.replace(one, phase=self.phase) for site, one in instructions.items()}
        return self.transport.exchange(sent)


@dataclasses.dataclass
class Join:
    """A join that runs or goes on in ``folder``."""

    config: RunConfig
    transport: Transport
    folder: Path
    env: str
    credentials: Credentials = dataclasses.field(default_factory=Credentials)

    def run(self) -> dict[str, Any]:
        """All of it; the content of ``join.json``.

        Raises:
            RunFailed: too few hospitals are left, or one is silent in the sums; the same join goes on from there.
        """
        self.plan: Plan = plan_of(self.config)
        entries: list[dict[str, Any]] = []
        self._log = AuditLog(self.folder / AUDIT, entries.append)
        self._begin()
        left_out = [entry["sites"] for entry in entries if entry["event"] == "left_out"]
        out, attempt = {site: why for sites in left_out for site, why in sites.items()}, len(left_out)
        try:
            while True:
                among = frozenset(self._sites) - out.keys()
                least = max(self.config.min_sites, LEAST_SECRET if self.plan.secure else 2)
                if len(among) < least:
                    raise RunFailed(f"join: {len(among)} hospitals are left, {least} needed; left out: {_words(out)}")
                try:
                    self._folds(attempt, among)
                    break
                except Dropped as dropped:
                    out, attempt = out | dropped.args[0], attempt + 1
                    self._log.append("left_out", sites=dropped.args[0])
            found = self._sums(attempt, among)
        except RunFailed as failure:
            self._log.append("finish", status="failed", reason=str(failure))
            raise
        result = self._result(*found, out)
        save_json(self.folder / RESULT, result)
        self._log.append("finish", status="completed", reason="")
        return result

    def _begin(self) -> None:
        """The log's first line, or that of the same join which goes on."""
        sha256 = self.config.sha256()
        if not self._log.first:
            about = {"join": list(self.plan.names), "task": f"{self.config.task}:{self.config.preset}"}
            sites = sorted(self.transport.sites())
            about |= {"config_sha256": sha256, "lineage": self.config.lineage()}
            self._sites = self._log.append("start", sites=sites, versions=versions(), **about)["sites"]
            return
        if self._log.first.get("config_sha256") != sha256:
            raise RunFailed(f"{self.folder}: holds a join of another configuration, which cannot be continued")
        self._sites = self._log.first["sites"]

    def _folds(self, attempt: int, among: frozenset[str]) -> None:
        """Make what is missing of the folds; raises Dropped."""
        for index in range(self.plan.folds):
            label, deal, number, run = self.plan.fold(index)
            place = self.folder / f"fold{index}{f'-again{attempt}' if attempt else ''}"
            private_folder(place)
            transport = OfPhase(self.transport, index + attempt * self.plan.phases, among)
            for turn in range(ATTEMPTS):
                silent = {} if _is_complete(place) and not turn else self._fold(run, place, transport)
                if not (silent := silent or _silent(place, among)):
                    break
                rejected = AuditLog(place / AUDIT).first.get("rejected", {})
                if small := {site: TOO_FEW for site, one in rejected.items() if one["code"] == "preflight"}:
                    raise Dropped(small)
            else:
                fold = "training with all" if run.fold == ON_ALL else f"fold {number} of deal {deal}"
                where = f"fell silent in {fold} ({label})"
                raise Dropped({site: where for site in silent})

    def _fold(self, run: RunConfig, place: Path, transport: OfPhase) -> list[str]:
        """One federation; the hospitals that stopped it, none where it has come to its end."""
        parts = build_parts(run)
        federation = build_federation(run, parts, transport, place, self.env, credentials=self.credentials)
        federation.min_sites, federation.named = len(transport.among), transport.sites()
        try:
            federation.run(parts.model)
        except RunFailed:
            gone = sorted(transport.among - set(transport.sites()))
            if found := sorted({*_silent(place, transport.among), *gone}):
                return found
            raise
        return []

    def _sums(self, attempt: int, among: frozenset[str]) -> tuple[Known, dict[str, Told], dict[str, Any]]:
        """The sums; in the clear each hospital's numbers, too, and what its regression says."""
        known = self.plan.nothing_known
        hospitals, regressions = dict[str, Told](), dict[str, Any]()
        while (place := known.next) < PLACES:
            phase = self.plan.folds + place + attempt * self.plan.phases
            transport = OfPhase(self.transport, phase, among)
            told: dict[str, Any]
            if self.plan.secure:
                total, told = self._secret(transport, known.length(place))
            else:
                numbers = self._clear(transport, place)
                if place == FIRST:
                    rows = {s: Row.of(one, known.candidates) for s, one in sorted(numbers.items()) if any(one)}
                    hospitals = {site: Told(row) for site, row in rows.items()}
                elif place == SECOND:
                    hospitals = {site: told_of(one.row, numbers[site]) for site, one in hospitals.items()}
                elif place > SECOND:
                    some = [site for site, one in hospitals.items() if one.means is not None]
                    regressions = {site: np.array(numbers[site]) for site in some}
                each = numbers.values() if place < FIRST else map(known.terms, hospitals.values())
                total = added([known.terms(None), *each])
                told = {"orders": {str(i): value for i, value in enumerate(total)}}
            known = known.after(total)
            if place == FIRST and not known.sites:
                raise RunFailed(f"join: nobody is tested: every hospital {NOT_TESTED}")
            self._log.append("sum", place=place, sites=sorted(among), total=total)
            asked = {site: Instruction("adjust", self._end, {}, **told) for site in sorted(among)}
            self._all(asked, transport, f"did not take sum {place}")
        return known, hospitals, regressions

    @property
    def _end(self) -> Round:
        rounds = self.plan.first.training.rounds
        return Round(rounds, rounds)

    def _all(self, asked: Mapping[str, Instruction], transport: OfPhase, what: str) -> dict[str, Answer]:
        """The answers of all that are asked; raises RunFailed, since two sums that differ by a hospital show it."""
        answers = list(transport.exchange(asked))
        found, refused, _ = first_good(answers, lambda answer: answer, self._end.number)
        if missing := left_out(refused, found) + silent(asked, answers):
            raise RunFailed(f"join: {what}: {'; '.join(f'{r.site}: {r.code} {r.detail}'.strip() for r in missing)}")
        return found

    def _clear(self, transport: OfPhase, place: int) -> dict[str, list[float]]:
        self._preflight(transport)
        asked = {site: Instruction("calibrate", self._end, {}) for site in sorted(transport.among)}
        answers = self._all(asked, transport, f"did not answer to sum {place}")
        try:
            return {site: checked(answer.sums, self.plan, place) for site, answer in answers.items()}
        except (ValueError, Refused) as error:
            raise RunFailed(f"join: sum {place}: {error}") from None

    def _secret(self, transport: OfPhase, terms: int) -> tuple[list[float], dict[str, Any]]:
        run = self.plan.fold(0)[3]  # as at the sites, whose keys are signed for this configuration
        aggregation = server_part(run, build_parts(run, at_site=True), self.credentials)
        if rejections := aggregation.learn(self._preflight(transport)):
            raise RunFailed(f"join: {'; '.join(f'{r.site}: {r.detail}' for r in rejections)}")
        models = {site: dict[str, Any]() for site in sorted(transport.among)}
        total = aggregation.total(transport, models, self._end, lambda a: [], terms)
        if total.rejections:
            raise RunFailed(f"join: no sum: {'; '.join(f'{r.site}: {r.detail}' for r in total.rejections)}")
        return combine(list(total.told["sealed"]["sums"].values())), dict(total.told)

    def _preflight(self, transport: OfPhase) -> list[Answer]:
        asked = {site: Instruction("preflight", self._end, {}) for site in sorted(transport.among)}
        answers = list(transport.exchange(asked))
        statements, rejections = inspect_preflight(answers, all_versions(), {}, self.config.accept)
        if reason := refusal(statements, rejections):
            raise RunFailed(reason)
        return answers

    def _result(
        self, known: Known, told: Mapping[str, Told], regressions: Mapping[str, Any], out: Mapping[str, str]
    ) -> dict[str, Any]:
        plan, names, design = self.plan, self.plan.names, self.plan.design
        sites = {site: known.answer(one, names, plan.margin, regressions.get(site)) for site, one in told.items()}
        untold = {} if plan.secure else {site: NOT_TESTED for site in self._sites if site not in {*told, *out}}
        about = {"score": "brier", "folds": design.folds, "repeats": design.repeats, "kappa": design.kappa}
        about |= {"margin": plan.margin, "new_size": plan.new_size, "task": f"{self.config.task}:{self.config.preset}"}
        about |= {"secure": plan.secure, "hospitals": known.sites}
        told_all = {"candidates": known.together(names, plan.new_size)}
        told_all["weights"] = dict(zip(names, map(float, known.weights), strict=True))
        return {**about, **told_all, "sites": sites, "refused": {**out, **untold}}


def _is_complete(place: Path) -> bool:
    last = AuditLog(place / AUDIT).last
    return last.get("event") == "finish" and last["status"] == "completed"


def _silent(place: Path, among: frozenset[str]) -> list[str]:
    """The hospitals that a fold's log says were missing where it stopped, or when its model was tested."""
    entries: list[dict[str, Any]] = []
    AuditLog(place / AUDIT, entries.append)
    for entry in reversed(entries):
        if entry["event"] in ("round_failed", "evaluation"):
            there = set(entry.get("sites", among))
            return sorted(among & {*entry["rejected"], *(among - there)})
    return []


def _words(out: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {why}" for site, why in out.items()) or "none"
