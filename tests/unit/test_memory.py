# SPDX-License-Identifier: Apache-2.0
"""A site's memory: repeated rounds, restarts, and values that do not change behind its back."""

import torch

from fairflare.federation.memory import SiteMemory


def test_a_round_starts_from_the_one_before(tmp_path):
    memory = SiteMemory(tmp_path / "site.pt")
    assert memory.before(1) == {}
    memory.keep(1, {"a": 1.0})
    memory.keep(2, {"a": 2.0})
    assert memory.before(3) == {"a": 2.0} and memory.at(2) == {"a": 2.0}


def test_a_round_that_is_asked_for_again_starts_where_it_started():
    memory = SiteMemory()
    memory.keep(1, {"a": 1.0})
    memory.keep(2, {"a": 2.0})
    assert memory.before(2) == {"a": 1.0}
    memory.keep(2, {"a": 2.5})
    assert memory.before(2) == {"a": 1.0} and memory.before(3) == {"a": 2.5}


def test_rounds_in_between_may_be_missing():
    memory = SiteMemory()
    memory.keep(1, {"a": 1.0})
    memory.keep(5, {"a": 5.0})
    assert memory.before(5) == {"a": 1.0} and memory.before(9) == {"a": 5.0} and memory.at(4) == {}


def test_it_survives_a_restart(tmp_path):
    path = tmp_path / "sites" / "site.pt"
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    SiteMemory(path).keep(3, {"model": {"w": torch.arange(3.0)}, "optimizer": optimizer.state_dict()})
    found = SiteMemory(path).before(4)
    assert torch.equal(found["model"]["w"], torch.arange(3.0))
    assert found["optimizer"]["param_groups"][0]["lr"] == 1e-3


def test_what_is_kept_does_not_train_on():
    memory, weights = SiteMemory(), torch.zeros(2)
    memory.keep(1, {"model": {"w": weights}})
    weights += 1
    assert torch.equal(memory.before(2)["model"]["w"], torch.zeros(2))


def test_nothing_to_keep_writes_nothing(tmp_path):
    SiteMemory(tmp_path / "site.pt").keep(1, {})
    assert not list(tmp_path.iterdir())
