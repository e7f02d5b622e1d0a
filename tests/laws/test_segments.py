# SPDX-License-Identifier: Apache-2.0
"""Segments of a federation: with the same sites the model of one run, with others each rule's state carries over."""

import dataclasses

import pytest

from cases import each
from fairflare.core import registry
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.audit import verify
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import model_hash, state_hash
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from mechanisms import representatives
from method_needs import task_of
from own_folder import write_tables

METHODS = sorted(set(registry.methods()) - {"pooled"})


def with_rounds(config, rounds):
    return dataclasses.replace(config, training=dataclasses.replace(config.training, rounds=rounds))


def with_sites(config, *sites, **more):
    return dataclasses.replace(config, options={**config.options, "site_names": ",".join(sites)}, **more)


def run(config, folder):
    folder.mkdir(exist_ok=True)
    return model_hash(run_local(config, folder))


def rounds_of(folder):
    return {entry["round"]: entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"}


def checkpoint(folder):
    return load_checkpoint(folder / "checkpoint.safetensors")


@each("method", METHODS, short=representatives(METHODS))
def test_segments_with_the_same_sites_make_the_model_of_one_run(method, tmp_path):
    """Whatever the rule, the server or a site keeps; what grows with t / T is told of all rounds that are planned."""
    task, values = task_of(method)
    config = make_config(method, task, rounds=3, values={**values, "horizon": 3, "keep_optimizer": True})
    whole = run(config, tmp_path / "whole")
    for rounds in (1, 2, 3):
        parts = run(with_rounds(config, rounds), tmp_path / "parts")
    assert parts == whole
    one, other = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "parts")
    assert state_hash(one.state) == state_hash(other.state) and one.declared == other.declared
    events = [entry["event"] for entry in verify(tmp_path / "parts" / "audit.jsonl")]
    assert events.count("segment") == 2 and events.count("start") == 1


@pytest.fixture
def own(tmp_path):
    """Three of four hospitals with a table each."""
    tables = write_tables(tmp_path / "tables", ["a", "b", "c", "d"])

    def config(method, **values):
        asked = {"datalists": str(tables), "labels": "lived,died", "label": "outcome", "features": "age,score"}
        about = {"attribute_values": "sex=f|m", "group_by": "label+sex", "site_names": "a,b,c", "min_sites": 2}
        return make_config(method, "tabular:default", rounds=2, values={**asked, **about, **values})

    return config


def of_site(state, site):
    """Where a rule keeps something of one site: the keys that lead there."""
    found = set()
    for key, value in state.items():
        if key == site:
            found.add("")
        elif isinstance(value, dict):
            found |= {f"{key}/{rest}" for rest in of_site(value, site)}
    return found


@pytest.mark.parametrize("method", ["fedism-plus", "fedce", "fedheal", "fedufo"])
def test_a_hospital_leaves_and_another_comes(method, own, tmp_path):
    """Who has left weighs nothing and its state stays; who comes has none before its first round, as in a first one."""
    config = own(method)
    run(config, tmp_path / "run")
    before = checkpoint(tmp_path / "run")
    run(with_rounds(with_sites(config, "b", "c", "d"), 4), tmp_path / "run")
    after, rounds = checkpoint(tmp_path / "run"), rounds_of(tmp_path / "run")
    assert [sorted(rounds[n]["weights"]) for n in (1, 2, 3, 4)] == [["a", "b", "c"]] * 2 + [["b", "c", "d"]] * 2
    assert not any(entry["rejected"] for entry in rounds.values())
    assert set(after.declared) == {"a", "b", "c", "d"} and after.declared["a"] == before.declared["a"]
    assert not of_site(before.state, "d") and of_site(after.state, "d") == of_site(after.state, "b")
    assert set() < of_site(after.state, "a") <= of_site(before.state, "a")
    last = [entry for entry in verify(tmp_path / "run" / "audit.jsonl") if entry["event"] == "evaluation"][-1]
    assert sorted(last["sites"]) == ["b", "c", "d"]


def test_sites_go_on_from_their_memories(own, tmp_path):
    config = own("ditto")
    run(config, tmp_path / "run")
    before = read_tensors(tmp_path / "run" / "sites" / "b.safetensors")
    run(with_rounds(with_sites(config, "b", "c"), 3), tmp_path / "run")
    after = read_tensors(tmp_path / "run" / "sites" / "b.safetensors")
    assert sorted(before) == [1, 2] and sorted(after) == [2, 3]
    assert state_hash(before[2]) == state_hash(after[2]) != state_hash(after[3])


@pytest.mark.parametrize(
    "change",
    [
        lambda config: dataclasses.replace(config, seed=1),
        lambda config: dataclasses.replace(config, training=dataclasses.replace(config.training, lr=0.5)),
        lambda config: dataclasses.replace(config, min_count=5),
    ],
    ids=["seed", "lr", "min_count"],
)
def test_what_no_segment_changes(change, own, tmp_path):
    config = own("fedavg")
    run(config, tmp_path / "run")
    before = (tmp_path / "run" / "audit.jsonl").read_bytes()
    with pytest.raises(UserError, match="another configuration"):
        run(change(config), tmp_path / "run")
    assert (tmp_path / "run" / "audit.jsonl").read_bytes() == before


def test_a_budget_of_privacy_is_for_the_rounds_that_it_was_dealt_out_over():
    config = make_config("fedavg", "heart", rounds=2, values={"trainer": "dp-sgd", "best_by": "none"})
    assert with_rounds(config, 4).lineage() != config.lineage()
    assert dataclasses.replace(config, min_sites=3).lineage() == config.lineage()


def test_rounds_that_are_finished_are_not_taken_back(own, tmp_path):
    config = own("fedavg")
    run(config, tmp_path / "run")
    described = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match="rounds: expected at least 2, which are finished, got 1"):
        run(with_rounds(config, 1), tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_bytes() == described


def test_a_failed_run_goes_on_with_fewer_sites(own, tmp_path):
    """``min_sites`` is what a segment may change where too few came; nothing of the rounds before is lost."""
    config = own("fedavg", min_sites=3, best_by="none", headline="final")
    run(config, tmp_path / "run")
    with pytest.raises(UserError, match="min_sites"):
        with_sites(config, "a", "b")
    run(with_rounds(with_sites(config, "a", "b", min_sites=2), 3), tmp_path / "run")
    assert sorted(rounds_of(tmp_path / "run")[3]["accepted"]) == ["a", "b"]


def test_as_many_sites_as_are_required(own, tmp_path, monkeypatch):
    from fairflare.engine.in_process import InProcess

    sites = InProcess.sites
    monkeypatch.setattr(InProcess, "sites", lambda self: [site for site in sites(self) if site != "c"])
    config = own("fedavg", require="all")
    with pytest.raises(RunFailed, match="2 sites are there, 3 required; missing: c"):
        run(config, tmp_path / "all")
    run(dataclasses.replace(config, require=2), tmp_path / "two")
    start = verify(tmp_path / "two" / "audit.jsonl")[0]
    assert start["rejected"]["c"]["code"] == "absent" and "next segment" in start["rejected"]["c"]["detail"]
    assert start["sites"] == ["a", "b"]
