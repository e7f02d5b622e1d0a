# SPDX-License-Identifier: Apache-2.0
"""What a site's training has told of a record, in epsilon and delta, and where its noise comes from.

Two data sets are neighbours if one has one record more. The accountant is Opacus's for Renyi differential privacy of
the subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, arXiv:1908.10530). Only jobs whose trainer is
private, or that bound a hospital's part of each round's sum, carry this module. For the latter:

    each round   q_k = p_k D_k min(1, (C / K) / |p_k D_k|)             K sites in the sum, p_k the weight, C the clip
                 sent q_k + N(0, sigma^2 (C / K)^2 / (K - c))          behind masks; c may tell their noise, or drop out

The sum has noise of sigma C / K beside what c sites know of their own or never sent, and a hospital moves it by at most
C / K. So with T rounds it is T Gaussian mechanisms of multiplier sigma (McMahan et al., ICLR 2018, arXiv:1710.06963, at
the level of clients; the shares are those of Kairouz et al., ICML 2021, arXiv:2102.06387, with continuous noise). Two
runs are neighbours if in one of them a hospital's updates are zero. No server and no c sites add all of the noise.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.types import Ledger, StateDict
from fairflare.privacy.sum_protocol import SumRefused

ORDERS = (*range(2, 65), 80, 96, 128, 256, 512, 1024)
"""Of the Renyi divergence. Whole ones alone: their sums are finite, where the series of others may not converge, and
dp-accounting then leaves them out."""
LEAST = 1e-3
"""The smallest noise that is looked for, as a multiple of the clipping norm."""


@dataclass(frozen=True)
class Mechanism:
    """So many steps that add Gaussian noise to the sum over a Poisson sample.

    Attributes:
        noise: standard deviation over the clipping norm, > 0.
        rate: chance of each record to be in the sample, in (0, 1].
        steps: how many, >= 0.
    """

    noise: float
    rate: float
    steps: int


def epsilon_of(spent: Sequence[Mechanism], delta: float) -> float:
    """The epsilon that goes with ``delta`` after all of ``spent``; 0 where nothing was."""
    from opacus.accountants.analysis import rdp

    if not any(one.steps for one in spent):
        return 0.0
    total: Any = sum(one.steps * _of_a_step(one.noise, one.rate) for one in spent)
    with warnings.catch_warnings():  # the largest or smallest order's bound is right, if not the best
        warnings.simplefilter("ignore", UserWarning)
        return max(0.0, float(rdp.get_privacy_spent(orders=list(ORDERS), rdp=total, delta=delta)[0]))


@lru_cache(maxsize=1024)
def _of_a_step(noise: float, rate: float) -> Any:
    """The divergence of one step, order by order; that of several is their sum."""
    from opacus.accountants.analysis import rdp

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS)))


@lru_cache(maxsize=256)
def noise_for(epsilon: float, delta: float, rate: float, steps: int, spent: tuple[Mechanism, ...] = ()) -> float:
    """The least noise with which ``steps`` after ``spent`` stay within the budget, to a part in 10,000.

    Raises:
        UserError: no noise does.
    """

    def keeps(noise: float) -> bool:
        return epsilon_of([*spent, Mechanism(noise, rate, steps)], delta) <= epsilon

    low, high = LEAST, 1e6
    if not keeps(high):
        raise UserError(f"epsilon: expected one that some noise can keep to over {steps} steps, got {epsilon:g}")
    while high > low * 1.0001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


class Draws:
    """Uniform and Gaussian numbers made of random bytes.

    Args:
        seed: None takes every byte from the operating system, which nobody can foretell or repeat; a seed, which
            server and sites know, is for simulations: it protects nobody.
    """

    def __init__(self, seed: int | None) -> None:
        self._bytes = os.urandom if seed is None else np.random.default_rng(seed).bytes

    def uniform(self, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(n,) in (0, 1), multiples of 2^-53."""
        return np.asarray(((np.frombuffer(self._bytes(8 * n), "<u8") >> 11) + 0.5) * 2.0**-53, dtype=np.float64)

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal numbers of the shape, type and device of ``like``.

        Each is the sum of four halves, so that floating-point numbers do not tell what was added to (Holohan and
        Braghin 2021, arXiv:2107.10138, as Opacus's secure mode does).
        """
        from scipy.special import ndtri

        drawn = ndtri(self.uniform(4 * like.numel())).reshape(4, -1).sum(0) / 2
        return torch.from_numpy(drawn).reshape(like.shape).to(like)


COUNT_SHARE = 0.2
"""Of epsilon, which the number of training examples would cost by itself; composed with the training it costs less."""
TRAIN, TEST = "spent", "results"
"""Keys of a ledger under which the mechanisms on training records lie, and those on test records."""


@dataclass(frozen=True)
class RecordBudget:
    """What a site has told of its records in a run, and the two numbers that it tells beside its updates.

    A record is in one split alone, whatever the others are, so that mechanisms on different splits compose in parallel
    (McSherry, SIGMOD 2009): epsilon is the larger one of the two.

    Attributes:
        epsilon: of each record over the run.
        delta: the chance that goes with it.
        ledger: keeps what was spent and released, which survives a restart.
        draws: purpose -> where its noise comes from.
    """

    epsilon: float
    delta: float
    ledger: Ledger
    draws: Callable[[str], Draws]

    def spent(self, split: str = TRAIN) -> list[Mechanism]:
        """Every mechanism on a split so far, those included that were asked for again."""
        rows = self.ledger.read().get(split, ())
        return [Mechanism(float(noise), float(rate), int(steps)) for noise, rate, steps in rows]

    def charged(self) -> float:
        """The epsilon that goes with all that was spent."""
        return max(epsilon_of(self.spent(split), self.delta) for split in (TRAIN, TEST))

    def charge(self, one: Mechanism, split: str = TRAIN, **released: Any) -> bool:
        """Write ``one`` to the ledger, with what it releases; False, without writing, where epsilon is passed."""
        with self.ledger.held():
            spent = [*self.spent(split), one]
            if epsilon_of(spent, self.delta) > self.epsilon:
                return False
            rows = [[each.noise, each.rate, each.steps] for each in spent]
            content = {**self.ledger.read(), **released, split: rows, "budget": self.epsilon, "delta": self.delta}
            others = epsilon_of(self.spent(TEST if split == TRAIN else TRAIN), self.delta)
            self.ledger.write({**content, "epsilon": max(epsilon_of(spent, self.delta), others)})
        return True

    def count(self, n: int) -> int:
        """The number of training examples with Gaussian noise, at least 1: drawn once in a run, the same ever after."""
        with self.ledger.held():
            kept = self.ledger.read().get("count")
            if kept is None:
                one = Mechanism(noise_for(COUNT_SHARE * self.epsilon, self.delta, 1.0, 1), 1.0, 1)
                noise = float(self.draws("count").normal(torch.zeros(1, dtype=torch.float64)))
                kept = max(1, round(n + one.noise * noise))
                if not self.charge(one, count=kept):
                    raise EgressRefused(RECORDS_SPENT)
        return int(kept)

    def results(self, model: str, scoring: Any, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """Noised results of a model on the test split, by ``noised_results``; {} for a second model.

        Args:
            model: its hash. What was released of a model is released again as it was.
            scoring: the task.
            outputs: (N, ...) condensed, as its metrics take them.
            targets: (N, ...).
        """
        kept = self.ledger.read().get("released", {})
        if not kept:
            one = Mechanism(noise_for(self.epsilon, self.delta, 1.0, 1), 1.0, 1)
            found = noised_results(scoring, outputs, targets, one.noise, self.draws("results"))
            kept = {"model": model, "metrics": found}
            if not self.charge(one, TEST, released=kept):
                return {}
        return dict(kept["metrics"]) if kept["model"] == model else {}


RECORDS_SPENT = "privacy budget spent: this site takes no further part"
EDGES = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
"""Of the bins of a risk. A threshold of 1/2 lies between two."""
SURE, UNSURE = 0.75, 0.55
"""Probabilities of a predicted class, which no metric of the predicted classes alone depends on."""
MOST_CASES = 100_000


def noised_results(
    scoring: Any, outputs: torch.Tensor, targets: torch.Tensor, noise: float, draws: Draws
) -> dict[str, Any]:
    """ "test" -> metrics and "n" -> "test" -> cases, which one Gaussian mechanism on the test split releases.

    With classes: a histogram of the cases, by class and bin of the risk where there are two classes, else by class and
    predicted class. A record is in one cell, so that noise of standard deviation ``noise`` is added to each count. The
    metrics are those of as many cases as the noised counts say, in the middle of their bins; of more than two classes
    only metrics that do not depend on how sure the model is. Without classes: means of those metrics of a case that lie
    in [0, 1], as one vector with the number of cases.
    """
    if len(targets):  # a record whose output is not finite is left out, and takes no other one along
        fine = torch.isfinite(outputs.reshape(len(outputs), -1)).all(1)
        outputs, targets = outputs[fine], targets[fine]
    if not scoring.kind.has_classes:
        chosen = [
            one for one in map(scoring.metric, scoring.metrics) if one.each is not None and one.range == (0.0, 1.0)
        ]
        sums = torch.zeros(1 + len(chosen), dtype=torch.float64)
        for row in range(len(targets)):  # one by one: no record's score depends on another's
            case = scoring.kind.cases(outputs[row : row + 1], targets[row : row + 1], scoring.classes)
            each = [1.0, *(float(one.each(case)[0]) for one in chosen if one.each is not None)]
            sums += torch.tensor(each, dtype=torch.float64).nan_to_num(0.0).clamp(0, 1)
        sums += noise * math.sqrt(len(sums)) * draws.normal(sums)
        n = max(1.0, float(sums[0].round()))
        means = {one.name: min(max(float(value) / n, 0.0), 1.0) for one, value in zip(chosen, sums[1:], strict=True)}
        return {"test": means, "n": {"test": n}}
    n_classes = len(scoring.classes)
    at = _cells(outputs, n_classes) if len(targets) else torch.empty(0, dtype=torch.int64)
    n_cells = len(EDGES) - 1 if n_classes == 2 else n_classes
    counts = torch.bincount(at * n_classes + targets.long(), minlength=n_cells * n_classes).double()
    counts = (counts + noise * draws.normal(counts)).clamp(min=0).round()
    n = float(counts.sum())
    if not n:
        return {"test": {}, "n": {"test": 0.0}}
    whole = (counts * min(1.0, MOST_CASES / n)).round().long()
    places = torch.repeat_interleave(torch.arange(len(whole)), whole)
    cell, label = places // n_classes, places % n_classes
    found = [scoring.evaluate(_logits(cell, n_classes, sure), label) for sure in (SURE, UNSURE)]
    same = {name: value for name, value in found[0].items() if found[1].get(name) == value}
    return {"test": {name: float(value) for name, value in same.items()}, "n": {"test": n}}


def _cells(outputs: torch.Tensor, n_classes: int) -> torch.Tensor:
    """(N,) the bin of the second class's risk, or the predicted class."""
    if n_classes != 2:
        return outputs.argmax(1)
    risks = outputs.double().softmax(1)[:, 1].contiguous()
    return torch.bucketize(risks, torch.tensor(EDGES[1:-1], dtype=torch.float64), right=True)


def _logits(cells: torch.Tensor, n_classes: int, sure: float) -> torch.Tensor:
    """(N, C) of cases in the middle of their cells."""
    if n_classes == 2:
        edges = torch.tensor(EDGES, dtype=torch.float64)
        risks = ((edges[1:] + edges[:-1]) / 2)[cells]
        return torch.stack((1 - risks, risks), dim=1).log().float()
    rest = (1 - sure) / (n_classes - 1)
    others = torch.full((len(cells), n_classes), rest, dtype=torch.float64)
    return others.scatter_(1, cells[:, None], sure).log().float()


SPENT = "privacy budget of the hospital spent: it takes no further part"


def bounded(update: Mapping[str, Any], most: float, deviation: float, draws: Draws) -> StateDict:
    """``update`` (tensors or arrays) in float64, of norm ``most`` at most over all entries, plus Gaussian noise."""
    entries = {key: torch.as_tensor(value).detach().cpu().double() for key, value in update.items()}
    norm = math.sqrt(sum(float(value.square().sum()) for value in entries.values()))
    factor = min(1.0, most / norm) if norm else 1.0
    return {key: value * factor + deviation * draws.normal(value) for key, value in entries.items()}


def share(clip: float, noise: float, sites: int, colluders: int) -> tuple[float, float]:
    """The largest norm of a site's part of a sum over ``sites``, its noise's deviation; SumRefused for too few."""
    if sites <= colluders:
        raise SumRefused(f"a sum of {sites} sites, of which {colluders} may tell their noise")
    return clip / sites, noise * clip / sites / math.sqrt(sites - colluders)


@dataclass
class SiteNoise:
    """What a site does to its weighted update before it is masked, and the budget that it keeps.

    Attributes:
        clip: C, the largest norm that an update has as if all weights were alike.
        epsilon: of the hospital over the run.
        delta: the chance that goes with it.
        colluders: c, sites that may tell their noise or drop out once they have been asked for a sum.
        rounds: T. A sum that is asked for again counts as one more.
        ledger: what the site has spent, which survives a restart; None: kept here alone.
    """

    clip: float
    epsilon: float
    delta: float
    colluders: int
    rounds: int
    ledger: Ledger | None = None
    draws: Draws = field(default_factory=lambda: Draws(None))

    def __post_init__(self) -> None:
        self._sums = 0

    @property
    def noise(self) -> float:
        """sigma, the least with which all rounds keep to the budget."""
        return noise_for(self.epsilon, self.delta, 1.0, self.rounds)

    def check(self) -> None:
        """Raise EgressRefused unless one more sum keeps to the budget."""
        if self._after(1) > self.epsilon:
            raise EgressRefused(SPENT)

    def charge(self) -> None:
        """Count a sum before anything of it leaves; raises EgressRefused as ``check``."""
        with nullcontext() if self.ledger is None else self.ledger.held():
            self.check()
            now, self._sums = self._after(1), self._spent() + 1
            if self.ledger is not None:
                self.ledger.write({"epsilon": now, "delta": self.delta, "spent": [[self.noise, 1.0, self._sums]]})

    def applied(self, update: Mapping[str, Any], sites: int) -> StateDict:
        """p_k D_k, bounded and with this site's share of the noise, for a sum over ``sites``; raises SumRefused."""
        return bounded(update, *share(self.clip, self.noise, sites, self.colluders), self.draws)

    def _spent(self) -> int:
        rows = self.ledger.read().get("spent", ()) if self.ledger is not None else ()
        return max([self._sums, *(int(steps) for _, _, steps in rows)])

    def _after(self, more: int) -> float:
        return epsilon_of([Mechanism(self.noise, 1.0, self._spent() + more)], self.delta)
