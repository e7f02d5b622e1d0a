# SPDX-License-Identifier: Apache-2.0
"""summarise on a made-up run: three sites, four rounds, one rejection.

Hand-derived. Shares of 100, 60 and 40 examples: 0.5, 0.3, 0.2. Mean weight of site-1: (0.2 + 0.4 + 0.25 + 0.3) / 4 =
0.2875; of site-10, which was accepted three times: (0.5 + 0.5 + 0.4) / 3 = 1.4 / 3. Validation values in round r are
the test values minus 0.1 (4 - r), so round 2 has 0.7 and 0.6, mean 0.65. Corrupted sets: (0.8 + 0.5) / 2 = 0.65.
"""

import copy
import json
import math

import pytest

from fairflare.report.summary import summarise


def rows(summary):
    return {row["site"]: row for row in summary["sites"]}


def test_fairness_of_the_final_model(summary):
    fair = summary["fairness"]
    assert summary["status"] == "completed"
    assert (fair["metric"], fair["split"], fair["n_sites"], fair["left_out"]) == ("balanced_accuracy", "test", 3, [])
    assert fair["mean"] == pytest.approx(2.3 / 3)
    assert fair["std"] == pytest.approx(math.sqrt(42 / 2700))
    assert fair["gap"] == pytest.approx(0.3)
    assert fair["worst"] == {"site": "site-10", "value": 0.6}
    assert fair["best"] == {"site": "site-1", "value": 0.9}


def test_site_rows_in_natural_order(summary):
    assert [row["site"] for row in summary["sites"]] == ["site-1", "site-2", "site-10"]
    assert [row["data_share"] for row in summary["sites"]] == pytest.approx([0.5, 0.3, 0.2])
    first, last = rows(summary)["site-1"], rows(summary)["site-10"]
    assert first["weight_mean"] == pytest.approx(0.2875)
    assert last["weight_mean"] == pytest.approx(1.4 / 3)
    assert (first["weight_last"], last["weight_last"]) == (0.3, 0.4)
    assert (first["n_examples"], first["description"]) == (100, "clean")
    assert (last["accepted"], last["rejected"], last["codes"]) == (3, 1, {"not_finite": 1})
    assert last["val"]["balanced_accuracy"] == pytest.approx(0.55)


def test_the_last_weight_is_that_of_the_last_accepted_round(inputs):
    last = inputs["entries"][4]
    del last["accepted"]["site-10"], last["weights"]["site-10"]
    found = rows(summarise(**inputs))["site-10"]
    assert (found["weight_last"], found["weight_mean"]) == (0.5, 0.5)


def test_rounds_hold_metric_and_weights_of_accepted_sites(summary):
    second = summary["rounds"][1]
    assert [row["round"] for row in summary["rounds"]] == [1, 2, 3, 4]
    assert second["metric"] == pytest.approx({"site-1": 0.7, "site-2": 0.6})
    assert second["mean"] == pytest.approx(0.65)
    assert second["weights"] == {"site-1": 0.4, "site-2": 0.6}
    assert second["rejected"] == ["site-10"]
    assert list(summary["rounds"][0]["weights"]) == ["site-1", "site-2", "site-10"]


def test_contributions(summary):
    found = summary["contributions"]
    assert (found["expected"], found["accepted"], found["rejected"], found["absent"]) == (12, 11, 1, 0)
    assert found["rejections"] == [
        {"round": 2, "site": "site-10", "code": "not_finite", "detail": "update of 'w': 3 NaN"}
    ]


def test_test_sets(summary):
    found = summary["test_sets"]
    assert [row["name"] for row in found["rows"]] == ["clean", "noise 1", "noise 3"]
    assert found["clean_mean"]["balanced_accuracy"] == pytest.approx(0.9)
    assert found["corrupted_mean"] == pytest.approx({"balanced_accuracy": 0.65, "loss": 0.35})


def test_timing_and_provenance(summary):
    """Eight records one minute apart; four rounds of 2 s and 0.5 s."""
    assert summary["timing"]["wall_seconds"] == 420
    assert summary["timing"]["phases"] == {"exchange": 8.0, "aggregate": 2.0}
    proof = summary["provenance"]
    assert (proof["config_sha256"], proof["first_model_sha256"], proof["model_sha256"]) == (
        "config",
        "model-0",
        "model-4",
    )
    assert (proof["chain_head"], proof["entries"], proof["resumed_after"]) == ("hash-7", 8, [])
    assert proof["versions"]["torch"] == "2.13.0"


def test_caveats_say_what_is_simulated_and_that_weights_are_not_payments(summary):
    caveats = " ".join(summary["caveats"])
    assert "Simulated: all images" in caveats
    assert "Weights are not payments" in caveats
    assert "one seed" in caveats
    assert "not the last model" not in caveats


def test_a_failed_run_claims_nothing_about_fairness(failed_inputs):
    found = summarise(**failed_inputs)
    assert (found["status"], found["reason"]) == ("failed", "round 3: 1 site accepted, 2 needed")
    assert (found["rounds_done"], found["rounds_planned"]) == (2, 4)
    assert found["fairness"]["mean"] is None
    assert found["fairness"]["left_out"] == ["site-1", "site-2", "site-10"]
    assert found["provenance"]["model_sha256"] == "model-2"
    assert found["timing"]["wall_seconds"] is None
    assert any("did not complete" in caveat for caveat in found["caveats"])


@pytest.mark.parametrize("length", range(9))
def test_a_log_may_end_anywhere(inputs, length):
    found = summarise(**inputs | {"entries": inputs["entries"][:length]})
    json.dumps(found, allow_nan=False)
    assert found["status"] == ("completed" if length == 8 else "unfinished")
    assert [row["site"] for row in found["sites"]] == ["site-1", "site-2", "site-10"]


def test_a_later_record_of_a_round_supersedes_the_earlier(inputs, rounds, chained):
    """Killed after round 3 was logged but before it was kept, resumed after round 2, then finished."""
    start, finish = inputs["entries"][0], inputs["entries"][-1]
    lost = copy.deepcopy(rounds[2]) | {"weights": {"site-1": 1.0}, "rejected": {"site-2": {"code": "x", "detail": ""}}}
    resume = {"event": "resume", "from_round": 2}
    early = {"event": "finish", "status": "failed", "reason": "stopped", "model_sha256": "model-3"}
    found = summarise(**inputs | {"entries": chained([start, *rounds[:2], lost, early, resume, *rounds[2:], finish])})
    assert [row["round"] for row in found["rounds"]] == [1, 2, 3, 4]
    assert found["rounds"][2]["weights"] == {"site-1": 0.25, "site-2": 0.25, "site-10": 0.5}
    assert found["contributions"]["rejected"] == 1
    assert found["provenance"]["resumed_after"] == [2]
    assert found["status"] == "completed"
    unfinished = summarise(**inputs | {"entries": chained([start, *rounds[:2], lost, early, resume])})
    assert unfinished["status"] == "unfinished"


def test_missing_and_non_finite_metrics_become_null(inputs):
    sites = inputs["entries"][-2]["sites"]
    sites["site-1"]["test"]["balanced_accuracy"] = math.nan
    del sites["site-2"]["test"]
    found = summarise(**inputs)
    json.dumps(found, allow_nan=False)
    assert found["fairness"]["left_out"] == ["site-1", "site-2"]
    assert found["fairness"]["mean"] == 0.6
    assert rows(found)["site-1"]["test"]["balanced_accuracy"] is None
    assert rows(found)["site-2"]["test"] == {}


def test_a_loss_as_headline_is_better_when_lower(inputs):
    inputs["config"]["about"]["headline"] = "loss"
    found = summarise(**inputs)
    assert found["higher_is_better"] is False
    assert found["fairness"]["worst"] == {"site": "site-10", "value": pytest.approx(0.4)}
    assert found["rounds"][0]["worst"]["site"] == "site-10"


def test_an_evaluation_of_another_model_is_told(inputs):
    inputs["entries"][-2]["model_sha256"] = "model-3"
    assert any("not the last model" in caveat for caveat in summarise(**inputs)["caveats"])


def test_the_inputs_stay_as_they_were(inputs):
    before = copy.deepcopy(inputs)
    summarise(**inputs)
    assert inputs == before


def test_test_set_scores_are_those_of_the_model_that_the_log_ends_with(inputs, failed_inputs):
    scores = {"clean": {"corrupted": False, "n": 40, "metrics": {"balanced_accuracy": 0.3}}}
    assert summarise(**failed_inputs)["test_sets"]["rows"] == []
    failed_inputs["entries"][-1]["test_sets"] = scores
    assert [row["value"] for row in summarise(**failed_inputs)["test_sets"]["rows"]] == [0.3]
    # The last round's checkpoint could not be written: the run ended with the model of the round before.
    kept = {"event": "finish", "status": "failed", "model_sha256": "model-3", "test_sets": scores}
    found = summarise(inputs["config"], [*inputs["entries"][:-2], kept])
    assert [row["value"] for row in found["test_sets"]["rows"]] == [0.3]


def test_a_site_that_was_not_selected_is_not_missed(inputs):
    """In round 2 two sites are selected, so that site-10 is neither rejected nor expected."""
    record = inputs["entries"][2]
    record["selected"], record["rejected"] = ["site-1", "site-2"], {}
    summary = summarise(**inputs)
    found = summary["contributions"]
    assert (found["expected"], found["accepted"], found["rejected"], found["absent"]) == (11, 11, 0, 0)
    assert [row["expected"] for row in summary["sites"]] == [4, 4, 3]


def test_a_site_that_is_left_out_is_not_missed(inputs):
    """site-10 trains nothing and is evaluated at the end."""
    inputs["entries"][0]["sites"] = ["site-1", "site-2"]
    for record in inputs["entries"][1:5]:
        for part in ("accepted", "rejected", "weights"):
            record[part].pop("site-10", None)
    summary = summarise(**inputs)
    assert (summary["contributions"]["expected"], summary["contributions"]["absent"]) == (8, 0)
    assert {row["site"]: row["expected"] for row in summary["sites"]} == {"site-1": 4, "site-2": 4, "site-10": 0}
