# SPDX-License-Identifier: Apache-2.0
"""What travels between the federation and a site, whatever carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fairflare.contracts import Round, StateDict

TaskName = Literal["preflight", "train", "compare", "sum", "weigh", "evaluate"]


@dataclass(frozen=True)
class Instruction:
    """Server to site: what to do, the model, and the numbers meant for this site alone.

    "preflight" carries no model and asks what is wrong with the site's data, its software's versions and its number of
    training examples, and beside other tasks whether a site that was absent is back; "train" is a round;
    "compare" is a round's second exchange, whose model is the rule's anchor; with secure sums "sum" and "weigh" follow
    "train": sealed numbers come back, then weighted updates; "evaluate" asks how the model does on the site's own
    splits. ``sealed`` is for secure sums, see ``federation.sums``.
    """

    task: TaskName
    round: Round
    model: StateDict
    orders: Mapping[str, float] = field(default_factory=dict)
    sealed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Site to server, untrusted: any field may hold anything until the gate has looked at it.

    Attributes:
        site: the name that the transport vouches for, never one that the answer claims.
        round: number of the round it answers.
        update: D_k for "train", p_k D_k for "weigh", else None.
        update_kind: "diff" is the only kind that is aggregated.
        n_examples: n_k.
        scalars: probe numbers.
        metrics: validation metrics of the received model ("train"), {split: metrics} and
            {"groups": {split: {group: {"n", "value"}}}} ("evaluate"), or {"findings": see ``findings.packed``,
            "versions": {name: version}} ("preflight").
        seconds: wall time at the site by phase, for the report only.
        sealed: for secure sums: the site's key ("preflight"), its sealed numbers ("sum").
        error: a code when the site could not do its work; then the rest is empty.
    """

    site: str
    round: Any = None
    update: Any = None
    update_kind: Any = "diff"
    n_examples: Any = None
    scalars: Any = field(default_factory=dict)
    metrics: Any = field(default_factory=dict)
    seconds: Any = field(default_factory=dict)
    sealed: Any = field(default_factory=dict)
    error: str | None = None


class Transport(Protocol):
    """The port to the sites; one adapter calls them in this process, another goes through FLARE."""

    def sites(self) -> list[str]:
        """Names of the sites that can be asked now, sorted."""

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterable[Answer]:
        """Send each site its instruction and yield what comes back, in any order, until all answered or time is up.

        "preflight" beside other tasks is a knock at the door of an absent site: nobody waits for its answer.
        """
