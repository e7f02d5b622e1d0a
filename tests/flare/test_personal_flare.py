# SPDX-License-Identifier: Apache-2.0
"""Personal models in FLARE: what the egress filter lets through, and a simulator that is killed twice and goes on."""

import dataclasses
from pathlib import Path

import pytest
import torch
from killed_runs import kill_one_process
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fairflare.cli.main import main
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.memory import personal_file
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.egress import EgressFilter
from fairflare.flare.executor import FairExecutor
from fairflare.flare.wire import ERROR_HEADER, VALIDATE, answer_from_model, answer_to_shareable, validation_answer

KILLING = Path(__file__).parents[1] / "killing.py"
VALUES = {"images_per_site": 64, "test_images": 40, "site_test_images": 40, "model": "small-cnn-bn", "n_sites": 4}
DITTO = ("ditto", "--rule", "fedlwr", "--task", "support2:dirichlet", "--sites", "2", "--rounds", "3")
"""A rule that has a second exchange."""


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory):
    """The configuration, and real answers of a real site that keeps its BatchNorm."""
    memory = tmp_path_factory.mktemp("site") / "site-1.safetensors"
    config = make_config("fedbn", "digits:small", rounds=1, values=VALUES)
    parts = build_parts(config)
    site = build_site(config, parts, "site-1", memory=memory)
    tasks = ("preflight", "train", "evaluate")
    answers = {task: site.handle(Instruction(task, Round(1, 1), parts.model)) for task in tasks}
    return config, answers, read_tensors(personal_file(memory))


def filtered(config, task, answer):
    context = FLContext()
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    return EgressFilter(config.to_json()).process(answer_to_shareable(answer), context)


def refused(config, task, answer):
    result = filtered(config, task, answer)
    assert result.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    return result.get_header(ERROR_HEADER)


@pytest.mark.parametrize("task", ["preflight", "train", "evaluate"])
def test_what_was_agreed_on_passes_and_arrives(task, fedbn):
    config, answers, _ = fedbn
    passed = filtered(config, task, answers[task])
    assert passed.get_return_code() in (None, ReturnCode.OK)
    arrived = answer_from_model(FLModelUtils.from_shareable(passed), site="site-1")
    assert arrived.personal == answers[task].personal and bool(arrived.personal) == (task == "evaluate")
    assert not any("running_mean" in key for key in arrived.update or ())


def test_no_personal_entry_and_no_personal_model_leaves(fedbn):
    config, answers, model = fedbn
    floating = {key: value for key, value in model.items() if value.is_floating_point()}
    norm = {key: value for key, value in floating.items() if key not in answers["train"].update}
    assert norm
    mixed = dataclasses.replace(answers["train"], update={**answers["train"].update, **norm})
    whole = dataclasses.replace(answers["train"], update=floating)
    assert "names are not the model's" in refused(config, "train", mixed)
    assert "weights in an answer to submit_model" in refused(config, "submit_model", whole)
    hidden = dataclasses.replace(answers["evaluate"], personal={"test": norm})
    assert "a name that is not on the list" in refused(config, "evaluate", hidden)
    early = dataclasses.replace(answers["train"], personal=answers["evaluate"].personal)
    assert "personal: a name that is not on the list" in refused(config, "train", early)
    reply = FairExecutor(config.to_json()).execute("submit_model", Shareable(), FLContext(), Signal())
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN


def test_flares_evaluation_workflows_are_told_of_the_shared_model_alone(fedbn):
    config, answers, _ = fedbn
    told = validation_answer(answers["evaluate"])
    assert told.personal == {} and set(told.metrics) == {
        f"{split}_{name}" for split in ("val", "test") for name in answers["evaluate"].metrics[split]
    }
    assert filtered(config, VALIDATE, told).get_return_code() in (None, ReturnCode.OK)


def personal(folder):
    return {path.name: read_tensors(path) for path in sorted((folder / "sites").glob("*.personal.safetensors"))}


def test_a_killed_simulator_goes_on_to_the_personal_models_of_an_uninterrupted_run(tmp_path, monkeypatch):
    """A site's process dies in round 2, in the middle of training. The run is resumed, and its server dies with half of
    the third checkpoint on disk; the other run is in this process.
    """
    folder, whole = tmp_path / "run", tmp_path / "whole"
    with pytest.raises(SystemExit) as done:
        main(["run", *DITTO, "--out", str(whole)])
    assert not done.value.code
    commands = {"training": ["run", *DITTO, "--env", "sim", "--out", folder], "writing state": ["resume", folder]}
    for point, command in commands.items():
        (tmp_path / point).mkdir()
        kill_one_process(command, point, (KILLING,), tmp_path / point, monkeypatch)
    with pytest.raises(SystemExit) as done:
        main(["resume", str(folder)])
    assert not done.value.code
    entries, last = (verify(at / "audit.jsonl") for at in (folder, whole))
    assert [e["from_round"] for e in entries if e["event"] == "resume"] == [1, 2]
    # A round whose checkpoint was lost is repeated, and the repetition is what counts.
    assert [e["round"] for e in entries if e["event"] == "round"] == [1, 2, 3, 3]
    assert [e["status"] for e in (entries[-2], last[-2])] == ["completed"] * 2
    assert entries[-2]["model_sha256"] == last[-2]["model_sha256"]
    found, expected = personal(folder), personal(whole)
    assert len(found) == 2 and found.keys() == expected.keys()
    assert all(torch.equal(found[site][key], value) for site in found for key, value in expected[site].items())
    assert {item.name for item in (folder / "sites").glob("*.personal.safetensors")} == found.keys()
