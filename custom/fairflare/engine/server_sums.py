# SPDX-License-Identifier: Apache-2.0
"""The server's part in secure sums: it passes keys on, adds what it cannot read, and learns the sum."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from fairflare.aggregators.base import added_whole
from fairflare.core.schema import Answer, Declared, Instruction, SiteModels, Spec, Transport, answer_fields
from fairflare.core.tensor_files import Stored, gathered
from fairflare.core.types import Reply, Round, StateDict
from fairflare.engine import checks, field_checks
from fairflare.engine.combination import CheckSums, Combined, Total, Trained
from fairflare.engine.gate import Verdict, reply_of
from fairflare.engine.norms import SUM, norms_of
from fairflare.privacy.identity import PROOF, is_proof
from fairflare.privacy.referee import barred
from fairflare.privacy.secure_sums import combine, masked_sizes, passed_on
from fairflare.privacy.statements import Sealed
from fairflare.privacy.sum_keys import NONE, SEALED, SHARE, recover, self_masked, stream_of, threshold
from fairflare.privacy.sum_protocol import ATTEMPTS, SumRefused
from fairflare.privacy.sum_total import combine_updates

T = TypeVar("T")


@dataclass
class Summed:
    """What came of a round.

    Attributes:
        total: sum_k p_k D_k; None where no sum came about, and the rejections say why.
        replies: of the sites in it, without their updates.
        rejections: of all others that were asked.
    """

    total: StateDict | None
    replies: list[Reply]
    rejections: list[checks.Rejection]
    answers: list[Answer]


@dataclass
class SelfMasked:
    """The self-masks of the answers to one sum, which sites take off by handing out shares, of one sum per round.

    Attributes:
        of: "numbers" or "update".
        needed: shares that recover a seed.
        seeds: site -> what masks its answer, once enough shares are here.
    """

    of: str
    needed: int
    seeds: dict[str, bytes] = field(default_factory=dict)
    _shares: dict[str, bytes] = field(default_factory=dict)

    def read(self, answer: Answer, check: Callable[[Answer], T], sites: int) -> T:
        """What ``check`` makes of an answer that has a share of its self-mask for each other of ``sites`` sites."""
        found = check(answer)
        self._shares[answer.site] = _bytes_of(answer, "cover", [(sites - 1) * SEALED])
        return found

    def reveal(self, transport: Transport, roster: list[str], attempt: int, round: Round) -> str:
        """Have the sites hand out their shares; why that was not enough, or nothing."""
        asked = {}
        for place, holder in enumerate(roster):
            at = {author: SEALED * (place - (place > k)) for k, author in enumerate(roster) if author != holder}
            own = {author: self._shares[author][start : start + SEALED] for author, start in at.items()}
            sealed = {"of": self.of, "attempt": attempt, "covers": own}
            asked[holder] = Instruction("reveal", round, NOTHING, sealed=sealed)
        read = partial(_bytes_of, name="shares", sizes=[len(roster) * SHARE])
        given, refused, _ = checks.first_good(list(transport.exchange(asked)), read, round.number)
        shares: list[dict[int, bytes]] = [{} for _ in roster]
        for point, holder in enumerate(roster, 1):
            for k, found in enumerate(shares if holder in given else ()):
                share = given[holder][k * SHARE : (k + 1) * SHARE]
                if share != NONE:
                    found[point] = share
        try:
            self.seeds = dict(zip(roster, recover(shares, self.needed), strict=True))
        except SumRefused as reason:
            return f"{reason}{''.join(f'; {one.site}: {one.detail}' for one in list(refused.values())[:1])}"
        return ""


@dataclass
class ServerSums:
    """Two sums per round over the sites that have trained: of the numbers that weights are made of, and of updates.

    The sites weigh their updates themselves, and the server learns their sum; a site's part is ``SiteSums``.

    Attributes:
        pass_on: makes of {site: its sealed numbers} what is sent to every site.
        vouched: (site, statement) -> whether the statement is the site's own.
        sizes: how many bytes a site's sealed numbers may have.
        sites: of the run, as the sites know them; see ``sum_keys.threshold``.
        draws: whether the run draws its sites anew for every round.
    """

    pass_on: Callable[[Mapping[str, bytes]], Any]
    vouched: Callable[[str, Sealed], bool]
    sizes: range
    least: int
    statements: dict[str, Sealed] = field(default_factory=dict)
    sites: int = 0
    draws: bool = False

    def __post_init__(self) -> None:
        self._sets: dict[str, list[list[str]]] = {"numbers": [], "update": []}

    def go_on(self, sets: Iterable[Sequence[str]]) -> None:
        """Take the accepted sites of every round so far, each set once where it lasts."""
        changes: list[list[str]] = []
        for sites in sets:
            if not changes or list(sites) != changes[-1]:
                changes.append([*map(sys.intern, sites)])
        self._sets = {of: [*changes] for of in self._sets}

    def learn(self, answers: Sequence[Answer]) -> list[checks.Rejection]:
        refused = []
        for answer in answers:
            if answer.error:
                continue
            stated = answer.sealed if isinstance(answer.sealed, Mapping) else {}
            proper = all(is_proof(name, stated[name]) for name in PROOF if name in stated)
            if proper and self.vouched(answer.site, stated):
                self.statements[answer.site] = {name: stated[name] for name in PROOF if name in stated}
            else:
                refused.append(checks.Rejection(answer.site, "key", "its key for secure sums is not vouched for"))
        return refused

    def combine(self, trained: Trained) -> Combined:
        standing, gate = trained.standing, trained.gate
        model = gate.shared(standing.model)
        summed = self.round(trained.transport, trained.answers, trained.round, standing.declared, model)
        exchanged = time.monotonic()
        trained.missed([r.site for r in summed.rejections if r.code == "no_answer"])
        verdict = _verdict(summed, trained)
        trained.require_quorum(verdict)
        assert summed.total is not None  # without a sum nobody is accepted, and that is no quorum
        return Combined(verdict, added_whole(standing.model, summed.total, standing.state), summed.answers, exchanged)

    def round(
        self, transport: Transport, answers: Sequence[Answer], round: Round, declared: Declared, model: StateDict
    ) -> Summed:
        """Sum what the sites have whose ``answers`` say that they have trained."""
        ready, refused, _ = checks.first_good(answers, lambda answer: self._check_ready(answer, declared), round.number)
        rejections = checks.left_out(refused, ready)
        late = set[str]().union(*(barred(sets, round.number) for sets in self._sets.values() if not self.draws))
        why = "it has left and entered the sums of this run too often, and waits"
        rejections += [checks.Rejection(site, "set_entries", why) for site in sorted(late & ready.keys())]
        first, read = sorted(ready.keys() - late), partial(_bytes_of, name="sum", sizes=self.sizes)
        masks = SelfMasked("numbers", threshold(len(first), self.sites))
        sealed, roster, lost, _ = self._ask(transport, "sum", first, round, read, {}, masks=masks)
        rejections += lost
        total = _added(
            lambda: self.pass_on({s: self_masked(sealed[s], masks.seeds[s]) for s in roster}), roster, rejections
        )
        if total is None:
            return Summed(None, [], rejections, [])

        def check(answer: Answer) -> tuple[Reply, Mapping[str, torch.Tensor]]:
            return _masked(answer, model, declared.get(answer.site))

        masks = SelfMasked("update", masks.needed)
        weighed, roster, lost, last = self._ask(transport, "weigh", roster, round, check, {"sums": total}, masks=masks)
        rejections += lost
        updates, self_masks = [weighed[site][1] for site in roster], [stream_of(masks.seeds[site]) for site in roster]
        added = _added(lambda: combine_updates(updates, model, self_masks), roster, rejections)
        if added is None:
            return Summed(None, [], rejections, last)
        return Summed(added, [weighed[site][0] for site in roster], rejections, last)

    def total(
        self,
        transport: Transport,
        models: SiteModels,
        round: Round,
        check: CheckSums,
        terms: int,
        task: str = "calibrate",
        orders: Mapping[str, float] | None = None,
    ) -> Total:
        """Numbers of every site (``terms`` each) that masks hide, whatever the rounds' scheme: of all, or of none."""
        roster = sorted(site for site in models if site in self.statements)
        rejections = [
            checks.Rejection(site, "key", "its key for secure sums is not known") for site in models.keys() - roster
        ]
        model, read = next(iter(models.values()), NOTHING), partial(_bytes_of, name="sum", sizes=masked_sizes(terms))
        sealed, roster, lost, _ = self._ask(transport, task, roster, round, read, {}, model, 1, orders=orders)
        rejections += lost
        total = _added(lambda: passed_on({site: sealed[site] for site in roster}), roster, rejections)
        if total is None:
            return Total([], {}, rejections)
        statements = {site: self.statements[site] for site in roster}
        return Total(roster, {"sealed": {"sums": total, "attempt": 0, "statements": statements}}, rejections)

    def read(self, told: Mapping[str, Any], terms: int) -> list[float]:
        """The numbers of a ``Total``."""
        return combine(list(told["sealed"]["sums"].values()))

    def _ask(
        self,
        transport: Transport,
        task: str,
        roster: list[str],
        round: Round,
        check: Callable[[Answer], T],
        content: Mapping[str, Any],
        model: StateDict | None = None,
        attempts: int = ATTEMPTS,
        masks: SelfMasked | None = None,
        orders: Mapping[str, float] | None = None,
    ) -> tuple[dict[str, T], list[str], list[checks.Rejection], list[Answer]]:
        """What ``check`` made of the answers of all sites of a roster; without those that fell silent on the way.

        With ``masks``, their seeds come with the first attempt that all sites have answered.
        """
        rejections: list[checks.Rejection] = []
        answers: list[Answer] = []
        least = max(self.least, masks.needed if masks else 0)
        for attempt in range(attempts):
            if len(roster) < least:
                break
            sealed = {**content, "attempt": attempt, "statements": {site: self.statements[site] for site in roster}}
            how: dict[str, Any] = {"orders": orders or {}, "sealed": sealed}
            asked = {site: Instruction(task, round, model or NOTHING, **how) for site in roster}
            answers = list(transport.exchange(asked))
            reading = check if masks is None else partial(masks.read, check=check, sites=len(roster))
            found, refused, _ = checks.first_good(answers, reading, round.number)
            rejections += checks.left_out(refused, found) + checks.silent(asked, answers)
            if len(found) < len(roster):
                roster = sorted(found)
                continue
            if masks is not None and (reason := masks.reveal(transport, roster, attempt, round)):
                return {}, [], rejections + [checks.Rejection(site, "sum", reason) for site in roster], answers
            if masks is not None:
                self._sets[masks.of].append(roster)
            return found, roster, rejections, answers
        few = f"{len(roster)} sites are left for a secure sum, {least} needed"
        why = few if len(roster) < least else "sites were silent, and the others are not asked again"
        return {}, [], rejections + [checks.Rejection(site, "sum", why) for site in roster], answers

    def _check_ready(self, answer: Answer, declared: Declared) -> bool:
        _check_counts(answer, declared.get(answer.site))
        fields = answer_fields().items()
        if any(spec.secure in ("masked", "hidden") and _holds(spec, getattr(answer, name)) for name, spec in fields):
            raise checks.Refused("not_secret", "numbers or weights before the secure sum")
        if answer.site not in self.statements:
            raise checks.Refused("key", "its key for secure sums is not known")
        return True


NOTHING: StateDict = {}
"""One object: sites that are sent the same share a message."""


def _bytes_of(answer: Answer, name: str, sizes: Container[int]) -> bytes:
    """The bytes that an answer has sealed under ``name``; raises Refused unless there are so many as ``sizes`` says."""
    found = answer.sealed.get(name) if isinstance(answer.sealed, Mapping) else None
    if not isinstance(found, bytes) or len(found) not in sizes:
        raise checks.Refused("malformed", f"{name}: expected bytes of the length that follows from the run")
    return found


def _added(add: Callable[[], T], roster: Sequence[str], rejections: list[checks.Rejection]) -> T | None:
    """The sum over a roster; None and a rejection for everyone where there is none."""
    if not roster:
        return None
    try:
        return add()
    except (SumRefused, ValueError, RuntimeError, OSError) as error:
        # Whose fault it is cannot be seen: that is what the masks are for.
        rejections += [checks.Rejection(site, "sum", str(error)) for site in roster]
        return None


def _masked(answer: Answer, model: StateDict, declared: int | None) -> tuple[Reply, Mapping[str, torch.Tensor]]:
    """What can be checked of a masked update: that it has the model's entries, as whole numbers."""
    if any(spec.secure == "hidden" and _holds(spec, getattr(answer, name)) for name, spec in answer_fields().items()):
        raise checks.Refused("scalar_unknown", "numbers beside a masked update")
    expected = {key: value for key, value in model.items() if value.is_floating_point()}
    if not isinstance(answer.update, Mapping) or set(answer.update) != set(expected):
        raise checks.Refused("keys", f"expected the model's {len(expected)} floating-point entries, masked")
    entries = {key: _whole_tensor(key, answer.update[key], value) for key, value in expected.items()}
    update = gathered(entries, dict.fromkeys(expected, torch.int64))
    values = {**_check_counts(answer, declared), "update": {}, "metrics": field_checks.checked_metrics(answer.metrics)}
    return reply_of(answer.site, values), update


def _check_counts(answer: Answer, declared: int | None) -> dict[str, int]:
    return {
        name: field_checks.checked_count(getattr(answer, name), declared if spec.declared else None, name, spec)
        for name, spec in answer_fields().items()
        if spec.kind == "count" and spec.travels("train", secure=True)
    }


def _holds(spec: Spec, value: Any) -> bool:
    """Whether a field holds something; that an update would be a difference is nothing yet."""
    return value is not None and value != {} and spec.kind != "difference"


def _whole_tensor(key: str, value: Any, like: torch.Tensor) -> torch.Tensor | Stored:
    """The entry where it lies; one in a file is not read before the sum."""
    value = value if isinstance(value, Stored) else field_checks.materialized(value)
    known = isinstance(value, Stored) or (isinstance(value, torch.Tensor) and not value.is_meta)
    if not known or value.dtype != torch.int64:
        found = checks.short(str(getattr(value, "dtype", type(value).__name__)))
        raise checks.Refused("dtype", f"{key}: expected int64, got {found}")
    if tuple(value.shape) != tuple(like.shape):
        raise checks.Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(value.shape)}")
    return value if isinstance(value, Stored) else value.cpu()


def _verdict(summed: Summed, trained: Trained) -> Verdict:
    """What the gate makes of a sum: whose fault a wrong one is cannot be seen, so it is everyone's."""
    rejections, gate, standing = summed.rejections + trained.rejections, trained.gate, trained.standing
    if summed.total is None:
        return Verdict(summed.replies, rejections, {})
    if reason := gate.implausible(summed.total, standing.model, standing.history):
        return Verdict([], rejections + [checks.Rejection(r.site, "sum", reason) for r in summed.replies], {})
    return Verdict(summed.replies, rejections, {}, {SUM: norms_of(summed.total, gate.trainable)})
