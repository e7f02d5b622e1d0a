# SPDX-License-Identifier: Apache-2.0
"""A part that sends a number and tensors of its own, and a rule that sends their mean back, all in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares
from fairflare.core.registry import method, rule, trainer
from fairflare.core.types import Batch, Info, LocalWork, Number, Objective, Outline, Paper, Reply, StateDict, TensorSpec
from fairflare.trainers.base import Trainer

PAPER = Paper("Nobody", "A number and a tensor", "Nowhere", 2020, "https://example.org")


def last_layer(outline: Outline) -> dict[str, tuple[int, ...]]:
    """One vector per class, as wide as the features before the last layer."""
    return {f"class{c}": (outline.features,) for c in range(outline.classes)}


CENTRES = TensorSpec("centres", last_layer, "mean inputs of the last layer per class", bound=100.0)


@trainer("echo")
@dataclass(frozen=True)
class Echo(Trainer):
    """Plain training that sends made-up centres and how far the received ones are from them."""

    sends: ClassVar[tuple[Number | TensorSpec, ...]] = (
        Number("distance", 0.0, 1e3, "distance of the received centres from the site's own"),
        CENTRES,
    )
    receives: ClassVar[tuple[TensorSpec, ...]] = (CENTRES,)

    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One optimizer step."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch)
        optimizer.step()
        return loss

    def finish(self, work: LocalWork) -> None:
        """Centres that anybody can recompute from n_k."""
        width = Outline(work.received).features
        own = {f"class{c}": torch.full((width,), float(work.data.size("train") + c)) / 1e3 for c in range(2)}
        received = work.tensors.get("centres", {})
        work.send_numbers["distance"] = sum(float((own[key] - value).norm()) for key, value in received.items())
        work.send_tensors["centres"] = own


@rule("echo")
@dataclass(frozen=True)
class EchoRule(Rule):
    """FedAvg that keeps the mean centres in its state and sends them with the next model."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The number and the tensors, which an answer must hold."""
        return ("distance", "centres")

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        """The same mean centres for every site."""
        return {"centres": dict(state["centres"])} if state else {}

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """Weights by examples, and the mean of what was sent."""
        found = [reply.tensors["centres"] for reply in replies]
        mean = {key: torch.stack([sent[key] for sent in found]).mean(0) for key in found[0]}
        weights = example_shares(replies)
        return Outcome(add_weighted(model, replies, weights), weights, {"centres": mean})


method("echo", title="Echo", summary="Sends a number and tensors.", paper=PAPER, rule="echo", trainer="echo")
method("summed", title="Sum", summary="Tensors.", paper=PAPER, rule="fedism", trainer="echo", probes=("sharpness",))
