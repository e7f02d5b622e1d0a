# SPDX-License-Identifier: Apache-2.0
"""Every method with a site that drops out of a round and comes back, and one that joins late."""

import json

import pytest

from cases import each
from fairflare.core import registry
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.report.write import write_report
from helpers import sites_of
from mechanisms import representatives
from method_needs import task_of

AWAY, LATE, ROUNDS = "site-2", "site-4", 7
METHODS = sorted(set(registry.methods()) - {"pooled"})
HERE = [
    {"site-1", "site-2", "site-3"},
    {"site-1", "site-2", "site-3"},
    {"site-1", "site-3"},  # site-2 misses the deadline
    {"site-1", "site-3"},  # site-2 answers the invitation, site-4 is connected and invited
    {"site-1", "site-2", "site-3", "site-4"},
    {"site-1", "site-2", "site-3", "site-4"},
    {"site-1", "site-2", "site-3", "site-4"},
]


class Coming(InProcess):
    """site-2 is silent in round 3, site-4 is not connected before round 4."""

    number = 0

    def sites(self):
        return [site for site in super().sites() if site != LATE or self.number >= 3]

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        self.number = max(self.number, one.round.number)
        answering = {s: i for s, i in instructions.items() if not (s == AWAY and one.round.number == 3)}
        yield from super().exchange(answering)


def run(method, folder):
    folder.mkdir()
    task, values = task_of(method)
    config = make_config(method, task, rounds=ROUNDS, values={**values, "min_sites": 2, "keep_optimizer": True})
    parts = build_parts(config)
    initial = {key: value.clone() for key, value in parts.model.items()}
    sites = sites_of(config, parts)
    model = build_federation(config, parts, Coming(sites), folder, "local").run(initial)
    return model, sites, [e for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


@each("method", METHODS, short=representatives(METHODS))
def test_sites_come_and_go(method, tmp_path):
    model, sites, rounds = run(method, tmp_path / "run")
    assert [set(e["accepted"]) for e in rounds] == HERE
    for entry in rounds:
        weights = entry["weights"]
        assert set(weights) == set(entry["accepted"])
        assert sum(weights.values()) == pytest.approx(1.0) and min(weights.values()) >= 0
    codes = [e["rejected"].get(AWAY, {}).get("code") for e in rounds]
    assert codes == [None, None, "no_answer", "absent", None, None, None]
    assert all(value.isfinite().all() for value in model.values())
    # What the site kept in round 2 is what it went on from in round 5.
    assert sites[AWAY].memory.at(ROUNDS) and sites[AWAY].memory.before(ROUNDS)
    assert model_hash(model) == model_hash(run(method, tmp_path / "again")[0])


@pytest.mark.parametrize("method", ["fedavg", "fedce"])
def test_the_report_tells_of_them(method, tmp_path):
    run(method, tmp_path / "run")
    write_report(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert set(report["sites"]) == {"site-1", "site-2", "site-3", LATE}
    assert [w is not None for w in report["sites"][LATE]["weight"]] == [False] * 4 + [True] * 3
    assert "no_answer" in (tmp_path / "run" / "report.html").read_text()


def test_a_site_goes_on_from_its_own_memory(tmp_path, monkeypatch):
    """The optimizer state that site-2 starts round 5 with is the one that it ended round 2 with."""
    started, original = {}, SiteMemory.before

    def before(self, round):
        found = original(self, round)
        started.setdefault(id(self), {})[round] = max(map(float, steps(found)), default=0.0)
        return found

    monkeypatch.setattr(SiteMemory, "before", before)
    _, sites, _ = run("fedavg", tmp_path / "run")
    found = started[id(sites[AWAY].memory)]
    per_round = found[2]
    trained = {round: steps for round, steps in found.items() if round <= ROUNDS}  # the evaluation looks, too
    assert per_round > 0 and trained == {1: 0, 2: per_round, 5: 2 * per_round, 6: 3 * per_round, 7: 4 * per_round}


def steps(kept):
    """Adam's step counters, wherever they lie."""
    for key, value in kept.items():
        if isinstance(value, dict):
            yield from steps(value)
        elif key == "step":
            yield value
