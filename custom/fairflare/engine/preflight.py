# SPDX-License-Identifier: Apache-2.0
"""What sites say of themselves before the first round, and when it is no good enough to start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import Any

from fairflare.core.findings import BANDS, CODES, KINDS, SPLIT_NAMES, Finding, accept, may_go_on, unpacked, worst_first
from fairflare.core.manifest import NAMES, TEXT, differences
from fairflare.core.schema import Answer
from fairflare.core.validation import flag, in_order, some
from fairflare.engine.checks import Refused, Rejection, first_good, is_number, left_out, one_line
from fairflare.engine.field_checks import checked_count

MANY, TOO_MANY = 20, 100
"""So many times what the other sites usually declare is a warning, and an error that a run may accept."""
ORDINARY, LITTLE = 1000, 10
SMALL = ("few_examples", "empty_split", "one_class")
"""Codes of what no site can mend that has no more patients."""
FEW, LOW_BANDS = 3, ("", "10-19")
"""Such sites that are named with the flag that leaves them out; bands of counts in which one class is no mistake."""
PLACE = {split: k for k, split in enumerate(("", *SPLIT_NAMES))}
MOST_LINES, SHOWN_LINES = 20, 5
"""Findings that a refusal names, and of more than that how many; all of them stand in the log."""


@dataclass(frozen=True)
class Statement:
    """A site's answer to "preflight".

    Attributes:
        n_examples: n_k; None where its data cannot be used.
        findings: in words that every site may read, errors first.
    """

    n_examples: int | None
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"findings": [f.public for f in self.findings], "versions": dict(self.versions)}


def inspect_preflight(
    answers: Sequence[Answer],
    here: Mapping[str, str],
    declared: Mapping[str, int] | None = None,
    accepted: Collection[str] = (),
) -> tuple[dict[str, Statement], list[Rejection]]:
    """Site -> its statement, compared with the server's versions and with the other sites', and the rejections.

    ``declared``: site -> examples that sites have declared before; the first word counts.
    """
    found, refused, _ = first_good(answers, lambda answer: _checked(answer, here, accepted), None)
    sizes = {site: s.n_examples for site, s in found.items() if s.n_examples} | dict(declared or {})
    statements = {}
    for site in sorted(found):
        own = accept(_of_size(site, sizes), accepted)
        statements[site] = replace(found[site], findings=tuple(worst_first([*found[site].findings, *own])))
    return statements, left_out(refused, found)


def too_small(statements: Mapping[str, Statement]) -> dict[str, Rejection]:
    """Site -> that it has too few patients: it is left out where two others or more, and most of all, remain."""
    found = {}
    for site, one in statements.items():
        errors = [f for f in one.findings if f.level == "error"]
        few = all(
            f.code in SMALL[:2] or (f.code == SMALL[2] and f.band in LOW_BANDS and f.count < BANDS[1]) for f in errors
        )
        if errors and few:
            found[site] = Rejection(site, "preflight", f"too few patients: left out; {'; '.join(_errors(one))}")
    return found if may_go_on(len(statements) - len(found), len(found)) else {}


def refusal(statements: Mapping[str, Statement], rejections: Sequence[Rejection], spared: Collection[str] = ()) -> str:
    """Why the run cannot start, in one line; empty when it can. A silent site is no reason: others can go on.

    ``spared``: sites that are left out, see ``too_small``.
    """
    sites: dict[str, list[str]] = {}
    for rejection in rejections:
        if rejection.code != "no_answer":
            sites.setdefault(f"{rejection.code} ({rejection.detail})", []).append(rejection.site)
    for site, statement in statements.items():
        for line in _errors(statement) if site not in spared else ():
            sites.setdefault(line, []).append(site)
    lines = [f"{some(in_order(names))}: {line}" for line, names in sites.items()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:SHOWN_LINES], f"and {len(lines) - SHOWN_LINES} more"]
    return "preflight: " + "; ".join(lines) + _left_out(statements) if lines else ""


def _left_out(statements: Mapping[str, Statement]) -> str:
    """How sites that are too small are left out, where they are few and others remain; else empty."""
    codes = {site: {f.code for f in one.findings if f.level == "error"} for site, one in statements.items()}
    small = [site for site in in_order(codes) if codes[site] and codes[site] <= set(SMALL)]
    if not 0 < len(small) <= FEW or len(small) == len(codes):
        return ""
    return f"; left out with {' '.join(flag('without', site) for site in small)}"


def turned_away(statements: Mapping[str, Statement], rejections: Sequence[Rejection]) -> dict[str, Rejection]:
    """Site -> why it may not join a federation that is under way."""
    lines = {site: "; ".join(_errors(statement)) for site, statement in statements.items()}
    found = {site: Rejection(site, "preflight", one_line(line)) for site, line in lines.items() if line}
    return found | {r.site: r for r in rejections}


def _errors(statement: Statement) -> list[str]:
    """One line for each code of the errors, with the splits that have it."""
    kinds: dict[str, list[Finding]] = {}
    for one in statement.findings:
        if one.level == "error":
            kinds.setdefault(one.code, []).append(one)
    return [_one_line(code, found) for code, found in kinds.items()]


def _one_line(code: str, found: Sequence[Finding]) -> str:
    splits = [f"{f.split} {f.band}".strip() for f in sorted(found, key=lambda f: PLACE[f.split]) if f.split]
    text = CODES[code] if len(found) > 1 else found[0].text.removesuffix(f" ({found[0].band})")
    return f"{', '.join(splits) + ': ' if splits else ''}{code}: {text}"


def _checked(answer: Answer, here: Mapping[str, str], accepted: Collection[str]) -> Statement:
    content = answer.metrics
    if not isinstance(content, Mapping) or not isinstance(content.get("findings"), Mapping):
        raise Refused("malformed", "preflight: expected findings and versions")
    counts, there = content["findings"], content.get("versions")
    for name, count in counts.items():
        if name not in KINDS or not is_number(count) or count not in range(len(BANDS) + 1):
            raise Refused("malformed", "preflight: expected known findings with bands of counts")
        if name.startswith("accepted/") and name.rpartition("/")[2] not in accepted:
            raise Refused("malformed", "preflight: an error that this run does not accept")
    there = there if isinstance(there, Mapping) else {}
    if set(there) != set(NAMES) or not all(isinstance(text, str) and TEXT.fullmatch(text) for text in there.values()):
        raise Refused("malformed", f"preflight: expected versions of {', '.join(NAMES)}")
    findings = [*_of_versions(here, there), *unpacked(counts)]
    broken = any(f.level == "error" for f in findings)
    n_examples = None if broken and answer.n_examples is None else checked_count(answer.n_examples, None)
    return Statement(n_examples, tuple(worst_first(findings)), dict(there))


def _of_size(site: str, sizes: Mapping[str, int]) -> list[Finding]:
    """How many times more examples a site says it has than the others usually do: its weight grows with them."""
    others = [n for name, n in sizes.items() if name != site]
    if site not in sizes or not others:
        return []
    # One small site among large ones makes nobody outsized, nor do two that conspire outvote a third.
    usual = max(min(median_high(others), max(median_low(others), ORDINARY)), LITTLE)
    if sizes[site] <= MANY * usual:
        return []
    text = f"declares {sizes[site]} examples, more than {MANY} x the {usual} of the other sites"
    if sizes[site] <= TOO_MANY * usual:
        return [Finding("warning", "outsized", "train", 0, text)]
    return [Finding("error", "outsized", "train", 0, text.replace(f"{MANY} x", f"{TOO_MANY} x"))]


def _of_versions(here: Mapping[str, str], there: Mapping[str, str]) -> list[Finding]:
    """What cannot work together is an error, another library a warning: hospitals rarely agree on those."""
    own, others = differences(here, there)
    found = []
    for level, names in (("error", own), ("warning", others)):
        if names:
            text = ", ".join(f"{name} {there[name][:12]}, the server has {here[name][:12]}" for name in names)
            found.append(Finding(level, "versions", "", len(names), text))  # type: ignore[arg-type]  # one of the literal's values
    return found
