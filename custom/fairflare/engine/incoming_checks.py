# SPDX-License-Identifier: Apache-2.0
"""A site's look at what the server sent, before any of it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairflare.core.schema import Instruction, Slot, instruction_fields, wrong_tensors
from fairflare.engine.checks import is_number


def check_received(instruction: Instruction, tensors: Mapping[str, Slot]) -> None:
    """Raise ValueError unless orders are finite numbers, tensors those that the site's parts declare, counts whole.

    Args:
        instruction: as it arrived; the model is held against the network's entries when it is loaded.
        tensors: "name/entry" -> slot of what the parts receive. A rule may send none of them, or not yet.
    """
    for name, spec in instruction_fields().items():
        if check := CHECKS.get(str(spec.kind)):
            check(getattr(instruction, name), tensors)


def _check_orders(orders: Any, tensors: Mapping[str, Slot]) -> None:
    named = isinstance(orders, Mapping) and all(isinstance(name, str) for name in orders)
    if not named or not all(is_number(value) and abs(value) < float("inf") for value in orders.values()):
        raise ValueError("orders: expected finite numbers by name")


def _check_tensors(received: Any, tensors: Mapping[str, Slot]) -> None:
    wrong = wrong_tensors(received, tensors)
    if wrong and wrong.code != "tensor_missing":
        raise ValueError(f"received tensor {wrong.name or 'names'}: {wrong.why}")


def _check_count(value: Any, tensors: Mapping[str, Slot]) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError("counted, phase, best: expected a number from 0 on")


CHECKS: Mapping[str, Callable[[Any, Mapping[str, Slot]], None]] = {
    "orders": _check_orders,
    "tensors": _check_tensors,
    "count": _check_count,
}
