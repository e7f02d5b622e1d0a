# SPDX-License-Identifier: Apache-2.0
"""The update gate: all or nothing per site, each rejection with its code."""

import math

import numpy as np
import pytest
import torch

from cases import each
from fairflare.core.findings import CODES
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer
from fairflare.core.types import Number
from fairflare.engine.gate import Gate, inspect_evaluation
from fairflare.engine.preflight import inspect_preflight, refusal, turned_away
from fairflare.probes.sharpness import Sharpness

MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "steps": torch.tensor(4)}
GATE = Gate(frozenset({"weight", "bias"}), Sharpness.reports, wanted=("sharpness",))


def answer(site="site-1", **changes):
    good = {
        "round": 2,
        "update": {"weight": torch.ones(2, 3), "bias": torch.ones(2)},
        "n_examples": 10,
        "steps": 2,
        "scalars": {"sharpness": 0.1, "loss": 0.5, "perturbed_loss": 0.6},
        "metrics": {"accuracy": 0.5},
    }
    return Answer(site, **{**good, **changes})


def inspect(*answers, declared=None):
    verdict = GATE.inspect(answers, MODEL, 2, declared or {})
    return verdict.replies, verdict.rejections


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
    ("steps", {"steps": None}),
    ("steps", {"steps": -1}),
    ("steps", {"steps": 1.5}),
    ("steps", {"steps": 1e12}),
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


@each("code, changes", BAD)
def test_a_bad_answer_is_left_out_and_the_others_count(code, changes):
    replies, rejections = inspect(answer("site-2"), answer("site-1", **changes))
    assert [r.site for r in replies] == ["site-2"]
    assert [(r.site, r.code) for r in rejections] == [("site-1", code)]
    assert "\n" not in rejections[0].detail and rejections[0].detail


def test_the_first_of_two_good_answers_counts():
    verdict = GATE.inspect([answer(n_examples=10), answer(n_examples=9)], MODEL, 2, {})
    assert [r.n_examples for r in verdict.replies] == [10] and not verdict.rejections
    assert verdict.flags == {"site-1": ["duplicate"]}


def test_a_stale_answer_does_not_shut_out_the_real_one():
    replies, rejections = inspect(answer(round=1), answer(n_examples=7))
    assert [r.n_examples for r in replies] == [7] and not rejections


class Explodes:
    """An object that no check survives."""

    def __eq__(self, other):
        raise RuntimeError("boom")

    __hash__ = object.__hash__

    def __repr__(self):
        raise RuntimeError("boom")


STRANGE = [
    {"update": update(bias=np.array(["a", "b"]))},
    {"update": update(bias=np.ones(2, dtype=np.longdouble))},
    {"update": update(bias=np.ones(2, dtype=">f4"))},
    {"update": update(bias=np.float64(1.0))},
    {"update": update(bias=torch.ones(2).to_sparse())},
    {"update": update(bias=torch.ones(2, device="meta"))},
    {"update": update(bias=torch.ones(2, dtype=torch.complex64))},
    {"update": {3: torch.ones(2), "weight": torch.ones(2, 3)}},
    {"n_examples": 10**400},
    {"n_examples": Explodes()},
    {"round": np.array([1, 1])},
    {"round": Explodes()},
    {"scalars": {"sharpness": 10**400}},
    {"scalars": {"sharpness": Explodes()}},
    {"scalars": {3: 0.1, "sharpness": 0.1}},
    {"error": 17},
]


@each("changes", STRANGE, ids=lambda c: f"{next(iter(c))}")
def test_whatever_a_site_sends_only_that_site_is_left_out(changes):
    replies, rejections = inspect(answer("site-2"), answer("site-1", **changes))
    assert [r.site for r in replies] == ["site-2"] and [r.site for r in rejections] == ["site-1"]


@pytest.mark.parametrize("metrics", [{"a": 10**400}, {"a": Explodes()}, {"a": 1e200}, {3: 0.5}, 7], ids=range(5))
def test_strange_metrics_do_no_harm(metrics):
    replies, rejections = inspect(answer(metrics=metrics))
    assert not rejections and "a" not in replies[0].metrics
    splits, refused = inspect_evaluation([answer(metrics={"test": metrics, "val": {"b": 0.5}})], 2)
    assert splits["site-1"]["val"] == {"b": 0.5} and "a" not in splits["site-1"]["test"] and not refused


def test_a_variance_cannot_be_made_negative():
    model = {"bn.running_var": torch.ones(2), "w": torch.zeros(1)}
    gate = Gate(frozenset({"w"}))
    sent = answer(update={"bn.running_var": torch.tensor([0.0, -1.5]), "w": torch.ones(1)}, scalars={})
    assert gate.inspect([sent], model, 2, {}).rejections[0].code == "variance"


def test_an_outlier_norm_is_rejected_and_a_zero_update_flagged():
    huge = {k: v * 1e4 for k, v in update().items()}
    zero = {k: v * 0 for k, v in update().items()}
    answers = [answer("site-1"), answer("site-2"), answer("site-3", update=huge), answer("site-4", update=zero)]
    verdict = GATE.inspect(answers, MODEL, 2, {})
    assert [r.site for r in verdict.replies] == ["site-1", "site-2", "site-4"]
    assert [(r.site, r.code) for r in verdict.rejections] == [("site-3", "norm")]
    assert verdict.flags == {"site-4": ["zero_update"]}


def test_what_a_site_says_cannot_fill_or_forge_a_log():
    _, rejections = inspect(answer(error="x\n2026 site-2 accepted\x1b[31m" + "y" * 5000))
    assert rejections[0].detail.isprintable() and len(rejections[0].detail) < 200


def test_counts_are_declared_once_and_checked():
    said = {"findings": {}, "versions": all_versions()}
    counts = (("site-1", 5), ("site-1", 50), ("site-2", -1))
    answers = [answer(site, n_examples=n, metrics=said) for site, n in counts]
    statements, rejections = inspect_preflight(answers, all_versions())
    assert {site: s.n_examples for site, s in statements.items()} == {"site-1": 5}
    assert [(r.site, r.code) for r in rejections] == [("site-2", "n_examples")]


@each(
    "said",
    [
        {},
        {"findings": {"error/train/secret text": 1}, "versions": all_versions()},
        {"findings": {"error/train/shape": float("nan")}, "versions": all_versions()},
        {"findings": {"error/train/shape": 17.5}, "versions": all_versions()},
        {"findings": {"error/train/shape": 24}, "versions": all_versions()},
        {"findings": {"accepted/val/few_examples": 0}, "versions": all_versions()},
        {"findings": {"accepted/train/unreadable": 0}, "versions": all_versions()},
        {"findings": {}, "versions": {"torch": "2"}},
        {"findings": {}, "versions": {**all_versions(), "torch": "/home/x"}},
    ],
)
def test_statements_hold_known_findings_and_versions_only(said):
    statements, rejections = inspect_preflight([answer(metrics=said)], all_versions())
    assert not statements and rejections[0].code == "malformed"


@pytest.mark.parametrize(
    "name, version, level",
    [
        ("torch", "1.0.0+cu1", "warning"),
        ("package_sha256", "0" * 64, "error"),
        ("fairflare", "0.0.1", "error"),
        ("nvflare", "2.8.3", "error"),
        ("nvflare", "3.9.0", "error"),
        ("nvflare", "2", "error"),
        ("nvflare", "2.9.99", "warning"),
    ],
)
def test_another_version_is_a_finding(name, version, level):
    here = {**all_versions(), "nvflare": "2.9.0"}
    said = {"findings": {}, "versions": {**here, name: version}}
    statements, _ = inspect_preflight([answer(metrics=said)], here)
    (finding,) = statements["site-1"].findings
    assert (finding.level, finding.code) == (level, "versions")
    found = refusal(statements, [])
    assert bool(found) == (level == "error") == bool(turned_away(statements, []))
    if found:
        assert "\n" not in found and all(part[:12] in found for part in ("site-1", name, version, here[name]))


def test_a_refusal_is_one_short_line_however_many_sites_it_is_about():
    said = {"findings": {"error/val/empty_split": 0, "error/test/empty_split": 0}, "versions": all_versions()}
    for n, rest in ((2, "site-2"), (20, "site-2, site-3, site-4, site-5 and 15 more"), (400, "site-5 and 395 more")):
        answers = [answer(f"site-{k}", metrics=said) for k in range(1, n + 1)]
        found = refusal(inspect_preflight(answers, all_versions())[0], [])
        assert found.startswith("preflight: site-1, site-2") and len(found) < 200
        assert found.endswith(f"{rest}: val, test: empty_split: a split has no example")


def test_a_refusal_names_few_of_many_kinds():
    kinds = {f"error/{split}/{code}": 0 for split in ("train", "val", "test") for code in CODES}
    versions = {**all_versions(), "package_sha256": "0" * 64}
    answers = [answer("site-1", metrics={"findings": kinds, "versions": versions})]
    found = refusal(inspect_preflight(answers, all_versions())[0], [])
    assert len(CODES) > 20 and found.endswith(f"; and {len(CODES) - 5} more") and len(found) < 2000


def test_evaluations_are_tagged_and_answered_once():
    first, second = answer(metrics={"test": {"auc": 0.5}}), answer(metrics={"test": {"auc": 0.9}})
    splits, refused = inspect_evaluation([first, second, answer("site-2", round=1)], 2)
    no_groups = {"val": {}, "test": {}}
    assert splits == {"site-1": {"val": {}, "test": {"auc": 0.5}, "n": {}, "groups": no_groups}}
    assert [r.code for r in refused] == ["stale"]


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


GROUPED = Gate(frozenset({"weight", "bias"}), tuple(Number(f"group_count/{g}", 0.0, 2.0**40, "examples") for g in "ab"))


@pytest.mark.parametrize(
    "counts, code",
    [
        ((3.0, 4.0), None),
        ((30.0, 4.0), "count_mismatch"),
        ((2.5, 1.0), "count_mismatch"),
        ((2.0**40, 0.0), "count_mismatch"),
    ],
)
def test_groups_are_parts_of_the_training_split(counts, code):
    told = answer(n_examples=10, scalars=dict(zip(("group_count/a", "group_count/b"), counts)))
    verdict = GROUPED.inspect([told], MODEL, 2, {})
    assert [r.code for r in verdict.rejections] == ([code] if code else [])


def test_groups_of_an_evaluation_are_parts_of_their_split():
    cells = {"test": {"a": {"n": 1e7, "value": 1.0}}}
    good = {"test": {"a": {"n": 5.0, "value": 1.0}, "b": {"n": 3.0, "value": 0.5}, "c": {"n": 1.0, "value": 7.0}}}
    size = {"n": {"test": 8.0}}
    splits, refused = inspect_evaluation(
        [answer("site-1", metrics={"groups": cells, **size}), answer("site-2", metrics={"groups": good, **size})],
        2,
        "abc",
    )
    assert [(r.site, r.code) for r in refused] == [("site-1", "count_mismatch")]
    assert set(splits["site-2"]["groups"]["test"]) == {"a", "b"}


class OnDisk:
    """What FLARE's disk offload hands over in place of a tensor."""

    def __init__(self, value):
        self.value = value

    def materialize(self):
        return self.value


def test_tensors_that_flare_kept_on_disk_are_read_and_checked():
    whole = {"weight": OnDisk(torch.ones(2, 3)), "bias": OnDisk(torch.ones(2))}
    broken = {**whole, "bias": OnDisk(torch.full((2,), math.nan))}
    verdict = GATE.inspect([answer(update=whole), answer("site-2", update=broken)], MODEL, 2, {})
    assert torch.equal(verdict.replies[0].update["bias"], torch.ones(2))
    assert [(r.site, r.code) for r in verdict.rejections] == [("site-2", "nonfinite")]
