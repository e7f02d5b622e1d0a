# SPDX-License-Identifier: Apache-2.0
"""A join as one FLARE job: the numbers of the same join in one process, bit for bit, also after kill -9 in a fold."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from federation_processes import simulated_processes, until

from fairflare.engine.in_process import InProcess
from fairflare.flare.simulate import clients
from fairflare.functional.decision import Design
from fairflare.studies.join import Question
from fairflare.studies.join_job import job_of, join_by_job, run_join
from own_folder import write_tables

SITES = ("east", "west")


def job(folder, sites, rounds=1, folds=2):
    options = {"task.datalists": str(write_tables(folder / "data", sites)), "task.site_names": ",".join(sites)}
    options |= {"task.labels": "lived,died", "task.label": "outcome", "task.features": "age,score"}
    options |= {"task.model": "linear", "task_timeout": "10"}
    return job_of(Question(("fedavg",), "tabular", Design(folds, 1), choices={"rounds": rounds, "values": options}))


@pytest.mark.slow
def test_killed_in_the_middle_of_a_fold_a_join_goes_on_to_the_numbers_of_one_process(tmp_path):
    """The command dies, and with it the server, which is one of its processes, and all sites."""
    config, folder = job(tmp_path, SITES), tmp_path / "there"
    (tmp_path / "here").mkdir()
    expected = run_join(config, tmp_path / "here")
    with in_second_fold(config, folder) as child:
        for process in [child, *simulated_processes(folder)]:
            process.kill()
        child.wait()
    assert not (folder / "join.json").exists()
    found = join_by_job(config, folder, env="sim")
    for key in ("candidates", "weights", "refused", "hospitals"):
        assert found[key] == expected[key]
    for site in SITES:
        assert {k: v for k, v in found["sites"][site].items() if k != "answer"} == expected["sites"][site]
        kept = [json.loads((tmp_path / w / "sites" / f"{site}.join.json").read_text()) for w in ("here", "there")]
        assert kept[0] == kept[1]
    for fold in ("fold0", "fold1"):
        models = [(tmp_path / where / fold / "model.safetensors").read_bytes() for where in ("here", "there")]
        assert models[0] == models[1]


COMMAND = """
import json, sys
from pathlib import Path
from fairflare.engine.setup.config import RunConfig
from fairflare.studies.join_job import join_by_job

join_by_job(RunConfig.from_json(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]), env="sim")
"""


@contextmanager
def in_second_fold(config, folder):
    """A join's command, once its second fold has begun."""
    (path := folder.with_suffix(".json")).write_text(json.dumps(config.to_json()))
    command = [sys.executable, "-c", COMMAND, str(path), str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (folder / "fold1" / "audit.jsonl").is_file() or child.poll() is not None)
        assert child.poll() is None, child.communicate()[1]
        yield child
    finally:
        child.kill()
        for process in simulated_processes(folder):
            process.kill()
        child.communicate()


@pytest.mark.long  # unit/test_join_job.py has a site that falls silent, test_heartbeat.py one whose process is killed
@pytest.mark.slow
def test_a_site_that_is_killed_is_named_and_the_others_are_answered_as_without_it(tmp_path, monkeypatch):
    """The server waits ``task_timeout`` for it twice."""
    config, folder = job(tmp_path, (*SITES, "north"), folds=3), tmp_path / "join"
    with in_second_fold(config, folder) as child:
        clients(child.pid)["north"].kill()
        assert child.wait(timeout=240) == 0, child.communicate()[1]
    found = json.loads((folder / "join.json").read_text())
    assert re.fullmatch(r"fell silent in fold [12] of deal 0 \(fedavg\)", found["refused"].pop("north"))
    monkeypatch.setattr(InProcess, "sites", lambda self: list(SITES))
    never = join_by_job(config, tmp_path / "never")
    assert {key: found[key] for key in ("candidates", "sites", "refused")} == json.loads(
        json.dumps({key: never[key] for key in ("candidates", "sites", "refused")})
    )
