# SPDX-License-Identifier: Apache-2.0
"""A hospital's own data, network and code in FLARE's simulator: the same bits as in one process."""

import json
import os
import sys

from stock_simulator import simulate
from test_heartbeat import ENDED

from cases import each
from command_line import code_of as run
from fairflare.core import user_code
from fairflare.core.processes import RUN_FOLDER
from fairflare.engine.audit import verify
from own_code import write_code
from own_folder import write_images, write_tables

SITES = ("north", "south")
RUNS = {
    "fedce, masks": ("fedce", "segmentation", "lesion", ()),
    "fedlwr, masks": ("fedlwr", "segmentation", "lesion", ()),
    "fedism-plus, classes": ("fedism-plus", "classification", "well,ill", ()),
    "fedheal, classes": ("fedheal", "classification", "well,ill", ("tau=0.6",)),
    "fedufo, table": (
        "fedufo",
        "tabular",
        "lived,died",
        ("label=outcome", "features=age,score", "attribute_values=sex=f|m", "group_by=label+sex"),
    ),
}


def pairs(settings):
    return [part for pair in settings for part in ("--set", pair)]


@each("name", RUNS, short=["fedufo, table"])
def test_one_command_per_method(name, tmp_path, capfd):
    """Orders over FLARE's processes; a second exchange is in test_deploy_poc.py, of masks in test_volumes_sim.py.

    test_five_papers.py has FLARE's messages of every method. At its end no site is missed.
    """
    method, kind, classes, settings = RUNS[name]
    where = tmp_path / "data"
    data = write_tables(where, SITES) if kind == "tabular" else write_images(where, kind[0] == "s", SITES)
    size = () if kind == "tabular" else ("size=32",)
    own = ["--datalists", data, "--kind", kind, "--classes", classes, *pairs((*settings, *size))]
    logs = []
    for env in ("local", "sim"):
        assert run("run", method, *own, "--rounds", "2", "--env", env, "--out", tmp_path / env) == 0
        assert ENDED not in capfd.readouterr().err
        entries = verify(tmp_path / env / "audit.jsonl")
        assert not any(e["rejected"] for e in entries if e["event"] == "round")
        assert set(entries[0]["preflight"]) == set(SITES) and set(entries[0]["declared"]) == set(SITES)
        logs.append(entries)
        if kind == "segmentation":
            page = (tmp_path / env / "report.html").read_text()
            report = json.loads((tmp_path / env / "report.json").read_text())
            assert all(0 <= report["sites"][site]["val_metrics"]["dice"] <= 1 for site in SITES)
            assert "Validation</th>" in page and all(site in page for site in SITES)
            assert "<td>instance</td>" in page, "the report says which normalisation was used"
    assert logs[0][-1]["model_sha256"] == logs[1][-1]["model_sha256"]
    for one, other in zip(*([e for e in entries if e["event"] == "round"] for entries in logs), strict=True):
        assert all(one[told] == other[told] for told in ("weights", "notes", "model_sha256"))
        scalars = [{site: answer["scalars"] for site, answer in e["accepted"].items()} for e in (one, other)]
        assert scalars[0] == scalars[1]
        if method == "fedlwr":
            layers = {f"similarity/{layer}" for layer in other["notes"]["layer_weights"]}
            assert layers and all(set(found) == layers for found in scalars[1].values()), "a second exchange's numbers"
    reports = [json.loads((tmp_path / env / "report.json").read_text()) for env in ("local", "sim")]
    assert reports[0]["fairness"] == reports[1]["fairness"] and reports[0]["sites"] == reports[1]["sites"]
    log = (tmp_path / "sim" / "audit.jsonl").read_text()
    assert str(tmp_path) not in log, "a path left a site"


def test_a_run_is_refused_while_a_site_has_errors(tmp_path, capfd):
    data = write_images(tmp_path / "data", masks=True, sites=SITES)
    (data / "south" / "3.png").write_bytes(b"torn")
    own = ["--datalists", data, "--kind", "segmentation", "--classes", "lesion", "--set", "size=32"]
    assert run("run", "fedavg", *own, "--rounds", "2", "--env", "sim", "--out", tmp_path / "r") == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    log = tmp_path / "r" / "flare_log.txt"
    assert log.stat().st_mode & 0o77 == 0
    assert last == f"fairflare: preflight: south: train: unreadable: a file cannot be read; see {log}"
    entries = verify(tmp_path / "r" / "audit.jsonl")
    assert [e["event"] for e in entries] == ["start", "finish", "report"] and entries[1]["status"] == "failed"
    assert entries[0]["preflight"]["south"]["findings"] == [
        {"level": "error", "code": "unreadable", "split": "train", "count": ""}
    ]
    assert "3.png" not in (tmp_path / "r" / "audit.jsonl").read_text()
    assert "3.png" in (tmp_path / "r" / "preflight_south.txt").read_text(), "the people at the site are told which file"


def test_an_own_network_from_a_job_folder(tmp_path, monkeypatch):
    """The exported job alone, run by FLARE's own command in a process that knows nothing of the user's files."""
    net, data = write_code(tmp_path / "code"), write_images(tmp_path / "data", masks=False, sites=("site-1", "site-2"))
    model = '{"class_path": "my_net.Net", "args": {"width": 6}}'
    settings = (f"model={model}", "size=32", "channels=1")
    own = ["--datalists", data, "--kind", "classification", "--classes", "2", "--code", net, *pairs(settings)]
    own += ["--rounds", "2"]
    monkeypatch.setenv(user_code.VARIABLE, "")
    assert run("run", "fedism-plus", *own, "--out", tmp_path / "local") == 0
    assert run("export", "fedism-plus", *own, "--out", tmp_path / "job", "--simulation") == 0
    assert (tmp_path / "job" / "app_sites" / "custom" / "my_net.py").is_file()
    net.unlink()
    folder = tmp_path / "run"  # with a folder named, as in a simulated run, a job may name that of the lists
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != user_code.VARIABLE} | {RUN_FOLDER: str(folder)}
    said = simulate(tmp_path / "job", tmp_path / "ws", 2, environment)
    assert (folder / "audit.jsonl").is_file(), said[-3000:]
    hashes = [verify(path / "audit.jsonl")[-1]["model_sha256"] for path in (tmp_path / "local", folder)]
    assert hashes[0] == hashes[1]
    sys.modules.pop("my_net", None)
