# SPDX-License-Identifier: Apache-2.0
"""The content of report.json: everything that the pages, the terminal and the comparison of runs say about a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.fairness import describe, mean
from fairflare.report.rows import contributions, round_row, site_rows
from fairflare.report.schema import last_rounds
from fairflare.report.sections import contribution_section, group_section, layer_section, preflight_section
from fairflare.report.trail import Trail, read_trail, timing
from fairflare.report.values import in_order, json_value, number, stop

FORMAT = 1
CI_CAVEAT = "The interval of the mean resamples sites; it does not cover the chance in training."
WEIGHTS_CAVEAT = (
    "Aggregation weights say how strongly a site's update was used in a round. Weights are not payments and do not "
    "measure what a site's data are worth."
)
Json = dict[str, Any]


def summarise(config: Json, entries: list[Json], facts: Json, test_sets: dict[str, Json]) -> Json:
    """What is known of a run, finished or not, as JSON values without NaN; sites in natural order.

    Args:
        config: the run's config.json.
        entries: the parsed lines of audit.jsonl, in order; may be empty or end anywhere.
        facts: of the task: title, real, simulated, classes, headline and sites {name: description}.
        test_sets: shared test sets by name: {"corrupted", "n", "metrics"}; empty where the task has none.

    Returns:
        status, reason, headline, higher_is_better, method, task, training, seed, fairness (final model, each site's
        test split), sites (one row each), rounds (weights and headline metric of the received model, per site),
        contributions, test_sets, preflight, timing, provenance and caveats; groups, contribution_shares and
        layer_weights (``sections``), each None where the run has none.
    """
    trail = read_trail(entries)
    headline = facts.get("headline") or "balanced_accuracy"
    described = facts.get("sites") or {}
    sites = trail.sites() or in_order(described)
    higher = not headline.endswith(("loss", "error"))
    rows = site_rows(trail, sites, described, headline)
    values = {row["site"]: row["value"] for row in rows}
    summary = {
        "format": FORMAT,
        "status": trail.status,
        "reason": trail.finish.get("reason"),
        "headline": headline,
        "higher_is_better": higher,
        **_identity(config, facts, trail),
        "fairness": {"metric": headline, "split": "test", **describe(values, higher)},
        "sites": rows,
        "rounds": [round_row(record, headline, higher) for record in trail.rounds],
        "contributions": contributions(trail, sites),
        "test_sets": {**_test_sets(test_sets, headline), "last": last_rounds(entries, facts.get("table_sets") or {})},
        "preflight": preflight_section(trail),
        "groups": group_section(trail, config, facts),
        "contribution_shares": contribution_section(trail, {row["site"]: row["data_share"] for row in rows}),
        "layer_weights": layer_section(trail),
        "timing": timing(trail),
        "provenance": _provenance(config, trail),
    }
    return json_value({**summary, "caveats": _caveats(summary)})


def _identity(config: Json, facts: Json, trail: Trail) -> Json:
    training = config.get("training") or {}
    return {
        "method": {
            "id": config.get("method"),
            "title": config.get("title") or config.get("method") or "unnamed method",
            **{key: config.get(key) for key in ("paper", "settings", "trainer", "probes")},
        },
        "task": {
            "id": config.get("task"),
            **{key: config.get(key) for key in ("preset", "options")},
            **{key: facts.get(key) for key in ("title", "real", "simulated", "classes")},
        },
        "training": training,
        "rounds_planned": training.get("rounds") or trail.start.get("rounds"),
        "rounds_done": len(trail.rounds),
        **{key: config.get(key) for key in ("seed", "min_sites", "env", "normalisation", "secure_sum")},
    }


def _test_sets(test_sets: Mapping[str, Json], headline: str) -> Json:
    rows = [
        {
            "name": name,
            "corrupted": bool(found.get("corrupted")),
            "n": found.get("n"),
            "value": number((found.get("metrics") or {}).get(headline)),
            "metrics": found.get("metrics") or {},
        }
        for name, found in test_sets.items()
    ]
    clean, corrupted = ([row for row in rows if row["corrupted"] is kind] for kind in (False, True))
    return {"rows": rows, "clean_mean": _metric_means(clean), "corrupted_mean": _metric_means(corrupted)}


def _metric_means(rows: Sequence[Json]) -> Json:
    """Unweighted mean of each metric over test sets; a set that lacks the metric is left out."""
    names = sorted({name for row in rows for name in row["metrics"]})
    return {name: mean({row["name"]: row["metrics"].get(name) for row in rows}) for name in names}


def _provenance(config: Json, trail: Trail) -> Json:
    return {
        "config_sha256": trail.start.get("config_sha256"),
        "first_model_sha256": trail.start.get("model_sha256"),
        "model_sha256": trail.model_sha256(),
        "evaluated_model_sha256": trail.evaluation.get("model_sha256"),
        "chain_head": trail.head,
        "entries": trail.n_entries,
        "resumed_after": [record.get("from_round") for record in trail.resumes],
        "versions": config.get("versions") or trail.start.get("versions") or {},
    }


def _caveats(summary: Json) -> list[str]:
    simulated, provenance = summary["task"]["simulated"], summary["provenance"]
    strange = provenance["evaluated_model_sha256"] not in (None, provenance["model_sha256"])
    candidates = (
        (simulated not in (None, "", "nothing"), f"Simulated: {stop(str(simulated))}"),
        (summary["status"] != "completed", "The run did not complete: the numbers describe an unfinished model."),
        (strange, "The evaluated model is not the last model of the log: do not use these numbers before verifying."),
        (True, "One run with one seed: another seed gives other numbers. Compare methods over several matched seeds."),
        (summary["fairness"]["ci"]["low"] is not None, CI_CAVEAT),
        (len(summary["sites"]) <= 10, "With ten sites or fewer the bottom decile is the worst site."),
        (True, WEIGHTS_CAVEAT),
    )
    return [sentence for holds, sentence in candidates if holds]
