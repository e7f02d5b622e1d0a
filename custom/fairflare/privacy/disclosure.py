# SPDX-License-Identifier: Apache-2.0
"""What leaves a site in a run with a privacy budget, field by field: the one list that every part of the package reads.

A site builds its answer by ``disclosed`` and its egress check compares with it; docs/privacy.md prints ``FIELDS`` and
``EXCEPTIONS``; tests/laws/test_non_interference.py trains on two neighbouring data sets and accepts a difference in
no other field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from fairflare.core.schema import Answer

Budget = Literal["", "record", "hospital"]
"""Whom a run's budget protects: nobody, each record of a site (``dp-sgd``), or a site's updates (``site_epsilon``)."""
Treatment = Literal["public", "noised", "derived", "withheld", "refused"]
"""Of a field: it depends on no data; a mechanism of the budget makes it; it follows from public and noised values; the
site leaves it empty; no run with this budget has it."""
FIELDS: Mapping[str, tuple[Treatment, Treatment]] = {
    "site": ("public", "public"),
    "round": ("public", "public"),
    "update": ("noised", "noised"),
    "update_kind": ("public", "public"),
    "n_examples": ("noised", "public"),
    "scalars": ("derived", "refused"),
    "steps": ("derived", "public"),
    "tensors": ("refused", "refused"),
    "metrics": ("noised", "withheld"),
    "personal": ("withheld", "withheld"),
    "seconds": ("withheld", "withheld"),
    "sealed": ("derived", "derived"),
    "sums": ("refused", "refused"),
    "adjusted": ("refused", "refused"),
    "benefit": ("refused", "refused"),
    "reports": ("refused", "refused"),
    "clinical": ("withheld", "withheld"),
    "signed": ("derived", "derived"),
    "error": ("public", "public"),
}
"""Field of an ``Answer`` -> its treatment under a budget of records, and of hospitals."""
EXCEPTIONS: Mapping[str, str] = {
    "participation": "whether a site takes part: its data can be used or not, its budget is spent or not",
    "time": "when a site's answers arrive",
    "choice": "the choice of settings, and of one run among several",
    "published": "how a published data set is scaled, from its own training rows: those are public",
}
"""What depends on data past the budget, and why a hospital may judge it: signed by the project, see docs/privacy.md."""
EQUAL = 1
"""The number of examples that every site reports under a hospital's budget: all weigh alike."""
WITHOUT = ("", "withheld", "refused")


def treatment(field: str, budget: Budget) -> Treatment:
    """How ``budget``, which is not "", treats a field of an answer."""
    return FIELDS[field][0 if budget == "record" else 1]


def disclosed(answer: Answer, task: str, budget: Budget) -> Answer:
    """``answer`` to ``task`` without what the budget does not cover; noise is not added here.

    Of metrics the versions of preflight stay, and under a budget of records noised results on the test split.
    """
    if not budget:
        return answer
    empty = {one.name: _default(one) for one in dataclasses.fields(Answer) if treatment(one.name, budget) in WITHOUT}
    metrics: Any = answer.metrics if isinstance(answer.metrics, Mapping) else {}
    if task == "preflight":
        kept: dict[str, Any] = {"findings": {}, "versions": metrics.get("versions", {})} if metrics else {}
    elif task == "evaluate" and budget == "record":
        kept = {split: metrics[split] for split in ("test", "n") if split in metrics}
    else:
        kept = {}
    changed: dict[str, Any] = {**empty, "metrics": kept}
    if budget == "hospital":
        changed["n_examples"] = None if answer.n_examples is None else EQUAL
        changed["steps"] = None if answer.steps is None else 0
    return dataclasses.replace(answer, **changed)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
