# SPDX-License-Identifier: Apache-2.0
"""A server that wants more than the sums of all sites in the step after the last round."""

import numpy as np
import pytest

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.combination import Plain
from fairflare.engine.memory import Asked, AskedAgain
from fairflare.engine.setup.assembly import build_site, server_part, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.privacy.identity import Credentials
from fairflare.privacy.secure_sums import combine
from fairflare.privacy.sum_protocol import SumOrder, SumRefused

ROUNDS = 4
LAST = Round(ROUNDS, ROUNDS)
VICTIM = "VA"


class Federation:
    """Four sites of a run with secure sums, their statements, and its model.

    Args:
        folder: where the sites keep their memories; None: in the process.
        ledgers: where they keep what they have answered over jobs.
        values: further settings of the run.
    """

    def __init__(self, folder=None, ledgers=None, **values):
        chosen = {"secure_sum": "masks", "after": "recalibrate", "group_by": "sex", **values}
        self.config = make_config("fedism", "heart:full", rounds=ROUNDS, values=chosen)
        self.parts = build_parts(self.config)
        self.model = {key: value + 0.1 for key, value in self.parts.model.items()}
        self.folder, self.ledgers = folder, ledgers
        self.restart()

    def restart(self):
        """New processes at all sites, with new keys."""
        files = {name: self.folder and self.folder / f"{name}.safetensors" for name in site_names(self.config)}
        kept = {name: {"memory": file, "ledger": self.ledgers and self.ledgers / name} for name, file in files.items()}
        self.sites = {name: build_site(self.config, self.parts, name, **kept[name]) for name in files}
        asked = {name: site.handle(Instruction("preflight", LAST, {})) for name, site in self.sites.items()}
        self.statements = {name: answer.sealed for name, answer in asked.items()}

    def ask(self, name, task="calibrate", model=None, names=None, attempt=0, round=LAST, **content):
        roster = {site: self.statements[site] for site in names or self.sites}
        sealed = {"attempt": attempt, "statements": roster, **content}
        return self.sites[name].handle(Instruction(task, round, model or self.model, sealed=sealed))

    def sealed(self):
        return {name: self.ask(name).sealed["sum"] for name in self.sites}

    def calibrate(self, name=VICTIM, round=LAST, **model):
        """A site's sums in the clear."""
        return self.sites[name].handle(Instruction("calibrate", round, model or self.model)).sums

    def adjust(self, total, name=VICTIM, round=LAST):
        orders = {str(i): value for i, value in enumerate(total)}
        return self.sites[name].handle(Instruction("adjust", round, self.model, orders)).adjusted

    @property
    def terms(self):
        return self.sites[VICTIM].exchanges["after"].terms

    def other(self):
        return {key: value + 1.0 for key, value in self.model.items()}


@pytest.fixture
def federation():
    return Federation()


@pytest.fixture(params=[False, True], ids=["one process", "restarted"])
def clear(request, tmp_path):
    """Sites whose sums are in the clear, and what may happen between two questions: nothing, or a restart."""
    federation = Federation(tmp_path, secure_sum="none")
    federation.between = federation.restart if request.param else lambda: None
    return federation


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
        for known in (federation.sites[VICTIM].asked, Asked()):
            federation.sites[VICTIM].asked = known
            with pytest.raises((SumRefused, AskedAgain)):
                federation.ask(VICTIM, model=other, attempt=attempt, names=names)


def test_sites_that_are_sent_different_models_have_no_sum(federation):
    other = {key: value + 1.0 for key, value in federation.model.items()}
    sealed = {
        name: federation.ask(name, model=other if name == VICTIM else None).sealed["sum"] for name in federation.sites
    }
    with pytest.raises(SumRefused):
        combine(list(sealed.values()))


def test_nothing_is_summed_before_the_last_round(federation):
    """In each of several rounds another site could be left out: all sites' sums would follow."""
    sites = list(federation.sites)
    for number, missing in enumerate(sites[1:], 1):
        rest = [name for name in sites if name != missing]
        for total in (ROUNDS, number):
            with pytest.raises(AskedAgain, match="before the last round"):
                federation.ask(rest[0], names=rest, round=Round(number, total))
    with pytest.raises(AskedAgain, match="before the last round"):
        federation.ask(VICTIM, "adjust", round=Round(1, ROUNDS), sums=federation.sealed())


def test_a_second_sum_of_other_sites_is_refused(federation):
    """Two sums that differ by a site are that site's own; that it is silent is the server's word."""
    federation.sealed()
    rest = [name for name in federation.sites if name != VICTIM]
    for attempt in (0, 1, 2):
        for known in (federation.sites["Hungary"].asked, Asked()):
            federation.sites["Hungary"].asked = known
            with pytest.raises((SumRefused, AskedAgain)):
                federation.ask("Hungary", names=rest, attempt=attempt)
    assert federation.ask("Hungary").sealed


def test_a_second_job_has_no_sum_of_the_same_model_without_a_site(tmp_path):
    """The difference of both would be that site's sums."""
    Federation(ledgers=tmp_path).sealed()
    second = Federation(ledgers=tmp_path)
    rest = [name for name in second.sites if name != VICTIM]
    assert "set_changed" in second.ask("Hungary", names=rest).error
    other = second.other()  # of which nothing is known
    assert Federation(ledgers=tmp_path).ask("Hungary", model=other, names=rest).sealed


def test_a_restarted_site_takes_part_in_the_same_sum_alone(tmp_path):
    federation = Federation(tmp_path)
    federation.sealed()
    federation.restart()
    rest = [name for name in federation.sites if name != VICTIM]
    with pytest.raises(AskedAgain, match="another sites than the first"):
        federation.ask("Hungary", names=rest)
    assert federation.ask("Hungary").sealed


def test_a_sum_without_a_site_of_the_last_round_is_refused(federation):
    site = federation.sites["Hungary"].aggregation
    site._updates.admit(SumOrder(ROUNDS, 0, federation.statements))
    rest = [name for name in federation.sites if name != VICTIM]
    with pytest.raises(SumRefused, match="without all sites of the last round"):
        federation.ask("Hungary", names=rest)
    assert federation.ask("Hungary").sealed


def test_the_server_asks_for_no_sum_without_a_silent_site(federation):
    asked = []

    class Transport:
        def exchange(self, instructions):
            asked.append(sorted(instructions))
            return [federation.sites[name].handle(one) for name, one in instructions.items() if name != VICTIM]

    server = server_part(federation.config, federation.parts, Credentials())
    server.statements.update(federation.statements)
    models = dict.fromkeys(federation.sites, federation.model)
    total = server.total(Transport(), models, LAST, lambda answer: [], federation.terms)
    assert total.sites == [] and asked == [sorted(federation.sites)]
    assert {r.site: r.code for r in total.rejections} == {**dict.fromkeys(federation.sites, "sum"), VICTIM: "no_answer"}
    assert any("are not asked again" in r.detail for r in total.rejections)


def test_in_the_clear_a_site_answers_after_the_last_round_alone(clear):
    for round in (Round(1, ROUNDS), Round(1, 1), Round(ROUNDS - 1, ROUNDS), Round(ROUNDS, ROUNDS + 1)):
        with pytest.raises(AskedAgain, match="before the last round"):
            clear.calibrate(round=round)
        with pytest.raises(AskedAgain, match="before the last round"):
            clear.adjust([0.0] * clear.terms, round=round)


def test_in_the_clear_a_site_answers_for_one_model(clear):
    """A model that is a function of one input shows the patients' values, another one those of the next input."""
    first = clear.calibrate()
    clear.between()
    with pytest.raises(AskedAgain, match="another model"):
        clear.calibrate(**clear.other())
    clear.between()
    assert clear.calibrate() == first


def test_in_the_clear_a_site_says_results_for_one_total(clear):
    """Results at thresholds of the server's choice would show the test cases one by one."""
    with pytest.raises(AskedAgain, match="results before the sums"):
        clear.adjust([0.0] * clear.terms)
    total = clear.calibrate("Cleveland")
    clear.calibrate()
    clear.between()
    found = clear.adjust(total)
    clear.between()
    with pytest.raises(AskedAgain, match="another total"):
        clear.adjust([2 * value for value in total])
    assert clear.adjust(total) == found


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


def test_parts_that_add_up_to_no_number_are_refused():
    class Huge:
        def exchange(self, instructions):
            return (Answer(site, round=1, sums=[1.7e308]) for site in instructions)

    total = Plain().total(Huge(), {"a": {}, "b": {}}, Round(1, 1), lambda answer: answer.sums, 1)
    assert not total.sites and {one.code for one in total.rejections} == {"sums"}
