# SPDX-License-Identifier: Apache-2.0
"""The report is made from the run's folder alone: nothing that trains, loads a task or scores a model is there."""

import hashlib
import json
import shutil
import subprocess
import sys

import pytest

from fairflare.core.errors import UserError
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.report.write import check_resumable, verify_run, write_report
from run_folders import edit_json, entries_of, put_entries

FILES = ("report.json", "report.html")
ALONE = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, *_):
        if any(f"{name}.".startswith(f"fairflare.{room}.") for room in sys.argv[2].split()):
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
from fairflare.report.write import write_report
write_report(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    folder.mkdir()
    values = {"model": "linear", "batch_size": 512, "group_by": "label+sex"}
    run_local(make_config("fedufo", "support2", rounds=2, values=values), folder)
    write_report(folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def alone(folder, absent="engine.setup data networks tasks datasets aggregators trainers probes flare app"):
    command = [sys.executable, "-c", ALONE, str(folder), absent]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)


def test_a_copy_of_the_folder_is_enough(finished, copied):
    before = {name: (finished / name).read_bytes() for name in FILES}
    for name in FILES:
        (copied / name).unlink()
    found = alone(copied)
    assert found.returncode == 0, found.stderr
    assert {name: (copied / name).read_bytes() for name in FILES} == before
    verify_run(copied)


def test_what_is_blocked_there_is_blocked(copied):
    """The test above can fail: without ``engine`` there is no report."""
    assert "ImportError: fairflare.engine" in alone(copied, "engine").stderr


def test_what_the_run_wrote_down_is_in_the_report(copied):
    report = json.loads((copied / "report.json").read_text())["detail"]
    assert report["task"]["title"] and report["task"]["real"]
    assert report["metrics"]["auc"] == {"label": "AUC", "higher_is_better": True, "chance": 0.5} | {
        "meaning": "how often a case is ranked above a control; 1 is perfect",
        "needs": "cases of two classes or more",
    }
    assert all(row["description"] for row in report["sites"])
    about = json.loads((copied / "config.json").read_text())["about"]
    assert [row["group"] for row in report["groups"]["rows"]] == about["groups"] != []


def test_a_folder_of_an_older_version_is_refused_in_one_line(copied):
    edit_json(copied / "config.json", lambda content: content.pop("about"))
    entries = entries_of(copied)
    entries[0]["config_json_sha256"] = hashlib.sha256((copied / "config.json").read_bytes()).hexdigest()
    put_entries(copied, [entry for entry in entries if entry["event"] != "report"], anew=True)
    for name in FILES:
        (copied / name).unlink()
    for attempt in (write_report, check_resumable):
        with pytest.raises(UserError, match=r"config\.json: was written by an older version") as refused:
            attempt(copied)
        assert "\n" not in str(refused.value)
