# SPDX-License-Identifier: Apache-2.0
"""A server that asks for the benefit of joining as often as it likes, and of models of its choice."""

import pytest

from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.memory import AskedAgain
from fairflare.engine.setup.assembly import build_site, leaves
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.site_policy import Policy

ROUNDS = 2
LAST = Round(ROUNDS, ROUNDS)


class Victim:
    """A site of a run with ``solo``; ``values``: further settings."""

    def __init__(self, folder=None, **values):
        self.config = make_config("fedavg", "heart:full", rounds=ROUNDS, values={"solo": "true", **values})
        self.parts, self.folder = build_parts(self.config), folder
        self.model = {key: value + 0.1 for key, value in self.parts.model.items()}
        self.restart()

    def restart(self):
        file = None if self.folder is None else self.folder / "VA.safetensors"
        self.site = build_site(self.config, self.parts, "VA", memory=file)

    def ask(self, task, model=None, round=LAST):
        default = self.parts.model if task == "solo" else self.model
        return self.site.handle(Instruction(task, round, default if model is None else model))

    def other(self, by=0.2):
        return {key: value + by for key, value in self.parts.model.items()}


@pytest.mark.parametrize("task", ["solo", "benefit"])
def test_it_is_said_after_the_last_round_alone(task):
    victim = Victim()
    if task == "benefit":
        victim.ask("solo")
    for round in (Round(1, ROUNDS), Round(1, 1), Round(3, 3)):
        with pytest.raises(AskedAgain, match="before the last round"):
            victim.ask(task, round=round)


def test_it_is_not_said_before_the_site_has_trained_alone():
    with pytest.raises(AskedAgain, match="before the site has trained"):
        Victim().ask("benefit")


@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_said_of_one_model_also_after_a_restart(tmp_path, restarted):
    victim = Victim(tmp_path)
    victim.ask("solo")
    first = victim.ask("benefit").benefit
    if restarted:
        victim.restart()
        victim.ask("solo")
    assert victim.ask("benefit").benefit == first
    for task in ("benefit", "solo"):
        with pytest.raises(AskedAgain, match=f"{task} with another model than the first"):
            victim.ask(task, victim.other())


def test_calibration_cases_are_still_asked_for_first(tmp_path):
    """What was noted of one question does not stand for another."""
    victim = Victim(after="recalibrate")
    victim.ask("solo")
    victim.ask("benefit")
    orders = {str(i): 0.0 for i in range(victim.site.exchanges["after"].terms)}
    with pytest.raises(AskedAgain, match="results before the sums"):
        victim.site.handle(Instruction("adjust", LAST, victim.model, orders))


def test_the_model_trained_alone_does_not_leave():
    victim = Victim()
    answers = [victim.ask("solo"), victim.ask("benefit")]
    assert answers[0].benefit == {"rounds": float(ROUNDS)}
    assert all(answer.update is None and not answer.tensors and not answer.metrics for answer in answers)
    egress = leaves(victim.config, victim.parts, 10)
    with pytest.raises(EgressRefused, match="weights in an answer to solo"):
        egress.check("solo", Answer("VA", ROUNDS, update=victim.site.exchanges["benefit"].alone.model))
    with pytest.raises(EgressRefused, match="not on the list"):
        egress.check("benefit", Answer("VA", ROUNDS, benefit={"solo.accuracy/patient 17": 1.0}))


@pytest.mark.parametrize("task", ["solo", "benefit"])
def test_a_run_without_the_question_answers_nothing_of_it(task):
    victim = Victim()
    victim.config = make_config("fedavg", "heart:full", rounds=ROUNDS)
    victim.restart()
    with pytest.raises(ValueError, match="unknown task"):
        victim.ask(task)
    with pytest.raises(EgressRefused):
        leaves(victim.config, victim.parts, 10).check(task, Answer("VA", ROUNDS, benefit={"n": 45.0}))


def test_a_site_may_refuse_to_say_it():
    config = make_config("fedavg", "heart", values={"solo": "true"})
    for steps in ([], ["recalibrate"]):
        with pytest.raises(UserError, match="solo: expected false"):
            Policy(after=steps).check(config)
    Policy(after=["solo"]).check(config)
    Policy().check(config)
