# SPDX-License-Identifier: Apache-2.0
"""Why FedAvg loses at a hospital: parts that add up, each found where it was put in, with its remedy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import expit

from cases import each
from fairflare.functional.decision import Design, brier_benefit
from fairflare.functional.reasons import KEEP, PARTS, REMEDIES, UNCLEAR, Models, explained, parts
from fairflare.report.join import OutOfFold, answers, page
from fairflare.studies.join import Question, _why

DESIGN = Design(5, 2)
OFF = 0.8
"""On the logit scale."""


def hospital(seed: int, wrong: str, n: int = 1500) -> tuple[np.ndarray, Models]:
    """Right risks but for ``wrong``, in which every model before the one that mends it has an error."""
    rng = np.random.default_rng(seed)
    line = rng.normal(0, 1.2, n)
    labels = (rng.random(n) < expit(line)).astype(float)
    last = {"drift": 0, "level": 1, "rest": 2, "": -1}[wrong]
    noise = rng.normal(0, 0.02, (4, 2, n))
    return labels, Models(*(expit(line + noise[k] + OFF * (k <= last)) for k in range(4)))


@each("wrong", PARTS)
def test_a_loss_is_found_where_it_comes_from(wrong):
    rows, together = explained({f"site-{k}": (*hospital(k, wrong), None) for k in range(4)}, DESIGN)
    for told in (*rows.values(), together):
        assert told[wrong]["remedy"] == REMEDIES[wrong] and 0.01 < told[wrong]["loss"] < 0.06
        assert all(abs(told[name]["loss"]) < 0.005 for name in PARTS if name != wrong)


def test_parts_add_up_to_what_fedavg_loses():
    labels, models = hospital(0, "level", 200)
    plain = dataclasses.replace(DESIGN, exponent=0.0)
    whole = brier_benefit(labels, models.own, models.fedavg, plain).mean
    assert sum(one.mean for one in parts(labels, models, plain).values()) == pytest.approx(-whole, abs=1e-12)
    rest = parts(labels, models, DESIGN)["rest"].mean
    assert rest == -brier_benefit(labels, models.own, models.level, DESIGN).mean


def test_what_federation_gives_is_kept_and_nothing_is_said_of_nothing():
    labels, models = hospital(0, "")
    worse = models._replace(own=expit(np.log(models.own / (1 - models.own)) + OFF))
    rows, together = explained({"a": (labels, worse, None)}, DESIGN)
    assert rows["a"]["rest"]["remedy"] == KEEP["rest"] and together == {}
    same = Models(*[models.own] * 4)
    assert {one["remedy"] for one in explained({"a": (labels, same, None)}, DESIGN)[0]["a"].values()} == {UNCLEAR}


@each("value", [np.nan, 1.5, -0.1])
def test_what_is_no_risk_is_refused(value):
    labels, models = hospital(0, "", 30)
    broken = models._replace(exact=np.full((2, 30), value))
    with pytest.raises(ValueError, match=r"exact: expected risks \(2, 30\) within 0..1"):
        parts(labels, broken, DESIGN)
    with pytest.raises(ValueError, match="fedavg: expected risks"):
        parts(labels, models._replace(fedavg=models.fedavg[:1]), DESIGN)


def test_the_command_explains_where_both_fits_are_candidates():
    tested, names = {}, ["fedavg:mu=1", "fedavg:mu=1 + intercept", "glm:ridge=0.1", "glm:ridge=0.1 + intercept"]
    for k in range(4):
        labels, of = hospital(k, "drift")
        tested[f"<b>{k}"] = OutOfFold(labels, np.stack([of.own, of.fedavg, of.fedavg, of.exact, of.level]))
    question = Question(("fedavg:mu=1", "glm:ridge=0.1"), "heart:full", DESIGN)
    told = _why(tested, names, question)
    assert told["why"]["<b>0"]["drift"]["remedy"] == told["why_average"]["drift"]["remedy"] == REMEDIES["drift"]
    shown = {"title": "A", "new_size": 100, "refused": {}, **answers(tested, names, DESIGN, 0.002)}
    text = page({**shown, **told})
    assert text.count(REMEDIES["drift"]) == 5 and "<b>0" not in text and REMEDIES["drift"] not in page(shown)
    only = Question(("fedavg",), "heart:full", DESIGN)
    assert _why(tested, ["fedavg", "fedavg + intercept"], only) == {}
