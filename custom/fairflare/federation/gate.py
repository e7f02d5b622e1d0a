# SPDX-License-Identifier: Apache-2.0
"""The update gate: every answer is accepted whole or rejected with a code before any arithmetic sees it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fairflare.contracts import Reply, Scalar, StateDict
from fairflare.federation.messages import Answer

MOST_EXAMPLES = 2**40
LONGEST_NAME = 64
MOST_METRICS = 64


@dataclass(frozen=True)
class Rejection:
    """Why a site's answer does not count in this round."""

    site: str
    code: str
    detail: str


class _Refused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail


@dataclass(frozen=True)
class Gate:
    """Checks answers against the model they answer to.

    Attributes:
        trainable: names of the model's trainable parameters.
        scalars: what the method's probes report, with ranges.
        wanted: names of the scalars that the rule cannot do without.
    """

    trainable: frozenset[str]
    scalars: tuple[Scalar, ...] = ()
    wanted: tuple[str, ...] = ()

    def inspect(
        self, answers: Sequence[Answer], model: StateDict, round: int, declared: Mapping[str, int]
    ) -> tuple[list[Reply], list[Rejection]]:
        """Accepted replies sorted by site, and the rejections; of several answers of a site the first one counts.

        Args:
            answers: in any order.
            model: w^t, which fixes keys, shapes and types.
            round: the number of the round that was asked for.
            declared: n_k that each known site declared when it first answered.
        """
        replies, rejections, seen = [], [], set()
        for answer in answers:
            try:
                if answer.site in seen:
                    raise _Refused("duplicate", "a second answer in the same round was ignored")
                seen.add(answer.site)
                replies.append(self._accept(answer, model, round, declared.get(answer.site)))
            except _Refused as refused:
                rejections.append(Rejection(answer.site, refused.code, refused.detail))
        return sorted(replies, key=lambda r: r.site), sorted(rejections, key=lambda r: (r.site, r.code))

    def _accept(self, answer: Answer, model: StateDict, round: int, declared: int | None) -> Reply:
        if answer.error:
            raise _Refused("site_error", answer.error)
        if isinstance(answer.round, bool) or answer.round != round:
            raise _Refused("stale", f"expected an answer to round {round}, got {answer.round!r}")
        return Reply(
            site=answer.site,
            update=_checked_update(answer, model),
            n_examples=_checked_count(answer.n_examples, declared),
            scalars=self._checked_scalars(answer.scalars),
            metrics=checked_metrics(answer.metrics),
            trainable=self.trainable,
        )

    def _checked_scalars(self, scalars: Any) -> dict[str, float]:
        scalars = scalars if isinstance(scalars, Mapping) else {}
        known = {s.name: s for s in self.scalars}
        for name in self.wanted:
            if name not in scalars:
                raise _Refused("scalar_missing", f"scalar {name!r}: expected a number, got none")
        extra = sorted(map(str, set(scalars) - set(known)))
        if extra:
            raise _Refused("scalar_unknown", f"scalar {_short(extra[0])!r}: not one that this method's probes report")
        return {name: _in_range(known[name], value) for name, value in sorted(scalars.items())}


def _in_range(spec: Scalar, value: Any) -> float:
    if not is_number(value):
        raise _Refused("scalar_type", f"scalar {spec.name!r}: expected a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise _Refused("scalar_nonfinite", f"scalar {spec.name!r}: expected a finite number, got {value}")
    if not spec.low <= value <= spec.high:
        raise _Refused("scalar_range", f"scalar {spec.name!r}: expected {spec.low:g} to {spec.high:g}, got {value:g}")
    return float(value)


def _checked_count(value: Any, declared: int | None) -> int:
    if not is_number(value) or not math.isfinite(value) or value != int(value) or not 0 < value <= MOST_EXAMPLES:
        raise _Refused("n_examples", f"n_examples: expected a whole number above 0, got {_short(repr(value))}")
    if declared is not None and value > declared:
        raise _Refused("count_mismatch", f"n_examples: expected at most the declared {declared}, got {int(value)}")
    return int(value)


def _checked_update(answer: Answer, model: StateDict) -> StateDict:
    """The update with the model's own types; nothing of it is kept when any entry is wrong."""
    if answer.update_kind != "diff":
        raise _Refused("params_type", f"expected a difference, got {_short(str(answer.update_kind))!r}")
    expected = {key: value for key, value in model.items() if value.is_floating_point()}
    if not isinstance(answer.update, Mapping):
        raise _Refused("keys", f"expected {len(expected)} tensors, got {type(answer.update).__name__}")
    missing, extra = sorted(set(expected) - set(answer.update)), sorted(map(str, set(answer.update) - set(expected)))
    if missing or extra:
        what = f"missing {_short(missing[0])!r}" if missing else f"unexpected {_short(extra[0])!r}"
        raise _Refused("keys", f"expected the model's {len(expected)} floating-point entries, {what}")
    return {key: _checked_tensor(key, answer.update[key], value) for key, value in expected.items()}


def _checked_tensor(key: str, value: Any, like: torch.Tensor) -> torch.Tensor:
    # Site privacy filters (FLARE's SVT) turn tensors into numpy arrays: that is no fault of the site.
    tensor = torch.from_numpy(value) if type(value).__module__ == "numpy" and hasattr(value, "shape") else value
    if not isinstance(tensor, torch.Tensor):
        raise _Refused("dtype", f"{key}: expected a tensor, got {type(value).__name__}")
    if tuple(tensor.shape) != tuple(like.shape):
        raise _Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise _Refused("dtype", f"{key}: expected {like.dtype}, got {tensor.dtype}")
    tensor = tensor.detach().to(device="cpu", dtype=like.dtype)
    # The extremes of a tensor with a NaN are NaN: one pass, no mask.
    if tensor.numel() and not all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor)):
        raise _Refused("nonfinite", f"{key}: expected finite numbers, got NaN or infinity")
    return tensor


def checked_metrics(metrics: Any) -> dict[str, float]:
    """The finite numbers with short names among ``metrics``; they inform people, so a bad one is just dropped."""
    if not isinstance(metrics, Mapping):
        return {}
    kept = {str(k): float(v) for k, v in metrics.items() if len(str(k)) <= LONGEST_NAME and is_number(v)}
    return {name: value for name, value in sorted(kept.items())[:MOST_METRICS] if math.isfinite(value)}


def is_number(value: Any) -> bool:
    """A real number (numpy's included), not a bool and not text."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
