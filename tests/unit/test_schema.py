# SPDX-License-Identifier: Apache-2.0
"""Every field of the schema: FLARE's messages carry it both ways, and gate and egress refuse a wrong value of it."""

import dataclasses
import math

import pytest
import torch
from nvflare.fuel.utils import fobs

from cases import each
from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import (
    Answer,
    Instruction,
    Slot,
    answer_fields,
    flat,
    instruction_fields,
    nested,
    slots_of,
)
from fairflare.core.types import Number, Outline, Round, TensorSpec
from fairflare.engine import field_checks
from fairflare.engine.checks import check_received
from fairflare.engine.clinical import View
from fairflare.engine.exchanges.base import refusing
from fairflare.engine.exchanges.sums import rest_with_secure_sums, sealed_check, travelling
from fairflare.engine.field_checks import checked_seconds
from fairflare.engine.gate import Gate, inspect_evaluation
from fairflare.engine.traffic import Traffic
from fairflare.flare import wire
from fairflare.flare.wire import (
    answer_from_model,
    answer_to_shareable,
    instruction_from_shareable,
    instruction_to_model,
)
from fairflare.privacy import egress as egress_module
from fairflare.privacy.egress import Egress, check_scalars

MODEL = {"weight": torch.zeros(2, 3), "count": torch.tensor(1)}
SLOTS = {"proto/a": Slot((3,), required=True, bound=10.0), "proto/b": Slot((3,), bound=10.0)}
NUMBERS = (Number("loss", 0.0, 10.0, "a loss"), Number("drift", -1.0, 1.0, "a drift", required=True))
RANGES = {"auc": (0.0, 1.0), "loss": (0.0, 1e6), "train_loss": (0.0, 1e6)}
GATE = Gate(frozenset({"weight"}), NUMBERS, metrics=RANGES, tensors=SLOTS)
ADJUSTED = (Number("own.slope", -50.0, 50.0, "a slope"),)
BENEFIT = (Number("n", 0.0, 1e8, "cases"), Number("solo.auc", 0.0, 1.0, "a metric"))


def sums_of_two(value):
    """As a step checks its sums."""
    if not isinstance(value, list) or len(value) != 2 or not all(0 <= v <= 3 for v in value):
        raise ValueError("expected 2 sums")


VIEW = View()
EGRESS = Egress(
    MODEL, NUMBERS, RANGES, ("a",), tensors=SLOTS, personal=True,
    checks={
        "sealed": sealed_check({"sum": {"sum": range(3, 4)}}),
        "sums": refusing(sums_of_two, "sums"),
        "adjusted": lambda value, task: check_scalars(value, ADJUSTED),
        "benefit": lambda value, task: check_scalars(value, BENEFIT),
        "reports": lambda value, task: check_scalars(value, BENEFIT),
        "clinical": lambda value, task: VIEW.checked(value, least=3, as_binned=task == "evaluate"),
    },
)  # fmt: skip
RESULTS = {"val": {"auc": 0.5}, "test": {"auc": 0.6}, "n": {"val": 3.0, "test": 4.0}, "groups": {"val": {}, "test": {}}}
VALUES = {
    "round": 2,
    "update": {"weight": torch.ones(2, 3)},
    "update_kind": "diff",
    "n_examples": 30,
    "scalars": {"loss": 0.5, "drift": 0.1},
    "steps": 7,
    "tensors": {"proto/a": torch.ones(3), "proto/b": torch.arange(3.0)},
    "metrics": {"auc": 0.5, "train_loss": 0.1},
    "personal": RESULTS,
    "seconds": {"train": 2.0},
    "sealed": {"sum": b"123"},
    "sums": [3.0, 1.0],
    "adjusted": {"own.slope": 0.5},
    "benefit": {"n": 30.0, "solo.auc": 0.5},
    "reports": {"n": 30.0},
    "clinical": {"n": 30.0, "brier": 0.2, "positives": 12.0, "flagged": 9.0, "true_positives": 8.0},
    "signed": {"numbers": "0" * 64, "signature": "c2lnbmVk" * 40},
}
"""A good value of every field that is not the transport's own."""
BAD = {
    "round": [1, None, "2"],
    "update": [{"weight": torch.full((2, 3), math.nan)}, {"other": torch.ones(2, 3)}, {"weight": torch.ones(6)}],
    "update_kind": ["FULL", None],
    "n_examples": [0, 1.5, "many", math.inf],
    "scalars": [{"drift": 2.0}, {"drift": math.nan}, {"drift": 0.1, "age": 91.0}, [1.0]],
    "steps": [-1, 1.5, 1e12, "7", math.nan],
    "tensors": [
        {"proto/a": torch.ones(4)},
        {"proto/a": torch.full((3,), math.nan)},
        {"proto/a": torch.full((3,), 11.0)},
        {"proto/a": torch.ones(3, dtype=torch.float64)},
        {"proto/a": [1.0, 1.0, 1.0]},
        {"proto/a": torch.ones(3), "scan": torch.ones(3)},
        {"proto/a": torch.ones(3).to_sparse()},
        {"proto/a": torch.ones(3, device="meta")},
        [torch.ones(3)],
    ],
    "metrics": [{"auc": 1.5}, {"age": 91.0}, {"auc": math.nan}],
    "personal": [
        {**RESULTS, "test": {"auc": 2.0}},
        {**RESULTS, "diary": {"auc": 0.5}},
        {**RESULTS, "groups": {"val": {"a": {"n": 2.0, "value": 7.0}}}},
    ],
    "seconds": [{"lunch": 60.0}, {"train": -1.0}, {"train": math.inf}],
    "sealed": [{"key": "patient 17"}, {"sum": "text"}],
    "signed": [{"numbers": "patient 17"}, {"signature": 17}, {"note": "text"}, ["text"]],
    "sums": [[3.0], [3.0, -1.0], [3.0, math.nan], {"sum": 3.0}, [3.0, 4.0]],
    "adjusted": [{"own.slope": 91.0}, {"own.slope": math.nan}, {"age": 0.5}, [0.5]],
    "reports": [{"n": -1.0}, {"n": math.nan}, {"age": 91.0}, [0.5]],
    "benefit": [{"solo.auc": 1.5}, {"solo.auc": math.nan}, {"solo.age": 0.5}, [0.5]],
    "clinical": [
        {"n": 2.0, "brier": 0.2},
        {"n": 30.0, "brier": 91.0},
        {"n": 30.0, "age": 0.5},
        {"n": 30.0, "positives": 28.5},
        {"n": 30.0, "positives": 29.0},
        {"brier": 0.2},
        [0.5],
    ],
}
"""Wrong values of every field."""
CASES = [(name, value) for name, values in BAD.items() for value in values]
FIELDS = {name for name, spec in answer_fields().items() if spec.carried != "transport"}


def task_of(name):
    spec = answer_fields()[name]
    return "train" if "train" in spec.exchanges else spec.exchanges[-1]


def good(task):
    """A good answer to ``task``, with every field that may be in one."""
    here = {name: VALUES[name] for name in FIELDS if answer_fields()[name].travels(task, secure=task == "sum")}
    if task == "evaluate":
        here["metrics"] = RESULTS
    return Answer("site-1", **({"round": 2} | here))


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def test_every_field_has_a_specification_and_is_tried_here():
    assert FIELDS == set(VALUES) == set(BAD)
    assert all(spec.meaning and spec.exchanges for spec in (*answer_fields().values(), *instruction_fields().values()))


def test_gate_and_egress_have_a_check_for_every_kind():
    kinds = {
        kind
        for spec in answer_fields().values()
        for kind in ([spec.kind] if isinstance(spec.kind, str) else spec.kind.values())
    }
    assert kinds <= set(egress_module.CHECKS)
    rounds = {spec.kind_in("train") for spec in answer_fields().values() if spec.travels("train")}
    assert rounds <= set(field_checks.CHECKS)


@each("name", sorted(FIELDS))
def test_flares_messages_carry_every_field_of_an_answer(name):
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    sent = good(task_of(name))
    arrived = fobs.loads(fobs.dumps(answer_to_shareable(sent)))
    found = answer_from_model(FLModelUtils.from_shareable(arrived), site="site-1")
    if name != "update_kind" or sent.update is not None:
        assert equal(getattr(found, name), getattr(sent, name))


@each("largest", [8, wire.LARGEST], ids=["in pieces", "whole"])
@each("name", sorted(set(instruction_fields()) - {"task"}))
def test_flares_messages_carry_every_field_of_an_instruction(name, largest, monkeypatch):
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    monkeypatch.setattr(wire, "LARGEST", largest)
    tensors = {"control/weight": torch.ones(2, 3).t()}
    sent = Instruction("train", Round(2, 3), MODEL, {"rho": 0.5}, {"attempt": 1}, tensors, counted=1)
    arrived = fobs.loads(fobs.dumps(FLModelUtils.to_shareable(instruction_to_model(sent))))
    assert equal(getattr(instruction_from_shareable("train", arrived), name), getattr(sent, name))


def test_sites_that_are_sent_the_same_share_a_broadcast_and_no_others():
    from fairflare.flare.controller import _groups

    sent = {f"site-{k}": Instruction("train", Round(1000, 1001), MODEL, counted=int(f"99{k // 2}")) for k in range(4)}
    assert [sites for _, sites in _groups(sent)] == [["site-0", "site-1"], ["site-2", "site-3"]]


@each("name, value", CASES, ids=str)
def test_egress_refuses_a_wrong_value_of_every_field(name, value):
    task = task_of(name)
    egress = dataclasses.replace(EGRESS, secure=True) if task == "sum" else EGRESS
    egress.check(task, good(task))
    if name == "round" and value == 1:
        return  # only the server knows which round it asked for
    with pytest.raises(EgressRefused) as error:
        egress.check(task, dataclasses.replace(good(task), **{name: value}))
    assert "17" not in str(error.value) and "91" not in str(error.value)


@each("name, value", CASES, ids=str)
def test_the_gate_refuses_or_drops_a_wrong_value_of_every_field(name, value):
    """Results and wall times inform people: a wrong number among them is dropped, any other costs the whole answer."""
    task, changed = task_of(name), dataclasses.replace(good(task_of(name)), **{name: value})
    if task == "evaluate":
        found, refused = inspect_evaluation([changed], 2, ("a",), RANGES, personal=True)
        assert refused or "diary" not in found["site-1"]["personal"]
        assert refused or not found["site-1"]["personal"]["test"] or found["site-1"]["personal"]["test"] == {"auc": 0.6}
        return
    if name in ("sums", "adjusted", "benefit", "reports", "clinical"):
        return  # tests/unit/test_after.py, test_benefit.py, tests/attacks/test_clinical_attacks.py
    if name in ("sealed", "signed"):
        return  # the gate reads neither; tests/unit/test_secure_sums.py, test_countersigned.py
    verdict = GATE.inspect([changed, dataclasses.replace(good("train"), site="site-2")], MODEL, 2, {})
    assert [r.site for r in verdict.replies][-1] == "site-2"
    if name == "metrics":
        assert verdict.replies[0].metrics == {}
    elif name == "seconds":
        assert len(verdict.replies) == 2 and checked_seconds(value) == {k: v for k, v in value.items() if v == 60.0}
    else:
        assert [r.site for r in verdict.rejections] == ["site-1"]
        assert "91" not in verdict.rejections[0].detail


def test_a_missing_tensor_covers_no_wrong_one():
    wrong = {"proto/b": torch.full((3,), math.nan)}
    with pytest.raises(EgressRefused, match="tensor proto/b: nonfinite"):
        EGRESS.check("train", dataclasses.replace(good("train"), tensors=wrong))
    with pytest.raises(ValueError, match="tensor proto/b"):
        check_received(Instruction("train", Round(1, 2), MODEL, tensors=wrong), SLOTS)


def test_nothing_leaves_behind_a_view_of_something_larger():
    """A site copies what its parts send; a view that comes to the check all the same is refused."""
    scan = torch.arange(1000.0) / 1000
    for view in (scan[:3], scan[::400]):
        assert view.shape == (3,)
        with pytest.raises(EgressRefused, match="a view of a larger one"):
            EGRESS.check("train", dataclasses.replace(good("train"), tensors={"proto/a": view}))
    EGRESS.check("train", dataclasses.replace(good("train"), tensors={"proto/a": scan[:3].clone()}))


def test_what_is_accepted_reaches_the_rule():
    reply = GATE.inspect([good("train")], MODEL, 2, {}).replies[0]
    assert reply.measured == {"steps": 7.0} and reply.scalars == VALUES["scalars"]
    assert equal(reply.tensors, {"proto": {"a": torch.ones(3), "b": torch.arange(3.0)}})


@each(
    "tensors, code",
    [
        ({"proto/b": torch.ones(3)}, "tensor_missing"),
        ({"proto/a": torch.ones(3), "proto/c": torch.ones(3)}, "tensor_unknown"),
        ({"proto/a": torch.ones(3, dtype=torch.int64)}, "tensor_type"),
        ({"proto/a": torch.ones(3, 1)}, "tensor_shape"),
        ({"proto/a": torch.full((3,), math.inf)}, "tensor_nonfinite"),
        ({"proto/a": torch.full((3,), -10.5)}, "tensor_range"),
        (None, "tensor_type"),
    ],
)
def test_wrong_tensors_have_codes(tensors, code):
    verdict = GATE.inspect([dataclasses.replace(good("train"), tensors=tensors)], MODEL, 2, {})
    assert [r.code for r in verdict.rejections] == [code] and "\n" not in verdict.rejections[0].detail


def test_a_required_number_must_be_there():
    answer = dataclasses.replace(good("train"), scalars={"loss": 0.5})
    assert [r.code for r in GATE.inspect([answer], MODEL, 2, {}).rejections] == ["scalar_missing"]


def test_with_secure_sums_nothing_hidden_leaves_and_the_rest_leaves_once_it_is_masked():
    answer = good("train")
    first, rest = travelling(answer, "train"), rest_with_secure_sums(answer)
    assert (first.n_examples, first.steps, first.round) == (30, 7, 2)
    for name, spec in answer_fields().items():
        default = getattr(Answer("site-1"), name)
        if spec.secure in ("hidden", "masked") and spec.kind != "difference":
            assert getattr(first, name) == default
        if spec.secure == "hidden":
            assert getattr(rest, name) == default
    assert rest.metrics == {"auc": 0.5} and rest.update is answer.update


def test_tensors_follow_from_the_outline():
    spec = TensorSpec("proto", lambda outline: {str(c): (outline.features,) for c in range(outline.classes)}, "means")
    outline = Outline({"a": torch.zeros(4, 2), "head": torch.zeros(3, 4), "bias": torch.zeros(3)}, classes=3)
    assert slots_of([spec, spec], outline) == {f"proto/{c}": Slot((4,)) for c in range(3)}
    assert all(slot.required for slot in slots_of([spec], outline, wanted=["proto"]).values())
    tensors = {"proto": {"0": torch.ones(4)}, "other": {"x/y": torch.ones(1)}}
    assert equal(nested(flat(tensors)), tensors)


@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec("a/b", lambda o: {}, "")],
        [TensorSpec("a", lambda o: {}, "", bound=math.inf)],
        [TensorSpec("a", lambda o: {"x": (-1,)}, "")],
        [TensorSpec("a", lambda o: {1: (1,)}, "")],
        [TensorSpec("a", lambda o: {}, "one"), TensorSpec("a", lambda o: {}, "another")],
    ],
)
def test_declarations_that_are_none_are_one_line(specs):
    with pytest.raises(UserError) as error:
        slots_of(specs, Outline({}))
    assert "\n" not in str(error.value)


@each(
    "orders, tensors",
    [
        ({"rho": math.nan}, {}),
        ({"rho": "0.5"}, {}),
        ({7: 0.5}, {}),
        ({}, {"scan/1": torch.ones(3)}),
        ({}, {"proto/a": torch.ones(4)}),
        ({}, {"proto/a": torch.full((3,), math.nan)}),
    ],
)
def test_a_site_uses_nothing_from_the_server_that_its_parts_do_not_expect(orders, tensors):
    check_received(Instruction("train", Round(1, 2), MODEL, {"rho": 0.5}, tensors={"proto/b": torch.ones(3)}), SLOTS)
    with pytest.raises(ValueError):
        check_received(Instruction("train", Round(1, 2), MODEL, orders, tensors=tensors), SLOTS)


class Echo:
    """A transport that answers with what it was told to."""

    def __init__(self, *answers):
        self.answers = answers

    def sites(self):
        return ["site-1", "site-2"]

    def exchange(self, instructions):
        yield from self.answers


def test_bytes_are_counted_both_ways_and_nothing_that_an_answer_holds_breaks_the_count():
    class Liar(torch.Tensor):
        nbytes = "many"

    endless = {}
    endless["again"] = endless
    odd = Answer("site-2", 1, update={"weight": Liar()}, metrics=endless, scalars={"x": object()})
    traffic = Traffic(Echo(Answer("site-1", 1, update={"weight": torch.ones(2, 3)}, n_examples=3), odd))
    sent = Instruction("train", Round(1, 2), MODEL, tensors={"proto/a": torch.ones(3)})
    list(traffic.exchange({"site-1": sent, "site-2": sent, "site-3": Instruction("preflight", Round(1, 2), {})}))
    down = 6 * 4 + 8 + 3 * 4  # six and three float32 entries, an int64 buffer
    assert traffic.taken() == {"site-1": {"down": down, "up": 24 + 2 * 8}, "site-2": {"down": down, "up": 8}}
    assert traffic.taken() == {}
