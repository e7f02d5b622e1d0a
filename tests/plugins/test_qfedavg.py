# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg against the authors' code and a float64 restatement, its limits, and one run."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fairflare.core.errors import UserError
from fairflare.core.registry import get_method
from fairflare.core.types import Info, Reply, Round
from fairflare.testing import check_rule
from fairflare.testing.laws import CHECKS

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from golden import folder  # noqa: E402


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_the_authors_step(plugin, q):
    golden = np.load(folder() / "qfedavg.npz")
    model = {key: torch.tensor(golden[f"w0/{key}"]) for key in "01"}
    replies = [
        Reply(
            f"site-{k}",
            {key: torch.tensor(golden[f"wk/{k}/{key}"]) - model[key] for key in "01"},
            10,
            {"loss": float(loss)},
            trainable=frozenset("01"),
        )
        for k, loss in enumerate(golden["loss"])
    ]
    outcome = plugin.QFedAvg(q=q).aggregate(model, replies, {}, Info(Round(1, 1), lr=float(golden["lr"])))
    for key in "01":
        np.testing.assert_allclose(outcome.model[key].numpy(), golden[f"q{q:g}/new/{key}"], rtol=1e-10, atol=1e-12)


EXTRA = [(f"qfedavg/q{q}", float(q), False) for q in ("0.0", "0.1", "1.0", "2.0", "5.0", "50", "500")]
EXTRA += [(f"qfedavg_steps/q{q}", float(q), True) for q in ("0.0", "1.0")]


@pytest.mark.parametrize("key, q, per_step", EXTRA)
def test_more_rounds_and_local_steps(plugin, key, q, per_step):
    """A site without an update, one without a loss, a q that overflows any double, L_k by each site's steps."""
    golden = np.load(folder() / "qffl_extra.npz")
    rule, expected = plugin.QFedAvg(q=q, per_step=per_step), golden[key]
    model = {"w": torch.tensor(golden["w0"])}
    for t, (losses, updates) in enumerate(zip(golden["losses"], golden["updates"])):
        replies = [
            Reply(f"site-{k}", {"w": torch.tensor(u)}, 10, {"loss": float(f)}, trainable=frozenset("w"))
            for k, (f, u) in enumerate(zip(losses, updates))
        ]
        steps = {f"site-{k}": int(n) for k, n in enumerate(golden["steps"])}
        info = Info(Round(t + 1, 3), lr=float(golden["lr"]), steps=steps)
        model = rule.aggregate(model, replies, {}, info).model
        np.testing.assert_allclose(model["w"].numpy(), expected[t], rtol=1e-10, atol=1e-12)


def reply(k, vector, loss):
    return Reply(
        f"site-{k}", {"w": torch.tensor(vector), "mean": torch.ones(1)}, 10, {"loss": loss}, {}, frozenset("w")
    )


def test_q_zero_is_the_uniform_mean(plugin):
    outcome = plugin.QFedAvg(q=0).aggregate(
        {"w": torch.zeros(2), "mean": torch.zeros(1)}, [reply(0, [1.0, 0.0], 9.0), reply(1, [0.0, 3.0], 0.1)], {}, INFO
    )
    assert outcome.model["w"].tolist() == [0.5, 1.5] and outcome.notes["step"] == 1


def test_a_step_by_hand(plugin):
    """q = 1, L = 2, F = (3, 1), D = (1, 0): Delta = (-6, 0), h = (4 + 6, 2), so the step is 6 / 12.

    The buffer moves by its whole weighted mean.
    """
    sites = [reply(0, [1.0], 3.0), reply(1, [0.0], 1.0)]
    outcome = plugin.QFedAvg(q=1).aggregate({"w": torch.zeros(1), "mean": torch.zeros(1)}, sites, {}, INFO)
    assert outcome.model["w"].item() == pytest.approx(0.5) and outcome.model["mean"].item() == pytest.approx(1)
    assert outcome.weights == pytest.approx({"site-0": 0.75, "site-1": 0.25})


INFO = Info(Round(1, 5), lr=0.5)


def test_it_says_what_it_lacks(plugin):
    with pytest.raises(UserError, match="learning rate"):
        plugin.QFedAvg().aggregate({"w": torch.zeros(1)}, [reply(0, [1.0], 1.0)], {}, Info(Round(1, 5)))
    with pytest.raises(UserError, match="every site.s steps"):
        plugin.QFedAvg(per_step=True).aggregate({"w": torch.zeros(1)}, [reply(0, [1.0], 1.0)], {}, INFO)


@pytest.mark.parametrize("settings", [{}, {"q": 0.5}, {"q": 30.0}, {"per_step": True}], ids=str)
def test_the_laws(plugin, settings):
    for check in CHECKS:
        check(dataclasses.replace(get_method("qfedavg"), settings=settings))


def test_a_run_uses_its_own_learning_rate(plugin, tmp_path):
    """L = 1 / lr: the run says the same as one with L given, and another than one with another L."""
    from fairflare.app.cli import main

    models = []
    for name, more in (("own", ()), ("same", ("--set", "lipschitz=20")), ("other", ("--set", "lipschitz=1"))):
        command = ["run", "qfedavg", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2"]
        with pytest.raises(SystemExit) as end:
            main([*command, "--set", "lr=0.05", "--set", "optimizer=sgd", *more, "--out", str(tmp_path / name)])
        assert not end.value.code
        entries = [json.loads(line) for line in (tmp_path / name / "audit.jsonl").read_text().splitlines()]
        assert 0 < entries[1]["notes"]["step"] < 1
        models.append(next(e["model_sha256"] for e in entries if e["event"] == "finish"))
    assert models[0] == models[1] != models[2]


def test_the_kit(plugin):
    check_rule("qfedavg")
