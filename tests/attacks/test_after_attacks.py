# SPDX-License-Identifier: Apache-2.0
"""A server that wants more than the sums of all sites in the step after the last round."""

import numpy as np
import pytest

from fairflare.build.assembly import build_site, site_names
from fairflare.build.config import make_config
from fairflare.build.parts import build_parts
from fairflare.core.types import Round
from fairflare.federation.messages import Instruction
from fairflare.privacy.secure_sum.pairwise import combine
from fairflare.privacy.secure_sum.protocol import SumRefused

LAST = Round(1, 1)
VICTIM = "VA"


class Federation:
    """Four sites of a run with secure sums, their statements, and its model."""

    def __init__(self, **values):
        chosen = {"secure_sum": "masks", "after": "recalibrate", "group_by": "sex", **values}
        self.config = make_config("fedism", "heart:full", rounds=1, values=chosen)
        self.parts = build_parts(self.config)
        self.model = {key: value + 0.1 for key, value in self.parts.model.items()}
        self.sites = {name: build_site(self.config, self.parts, name) for name in site_names(self.config)}
        asked = {name: site.handle(Instruction("preflight", LAST, {})) for name, site in self.sites.items()}
        self.statements = {name: answer.sealed for name, answer in asked.items()}

    def ask(self, name, task="calibrate", model=None, names=None, attempt=0, **content):
        roster = {site: self.statements[site] for site in names or self.sites}
        sealed = {"attempt": attempt, "statements": roster, **content}
        return self.sites[name].handle(Instruction(task, LAST, model or self.model, sealed=sealed))

    def sealed(self):
        return {name: self.ask(name).sealed["sum"] for name in self.sites}


@pytest.fixture
def federation():
    return Federation()


def test_the_server_sees_the_sums_of_all_and_no_site_alone(federation):
    sealed = federation.sealed()
    total = combine(list(sealed.values()))
    assert 0 < total[0] < 200 and np.array(total).min() >= 0
    for fewer in ([VICTIM], [name for name in sealed if name != VICTIM]):
        with pytest.raises(SumRefused, match="do not cancel"):
            combine([sealed[name] for name in fewer])
    answers = [federation.ask(name, "adjust", sums=sealed) for name in federation.sites]
    assert {answer.adjusted["n_all"] for answer in answers} == {total[0]}
    for answer in answers:
        assert answer.error is None and answer.sums is None
        assert not [name for name in answer.adjusted if name in ("own.intercept", "own.slope", "n_calibration")]


def test_a_second_model_is_not_summed_for(federation):
    """The difference of two sums over the same sites would be about the model, of fewer about the site that is gone."""
    federation.sealed()
    other = {key: value + 1.0 for key, value in federation.model.items()}
    for attempt, names in ((0, None), (1, None), (1, ["Cleveland", "Hungary", VICTIM])):
        with pytest.raises(SumRefused):
            federation.ask(VICTIM, model=other, attempt=attempt, names=names)


def test_sites_that_are_sent_different_models_have_no_sum(federation):
    other = {key: value + 1.0 for key, value in federation.model.items()}
    sealed = {
        name: federation.ask(name, model=other if name == VICTIM else None).sealed["sum"] for name in federation.sites
    }
    with pytest.raises(SumRefused):
        combine(list(sealed.values()))


@pytest.mark.parametrize("names", [[VICTIM], [VICTIM, "Hungary"], ["Cleveland", "Hungary", "Switzerland"]])
def test_sums_that_would_single_a_site_out_are_refused(federation, names):
    with pytest.raises(SumRefused):
        federation.ask(VICTIM, names=names)


def test_made_up_sums_are_not_fitted_to(federation):
    sealed = federation.sealed()
    changed = {**sealed, "Hungary": bytes(len(sealed["Hungary"]))}
    fewer = {name: one for name, one in sealed.items() if name != "Hungary"}
    for sums in (changed, fewer, {}, "none"):
        with pytest.raises(SumRefused):
            federation.ask(VICTIM, "adjust", sums=sums)


def test_results_are_not_given_before_the_sums(federation):
    with pytest.raises(SumRefused):
        federation.ask(VICTIM, "adjust", sums={})


@pytest.mark.parametrize("task", ["calibrate", "adjust"])
def test_a_run_without_the_step_answers_nothing_of_it(task):
    federation = Federation(after="none")
    with pytest.raises(ValueError, match="unknown task"):
        federation.ask(VICTIM, task)
