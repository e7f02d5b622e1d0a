# SPDX-License-Identifier: Apache-2.0
"""Noise at the level of a hospital, in shares of a secure sum: how much, who adds it, its budget, what is refused."""

import json
import math

import numpy as np
import pytest
import torch

from fairflare.core.errors import EgressRefused, UserError
from fairflare.engine.audit import verify
from fairflare.engine.files import read_model
from fairflare.engine.memory import SpentFile
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.privacy import differential_privacy
from fairflare.privacy.differential_privacy import Draws, Mechanism, SiteNoise, bounded, epsilon_of, share
from fairflare.privacy.sum_protocol import SumRefused
from fairflare.report.write import write_report
from helpers import least_epsilon

SECURE = {"secure_sum": "masks", "site_epsilon": 8.0, "model": "linear"}
TASK = "support2:dirichlet"
SITES = 8


def config(rounds=1, method="fedavg", task=TASK, **values):
    return make_config(method, task, rounds=rounds, values={**SECURE, **values})


def test_all_but_the_colluders_add_the_noise_and_a_site_moves_the_sum_by_its_part():
    noise = SiteNoise(clip=2.0, epsilon=1.0, delta=1e-5, colluders=2, rounds=3, draws=Draws(7))
    assert (
        epsilon_of([Mechanism(noise.noise, 1.0, 3)], 1e-5) <= 1.0 < epsilon_of([Mechanism(noise.noise, 1.0, 4)], 1e-5)
    )
    parts = [noise.applied({"w": torch.zeros(200, 100)}, sites=6)["w"] for _ in range(4)]
    assert float(sum(parts).std()) == pytest.approx(noise.noise * 2.0 / 6, rel=0.02), "four of six know no more"
    silent = Draws(7)
    silent.normal = torch.zeros_like
    large = bounded({"a": np.full((3, 4), 7.0), "b": torch.full((5,), -100.0)}, *share(2.0, 1.0, 4, 1), silent)
    assert math.sqrt(sum(float(v.square().sum()) for v in large.values())) == pytest.approx(0.5)
    assert bounded({"a": torch.full((2,), 0.1)}, 1.0, 1.0, silent)["a"].tolist() == pytest.approx([0.1, 0.1])
    with pytest.raises(SumRefused, match="a sum of 3 sites, of which 3 may tell their noise"):
        share(1.0, 1.0, 3, 3)


def told(trials, rounds=1, sites=4):
    """The least epsilon with which who knows the other updates, and one site's noise, tells if a hospital is there."""
    noise = SiteNoise(clip=1.0, epsilon=1.0, delta=1e-3, colluders=1, rounds=rounds, draws=Draws(3))
    there = np.random.default_rng(1).random(trials) < 0.5

    def seen(update):
        """The sums of all rounds, without the part of the site that tells its own."""
        parts = [{"w": torch.tensor([value])} for value in (update, *[0.0] * (sites - 2))]
        return sum(float(noise.applied(part, sites)["w"]) for part in parts for _ in range(rounds))

    sums = np.array([seen(50.0 * one) for one in there])
    return least_epsilon(int(((sums > sums.mean()) == there).sum()), trials, noise.delta)


def test_who_sees_the_sum_cannot_tell_a_hospital_better_than_epsilon_allows(monkeypatch):
    assert 0 < told(2000) <= 1.0
    for name, broken in {
        "noise of an eighth": lambda *plan: (share(*plan)[0], share(*plan)[1] / 8),
        "no noise": lambda *plan: (share(*plan)[0], 0.0),
        "no clip": lambda *plan: (1e9, share(*plan)[1]),
    }.items():
        monkeypatch.setattr(differential_privacy, "share", broken)
        assert told(300) > 1.0, name


@pytest.mark.long
def test_who_sees_the_sums_of_ten_rounds_cannot_either(monkeypatch):
    assert 0 < told(3000, rounds=10) <= 1.0
    monkeypatch.setattr(differential_privacy, "share", lambda *plan: (share(*plan)[0], share(*plan)[1] / 8))
    assert told(300, rounds=10) > 1.0


def test_a_round_of_masked_sums_has_the_noise_that_was_planned(tmp_path):
    models = {}
    for name, values in {"plain": {"site_epsilon": 0.0}, "noisy": {"site_clip": 50.0}}.items():
        (tmp_path / name).mkdir()
        run_local(config(**values), tmp_path / name)
        models[name] = read_model(tmp_path / name / "model.safetensors")
    added = torch.cat([(models["noisy"][key] - models["plain"][key]).flatten() for key in models["plain"]])
    sigma = SiteNoise(50.0, 8.0, 1e-5, 1, 1).noise
    expected = sigma * 50.0 / SITES * math.sqrt(SITES / (SITES - 1))
    assert float(added.std()) == pytest.approx(expected, rel=6 / math.sqrt(2 * len(added))) and len(added) > 50
    start = verify(tmp_path / "noisy" / "audit.jsonl")[0]
    assert start["site_privacy"] == {"epsilon": 8.0, "delta": 1e-5, "clip": 50.0, "colluders": 1}
    ledgers = sorted((tmp_path / "noisy" / "sites").glob("*.privacy.json"))
    (spent,) = json.loads(ledgers[0].read_text())["runs"].values()
    assert len(ledgers) == SITES and spent["epsilon"] <= 8.0 and spent["spent"] == [[pytest.approx(sigma), 1.0, 1]]
    report = write_report(tmp_path / "noisy")
    assert [(one["n_train"], one["n_test"], one["metrics"]) for one in report["sites"].values()] == [
        (None, None, {})
    ] * 8
    caveats = report["detail"]["caveats"]
    assert any("epsilon = 8 at delta = 1e-05" in text and "no more than 1 of them" in text for text in caveats)


def test_a_spent_budget_survives_a_restart_and_ends_a_sites_part_in_the_run(tmp_path, monkeypatch):
    def site():
        return SiteNoise(1.0, 2.0, 1e-5, 1, 2, SpentFile(tmp_path / "a.privacy.json", "run"))

    site().charge()
    site().check()
    site().charge()
    with pytest.raises(EgressRefused, match="privacy budget of the hospital spent"):
        site().check()

    (tmp_path / "run").mkdir()
    spent, charge = {}, SiteNoise.charge

    def charged(noise):
        """One site's sums are asked for twice in the first round."""
        name = noise.ledger._path.name
        charge(noise)
        if name.startswith("site-1.") and not spent.setdefault(name, 0):
            spent[name] = 1
            charge(noise)

    monkeypatch.setattr(SiteNoise, "charge", charged)
    run_local(config(rounds=2), tmp_path / "run")
    first, second = (e for e in verify(tmp_path / "run" / "audit.jsonl") if e["event"] == "round")
    assert "site-1" in first["accepted"] and "site-1" not in second["accepted"] and len(second["accepted"]) == SITES - 1
    assert "privacy budget of the hospital spent" in str(second["rejected"]["site-1"])


REFUSED = [
    ({"secure_sum": "none"}, "secure_sum: expected masks or ckks with site_epsilon"),
    ({"solo": True}, "solo: expected false with site_epsilon"),
    ({"site_colluders": 7}, "site_colluders: expected at most 6, got 7"),
    ({"method": "qffl"}, r"site_epsilon: qffl sends loss\S*, which no privacy budget covers"),
    ({"method": "glm", "model": "regression"}, "site_epsilon: trainer newton sends sums over patients"),
    ({"task": "digits:small", "model": "small-cnn-bn"}, r"site_epsilon: \S+ is a statistic of patients"),
]


@pytest.mark.parametrize("values, words", REFUSED)
def test_what_would_pass_the_budget_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        build_parts(config(**values))
