# SPDX-License-Identifier: Apache-2.0
"""Test sets that no site holds: the scores of the shared model there, after the last round and over the last rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairflare.report import svg
from fairflare.report.audit_reader import Trail
from fairflare.report.fairness import mean
from fairflare.report.section import Quantity, Section
from fairflare.report.sites import final
from fairflare.report.values import capital, label, number, text

Json = dict[str, Any]
KINDS = ("clean", "corrupted")


def test_sets_section(trail: Trail, headline: str, table_sets: Mapping[str, str]) -> Json:
    """Rows, unweighted means of each metric over the clean and the corrupted sets that have it, and ``last_rounds``."""
    rows, means = [], {}
    for name, found in trail.test_sets().items():
        metrics, about = found.get("metrics") or {}, {"corrupted": bool(found.get("corrupted")), "n": found.get("n")}
        rows.append({"name": name, **about, "value": number(metrics.get(headline)), "metrics": metrics})
    for kind in KINDS:
        each = [row["metrics"] for row in rows if row["corrupted"] is (kind == "corrupted")]
        names = sorted({name for m in each for name in m})
        means[f"{kind}_mean"] = {name: mean(m.get(name) for m in each) for name in names}
    return {"rows": rows, **means, "last": last_rounds(trail.scored, table_sets)}


def last_rounds(rounds: Sequence[Mapping[str, Any]], table_sets: Mapping[str, str]) -> Json:
    """Metrics on the task's two table test sets, mean over the last rounds that were scored (FedISM+'s tables: five).

    Args:
        table_sets: "clean" and "corrupted" -> the test set's name; empty where the task has none.

    Returns:
        rounds (how many), names, clean and corrupted (the means), and, where there are such sets, values ("clean"
        and "corrupted" -> metrics of each).
    """
    by_round = {record["round"]: record["test_sets"] for record in rounds if record.get("test_sets")}
    found: Json = {"rounds": len(by_round), "names": dict(table_sets), "clean": None, "corrupted": None}
    for kind, name in table_sets.items():
        scores = [sets[name]["metrics"] for _, sets in sorted(by_round.items()) if name in sets]
        found.setdefault("values", {})[kind] = scores
        names = set.intersection(*map(set, scores)) if scores else set()
        found[kind] = {m: sum(s[m] for s in scores) / len(scores) for m in sorted(names)} or None
    return found


def _last(kind: str) -> Callable[[Json], float | None]:
    def value(run: Json) -> float | None:
        sets = run["test_sets"]
        return number((sets["last"][kind] or sets[f"{kind}_mean"]).get(run["headline"]))

    return value


QUANTITIES = tuple(
    Quantity(k, f"{k} test set, last 5 rounds", _last(k), column=f"{k.capitalize()} tests") for k in KINDS
)


@svg.inline("tests")
def shared_test_points(figure: svg.Figure, summary: Json) -> str | None:
    found, metric = summary["test_sets"], label(summary["headline"], summary)
    rows = [row for row in found["rows"] if row["value"] is not None]
    if not rows:
        return None
    looks = {"clean": (svg.BLUE, "o"), "corrupted": (svg.ORANGE, "D")}
    series = [
        svg.Series(kind, [row["value"] if row["corrupted"] is (kind == "corrupted") else None for row in rows], *look)
        for kind, look in looks.items()
    ]
    svg.dots(figure, [row["name"] for row in rows], series, f"{metric}\n(shared test sets, {final(summary)})")
    means = {kind: found[f"{kind}_mean"].get(summary["headline"]) for kind in KINDS}
    ends = ", ".join(f"{kind} {text(mean)}" for kind, mean in means.items() if mean is not None)
    return f"{capital(metric)} on shared test sets: {ends}"


SECTION = Section("test-sets", "Shared test sets", ("test_sets", "rows"))
