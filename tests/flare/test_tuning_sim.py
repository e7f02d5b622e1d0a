# SPDX-License-Identifier: Apache-2.0
"""A frozen body over real FLARE processes: the bits of one process; a job brings the body or leaves it at home."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cases import needs
from command_line import succeed as call
from fairflare.engine.files import INITIAL, read_model
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.weights import VARIABLE

pytestmark = [pytest.mark.flare, needs("peft")]
TASK = ["--task", "support2:dirichlet", "--sites", "2", "--set", "model=mlp", "--rounds", "2", "--no-solo"]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_adapters_on_a_given_body_agree_with_one_process_bit_for_bit(tmp_path):
    call("run", "fedavg", *TASK, "--out", tmp_path / "body")
    tuned = ["--init-from", tmp_path / "body", "--tune", "lora", "--set", "tune_rank=2"]
    for name, env in (("here", "local"), ("flare", "sim")):
        call("run", "fedism-plus", *TASK, *tuned, "--env", env, "--out", tmp_path / name)
    here, flare = (read_model(tmp_path / name / "model.safetensors") for name in ("here", "flare"))
    assert model_hash(here) == model_hash(flare) and any("lora_B" in key for key in here)
    call("verify", tmp_path / "flare")
    bytes_up = [
        one["up"]
        for line in (tmp_path / "flare" / "audit.jsonl").read_text().splitlines()
        for one in json.loads(line).get("bytes", {}).values()
    ]
    assert bytes_up and max(bytes_up) < (tmp_path / "body" / "model.safetensors").stat().st_size / 2


def test_a_table_of_1280_features_trains_in_a_job_as_in_one_process(tmp_path):
    rng, names = np.random.default_rng(0), [f"f{k}" for k in range(1280)]
    for site in ("north", "south"):
        rows = pd.DataFrame(rng.normal(size=(60, 1280)).round(3), columns=names)
        rows.assign(died=np.where(rows["f0"] > 0, "yes", "no")).to_csv(tmp_path / f"{site}.csv", index=False)
    call("init", tmp_path, "--label", "died", "--keep", "f0", "--yes")
    own = ("--data", tmp_path, "--rounds", "1", "--no-solo")
    for env in ("local", "sim"):
        call("run", "fedavg", *own, "--env", env, "--out", tmp_path / env)
    here, flare = (read_model(tmp_path / env / "model.safetensors") for env in ("local", "sim"))
    assert model_hash(here) == model_hash(flare) and any(1280 in value.shape for value in here.values())


@pytest.mark.parametrize("body", ["job", "site"])
def test_a_job_brings_the_body_unless_sites_have_it(body, tmp_path):
    call("run", "fedavg", *TASK, "--out", tmp_path / "body")
    tuned = ["--init-from", tmp_path / "body", "--tune", "head", "--set", f"body={body}"]
    call("export", "fedavg", *TASK, *tuned, "--out", tmp_path / "job")
    found = {path.relative_to(tmp_path / "job").parts[0] for path in (tmp_path / "job").rglob(INITIAL)}
    assert found == ({"app_sites"} if body == "job" else set())
    (start,) = (tmp_path / "job" / "app_server").rglob("*.safetensors")
    assert {name: len(value) for name, value in read_model(start).items()} == {"head.weight": 2, "head.bias": 2}
    staged = Path(tmp_path, "job", "app_sites", "custom", "fairflare", "engine", "setup")
    assert (staged / "tuning.py").is_file() and (staged / "weights.py").is_file()
