# SPDX-License-Identifier: Apache-2.0
"""``from fairflare import Federation``: light to import, the command line's bits, and everything as it was after it."""

import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import each
from fairflare import Federation
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.engine.audit import verify
from fairflare.studies.study import _row
from own_code import write_code

SMALL = {"rounds": 1, "settings": {"train.lr": 0.01}}


def test_the_package_alone_imports_neither_torch_nor_flare():
    code = "import fairflare, sys; print(sorted({'torch', 'nvflare', 'numpy', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_there_is_not():
    import fairflare

    with pytest.raises(AttributeError, match="no attribute 'Confederation'"):
        fairflare.Confederation  # noqa: B018
    assert {"Federation", "__version__"} <= set(dir(fairflare))


def test_settings_are_those_of_the_command_line():
    """Nested and flat, numbers and texts, bools and lists."""
    nested = Federation("fedism", "support2:dirichlet", settings={"rule": {"q": 2}, "selector": "share"}, sites=5)
    flat = Federation("fedism", "support2:dirichlet", settings={"rule.q": "2.0"}, selector="share", sites=5)
    assert nested.config == flat.config and nested.config.options["n_sites"] == 5


@each(
    "arguments, message",
    [
        ({"task": "heart", "ruonds": 3}, "Federation: unknown key 'ruonds'; did you mean rounds"),
        ({"task": "heart", "rounds": "x"}, "rounds: expected a whole number, got 'x'"),
        ({"task": "heart", "settings": {"rule.qq": 1}}, "unknown key 'rule.qq'"),
        ({"task": "heart", "settings": 3}, "set: expected names and values"),
        ({"method": "run.yaml"}, "method: expected a method's id"),
        ({"task": "heart", "env": "cloud"}, "env: expected one of local, sim, poc, prod, got 'cloud'"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as refused:
        Federation(**{"method": "fedism", **arguments})
    assert "\n" not in str(refused.value)


def test_before_fit_there_is_nothing_to_see(tmp_path):
    federation = Federation("fedavg", "heart")
    for look in (lambda: federation.sites, lambda: federation.report, federation.state_dict):
        with pytest.raises(UserError, match=r"call fit\(\) first"):
            look()
    with pytest.raises(UserError, match="fit: expected data: a DataFrame, a folder or a task"):
        Federation("fedavg").fit()
    assert "not run" in repr(federation)
    with pytest.raises(UserError, match="expected the folder of a run"):
        Federation.open(tmp_path)
    with pytest.raises(UserError, match="from_yaml: expected a file named"):
        Federation.from_yaml(tmp_path / "run.txt")


def test_named_code_stays_with_its_federation(tmp_path, monkeypatch):
    net = write_code(tmp_path)
    monkeypatch.setenv("FAIRFLARE_CODE", "")
    assert Federation("fedavg", "heart", code=[net]).config.code
    assert not Federation("fedavg", "heart").config.code


@pytest.mark.slow
def test_python_yaml_and_command_line_make_the_same_bits(tmp_path):
    with pytest.raises(SystemExit):
        line = "run fedism --task heart --rounds 1 --set train.lr=0.01 --out"
        main([*line.split(), str(tmp_path / "line")])
    expected = verify(tmp_path / "line" / "audit.jsonl")[-1]["model_sha256"]
    torch.set_num_threads(2)
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    federation = Federation("fedism", "heart", **SMALL).fit(tmp_path / "python", progress=False)
    (tmp_path / "run.yaml").write_text("{method: fedism, task: heart, rounds: 9, set: {train: {lr: 0.01}}, out: yaml}")
    described = Federation.from_yaml(tmp_path / "run.yaml", rounds=1).fit()
    assert described.folder == tmp_path / "yaml"
    assert federation.model_sha256 == described.model_sha256 == expected
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after and torch.get_num_threads() == 2, "the caller's generators and threads are as they were"
    _check_tables(federation)
    again = Federation("fedism", "heart", **SMALL).fit(tmp_path / "python", progress=False)
    assert again.report == federation.report, "a finished run is taken as it is"
    opened = Federation.open(tmp_path / "python")
    assert opened.config == federation.config and opened.sites.equals(federation.sites)
    with pytest.raises(UserError, match="has ended"):
        opened.fit()
    with pytest.raises(UserError, match="gone.csv|its inputs"):
        opened.predict(tmp_path / "gone.csv")


@pytest.mark.slow
def test_the_pages_examples_are_one_run(tmp_path, monkeypatch, capsys):
    """docs/python.md: the Python, the file and the command lines under it."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    blocks = dict(re.findall(r"^```(\w*)\n(.*?)^```", page, re.S | re.M))
    (tmp_path / "run.yaml").write_text(blocks["yaml"])
    for code in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M):
        exec(code, {})
    for command in blocks[""].strip().splitlines():
        with pytest.raises(SystemExit) as stop:
            main(command.removeprefix("$ fairflare ").split())
        assert stop.value.code == 0, command
    assert (tmp_path / "benefit.png").stat().st_size > 1000
    hashes = [Federation.open(tmp_path / "runs" / name).model_sha256 for name in ("python", "file", "other")]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_sites_row_holds_its_validation_and_its_personal_model_too():
    numbers = {"kind": "x", "n_train": 3, "n_val": 2, "n_test": 1, "metrics": {"auc": 0.5}, "val_metrics": {"auc": 0.6}}
    row = _row({**numbers, "personal_metrics": {"auc": 0.7}, "weight": [None, 0.2, 0.4]})
    assert (row["auc"], row["val_auc"], row["personal_auc"]) == (0.5, 0.6, 0.7) and row["weight"] == pytest.approx(0.3)
    assert _row({**numbers, "personal_metrics": None, "weight": [None]})["weight"] is None


def _check_tables(federation):
    sites, report = federation.sites, federation.report
    assert list(sites.index) == list(report["sites"]) and sites.index.name == "site"
    first = report["sites"][sites.index[0]]
    assert sites["auc"].iloc[0] == first["metrics"]["auc"] and sites["kind"].iloc[0] == first["kind"]
    assert sites["n_train"].sum() == sum(site["n_train"] for site in report["sites"].values())
    assert federation.weights.shape == (1, len(sites)) and federation.weights.loc[1].sum() == pytest.approx(1)
    assert set(federation.state_dict()) and federation.weights.loc[1].equals(sites["weight"].rename(1))
