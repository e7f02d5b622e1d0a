# SPDX-License-Identifier: Apache-2.0
"""Whose risk a risk is: of the event, however two classes are spelled, in every way that reads or scores them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from cases import each
from fairflare import Federation, metric_frame
from fairflare.core.errors import UserError
from fairflare.import_data.columns import outcome_of
from fairflare.import_data.labels import event_last
from fairflare.import_data.proposal import Choices

SPELLINGS = [
    ("yes", "no"),
    ("died", "survived"),
    ("malignant", "benign"),
    ("dead", "alive"),
    ("ja", "nein"),
    ("verstorben", "überlebt"),
    ("bösartig", "gutartig"),
    ("oui", "non"),
    ("décédé", "vivant"),
    ("malade", "non-malade"),
    ("1", "0"),
    ("1", "-1"),
    ("cancer", "healthy"),
]
RNG = np.random.default_rng(0)
RISK = RNG.random(200)
HAPPENED = RNG.random(200) < RISK
AUC = roc_auc_score(HAPPENED, RISK)


@each("event, other", SPELLINGS)
def test_the_named_or_spelled_event_s_risk_is_scored(event, other):
    y = np.where(HAPPENED, event, other)
    columns = np.stack((1 - RISK, RISK), axis=1)
    auc = {"metrics": ["auc"]}
    assert metric_frame(y, RISK, **auc).value.item() == pytest.approx(AUC, abs=1e-12)
    assert metric_frame(y, RISK, event=event, **auc).value.item() == pytest.approx(AUC, abs=1e-12)
    assert metric_frame(y, 1 - RISK, event=other, **auc).value.item() == pytest.approx(AUC, abs=1e-12)
    assert metric_frame(y, columns, classes=[other, event], **auc).value.item() == pytest.approx(AUC, abs=1e-12)
    named = pd.DataFrame({event: RISK, other: 1 - RISK})
    assert metric_frame(y, named, **auc).value.item() == pytest.approx(AUC, abs=1e-12)
    if event < other:  # sorted and by words are two orders: neither is guessed
        with pytest.raises(UserError, match="classes: expected the order of y_prob's columns"):
            metric_frame(y, columns)
    for form in (True, False):
        assert outcome_of("y", y.tolist(), Choices(), table=form).classes == (other, event)


def test_names_that_say_nothing_are_not_guessed():
    for pair in (("A", "B"), ("1", "2"), ("male", "female")):
        assert event_last(pair) == (pair, False)
        with pytest.raises(UserError, match=f"event: expected the class .* event='{min(pair)}' or event='{max(pair)}'"):
            metric_frame(np.where(HAPPENED, *pair), RISK)
    with pytest.raises(UserError, match="event: expected one of two classes"):
        metric_frame(np.where(HAPPENED, "A", "B"), RISK, event="C")
    assert event_last(("a", "ja", "nein")) == (("a", "ja", "nein"), False)


@pytest.mark.slow
@each("event, other, named", [("ja", "nein", {}), ("B", "A", {"event": "A"}), (True, False, {"event": False})])
def test_a_federation_predicts_the_event(event, other, named, tmp_path):
    """Fitted on an outcome that is certain from one column, its second column of probabilities is of the event."""
    ends = named.get("event", event)
    x = RNG.normal(size=300)
    frame = pd.DataFrame({"x": x, "noise": RNG.normal(size=300), "hospital": np.arange(300) % 2})
    frame["hospital"] = "h" + frame.hospital.astype(str)
    frame["y"] = [event if risk > noise else other for risk, noise in zip(x, RNG.normal(size=300))]
    made = Federation("fedavg", rounds=3)
    made.fit(frame, site="hospital", outcome="y", patient="none", progress=False, out=tmp_path / "run", **named)
    found = made.predict_proba(frame)
    assert made.classes_[1] == ends
    auc = roc_auc_score(frame.y == ends, found[:, 1])
    assert auc > 0.7
    for told in ({"classes": made.classes_}, {"event": ends, "classes": None}):
        risks = found if told["classes"] is not None else found[:, 1]
        assert metric_frame(frame.y, risks, metrics=["auc"], **told).value.item() == pytest.approx(auc, abs=1e-12)
    with pytest.raises(UserError, match="event: expected one of two classes"):
        Federation("fedavg").fit(frame, site="hospital", outcome="y", event="neither", progress=False)
