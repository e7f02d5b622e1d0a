# SPDX-License-Identifier: Apache-2.0
"""A hospital leaves: the model is the one of a run that never had it, whose cost was told before it was run."""

import json
import shutil

import numpy as np
import pytest

from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.files import read_model
from fairflare.engine.setup import tasks
from fairflare.engine.setup.assembly import save_config
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.site import Site
from fairflare.report.write import verify_run, write_report
from fairflare_lab.studies.forget import forget, plan
from run_folders import call
from runs import bits

SHORT = {"local_steps": None, "batch_size": 64}
HEART = ("Cleveland", "Hungary", "Switzerland", "VA")


def finished(folder, method, rounds=3, transport=lambda own: own, **values):
    """A run on heart whose sites are reached by ``transport``, with its report."""
    folder.mkdir()
    config = make_config(method, "heart", rounds=rounds, values={**SHORT, **values})
    parts = build_parts(config)
    save_config(config, parts, folder, "local")
    with LocalSites(config, folder, parts) as sites:
        sites.transport = transport(sites.transport)
        run_local(config, folder, parts=parts, sites=sites)
    write_report(folder)
    return config, folder


class Late:
    """VA answers nothing before it is invited in round ``begins``, and trains from the next one on."""

    def __init__(self, own, begins):
        self._own, self._begins = own, begins

    def sites(self):
        return self._own.sites()

    def exchange(self, instructions):
        training = any(one.task == "train" for one in instructions.values())
        there = training and next(iter(instructions.values())).round.number >= self._begins
        self._begins = 0 if there else self._begins
        for answer in self._own.exchange(instructions):
            if answer.site != "VA" or not self._begins:
                yield answer


def test_exact_regression_equals_the_pooled_fit_of_those_who_stay(tmp_path):
    sm = pytest.importorskip("statsmodels.api")
    config, folder = finished(tmp_path / "run", "glm", rounds=10)
    said = forget(plan(folder, "VA"), tmp_path / "without")
    task = tasks.load(config.task, config.preset, **config.options)
    batches = [one for name in HEART[:3] for one in task.site_data(name).fixed("train", 4096)]
    x, y = (np.concatenate([each.double().numpy() for each in kind]) for kind in list(zip(*batches))[:2])
    fit = sm.GLM(y, np.c_[x, np.ones(len(y))], family=sm.families.Binomial()).fit(tol=1e-15, maxiter=100)
    model = read_model(tmp_path / "without" / "model.safetensors")
    found = np.r_[model["weight"].numpy(), model["bias"].numpy()]
    assert np.abs(found - fit.params).max() < 1e-10
    assert "exact regression" in said["how"] and said["removed"] == {"rounds": list(range(1, 11)), "n_train": 85}


def test_a_network_has_the_bits_of_a_run_without_the_site(tmp_path, monkeypatch):
    _, folder = finished(tmp_path / "run", "fedism-plus")
    asked, handle = [], Site.handle
    monkeypatch.setattr(Site, "handle", lambda site, told: (asked.append(site.name), handle(site, told))[1])
    said = forget(plan(folder, "VA"), tmp_path / "without")
    assert set(asked) == set(HEART[:3]), "whoever leaves is asked for nothing"
    _, never = finished(tmp_path / "never", "fedism-plus", leave_out="VA")
    assert bits(tmp_path / "without")["model"] == bits(never)["model"] == said["model_after"] != said["model_before"]
    assert verify_run(tmp_path / "without") and list(said["stay"]) == list(HEART[:3])
    before, after = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("run", "without"))
    told = said["stay"]["Hungary"]
    assert told["before"] == {
        "value": before["sites"]["Hungary"]["metrics"]["accuracy"],
        **before["sites"]["Hungary"]["intervals"]["accuracy"],
    }
    assert told["after"]["value"] == after["sites"]["Hungary"]["metrics"]["accuracy"]


def test_a_site_that_joined_later_costs_the_rounds_since(tmp_path):
    _, folder = finished(tmp_path / "run", "fedheal", rounds=5, transport=lambda own: Late(own, begins=3))
    chosen = plan(folder, "VA")
    assert chosen.took_part == (4, 5) and chosen.first == 3
    assert chosen.cost().startswith("forgetting VA takes 3 rounds (rounds 3 to 5) at 3 sites (Cleveland, Hungary, Sw")
    forget(chosen, tmp_path / "without")
    _, never = finished(tmp_path / "never", "fedheal", rounds=5, leave_out="VA")
    assert bits(tmp_path / "without")["model"] == bits(never)["model"] != bits(folder)["model"]
    assert verify_run(tmp_path / "without")
    log = verify(tmp_path / "without" / "audit.jsonl")
    assert [e["round"] for e in log if e["event"] == "round"] == [1, 2, 3, 4, 5] and log[3]["event"] == "resume"
    assert not any("VA" in json.dumps({key: e[key] for key in e if key != "header"}) for e in log[:3])

    kept = folder / "joined" / "2.safetensors"
    shutil.copyfile(folder / "checkpoint.safetensors", kept)
    with pytest.raises(UserError, match=r"joined/2.safetensors: is not what audit.jsonl says of round 2"):
        plan(folder, "VA")
    kept.unlink()
    assert plan(folder, "VA").first == 1


def test_what_sites_keep_from_round_to_round_makes_it_begin_at_the_start(tmp_path):
    _, folder = finished(tmp_path / "run", "fedavg", rounds=3, transport=lambda own: Late(own, begins=2), local_steps=3)
    chosen = plan(folder, "VA")
    assert chosen.first == 1 and "sites keep something" in chosen.why


def test_the_command_tells_the_cost_and_asks(tmp_path, capsys):
    _, folder = finished(tmp_path / "run", "fedavg", rounds=1)
    assert call("forget", folder, "--site", "VA") == 2
    told = capsys.readouterr()
    assert "takes 1 rounds (rounds 1 to 1) at 3 sites" in told.out and "expected --yes" in told.err
    assert call("forget", folder, "--site", "Bern", "--yes") == 2
    assert "--site: expected a site that the run trained on" in capsys.readouterr().err
    assert call("forget", folder, "--site", "VA", "--yes") == 0
    statement = (tmp_path / "run-without-VA" / "statement.md").read_text()
    assert "What cannot be undone" in statement and "| Hungary | 0." in statement
    assert call("verify", tmp_path / "run-without-VA") == 0
    with pytest.raises(SystemExit) as ended:
        main(["forget", str(tmp_path / "run-without-VA"), "--site", "Hungary", "--yes"])
    assert ended.value.code == 2 and "is without VA" in capsys.readouterr().err
