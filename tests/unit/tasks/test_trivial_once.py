# SPDX-License-Identifier: Apache-2.0
"""In one process, what needs no network is computed once for the same rows, and never for others."""

import dataclasses

import torch

from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites
from fairflare.engine.setup.parts import build_parts
from fairflare.tasks.kinds import classes


def of_first(folder, **values):
    """The site's function from its data to what needs no network, and the data."""
    config = make_config("fedavg", "support2:dirichlet", rounds=1, values={"n_sites": 3, "model": "linear", **values})
    with LocalSites(config, folder, build_parts(config)) as sites:
        site = sites.transport._sites["site-1"]
        return site.exchanges["evaluate"].trivial, site.look()[1]


def test_the_same_rows_are_fitted_once_and_others_anew(tmp_path, monkeypatch):
    fitted, fit = [], classes._regression
    monkeypatch.setattr(classes, "_regression", lambda task, data: fitted.append(data) or fit(task, data))
    trivial, data = of_first(tmp_path)
    first = trivial(data)
    again, same = of_first(tmp_path, epochs=2)
    kept = again(same)
    assert kept == first and kept is not first and same is not data and len(fitted) <= 1
    before = len(fitted)
    split = data.splits["train"]
    for changed in ({"targets": 1 - split.targets}, {"inputs": torch.roll(split.inputs, 1, 0)}):
        same.splits["train"] = dataclasses.replace(split, **changed)
        assert again(same) != first
    assert len(fitted) == before + 2
