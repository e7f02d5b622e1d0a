# SPDX-License-Identifier: Apache-2.0
"""A name that does not exist: what is offered instead."""

from __future__ import annotations

from cases import each
from fairflare.core.validation import MOST_OFFERED, close, unlisted

KEYS = ("train.batch_size", "train.lr", "train.rounds", "rule.q", "probe.sharpness.rho_max")


@each(
    "name, known, expected",
    [
        ("roundz", ["lr", "rounds"], ["rounds"]),
        ("FedAvg", ["fedavg", "fedbn"], ["fedavg"]),
        ("train.batchsize", KEYS, ["train.batch_size"]),
        ("train.learning_rate", KEYS, ["train.lr"]),
        ("learning_rate", ["lr", "rounds"], ["lr"]),
        ("server.rho_max", KEYS, ["probe.sharpness.rho_max"]),
        ("zzz", KEYS, []),
        ("", KEYS, []),
        (3, KEYS, []),
        ("x" * 10_000, KEYS, []),
    ],
)
def test_the_closest_name_is_offered(name: object, known: list[str], expected: list[str]) -> None:
    assert close(name, known) == expected


def test_few_names_are_offered() -> None:
    assert len(close("site10", [f"site{n}" for n in range(100)])) <= MOST_OFFERED


def test_a_name_like_no_other_is_answered_with_all_of_them() -> None:
    assert unlisted("key", "zzz", ["lr", "rounds"]) == "unknown key 'zzz'; known: lr, rounds"
    assert unlisted("task:", "hart", ["heart", "ist"]) == "unknown task: 'hart'; did you mean heart?"
