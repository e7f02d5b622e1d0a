# SPDX-License-Identifier: Apache-2.0
"""Real FLARE processes: the simulator gives the very bits of the in-process run, survives a site's error and Ctrl-C."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from slow_trainer import SECRET

from command_line import succeed as call
from evidence_checks import answers, check_pack
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup import tasks
from fairflare.engine.setup.assembly import build_federation, build_site, site_names
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.executor import TASKS, FairExecutor
from fairflare.flare.simulate import run_simulator
from fairflare.flare.wire import ERROR_HEADER
from fairflare_lab.studies.evidence import write_evidence

pytestmark = pytest.mark.flare
HERE = Path(__file__).parent
TASK = ["--task", "support2:dirichlet", "--sites", "3"]


def fairflare(*arguments, **environment):
    """The command as a process of its own, for plugins that it alone shall load."""
    command = [sys.executable, "-m", "fairflare", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=400)


def model_of(folder):
    return read_tensors(folder / "model.safetensors")


PARTS = ["secure_sum=masks", "after=recalibrate", "server_optimizer=adam", "train.lr=0.002"]
SET = [word for pair in PARTS for word in ("--set", pair)]
"""Updates with 64 bits go over FLARE in the test of encrypted sums."""


def test_simulator_and_in_process_agree_bit_for_bit(tmp_path):
    """With a selector test_plugins_sim.py runs; a site whose process the others' turns end, test_heartbeat.py."""
    hashes = {}
    for name, env in (("first", "local"), ("flare", "sim")):
        call("run", "fedism-plus", *TASK, *SET, "--rounds", 2, "--env", env, "--out", tmp_path / name)
        hashes[name] = model_hash(model_of(tmp_path / name))
    assert len(set(hashes.values())) == 1, hashes
    initial = build_parts(make_config("fedism-plus", "support2:dirichlet", sites=3)).model
    assert model_hash(initial) not in hashes.values()
    local, flare = (json.loads((tmp_path / n / "report.json").read_text()) for n in ("first", "flare"))
    assert local["fairness"] == flare["fairness"] and local["sites"] == flare["sites"]
    assert local["detail"]["after"] == flare["detail"]["after"] and local["detail"]["after"]
    call("evidence", tmp_path / "flare")
    check_pack(tmp_path / "flare" / "evidence")
    assert write_evidence(tmp_path / "flare", tmp_path / "pack", answers(tmp_path))["score"] > 90
    check_pack(tmp_path / "pack")
    call("verify", tmp_path / "flare")
    names = {p.name for p in (tmp_path / "flare").iterdir()}
    assert {
        "report.html",
        "report.json",
        "audit.jsonl",
        "model.safetensors",
        "config.json",
        "tb_events",
        "log.txt",
    } <= names


def test_encrypted_sums_over_flare(tmp_path):
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    for name, env in (("local", "local"), ("flare", "sim")):
        run = ["run", "fedism-plus", *TASK, "--set", "secure_sum=ckks", "--rounds", 2, "--env", env]
        call(*run, "--no-solo", "--out", tmp_path / name)
    local, flare = (model_of(tmp_path / name) for name in ("local", "flare"))
    assert all(torch.allclose(local[key], flare[key], rtol=0, atol=1e-6) for key in local)
    assert not (tmp_path / "flare" / "he").exists(), "the key of the run stays with it"


class Skipping(InProcess):
    """A site does not answer in its round of ``skipped``."""

    def __init__(self, sites, skipped):
        super().__init__(sites)
        self.skipped = skipped

    def exchange(self, instructions):
        reached = {s: i for s, i in instructions.items() if self.skipped.get(s) != i.round.number}
        return super().exchange(reached if "train" in {i.task for i in reached.values()} else instructions)


def without(skipped, folder, values):
    """The hash of the model of the same run in this process in which sites do not train in these rounds at all."""
    config = make_config("fedavg", "support2:dirichlet", rounds=3, sites=3, values=values)
    parts = build_parts(config)
    initial = {key: value.clone() for key, value in parts.model.items()}
    sites = {name: build_site(config, parts, name) for name in site_names(config)}
    folder.mkdir()
    return model_hash(build_federation(config, parts, Skipping(sites, skipped), folder, "local").run(initial))


def test_a_site_that_raises_is_left_out_as_is_one_that_is_slow_and_their_next_answers_count(tmp_path):
    """site-3 raises in round 1, and its words stay there. site-2 would train for ever in round 2; it stops, keeps
    nothing of that round, and takes part in the next one.
    """
    built = tasks.load("support2", "dirichlet", n_sites=3)
    late, broken = (built.site_data(site).size("train") for site in ("site-2", "site-3"))
    early = {"min_responses": 2, "grace": 8, "keep_optimizer": True}
    slow = {"trainer": "slow", "victim": late, "trainer.rounds": "2", "trainer.broken": broken}
    chosen = [word for key, value in {**early, **slow}.items() for word in ("--set", f"{key}={value}")]
    done = fairflare(
        "run", "fedavg", *TASK, *chosen, "--rounds", 3, "--no-solo", "--env", "sim", "--out", tmp_path / "run",
        FAIRFLARE_PLUGINS=str(HERE / "slow_trainer.py"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries = verify(tmp_path / "run" / "audit.jsonl")
    rounds = [e for e in entries if e["event"] == "round"]
    error = {"code": "site_error", "detail": "EXECUTION_EXCEPTION ValueError"}
    late = {"code": "late", "detail": "the round ended with the answers of 2 of 3 sites"}
    assert [e["rejected"] for e in rounds] == [{"site-3": error}, {"site-2": late}, {}]
    assert [len(e["accepted"]) for e in rounds] == [2, 2, 3] and rounds[1]["seconds"]["exchange"] < 60
    assert entries[-1]["model_sha256"] == without({"site-3": 1, "site-2": 2}, tmp_path / "local", early)
    assert "site-2 left out: late" in (tmp_path / "run" / "log.txt").read_text()
    assert "train: round 2 went on without this site" in (tmp_path / "run" / "flare_log.txt").read_text()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    codes = {row["site"]: row["codes"] for row in report["detail"]["sites"]}
    assert codes == {"site-1": {}, "site-2": {"late": 1}, "site-3": {"site_error": 1}}
    for name in ("audit.jsonl", "report.json", "report.html", "log.txt"):
        assert SECRET not in (tmp_path / "run" / name).read_text()


def test_a_folder_for_temporary_files_that_no_socket_fits_into(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    with pytest.raises(UserError, match=r"^TMPDIR: expected a path of at most 75 characters .*, got \d+$"):
        run_simulator(make_config("fedavg", "support2", rounds=1), tmp_path, ["site-1"])


def test_no_task_is_done_where_the_job_masks_no_update(tmp_path):
    """A configuration from which somebody took the filter out, as a site's executor finds it."""
    call("export", "fedism-plus", *TASK, "--set", "secure_sum=masks", "--rounds", 1, "--out", tmp_path / "j")
    app = tmp_path / "j" / "app_sites"
    file = app / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    said = []
    for changed in (content, {**content, "task_result_filters": []}):
        file.write_text(json.dumps(changed))
        (context := FLContext()).set_prop(FLContextKey.APP_ROOT, str(app), private=True, sticky=False)
        executor = FairExecutor(content["executors"][0]["executor"]["args"]["config"])
        for task in TASKS:
            reply = executor.execute(task, Shareable(), context, Signal())
            said.append((reply.get_return_code(), reply.get_header(ERROR_HEADER)))
    whole, without = said[: len(TASKS)], said[len(TASKS) :]
    assert set(without) == {(ReturnCode.EXECUTION_EXCEPTION, "DataError secure_sum")} and not set(without) & set(whole)
