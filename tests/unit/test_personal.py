# SPDX-License-Identifier: Apache-2.0
"""Personal models and personal entries: what stays at a site, what leaves it, and what is evaluated there."""

import dataclasses

import pytest
import torch
from torch import nn

from cases import each
from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.core.validation import parsed
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.gate import Gate, inspect_evaluation
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import SiteMemory, claimed, forget, personal_file
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.config_checks import _check_sites
from fairflare.privacy.egress import Egress
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.fedper import FedBN, FedPer, FedRep
from fairflare.trainers.proximal import Ditto, FedProx
from fairflare_lab.methods.apfl import APFL
from fairflare_lab.methods.silobn import STATISTICS, SiloBN
from helpers import initial_model, make_federation, make_sites, small_network

NORM = frozenset(key for key in initial_model() if key.startswith("1."))
NUMBERS = {"accuracy": 0.5}
RESULTS = {"val": NUMBERS, "test": NUMBERS, "n": {"val": 8.0, "test": 8.0}, "groups": {"val": {}, "test": {}}}


@pytest.fixture(scope="module")
def trainers():
    both = {"ditto": Ditto(), "ditto-personal": Ditto(aggregate="personal"), "apfl": APFL(), "fedrep": FedRep()}
    return {"fedbn": FedBN(), "silobn": SiloBN(), **both}


def plain_network():
    """Without dropout, whose draws two models would share."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def a_site(trainer, path=None, network=None):
    site = make_sites(1, trainer=trainer, probes=(), network=network or small_network())["site-1"]
    return dataclasses.replace(site, memory=SiteMemory(path))


def trained(site, round, model):
    return site.handle(Instruction("train", Round(round, 3), model))


def evaluated(site, model, round=3):
    return site.handle(Instruction("evaluate", Round(round, round), model))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name, stay", [("fedbn", NORM), ("silobn", NORM - {"1.weight", "1.bias"})])
def test_personal_entries_are_in_no_update_and_the_next_round_starts_from_them(trainers, name, stay):
    site = a_site(trainers[name])
    assert trainers[name].personal_entries(initial_model()) == stay
    first = trained(site, 1, initial_model())
    floating = {key for key, value in initial_model().items() if value.is_floating_point()}
    assert set(first.update) == floating - stay
    kept = {key: value.clone() for key, value in site.network.state_dict().items() if key in stay}
    assert not torch.equal(kept["1.running_mean"], initial_model()["1.running_mean"])
    start = site.trainer.site_model(initial_model(), site.memory.before(2))
    assert all(torch.equal(start[key], kept[key]) for key in stay)
    assert all(torch.equal(start[key], initial_model()[key]) for key in set(start) - stay)


@pytest.mark.parametrize("name", ["fedbn", "silobn", "ditto", "ditto-personal", "apfl", "fedrep"])
def test_a_restart_and_a_repeated_round_leave_the_same_personal_model(trainers, name, tmp_path):
    path = tmp_path / "site-1.safetensors"
    site = a_site(trainers[name], path)
    trained(site, 1, initial_model())
    once = trained(site, 2, initial_model()).update
    saved = read_tensors(personal_file(path))
    again = a_site(trainers[name], path)
    assert same(once, trained(again, 2, initial_model()).update)
    assert same(saved, read_tensors(personal_file(path)))
    fresh = a_site(trainers[name], tmp_path / "other.safetensors")
    trained(fresh, 2, initial_model())
    assert not same(saved, read_tensors(personal_file(tmp_path / "other.safetensors"))), "nothing was kept"


@pytest.mark.parametrize("name", ["fedbn", "ditto", "apfl", "fedrep"])
def test_the_personal_model_is_evaluated_beside_the_shared_one_and_is_what_its_file_holds(trainers, name, tmp_path):
    path = tmp_path / "site-1.safetensors"
    site = a_site(trainers[name], path)
    for round in (1, 2, 3):
        trained(site, round, initial_model())
    answer = evaluated(site, initial_model())
    assert answer.update is None and answer.personal.keys() == answer.metrics.keys()
    model = read_tensors(personal_file(path))
    site.network.load_state_dict(model)
    assert answer.personal["test"] == site.score("test")
    site.network.load_state_dict(initial_model())
    assert answer.metrics["test"] == site.score("test")


def test_only_the_final_model_of_the_run_is_paired_with_the_personal_one(trainers, tmp_path):
    """FLARE's evaluation workflows show models of their own: the site's file stays what it was."""
    path = tmp_path / "site-1.safetensors"
    site = a_site(trainers["fedbn"], path)
    trained(site, 1, initial_model())
    before = personal_file(path).read_bytes()
    other = {key: value + 1 if value.is_floating_point() else value for key, value in initial_model().items()}
    assert evaluated(site, other, round=1).personal == {} and personal_file(path).read_bytes() == before


@pytest.mark.parametrize("spoilt", ["nothing", "another shape", "one entry more"])
def test_a_model_that_is_none_leaves_the_personal_file_as_it_was(trainers, spoilt, tmp_path):
    path = tmp_path / "site-1.safetensors"
    site = a_site(trainers["fedbn"], path)
    for round in (1, 2, 3):
        trained(site, round, initial_model())
    before = personal_file(path).read_bytes()
    model = {
        "nothing": {},
        "another shape": initial_model() | {"0.weight": torch.zeros(1)},
        "one entry more": initial_model() | {"patients": torch.zeros(3)},
    }[spoilt]
    with pytest.raises(RuntimeError):
        evaluated(site, model)
    assert personal_file(path).read_bytes() == before


def test_a_site_that_has_not_trained_has_no_personal_results(trainers, tmp_path):
    site = a_site(trainers["ditto"], tmp_path / "site-1.safetensors")
    assert evaluated(site, initial_model()).personal == {} and not list(tmp_path.iterdir())


def test_ditto_shares_the_very_model_that_fedavg_shares(trainers):
    model = {key: value.clone() for key, value in plain_network().state_dict().items()}
    updates = [
        trained(a_site(t, network=plain_network()), 1, model).update for t in (trainers["ditto"], PlainTrainer())
    ]
    assert same(*updates)


def test_ditto_with_a_large_lambda_stays_near_the_shared_model_and_with_none_does_not(trainers):
    model, far = {key: value.clone() for key, value in plain_network().state_dict().items()}, []
    for lam in (10.0, 0.0):
        site = a_site(dataclasses.replace(trainers["ditto"], lam=lam), network=plain_network())
        trained(site, 1, model)
        own = site.memory.at(1)["personal"]
        far.append(sum(float((own[key] - model[key]).square().sum()) for key in model))
    assert 0 < far[0] < far[1] / 2


def test_what_ditto_averages_may_be_the_personal_models():
    """The update is v - w^t, and v has been trained alone: in round 1 as FedProx with mu = lam does."""
    model = {key: value.clone() for key, value in plain_network().state_dict().items()}
    site = a_site(Ditto(lam=0.5, aggregate="personal"), network=plain_network())
    other = a_site(FedProx(mu=0.5), network=plain_network())
    assert same(trained(site, 1, model).update, trained(other, 1, model).update)
    shared = {key: value + 0.1 for key, value in model.items()}
    before = site.memory.at(1)["personal"]
    update = trained(site, 2, shared).update
    own = site.memory.at(2)["personal"]
    assert same({key: own[key] - shared[key] for key in own}, update) and not same(own, before)
    assert (own["0.weight"] - before["0.weight"]).norm() < (own["0.weight"] - shared["0.weight"]).norm()


@pytest.mark.parametrize("aggregate", ["shared", "personal"])
def test_an_optimizer_of_the_personal_model_is_kept_where_the_run_keeps_optimizers(aggregate):
    ends = []
    for keep in (True, False):
        site = a_site(Ditto(aggregate=aggregate), network=plain_network())
        site = dataclasses.replace(site, training=dataclasses.replace(site.training, momentum=0.9, keep_optimizer=keep))
        model = {key: value.clone() for key, value in plain_network().state_dict().items()}
        for round in (1, 2):
            trained(site, round, model)
        ends.append(site.memory.at(2)["personal"])
    assert not same(*ends)


def test_fedprox_with_mu_zero_is_fedavg_and_a_large_mu_moves_less():
    ways = (PlainTrainer(), FedProx(mu=0.0), FedProx(mu=10.0))
    plain, none, large = (trained(a_site(way), 1, initial_model()).update for way in ways)
    assert same(plain, none)
    assert large["0.weight"].norm() < plain["0.weight"].norm() * 0.8


@pytest.mark.parametrize("cls, name, bad", [(FedProx, "mu", -1.0), (FedProx, "mu", "nan"), (Ditto, "lam", -1.0)])
def test_bad_parameters_are_named(cls, name, bad):
    with pytest.raises(UserError, match=f"{name}: expected a number"):
        parsed(cls, name, bad)


@pytest.mark.parametrize("cls", [FedBN, SiloBN])
def test_fedbn_needs_batchnorm(cls):
    with pytest.raises(UserError, match="BatchNorm"):
        cls().personal_entries(plain_network().state_dict())


def test_fedper_keeps_the_last_layers_or_the_named_ones():
    model = initial_model()
    head = frozenset(key for key in model if key.rpartition(".")[0] == list(model)[-1].rpartition(".")[0])
    assert FedPer().personal_entries(model) == head
    assert FedPer(head=" 1 ").personal_entries(model) == NORM
    for wrong in (FedPer(layers=99), FedPer(head="nowhere"), FedPer(head=",".join({key[0] for key in model}))):
        with pytest.raises(UserError, match="fedper or fedrep: expected a network with"):
            wrong.personal_entries(model)


@pytest.mark.parametrize("trainer", [APFL(), FedRep()])
def test_a_second_optimizer_is_kept_where_the_run_keeps_optimizers(trainer):
    ends = []
    for keep in (True, False):
        site = a_site(trainer, network=plain_network())
        site = dataclasses.replace(site, training=dataclasses.replace(site.training, momentum=0.9, keep_optimizer=keep))
        for round in (1, 2):
            trained(site, round, {key: value.clone() for key, value in plain_network().state_dict().items()})
        ends.append(site.memory.at(2)["personal"])
    assert not same(*ends)


def test_layers_are_known_by_their_statistics_whatever_their_names():
    norms = (nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.LayerNorm(4))
    model = nn.Sequential(*norms, nn.InstanceNorm1d(4, track_running_stats=True)).state_dict()
    statistics = {f"{layer}.{name}" for layer in ("0", "1.1", "3") for name in STATISTICS}
    assert SiloBN().personal_entries(model) == statistics
    affine = {f"{layer}.{name}" for layer in ("0", "1.1") for name in ("weight", "bias")}
    assert FedBN().personal_entries(model) == statistics | affine


@dataclasses.dataclass(frozen=True)
class Forgetful(PlainTrainer):
    """Says that it keeps a personal model, and leaves a part of one."""

    keeps_personal_model = True

    def finish(self, work):
        work.personal = {"0.weight": torch.zeros(1)}


def test_a_trainer_that_leaves_no_whole_model_is_an_error_at_the_site():
    with pytest.raises(RuntimeError, match="Forgetful: expected a whole model"):
        trained(a_site(Forgetful()), 1, initial_model())


def gate(**changes):
    return dataclasses.replace(Gate(frozenset(dict(small_network().named_parameters())), personal=NORM), **changes)


def test_the_gate_expects_no_personal_entry_and_leaves_the_servers_as_they_are(trainers):
    answer = trained(a_site(trainers["fedbn"]), 1, initial_model())
    (reply,) = gate().inspect([answer], initial_model(), 1, {}).replies
    assert all(float(reply.update[key].abs().sum()) == 0 for key in NORM if key in reply.update)
    assert set(reply.update) == {key for key, value in initial_model().items() if value.is_floating_point()}
    assert torch.equal(reply.update["0.weight"], answer.update["0.weight"])


def test_the_gate_refuses_an_update_with_personal_entries(trainers):
    answer = trained(a_site(trainers["fedbn"]), 1, initial_model())
    more = dataclasses.replace(answer, update=answer.update | {"1.running_mean": torch.ones(6)})
    (refused,) = gate().inspect([more], initial_model(), 1, {}).rejections
    assert refused.code == "keys" and "1.running_mean" in refused.detail


def egress(**changes):
    shared = {key: value for key, value in initial_model().items() if key not in NORM}
    return dataclasses.replace(Egress(shared, (), ("accuracy",), (), personal=True), **changes)


def test_egress_lets_no_personal_entry_leave(trainers):
    answer = trained(a_site(trainers["fedbn"]), 1, initial_model())
    answer = dataclasses.replace(answer, metrics={})
    egress().check("train", answer)
    with pytest.raises(EgressRefused, match="names"):
        egress().check("train", dataclasses.replace(answer, update=answer.update | {"1.weight": torch.ones(6)}))


@each(
    "task, personal, keeps",
    [
        ("evaluate", RESULTS, False),
        ("evaluate", {"model": {"w": 1.0}}, True),
        ("evaluate", {"test": {"accuracy": 1.5}}, True),
        ("evaluate", {"test": {"weight 17": 0.5}}, True),
        ("compare", RESULTS, True),
        ("submit_model", RESULTS, True),
    ],
    ids=str,
)
def test_egress_refuses_personal_results_that_were_not_agreed_on(task, personal, keeps):
    answer = Answer("site-1", round=3, metrics=RESULTS if task == "evaluate" else {}, personal=personal)
    egress().check("evaluate", dataclasses.replace(answer, metrics=RESULTS, personal=RESULTS))
    with pytest.raises(EgressRefused):
        egress(personal=keeps).check(task, answer)


def test_a_personal_model_does_not_leave_as_an_answer_to_submit_model():
    model = {key: value for key, value in initial_model().items() if value.is_floating_point()}
    with pytest.raises(EgressRefused, match="weights in an answer to submit_model"):
        egress(model=initial_model()).check("submit_model", Answer("site-1", round=3, update=model))
    with pytest.raises(ValueError, match="unknown task"):
        a_site(PlainTrainer()).handle(Instruction("submit_model", Round(3, 3), initial_model()))


@pytest.mark.parametrize("bad", [{"x": 1}, [1], "a model", torch.ones(2), {"test": NUMBERS}], ids=str)
def test_the_server_refuses_personal_results_in_a_run_without_personal_models(bad):
    answer = Answer("site-1", round=3, metrics=RESULTS, personal=bad)
    found, rejections = inspect_evaluation([answer], 3)
    assert found == {} and rejections[0].code == "personal"


def test_the_server_keeps_what_it_can_use_of_personal_results():
    odd = RESULTS | {"test": {"accuracy": 7.0}}
    found, rejections = inspect_evaluation([Answer("s", round=3, metrics=RESULTS, personal=odd)], 3, personal=True)
    assert not rejections and found["s"]["test"] == NUMBERS
    assert found["s"]["personal"]["test"] == {} and found["s"]["personal"]["val"] == NUMBERS
    found, rejections = inspect_evaluation([Answer("s", round=3, metrics=RESULTS, personal=[1])], 3, personal=True)
    assert not found and rejections[0].code == "metrics"


def test_a_federation_leaves_the_servers_personal_entries_alone_and_logs_both_results(trainers, tmp_path):
    sites = make_sites(trainer=trainers["fedbn"], probes=())
    federation = make_federation(tmp_path, InProcess(sites), rule=FedAvg())
    federation.gate = gate(personal_results=True)
    final = federation.run(initial_model())
    assert all(torch.equal(final[key], initial_model()[key]) for key in NORM)
    assert not torch.equal(final["0.weight"], initial_model()["0.weight"])
    entry = next(e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "evaluation")
    for answer in entry["sites"].values():
        assert set(answer["personal"]) == {"val", "test", "n", "groups"} and answer["personal"]["test"]


def test_a_runs_end_keeps_memories_and_personal_models(trainers, tmp_path):
    site = a_site(trainers["ditto"], tmp_path / "sites" / "site-1.safetensors")
    trained(site, 1, initial_model())
    forget(tmp_path / "sites", ["site-1"])
    assert {item.name for item in (tmp_path / "sites").iterdir()} == {
        "site-1.personal.safetensors",
        "site-1.safetensors",
    }


def test_half_a_personal_model_of_a_killed_process_is_cleared_and_a_whole_one_stays(tmp_path):
    for name in (
        ".site-1.personal.safetensors.abcd1234.tmp",
        "site-1.personal.safetensors",
        ".other.personal.safetensors.abcd1234.tmp",
    ):
        (tmp_path / name).write_bytes(b"half")
    with claimed(tmp_path / "site-1.safetensors"):
        left = sorted(item.name for item in tmp_path.iterdir() if item.suffix != ".lock")
    assert left == [".other.personal.safetensors.abcd1234.tmp", "site-1.personal.safetensors"]


def test_no_site_is_called_as_another_ones_personal_model():
    with pytest.raises(UserError, match=r"site_names: expected names that do not end in \.personal"):
        _check_sites(make_config("fedavg", "support2"), ["a", "a.personal"])
