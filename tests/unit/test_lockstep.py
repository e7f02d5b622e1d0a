# SPDX-License-Identifier: Apache-2.0
"""Runs of a study that are trained together: models of a run by itself within rounding, and every run on its own."""

import dataclasses
import threading

import pytest
import torch

from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.exchanges.evaluate import EvaluateAtSite
from fairflare.engine.files import AUDIT, CHECKPOINT, CONFIG, MODEL, read_json
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import make_config
from fairflare.report.write import verify_run
from fairflare.studies import lockstep, runs
from fairflare.studies.study import Study
from fairflare.trainers import vmap_training

TOLERANCE = 1e-5
"""Of the largest weight, as docs/settings.md states it of a stacked run."""
METHODS = ("fedavg", "fedheal", "fedprox", "fedism-plus", "fedufo", "ditto", "fedce", "fedlwr", "qffl", "fedadam")


def configs(methods=METHODS, seeds=(0, 1), **values):
    return {
        f"{method}-{seed}": make_config(
            method, "support2:dirichlet", rounds=3, sites=3, seed=seed, values={"model": "linear", **values}
        )
        for method in methods
        for seed in seeds
    }


def models(folder):
    from safetensors.torch import load_file

    return {path.parent.name: load_file(path) for path in folder.glob(f"*/{MODEL}")}


def counted(train, calls):
    def call(works, trainer):
        calls.append(len(works))
        return train(works, trainer)

    return call


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same study, one run after the other and in lockstep, with the sizes of the calls that trained it."""
    folder, calls = tmp_path_factory.mktemp("study"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vmap_training, "train_together", counted(vmap_training.train_together, calls))
        Study(configs()).make(folder / "one", runs.run_once, 1)
        assert not calls
        Study(configs()).make(folder / "together", runs.run_once, 1, lockstep=True)
    return folder, calls


def test_models_are_those_of_runs_one_by_one(both):
    folder, _ = both
    one, together = models(folder / "one"), models(folder / "together")
    assert one.keys() == together.keys() == configs().keys()
    for name, model in one.items():
        largest = max(float(value.abs().max()) for value in model.values())
        for key, value in model.items():
            assert float((value - together[name][key]).abs().max()) <= TOLERANCE * largest, (name, key)


def test_the_sites_of_all_runs_are_in_one_call(both):
    """Two seeds of three sites: all that make one pass in one call, GSAM's two passes in another; Ditto in none."""
    _, calls = both
    assert sorted(calls) == sorted([48, 6] * 3)


def test_every_run_has_a_log_that_verifies_and_says_how_it_was_trained(both):
    folder, _ = both
    for name in configs():
        assert verify_run(folder / "together" / name)[-1]["status"] == "completed"
        stacked = read_json(folder / "together" / name / CONFIG).get("stacked", False)
        assert stacked == (not name.startswith("ditto")), name


def test_what_stands_there_is_made_as_it_was_begun(both):
    folder, _ = both
    for place, stacked in (("one", set()), ("together", {n for n in configs() if not n.startswith("ditto")})):
        assert lockstep.in_lockstep(configs(), folder / place).keys() == stacked
    before = {path: path.stat().st_mtime_ns for path in folder.glob(f"*/*/{MODEL}")}
    Study(configs()).make(folder / "together", runs.run_once, 1, lockstep=True)
    assert {path: path.stat().st_mtime_ns for path in folder.glob(f"*/*/{MODEL}")} == before


def test_images_cox_perceptrons_and_a_single_run_are_not_stacked(tmp_path):
    alone = dict([next(iter(configs().items()))])
    assert not lockstep.in_lockstep(alone, tmp_path)
    images = {str(k): make_config("fedavg", "ich-phantom:small", seed=k) for k in (0, 1)}
    assert not lockstep.in_lockstep(images, tmp_path)
    deep = {key: dataclasses.replace(one, options=one.options | {"model": "mlp"}) for key, one in configs().items()}
    assert not lockstep.in_lockstep(deep, tmp_path)
    chosen = {key: dataclasses.replace(one, stacked=True) for key, one in deep.items() if "ditto" not in key}
    assert lockstep.in_lockstep(chosen, tmp_path) == chosen
    net = torch.nn.Linear(2, 1)
    assert not vmap_training.are_products(net, "cox", configs()["fedavg-0"].training)


def test_one_run_that_fails_takes_no_other_with_it(tmp_path):
    def one(config, folder, workers):
        if config.method == "fedheal":
            raise RuntimeError("a bug in one run")
        return runs.run_once(config, folder, workers=workers)

    study = Study(configs(("fedavg", "fedheal", "fedprox"), (0,)))
    with pytest.raises(RuntimeError, match="a bug in one run"):
        study.make(tmp_path, one, 1, lockstep=True)
    assert study.reports.keys() == {"fedavg-0", "fedprox-0"}


def test_an_interrupt_ends_every_thread_and_the_runs_go_on_later(tmp_path, monkeypatch):
    train, calls = vmap_training.train_together, []

    def interrupted(works, trainer):
        calls.append(len(works))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(works, trainer)

    monkeypatch.setattr(vmap_training, "train_together", interrupted)
    chosen = configs(("fedavg", "fedheal"), (0,))
    with pytest.raises(KeyboardInterrupt):
        Study(chosen).make(tmp_path, runs.run_once, 1, lockstep=True)
    assert not [one for one in threading.enumerate() if "_run" in one.name]
    monkeypatch.setattr(vmap_training, "train_together", train)
    reports = Study(chosen).make(tmp_path, runs.run_once, 1, lockstep=True)
    assert len(reports) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [UserError("stacked: the network cannot be trained"), RuntimeError("out of memory")])
def test_what_stops_the_batched_call_is_said_by_each_run(tmp_path, monkeypatch, error):
    """And no run waits for a call that will not come."""

    def refused(works, trainer):
        raise error

    monkeypatch.setattr(vmap_training, "train_together", refused)
    study = Study(configs(("fedavg", "fedprox")))
    with pytest.raises(type(error), match=str(error)):
        study.make(tmp_path, runs.run_once, 1, lockstep=True)
    assert not study.reports


class Killed(BaseException):
    pass


@pytest.mark.parametrize("error", [Killed, RunFailed])
def test_a_short_run_of_a_study_ends_in_the_same_bits_where_it_was_cut_short(tmp_path, monkeypatch, error):
    """It leaves nothing between its rounds: after a kill it is made again, after an error it goes on."""
    config = configs(("fedlwr",), (0,), **{"train.local_steps": 3})["fedlwr-0"]

    def made(name, page=False):
        return runs.run_once(config, tmp_path / name, page=page) and models(tmp_path)[name]

    def stopped(self, site, instruction):
        raise error("in the evaluation")

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(EvaluateAtSite, "evaluate", stopped)
        made("short")
    assert (tmp_path / "short" / CHECKPOINT).is_file() == (error is RunFailed)
    first = (tmp_path / "short" / AUDIT).read_text().splitlines()[0]
    assert model_hash(made("short")) == model_hash(made("whole", page=True))
    assert (first in (tmp_path / "short" / AUDIT).read_text()) == (error is RunFailed)
    assert verify_run(tmp_path / "short")[-1]["status"] == "completed"
    kept = ["/".join(path.parts[-2:]) for path in sorted((tmp_path / "whole").rglob("sites/*"))]
    assert kept and kept == ["/".join(path.parts[-2:]) for path in sorted((tmp_path / "short").rglob("sites/*"))]
