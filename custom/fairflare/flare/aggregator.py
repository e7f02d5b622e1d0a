# SPDX-License-Identifier: Apache-2.0
"""A rule as a FLARE ``ModelAggregator``: fair weighting inside a stock ``FedAvgRecipe``, with nothing else of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fairflare import registry
from fairflare.config import part
from fairflare.contracts import Outline, Reply, Round, StateDict, Weights
from fairflare.errors import RunFailed, UserError
from fairflare.federation.gate import Gate
from fairflare.federation.messages import Answer
from fairflare.flare.wire import answer_from_model
from fairflare.rules.base import Rule, example_shares


class FairAggregator(ModelAggregator):
    """Weighs weight differences with the rule of a single-exchange method, behind the update gate.

    Clients send ``ParamsType.DIFF`` and report in ``FLModel.meta`` what the rule needs::

        FLModel(params=..., meta={"n_examples": 1200, "scalars": {"sharpness": 0.03}})

    Hand it to a recipe: ``FedAvgRecipe(..., aggregator=FairAggregator("fedism"), params_transfer_type="DIFF")``.
    A site that the gate rejects is left out of the round and named in the server's log; weights stay on the server.
    The rule's memory lives in this object: it does not outlast the job.
    """

    def __init__(
        self,
        method: str,
        rounds: int = 1_000_000,
        min_sites: int = 1,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            method: id of the method whose rule weighs.
            rounds: T, for rules whose parameters change with t / T.
            min_sites: accepted sites that a round needs.
            settings: parameters of the rule that differ from the method's.

        Raises:
            UserError: unknown method or parameter.
        """
        super().__init__()
        self.method, self.rounds, self.min_sites, self.settings = method, rounds, min_sites, settings
        if min_sites < 1 or rounds < 1:
            raise UserError(f"min_sites and rounds: expected at least 1, got {min_sites} and {rounds}")
        entry = registry.get_method(method)
        unknown = sorted(set(settings or {}) - set(registry.parameters(entry.rule)))
        if unknown:
            known = ", ".join(registry.parameters(entry.rule))
            raise UserError(f"unknown key {unknown[0]!r} of rule {entry.rule.__name__}; known: {known}")
        self._rule = part(entry.rule, dict(entry.settings) | (settings or {}))
        if type(self._rule).orders is not Rule.orders or type(self._rule).anchor is not Rule.anchor:
            raise UserError(f"{method} tells each site something of its own every round: use FairRecipe for it")
        self._probes = tuple(part(registry.get_probe(id), entry.settings) for id in entry.probes)
        self._state: Any = {}
        self._answers: list[Answer] = []
        self._declared: dict[str, int] = {}
        self._round = 0
        self.weights: Weights = {}

    def reset_stats(self) -> None:
        """Start a round."""
        self._answers = []

    def accept_model(self, model: FLModel) -> None:
        """Take one client's result; the gate looks at it when the round is complete."""
        answer = answer_from_model(model)
        self._answers.append(_floating(answer, self._round + 1))

    def aggregate_model(self) -> FLModel:
        """The weighted difference of the accepted clients; raises RunFailed when there are too few."""
        self._round += 1
        model = _template(self._answers)
        scalars = tuple(s for probe in self._probes for s in probe.scalars(Outline(model)))
        gate = Gate(trainable=_trainable(model), scalars=scalars, wanted=self._rule.wanted)
        verdict = gate.inspect(self._answers, model, self._round, self._declared)
        replies = verdict.replies
        for rejected in verdict.rejections:
            self.warning(f"{rejected.site} left out: {rejected.code} ({rejected.detail})")
        if len(replies) < self.min_sites:
            raise RunFailed(f"round {self._round}: {len(replies)} accepted sites, {self.min_sites} needed")
        round = Round(min(self._round, self.rounds), self.rounds)
        outcome = self._rule.aggregate(model, replies, self._state, round)
        self._state, self.weights = outcome.state, outcome.weights
        self._declared = {r.site: r.n_examples for r in replies} | self._declared
        self.info(f"round {self._round} weights: {self.weights}")
        return FLModel(params=outcome.model, params_type=ParamsType.DIFF, metrics=_mean_metrics(replies), meta={})


def _trainable(model: StateDict) -> frozenset[str]:
    """All entries but running statistics: a stock recipe tells no more than names."""
    return frozenset(key for key in model if not key.endswith(("running_mean", "running_var")))


def _floating(answer: Answer, round: int) -> Answer:
    """The answer without integer buffers, whose differences mean nothing, tagged with the round that FLARE is in."""
    update = answer.update
    if isinstance(update, dict):
        update = {k: v for k, v in update.items() if not _is_integer(v)}
    return Answer(answer.site, round, update, answer.update_kind, answer.n_examples, answer.scalars, answer.metrics)


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _mean_metrics(replies: Sequence[Reply]) -> dict[str, float] | None:
    """The metrics that every accepted site reported, weighted by examples, for FLARE's own records."""
    names = set.intersection(*(set(r.metrics) for r in replies))
    examples = example_shares(replies)
    return {name: sum(examples[r.site] * r.metrics[name] for r in replies) for name in sorted(names)} or None


def _template(answers: list[Answer]) -> StateDict:
    """Zeros with the keys and shapes that most answers have: a stock recipe does not tell the aggregator its model."""
    signatures = Counter(filter(None, map(_signature, answers)))
    if not signatures:
        return {}
    (first, votes), *others = signatures.most_common(2)
    if others and others[0][1] == votes:
        raise RunFailed("the clients' updates differ in keys or shapes, and no form of them has a majority")
    return {key: torch.zeros(shape) for key, shape in first}


def _signature(answer: Answer) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    update = answer.update
    if not isinstance(update, dict) or not all(isinstance(v, (torch.Tensor, np.ndarray)) for v in update.values()):
        return None
    return tuple(sorted((str(k), tuple(v.shape)) for k, v in update.items()))
