# SPDX-License-Identifier: Apache-2.0
"""What a site answers over all rounds and jobs of secure sums: which models, with which sites, on how many patients.

Masks hide a site's part of one sum. A server that asks for many sums can still choose models and sets of sites so that
a difference of sums, or a single one, shows one site or one patient. So each site keeps a history and refuses

- sums that rest on few patients (``few_effective``): coefficients at which a few patients carry all of the weight. The
  site then takes no further part in the run, so that refusals cannot be used to search for a patient;
- a set of sites that singles somebody out (``set_changed``): of a model that it has answered before, or of one near it,
  every group of sites that its sums tell apart must have ``LEAST`` sites;
- a site that enters the sums of a run too often (``set_entries``): each departure and return roughly shows an update.

A sum counts as answered once this site hands out its shares of it; the history is written before.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fairflare.core.errors import EgressRefused
from fairflare.core.types import StateDict
from fairflare.privacy.schemes import LEAST

MIN_EFFECTIVE = {"information": 10.0, "score": 3.0, "expected": 2.0}
"""Effective patients behind each kind of sum, see ``effective``.

A rare outcome has a score of few effective patients at an honest model: about four for each patient who has it.
"""
ENTRIES, ROUNDS_PER_ENTRY = 3, 10
"""How often a site may enter the sums of a run at once, and after how many rounds once more."""
NEAR = 0.05
"""Models nearer than this share of the norm of the site's own update count as the same."""
DIMENSIONS = 32
"""Of a sketch, which shows distances to about a fifth."""


class History(Protocol):
    """What a site has answered, on its own disk."""

    def read(self) -> list[dict[str, Any]]:
        """All entries, the oldest first."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep ``entry``, JSON values, before what it is about is done."""


class Forgetful:
    """A history in the process alone."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        return self._entries

    def add(self, entry: Mapping[str, Any]) -> None:
        self._entries.append(dict(entry))


def effective(weights: torch.Tensor) -> float:
    """The effective number of patients whose ``weights`` (N,) a sum has, 0 to N: (sum |w|)^2 / sum w^2 (Kish 1965)."""
    size = weights.double().abs()
    top = float(size.max()) if size.numel() else 0.0
    if not 0 < top < float("inf"):
        return 0.0
    size = size / top
    return float(size.sum().square() / size.square().sum())


def sketch(entries: Mapping[str, torch.Tensor], secret: str) -> list[float]:
    """``DIMENSIONS`` numbers whose distances are about those of ``entries``: sums with random signs, which follow from
    ``secret``: whoever knew them could move a model far and its sketch not at all.

    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
    """
    total = torch.zeros(DIMENSIONS, dtype=torch.float64)
    for key in sorted(entries):
        flat = entries[key].detach().cpu().double().reshape(-1)
        seed = int.from_bytes(hashlib.sha256(f"{secret} {key}".encode()).digest()[:7], "big")
        signs = torch.randint(0, 2, flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
        flat = torch.nn.functional.pad(flat * (2 * signs - 1), (0, -len(flat) % DIMENSIONS))
        total += flat.reshape(-1, DIMENSIONS).sum(0)
    return [float(value) for value in total]


def norm(entries: Mapping[str, torch.Tensor]) -> float:
    """The Euclidean one, over all ``entries``."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in entries.values()))


def entries_of(sets: Iterable[Collection[str]]) -> Counter[str]:
    """How often each site has entered, in sums over ``sets`` of sites, one after the other."""
    found, before = Counter[str](), frozenset[str]()
    for sites in sets:
        found.update(set(sites) - before)
        before = frozenset(sites)
    return found


def barred(sets: Sequence[Collection[str]], round: int) -> set[str]:
    """The sites that may not enter a sum of ``round``, after sums over ``sets`` of sites: they did so too often."""
    most = ENTRIES + round // ROUNDS_PER_ENTRY
    return {site for site, n in entries_of(sets).items() if n >= most and site not in sets[-1]}


def fewest_apart(sets: Iterable[Collection[str]]) -> int:
    """Sites in the smallest group that sums over ``sets`` tell apart: those that are in the same ones."""
    sets = [frozenset(sites) for sites in sets]
    return min(Counter(tuple(site in sites for sites in sets) for site in frozenset().union(*sets)).values())


@dataclass
class Referee:
    """One site's, in one run.

    Attributes:
        run: names federation and configuration.
        subject: names task and data, of which several runs may be; histories of other subjects do not matter.
        exact: whether the site sends exact sums over patients: all models of a subject then count as one.
        draws: whether the run draws its sites anew for every round; then entries are not counted.
    """

    run: str = ""
    subject: str = ""
    exact: bool = False
    draws: bool = False
    history: History = field(default_factory=Forgetful)

    def __post_init__(self) -> None:
        self._model, self._mark, self._near, self._secret = "", list[float](), 0.0, ""

    def check_support(self, support: Mapping[str, torch.Tensor]) -> None:
        """Raise EgressRefused unless sums rest on enough patients.

        ``support``: kind of sum -> each patient's weight in it (N,), at the model that was received.
        """
        refused = "few_effective: few patients carry these sums: this site leaves the run"
        if any(entry["run"] == self.run and entry.get("refused") for entry in self.history.read()):
            raise EgressRefused(refused)
        for kind, weights in support.items():
            if bool(weights.any()) and effective(weights) < MIN_EFFECTIVE[kind]:  # sums of zeros tell nothing
                self.history.add({"run": self.run, "refused": "few_effective"})
                raise EgressRefused(refused)

    def received(self, sha256: str, model: StateDict, update: StateDict) -> None:
        """Note what the next sums are of: a model's hash, and its trainable entries with their update D_k."""
        if not self._secret:
            if not any("signs" in entry for entry in self.history.read()):
                self.history.add({"run": "", "signs": secrets.token_hex(16)})
            # Read again: of two jobs that begin together the first one's hold for both.
            self._secret = next(entry["signs"] for entry in self.history.read() if "signs" in entry)
        self._model, self._mark, self._near = sha256, sketch(model, self._secret), NEAR * norm(update)

    def admit(self, of: str, round: int, sites: Sequence[str]) -> None:
        """Check and keep one more sum ``of`` numbers or updates; raises EgressRefused."""
        kinds = ("update", "decision") if self.exact and of in ("update", "decision") else (of,)  # of the same patients
        past = [one for one in self.history.read() if one.get("of") in kinds and one["subject"] == self.subject]
        own = [entry["sites"] for entry in past if entry["run"] == self.run and entry["of"] == of]
        # A server may name any round, but not one more than the sums that this site has answered.
        if not self.draws and barred(own, min(round, len(own) + 1)) & set(sites):
            raise EgressRefused("set_entries: a site has entered the sums of this run too often")
        same = [entry["sites"] for entry in past if entry["model"] == self._model or self._is_near(entry["mark"])]
        if same and set(sites) not in map(set, same) and fewest_apart([*same, sites]) < LEAST:
            raise EgressRefused("set_changed: answered before at such a model with other sites")
        about = {"of": of, "round": round, "model": self._model, "mark": self._mark, "sites": list(sites)}
        self.history.add({"run": self.run, "subject": self.subject, **about})

    def decided(self, patients: str, n: int, least: int, threshold: float | None = None) -> None:
        """Keep that a decision was asked of ``n`` patients, whose hash is ``patients``, and tells net benefit at
        ``threshold``.

        Two decisions on nearly the same patients, or at two thresholds, tell of the few between. Raises EgressRefused
        where a decision of this subject was on others, fewer than ``least`` apart in number, or at another threshold.
        """
        past = [entry for entry in self.history.read() if "decided" in entry and entry["subject"] == self.subject]
        near = [entry for entry in past if entry["decided"] != patients and abs(entry["n"] - n) < least]
        if near:
            raise EgressRefused("decided_near: this site has made a decision before on nearly the same patients")
        if threshold is not None and {one.get("threshold") for one in past} - {None, threshold}:
            raise EgressRefused("decided_at: this site has made a decision before at another threshold")
        entry = {"subject": self.subject, "decided": patients, "n": n, "threshold": threshold}
        if not any(entry.items() <= one.items() for one in past[-1:]):
            self.history.add({"run": self.run, **entry})

    def _is_near(self, mark: Sequence[float]) -> bool:
        """Whether an answer to the model of ``mark`` tells much of this one's; parts of exact sums never change."""
        return self.exact or math.dist(mark, self._mark) <= self._near


def named(*parts: Any) -> str:
    """A short name of JSON values, the same for the same."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
