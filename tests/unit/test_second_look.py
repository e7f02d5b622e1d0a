# SPDX-License-Identifier: Apache-2.0
"""Final models looked at again, on resampled patients."""

import json

import numpy as np
import pytest

from command_line import call
from fairflare.engine.files import BEST, MODEL, save_tensors
from fairflare.engine.setup.parts import build_parts
from fairflare.studies.comparison import _add, _redrawn, _same_patients, with_shown_model
from fairflare.studies.study import arms


def test_a_resample_is_the_same_for_every_method():
    import torch

    outputs, targets = torch.arange(50.0)[:, None], torch.arange(50)
    one, other = (_redrawn(3, "site-1", number, outputs, targets, None)[1] for number in (0, 0))
    assert one.equal(other) and not one.equal(_redrawn(3, "site-1", 1, outputs, targets, None)[1])
    assert len(one) == 50 and len(set(one.tolist())) < 50
    pairs = _redrawn(3, "site-1", 0, outputs, targets, np.arange(50) // 2)[1]
    assert (pairs.bincount(minlength=50).reshape(25, 2).diff() == 0).all(), "both rows of a patient as often"


def test_seeds_with_the_same_patients_resample_them_together():
    """Those of natural splits, and of data that are kept; not those that every seed draws."""
    for name, same in (("heart:full", True), ("support2:dirichlet", False)):
        assert _same_patients([config for _, config in arms(["fedavg"], name, [0, 1])]) is same
    fixed = arms(["fedavg"], "support2:dirichlet", [0, 1], fixed_data=True)
    assert _same_patients([config for _, config in fixed])


@pytest.mark.parametrize("headline", ["best", "final"])
def test_what_is_looked_at_again_is_the_model_that_the_table_is_of(tmp_path, headline):
    values = {"best_by": "mean", "headline": headline, "model": "linear"}
    ((_, config),) = arms(["fedavg"], "support2:dirichlet", [0], values=values)
    model = build_parts(config).model
    for name, value in ((MODEL, 1.0), (BEST, 2.0)):
        save_tensors(tmp_path / name, {key: one.new_full(one.shape, value) for key, one in model.items()})
    found = with_shown_model(config, tmp_path).network.state_dict()
    assert all((one == (2 if headline == "best" else 1)).all() for one in found.values())


@pytest.mark.parametrize(
    "low, high, said", [(0.1, 0.2, "better"), (-0.1, 0.2, "cannot be told"), (-0.2, -0.1, "cannot be told")]
)
def test_a_verdict_needs_both_intervals(low, high, said):
    paired = {"low": 0.1, "high": 0.3, "verdict": "better"}
    _add(paired, {"low": low, "high": high})
    assert paired["verdict"] == said and paired["bootstrap"]["high"] == high
    other = {"low": 0.1, "high": 0.3, "verdict": "other objective"}
    _add(other, {"low": -0.1, "high": 0.2})
    assert other["verdict"] == "other objective"


@pytest.mark.slow
def test_a_comparison_looks_again(tmp_path, capsys):
    command = ["compare", "fedavg", "fedavg:weighting=uniform", "--task", "support2:dirichlet", "--sites", "3"]
    command += ["--rounds", "1", "--seeds", "0,1", "--set", "model=linear", "--workers", "1", "--json"]
    command += ["--resample", "20", "--out", tmp_path / "c"]
    code, out, err = call(capsys, *command)
    assert code == 0, err
    found = json.loads(out)
    again = found["methods"][1]["versus_first"]["worst"]["bootstrap"]
    assert again["low"] <= again["mean"] <= again["high"] and again["resamples"] == 20
    page = (tmp_path / "c" / "compare.html").read_text()
    assert "Patients resampled" in page
    assert json.loads((tmp_path / "c" / "compare.json").read_text()) == found
