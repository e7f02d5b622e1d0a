# SPDX-License-Identifier: Apache-2.0
"""The page for one hospital: its own numbers, and nothing from which another one's would follow."""

import copy
import itertools
import json
import random
import re

import pytest

from cases import each
from fairflare.core.errors import UserError
from fairflare.report.edition import LEAST, edition, opening, render_edition, require_site, standing
from fairflare.report.edition import standing_sentence as sentence
from fairflare.report.summary import counted_trail, summarise
from fairflare.report.values import class_words

OWN = "site-2"
NAMES = ("Aachen", "Bergen", "Cadiz", "Davos", "Evora", "Fulda", "Gdansk")


def edition_of(inputs, site=OWN):
    return edition(summarise(**inputs), counted_trail(**inputs), site)


@each(("classes", "said"), [("01", "died"), ("12", "died = 2"), (("lived", "died"), "died"), (("nein", "ja"), "died")])
def test_a_reader_is_told_the_outcome_and_not_its_code_alone(classes, said):
    assert class_words(classes[1], {"task": {"options": {"label": "died"}, "classes": list(classes)}}) == said


def spread(inputs, sites):
    """The made-up run at these sites, every one with numbers of its own that nothing else has."""
    inputs = copy.deepcopy(inputs)
    source = copy.deepcopy(inputs["entries"])
    rng = random.Random(3)
    for record, old in zip(inputs["entries"], source):
        if record["event"] == "round":
            taken = old["accepted"]["site-1"]
            record["accepted"] = {s: copy.deepcopy(taken) for s in sites}
            record["rejected"] = {}
            record["weights"] = {s: round(rng.uniform(0.05, 0.3), 6) for s in sites}
            for place, s in enumerate(sites):
                found = record["accepted"][s]
                found["n_examples"] = 1009 + 101 * place
                found["metrics"] = {"balanced_accuracy": round(rng.uniform(0.3, 0.9), 6), "loss": rng.random()}
        if record["event"] == "evaluation":
            record["sites"] = {
                s: {
                    "n": {"test": 211 + 7 * place, "val": 31},
                    **{k: {"balanced_accuracy": round(rng.uniform(0.4, 0.9), 6)} for k in ("val", "test")},
                }
                for place, s in enumerate(sites)
            }
    inputs["entries"][0]["sites"] = list(sites)
    inputs["config"]["about"]["sites"] = {s: f"{s} hospital" for s in sites}
    numbers = {
        s: {"n": 211.0, "federated.auc": round(rng.random(), 6), "solo.auc": round(rng.random(), 6)} for s in sites
    }
    for found in numbers.values():
        difference = found["federated.auc"] - found["solo.auc"]
        found |= {"low.auc": difference - 0.1, "high.auc": difference + 0.1}
    benefit = {"event": "benefit", "trainer": "sgd", "draws": 2000, "level": 0.95, "metrics": ["auc"], "sites": numbers}
    inputs["entries"].insert(-1, {**inputs["entries"][-2], **benefit})
    return inputs


def numbers_in(value):
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers_in(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers_in(item)]
    return [value] if isinstance(value, float) else []


def secrets_of(inputs, site):
    """Every fraction that the log holds of ``site`` alone."""
    found = []
    for record in inputs["entries"]:
        for part in ("accepted", "weights", "sites"):
            if isinstance(record.get(part), dict) and site in record[part]:
                found += numbers_in({"one": record[part][site]})
    return [value for value in found if value != int(value)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
def test_no_other_hospital_has_a_name_or_a_number_on_the_page(inputs, self_contained, count):
    sites = NAMES[:count]
    inputs = spread(inputs, sites)
    for own in sites:
        found = edition_of(inputs, own)
        page, text = render_edition(found), json.dumps(found)
        self_contained(page)
        told = numbers_in(found)
        for other in set(sites) - {own}:
            assert other not in page and other not in text
            hidden = secrets_of(inputs, other)
            assert len(hidden) > 10
            for value in hidden:
                assert not any(abs(value - one) < 1e-9 for one in told), (own, other, value)


@pytest.mark.parametrize("count", [2, 3])
def test_with_few_hospitals_nothing_is_said_from_which_theirs_would_follow(inputs, count):
    found = edition_of(spread(inputs, NAMES[:count]), NAMES[0])
    assert found["standing"]["value"]["mean"] is None and found["standing"]["benefit"]["mean"] is None
    assert found["part"]["weight"] is found["part"]["share"] is None
    assert "How other hospitals do is not said: only" in found["standing"]["value"]["sentence"]
    assert found["part"]["accepted"] == 4 and found["result"]["value"] is not None


def test_with_four_hospitals_there_are_means_over_three(inputs):
    inputs = spread(inputs, NAMES[:4])
    summary, found = summarise(**inputs), edition_of(inputs, "Bergen")
    values = [row["value"] for row in summary["sites"] if row["site"] != "Bergen"]
    assert found["standing"]["value"]["mean"] == round(sum(values) / 3, 2)
    weights = [row["weights"]["Bergen"] for row in summary["rounds"]]
    assert found["part"]["weight"] == pytest.approx(sum(weights) / 4)


def test_what_is_said_by_hand():
    values = dict(zip("abcdefg", (0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 0.5)))
    found = standing(values, "g")
    assert found == {"own": 0.5, "others": 6, "mean": 0.5}
    assert sentence(found, "AUC", True) == "On average over 6 other hospitals the AUC is 0.50, as here."
    few = standing({"a": 0.1, "b": 0.3, "c": 0.5, "own": 0.2}, "own")
    assert few["mean"] == 0.3
    assert sentence(few, "loss", False).endswith("here it is lower, which is better.")
    assert sentence(few, "AUC", True).endswith("here it is lower, which is worse.")
    assert standing({"own": 0.2, "a": None}, "own")["others"] == 0
    assert "no other hospital has a result" in sentence(standing({"own": 1.0}, "own"), "AUC", True)


@each("others", range(10))
def test_each_number_about_others_is_a_mean_over_at_least_three(others):
    """Every value is a distinct power of two, so that a mean tells which values it is of."""
    values = {f"s{place}": 2.0**place for place in range(others)} | {"own": 0.3}
    found = standing(values, "own")
    powers = [2.0**place for place in range(others)]
    for shown in [found["mean"]] if found["mean"] is not None else []:
        sets = [c for size in range(1, others + 1) for c in itertools.combinations(powers, size)]
        assert all(len(c) >= LEAST for c in sets if round(sum(c) / len(c), 2) == shown)
    assert (found["mean"] is None) == (others < LEAST)


def test_a_hospital_that_was_away_is_told_so(inputs):
    found = edition_of(inputs, "site-10")
    assert found["rounds"][1]["state"] == "not_finite" and found["part"]["left_out"] == 1
    assert "site-10 was left out of 1 of the 4 rounds in which it was asked: not_finite (1)." in opening(found)[-1][0]
    assert "update of" not in json.dumps(found), "a reason's details may speak of others"


def test_it_leads_with_what_joining_gives(inputs):
    inputs = spread(inputs, NAMES[:4])
    numbers = inputs["entries"][-2]["sites"]["Cadiz"]
    numbers |= {"federated.auc": 0.9, "solo.auc": 0.6, "low.auc": 0.2, "high.auc": 0.4}
    lead = opening(edition_of(inputs, "Cadiz"))[0][0]
    assert lead == (
        "Joining helps the patients of Cadiz: on 211 patients AUC 0.900 after joining, 0.600 with the model trained at "
        "Cadiz alone (difference +0.300, 95 % interval +0.200 to +0.400; above 0 joining is better)."
    )
    numbers |= {"low.auc": -0.1}
    assert opening(edition_of(inputs, "Cadiz"))[0][0].startswith("Too few patients to tell whether joining")
    numbers |= {"federated.auc": 0.3, "low.auc": -0.4, "high.auc": -0.2}
    assert opening(edition_of(inputs, "Cadiz"))[0][0].startswith("Joining harms the patients of Cadiz")


def test_without_a_model_trained_alone_the_page_says_so(inputs):
    found = edition_of(inputs)
    said = "No model was trained at site-2 alone in this run, so it does not report the benefit of joining for site-2."
    assert opening(found)[0] == [said]
    assert "Benefit of joining in" not in render_edition(found)


def test_where_the_site_uses_its_own_model_that_one_is_shown(inputs):
    inputs["config"]["about"]["used"] = "personal"
    for splits in inputs["entries"][-2]["sites"].values():
        splits["personal"] = {split: {"balanced_accuracy": 0.85} for split in ("val", "test")}
    found = edition_of(inputs)
    assert (found["result"]["value"], found["result"]["shared"], found["result"]["whose"]) == (0.85, 0.8, "personal")
    assert "The shared model, which site-2 does not use, reaches 0.800." in opening(found)[1]


def test_groups_are_the_sites_own(grouped_inputs):
    found = edition_of(grouped_inputs)
    assert found["groups"]["rows"] == [
        {"group": "healthy, f", "n": 20.0, "value": 0.6},
        {"group": "healthy, m", "n": 20.0, "value": 0.8},
        {"group": "ill, f", "n": 10.0, "value": 0.3},
    ]


def test_a_failed_run_gives_no_reason_which_may_name_others(failed_inputs):
    found = edition_of(failed_inputs)
    page = render_edition(found)
    assert "This run failed." in page and "1 site accepted" not in page + json.dumps(found)


def test_names_are_escaped_and_checked(inputs):
    text = copy.deepcopy(inputs)
    evil = "<script>alert(1)</script>"
    text["config"]["title"] = text["config"]["about"]["title"] = evil
    assert evil not in render_edition(edition_of(text))
    summary = summarise(**inputs)
    with pytest.raises(UserError, match="--site: expected one of 'site-1, site-2, site-10', got"):
        require_site(summary, "site-3")
    summary["sites"][0]["site"] = "../../etc/passwd"
    with pytest.raises(UserError, match="can be no file's"):
        require_site(summary, "../../etc/passwd")


def test_the_same_run_gives_the_same_bytes(inputs):
    inputs = spread(inputs, NAMES)
    first, second = (render_edition(edition_of(inputs, "Davos")) for _ in range(2))
    assert first == second and len(re.findall("<svg", first)) == 2
