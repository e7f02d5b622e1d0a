# SPDX-License-Identifier: Apache-2.0
"""A rule as a FLARE ``ModelAggregator``: fair weighting inside a stock ``FedAvgRecipe``, with nothing else of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.aggregators.base import Rule, example_shares
from fairflare.core import registry
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.schema import Answer, answer_fields
from fairflare.core.types import Info, Offer, Outline, Reply, Round, StateDict, Weights, tensors_of
from fairflare.core.validation import unlisted
from fairflare.engine.field_checks import materialized
from fairflare.engine.gate import Gate, steps_of
from fairflare.engine.norms import remembered
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.flare.wire import answer_from_model

ORDERS = "fairflare_orders"
"""A property of a training task's FLARE context at the server: site -> the rule's numbers for it alone."""
SITE_WEIGHTS = "fairflare_site_weights"
"""A property of the server's FLARE context: accepted site -> weight of the round."""
PLAIN = "sgd"
"""The trainer of methods that leave local training as it is."""
UNASKED = frozenset(name for name, spec in answer_fields().items() if spec.kind == "count" and not spec.declared)
"""What the schema measures and clients of a stock recipe need not report."""


class SiteOrders(Filter):
    """Sends each site, beside the model, the numbers that ``FairAggregator``'s rule has for it alone: FedCE, FedUFO.

    A filter of the server's for task data; a script finds the numbers in ``FLModel.meta["orders"]``::

        recipe.add_server_output_filter(SiteOrders(), tasks=["train"])
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task with the numbers of the site that asks for it; other tasks as they are."""
        orders_of, peer = fl_ctx.get_prop(ORDERS), fl_ctx.get_peer_context()
        if orders_of is None or peer is None:
            return shareable
        dxo = from_shareable(shareable)  # FLARE shares its content among the sites
        return DXO(
            dxo.data_kind, dxo.data, {**dxo.meta, "orders": orders_of(peer.get_identity_name())}
        ).update_shareable(shareable)


class FairAggregator(ModelAggregator):
    """Weighs weight differences with the rule of a single-exchange method, behind the update gate.

    Clients send differences, or whole weights of which these are made, and report in ``FLModel.meta`` what the rule
    needs::

        FLModel(params=..., meta={"n_examples": 1200, "scalars": {"sharpness": 0.03}})

    Hand it to a recipe: ``FedAvgRecipe(..., aggregator=FairAggregator("fedism"), params_transfer_type="DIFF")``.
    A method that has numbers for each site alone (FedCE, FedUFO) needs ``SiteOrders`` at the server, too. Both exchange
    formats of that recipe work, NumPy arrays (its default) and PyTorch tensors. The gate judges answers
    against the model that FLARE sent for training. Of integer entries (BatchNorm's counter) differences mean nothing:
    they are left out and stay as they are. When most sites answer with the same part of the model's entries (adapters
    of a large model), that part is what everyone must answer with. ScatterAndGather takes it as its aggregator, too
    (``aggregator_id``), with ``FullModelShareableGenerator``. A site that the gate rejects is left out of the
    round and named in the server's log; weights stay on the server. The rule's memory lives in this object: it does
    not outlast the job.
    """

    def __init__(
        self,
        method: str,
        rounds: int = 1_000_000,
        min_sites: int = 1,
        settings: dict[str, Any] | None = None,
        lr: float = 0.0,
        groups: Sequence[str] = (),
    ) -> None:
        """
        Args:
            rounds: T, for rules whose parameters change with t / T.
            settings: parameters of the rule that differ from the method's.
            lr: the clients' local learning rate, for rules that use it; 0: not known.
            groups: names of groups of examples of which clients report numbers ("group_loss/NAME").

        Raises:
            UserError: unknown method or parameter.
        """
        super().__init__()
        self.method, self.rounds, self.min_sites, self.settings, self.lr = method, rounds, min_sites, settings, lr
        self.groups = groups
        if min_sites < 1 or rounds < 1:
            raise UserError(f"min_sites and rounds: expected at least 1, got {min_sites} and {rounds}")
        if not 0 <= lr < float("inf"):
            raise UserError(f"lr: expected a finite number >= 0, got {lr}")
        entry = registry.get_method(method)
        known = registry.parameters(registry.get_rule(entry.rule))
        given = {key.removeprefix("rule."): value for key, value in (settings or {}).items()}
        given |= given.pop("rule", None) or {}  # FLARE's commands make {"rule": {"q": 1}} of {"rule.q": 1}
        if unknown := sorted(set(given) - set(known)):
            raise UserError(f"rule {entry.rule}: {unlisted('key', unknown[0], known)}")
        made = default_parts(entry, {f"rule.{key}": value for key, value in given.items()})
        self._rule = made.rule
        if (entry.selector, entry.server_optimizer) != ("all", "none"):
            raise UserError(f"{method} selects sites or steps on the server by itself: use `fairflare run {method}`")
        own = f'FairRecipe(make_config("{method}", TASK)), whose sites run FairExecutor'
        if any(_has(self._rule, hook) for hook in ("anchor", "anchors")):
            raise UserError(f"{method} needs a second exchange in each round, for which FLARE has no place: use {own}")
        if _has(self._rule, "tensors_for") or self._rule.own_models:
            raise UserError(f"{method} sends sites models of their own: use {own}")
        if made.trainer.has_server_half:
            raise UserError(f"{method}'s trainer has a server half: use {own}")
        if entry.rule == "fedavg" and entry.trainer != PLAIN:
            acts = f"{method} acts at the sites (trainer {entry.trainer}); its aggregator is FedAvg's"
            raise UserError(f'{acts}: use {own}, or FairAggregator("fedavg") with a script that trains so')
        if missing := self._rule.missing(Offer("", (), "", tuple(groups), has_classes=True)):
            raise UserError(f"{method}: {missing}; an aggregator has them as groups=[...]")
        self._probes = made.probes
        tensors = {spec.name for piece in (made.trainer, *self._probes) for spec in tensors_of(piece)}
        if tensors.intersection(self._rule.wanted):
            raise UserError(f"{method} needs tensors of the sites beside their updates: use {own}")
        self._state: Any = {}
        self._answers: list[Answer] = []
        self._declared: dict[str, int] = {}
        self._by_steps: set[str] = set()
        self._history: dict[str, dict[str, list[float]]] = {}
        self._round = 0
        self._sent: dict[str, Any] = {}
        self._has_orders, self._gave_orders = _has(self._rule, "orders"), False
        self.weights: Weights = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep hold of the model that goes out for training: FLARE hands an aggregator the results alone."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK:
            task = from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
            self._sent = task.data if task.data_kind == DataKind.WEIGHTS and task.data else {}
            if self._has_orders:
                fl_ctx.set_prop(ORDERS, self._orders_of, private=True, sticky=False)

    def _orders_of(self, site: str) -> dict[str, float]:
        """The rule's numbers for ``site`` in the round that begins."""
        self._gave_orders = True
        t = Round(min(self._round + 1, self.rounds), self.rounds)
        info = Info(t, self.lr, known_sites=len(self._declared), examples=self._declared)
        return self._rule.orders(self._state, site, info)

    def reset_stats(self) -> None:
        self._answers = []

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take one client's result under ScatterAndGather, where only the peer's context has the client's name."""
        self.fl_ctx = fl_ctx
        peer = fl_ctx.get_peer_context()
        site = peer.get_identity_name() if peer is not None else ""
        if not site:
            self.warning("a result without the name that FLARE authenticated is left out")
            return False
        self._take(FLModelUtils.from_shareable(shareable), site)
        return True

    def accept_model(self, model: FLModel) -> None:
        """Take one client's result; the gate looks at it when the round is complete."""
        self._take(model, str((model.meta or {})["client_name"]))

    def _take(self, model: FLModel, site: str) -> None:
        """Keep an answer: whole weights as their difference, and FLARE's own weight where no n_examples is stated."""
        if model.params_type == ParamsType.FULL and self._sent:
            model.params_type, model.params = ParamsType.DIFF, _difference(model.params, self._sent)
        if "n_examples" not in (model.meta or {}):
            steps = (model.meta or {}).get(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
            model.meta = {**(model.meta or {}), "n_examples": steps}
            if site not in self._by_steps:
                self._by_steps.add(site)
                self.warning(f"{site} states no n_examples: its steps weigh it ({steps}), as in FLARE's aggregators")
        self._answers.append(answer_from_model(model, site))

    def aggregate_model(self) -> FLModel:
        """The weighted difference of the accepted clients, in the kind of arrays of the model that FLARE sent.

        Raises:
            RunFailed: fewer accepted clients than ``min_sites``, no form of the updates has a majority, or a rule with
                numbers for each site alone runs without ``SiteOrders``.
        """
        if self._has_orders and not self._gave_orders:
            needed = 'recipe.add_server_output_filter(SiteOrders(), tasks=["train"])'
            raise RunFailed(f"{self.method} sends each site numbers of its own: expected {needed}")
        self._round += 1
        answers = [_tagged(answer, self._round, self._sent) for answer in self._answers]
        model = _expected(answers, self._sent)
        replies = self._accepted(answers, model)
        zeros = {key: torch.zeros_like(value) for key, value in model.items()}
        self._declared = {r.site: r.n_examples for r in replies if r.site not in self._by_steps} | self._declared
        told = {name.partition("/")[0] for reply in replies for name in reply.scalars}
        if self._round > 1 and (silent := sorted(set(self._rule.useful) - told)):  # in round 1 nobody has a past
            self.warning(f"{self.method} weighs without {', '.join(silent)}: no site reports it")
        t = Round(min(self._round, self.rounds), self.rounds)
        info = Info(t, self.lr, steps_of(replies), known_sites=len(self._declared), examples=self._declared)
        outcome = self._rule.aggregate(zeros, replies, self._state, info)
        self._state, self.weights = outcome.state, outcome.weights
        self.info(f"round {self._round} weights: {self.weights}")
        if self.fl_ctx is not None:  # what stands in the result's meta, FLARE sends to the sites
            self.fl_ctx.set_prop(SITE_WEIGHTS, dict(self.weights), private=True, sticky=True)
        difference = {  # the gate lets a variance fall to -1e-6, for rounding's sake; the model's stays at zero
            key: torch.maximum(value, -model[key]) if key.endswith("running_var") else value
            for key, value in outcome.model.items()
        }
        like = self._sent or next(answer.update for answer in answers if answer.site == replies[0].site)
        return FLModel(
            params={key: _of_kind(like[key], value) for key, value in difference.items()},
            params_type=ParamsType.DIFF,
            metrics=_mean_metrics(replies),
            meta={},
        )

    def _accepted(self, answers: list[Answer], model: StateDict) -> list[Reply]:
        scalars = tuple(s for probe in self._probes for s in probe.scalars(Outline(model, tuple(self.groups))))
        # All entries but running statistics: a stock recipe tells no more than names.
        trainable = frozenset(key for key in model if not key.endswith(("running_mean", "running_var")))
        gate = Gate(trainable, scalars, self._rule.wanted, lenient=UNASKED)
        verdict = gate.inspect(answers, model, self._round, self._declared, self._history)
        for rejected in verdict.rejections:
            self.warning(f"{rejected.site} left out: {rejected.code} ({rejected.detail})")
        if len(verdict.replies) < self.min_sites:
            raise RunFailed(f"round {self._round}: {len(verdict.replies)} accepted sites, {self.min_sites} needed")
        self._history = remembered(self._history, verdict.norms)
        return verdict.replies


def _has(rule: Rule, hook: str) -> bool:
    """Whether a rule has more of its own than the base class."""
    return getattr(type(rule), hook) is not getattr(Rule, hook)


def _difference(params: Any, sent: Mapping[str, Any]) -> Any:
    """What training has made of the model that was sent; what does not fit it as it is, for the gate."""
    try:
        pairs = {key: (_array(value), _array(sent[key])) for key, value in params.items()}
        fits = all(one.shape == other.shape for one, other in pairs.values())
        return {key: one - other for key, (one, other) in pairs.items()} if fits else params
    except Exception:  # whatever a client has sent in place of arrays
        return params


def _tagged(answer: Answer, round: int, sent: Mapping[str, Any]) -> Answer:
    """The answer without integer entries, with arrays in place of NumPy's scalars, tagged with FLARE's round."""
    update = answer.update
    if isinstance(update, Mapping):
        arrays = {key: _array(value) for key, value in update.items()}
        update = {key: value for key, value in arrays.items() if _is_floating(sent.get(key, value))}
    return replace(answer, round=round, update=update)


def _array(value: Any) -> Any:
    """NumPy makes the difference of two arrays without dimensions a scalar."""
    value = materialized(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_floating(value: Any) -> bool:
    """Whether an entry takes part; the gate refuses what is no array at all."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "iub"


def _of_kind(like: Any, value: torch.Tensor) -> Any:
    """What FLARE can add to ``like``: a NumPy array, or a tensor on the same device."""
    return value.to(like.device) if isinstance(like, torch.Tensor) else value.numpy()


def _mean_metrics(replies: Sequence[Reply]) -> dict[str, float] | None:
    """The metrics that every accepted site reported, weighted by examples, for FLARE's own records."""
    names = set.intersection(*(set(r.metrics) for r in replies))
    examples = example_shares(replies)
    return {name: sum(examples[r.site] * r.metrics[name] for r in replies) for name in sorted(names)} or None


def _expected(answers: list[Answer], sent: Mapping[str, Any]) -> StateDict:
    """The floating-point entries that answers must have, with their values in the model that was sent.

    Where FLARE did not tell which model it sent, the keys and shapes that most answers have, of unknown value: zero,
    and a variance so large that no difference makes it negative.

    Raises:
        RunFailed: the model is not known, and no form of the answers has a majority.
    """
    signatures = Counter(filter(None, map(_signature, answers)))
    if sent:
        model = {key: torch.as_tensor(_array(value)) for key, value in sent.items() if _is_floating(value)}
        names = Counter(frozenset(entry[0] for entry in form).intersection(model) for form in signatures.elements())
        part, votes = names.most_common(1)[0] if names else (frozenset(), 0)
        return {key: value for key, value in model.items() if 2 * votes <= len(answers) or not part or key in part}
    if not signatures:
        return {}
    (first, votes), *others = signatures.most_common(2)
    if others and others[0][1] == votes:
        raise RunFailed("the clients' updates differ in keys or shapes, and no form of them has a majority")
    return {
        key: torch.full(shape, torch.finfo(dtype).max / 4 if key.endswith("running_var") else 0.0, dtype=dtype)
        for key, shape, dtype in first
    }


def _signature(answer: Answer) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...] | None:
    update = answer.update
    if not isinstance(update, dict) or not all(isinstance(v, (torch.Tensor, np.ndarray)) for v in update.values()):
        return None
    try:
        entries = [(str(key), tuple(value.shape), torch.as_tensor(value).dtype) for key, value in update.items()]
    except (TypeError, ValueError):  # arrays of text or objects: the gate refuses them
        return None
    return tuple(sorted(entries, key=lambda entry: entry[0]))
