# SPDX-License-Identifier: Apache-2.0
"""``report.json`` as programs read it: few keys with fixed meanings on top, everything else under ``detail``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.personal import personal_of
from fairflare.report.sanity_checks import trivial_of
from fairflare.report.values import json_value

Json = dict[str, Any]


def report_json(summary: Json, entries: Sequence[Mapping[str, Any]]) -> Json:
    """The content of report.json.

    Args:
        summary: what ``summarise`` made of the run.
        entries: the audit log.

    Returns:
        method, title, task, seed, rounds (done), env, status, reason;
        sites: name -> kind, n_train, n_test, metrics (final model, the site's own test split), intervals (metric ->
        low and high, 95 %, over its test patients), n_val, val_metrics (its validation split), trivial (the headline
        metric of an answer that needs no network), personal_metrics and personal_val_metrics (the same of the site's
        personal model, null where it has none), weight (per round, null where the site was not part of it);
        fairness: metric, mean, std (ddof 0), std_sample (ddof 1), worst, worst_site, best, best_site, gap over sites;
        clean, corrupted: metrics on the task's two table test sets, mean over the last five rounds, or null;
        detail: the summary.
    """
    fairness = summary["fairness"]
    last = summary["test_sets"]["last"]
    return json_value(
        {
            "format": summary["format"],
            "method": summary["method"]["id"],
            "title": summary["method"]["title"],
            "task": f"{summary['task']['id']}:{summary['task']['preset']}",
            "seed": summary["seed"],
            "rounds": summary["rounds_done"],
            "env": summary["env"],
            "status": summary["status"],
            "reason": summary["reason"],
            "sites": _sites(summary, entries),
            "fairness": {
                "metric": fairness["metric"],
                "mean": fairness["mean"],
                "std": fairness["std"],
                "std_sample": fairness["std_sample"],
                "worst": fairness["worst"]["value"],
                "worst_site": fairness["worst"]["site"],
                "best": fairness["best"]["value"],
                "best_site": fairness["best"]["site"],
                "gap": fairness["gap"],
            },
            "clean": last["clean"],
            "corrupted": last["corrupted"],
            "detail": summary,
        }
    )


def last_rounds(rounds: Sequence[Mapping[str, Any]], table_sets: Mapping[str, str]) -> Json:
    """Metrics on the task's two table test sets, mean over the last rounds that were scored (FedISM+'s tables: five).

    Args:
        rounds: records of rounds, see ``Trail``.
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


def _sites(summary: Json, entries: Sequence[Mapping[str, Any]]) -> Json:
    sizes: Json = next((e["sites"] for e in reversed(entries) if e["event"] == "evaluation"), {})
    return {
        row["site"]: {
            "kind": row["description"],
            "n_train": row["n_examples"],
            "n_test": (sizes.get(row["site"], {}).get("n") or {}).get("test"),
            "metrics": row["test"],
            "intervals": row["intervals"],
            "n_val": (sizes.get(row["site"], {}).get("n") or {}).get("val"),
            "val_metrics": row["val"],
            "trivial": trivial_of(summary, row["site"]),
            **personal_of(summary, row["site"]),
            "weight": [record["weights"].get(row["site"]) for record in summary["rounds"]],
        }
        for row in summary["sites"]
    }
