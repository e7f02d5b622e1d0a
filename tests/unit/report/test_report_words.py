# SPDX-License-Identifier: Apache-2.0
"""The sentences say what the numbers say, and no more."""

import pytest

from fairflare.core.metric import described, named
from fairflare.report import sentences as words
from fairflare.report import values as metrics
from fairflare.report.benefit import groups_harmed
from fairflare.report.compare import compare
from fairflare.report.compare_page import differences, opening_compare, render_compare
from fairflare.report.summary import LABELS_CAVEAT, summarise


def test_opening_of_a_completed_run(summary):
    first, second = words.opening(summary)
    assert "FedISM+ (S) trained one shared model across 3 sites in 4 rounds." in first
    assert "the model's balanced accuracy is 0.767 on average over 3 sites (balanced accuracy: the share of" in first
    assert "0.25 is guessing)" in first
    assert "not clearly better than guessing" not in first
    assert (
        "It serves site-10 (noise, severity 3) worst (0.600) and site-1 (clean) best (0.900): a gap of 0.300." in first
    )
    assert "1 of 12 updates was rejected or never arrived: site-10 (once)." in second
    assert "0.900 on clean and 0.650 on corrupted" in second


def test_the_headline_is_the_result(summary, failed_inputs):
    assert words.headline(summary) == "Haemorrhage: balanced accuracy 0.77 on average, 0.60 at site-10"
    assert words.headline(summarise(**failed_inputs)) == "Haemorrhage: does it serve every site?"


def test_opening_of_a_failed_run(failed_inputs):
    first, second = words.opening(summarise(**failed_inputs))
    assert "failed: 2 of 4 rounds are recorded" in first
    assert "nothing can be said about fairness" in first
    assert "worst" not in first
    assert "test sets" not in second


def test_opening_without_rejections(inputs):
    inputs["entries"] = [entry for entry in inputs["entries"] if entry.get("round") != 2]
    assert "No update was left out of the model (9 accepted)." in words.opening(summarise(**inputs))[1]


def test_late_sites_are_named_with_what_it_means_for_them(inputs):
    late = {"code": "late", "detail": "the round ended with the answers of 2 of 3 sites"}
    for entry in inputs["entries"]:
        if entry.get("round") in (1, 3):
            entry["accepted"].pop("site-1"), entry["weights"].pop("site-1")
            entry["rejected"]["site-1"] = late
    assert "late" not in words.opening(summarise(**{**inputs, "entries": []}))[1]
    found = words.opening(summarise(**inputs))[1]
    assert "Rounds ended before every site had answered" in found and "site-1 was late in 2 of 4 rounds. Who" in found
    inputs["config"]["min_responses"] = 2
    found = words.opening(summarise(**inputs))[1]
    assert "Rounds ended after 2 answers, and what came later was not used" in found
    assert "may serve their patients less well" in found and "site-10 was late" not in found


@pytest.mark.parametrize(("metric", "limit"), [("balanced_accuracy", 0.25), ("auc", 0.5)])
def test_guessing_is_called_guessing(inputs, metric, limit):
    """Four classes: 0.25; one site at the limit is the mean."""
    inputs["config"]["about"]["headline"] = metric
    for value, told in ((limit, True), (limit + 0.001, False)):
        inputs["entries"][-2]["sites"] = {"site-1": {"test": {metric: value}}}
        assert ("not clearly better than guessing" in words.opening(summarise(**inputs))[0]) is told


def test_a_site_without_a_result_is_named(inputs):
    inputs["entries"][-2]["sites"]["site-1"]["test"] = {}
    assert "No test result in balanced accuracy came from site-1." in words.opening(summarise(**inputs))[0]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_nothing_is_said_about_an_empty_log(inputs, status):
    found = words.opening(summarise(inputs["config"] | {"about": {}}, []) | {"status": status})
    assert found[1] == ""


def test_metric_names():
    """As the run wrote them down; a metric that it says nothing of keeps its name."""
    found = {"metrics": described(map(named, ("auc_ovo", "balanced_accuracy")), 4)}
    assert metrics.label("auc_ovo", found) == "AUC (one-vs-one)"
    assert metrics.label("my_metric", found) == "my metric"
    assert metrics.meaning("my_metric", found) == ""
    assert metrics.meaning("balanced_accuracy", found).endswith("1 is perfect, 0.25 is guessing")
    assert metrics.higher_is_better("auc_ovo", found)
    assert not metrics.higher_is_better("loss", {"metrics": described([named("loss")], 4)})


def test_differences_say_whether_the_interval_includes_zero(make_run):
    """Differences 0.02 and 0.04 have half width 0.127; of six seeds some differ by 0.0299 and some by 0.0301."""
    unsure = [make_run("A", 0), make_run("A", 1), make_run("B", 0, 0.02), make_run("B", 1, 0.04)]
    sure = [make_run(*one) for s in range(6) for one in (("A", s), ("B", s, 0.0299 + 0.0002 * (s % 2)))]
    assert "is not shown to differ from that of A: +0.030 (95 % interval" in differences(compare(unsure))[0]
    assert "better in 2 of 2 seeds" in differences(compare(unsure))[0]
    assert "is better than that of A: +0.030 (95 % interval +0.030 to +0.030;" in differences(compare(sure))[0]


def test_one_seed_is_said_to_prove_nothing(make_run):
    found = compare([make_run("A", 0), make_run("B", 0, 0.1)])
    assert "With one seed no difference below can be distinguished from chance." in opening_compare(found)
    assert "(one seed, no interval)" in differences(found)[0]


def test_the_best_method_by_mean_and_by_worst_site(make_run):
    found = compare([make_run("A", 0), make_run("B", 0, 0.1)])
    assert "The best balanced accuracy at the worst site: B with 0.700." in opening_compare(found)


@pytest.mark.parametrize(
    ("headline", "of_groups"), [("rmse", "within"), ("harrell_c", "concordant"), ("macro_auc", "label_accuracy")]
)
def test_outcomes_that_are_no_class_are_told_in_their_own_words(inputs, make_run, headline, of_groups):
    """Which way is better, in what groups are compared, what has no worst site, and what is not undefined at all."""
    known = (headline, of_groups, "calibration_slope", "balanced_accuracy")
    about = {"headline": headline, "group_metric": of_groups, "groups": ["f", "m"]}
    inputs["config"]["about"] |= about | {"metrics": described(map(named, known), 2)}
    inputs["config"]["group_by"] = "sex"
    for k, found in enumerate(inputs["entries"][-2]["sites"].values()):
        labels = {"auc_edema": 0.7} | ({"auc_mass": 0.6} if k else {})
        found["test"] = {headline: 0.5 + 0.1 * k, "calibration_slope": 0.8 + 0.2 * k, "balanced_accuracy": 0.5} | labels
        found["groups"] = {"test": {name: {"n": 20, "value": 0.5} for name in ("f", "m")}}
    summary, found = make_run("A"), compare([make_run("A"), make_run("B", shift=0.01)])
    page, label = render_compare(found), metrics.label(of_groups, summary)
    assert f"Groups of patients are compared in the {label}, of which more is better." in page
    assert ("of which less is better" in page) is (headline == "rmse")
    slope = found["methods"][0]["detail"]["metrics"]["calibration_slope"]
    assert slope["worst"]["mean"] is None and slope["mean"]["mean"] == pytest.approx(1.0, abs=0.1)
    assert "Not defined" not in " ".join(words.opening(summary))
    assert (LABELS_CAVEAT in found["caveats"] and LABELS_CAVEAT in summary["caveats"]) is (headline == "macro_auc")


def test_an_outcome_is_no_group_of_patients():
    """Of those with and without the outcome nobody is told that joining harms them; of women and men they are."""
    row = {"group": "nein", "site": "Freiburg", "benefit": -0.1, "verdict": "loses"}
    task = {"classes": ["nein", "ja"], "options": {"label": "died"}}
    run = {"benefit": {"metrics": {"auc": {"label": "AUC", "groups": [row]}}}, "groups": {"by": "label"}, "task": task}
    assert groups_harmed(run)["rows"] == [] and "by their outcome" in groups_harmed(run)["said"]
    assert groups_harmed({**run, "groups": {"by": "sex"}})["rows"][0]["site"] == "Freiburg"
    ungrouped = {**run, "benefit": {"metrics": {"auc": {"label": "AUC", "groups": []}}}, "groups": None}
    assert groups_harmed(ungrouped)["said"].startswith("No group of patients was compared")
