# SPDX-License-Identifier: Apache-2.0
"""Instructions and answers as FLARE's ``FLModel``, both ways.

preflight down: empty weights;  up: findings and versions as metrics, meta {n_examples, sealed: a key}
train     down: FULL weights, round, total rounds, meta {fairflare: 1, orders}
          up:   DIFF weights (so that a site's privacy filters see a difference), metrics,
                meta {fairflare: 1, n_examples, scalars, seconds}
compare   down: FULL weights of the anchor, as "train";  up: meta {scalars, seconds}, no weights
sum       down: empty weights, meta {sealed: attempt, statements};  up: meta {sealed: {sum}}, no weights
weigh     down: empty weights, meta {sealed: {sums}};  up: as "train", weighted and without scalars
evaluate  down: FULL weights;  up: metrics per split, no weights
"""

from __future__ import annotations

from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from fairflare.contracts import Round
from fairflare.federation.messages import Answer, Instruction

VERSION = 1
ERROR_HEADER = "fairflare_error"
ANSWERED = {"answered": 1.0}

# Without it FLARE sends tensors as empty ones and says nothing.
fobs.register(TensorDecomposer)


def instruction_to_model(instruction: Instruction) -> FLModel:
    """The task data of one instruction."""
    return FLModel(
        params={key: value.contiguous() for key, value in instruction.model.items()},
        params_type=ParamsType.FULL,
        current_round=instruction.round.number,
        total_rounds=instruction.round.total,
        meta={"fairflare": VERSION, "orders": dict(instruction.orders), "sealed": dict(instruction.sealed)},
    )


def instruction_from_shareable(task_name: str, shareable: Shareable) -> Instruction:
    """Read ``instruction_to_model`` back at a site; raises ValueError when server and site speak different versions."""
    model = FLModelUtils.from_shareable(shareable)
    version = (model.meta or {}).get("fairflare")
    if version != VERSION:
        raise ValueError(f"message version: expected {VERSION}, got {version!r}")
    round = Round(model.current_round, model.total_rounds)
    meta = model.meta
    return Instruction(task_name, round, model.params, meta.get("orders", {}), meta.get("sealed", {}))


def answer_to_shareable(answer: Answer) -> Shareable:
    """The task result of one answer."""
    model = FLModel(
        params={key: value.contiguous() for key, value in answer.update.items()} if answer.update is not None else None,
        params_type=ParamsType.DIFF if answer.update is not None else None,
        # FLARE sends nothing without weights or metrics; a second answer has neither.
        metrics=dict(answer.metrics) or (None if answer.update is not None else ANSWERED),
        current_round=answer.round,
        meta={
            "fairflare": VERSION,
            "round": answer.round,
            "n_examples": answer.n_examples,
            "scalars": dict(answer.scalars),
            "seconds": dict(answer.seconds),
            "sealed": dict(answer.sealed),
        },
    )
    return FLModelUtils.to_shareable(model)


def answer_from_model(model: FLModel) -> Answer:
    """What a site sent, unchecked; the site's name is the one that FLARE authenticated."""
    meta = model.meta or {}
    return Answer(
        site=meta["client_name"],
        round=meta.get("round"),
        update=model.params,
        update_kind="diff" if model.params_type == ParamsType.DIFF else str(model.params_type),
        n_examples=meta.get("n_examples"),
        scalars=meta.get("scalars", {}),
        metrics=model.metrics or {},
        seconds=meta.get("seconds", {}),
        sealed=meta.get("sealed", {}),
    )
