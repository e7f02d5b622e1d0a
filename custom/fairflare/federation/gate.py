# SPDX-License-Identifier: Apache-2.0
"""The update gate: every answer is accepted whole or rejected with a code before any arithmetic sees it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fairflare.contracts import GROUP_COUNT, Reply, Scalar, StateDict
from fairflare.federation.checks import (
    MOST_EXAMPLES,
    Refused,
    Rejection,
    check_tag,
    checked_count,
    checked_metrics,
    first_good,
    is_number,
    left_out,
    materialized,
    short,
)
from fairflare.federation.messages import Answer
from fairflare.privacy.egress import all_finite


@dataclass(frozen=True)
class Verdict:
    """What the gate made of one exchange.

    Attributes:
        replies: accepted, sorted by site.
        rejections: sorted by site; a site with an accepted answer has none.
        flags: site -> remarks on an accepted answer, e.g. "zero_update".
    """

    replies: list[Reply]
    rejections: list[Rejection]
    flags: dict[str, list[str]]


@dataclass(frozen=True)
class Gate:
    """Checks answers against the model they answer to.

    Attributes:
        trainable: names of the model's trainable parameters.
        scalars: what the method's probes report, with ranges.
        wanted: names of the scalars that the rule cannot do without.
        anchored: what probes report in a round's second exchange, with ranges.
        max_norm_ratio: an update whose L2 norm over trainable parameters exceeds the median of the round's updates by
            this factor is rejected, from three answers on.
    """

    trainable: frozenset[str]
    scalars: tuple[Scalar, ...] = ()
    wanted: tuple[str, ...] = ()
    anchored: tuple[Scalar, ...] = ()
    max_norm_ratio: float = 100.0

    def inspect(self, answers: Sequence[Answer], model: StateDict, round: int, declared: Mapping[str, int]) -> Verdict:
        """Accept or reject every answer; of several good answers of a site the first one counts.

        Args:
            answers: in any order.
            model: w^t, which fixes keys, shapes and types.
            round: the number of the round that was asked for.
            declared: n_k that each known site declared at the start.
        """
        accepted, refused, repeated = first_good(answers, lambda a: self._accept(a, model, round, declared.get(a.site)))
        flags: dict[str, list[str]] = {}
        for site in repeated:
            flags.setdefault(site, []).append("duplicate")
        self._reject_outliers(accepted, refused, flags)
        replies = [accepted[site] for site in sorted(accepted)]
        return Verdict(replies, left_out(refused, accepted), {site: flags[site] for site in sorted(flags)})

    def inspect_second(
        self, answers: Sequence[Answer], round: int
    ) -> tuple[dict[str, dict[str, float]], list[Rejection]]:
        """Site -> the scalars of its answer to "compare", and the rejections."""

        def accept(answer: Answer) -> dict[str, float]:
            check_tag(answer, round)
            return _checked_scalars(answer.scalars, self.anchored, ())

        found, refused, _ = first_good(answers, accept)
        return found, left_out(refused, found)

    def _accept(self, answer: Answer, model: StateDict, round: int, declared: int | None) -> Reply:
        check_tag(answer, round)
        n_examples = checked_count(answer.n_examples, declared)
        scalars = _checked_scalars(answer.scalars, self.scalars, self.wanted)
        _check_group_counts(scalars, n_examples)
        return Reply(
            site=answer.site,
            update=_checked_update(answer, model),
            n_examples=n_examples,
            scalars=scalars,
            metrics=checked_metrics(answer.metrics),
            trainable=self.trainable,
        )

    def _reject_outliers(
        self, accepted: dict[str, Reply], refused: dict[str, Rejection], flags: dict[str, list[str]]
    ) -> None:
        norms = {site: _norm(reply, self.trainable) for site, reply in accepted.items()}
        for site in [s for s, norm in norms.items() if norm == 0]:
            flags.setdefault(site, []).append("zero_update")
        middle = statistics.median(norms.values()) if len(norms) >= 3 else 0.0
        for site, norm in norms.items():
            if middle and norm > self.max_norm_ratio * middle:
                detail = (
                    f"update norm: expected at most {self.max_norm_ratio:g} x the median {middle:.3g}, got {norm:.3g}"
                )
                refused[site] = Rejection(site, "norm", detail)
                del accepted[site]


def inspect_evaluation(
    answers: Sequence[Answer], round: int, groups: Sequence[str] = ()
) -> tuple[dict[str, dict[str, Any]], list[Rejection]]:
    """Site -> split -> metrics, and "groups" -> split -> group -> {"n", "value"}, and the rejections."""
    found, refused, _ = first_good(answers, lambda a: _checked_splits(a, round, groups))
    return {site: found[site] for site in sorted(found)}, left_out(refused, found)


def _checked_splits(answer: Answer, round: int, groups: Sequence[str]) -> dict[str, Any]:
    check_tag(answer, round)
    if not isinstance(answer.metrics, Mapping):
        raise Refused("metrics", f"expected metrics per split, got {type(answer.metrics).__name__}")
    told = answer.metrics.get("groups")
    told = told if isinstance(told, Mapping) else {}
    found = {split: checked_metrics(answer.metrics.get(split)) for split in ("val", "test", "n")}
    found["groups"] = {split: _checked_groups(told.get(split), groups) for split in ("val", "test")}
    for split, cells in found["groups"].items():
        total = sum(cell["n"] for cell in cells.values())
        if total > found["n"].get(split, 0.0):
            raise Refused("count_mismatch", f"groups of {split}: {total:g} examples, more than the split has")
    return found


def _checked_groups(told: Any, groups: Sequence[str]) -> dict[str, dict[str, float]]:
    """The groups of the run that come with a size of at least 1 and a value in [0, 1]."""
    told = told if isinstance(told, Mapping) else {}
    usable = {}
    for group in groups:
        cell = told.get(group)
        if not isinstance(cell, Mapping) or not is_number(cell.get("n")) or not is_number(cell.get("value")):
            continue
        if 1 <= cell["n"] <= MOST_EXAMPLES and 0 <= cell["value"] <= 1:
            usable[group] = {"n": float(cell["n"]), "value": float(cell["value"])}
    return usable


def _norm(reply: Reply, trainable: frozenset[str]) -> float:
    tensors = [value for key, value in reply.update.items() if key in trainable]
    return math.sqrt(sum(float(torch.linalg.vector_norm(t.double())) ** 2 for t in tensors))


def _checked_scalars(scalars: Any, specs: Sequence[Scalar], wanted: Sequence[str]) -> dict[str, float]:
    scalars = scalars if isinstance(scalars, Mapping) else {}
    known = {s.name: s for s in specs}
    for name in wanted:
        if name not in scalars:
            raise Refused("scalar_missing", f"scalar {name!r}: expected a number, got none")
    extra = sorted(map(str, set(scalars) - set(known)))
    if extra:
        raise Refused("scalar_unknown", f"scalar {short(extra[0])!r}: not one that this method's probes report")
    return {name: _in_range(known[name], value) for name, value in sorted(scalars.items())}


def _check_group_counts(scalars: Mapping[str, float], n_examples: int) -> None:
    """Groups are parts of the training split: whole numbers whose sum is not above its size."""
    counts = [value for name, value in scalars.items() if name.startswith(f"{GROUP_COUNT}/")]
    if any(value != int(value) for value in counts) or sum(counts) > n_examples:
        raise Refused("count_mismatch", f"group_count: expected whole numbers of at most {n_examples} in all")


def _in_range(spec: Scalar, value: Any) -> float:
    if not is_number(value):
        raise Refused("scalar_type", f"scalar {spec.name!r}: expected a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise Refused("scalar_nonfinite", f"scalar {spec.name!r}: expected a finite number, got {value}")
    if not spec.low <= value <= spec.high:
        raise Refused("scalar_range", f"scalar {spec.name!r}: expected {spec.low:g} to {spec.high:g}, got {value:g}")
    return float(value)


def _checked_update(answer: Answer, model: StateDict) -> StateDict:
    """The update with the model's own types; nothing of it is kept when any entry is wrong."""
    if answer.update_kind != "diff":
        raise Refused("params_type", f"expected a difference, got {short(str(answer.update_kind))!r}")
    expected = {key: value for key, value in model.items() if value.is_floating_point()}
    if not isinstance(answer.update, Mapping):
        raise Refused("keys", f"expected {len(expected)} tensors, got {type(answer.update).__name__}")
    missing, extra = sorted(set(expected) - set(answer.update)), sorted(map(str, set(answer.update) - set(expected)))
    if missing or extra:
        what = f"missing {short(missing[0])!r}" if missing else f"unexpected {short(extra[0])!r}"
        raise Refused("keys", f"expected the model's {len(expected)} floating-point entries, {what}")
    return {key: _checked_tensor(key, answer.update[key], value) for key, value in expected.items()}


def _checked_tensor(key: str, value: Any, like: torch.Tensor) -> torch.Tensor:
    # Site privacy filters (FLARE's SVT) turn tensors into numpy arrays: that is no fault of the site.
    value = materialized(value)
    tensor = torch.from_numpy(value) if type(value).__module__ == "numpy" and hasattr(value, "shape") else value
    if not isinstance(tensor, torch.Tensor):
        raise Refused("dtype", f"{key}: expected a tensor, got {type(value).__name__}")
    if tuple(tensor.shape) != tuple(like.shape):
        raise Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise Refused("dtype", f"{key}: expected {like.dtype}, got {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise Refused("dtype", f"{key}: expected a dense tensor, got {tensor.layout}")
    tensor = tensor.detach().to(device="cpu", dtype=like.dtype)
    if key.endswith("running_var") and bool((like + tensor < -1e-6).any()):
        raise Refused("variance", f"{key}: expected a difference that leaves the variance >= 0")
    if not all_finite(tensor):
        raise Refused("nonfinite", f"{key}: expected finite numbers, got NaN or infinity")
    return tensor
