# SPDX-License-Identifier: Apache-2.0
"""Instructions and answers as FLARE's ``FLModel``, both ways: each field where its specification says.

Down go FULL weights (empty where an exchange has no model), large ones in pieces, up go DIFF weights, so that a site's
privacy filters see a difference; "metrics" and "meta" are FLARE's own places for the rest. "validate" is the odd one:
weights as FLARE's evaluation workflows send them, and metrics "<split>_<name>" as those read them. Meta also holds the
``VERSION`` of this format, and up the round, which FLARE does not keep for results without weights. ``TaskWatch`` asks
the server whether it still waits for an answer.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.utils import fobs
from torch import Tensor

from fairflare.core.schema import (
    SPLITS,
    Answer,
    Carried,
    Instruction,
    Spec,
    answer_fields,
    carried_as,
    instruction_fields,
)
from fairflare.core.types import Round

VERSION = 3
PIECES = "pieces"
"""Where a message says which of its tensors come in pieces: part -> name -> shape."""
ERROR_HEADER = "fairflare_error"
ANSWERED = {"answered": 1.0}
VALIDATE = "validate"
"""FLARE's name for what its evaluation workflows ask."""

# Without it FLARE sends tensors as empty ones and says nothing.
fobs.register(TensorDecomposer)
LARGEST = 1 << 21
"""Bytes of a piece: what FLARE puts into one message by default."""
MARK = "/piece "
"""Between a tensor's name and the number of a piece."""
Shapes = dict[str, list[int]]
"""Name -> shape of a tensor that travels in pieces."""


def instruction_to_model(instruction: Instruction) -> FLModel:
    """An instruction as FLARE sends it: the model as its parameters, the other fields in its meta data.

    Tensors of more than FLARE's limit travel in pieces; ``meta`` says how they are put together.
    """
    params, meta = _whole(_at("params", instruction)), _meta(instruction)
    shapes: dict[str, Shapes] = {}
    params, shapes["params"] = split(params)
    for name in _tensors():
        meta[name], shapes[name] = split(meta[name])
    return FLModel(
        params=params,
        params_type=ParamsType.FULL,
        current_round=instruction.round.number,
        total_rounds=instruction.round.total,
        meta={"fairflare": VERSION, PIECES: {name: found for name, found in shapes.items() if found}, **meta},
    )


def instruction_from_shareable(task_name: str, shareable: Shareable) -> Instruction:
    """Read ``instruction_to_model`` back at a site; raises ValueError when server and site speak different versions."""
    return instruction_from_model(task_name, FLModelUtils.from_shareable(shareable))


def instruction_from_model(task_name: str, model: FLModel) -> Instruction:
    """The same of FLARE's model, as its Client API hands it to a script."""
    meta = model.meta or {}
    version = meta.get("fairflare")
    if version != VERSION:
        raise ValueError(f"message version: expected {VERSION}, got {version!r}")
    shapes = meta.get(PIECES, {})
    if "params" in shapes:
        model.params = joined(model.params, shapes["params"])
    found = _read(instruction_fields(), model)
    found |= {name: joined(found[name], shapes[name]) for name in _tensors() if name in shapes}
    return Instruction(task=task_name, round=Round(model.current_round, model.total_rounds), **found)


def validation_from_shareable(shareable: Shareable) -> Instruction:
    """What FLARE's ``CrossSiteModelEval`` asks, as an "evaluate"; raises ValueError for anything but weights."""
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.WEIGHTS:
        raise ValueError("model to validate: expected weights, got another kind of data")
    return Instruction("evaluate", Round(1, 1), {key: torch.as_tensor(value) for key, value in dxo.data.items()})


def validation_answer(answer: Answer) -> Answer:
    """An answer to "evaluate" as FLARE's workflows read it: one number per name, no groups and no counts."""
    flat = {f"{split}_{name}": value for split in SPLITS for name, value in answer.metrics.get(split, {}).items()}
    return dataclasses.replace(answer, metrics=flat, personal={}, clinical={}, n_examples=None)


def by_split(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """``validation_answer``'s metrics per split again; raises ValueError for a name of another form."""
    found: dict[str, dict[str, float]] = {split: {} for split in SPLITS}
    for key, value in metrics.items():
        split, _, name = str(key).partition("_")
        if split not in found:
            raise ValueError("metric: expected a split and a name")
        found[split][name] = value
    return found


def answer_to_shareable(answer: Answer) -> Shareable:
    return FLModelUtils.to_shareable(answer_to_model(answer))


def answer_to_model(answer: Answer) -> FLModel:
    """The same as FLARE's model, as its Client API takes it from a script."""
    update, metrics = _at("params", answer), _at("metrics", answer)
    return FLModel(
        params=_whole(update) if update is not None else None,
        params_type=ParamsType.DIFF if update is not None else None,
        # FLARE sends nothing without weights or metrics; a second answer has neither.
        metrics=dict(metrics) or (None if update is not None else ANSWERED),
        current_round=answer.round,
        meta={"fairflare": VERSION, **_meta(answer)},
    )


def answer_from_model(model: FLModel, site: str | None = None) -> Answer:
    """What a site sent, unchecked; the site's name is the one that FLARE authenticated, unless the caller knows it."""
    meta = model.meta or {}
    kind = "diff" if model.params_type == ParamsType.DIFF else str(model.params_type)
    types = dict.fromkeys(carried_as("params_type", answer_fields()), kind)
    return Answer(site=meta["client_name"] if site is None else site, **types, **_read(answer_fields(), model))


META = frozenset(carried_as("meta", answer_fields()))
"""The fields of an answer that travel in FLARE's meta."""


def _at(part: Carried, message: Instruction | Answer) -> Any:
    """The value of the one field that travels in ``part`` of a FLARE message."""
    (name,) = carried_as(part, _fields(message))
    return getattr(message, name)


def _meta(message: Instruction | Answer) -> dict[str, Any]:
    fields = _fields(message)
    found = {name: getattr(message, name) for name in carried_as("meta", fields)}
    found = {name: value for name, value in found.items() if value or not fields[name].sparse}
    return {
        name: (_whole(value) if fields[name].kind == "tensors" else dict(value))
        if isinstance(value, Mapping)
        else value
        for name, value in found.items()
    }


def _tensors() -> list[str]:
    fields = instruction_fields()
    return [name for name in carried_as("meta", fields) if fields[name].kind == "tensors"]


def _read(fields: Mapping[str, Spec], model: FLModel) -> dict[str, Any]:
    """Field -> value from the parts of a FLARE message; what is missing keeps its default."""
    meta = model.meta or {}
    found = {name: meta[name] for name in carried_as("meta", fields) if name in meta}
    found |= dict.fromkeys(carried_as("params", fields), model.params)
    metrics = {} if not model.metrics or list(model.metrics) == list(ANSWERED) else model.metrics
    return found | dict.fromkeys(carried_as("metrics", fields), metrics)


def _fields(message: Instruction | Answer) -> Mapping[str, Spec]:
    return answer_fields() if isinstance(message, Answer) else instruction_fields()


def _whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value.contiguous() for key, value in tensors.items()}


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Shapes]:
    """The tensors, of those above ``LARGEST`` bytes flat pieces that share their memory, and the shapes of the latter.

    FLARE holds several copies of each tensor of each site on its way at once.

    Args:
        tensors: contiguous.

    Raises:
        ValueError: a tensor has the name of a piece.
    """
    if any(MARK in name for name in tensors):
        raise ValueError(f"tensors: expected names without {MARK!r}")
    found: dict[str, Tensor] = {}
    shapes: Shapes = {}
    for name, value in tensors.items():
        if value.nbytes <= LARGEST:
            found[name] = value
            continue
        shapes[name] = list(value.shape)
        pieces = value.view(-1).split(LARGEST // value.element_size())
        found.update((f"{name}{MARK}{place}", piece) for place, piece in enumerate(pieces))
    return found, shapes


def joined(tensors: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """What ``split`` was given; raises ValueError, TypeError or RuntimeError where pieces do not make it."""
    found: dict[str, Any] = {}
    for key, value in tensors.items():
        name, _, place = key.rpartition(MARK)
        if name not in shapes:
            found[key] = value
            continue
        pieces = found.setdefault(name, [])
        if place != str(len(pieces)):
            raise ValueError("a tensor in pieces: expected them in their order")
        pieces.append(value)
    for name, shape in shapes.items():
        found[name] = torch.cat(found.get(name, [])).view(tuple(shape))
    return found


PERIOD = 1.0
"""Seconds between two questions at first."""
SHARE = 60.0
"""Of the time that a site has worked, one part in so many passes between two questions, where that is longer: 400 sites
with hours of work ask their server a few times a minute."""
PATIENCE = 5.0
"""Seconds that an answer may take; without one the task is taken to stand."""


class TaskWatch:
    """Asks FLARE's server, in a thread, whether it still waits for the task: a round may have ended without the site.

    It asks what FLARE's client asks before it sends a result. The site's work looks at ``gone`` and never waits.
    """

    def __init__(self, fl_ctx: FLContext, clock: Callable[[], float] = time.monotonic) -> None:
        self.gone = False
        self._task = fl_ctx.get_prop(ReservedKey.TASK_ID)
        self._engine: Any = fl_ctx.get_engine()
        self._clock, self._left = clock, threading.Event()

    def __enter__(self) -> TaskWatch:
        if self._task:
            threading.Thread(target=self._watch, name="fairflare-task-watch", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()

    def ask(self) -> bool:
        """Whether the task is gone, asked now; False where the server does not answer."""
        if self._task and not self.gone:
            self.gone = self._is_unknown()
        return self.gone

    def _watch(self) -> None:
        started = self._clock()
        while not self._left.wait(max(PERIOD, (self._clock() - started) / SHARE)):
            if self.ask():
                return

    def _is_unknown(self) -> bool:
        request = Shareable()
        request.set_header(ReservedKey.TASK_ID, self._task)
        with self._engine.new_context() as fl_ctx:
            replies = self._engine.send_aux_request(
                targets=[FQCN.ROOT_SERVER],
                topic=ReservedTopic.TASK_CHECK,
                request=request,
                timeout=PATIENCE,
                fl_ctx=fl_ctx,
                optional=True,
            )
        reply = (replies or {}).get(FQCN.ROOT_SERVER)
        return isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.TASK_UNKNOWN
