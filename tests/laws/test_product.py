# SPDX-License-Identifier: Apache-2.0
"""Every trainer under every rule with every server optimizer: a refusal that is written here, or none.

What is not refused trains two rounds of a small run: `make test-long` has every pair, `make test` those of ``trains``.
Of a pair that does not train in `make test` one server optimizer beside "none" stands for all: whether one is refused
follows from its being one, and the pairs that train say so of each.

A server optimizer sees the received and the combined model and nothing else: all of them step from the outcome of one
run of each pair of trainer and rule, every round, with a state of their own.
"""

import dataclasses
from dataclasses import dataclass, field

import pytest
import torch

from cases import each
from fairflare.aggregators.base import SummedRule
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites
from fairflare.engine.setup.parts import build_parts
from mechanisms import of_rule, of_trainer, representatives

TABLE, IMAGES = "support2:dirichlet", "digits"
VALUES = {"local_steps": 1, "optimizer": "sgd", "momentum": 0, "weight_decay": 0, "lr": 0.01, "group_by": "label"}
SITES = {
    TABLE: {"n_sites": 3, "model": "mlp"},
    IMAGES: {"n_sites": 4, "images_per_site": 24, "test_images": 20, "site_test_images": 8, "model": "small-cnn-bn"},
}
NORMALISED = ("fedbn", "fedrdn", "silobn")
"""Trainers that need BatchNorm or convolutions, which no network of the table has."""
STEPS = {"none": {}, "momentum": {}, "adagrad": {}, "adam": {}, "yogi": {}}

OWN_MODELS = ("afl", "cffl", "cgsv", "fedamp", "ifca", "solo")
"""Rules that give sites models of their own (AFL the average, beside the last model): there is no one update."""
HEEDED = ("fedufo",)
"""Rules that weigh a site's examples, which only the trainer "weighted" does."""
EXCHANGING = ("feddyn", "fedproc", "fedrdn", "fedproto", "scaffold")
"""Trainers that send more than the model, so that no site would be alone."""
ONE_MODEL = ("feddyn", "newton")
"""Trainers whose server half is about the one model that all sites share."""
COMBINING = ("median", "multi-krum", "trimmed-mean")
"""Rules that drop or bound single sites, which a server half that takes up every site's answer would go round."""
SUMMING = ("newton",)
"""Trainers that send sums over patients, which a rule may weigh and do nothing else with."""
ALONE = ("newton-alone",)
"""Trainers of sites by themselves."""
LINES = ("newton", "newton-alone")
"""Trainers of a regression."""
COUNTING = ("negative-binomial",)
"""Newton's trainers for counts, which no table here has: ``tests/unit/test_exact_regression.py`` runs them."""
PRIVATE = ("dp-sgd",)
"""Trainers that refuse a method by the numbers that it sends: ``tests/unit/test_private_training.py``."""
AT_SITES = ("fedproto",)
"""Trainers whose models stay at the sites: no updates to weigh, and none to step along."""


LEAVING_OUT = ("fedce",)
"""Rules that ask for the error of the model without a site, of which w - p_i w_i is one only in a plain average."""


def expected(trainer, rule, optimizer):
    """What the refusal says; empty for what runs. The first that holds."""
    if rule in OWN_MODELS and optimizer != "none":
        return "expected none, for"
    if rule in LEAVING_OUT and optimizer != "none":
        return f"expected none, for {rule} takes sites out of plain averages"
    if rule in HEEDED and trainer != "weighted":
        return f"rule {rule}: expected a trainer that heeds its orders (weight), got trainer {trainer}"
    if rule in OWN_MODELS and rule != "solo" and trainer in ONE_MODEL:
        return (
            f"trainer {trainer}: corrects the shared model at the server, but rule {rule} gives sites models of their"
        )
    if rule == "solo" and trainer in (*EXCHANGING, *SUMMING):
        return f"rule solo: expected a trainer that exchanges nothing, since every site is alone, got trainer {trainer}"
    if rule in COMBINING and trainer in EXCHANGING:
        return f"trainer {trainer}: its server half takes up what every site sends, so that rule {rule} would protect"
    if trainer in SUMMING and not issubclass(registry.get_rule(rule), SummedRule):
        return f"rule {rule}: expected a rule that weighs sites by numbers of their own, since trainer {trainer} sends"
    if trainer in SUMMING and optimizer != "none":
        return f"trainer {trainer}: sends sums and not a step, so that server optimizer {optimizer} has none to scale"
    if trainer in ALONE and rule != "solo":
        return f"trainer {trainer}: trains every site by itself, expected rule solo, got rule {rule}"
    if trainer in AT_SITES and rule != "fedavg":
        return f"trainer {trainer}: leaves the models at the sites, so that rule {rule} has no updates to weigh"
    if trainer in AT_SITES and optimizer != "none":
        return f"trainer {trainer}: leaves the models at the sites, so that server optimizer {optimizer} never moves"
    return ""


@dataclass
class Each:
    """The server optimizers that go with a pair, side by side; the run goes on with the combined model."""

    steps: dict
    states: dict = field(default_factory=dict)
    moved: dict = field(default_factory=dict)

    def step(self, model, combined, state, trainable):
        for id, optimizer in self.steps.items():
            after, self.states[id] = optimizer.step(model, combined, self.states.get(id, {}), trainable)
            assert after.keys() == model.keys(), id
            for key, value in after.items():
                assert value.dtype == model[key].dtype and bool(value.isfinite().all()), f"{id}: {key}"
            self.moved[id] = any(not torch.equal(after[key], model[key]) for key in trainable)
        return combined, {}


def config_of(trainer, rule, optimizer):
    task = IMAGES if trainer in NORMALISED else TABLE
    values = {**VALUES, **SITES[task], "trainer": trainer, "rule": rule, "server_optimizer": optimizer}
    values |= {"model": "regression"} if trainer in LINES else {}
    values |= {"server.lr": 0.01} if optimizer != "none" else {}
    if optimizer != "none" and "lr" in values:
        values["train.lr"] = values.pop("lr")
    return make_config("fedavg", task, rounds=2, values=values)


def refusal(trainer, rule, optimizer):
    """The configuration and its parts, or why there are none."""
    try:
        config = config_of(trainer, rule, optimizer)
        return config, build_parts(config), ""
    except UserError as error:
        return None, None, str(error)


RULES = representatives(registry.parts("rule"), lambda id: of_rule(registry.get_rule(id)()))
HERE = [id for id in registry.trainers() if id not in (*COUNTING, *PRIVATE)]
TRAINERS = representatives(HERE, lambda id: of_trainer(registry.get_trainer(id)()))
ALL_RULES = ("fedbn", "sgd", "weighted")
"""Trainers that every rule combines the models of: with entries that do not train, without, and with orders."""


def trains(rule, trainer):
    """Whether a pair is trained in every run of the tests: each mechanism under each, all trainers and all rules."""
    return rule == "fedavg" or trainer in ALL_RULES or (rule in RULES and trainer in TRAINERS)


def check(rule, trainer, folder, long=True):
    """Two rounds of a pair with all optimizers that fit; what is refused is what is written above."""
    fitting, pair = {}, None
    for optimizer in STEPS if long or trains(rule, trainer) else ("none", "adam"):
        config, parts, reason = refusal(trainer, rule, optimizer)
        said = expected(trainer, rule, optimizer)
        assert bool(reason) == bool(said) and said in reason, (trainer, rule, optimizer, reason)
        if not reason:
            fitting[optimizer], pair = parts.server_optimizer, pair or (config, parts)
    if pair is None or not (long or trains(rule, trainer)):
        return 0
    each = Each(fitting)
    with LocalSites(pair[0], folder, pair[1]) as sites:
        federation = build_federation(pair[0], pair[1], sites.transport, folder, "local")
        dataclasses.replace(federation, server_optimizer=each).run(pair[1].model)
    entries = verify(folder / "audit.jsonl")
    assert entries[-1]["status"] == "completed" and sum(entry["event"] == "round" for entry in entries) == 2
    assert all(len(entry["accepted"]) == len(sites_of(pair)) for entry in entries if entry["event"] == "round"), entries
    assert trainer in AT_SITES or rule in MAY_STAY or all(each.moved.values()), (rule, trainer, each.moved)
    return len(fitting)


MAY_STAY = ("cgsv",)
"""Rules whose shared model need not move in a round."""


def sites_of(pair):
    return list(pair[1].task.sites())


@pytest.mark.slow
@pytest.mark.long
@each("rule", registry.parts("rule"))
def test_every_trainer_and_server_optimizer_under(rule, tmp_path, request):
    ran, wrong = 0, []
    for trainer in HERE:
        try:
            ran += check(rule, trainer, made(tmp_path / trainer), request.config.getoption("--long"))
        except Exception as error:  # whatever it is: the whole row of the table is worth reading at once
            wrong.append(f"{trainer}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert ran, "a rule that goes with nothing"


def made(folder):
    folder.mkdir()
    return folder


def test_all_server_optimizers_are_here():
    assert set(STEPS) == set(registry.parts("server optimizer"))


def test_every_name_in_the_table_is_one_of_a_part():
    """No reason is written for what does not exist."""
    assert {*OWN_MODELS, *HEEDED, *COMBINING} <= set(registry.parts("rule"))
    assert {*NORMALISED, *EXCHANGING, *AT_SITES, *ONE_MODEL, *SUMMING, *LINES, *COUNTING, *PRIVATE} <= set(
        registry.trainers()
    )
    found = {id for id, rule in registry.parts("rule").items() if rule().own_models}
    assert found == set(OWN_MODELS)
