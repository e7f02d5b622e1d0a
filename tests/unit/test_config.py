# SPDX-License-Identifier: Apache-2.0
"""Configurations: defaults, precedence, errors in one line, and the round trip through JSON."""

import dataclasses
import json
from typing import Literal

import pytest

from cases import each
from fairflare.core import registry, validation
from fairflare.core.errors import UserError
from fairflare.data.site_config import SiteConfig
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import build_parts

TASK = "support2"


def test_precedence_task_then_user():
    plain = make_config("fedavg", TASK)
    method = make_config("fedism-plus", TASK)
    user = make_config("fedism-plus", TASK, values={"logit_tau": "0.5", "q": "3", "lr": "0.01"}, rounds=7)
    assert (plain.training.logit_tau, method.training.logit_tau, user.training.logit_tau) == (0.0, 0.0, 0.5)
    assert (method.settings["rule.q"], user.settings["rule.q"]) == (2.0, 3.0)
    assert (user.training.lr, user.training.rounds) == (0.01, 7)


def test_fedism_is_fedism_plus_at_a_constant_radius():
    one, plus = make_config("fedism", TASK).settings, make_config("fedism-plus", TASK).settings
    unlike = {f"{owner}.{key}" for owner in ("trainer", "probe.sharpness") for key in ("rho_max", "rho_tau")}
    assert {k for k in one if one[k] != plus[k]} == unlike


def test_trainer_and_probe_share_the_radius():
    parts = build_parts(make_config("fedism-plus", TASK, values={"rho_max": 0.3}))
    assert parts.probes[0].rho_max == 0.3


def test_reference_variant_switches_everything_that_differs():
    found = make_config("fedism-plus", TASK, values={"variant": "reference"}).settings
    assert found["rule.variant"] == "reference" and found["probe.sharpness.probe_transform"] == "train"
    kept = make_config("fedism-plus", TASK, values={"variant": "reference", "probe_transform": "eval"}).settings
    assert kept["probe.sharpness.probe_transform"] == "eval"


def test_trainers_that_exchange_nothing_combine_with_any_rule_that_needs_nothing_of_them():
    for method in sorted(set(registry.methods()) - {"fedufo", "flexfair"}):
        for trainer in ("sgd", "gsam", "fedprox"):
            assert make_config(method, TASK, values={"trainer": trainer, "optimizer": "sgd"}).trainer == trainer


@pytest.mark.parametrize(
    "values, words",
    [
        ({"optimizer": "adam"}, "scaffold: SCAFFOLD expects optimizer=sgd, got adam; any other with trainer.estimate"),
        ({"optimizer": "sgd", "keep_optimizer": True}, "scaffold: SCAFFOLD expects keep_optimizer=false with momentum"),
    ],
)
def test_a_trainer_that_does_not_suit_the_training_is_refused_with_the_reason(values, words):
    with pytest.raises(UserError, match=words):
        make_config("scaffold", TASK, values=values)
    assert make_config("scaffold", TASK, values={**values, "estimate": "gradient"}).method == "scaffold"


def test_gsam_only_runs_no_probe():
    assert build_parts(make_config("fedism-plus", TASK, values={"weighting": "examples"})).probes == ()


@each("method", registry.methods())
def test_round_trip(method):
    config = make_config(method, TASK, seed=3, values={"optimizer": "sgd"})
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config and again.sha256() == config.sha256()


BAD = [
    (("nosuch", TASK), {}, "unknown method 'nosuch'; known: .*fedavg"),
    (("fedavg", "nosuch"), {}, "unknown task.*nosuch.*known: .*support2"),
    (("fedavg", "support2:huge"), {}, "unknown preset.*huge.*known: default"),
    (("fedavg", TASK), {"values": {"qq": 1}}, "unknown key 'qq'; known: .*lr"),
    (("fedavg", TASK), {"values": {"q": 1}}, "unknown key 'q'"),
    (("fedism", TASK), {"values": {"q": "two"}}, "q: expected a number, got 'two'"),
    (("fedism", TASK), {"values": {"q": -1}}, "q must be finite and >= 0, got -1.0"),
    (("fedism", TASK), {"values": {"state": "X"}}, "state: expected one of S, L, got 'X'"),
    (("fedavg", TASK), {"rounds": 0}, "rounds: expected a whole number from 1 to 1000000, got 0"),
    (("fedavg", TASK), {"values": {"epochs": 1.5}}, "epochs: expected a whole number, got 1.5"),
    (("fedavg", TASK), {"values": {"lr": 0}}, "lr must be finite and > 0, got 0"),
    (("fedavg", TASK), {"values": {"lr": "nan"}}, "lr"),
    (("fedavg", TASK), {"values": {"optimizer": "lion"}}, "optimizer: expected one of adam, sgd, got 'lion'"),
    (("fedavg", TASK), {"values": {"trainer": "lion"}}, "unknown trainer 'lion'; known: .*gsam"),
    (("fedavg", "support2:dirichlet"), {"sites": 1}, "n_sites.*1"),
    (("fedavg", TASK), {"seed": -1}, "seed: expected a whole number from 0 to 9007199254740992, got -1"),
    (("fedavg", TASK), {"values": {"clients": "a,b,c,A"}}, "clients: expected 4 different names"),
    (
        ("fedavg", TASK),
        {"values": {"task_timeout": 0}},
        "task_timeout: expected a whole number from 1 to 2592000, got 0",
    ),
    (("fedavg", TASK), {"values": {"min_sites": 9}}, "min_sites: expected at most the task's 4 sites, got 9"),
]


@each("positional, keywords, message", BAD)
def test_mistakes_are_one_line(positional, keywords, message):
    with pytest.raises(UserError, match=message) as error:
        make_config(*positional, **keywords)
    assert "\n" not in str(error.value)


@each(
    "change, message",
    [
        ({"seed": "x"}, "seed: expected a whole number, got 'x'"),
        ({"seed": True}, "seed: expected a whole number, got True"),
        ({"seed": -1}, "seed: expected a whole number from 0 to 9007199254740992, got -1"),
        ({"seeds": 1}, "unknown key 'seeds'; did you mean seed?"),
        ({"tune": "neck"}, "tune: expected one of all, head, norm, lora, got 'neck'"),
        ({"cap_weights": "most"}, "cap_weights: expected a number or one of auto, spread, got 'most'"),
        ({"cap_weights": 2.0}, "cap_weights: expected a number from 0 to 1 or one of auto, spread, got 2.0"),
        ({"code": {"net": 3}}, "code: net: expected text, got 3"),
        ({"clients": ["a", "b/c", "d", "e"]}, "clients: expected a name of letters, digits, - and _, got 'b/c'"),
        ({"min_sites": 9}, "min_sites: expected at most the task's 4 sites, got 9"),
        ({"training": {"rounds": 3}}, "training: expected a Training, got {'rounds': 3}"),
    ],
)
def test_a_configuration_is_valid_by_construction(change, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(make_config("fedavg", TASK), **change)
    assert str(error.value) == message


def test_a_sites_own_file_is_valid_by_construction():
    assert SiteConfig(cache_rate=1).cache_rate == 1.0
    for keys, message in (
        ({"gpu": "first"}, "gpu: expected a whole number, got 'first'"),
        ({"gpu": 0, "gpus": "1"}, ""),
    ):
        with pytest.raises(UserError, match=message or "gpus: expected gpu or gpus, got 'both'"):
            SiteConfig(**keys)


@each(
    "hint, text, value",
    [
        (int, "2.0", 2),
        (float, "1e-3", 0.001),
        (bool, "false", False),
        (bool, 1, True),
        (int | None, "none", None),
        (str | None, "none", None),
        (str, "2", "2"),
        (float | Literal["auto"], "auto", "auto"),
        (float | Literal["auto"], "0.5", 0.5),
    ],
)
def test_a_command_lines_text_is_the_value_that_it_stands_for(hint, text, value):
    cls = dataclasses.make_dataclass("One", [("x", hint)])
    assert (found := validation.parsed(cls, "x", text)) == value and type(found) is type(value)


@each(
    "hint, text",
    [(int, "1_0"), (float, "1_0.5"), (float, "nan"), (bool, "2"), (int, "9" * 5000), (int, True), (int, "")],
)
def test_a_text_that_is_no_value_is_refused(hint, text):
    cls = dataclasses.make_dataclass("One", [("x", hint)])
    with pytest.raises(UserError, match="^x: expected (a number|a whole number|true or false)") as error:
        validation.parsed(cls, "x", text)
    assert len(str(error.value)) < 200


def test_other_formats_are_refused():
    with pytest.raises(UserError, match="expected format 2, got 9"):
        RunConfig.from_json({**make_config("fedavg", TASK).to_json(), "format": 9})
    content = make_config("fedavg", TASK).to_json()
    del content["seed"]
    with pytest.raises(UserError, match="'seed'"):
        RunConfig.from_json(content)
