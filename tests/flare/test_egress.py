# SPDX-License-Identifier: Apache-2.0
"""The egress filter on results as FLARE carries them: what is agreed on passes, everything else becomes an error."""

import math

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.assembly import build_parts, build_site
from fairflare.config import make_config
from fairflare.contracts import Round
from fairflare.federation.messages import Instruction
from fairflare.flare.egress import EgressFilter
from fairflare.flare.wire import ERROR_HEADER, answer_to_shareable

CONFIG = make_config("fedufo", "support2", rounds=2)


@pytest.fixture(scope="module")
def answers():
    """Real answers of a real site to every task of a round."""
    parts = build_parts(CONFIG)
    site = build_site(CONFIG, parts, "site-4")
    first = Round(1, 2)
    return {task: site.handle(Instruction(task, first, parts.model)) for task in ("preflight", "train", "evaluate")}


def filtered(task, shareable):
    context = FLContext()
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    return EgressFilter(CONFIG.to_json()).process(shareable, context)


@pytest.mark.parametrize("task", ["preflight", "train", "evaluate"])
def test_real_answers_pass_unchanged(task, answers):
    before = FLModelUtils.from_shareable(answer_to_shareable(answers[task]))
    passed = filtered(task, answer_to_shareable(answers[task]))
    assert passed.get_return_code() in (None, ReturnCode.OK)
    after = FLModelUtils.from_shareable(passed)
    assert after.meta == before.meta and after.metrics == before.metrics
    assert (after.current_round, after.total_rounds) == (before.current_round, before.total_rounds)
    assert (after.params is None) == (before.params is None)
    assert all(torch.equal(value, after.params[key]) for key, value in (before.params or {}).items())


def refused(task, shareable):
    result = filtered(task, shareable)
    assert result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "DXO" not in result and "data" not in result
    return result.get_header(ERROR_HEADER)


def dxo_of(answers):
    from nvflare.apis.dxo import from_shareable

    return from_shareable(answer_to_shareable(answers["train"]))


@pytest.mark.parametrize(
    "meta, reason",
    [
        ({"diary": "patient 17"}, "meta"),
        ({"scalars": {"loss": math.nan}}, "scalar loss: not a finite number"),
        ({"scalars": {"loss": 1e9}}, "scalar loss: outside"),
        ({"scalars": {"oldest": 91.0}}, "scalar: a name that is not on the list"),
        ({"n_examples": -1}, "count n_examples"),
        ({"seconds": {"lunch": 60.0}}, "seconds"),
        ({"round": {"patient": 17}}, "meta: version or round"),
        ({"fairflare": torch.arange(1000)}, "meta"),
    ],
)
def test_numbers_that_are_not_agreed_on_do_not_leave(meta, reason, answers):
    dxo = dxo_of(answers)
    dxo.meta.update(meta)
    found = refused("train", dxo.to_shareable())
    assert reason in found and "17" not in found and "91" not in found


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_weights_do_not_leave(value, answers):
    dxo = dxo_of(answers)
    key = next(iter(dxo.data))
    dxo.data = {**dxo.data, key: torch.full_like(dxo.data[key], value)}
    assert "not finite" in refused("train", dxo.to_shareable())


def test_more_tensors_than_the_model_has_do_not_leave(answers):
    dxo = dxo_of(answers)
    dxo.data = {**dxo.data, "images": torch.zeros(3, 3)}
    assert "names are not the model's" in refused("train", dxo.to_shareable())


def test_whole_weights_in_place_of_differences_do_not_leave(answers):
    dxo = dxo_of(answers)
    assert "not differences" in refused("train", DXO(DataKind.WEIGHTS, dxo.data, dxo.meta).to_shareable())


def test_what_cannot_be_read_does_not_leave():
    """FLARE's own DXO filters let this pass."""
    shareable = Shareable()
    shareable["patients"] = ["a", "b"]
    assert "unreadable" in refused("train", shareable)


def test_weights_do_not_leave_with_an_evaluation(answers):
    assert "weights in an answer to evaluate" in refused("evaluate", answer_to_shareable(answers["train"]))


def test_stowaways_are_left_behind(answers):
    shareable = answer_to_shareable(answers["train"])
    shareable["diary"] = "patient 17"
    shareable.set_header("note", "patient 17")
    assert "patient 17" not in str(filtered("train", shareable))


def test_errors_of_the_executor_pass_with_their_names_alone(answers):
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION, {ERROR_HEADER: "ValueError", "path": "/data/patient 17"})
    reply["diary"] = "patient 17"
    passed = filtered("train", reply)
    assert passed.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert passed.get_header(ERROR_HEADER) == "ValueError" and "patient 17" not in str(passed)
    loaded = answer_to_shareable(answers["train"])
    loaded.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    assert "DXO" not in filtered("train", loaded)
    strange = make_reply(ReturnCode.EXECUTION_EXCEPTION, {ERROR_HEADER: "/data/patient 17/scan.dcm: unreadable"})
    assert filtered("train", strange).get_header(ERROR_HEADER) is None


@pytest.mark.parametrize("data", [None, {}])
def test_a_result_without_data_is_no_training_result(data, answers):
    dxo = dxo_of(answers)
    shareable = dxo.to_shareable()
    shareable["DXO"] = {**shareable["DXO"], "data": data} if "DXO" in shareable else data
    assert filtered("train", shareable).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
