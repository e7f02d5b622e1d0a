# SPDX-License-Identifier: Apache-2.0
"""A POC of four sites over mTLS whose processes freeze, die in a second pass, lose their client, or die for good."""

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import psutil
import pytest
import torch
from federation_processes import check_run, in_process, until, without

from fairflare.engine.files import read_tensors
from fairflare.report.write import verify_run

pytestmark = pytest.mark.deploy
ADMIN = "admin@hub.org"
SITES = [f"site-{k}" for k in range(1, 5)]
OTHERS = ["site-1", "site-3", "site-4"]
DEADLINE = 25
"""Seconds for one task: the first one of a job takes several, most of them for imports."""
MARGIN = 10
RUN = ["--task", "support2", "--rounds", "3"]


@pytest.fixture(scope="module", autouse=True)
def unlucky(poc):
    """Jobs of this file bring the trainers that have bad luck."""
    poc.cli["FAIRFLARE_PLUGINS"] = str(Path(__file__).with_name("unlucky_trainer.py"))
    yield
    del poc.cli["FAIRFLARE_PLUGINS"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return in_process(tmp_path_factory.mktemp("whole") / "run", "fedism-plus", *RUN)


class Job:
    """A job that ``fairflare run`` waits for, in which a site meets what is in store for it."""

    def __init__(self, poc, child, site):
        met = poc.faults / f"{site}.met"
        until(lambda: met.is_file() or child.poll() is not None)
        assert met.is_file(), child.communicate()[1]
        self.child, self.pid, self.site = child, int(met.read_text()), site
        met.unlink()

    def wait(self, seconds=150):
        """The exit code and what was said."""
        said = self.child.communicate(timeout=seconds)[1]
        return self.child.returncode, said


def begin(poc, method, *run, out):
    trainer = "unlucky-gsam" if method == "fedism-plus" else "unlucky-sgd"
    where = ["--env", "poc", "--out", out]
    return poc.start_fairflare("run", method, *run, "--set", f"trainer={trainer}", *where)


def store(poc, site, round, what):
    (poc.faults / site).write_text(f"{round} {what}")


def rounds(folder):
    """Number -> audit entry of every round so far; no number is there twice."""
    log = folder / "audit.jsonl"
    whole = log.read_text().rpartition("\n")[0] if log.is_file() else ""
    found = [entry for entry in map(json.loads, whole.splitlines()) if entry["event"] == "round"]
    assert len({entry["round"] for entry in found}) == len(found)
    return {entry["round"]: entry for entry in found}


def codes(entry):
    return {site: rejection["code"] for site, rejection in entry["rejected"].items()}


def has_trained(poc, site, federation, trained):
    """Whether the site's own memory counts the optimizer's steps through all the rounds ``trained``."""
    (file,) = (poc.kits / site / "fairflare_state" / federation / "sites").glob(f"{site}.*.safetensors")
    memory = read_tensors(file)
    steps = {number: int(kept["optimizer"]["state"][0]["step"]) for number, kept in memory.items()}
    each = steps[trained[-1]] // len(trained)
    return steps == {trained[k]: (k + 1) * each for k in (len(trained) - 2, len(trained) - 1)}


def test_a_frozen_site_is_left_out_and_returns_with_its_state(poc, tmp_path):
    run = ["--task", "support2", "--rounds", "6", "--set", "keep_optimizer=true"]
    store(poc, "site-2", 2, "SIGSTOP")
    # A third round as long as real training's: FLARE's sites ask for a task every two seconds.
    store(poc, "site-1", 3, "5")
    before = poc.states()
    with begin(poc, "fedavg", *run, "--set", f"task_timeout={DEADLINE}", out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        until(lambda: 2 in rounds(state))
        os.kill(job.pid, signal.SIGCONT)
        code, said = job.wait()
    assert code == 0 and "FINISHED:COMPLETED" in said, said
    last, found = verify_run(tmp_path / "run")[-1], rounds(tmp_path / "run")
    away = [number for number, entry in found.items() if "site-2" not in entry["accepted"]]
    assert last["status"] == "completed" and list(found) == [1, 2, 3, 4, 5, 6]
    assert away[:2] == [2, 3] and max(away) < 6 and away == list(range(2, max(away) + 1))
    assert [codes(found[n]) for n in away] == [{"site-2": "no_answer"}] + [{"site-2": "absent"}] * (len(away) - 1)
    assert all(sorted(e["accepted"]) == (OTHERS if n in away else SITES) for n, e in found.items())
    # It went on in round 2, too late: it noticed, and keeps nothing of that round.
    assert has_trained(poc, "site-2", state.name, [n for n in found if n not in away])
    assert has_trained(poc, "site-3", state.name, list(found))
    expected = without(tmp_path / "local", "site-2", away[:-1], "fedavg", *run)
    assert last["model_sha256"] == expected
    assert expected != without(tmp_path / "whole", "site-2", [], "fedavg", *run)


def test_a_job_process_that_dies_in_gsams_second_pass(poc, tmp_path, uninterrupted):
    store(poc, "site-2", 2, "SIGKILL")
    before = poc.states()
    with begin(poc, "fedism-plus", *RUN, out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        code, said = job.wait(60)
    assert not psutil.pid_exists(job.pid) and list(rounds(state)) == [1]
    assert code == 1 and "FINISHED:EXECUTION_EXCEPTION" in said, said
    continues(poc, said, state, tmp_path, uninterrupted)


def test_a_client_that_dies_takes_its_job_along_and_the_next_job_continues(poc, tmp_path, uninterrupted):
    all_four = [*RUN, "--set", "min_sites=4"]
    store(poc, "site-2", 2, "300")
    before = poc.states()
    with begin(poc, "fedism-plus", *all_four, out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        old = poc.running_for("site-2")
        assert old["job"].pid == job.pid
        registered = (poc.kits / "site-2" / "log.txt").read_text().count("Successfully registered client")
        old["service"].kill()
        until(lambda: set(poc.running_for("site-2")) == {"daemon", "service"}, 60)
        log = poc.kits / "site-2" / "log.txt"
        until(lambda: log.read_text().count("Successfully registered client") > registered)
        assert poc.running_for("site-2")["service"].pid != old["service"].pid
        assert child.poll() is None and list(rounds(state)) == [1], "the round waits for the site"
        poc.nvflare("job", "abort", state.name, "--force", kit=ADMIN)
        code, said = job.wait(90)
    assert code == 1 and "FINISHED:ABORTED" in said, said
    continues(poc, said, state, tmp_path, uninterrupted, "--set", "min_sites=4")


def continues(poc, said, state, tmp_path, expected, *options):
    """The person who submitted is told how to go on; whoever does gets the bits of a run that nothing befell."""
    last = said.strip().splitlines()[-1]
    assert "the job was aborted" in last and f"the same run with --set federation={state.name} continues" in last
    going_on = [*RUN, *options, "--set", f"federation={state.name}"]
    with begin(poc, "fedism-plus", *going_on, out=tmp_path / "again") as child:
        said = child.communicate(timeout=150)[1]
    assert child.returncode == 0, said
    entries = check_run(tmp_path / "again", expected)
    found = rounds(tmp_path / "again")
    assert list(found) == [1, 2, 3] and all(sorted(entry["accepted"]) == SITES for entry in found.values())
    assert [(e["from_round"]) for e in entries if e["event"] == "resume"] == [1]


def joining(folder):
    """The last of the log's lines on what joining gives."""
    return [entry for entry in verify_run(folder) if entry["event"] == "benefit"][-1]


def test_a_site_that_dies_while_it_trains_alone_is_asked_again_by_the_next_job(poc, tmp_path):
    run = ["fedavg", *RUN, "--solo"]
    in_process(tmp_path / "local", *run)
    store(poc, "site-2", 2, "SIGKILL alone")
    before = poc.states()
    with begin(poc, *run, out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        code, said = job.wait(60)
    assert code == 1 and not psutil.pid_exists(job.pid) and list(rounds(state)) == [1, 2, 3], said
    with begin(poc, *run, "--set", f"federation={state.name}", out=tmp_path / "again") as child:
        said = child.communicate(timeout=150)[1]
    assert child.returncode == 0, said
    assert list(rounds(tmp_path / "again")) == [1, 2, 3], "no round is repeated"
    found, expected = joining(tmp_path / "again"), joining(tmp_path / "local")
    assert found["sites"] == expected["sites"] and sorted(found["sites"]) == SITES and not found["rejected"]
    for site in SITES:
        (own,) = (poc.kits / site / "fairflare_state" / state.name / "sites").glob(f"{site}.*.solo.safetensors")
        model = read_tensors(tmp_path / "local" / "sites" / f"{site}.solo.safetensors")
        assert all(torch.equal(value, model[key]) for key, value in read_tensors(own).items())


def test_the_question_ends_without_a_site_that_is_stuck_in_training_alone(poc, tmp_path):
    store(poc, "site-2", 2, "300 alone")
    early = ["--set", "min_responses=3", "--set", "grace=4"]
    before = poc.states()
    with begin(poc, "fedavg", *RUN, "--solo", *early, out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        code, said = job.wait(120)
    found = joining(tmp_path / "run")
    assert code == 0 and codes(found) == {"site-2": "late"} and sorted(found["sites"]) == OTHERS, said
    assert verify_run(tmp_path / "run")[-1]["status"] == "completed"


def test_a_dead_site_costs_one_deadline(poc, tmp_path):
    """Site-2 is gone after it."""
    run = [*RUN, "--set", "min_sites=2", "--solo"]
    store(poc, "site-2", 2, "300")
    with begin(poc, "fedism-plus", *run, "--set", f"task_timeout={DEADLINE}", out=tmp_path / "run") as child:
        job = Job(poc, child, "site-2")
        family = poc.running_for("site-2")
        for role in ("daemon", "service", "job"):  # a daemon starts again whatever ends without it
            family[role].kill()
        code, said = job.wait(2 * DEADLINE + 60)
    assert code == 0 and not poc.running_for("site-2"), said
    entries = verify_run(tmp_path / "run")
    found = rounds(tmp_path / "run")
    assert [codes(found[n]) for n in found] == [{}, {"site-2": "no_answer"}, {"site-2": "absent"}]
    assert sorted(found[2]["accepted"]) == sorted(found[3]["accepted"]) == OTHERS
    assert entries[-1]["status"] == "completed"
    assert entries[-1]["model_sha256"] == without(tmp_path / "local", "site-2", [2, 3], "fedism-plus", *run)
    assert found[2]["seconds"]["exchange"] < DEADLINE + MARGIN
    after = [datetime.fromisoformat(e["time"]) for e in entries if e["seq"] >= found[2]["seq"]]
    assert (after[-1] - after[0]).total_seconds() < DEADLINE, "nobody waited for it a second time"
    ends = {entry["event"]: entry for entry in entries[-3:-1]}
    assert list(ends) == ["evaluation", "benefit"] and all(codes(e) == {"site-2": "absent"} for e in ends.values())
    assert sorted(ends["benefit"]["sites"]) == OTHERS
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert any("round 2 of 3" in line and "site-2 left out: no_answer" in line for line in log)


def test_stop_leaves_nothing_running(poc, tmp_path):
    """The last test of the POC: it is gone after it."""
    assert poc.running()
    poc.sh("stop")
    assert not poc.running()
    run = ["run", "fedavg", *RUN, "--env", "poc", "--out", tmp_path / "run"]
    done = poc.fairflare(*run, check=False)
    assert done.returncode == 1 and "cannot be reached within" in done.stderr and done.stderr.count("\n") == 1
