# SPDX-License-Identifier: Apache-2.0
"""What may travel between server and sites: every field of an instruction and of an answer, described once.

The update gate, a site's egress check, FLARE's messages in both directions, the filter on FLARE's results, secure sums,
the audit log and the table in docs/what-leaves.md iterate over the fields of ``Instruction`` and ``Answer`` and do what
their specifications say. A new field of a known kind is one line here, and the code that fills it. Tensors that travel
beside the model fit into a ``Slot`` each; ``Transport`` is the port to the sites.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fairflare.core.errors import UserError
from fairflare.core.types import MOST_EXAMPLES, MOST_STEPS, Outline, Round, StateDict, TensorSpec

if TYPE_CHECKING:
    import torch


_ROUND = ("train", "compare", "sum", "weigh", "reveal")
_AFTER = ("calibrate", "adjust")
_BENEFIT = ("solo", "benefit")
TASKS = ("preflight", *_ROUND, "evaluate", *_AFTER, *_BENEFIT)
"""What the package's own exchanges ask; a plugin's exchange has further names."""
FURTHER = "further"
"""Stands among a field's ``exchanges`` for those of plugins."""
Kind = Literal[
    "task", "round", "difference", "update", "model", "count", "numbers", "orders", "tensors", "metrics", "evaluation",
    "statement", "seconds", "sealed", "sums", "adjusted", "benefit", "clinical", "reports", "head", "signed", "name",
    "error",
]  # fmt: skip
"""What a value is, and so how it is checked: the gate and the egress check have one check per kind."""
Carried = Literal["params", "params_type", "metrics", "meta", "round", "transport"]
"""Which part of a FLARE message holds a field; "transport": the transport's own means, such as its authentication."""
Secure = Literal["plain", "later", "masked", "hidden"]
"""What secure sums do with a field of a "train" answer.

"plain": it leaves with the answer to "train", and again with the update; "later": it leaves with the update, in the
answer to "weigh"; "masked": so does it, as a share of a sum that nobody can read alone; "hidden": it stays at the site.
"""
HIDDEN_METRICS = ("loss", "train_loss")
"""Metrics of a round that say much the same as the numbers which secure sums hide."""
IN_USE = "in_use"
"""The order in "evaluate" which says that the site uses this model: its calibration and decisions are asked for."""
MASKED = "masked"
"""In place of "diff" in ``Answer.update_kind``: nobody can read the update alone."""
SPLITS = ("val", "test")
"""The splits that a site evaluates a model on."""
PHASES = ("validate", "probe", "train", "report", "compare")
"""Phases of a round's work at a site, whose wall times leave it."""
LONGEST_WORK = 1e7
"""Seconds, four months."""


@dataclass(frozen=True)
class Spec:
    """The specification of one field.

    Attributes:
        kind: what its value is; a mapping where that depends on the exchange.
        exchanges: the exchanges in which it travels, those of secure sums aside, which follow from ``secure``.
        required: whether an answer to "train" without it is refused.
        declared: whether a "count" may not be above what the site declared before the first round.
        only_secure: whether the field travels in runs with secure sums alone.
        hidden: names within the field that secure sums hide.
        audit: whether the accepted value stands in the audit log.
        sparse: whether messages leave the field out where it is empty.
        meaning: for people: the table in docs/what-leaves.md and the report show it.
    """

    kind: Kind | Mapping[str, Kind]
    meaning: str
    exchanges: tuple[str, ...] = ("train",)
    required: bool = False
    low: float = float("-inf")
    high: float = float("inf")
    declared: bool = False
    secure: Secure = "plain"
    only_secure: bool = False
    hidden: tuple[str, ...] = ()
    audit: bool = False
    sparse: bool = False
    carried: Carried = "meta"

    def kind_in(self, task: str) -> Kind:
        """What the field's value is in an exchange; "weigh" is a part of "train"."""
        if isinstance(self.kind, str):
            return self.kind
        return self.kind.get("train" if task == "weigh" else task, next(iter(self.kind.values())))

    def travels(self, task: str, *, secure: bool = False) -> bool:
        """Whether the field may hold something in an answer to ``task``; ``secure``: in a run with secure sums."""
        task = task if task in TASKS else FURTHER
        if self.only_secure:
            return secure and task in self.exchanges
        if not secure:
            return task in self.exchanges
        if task == "weigh":
            return "train" in self.exchanges and self.secure != "hidden"
        first = task == "train" and self.secure != "plain"
        return task in self.exchanges and self.secure != "hidden" and not first


def _field(kind: Kind | Mapping[str, Kind], meaning: str, *, default: Any = None, **more: Any) -> Any:
    """A field of a message with its specification; a mapping's default is a new empty one, MISSING: there is none."""
    metadata = {"spec": Spec(kind, meaning, **more)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_ALL = (*TASKS, FURTHER)
_OF_MODELS = ("train", "compare", "evaluate", *_AFTER, *_BENEFIT, FURTHER)
_METRICS: dict[str, Kind] = {"train": "metrics", "evaluate": "evaluation", "preflight": "statement"}


@dataclass(frozen=True)
class Instruction:
    """Server to site: what to do, the model, and what is meant for this site alone.

    "preflight" carries no model and asks what is wrong with the site's data, its software's versions and its number of
    training examples, and beside other tasks whether a site that was absent is back; "train" is a round;
    "compare" is a round's second exchange (or a further one), whose model is an anchor of the rule's; with secure sums
    "sum" and "weigh" follow "train": sealed numbers come back, then weighted updates, each followed by "reveal", which
    brings the shares by which what came back can be read; "evaluate" asks how the model does on the site's own splits.
    In runs with a step after the last round "calibrate" asks for sums over calibration cases, and "adjust" tells the
    sums of all sites. In runs that report the benefit of joining, "solo" brings the initial model, from which the site
    trains alone, and "benefit" asks how much better the federation's serves it.
    """

    task: str = _field("task", "what to do", default=MISSING, exchanges=_ALL, required=True, carried="transport")
    round: Round = _field("round", "t and T", default=MISSING, exchanges=_ALL, required=True, carried="round")
    model: StateDict = _field(
        "model", "the model", default=MISSING, exchanges=_OF_MODELS, required=True, carried="params"
    )
    orders: Mapping[str, float] = _field(
        "orders", 'numbers from the rule for this site alone; in "adjust" the sums of all sites; in "evaluate" whether '
        "the site uses this model", default={},
    )  # fmt: skip
    sealed: Mapping[str, Any] = _field(
        "sealed", "what a secure sum needs of the others",
        default={}, exchanges=("sum", "weigh", "reveal", *_AFTER), only_secure=True,
    )  # fmt: skip
    tensors: Mapping[str, torch.Tensor] = _field(
        "tensors", "tensors from the rule, for all sites or for this one", default={}
    )
    counted: int | None = _field(
        "count", "the last round in which the site's answer was accepted, 0: none so far; nothing: not known",
        exchanges=("train", "evaluate"),
    )  # fmt: skip
    log: Mapping[str, Any] = _field("head", "the audit log's head, signed by the server", default={}, exchanges=_ALL)


@dataclass(frozen=True)
class Answer:
    """Site to server, untrusted: any field may hold anything until the gate has looked at it.

    ``site`` is the name that the transport vouches for, never one that the answer claims; ``error`` is a code when the
    site could not do its work: then the rest is empty.
    """

    site: str = _field("name", "the site", default=MISSING, exchanges=_ALL, carried="transport")
    round: Any = _field("round", "number of the round it answers", exchanges=_ALL)
    update: Any = _field(
        "update", "difference of the trained and the received model, D_k = w_k - w^t",
        required=True, secure="masked", carried="params",
    )  # fmt: skip
    update_kind: Any = _field(
        "difference", "that the update is a difference", default="diff", secure="masked", carried="params_type"
    )
    n_examples: Any = _field(
        "count", "number of training examples n_k",
        exchanges=("preflight", "train", "evaluate"), required=True, low=1, high=MOST_EXAMPLES, declared=True,
        audit=True,
    )  # fmt: skip
    scalars: Any = _field(
        "numbers", "numbers that the method's parts declare",
        default={}, exchanges=("train", "compare"), secure="hidden", audit=True,
    )  # fmt: skip
    steps: Any = _field(
        "count", "local optimizer steps of the round", required=True, low=0, high=MOST_STEPS, audit=True
    )
    tensors: Any = _field("tensors", "tensors that the method's parts declare", default={}, secure="hidden")
    metrics: Any = _field(
        _METRICS, "the task's metrics of the received model on the site's own splits; after the last round with "
        "intervals over its test patients, and also of an answer that needs no network",
        default={}, exchanges=("preflight", "train", "evaluate"), secure="later", hidden=HIDDEN_METRICS,
        audit=True, carried="metrics",
    )  # fmt: skip
    personal: Any = _field(
        "evaluation", "the same metrics and intervals of the site's personal model, in runs whose trainer keeps one",
        default={}, exchanges=("evaluate",), audit=True,
    )  # fmt: skip
    seconds: Any = _field(
        "seconds", "wall time by phase", default={}, exchanges=("train", "compare"), secure="later",
        low=0, high=LONGEST_WORK,
    )  # fmt: skip
    sealed: Any = _field(
        "sealed", "the site's key; its sealed numbers; shares of what masks them", default={},
        exchanges=("preflight", "calibrate", "sum", "weigh", "reveal", FURTHER), only_secure=True,
    )  # fmt: skip
    sums: Any = _field(
        "sums", "sums over the site's calibration cases: counts per bin, or losses on a grid; in a decision whether to "
        "join parts of sums over all its patients",
        exchanges=("calibrate", FURTHER), secure="hidden",
    )  # fmt: skip
    adjusted: Any = _field(
        "adjusted", "what recalibration or thresholds came to: the site's parameters, means over its test split",
        default={}, exchanges=("adjust",),
    )  # fmt: skip
    benefit: Any = _field(
        "benefit", "the benefit of joining: metrics of both models on the test split, intervals of the differences",
        default={}, exchanges=_BENEFIT,
    )  # fmt: skip
    clinical: Any = _field(
        "clinical", "calibration and decisions of the model that the site uses, on its test split: means, and counts "
        "per bin of the risk, or of times steps of survival curves; after the last round, of one model",
        default={}, exchanges=("evaluate", "adjust"), audit=True,
    )  # fmt: skip
    reports: Any = _field(
        "reports", "numbers that an exchange of a plugin declares", default={}, exchanges=(FURTHER,), sparse=True
    )
    signed: Any = _field(
        "signed", "the site's signature of this answer and of the log's head, in runs with certificates",
        default={}, exchanges=("preflight", "train", "compare", "evaluate"),
    )  # fmt: skip
    error: str | None = _field("error", "why the site has no answer", exchanges=_ALL, carried="transport")


@cache
def answer_fields() -> Mapping[str, Spec]:
    """Field -> specification of an ``Answer``, in its order."""
    return {f.name: f.metadata["spec"] for f in dataclasses.fields(Answer)}


@cache
def instruction_fields() -> Mapping[str, Spec]:
    """Field -> specification of an ``Instruction``, in its order."""
    return {f.name: f.metadata["spec"] for f in dataclasses.fields(Instruction)}


def carried_as(part: Carried, fields: Mapping[str, Spec]) -> Iterator[str]:
    """The fields that a given part of a FLARE message holds."""
    return (name for name, spec in fields.items() if spec.carried == part)


def audited(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of the accepted values of one answer stands in the audit log."""
    kept = {name: values[name] for name, spec in answer_fields().items() if spec.audit and name in values}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def said(answer: Answer) -> Any:
    """The same of an answer as JSON has it, which its site signs beside the update."""
    return json.loads(json.dumps(audited(vars(answer)), default=_plain))


def _plain(value: Any) -> Any:
    """A number of NumPy's or torch's."""
    return value.item() if hasattr(value, "item") else float(value)


T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """A tensor that may travel: its shape, whether it must be there, the largest absolute value, and ``compared``."""

    shape: tuple[int, ...]
    required: bool = False
    bound: float = 1e6
    compared: bool = True


def slots_of(specs: Iterable[TensorSpec], outline: Outline, wanted: Iterable[str] = ()) -> dict[str, Slot]:
    """ "name/entry" -> slot of every tensor that ``specs`` declare.

    Args:
        specs: of a method's parts; the same declaration in two parts counts once.
        outline: what the shapes follow from.
        wanted: names of specifications that are required whatever they say.

    Raises:
        UserError: a name with "/" or a shape that is none, or two specifications of one name that differ.
    """
    found: dict[str, Slot] = {}
    by_name: dict[str, TensorSpec] = {}
    for spec in specs:
        if by_name.setdefault(spec.name, spec) != spec:
            raise UserError(f"tensors {spec.name!r}: declared twice, in two ways")
        if not spec.name or "/" in spec.name or not 0 < spec.bound < math.inf:
            raise UserError(f"tensors {spec.name!r}: expected a name without '/' and a finite bound above 0")
        for entry, shape in spec.shapes(outline).items():
            if not isinstance(entry, str) or not all(type(size) is int and size >= 0 for size in shape):
                raise UserError(f"tensors {spec.name!r}: entry {entry!r}: expected a name and a shape, got {shape!r}")
            required = spec.required or spec.name in wanted
            found[f"{spec.name}/{entry}"] = Slot(tuple(shape), required, spec.bound, spec.compared)
    return found


def flat(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """name -> {entry: tensor} as it travels: "name/entry" -> tensor."""
    return {f"{name}/{entry}": value for name, entries in tensors.items() for entry, value in entries.items()}


def nested(tensors: Mapping[str, T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for key, value in tensors.items():
        name, _, entry = key.partition("/")
        found.setdefault(name, {})[entry] = value
    return found


@dataclass(frozen=True)
class Wrong:
    """What is wrong with tensors: a code, the declared tensor at fault (empty: none that is declared), and why."""

    code: str
    name: str
    why: str


def wrong_tensors(tensors: Any, slots: Mapping[str, Slot]) -> Wrong | None:
    """What is wrong with ``tensors`` ("name/entry" -> float32), held against what was declared; None: nothing."""
    if not isinstance(tensors, Mapping):
        return Wrong("tensor_type", "", f"expected tensors by name, got {type(tensors).__name__}")
    if any(name not in slots for name in tensors):
        return Wrong("tensor_unknown", "", "a tensor that no part of the method declares")
    found = (_wrong(name, tensors[name], slot) for name, slot in slots.items() if name in tensors)
    missing = (name for name, slot in slots.items() if slot.required and name not in tensors)
    # What is there comes first: a site's own check lets a missing tensor pass, and nothing else with it.
    lacking = (Wrong("tensor_missing", name, "expected a tensor, got none") for name in missing)
    return next(filter(None, found), None) or next(lacking, None)


def _wrong(name: str, value: Any, slot: Slot) -> Wrong | None:
    import torch  # nothing that lists or describes looks at tensors

    from fairflare.core.tensor_files import Stored

    if isinstance(value, Stored):
        if value.shape != slot.shape:
            return Wrong("tensor_shape", name, f"expected {slot.shape}, got {value.shape}")
        value = value.materialize()
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta:
        return Wrong("tensor_type", name, f"expected a dense tensor, got {type(value).__name__}")
    if value.dtype != torch.float32:
        return Wrong("tensor_type", name, f"expected torch.float32, got {value.dtype}")
    if tuple(value.shape) != slot.shape:
        return Wrong("tensor_shape", name, f"expected {slot.shape}, got {tuple(value.shape)}")
    if not value.numel():
        return None
    low, high = (float(extreme) for extreme in torch.aminmax(value.detach()))
    if not math.isfinite(low) or not math.isfinite(high):
        return Wrong("tensor_nonfinite", name, "expected finite numbers, got NaN or infinity")
    if max(-low, high) > slot.bound:
        return Wrong("tensor_range", name, f"expected absolute values of at most {slot.bound:g}")
    return None


SiteModels = Mapping[str, StateDict]
"""Site -> the model that it is sent."""
Declared = Mapping[str, int]
"""Site -> training examples that it has declared."""


class Transport(Protocol):
    """The port to the sites; one adapter calls them in this process, another goes through FLARE."""

    def sites(self) -> list[str]:
        """Names of the sites that can be asked now, sorted."""

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterable[Answer]:
        """Send each site its instruction and yield what comes back, in any order, until all answered or time is up.

        "preflight" beside other tasks asks whether an absent site is back: nobody waits for its answer. "train" may end
        early, see ``early_end``: an answer that comes later than the end is dropped, and its site stops.
        """
