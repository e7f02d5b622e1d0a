# SPDX-License-Identifier: Apache-2.0
"""What sites say of themselves before the first round, and when it is no good enough to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairflare.federation.checks import (
    Refused,
    Rejection,
    check_tag,
    checked_count,
    first_good,
    is_number,
    left_out,
    one_line,
)
from fairflare.federation.messages import Answer
from fairflare.findings import KINDS, Finding, unpacked
from fairflare.versions import NAMES, TEXT, differences


@dataclass(frozen=True)
class Statement:
    """A site's answer to "preflight".

    Attributes:
        n_examples: n_k; None where its data cannot be used.
        findings: in words that every site may read, errors first.
        versions: name -> version, for the audit log.
    """

    n_examples: int | None
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """For the audit log."""
        return {"findings": [f.public for f in self.findings], "versions": dict(self.versions)}


def inspect_preflight(
    answers: Sequence[Answer], here: Mapping[str, str]
) -> tuple[dict[str, Statement], list[Rejection]]:
    """Site -> its statement, compared with the server's versions ``here``, and the rejections."""
    found, refused, _ = first_good(answers, lambda answer: _checked(answer, here))
    return {site: found[site] for site in sorted(found)}, left_out(refused, found)


def refusal(statements: Mapping[str, Statement], rejections: Sequence[Rejection]) -> str:
    """Why the run cannot start, in one line; empty when it can. A silent site is no reason: others can go on."""
    lines = [f"{r.site}: {r.code} ({r.detail})" for r in rejections if r.code != "no_answer"]
    lines += [f"{site}: {line}" for site, statement in statements.items() for line in _errors(statement)]
    return "preflight: " + "; ".join(lines) if lines else ""


def turned_away(statements: Mapping[str, Statement], rejections: Sequence[Rejection]) -> dict[str, Rejection]:
    """Site -> why it may not join a federation that is under way."""
    lines = {site: "; ".join(_errors(statement)) for site, statement in statements.items()}
    found = {site: Rejection(site, "preflight", one_line(line)) for site, line in lines.items() if line}
    return found | {r.site: r for r in rejections}


def _errors(statement: Statement) -> list[str]:
    errors = [f for f in statement.findings if f.level == "error"]
    return [f"{f.split + ': ' if f.split else ''}{f.code}: {f.text}" for f in errors]


def _checked(answer: Answer, here: Mapping[str, str]) -> Statement:
    check_tag(answer, None)
    told = answer.metrics
    if not isinstance(told, Mapping) or not isinstance(told.get("findings"), Mapping):
        raise Refused("malformed", "preflight: expected findings and versions")
    counts, there = told["findings"], told.get("versions")
    for name, count in counts.items():
        if name not in KINDS or not is_number(count) or not 0 <= count <= 2**40:
            raise Refused("malformed", "preflight: expected known findings with counts")
    if not isinstance(there, Mapping) or set(there) != set(NAMES) or not all(_is_version(v) for v in there.values()):
        raise Refused("malformed", f"preflight: expected versions of {', '.join(NAMES)}")
    findings = [*_of_versions(here, there), *unpacked(counts)]
    broken = any(f.level == "error" for f in findings)
    n_examples = None if broken and answer.n_examples is None else checked_count(answer.n_examples, None)
    return Statement(n_examples, tuple(sorted(findings, key=lambda f: f.level)), dict(there))


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and TEXT.fullmatch(value) is not None


def _of_versions(here: Mapping[str, str], there: Mapping[str, str]) -> list[Finding]:
    """Another version of this package is an error, one of a library a warning: hospitals rarely agree on those."""
    own, others = differences(here, there)
    found = []
    for level, names in (("error", own), ("warning", others)):
        if names:
            text = ", ".join(f"{name} {there[name][:12]}, the server has {here[name][:12]}" for name in names)
            found.append(Finding(level, "versions", "", len(names), text))  # type: ignore[arg-type]
    return found
