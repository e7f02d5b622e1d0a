# SPDX-License-Identifier: Apache-2.0
"""A POC of four sites over mTLS whose processes freeze, die in a second pass or alone, or lose their client for good.

A site that others do not wait for while it trains alone is in test_deploy_relay.py.
"""

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
DEADLINE = 25
"""Seconds for one task: the first one of a job takes several, most of them for imports."""
MARGIN = 10
THREE = ["--task", "support2:dirichlet", "--sites", "3", "--rounds", "3", "--set", "min_sites=3", "--solo"]


@pytest.fixture(scope="module", autouse=True)
def unlucky(poc):
    """Jobs of this file bring the trainers that have bad luck."""
    poc.cli["FAIRFLARE_PLUGINS"] = str(Path(__file__).with_name("unlucky_trainer.py"))
    yield
    del poc.cli["FAIRFLARE_PLUGINS"]


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
    files = (poc.kits / site / "fairflare_state" / federation / "sites").glob(f"{site}.*.safetensors")
    (file,) = (path for path in files if ".solo" not in path.name)
    memory = read_tensors(file)
    steps = {number: int(kept["optimizer"]["state"][0]["step"]) for number, kept in memory.items()}
    each = steps[trained[-1]] // len(trained)
    return steps == {trained[k]: (k + 1) * each for k in (len(trained) - 2, len(trained) - 1)}


def joining(folder):
    """The last of the log's lines on the benefit of joining."""
    return [entry for entry in verify_run(folder) if entry["event"] == "benefit"][-1]


def test_each_job_continues_what_a_death_has_ended(poc, tmp_path):
    """Four jobs of one federation, with the bits of a run that nothing befell. Site-2's process dies in GSAM's second
    pass in round 2, its client, which takes the next job's process along, in round 3, and the third job's process while
    the site trains alone.
    """
    folder = tmp_path / "run"
    expected = in_process(tmp_path / "local", "fedism-plus", *THREE)
    state = dies_in_a_second_pass(poc, folder)
    going_on = [*THREE, "--set", f"federation={state.name}"]
    loses_its_client(poc, state, going_on, folder)
    dies_alone(poc, state, going_on, folder)
    with begin(poc, "fedism-plus", *going_on, out=tmp_path / "again") as child:
        said = child.communicate(timeout=150)[1]
    assert child.returncode == 0, said
    entries = check_run(tmp_path / "again", expected)
    found = rounds(tmp_path / "again")
    assert list(found) == [1, 2, 3], "no round is repeated"
    assert all(sorted(entry["accepted"]) == SITES[:3] for entry in found.values())
    assert [entry["from_round"] for entry in entries if entry["event"] == "resume"] == [1, 2, 3]
    given, wanted = joining(tmp_path / "again"), joining(tmp_path / "local")
    assert given["sites"] == wanted["sites"] and sorted(given["sites"]) == SITES[:3] and not given["rejected"]
    for site in SITES[:3]:
        (own,) = (poc.kits / site / "fairflare_state" / state.name / "sites").glob(f"{site}.*.solo.safetensors")
        model = read_tensors(tmp_path / "local" / "sites" / f"{site}.solo.safetensors")
        assert all(torch.equal(value, model[key]) for key, value in read_tensors(own).items())


def dies_in_a_second_pass(poc, folder):
    """The first job; the server's folder of its federation."""
    store(poc, "site-2", 2, "SIGKILL")
    before = poc.states()
    with begin(poc, "fedism-plus", *THREE, out=folder / "first") as child:
        job = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        code, said = job.wait(60)
    assert not psutil.pid_exists(job.pid) and list(rounds(state)) == [1]
    assert code == 1 and "FINISHED:EXECUTION_EXCEPTION" in said, said
    says_how_to_go_on(said, state)
    return state


def loses_its_client(poc, state, run, folder):
    """The daemon starts the client anew, and whoever watches aborts the job, which waits for the site."""
    store(poc, "site-2", 3, "300")
    with begin(poc, "fedism-plus", *run, out=folder / "second") as child:
        job = Job(poc, child, "site-2")
        old = poc.running_for("site-2")
        words = old["job"].info["cmdline"]
        assert old["job"].pid == job.pid
        registered = poc.registered("site-2")
        old["service"].kill()
        until(lambda: set(poc.running_for("site-2")) == {"daemon", "service"}, 60)
        until(lambda: poc.registered("site-2") > registered)
        assert poc.running_for("site-2")["service"].pid != old["service"].pid
        assert child.poll() is None and list(rounds(state)) == [1, 2], "the round waits for the site"
        poc.nvflare("job", "abort", words[words.index("-n") + 1], "--force", kit=ADMIN)
        code, said = job.wait(90)
    assert code == 1 and "FINISHED:ABORTED" in said, said
    says_how_to_go_on(said, state)


def dies_alone(poc, state, run, folder):
    """After the last round."""
    store(poc, "site-2", 2, "SIGKILL alone")
    with begin(poc, "fedism-plus", *run, out=folder / "third") as child:
        job = Job(poc, child, "site-2")
        code, said = job.wait(60)
    assert code == 1 and not psutil.pid_exists(job.pid) and list(rounds(state)) == [1, 2, 3], said


def says_how_to_go_on(said, state):
    """The last line of what the person who submitted is told."""
    last = said.strip().splitlines()[-1]
    assert (
        "the job was aborted" in last and f"the same run with --set federation={state.name} --force continues" in last
    )


def test_a_frozen_site_returns_with_its_state_and_a_dead_one_costs_one_deadline(poc, tmp_path):
    """Site-2 freezes in round 2, until that is over. Site-4 dies for good in round 5: it is gone after this test."""
    run = ["--task", "support2", "--rounds", "6", "--set", "keep_optimizer=true", "--set", "min_sites=2", "--solo"]
    store(poc, "site-2", 2, "SIGSTOP")
    # A third round as long as real training's: FLARE's sites ask for a task every two seconds.
    store(poc, "site-1", 3, "5")
    store(poc, "site-4", 5, "300")
    before = poc.states()
    with begin(poc, "fedavg", *run, "--set", f"task_timeout={DEADLINE}", out=tmp_path / "run") as child:
        frozen = Job(poc, child, "site-2")
        (state,) = poc.states() - before
        until(lambda: 2 in rounds(state))
        os.kill(frozen.pid, signal.SIGCONT)
        Job(poc, child, "site-4")
        family = poc.running_for("site-4")
        for role in ("daemon", "service", "job"):  # a daemon starts again whatever ends without it
            family[role].kill()
        code, said = frozen.wait(2 * DEADLINE + 60)
    assert code == 0 and "FINISHED:" in said and not poc.running_for("site-4"), said
    entries, found = verify_run(tmp_path / "run"), rounds(tmp_path / "run")
    away = [number for number, entry in found.items() if "site-2" not in entry["accepted"]]
    assert entries[-1]["status"] == "completed" and list(found) == [1, 2, 3, 4, 5, 6]
    assert away[:2] == [2, 3] and max(away) < 6 and away == list(range(2, max(away) + 1))
    left_out = {"site-2": away, "site-4": [5, 6]}
    for number, entry in found.items():
        gone = {site: those for site, those in left_out.items() if number in those}
        assert codes(entry) == {s: "no_answer" if number == those[0] else "absent" for s, those in gone.items()}
        assert sorted(entry["accepted"]) == [site for site in SITES if site not in gone]
    # It went on in round 2, too late: it noticed, and keeps nothing of that round.
    assert has_trained(poc, "site-2", state.name, [n for n in found if n not in away])
    assert has_trained(poc, "site-3", state.name, list(found))
    missed = {"site-2": away[:-1], "site-4": [5, 6]}
    expected = without(tmp_path / "local", missed, "fedavg", *run)
    assert entries[-1]["model_sha256"] == expected
    assert expected != without(tmp_path / "whole", {"site-4": [5, 6]}, "fedavg", *run)
    assert found[5]["seconds"]["exchange"] < DEADLINE + MARGIN
    after = [datetime.fromisoformat(e["time"]) for e in entries if e["seq"] >= found[5]["seq"]]
    assert (after[-1] - after[0]).total_seconds() < DEADLINE, "nobody waited for it a second time"
    ends = {entry["event"]: entry for entry in entries[-3:-1]}
    assert list(ends) == ["evaluation", "benefit"] and all(codes(e) == {"site-4": "absent"} for e in ends.values())
    assert sorted(ends["benefit"]["sites"]) == SITES[:3]
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    for number, site in ((2, "site-2"), (5, "site-4")):
        assert any(f"round {number} of 6" in line and f"{site} left out: no_answer" in line for line in log)


def test_stop_leaves_nothing_running(poc, tmp_path):
    """The last test of the POC: it is gone after it."""
    assert poc.running()
    poc.sh("stop")
    assert not poc.running()
    run = ["run", "fedavg", *THREE, "--env", "poc", "--out", tmp_path / "run"]
    done = poc.fairflare(*run, check=False)
    assert done.returncode == 1 and "cannot be reached within" in done.stderr and done.stderr.count("\n") == 1
