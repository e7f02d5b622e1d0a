# SPDX-License-Identifier: Apache-2.0
"""The content of report.json: everything that the pages, the terminal and the comparison of runs say about a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.core.settings import flat
from fairflare.report import numbers, personal, rounds
from fairflare.report.after import after_sections
from fairflare.report.audit_reader import PERSONAL, Trail, read_trail, timing, traffic
from fairflare.report.benefit import benefit_section
from fairflare.report.chosen import CHOSEN_CAVEAT, chosen_section
from fairflare.report.fairness import describe
from fairflare.report.groups import group_section
from fairflare.report.membership import risk_section
from fairflare.report.notes import note_sections
from fairflare.report.preflight import preflight_section
from fairflare.report.sanity_checks import learned_section, trivial_of
from fairflare.report.shared_sets import test_sets_section
from fairflare.report.sites import site_rows
from fairflare.report.values import higher_is_better, in_order, json_value, number, stop

FORMAT = 2
CI_CAVEAT = "The interval of the mean resamples sites; it does not cover the chance in training."
WEIGHTS_CAVEAT = (
    "Aggregation weights say how strongly a site's update was used in a round. Weights are not payments and do not "
    "measure what a site's data are worth."
)
MEANS_OVER_LABELS = ("macro_auc", "macro_auprc")
LABELS_CAVEAT = (
    "Not every label is known at every site: a site's mean over labels is over its own, so that means of different "
    "labels stand beside each other. Compare sites label by label."
)
POOL, PRIVATE = "pool", "dp-sgd"
"""The selector whose site trains on the data of all."""
POOLED_CAVEAT = (
    "One site trained on the training examples of all sites, and its number of examples is theirs: a reference for "
    "simulated and published data, which no federation could compute."
)
PRIVATE_CAVEAT = (
    "Training was differentially private: neighbouring runs differ in one record of one site. Numbers of examples and "
    "results on test records have noise of the same budget; sites keep all other results. The epsilon that each site "
    "spent is among the numbers of the sites (with secure sums it stays there), delta among the settings. Not covered: "
    "who takes part, times, the choice of settings, and a patient with several records as a whole."
)
SEEDED_CAVEAT = "Samples and noise of the private training came from the run's seed: this run protects nobody."
NO_BUDGET = ("epsilon", "delta", "colluders")
SITE_CAVEAT = (
    "What this run's sums tell of a hospital's updates keeps to epsilon = {epsilon:g} at delta = {delta:g}, against "
    "the server, readers of the model and the other hospitals, as long as no more than {colluders} of them tell their "
    "share of the noise or drop out of a sum. Neighbouring runs differ in one hospital, whose updates are zero. All "
    "hospitals weigh alike and keep their results. Not covered: who takes part, times, and the choice of settings."
)
Json = dict[str, Any]


def summarise(config: Json, entries: Iterable[Mapping[str, Any]]) -> Json:
    """What is known of a run, finished or not, as JSON values without NaN; sites in natural order.

    Args:
        config: the run's config.json; its "about" says what task and method are, see ``engine.setup.assembly``.
        entries: the parsed lines of audit.jsonl, in order; may be empty or end anywhere.

    Returns:
        status, reason, headline, metrics (in words), higher_is_better, method, task, training, run_settings, seed,
        fairness (final model, each site's test split), sites (one row each), rounds (weights and headline metric of the
        received model, per site), contributions, test_sets, preflight, learned and personal (see there), after
        (``after.after_sections``), benefit (``benefit.benefit_section``, None where the run did not ask), clinical
        (``clinical.clinical_section``) and
        groups (None where the run has none), numbers of the sites (``numbers.number_sections``), notes of the rule
        (``notes.note_sections``), timing, traffic, provenance and caveats; counted: "personal" where the results are
        those of the sites' own models; used: "personal" where sites use such, of which ``personal`` then has "groups",
        too; curves: only of a run about times (``survival.curves_section``); risk: only
        where membership was attacked (``membership.risk_section``); unlike: only where a site's numbers do not fit
        (``numbers.unlike``); bounds: only where they acted on a site (``numbers.bounds_rows``); chosen: only of a run
        that chooses its best model (``chosen_section``); segments: where there are several, or a site was away
        (``rounds.segment_rows``).
    """
    from fairflare.report.clinical import clinical_section  # what lists methods imports no NumPy
    from fairflare.report.survival import curves_section

    whole = read_trail(entries)
    trail = _counted(config, whole)
    about = config.get("about") or {}
    as_is = "site_names" in (config.get("options") or {}) and not (config.get("training") or {}).get("logit_tau")
    headline = about.get("headline") or "balanced_accuracy"
    described = about.get("sites") or {}
    sites = trail.sites() or in_order(described)
    higher = higher_is_better(headline, about)
    counts_own = about.get("counted") == PERSONAL
    counted = trail.of_own_models() if counts_own else trail
    rows = site_rows(counted, sites, described, headline)
    values = {row["site"]: row["value"] for row in rows}
    own = personal.personal_section(trail, sites, headline, higher)
    # A rule may show models that no site uses.
    used = own is not None and PERSONAL in (about.get(personal.USED), about.get(personal.COUNTED))
    in_use = personal.own_rows(rows, own) if own and used else rows
    summary = {
        "format": FORMAT,
        "status": trail.status,
        "reason": trail.finish.get("reason"),
        "headline": headline,
        "metrics": about.get("metrics") or {},
        "higher_is_better": higher,
        **_identity(config, about, trail),
        "fairness": {"metric": headline, "split": "test", **describe(values, higher)},
        "sites": rows,
        "rounds": [rounds.round_row(record, headline, higher) for record in trail.rounds],
        "contributions": rounds.contributions(trail),
        "test_sets": test_sets_section(trail, headline, about.get("table_sets") or {}),
        "preflight": preflight_section(trail),
        "learned": learned_section(whole, in_use, headline, higher, about, as_is),
        "personal": own,
        "after": after_sections(trail, sites),
        "benefit": benefit_section(trail, sites, about),
        "clinical": clinical_section(trail.with_clinical_of(whole), config, about, sites),
        "groups": group_section(counted, config, about),
        "numbers": numbers.number_sections(trail, sites, about.get("numbers") or {}),
        "notes": note_sections(trail),
        "timing": timing(trail),
        "traffic": traffic(trail),
        "provenance": {
            "config_sha256": trail.segment.get("config_sha256"),
            "first_model_sha256": trail.start.get("model_sha256"),
            "model_sha256": trail.model_sha256(),
            "evaluated_model_sha256": trail.evaluation.get("model_sha256"),
            "chain_head": trail.head,
            "entries": trail.n_entries,
            "resumed_after": [record.get("from_round") for record in trail.resumes],
            "versions": config.get("versions") or trail.start.get("versions") or {},
        },
    }
    sometimes = {
        "risks": risk_scores(in_use, summary["clinical"], about, own=used and not counts_own),
        "counted": PERSONAL if counts_own else None,
        "curves": curves_section(trail.with_clinical_of(whole), config, about, sites),
        "site_privacy": trail.start.get("site_privacy"),
        "risk": risk_section(trail, sites),
        "segments": rounds.segment_rows(trail),
        "used": PERSONAL if used else None,
        "unlike": numbers.unlike(trail),
        "bounds": numbers.bounds_rows(trail),
        "chosen": chosen_section(whole, config, sites, headline, higher),
    }
    summary |= {key: found for key, found in sometimes.items() if found}
    if used:
        summary["personal"]["groups"] = group_section(trail.of_own_models(), config, about)
    return json_value({**summary, "caveats": _caveats(summary)})


def risk_scores(rows: Sequence[Json], clinical: Json | None, about: Json, *, own: bool = False) -> list[Json]:
    """How good risks are, whatever threshold: of two classes AUC, Brier score, calibration in the large; of more, AUC.

    Args:
        rows: one per site, of the models that sites use.
        own: these are the sites' own, beside the shared one whose other results are told: metric and label say so.

    Returns:
        For each: metric, label, higher_is_better and what ``describe`` says of the sites' values on their own test
        splits, the calibration's as sizes. [] of other outcomes, or where nothing is known.
    """
    classes = len(about.get("classes") or ())
    stage = (clinical or {}).get("in_use")
    views = {row["site"]: row[stage] or {} for row in (clinical or {}).get("rows", ()) if stage in row}
    found: list[Json] = []
    for names, key, words in RISK_SCORES if classes == 2 else MANY_CLASSES if classes > 2 else ():
        values = {}
        for row in rows:
            known = [number(row["test"].get(name)) for name in names]
            view = number(((views.get(row["site"]) or {}).get(key) or {}).get("value"))
            value = next((one for one in known if one is not None), view)
            values[row["site"]] = None if value is None else abs(value)
        if any(value is not None for value in values.values()):
            higher = key == ""
            about_it = {"metric": "personal_" * own + names[0], "label": words + ", personal models" * own}
            found.append({**about_it, "higher_is_better": higher, **describe(values, higher)})
    return found


RISK_SCORES = (
    (("auc", "auc_ovo"), "", "AUC"),
    (("brier_loss",), "brier", "Brier score"),
    (("calibration_error",), "calibration", "calibration error"),
)
"""Names in an evaluation, key of a clinical view, words."""
MANY_CLASSES = ((("auc_ovr",), "", "macro AUC"),)
SHOWN_HASH = 12
"""Digits of the given weights' hash that tell runs apart."""


def counted_trail(config: Json, entries: Iterable[Mapping[str, Any]]) -> Trail:
    """The run's records, with the results of the chosen model where the run's headline is of that."""
    return _counted(config, read_trail(entries))


def _counted(config: Json, whole: Trail) -> Trail:
    return whole.of_best_model() if config.get("headline") == "best" else whole


def _identity(config: Json, about: Json, trail: Trail) -> Json:
    training, settings = config.get("training") or {}, config.get("settings")
    step = config.get("after") or "none"
    return {
        "method": {
            "id": config.get("method"),
            "title": config.get("title") or config.get("method") or "unnamed method",
            **{key: config.get(key) for key in ("paper", "trainer", "probes", "selector", "server_optimizer")},
            "settings": None if settings is None else flat(settings),
            "after": None if step == "none" else {"step": step, **(config.get("after_settings") or {})},
        },
        "task": {
            "id": config.get("task"),
            **{key: config.get(key) for key in ("preset", "options")},
            **{key: about.get(key) for key in ("title", "real", "simulated", "primary", "classes", "drawn", "domains")},
        },
        "training": training,
        "run_settings": about.get("run_settings") or {},
        "rounds_planned": training.get("rounds") or trail.start.get("rounds"),
        "rounds_done": trail.totals.rounds,
        **{key: config.get(key) for key in ("seed", "min_sites", "env", "normalisation", "secure_sum")},
        **{key: config.get(key) for key in ("min_responses", "grace")},
        **({"init_from": config["init_from"][:SHOWN_HASH]} if config.get("init_from") else {}),
    }


def other_labels(summary: Json) -> bool:
    """Whether the headline is a mean over labels, and not over the same ones at every site."""
    known = (frozenset(name for name in row["test"] if name.startswith("auc_")) for row in summary["sites"])
    return summary["headline"] in MEANS_OVER_LABELS and len(set(known)) > 1


def _caveats(summary: Json) -> list[str]:
    simulated, provenance, method = summary["task"]["simulated"], summary["provenance"], summary["method"]
    strange = provenance["evaluated_model_sha256"] not in (None, provenance["model_sha256"])
    candidates = (
        (simulated not in (None, "", "nothing"), f"Simulated: {stop(str(simulated))}"),
        (summary["status"] != "completed", "The run did not complete: the numbers describe an unfinished model."),
        (strange, "The evaluated model is not the last model of the log: do not use these numbers before verifying."),
        (True, "One run with one seed: another seed gives other numbers. Compare methods over several matched seeds."),
        (summary["fairness"]["ci"]["low"] is not None, CI_CAVEAT),
        (other_labels(summary), LABELS_CAVEAT),
        (len(summary["sites"]) <= 10, "With ten sites or fewer the bottom decile is the worst site."),
        ((summary.get("chosen") or {}).get("headline") == "best", CHOSEN_CAVEAT),
        (summary["personal"] is not None and "counted" not in summary, personal.CAVEAT),
        ("counted" in summary, personal.OWN_CAVEAT),
        (method.get("selector") == POOL, POOLED_CAVEAT),
        (method.get("trainer") == PRIVATE, PRIVATE_CAVEAT),
        (method.get("trainer") == PRIVATE and (method["settings"] or {}).get("trainer.draws") == "seed", SEEDED_CAVEAT),
        ("site_privacy" in summary, SITE_CAVEAT.format(**(summary.get("site_privacy") or dict.fromkeys(NO_BUDGET, 0)))),
        (True, WEIGHTS_CAVEAT),
    )
    return [sentence for holds, sentence in candidates if holds]


def report_json(summary: Json, entries: Sequence[Mapping[str, Any]]) -> Json:
    """The content of report.json.

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
            **{key: summary[key] for key in ("env", "status", "reason")},
            "sites": _sites_json(summary, entries),
            "fairness": {
                **{key: fairness[key] for key in ("metric", "mean", "std", "std_sample")},
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


def _sites_json(summary: Json, entries: Sequence[Mapping[str, Any]]) -> Json:
    sent: Json = next((e["sites"] for e in reversed(entries) if e["event"] == "evaluation"), {})
    sizes = {site: found.get("n") or {} for site, found in sent.items()}
    return {
        row["site"]: {
            "kind": row["description"],
            "n_train": row["n_examples"],
            "n_test": sizes.get(row["site"], {}).get("test"),
            "metrics": row["test"],
            "intervals": row["intervals"],
            "n_val": sizes.get(row["site"], {}).get("val"),
            "val_metrics": row["val"],
            "trivial": trivial_of(summary, row["site"]),
            **personal.personal_of(summary, row["site"]),
            "weight": [record["weights"].get(row["site"]) for record in summary["rounds"]],
        }
        for row in summary["sites"]
    }
