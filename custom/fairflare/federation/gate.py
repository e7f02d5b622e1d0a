# SPDX-License-Identifier: Apache-2.0
"""The update gate: every answer is accepted whole or rejected with a code before any arithmetic sees it."""

from __future__ import annotations

import math
import numbers
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fairflare.contracts import GROUP_COUNT, Reply, Scalar, StateDict
from fairflare.federation.messages import Answer
from fairflare.privacy.egress import all_finite

T = TypeVar("T")
MOST_EXAMPLES = 2**40
LONGEST = 64
MOST_METRICS = 64
LARGEST_METRIC = 1e12


@dataclass(frozen=True)
class Rejection:
    """Why a site's answer does not count in this round."""

    site: str
    code: str
    detail: str


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


class _Refused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, one_line(detail)


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
        accepted, refused, repeated = _first_good(
            answers, lambda a: self._accept(a, model, round, declared.get(a.site))
        )
        flags: dict[str, list[str]] = {}
        for site in repeated:
            flags.setdefault(site, []).append("duplicate")
        self._reject_outliers(accepted, refused, flags)
        replies = [accepted[site] for site in sorted(accepted)]
        return Verdict(replies, _left_out(refused, accepted), {site: flags[site] for site in sorted(flags)})

    def inspect_second(
        self, answers: Sequence[Answer], round: int
    ) -> tuple[dict[str, dict[str, float]], list[Rejection]]:
        """Site -> the scalars of its answer to "compare", and the rejections."""

        def accept(answer: Answer) -> dict[str, float]:
            _check_tag(answer, round)
            return _checked_scalars(answer.scalars, self.anchored, ())

        found, refused, _ = _first_good(answers, accept)
        return found, _left_out(refused, found)

    def _accept(self, answer: Answer, model: StateDict, round: int, declared: int | None) -> Reply:
        _check_tag(answer, round)
        n_examples = _checked_count(answer.n_examples, declared)
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
    found, refused, _ = _first_good(answers, lambda a: _checked_splits(a, round, groups))
    return {site: found[site] for site in sorted(found)}, _left_out(refused, found)


def inspect_counts(answers: Sequence[Answer]) -> tuple[dict[str, int], list[Rejection]]:
    """Site -> n_k of the answers to "declare", and the rejections."""
    found, refused, _ = _first_good(answers, _checked_declaration)
    return {site: found[site] for site in sorted(found)}, _left_out(refused, found)


def _first_good(
    answers: Sequence[Answer], check: Callable[[Answer], T]
) -> tuple[dict[str, T], dict[str, Rejection], list[str]]:
    """Site -> what ``check`` made of its first good answer; the first rejection per site; sites that went on."""
    found: dict[str, T] = {}
    refused: dict[str, Rejection] = {}
    repeated: list[str] = []
    for answer in answers:
        if answer.site in found:
            repeated.append(answer.site)
            continue
        try:
            found[answer.site] = check(answer)
        except _Refused as error:
            refused.setdefault(answer.site, Rejection(answer.site, error.code, error.detail))
        except Exception as error:  # an answer may hold anything: whatever breaks a check is no answer
            refused.setdefault(answer.site, Rejection(answer.site, "malformed", type(error).__name__))
    return found, refused, repeated


def _left_out(refused: Mapping[str, Rejection], found: Mapping[str, Any]) -> list[Rejection]:
    return [refused[site] for site in sorted(refused) if site not in found]


def _check_tag(answer: Answer, round: int | None) -> None:
    if answer.error:
        raise _Refused("site_error", str(answer.error))
    if round is not None and (type(answer.round) is not int or answer.round != round):
        raise _Refused("stale", f"expected an answer to round {round}, got {answer.round!r}")


def _checked_declaration(answer: Answer) -> int:
    _check_tag(answer, None)
    return _checked_count(answer.n_examples, None)


def _checked_splits(answer: Answer, round: int, groups: Sequence[str]) -> dict[str, Any]:
    _check_tag(answer, round)
    if not isinstance(answer.metrics, Mapping):
        raise _Refused("metrics", f"expected metrics per split, got {type(answer.metrics).__name__}")
    told = answer.metrics.get("groups")
    told = told if isinstance(told, Mapping) else {}
    found = {split: checked_metrics(answer.metrics.get(split)) for split in ("val", "test", "n")}
    found["groups"] = {split: _checked_groups(told.get(split), groups) for split in ("val", "test")}
    for split, cells in found["groups"].items():
        total = sum(cell["n"] for cell in cells.values())
        if total > found["n"].get(split, 0.0):
            raise _Refused("count_mismatch", f"groups of {split}: {total:g} examples, more than the split has")
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
            raise _Refused("scalar_missing", f"scalar {name!r}: expected a number, got none")
    extra = sorted(map(str, set(scalars) - set(known)))
    if extra:
        raise _Refused("scalar_unknown", f"scalar {_short(extra[0])!r}: not one that this method's probes report")
    return {name: _in_range(known[name], value) for name, value in sorted(scalars.items())}


def _check_group_counts(scalars: Mapping[str, float], n_examples: int) -> None:
    """Groups are parts of the training split: whole numbers whose sum is not above its size."""
    counts = [value for name, value in scalars.items() if name.startswith(f"{GROUP_COUNT}/")]
    if any(value != int(value) for value in counts) or sum(counts) > n_examples:
        raise _Refused("count_mismatch", f"group_count: expected whole numbers of at most {n_examples} in all")


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
    if callable(getattr(value, "materialize", None)):
        value = value.materialize()  # FLARE keeps large tensors on disk until someone looks at them
    tensor = torch.from_numpy(value) if type(value).__module__ == "numpy" and hasattr(value, "shape") else value
    if not isinstance(tensor, torch.Tensor):
        raise _Refused("dtype", f"{key}: expected a tensor, got {type(value).__name__}")
    if tuple(tensor.shape) != tuple(like.shape):
        raise _Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise _Refused("dtype", f"{key}: expected {like.dtype}, got {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise _Refused("dtype", f"{key}: expected a dense tensor, got {tensor.layout}")
    tensor = tensor.detach().to(device="cpu", dtype=like.dtype)
    if key.endswith("running_var") and bool((like + tensor < -1e-6).any()):
        raise _Refused("variance", f"{key}: expected a difference that leaves the variance >= 0")
    if not all_finite(tensor):
        raise _Refused("nonfinite", f"{key}: expected finite numbers, got NaN or infinity")
    return tensor


def checked_metrics(metrics: Any) -> dict[str, float]:
    """The usable numbers with short names among ``metrics``; they inform people, so a bad one is just dropped."""
    if not isinstance(metrics, Mapping):
        return {}
    kept = {one_line(str(name)): value for name, value in metrics.items() if len(str(name)) <= LONGEST}
    numbers = {name: float(kept[name]) for name in sorted(kept) if is_number(kept[name])}
    usable = {name: value for name, value in numbers.items() if abs(value) <= LARGEST_METRIC}
    return dict(list(usable.items())[:MOST_METRICS])


def is_number(value: Any) -> bool:
    """A real number (numpy's included) that fits a float; not a bool and not text."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except (OverflowError, ValueError, TypeError):
        return False
    return True


def one_line(text: str) -> str:
    """Printable, without control characters, and short: what sites send ends up in logs and terminals."""
    clean = "".join(c if c.isprintable() else " " for c in text[: 4 * LONGEST])
    return clean if len(clean) <= 2 * LONGEST else clean[: 2 * LONGEST - 1] + "…"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
