# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/what-leaves.md, made of the schema of answers and of the registry."""

import math

from fairflare.core.schema import FURTHER, Spec, answer_fields
from fairflare.studies.describe import leaving_rows


def answer_rows() -> list[dict[str, str]]:
    """What every answer of a site may hold, whatever the method: one row per field of the schema that it fills."""
    rows = []
    for name, spec in answer_fields().items():
        if spec.carried not in ("transport", "params_type"):
            exchanges = ", ".join(WORDS.get(one, one) for one in spec.exchanges)
            row = {"field": name, "exchanges": exchanges, "range": _range(spec)}
            row["secure sums"] = "only with them" if spec.only_secure else SECURE[spec.secure]
            rows.append({**row, "meaning": spec.meaning})
    return rows


WORDS = {FURTHER: "exchanges of plugins"}
SECURE = {"plain": "in the clear", "later": "in the clear, with the update", "masked": "masked"}
SECURE |= {"hidden": "stays at the site"}
"""What a table says of ``schema.Secure``."""


def _range(spec: Spec) -> str:
    """In words: the numbers of a field, or where their ranges come from."""
    if math.isfinite(spec.high):
        whole = "whole number, " if spec.kind == "count" else ""
        return f"{whole}{spec.low:g} to {spec.high:g}" + (", at most as declared" if spec.declared else "")
    return RANGES[spec.kind_in(spec.exchanges[-1])]


RANGES = {
    "round": "the round that was asked for",
    "update": "finite; size by `max_norm_ratio`",
    "numbers": "by the parts, below",
    "tensors": "by the parts, below",
    "evaluation": "by the task; 0 to 1e+06 for losses, 0 to 1 for others",
    "sealed": "bytes of a fixed length; text of a fixed form",
    "signed": "a hash, a certificate and a signature",
    "sums": "so many finite numbers of at least 0 as the step says, of a form that cases can have",
    "clinical": "counts of at least the site's minimum; means by their meaning",
    "adjusted": "by the step, [after.md](after.md)",
    "reports": "by the exchange",
    "benefit": "0 to 1, -1 to 1 for differences, [benefit.md](benefit.md)",
}


def answer_table() -> str:
    """``answer_rows`` as Markdown."""
    return _as_table(answer_rows(), code=1)


def leaving_table() -> str:
    """``leaving_rows`` as Markdown."""
    return _as_table(leaving_rows(), code=2)


def _as_table(rows: list[dict[str, str]], code: int) -> str:
    """The rows under their keys, the first ``code`` columns as code."""
    cells = ([f"`{text}`" if k < code else text for k, text in enumerate(row.values())] for row in rows)
    head = [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in cells)])
