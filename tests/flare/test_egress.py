# SPDX-License-Identifier: Apache-2.0
"""The egress filter on results as FLARE carries them: what is agreed on passes, everything else becomes an error."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsData
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from cases import each
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare import egress
from fairflare.flare.egress import MASK, EgressFilter
from fairflare.flare.executor import FairExecutor
from fairflare.flare.wire import (
    ERROR_HEADER,
    VALIDATE,
    answer_to_shareable,
    validation_answer,
    validation_from_shareable,
)

CONFIG = make_config("fedufo", "support2", rounds=2)


@pytest.fixture(scope="module")
def answers():
    """Real answers of a real site to every task of a round."""
    parts = build_parts(CONFIG)
    site = build_site(CONFIG, parts, "site-4")
    first = Round(1, 2)
    made = {task: site.handle(Instruction(task, first, parts.model)) for task in ("preflight", "train", "evaluate")}
    asked = DXO(DataKind.WEIGHTS, data={key: value.numpy() for key, value in parts.model.items()}).to_shareable()
    return made | {VALIDATE: validation_answer(site.handle(validation_from_shareable(asked)))}


def filtered(task, shareable):
    context = FLContext()
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    return EgressFilter(CONFIG.to_json()).process(shareable, context)


@pytest.mark.parametrize("task", ["preflight", "train", "evaluate", VALIDATE])
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
    return from_shareable(answer_to_shareable(answers["train"]))


@each(
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


def test_a_validation_holds_the_metrics_of_an_evaluation_and_no_counts(answers):
    """One number per name, as FLARE's evaluation workflows read them: no groups, no sizes of splits."""
    told, asked = answers[VALIDATE], answers["evaluate"]
    assert told.n_examples is None
    assert told.metrics == {f"{s}_{name}": v for s in ("val", "test") for name, v in asked.metrics[s].items()}
    assert "test_loss" in told.metrics and "groups" in asked.metrics


@each(
    "metrics, reason",
    [
        ({"val_auc": 17.0}, "metric auc: outside"),
        ({"val_auc": math.nan}, "metric auc: not a finite number"),
        ({"val_patients": 0.5}, "metric: a name that is not on the list"),
        ({"train_loss": 0.5}, "unreadable: ValueError"),
        ({"val": {"auc": 0.5}}, "metric: a name that is not on the list"),
        ({"groups": {"val": {}}}, "unreadable: ValueError"),
        ({7: 0.5}, "unreadable: ValueError"),
    ],
)
def test_numbers_that_no_evaluation_has_do_not_leave_with_a_validation(metrics, reason, answers):
    other = dataclasses.replace(answers[VALIDATE], metrics=metrics)
    assert reason in refused(VALIDATE, answer_to_shareable(other))


def test_no_model_leaves_with_a_validation_and_none_is_submitted(answers):
    loaded = dataclasses.replace(answers[VALIDATE], update=answers["train"].update)
    assert "weights in an answer to evaluate" in refused(VALIDATE, answer_to_shareable(loaded))
    assert "weights in an answer to submit_model" in refused("submit_model", answer_to_shareable(answers["train"]))
    reply = FairExecutor(CONFIG.to_json()).execute("submit_model", Shareable(), FLContext(), Signal())
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN


def test_a_difference_is_no_model_to_validate(answers):
    with pytest.raises(ValueError, match="model to validate: expected weights"):
        validation_from_shareable(answer_to_shareable(answers["train"]))


@pytest.mark.parametrize(
    "mask, reason",
    [
        (None, "nobody masked"),
        (lambda answer: answer, "nobody masked"),
        (lambda answer: dataclasses.replace(answer, update_kind="masked"), "nobody masked"),
        (lambda answer: dataclasses.replace(answer, error="egress: weights w: not finite", update=None), "not finite"),
    ],
    ids=["none", "another", "only its name", "a site that refuses"],
)
def test_with_secure_sums_no_update_leaves_the_filter_in_the_clear(mask, reason, answers, monkeypatch):
    config = make_config("fedism", "support2", rounds=2, values={"secure_sum": "masks"})
    monkeypatch.setattr(egress, "vouch_for_code", lambda context: None)
    context = FLContext()
    context.set_prop(FLContextKey.TASK_NAME, "weigh", private=True, sticky=False)
    if mask is not None:
        context.set_prop(MASK, mask, private=True, sticky=False)
    sent = dataclasses.replace(answers["train"], scalars={}, metrics={"auc": 0.75})
    result = EgressFilter(config.to_json()).process(answer_to_shareable(sent), context)
    assert result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR and "DXO" not in result
    assert reason in result.get_header(ERROR_HEADER)


def place(local):
    """A site's workspace, whose own configuration lies in ``local``."""
    return SimpleNamespace(get_site_config_dir=lambda: str(local))


FEW = {"n": 60.0, "positives": 12.0, "brier": 0.2}


@pytest.mark.parametrize("own, leaves", [("min_count: 5", True), ("min_count: 13", False), ("clinical: false", False)])
def test_the_last_look_keeps_to_the_sites_own_minimum(own, leaves, answers, monkeypatch, tmp_path):
    """A job may ask for less than a site gives, and not for more."""
    (tmp_path / "fairflare_site.yaml").write_text(own)
    monkeypatch.setattr(egress, "vouch_for_code", lambda context: None)
    engine = SimpleNamespace(fire_event=lambda event, context: None, get_workspace=lambda: place(tmp_path))
    manager = FLContextManager(engine, "site-4", "job", {}, {})
    with manager.new_context() as context:
        context.set_prop(FLContextKey.TASK_NAME, "evaluate", private=True, sticky=False)
        told = dataclasses.replace(answers["evaluate"], clinical=FEW)
        code = EgressFilter(CONFIG.to_json()).process(answer_to_shareable(told), context).get_return_code()
    assert (code in (None, ReturnCode.OK)) == leaves


@pytest.mark.parametrize("seal, task", [("none", "train"), ("masks", "weigh")])
def test_receivers_at_a_site_hear_what_leaves_and_nothing_more(seal, task, answers, monkeypatch, tmp_path):
    """Local events; a job could have FLARE send them on, past all filters. With secure sums they hold no loss."""
    config = make_config("fedism", "support2", rounds=2, values={"secure_sum": seal})
    heard = []

    def masked(answer):
        return dataclasses.replace(answer, update={k: v.long() for k, v in answer.update.items()}, update_kind="masked")

    def fire(event, context):
        data = AnalyticsData.from_dxo(from_shareable(context.get_prop(FLContextKey.EVENT_DATA)))
        heard.append((event, data.tag, data.value, data.step))

    monkeypatch.setattr(egress, "vouch_for_code", lambda context: None)
    engine = SimpleNamespace(fire_event=fire, get_workspace=lambda: place(tmp_path))
    manager = FLContextManager(engine, "site-4", "job", {}, {})
    metrics = {"auc": 0.75} | ({"loss": 0.5} if seal == "none" else {})
    for extra in ({}, {"loss": 0.5} if seal == "masks" else {"patients": 17.0}):
        with manager.new_context() as context:
            context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
            context.set_prop(MASK, masked, private=True, sticky=False)
            told = dataclasses.replace(answers["train"], scalars={}, metrics=metrics | extra, update_kind="diff")
            filter = EgressFilter(config.to_json())
            code = filter.process(answer_to_shareable(told), context).get_return_code()
            assert code == (ReturnCode.TASK_RESULT_FILTER_ERROR if extra else ReturnCode.OK)
    local = [(event, *rest) for event, *rest in heard if event == ANALYTIC_EVENT_TYPE]
    assert local == [(ANALYTIC_EVENT_TYPE, f"score/{name}", value, 1) for name, value in metrics.items()]
