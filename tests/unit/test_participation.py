# SPDX-License-Identifier: Apache-2.0
"""Selectors and server optimizers in the round loop: who is asked, who counts, and what survives a restart."""

import dataclasses

import pytest

from fairflare.core import registry
from fairflare.core.errors import RunFailed
from fairflare.core.types import Round
from fairflare.engine.audit import verify
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import memory_hash
from fairflare.engine.in_process import InProcess
from fairflare.participation import Named, Share
from fairflare.server_optimizers.adaptive import Adam, Momentum
from helpers import initial_model, make_federation, make_sites

SITES = [f"site-{k}" for k in range(1, 11)]


class Asked(InProcess):
    """Keeps who was asked for what; sites in ``silent`` never answer."""

    def __init__(self, sites, silent=()):
        super().__init__(sites)
        self.asked, self.silent = [], silent

    def exchange(self, instructions):
        self.asked.append({site: one.task for site, one in instructions.items()})
        return [answer for answer in super().exchange(instructions) if answer.site not in self.silent]

    def trained(self):
        return [sorted(s for s, task in asked.items() if task == "train") for asked in self.asked][1:-1]


def federation(folder, transport=None, **changes):
    folder.mkdir(exist_ok=True)
    return dataclasses.replace(make_federation(folder, transport), **changes)


def rounds(folder):
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"]


def test_all_selects_everyone():
    assert registry.get_part("selector", "all")().select(SITES, Round(1, 2), 0, 1) == tuple(SITES)


def test_a_share_is_drawn_from_seed_and_round_alone():
    draws = [Share(0.3).select(SITES, Round(t, 50), 7, 1) for t in range(1, 51)]
    assert {len(draw) for draw in draws} == {3} and len(set(draws)) > 20
    assert draws == [Share(0.3).select(SITES, Round(t, 50), 7, 1) for t in range(1, 51)]
    assert draws != [Share(0.3).select(SITES, Round(t, 50), 8, 1) for t in range(1, 51)]
    assert {site for draw in draws for site in draw} == set(SITES)
    assert all(draw == tuple(s for s in SITES if s in draw) for draw in draws)


def test_a_share_of_the_sites_that_are_there_keeps_the_others_order():
    full = Share(0.3).select(SITES, Round(4, 9), 1, 1)
    rest = [site for site in SITES if site != full[0]]
    assert set(full[1:]) <= set(Share(0.3).select(rest, Round(4, 9), 1, 1))


@pytest.mark.parametrize("share, least, count", [(0.1, 1, 1), (0.1, 4, 4), (0.25, 1, 3), (1.0, 1, 10), (0.3, 99, 10)])
def test_the_size_of_a_share(share, least, count):
    assert len(Share(share).select(SITES, Round(1, 1), 0, least)) == count


@pytest.mark.parametrize("share", [0, -0.5, 1.5])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(ValueError, match="share must be"):
        Share(share)


def test_a_list_selects_its_sites_and_names_a_stranger():
    assert Named("site-3, site-1").select(SITES, Round(1, 1), 0, 5) == ("site-1", "site-3")
    assert Named("site-3,site-1").missing(SITES) == ""
    assert "got 'site-99'" in Named("site-99").missing(SITES) and "got none" in Named().missing(SITES)


def test_only_selected_sites_train_and_nobody_else_is_rejected(tmp_path):
    transport = Asked(make_sites(4))
    federation(tmp_path, transport, selector=Share(0.5), seed=3, min_sites=2).run(initial_model())
    expected = [list(Share(0.5).select(SITES[:4], Round(t, 3), 3, 2)) for t in (1, 2, 3)]
    assert transport.trained() == expected and len({tuple(e) for e in expected}) > 1
    for entry, sites in zip(rounds(tmp_path), expected):
        assert sorted(entry["accepted"]) == entry["selected"] == sites and entry["rejected"] == {}
    assert set(transport.asked[-1]) == set(SITES[:4]) and set(transport.asked[-1].values()) == {"evaluate"}


def test_a_log_of_full_participation_names_no_selection(tmp_path):
    federation(tmp_path).run(initial_model())
    assert all("selected" not in entry for entry in rounds(tmp_path))


def test_a_silent_site_is_replaced_by_the_next_one(tmp_path):
    """Seed and round fix an order of the sites; who is there and comes first takes part."""
    transport = Asked(make_sites(4), silent=("site-2",))
    federation(tmp_path, transport, selector=Share(0.5), seed=3, min_sites=2).run(initial_model())
    wanted = [Share(0.5).select(SITES[:4], Round(t, 3), 3, 2) for t in (1, 2, 3)]
    assert any("site-2" in one for one in wanted) and not all("site-2" in one for one in wanted)
    for entry, sites in zip(rounds(tmp_path), wanted):
        assert len(entry["accepted"]) == 2 and "site-2" not in entry["accepted"]
        assert set(entry["rejected"]) == ({"site-2"} if "site-2" in sites else set())


def test_a_site_outside_the_list_is_neither_absent_nor_asked(tmp_path):
    transport = Asked(make_sites(3), silent=("site-3",))
    federation(tmp_path, transport, selector=Named("site-1,site-2"), min_sites=2).run(initial_model())
    assert transport.trained() == [["site-1", "site-2"]] * 3
    assert all(entry["rejected"] == {} for entry in rounds(tmp_path))


def test_the_quorum_is_one_of_selected_sites(tmp_path):
    transport = Asked(make_sites(3))
    with pytest.raises(RunFailed, match="round 1: 1 accepted sites, 2 needed; no other site"):
        federation(tmp_path, transport, selector=Named("site-2"), min_sites=2).run(initial_model())


@pytest.mark.parametrize("optimizer", [Momentum(lr=0.5), Adam(lr=0.01)])
def test_a_server_optimizer_acts_and_survives_a_restart(tmp_path, optimizer, monkeypatch):
    changes = {"server_optimizer": optimizer, "selector": Share(0.5), "seed": 3}
    whole = federation(tmp_path / "whole", **changes).run(initial_model())
    plain = federation(tmp_path / "plain", selector=Share(0.5), seed=3).run(initial_model())
    assert model_hash(whole) != model_hash(plain)

    class Stops(Asked):
        def exchange(self, instructions):
            if next(iter(instructions.values())).round.number == 3:
                raise KeyboardInterrupt
            return super().exchange(instructions)

    with pytest.raises(KeyboardInterrupt):
        federation(tmp_path / "cut", Stops(make_sites()), **changes).run(initial_model())
    left = load_checkpoint(tmp_path / "cut" / "checkpoint.safetensors")
    assert left.round == 2 and set(left.server["m"]) == set(dict(make_sites()["site-1"].network.named_parameters()))
    assert memory_hash(left) != memory_hash(dataclasses.replace(left, server={}))
    assert rounds(tmp_path / "cut")[-1]["state_sha256"] == memory_hash(left)
    again = federation(tmp_path / "cut", **changes).run(initial_model())
    assert model_hash(again) == model_hash(whole)


def test_without_a_server_optimizer_nothing_is_kept(tmp_path):
    federation(tmp_path).run(initial_model())
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").server == {}
