# SPDX-License-Identifier: Apache-2.0
"""A server that sends all sites of a secure sum the same, and lies over rounds and jobs, reads no site or patient."""

import contextlib

import torch

from cases import each
from fairflare.core.errors import EgressRefused
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.exchanges.sums import SiteSums
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_site, server_part, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.privacy.identity import Credentials
from fairflare.privacy.referee import Referee
from fairflare.privacy.secure_sums import combine

ROUNDS = 12
VICTIM = "site-2"
STEEP = 1e4


class Transport(InProcess):
    """Turns what a site raises into an answer with an error, as FLARE does."""

    def exchange(self, instructions):
        for name in sorted(instructions):
            try:
                yield from super().exchange({name: instructions[name]})
            except Exception as error:
                yield Answer(name, instructions[name].round.number, error=f"{type(error).__name__}: {error}")


class Lying:
    """The server of one job among four hospitals; it sends any model in any round, and calls any site silent.

    Attributes:
        trained: (round, site) -> D_k, the site's own.
        numbers: round -> the sums of the numbers behind the weights.
        errors: what the sites said in place of an answer.
    """

    def __init__(self, method, monkeypatch, state=None, task="support2:dirichlet", **values):
        chosen = {"n_sites": 4, "secure_sum": "masks", **values}
        if method != "glm":
            chosen = {"model": "linear", "batch_size": 64, **chosen}
        self.config = make_config(method, task, rounds=ROUNDS, values=chosen)
        self.parts = build_parts(self.config)
        self.names = list(site_names(self.config))
        ledgers = {name: state and state / name for name in self.names}
        sites = {name: build_site(self.config, self.parts, name, ledger=ledgers[name]) for name in self.names}
        self.sites, self.transport = sites, Transport(sites)
        self.model = {key: value.clone() for key, value in self.parts.model.items()}
        self.server = server_part(self.config, self.parts, Credentials())
        self.trained, self.numbers, self.terms, self.errors = {}, {}, {}, []
        pass_on, keep, self.round = self.server.pass_on, SiteSums.trained, 0

        def seen(sealed):
            self.numbers[self.round] = combine(list(sealed.values()))
            return pass_on(sealed)

        def trained(sums, answer, instruction):
            found = keep(sums, answer, instruction)
            self.trained[answer.round, answer.site] = answer.update
            self.terms[answer.round, answer.site] = sums._terms
            return found

        self.server.pass_on = seen
        monkeypatch.setattr(SiteSums, "trained", trained)
        self.examples = self.server_learns()

    def server_learns(self):
        answers = list(self.transport.exchange(dict.fromkeys(self.names, Instruction("preflight", Round(1, 1), {}))))
        assert not self.server.learn(answers)
        return {answer.site: answer.n_examples for answer in answers}

    def total(self, number, model, without=()):
        """sum p_k D_k of a round over all sites but ``without``; None where the sites refuse."""
        self.round, round = number, Round(number, ROUNDS)
        asked = {name: Instruction("train", round, model) for name in self.names if name not in without}
        answers = list(self.transport.exchange(asked))
        summed = self.server.round(self.transport, answers, round, self.examples, model)
        self.errors += [f"{r.code} {r.detail}" for r in summed.rejections]
        return summed.total

    def n(self, without=()):
        return sum(n for name, n in self.examples.items() if name not in without)


def flat(update):
    return torch.cat([update[key].double().flatten() for key in sorted(update)])


def cosine(one, other):
    return float(torch.nn.functional.cosine_similarity(flat(one), flat(other), dim=0))


def off(found, true):
    return float((found - true).abs().max() / true.abs().max())


def steep(model, column, threshold):
    """A line that tells the patients above ``threshold`` in one column from all others."""
    weight = torch.zeros_like(model["weight"])
    weight[column] = STEEP
    return {**model, "weight": weight, "bias": torch.full_like(model["bias"], -STEEP * threshold)}


def scores(server, column, threshold, number):
    """The sums (P,) over all patients of outcome minus risk, times the features and 1; None where sites refuse."""
    model = steep(server.model, column, threshold)
    total = server.total(number, model)
    return None if total is None else (model["score"] + total["score"])[:-1] * server.n()


def bisected(server, column):
    """One patient's row, of those above ever higher thresholds in a column; None where it cannot be read."""
    low, high, number = 1.0, 8.0, 1
    above = scores(server, column, high, number)
    while above is not None and number < ROUNDS:
        number += 1
        middle = (low + high) / 2
        found = scores(server, column, middle, number)
        if found is None:
            return None
        count = round(float(above[-1] - found[-1]))
        if count == 1:
            return above - found
        low, high, above = (middle, high, above) if count else (low, middle, found)
    return None


def test_steep_coefficients_read_no_patient(monkeypatch):
    """Among 35 columns, from masked totals of four honest hospitals."""
    server = Lying("glm", monkeypatch)
    everyone = [batch.inputs for site in server.sites.values() for batch in site.data.fixed("train", 4096)]
    rows = torch.cat(everyone).double()
    column = max(range(rows.shape[1]), key=lambda j: len(rows[:, j].unique()))
    row = bisected(server, column)
    closest = min(off(row[:-1], one) for one in rows) if row is not None else 1.0
    print(closest, server.errors, server.round, server.examples)
    assert closest > 0.5 and any("few_effective" in error for error in server.errors)


METHODS = ["glm", "fedavg", "fedism-plus"]


def read_by_difference(method, before, after, full, rest):
    """How much of the victim's part the difference of two sums tells: 1 all of it, 0 nothing."""
    if full is None or rest is None:
        return 0.0
    n, without = before.n(), before.n([VICTIM])
    own = before.trained[1, VICTIM]
    difference = {key: n * full[key] - without * rest[key] for key in own}
    if method == "glm":  # means over patients
        return 1 - off(flat(difference), before.examples[VICTIM] * flat(own))
    if method == "fedism-plus":  # the numbers behind the weights, as exact sums
        numbers = torch.tensor(before.numbers[1]) - torch.tensor(after.numbers[after.round])
        return 1 - off(numbers, torch.tensor(before.terms[1, VICTIM]))
    return cosine(difference, own)


READ = {"glm": 1 - 1e-6, "fedavg": 0.6, "fedism-plus": 1 - 1e-6}
"""What a server reads that no site stops."""


@each("method", METHODS)
def test_two_rounds_of_one_model_without_a_site_do_not_read_it(method, monkeypatch):
    server = Lying(method, monkeypatch)
    full, rest = server.total(1, server.model), server.total(2, server.model, without=[VICTIM])
    assert full is not None
    assert read_by_difference(method, server, server, full, rest) < READ[method]
    assert any("set_changed" in error for error in server.errors)


@each("method", METHODS)
def test_nor_does_a_model_that_differs_by_next_to_nothing(method, monkeypatch):
    """The last bits, statistics of other layers and entries that a site's answer does not depend on."""
    server = Lying(method, monkeypatch)
    near = {key: value * (1 + 1e-6) + 1e-7 for key, value in server.model.items()}
    assert server.total(1, server.model) is not None and server.total(2, near, without=[VICTIM]) is None
    assert any("set_changed" in error for error in server.errors)


class Between(Transport):
    """Has a site train another model before it hands out its shares of a sum."""

    def exchange(self, instructions):
        if next(iter(instructions.values())).task == "reveal":
            far = {key: value + 1 for key, value in self.model.items()}
            one = next(iter(instructions.values()))
            later = Instruction("train", Round(one.round.number + 1, ROUNDS), far)
            list(super().exchange(dict.fromkeys(instructions, later)))
        yield from super().exchange(instructions)


def test_no_other_model_is_kept_in_a_models_place(monkeypatch):
    server = Lying("fedavg", monkeypatch)
    server.transport = Between(server.sites)
    server.transport.model = server.model
    assert server.total(1, server.model) is None and any("of another model" in error for error in server.errors)


@each("method", METHODS)
def test_a_second_job_without_a_site_does_not_read_it(method, monkeypatch, tmp_path):
    """The same task and the same initial model, in a new job with new keys."""
    first = Lying(method, monkeypatch, tmp_path)
    full = first.total(1, first.model)
    second = Lying(method, monkeypatch, tmp_path, min_sites=3)
    rest = second.total(1, second.model, without=[VICTIM])
    assert full is not None and read_by_difference(method, first, second, full, rest) < READ[method]
    assert any("set_changed" in error for error in second.errors)


@each("method", METHODS)
def test_a_second_job_of_the_same_sites_is_answered(method, monkeypatch, tmp_path):
    """As after a kill, or with another number of rounds."""
    for again in range(2):
        server = Lying(method, monkeypatch, tmp_path, max_norm_ratio=100 + again)
        assert server.total(1, server.model) is not None, server.errors


@each("method", ["fedavg", "fedism-plus"])
def test_sets_that_change_round_by_round_do_not_solve_for_a_site(method, monkeypatch):
    """The server sends honest models and calls the victim silent in every other round."""
    server, sums = Lying(method, monkeypatch), {}
    server.server.draws = True  # it keeps to no limit
    for number in range(1, ROUNDS + 1):
        sums[number] = server.total(number, server.model, without=[VICTIM] if number % 2 == 0 else [])
        if sums[number] is not None:
            server.model = {key: value + sums[number].get(key, 0) for key, value in server.model.items()}
    answered = [number for number, total in sums.items() if total is not None]
    assert answered == [1, 2, 3, 4, 5, 6, 8, 10, 12] and any("set_entries" in error for error in server.errors)


@each("leap", [1, 100])
def test_round_numbers_that_leap_let_no_site_in_more_often(leap):
    """A site's own sums tell it how many rounds there have been at most."""
    referee, every, entered = Referee("run", "subject"), [f"site-{k}" for k in range(1, 9)], 0
    for k in range(40):
        referee.received(f"model {k}", {"w": torch.randn(100) * 1000}, {"w": torch.ones(100)})
        with contextlib.suppress(EgressRefused):
            referee.admit("update", 1 + leap * k, every[k % 2 :])
            entered += k % 2 == 0
    assert entered <= 3 + len(referee.history.read()) // 10


def test_an_honest_server_lets_a_site_wait_that_came_and_went_too_often(monkeypatch):
    """The others go on, and at most ten rounds later the site is in again."""
    server = Lying("fedavg", monkeypatch)
    for number in range(1, ROUNDS + 1):
        total = server.total(number, server.model, without=[VICTIM] if number in (2, 4, 6) else [])
        assert total is not None, server.errors
        server.model = {key: value + total.get(key, 0) for key, value in server.model.items()}
    assert [len(sites) for sites in server.server._sets["update"]] == [4, 3, 4, 3, 4, 3, 3, 3, 3, 4, 4, 4]
