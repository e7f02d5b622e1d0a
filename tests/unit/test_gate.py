# SPDX-License-Identifier: Apache-2.0
"""The update gate: all or nothing per site, each rejection with its code."""

import math

import numpy as np
import pytest
import torch

from fairflare.federation.gate import Gate
from fairflare.federation.messages import Answer
from fairflare.probes.sharpness import Sharpness

MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "steps": torch.tensor(4)}
GATE = Gate(frozenset({"weight", "bias"}), Sharpness.reports, wanted=("sharpness",))


def answer(site="site-1", **changes):
    good = {
        "round": 2,
        "update": {"weight": torch.ones(2, 3), "bias": torch.ones(2)},
        "n_examples": 10,
        "scalars": {"sharpness": 0.1, "loss": 0.5, "perturbed_loss": 0.6},
        "metrics": {"accuracy": 0.5},
    }
    return Answer(site, **{**good, **changes})


def inspect(*answers, declared=None):
    return GATE.inspect(answers, MODEL, 2, declared or {})


def update(**changes):
    return {"weight": torch.ones(2, 3), "bias": torch.ones(2), **changes}


def with_entry(value):
    weight = torch.ones(2, 3)
    weight[1, 2] = value
    return update(weight=weight)


def test_a_good_answer_passes_whole():
    replies, rejections = inspect(answer())
    assert not rejections and replies[0].n_examples == 10 and replies[0].trainable == {"weight", "bias"}
    assert torch.equal(replies[0].update["weight"], torch.ones(2, 3))


BAD = [
    ("nonfinite", {"update": with_entry(math.nan)}),
    ("nonfinite", {"update": with_entry(-math.inf)}),
    ("nonfinite", {"update": update(weight=torch.full((2, 3), 1e300, dtype=torch.float64))}),
    ("shape", {"update": update(weight=torch.ones(3, 2))}),
    ("shape", {"update": update(bias=torch.ones(1))}),
    ("shape", {"update": update(bias=torch.tensor(1.0))}),
    ("keys", {"update": {"weight": torch.ones(2, 3)}}),
    ("keys", {"update": update(extra=torch.ones(1))}),
    ("keys", {"update": update(steps=torch.tensor(5))}),
    ("keys", {"update": None}),
    ("keys", {"update": [torch.ones(2, 3)]}),
    ("dtype", {"update": update(bias=torch.ones(2, dtype=torch.int64))}),
    ("dtype", {"update": update(bias=[1.0, 1.0])}),
    ("params_type", {"update_kind": "FULL"}),
    ("n_examples", {"n_examples": None}),
    ("n_examples", {"n_examples": 0}),
    ("n_examples", {"n_examples": -3}),
    ("n_examples", {"n_examples": math.nan}),
    ("n_examples", {"n_examples": math.inf}),
    ("n_examples", {"n_examples": 2.5}),
    ("n_examples", {"n_examples": True}),
    ("n_examples", {"n_examples": "10"}),
    ("n_examples", {"n_examples": 1e18}),
    ("scalar_missing", {"scalars": {"loss": 0.5}}),
    ("scalar_missing", {"scalars": None}),
    ("scalar_nonfinite", {"scalars": {"sharpness": math.nan}}),
    ("scalar_range", {"scalars": {"sharpness": 1e300}}),
    ("scalar_range", {"scalars": {"sharpness": 0.1, "loss": -1.0}}),
    ("scalar_type", {"scalars": {"sharpness": "0.1"}}),
    ("scalar_type", {"scalars": {"sharpness": True}}),
    ("scalar_unknown", {"scalars": {"sharpness": 0.1, "patient": 7.0}}),
    ("stale", {"round": 1}),
    ("stale", {"round": None}),
    ("stale", {"round": True}),
    ("site_error", {"error": "EXECUTION_EXCEPTION OutOfMemory"}),
]


@pytest.mark.parametrize("code, changes", BAD)
def test_a_bad_answer_is_left_out_and_the_others_count(code, changes):
    replies, rejections = inspect(answer("site-2"), answer("site-1", **changes))
    assert [r.site for r in replies] == ["site-2"]
    assert [(r.site, r.code) for r in rejections] == [("site-1", code)]
    assert "\n" not in rejections[0].detail and rejections[0].detail


def test_the_first_of_two_answers_counts():
    replies, rejections = inspect(answer(n_examples=10), answer(n_examples=99))
    assert [r.n_examples for r in replies] == [10] and rejections[0].code == "duplicate"


def test_more_examples_than_declared_are_refused():
    replies, rejections = inspect(answer(n_examples=11), answer("site-2"), declared={"site-1": 10, "site-2": 10})
    assert [r.site for r in replies] == ["site-2"] and rejections[0].code == "count_mismatch"


def test_replies_come_sorted_by_site():
    replies, _ = inspect(answer("site-3"), answer("site-1"), answer("site-2"))
    assert [r.site for r in replies] == ["site-1", "site-2", "site-3"]


def test_numpy_and_half_precision_are_cast():
    """A site's privacy filters may turn tensors into numpy arrays."""
    sent = {"weight": np.ones((2, 3)), "bias": torch.ones(2, dtype=torch.float16)}
    replies, rejections = inspect(answer(update=sent, n_examples=np.int64(10)))
    assert not rejections and all(v.dtype == torch.float32 for v in replies[0].update.values())


def test_bad_metrics_are_dropped_but_the_answer_counts():
    sent = {"accuracy": math.nan, "auc": "high", "f1": 0.5, "n" * 100: 1.0}
    replies, _ = inspect(answer(metrics=sent))
    assert replies[0].metrics == {"f1": 0.5}


def test_flooding_with_metrics_is_bounded():
    replies, _ = inspect(answer(metrics={f"m{k}": 1.0 for k in range(10_000)}))
    assert len(replies[0].metrics) <= 64
