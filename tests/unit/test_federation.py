# SPDX-License-Identifier: Apache-2.0
"""The round loop with real sites, in process."""

import dataclasses

import pytest
import torch

from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.fedism import FedISM
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.schema import Answer, Instruction
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from helpers import initial_model, make_federation, make_sites


class Tampered(InProcess):
    """Changes the answers of one round on their way."""

    def __init__(self, sites, round, change):
        super().__init__(sites)
        self.round, self.change = round, change

    @staticmethod
    def trains(instructions):
        return next(iter(instructions.values())).task == "train"

    def exchange(self, instructions):
        answers = list(super().exchange(instructions))
        number = next(iter(instructions.values())).round.number
        return self.change(answers) if number == self.round and self.trains(instructions) else answers


class Dies(BaseException):
    """The process is killed."""


def replace(answers, site, **changes):
    return [dataclasses.replace(a, **changes) if a.site == site else a for a in answers]


def nan_update(answers):
    bad = {k: v * float("nan") for k, v in answers[0].update.items()}
    return replace(answers, answers[0].site, update=bad)


def test_the_same_run_twice_is_bit_identical(tmp_path):
    finals = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        finals.append(make_federation(tmp_path / name).run(initial_model()))
    assert model_hash(finals[0]) == model_hash(finals[1]) != model_hash(initial_model())


def test_sharing_one_network_changes_nothing(tmp_path):
    """In one process all sites train in the same network; with one each the result is the same."""
    separate = {name: make_sites(3)[name] for name in ("site-1", "site-2", "site-3")}
    finals = []
    for name, sites in (("a", make_sites(3)), ("b", separate)):
        (tmp_path / name).mkdir()
        finals.append(make_federation(tmp_path / name, InProcess(sites)).run(initial_model()))
    assert model_hash(finals[0]) == model_hash(finals[1])


def test_the_folder_holds_what_was_promised(tmp_path):
    final = make_federation(tmp_path).run(initial_model())
    saved = read_tensors(tmp_path / "model.safetensors")
    entries = verify(tmp_path / "audit.jsonl")
    assert model_hash(saved) == model_hash(final) == entries[-1]["model_sha256"]
    assert [e["event"] for e in entries] == ["start", "round", "round", "round", "evaluation", "finish"]
    assert set(entries[1]["accepted"]["site-1"]["scalars"]) == {"loss", "perturbed_loss", "sharpness"}
    assert set(entries[4]["sites"]["site-3"]) == {"val", "test", "n", "groups"}


def test_a_nan_update_is_left_out_and_the_run_goes_on(tmp_path):
    transport = Tampered(make_sites(), 2, nan_update)
    final = make_federation(tmp_path, transport).run(initial_model())
    entry = verify(tmp_path / "audit.jsonl")[2]
    assert entry["rejected"]["site-1"]["code"] == "nonfinite" and set(entry["weights"]) == {"site-2", "site-3"}
    assert all(bool(torch.isfinite(v).all()) for v in final.values())


def test_too_few_sites_keep_the_last_good_model(tmp_path):
    transport = Tampered(make_sites(), 2, lambda answers: answers[:1])
    with pytest.raises(RunFailed, match="round 2: 1 accepted sites, 2 needed; site-2: no_answer"):
        make_federation(tmp_path, transport).run(initial_model())
    entries = verify(tmp_path / "audit.jsonl")
    assert entries[-1]["status"] == "failed" and entries[-1]["model_sha256"] == entries[1]["model_sha256"]
    assert entries[-2]["event"] == "round_failed" and set(entries[-2]["rejected"]) == {"site-2", "site-3"}
    assert model_hash(read_tensors(tmp_path / "model.safetensors")) == entries[1]["model_sha256"]


@pytest.mark.parametrize("killed_in", [1, 2, 3])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, killed_in):
    """FedISM's moving average, rho(t) and the data order go on as if nothing had happened."""

    def die(answers):
        raise Dies

    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = make_federation(tmp_path / "whole").run(initial_model())
    with pytest.raises(Dies):
        make_federation(tmp_path / "cut", Tampered(make_sites(), killed_in, die)).run(initial_model())
    resumed = make_federation(tmp_path / "cut").run(initial_model())
    assert model_hash(resumed) == model_hash(whole)
    events = [e["event"] for e in verify(tmp_path / "cut" / "audit.jsonl")]
    assert events.count("round") == 3 and events.count("resume") == 1


def test_a_kill_between_log_and_checkpoint_repeats_that_round(tmp_path, monkeypatch):
    """The log already holds round 2 when the checkpoint is not written: round 2 runs again, to the same model."""
    from fairflare.engine import loop

    save, calls = loop.save_checkpoint, []

    def fail_third(path, checkpoint):
        calls.append(checkpoint.round)
        if len(calls) == 2:
            raise Dies
        save(path, checkpoint)

    monkeypatch.setattr(loop, "save_checkpoint", fail_third)
    with pytest.raises(Dies):
        make_federation(tmp_path).run(initial_model())
    monkeypatch.undo()
    make_federation(tmp_path).run(initial_model())
    rounds = [e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    assert [e["round"] for e in rounds] == [1, 2, 2, 3]
    assert rounds[1]["model_sha256"] == rounds[2]["model_sha256"]


def test_a_site_is_told_its_own_orders_only(tmp_path):
    """Orders go into the instruction of the site they are for."""

    @dataclasses.dataclass(frozen=True)
    class Ordering(FedAvg):
        def orders(self, state, site, info):
            return {"coefficient": float(site[-1])}

    seen = {}

    class Spy(InProcess):
        def exchange(self, instructions):
            seen.update({s: dict(i.orders) for s, i in instructions.items() if i.task == "train"})
            return super().exchange(instructions)

    make_federation(tmp_path, Spy(make_sites()), rule=Ordering(), rounds=1).run(initial_model())
    assert seen == {f"site-{k}": {"coefficient": float(k)} for k in (1, 2, 3)}


def test_a_failing_write_leaves_the_old_file(tmp_path):
    from fairflare.engine.files import write_atomically

    path = tmp_path / "x"
    path.write_text("old")

    def half(file):
        file.write(b"ne")
        raise Dies

    with pytest.raises(Dies):
        write_atomically(path, half)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_update_is_local_minus_received(tmp_path):
    from fairflare.core.types import Round

    site = make_sites(1)["site-1"]
    model = initial_model()
    answer = site.handle(Instruction("train", Round(1, 3), model))
    assert isinstance(answer, Answer) and answer.n_examples == 24
    for key, local in site.network.state_dict().items():
        if local.is_floating_point():
            assert torch.equal(answer.update[key], local - model[key])
    assert "1.num_batches_tracked" not in answer.update


def test_counts_are_declared_before_the_first_round(tmp_path):
    """A site that claims more examples later than at the start is left out."""

    def boast(answers):
        return replace(answers, "site-2", n_examples=10**6)

    make_federation(tmp_path, Tampered(make_sites(), 1, boast)).run(initial_model())
    entries = verify(tmp_path / "audit.jsonl")
    assert entries[0]["declared"] == {f"site-{k}": 24 for k in (1, 2, 3)}
    assert entries[1]["rejected"]["site-2"]["code"] == "count_mismatch"


def test_a_rule_that_breaks_keeps_the_last_good_model(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Broken(FedAvg):
        def weigh(self, replies, state, info):
            weights, state = super().weigh(replies, state, info)
            return ({s: float("inf") for s in weights} if info.round.number == 2 else weights), state

    with pytest.raises(RunFailed, match="round 2: the rule's model is not finite"):
        make_federation(tmp_path, rule=Broken()).run(initial_model())
    entries = verify(tmp_path / "audit.jsonl")
    assert entries[-1]["model_sha256"] == entries[1]["model_sha256"]


def test_another_configuration_does_not_continue_a_run(tmp_path):
    def die(answers):
        raise Dies

    with pytest.raises(Dies):
        make_federation(tmp_path, Tampered(make_sites(), 2, die)).run(initial_model())
    other = make_federation(tmp_path)
    other.header = {"config_sha256": "another"}
    with pytest.raises(UserError, match="another configuration"):
        other.run(initial_model())


def test_equal_weights_are_written_down_as_such(tmp_path):
    make_federation(tmp_path, rule=FedISM(q=0.0)).run(initial_model())
    rounds = [e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    assert all(e["notes"]["weights"] == "uniform" for e in rounds)


def test_late_and_second_answers_are_ignored_and_audited(tmp_path):
    """In round 2 site-1 answers twice and site-2 sends its answer to round 1 once more before the real one."""
    kept = {}

    class Replayed(InProcess):
        def exchange(self, instructions):
            answers = list(super().exchange(instructions))
            one = next(iter(instructions.values()))
            if one.task == "train":
                kept[one.round.number] = answers
            if one.task == "train" and one.round.number == 2:
                answers = [kept[1][1], *answers, answers[0]]
            return answers

    plain = make_federation(tmp_path / "plain", InProcess(make_sites()))
    replayed = make_federation(tmp_path / "replayed", Replayed(make_sites()))
    models = []
    for federation in (plain, replayed):
        federation.folder.mkdir()
        models.append(federation.run(initial_model()))
    assert model_hash(models[0]) == model_hash(models[1])
    second = [e for e in verify(tmp_path / "replayed" / "audit.jsonl") if e["event"] == "round"][1]
    assert second["flags"]["site-1"] == ["duplicate"] and set(second["accepted"]) == {"site-1", "site-2", "site-3"}


class Opened:
    """What runs when the pickle is loaded without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_checkpoint_that_was_replaced_runs_nothing(tmp_path):
    make_federation(tmp_path).run(initial_model())
    trap = tmp_path / "opened"
    torch.save({"round": 1, "model": {}, "state": Opened(trap), "declared": {}}, tmp_path / "checkpoint.safetensors")
    with pytest.raises(Exception, match="checkpoint.safetensors: expected tensors in a .safetensors file"):
        make_federation(tmp_path).run(initial_model())
    assert not trap.exists()
