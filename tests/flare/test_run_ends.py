# SPDX-License-Identifier: Apache-2.0
"""Real processes: however a simulated run's command ends, nothing of it goes on, and its folder goes on."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fairflare.cli.main import main
from fairflare.core.processes import RUN_FOLDER, SCRATCH
from fairflare.engine.files import CHECKPOINT
from fairflare.report.write import check_resumable

pytestmark = pytest.mark.flare
JOB = Path(__file__).parents[2] / "jobs" / "fedavg_support2" / "job.py"
RUN = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "2", "--rounds", "60", "--no-solo"]


def until(found, seconds=120):
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return what


def running(text):
    """Processes whose command line or run folder names ``text``, this one left out."""

    def names(process):
        try:
            here = process.environ().get(RUN_FOLDER, "")
            alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
            return alive and text in " ".join([*process.cmdline(), here])
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if names(process)]


@pytest.fixture
def simulated(tmp_path):
    """A simulated run that has finished a round, and its folder; whatever is left of it goes."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fairflare", *RUN, "--env", "sim", "--out", str(folder)]
    # A shell's background jobs, and what they start, are born ignoring Ctrl-C.
    hearing = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **hearing)
    try:
        until(lambda: (folder / CHECKPOINT).exists() or child.poll() is not None)  # after the round's line in the log
        assert child.poll() is None and len(running(str(folder))) >= 5, "the simulator never got going"
        yield child, folder
    finally:
        child.kill()
        child.wait()
        for process in running(str(folder)):
            process.kill()


def test_a_signal_leaves_no_process_and_a_folder_that_goes_on(simulated):
    """SIGTERM; Ctrl-C ends the run of test_heartbeat.py."""
    child, folder = simulated
    assert (scratches := scratches_of(folder))
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    lines = [line for line in err.splitlines() if line.strip()]
    assert child.returncode == 143 and lines[-1].startswith("fairflare: terminated; `fairflare resume ")
    assert [line for line in lines[:-1] if not line.startswith(("start: ", "round ", "starting FLARE ..."))] == []
    assert_nothing_is_left(folder, scratches)


def assert_nothing_is_left(folder, scratches):
    """No process and no temporary file of the run, and a folder that goes on."""
    assert not running(str(folder)) and not any(p.exists() or running(str(p)) for p in scratches)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert check_resumable(folder).start["method"] == "fedavg"  # or it raises what does not fit


def test_sites_and_server_notice_that_the_command_was_killed(simulated):
    child, folder = simulated
    child.kill()
    child.communicate()
    until(lambda: not running(str(folder)), 20)
    before = (folder / "audit.jsonl").read_bytes()
    time.sleep(1)
    assert (folder / "audit.jsonl").read_bytes() == before


def test_the_next_command_ends_what_a_killed_one_has_left(simulated):
    """Even of processes that notice nothing, as when they are stopped."""
    child, folder = simulated
    family = running(str(folder))
    for process in family:
        process.suspend()
    child.kill()
    child.communicate()
    left = [p for p in running(str(folder)) if p.pid != child.pid]
    assert len(left) >= 4
    assert (scratches := scratches_of(folder))
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder)])
    assert stop.value.code == 0
    assert not running(str(folder)) and not any(p.exists() for p in scratches)


def scratches_of(folder):
    """The folders for temporary files of a run."""
    return [p for p in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*") if _is_of(p, folder)]


def _is_of(scratch, folder):
    owner = scratch / "run_folder.txt"
    return owner.is_file() and owner.read_text() == str(folder)


def test_a_job_script_ends_its_processes(tmp_path):
    command = [sys.executable, str(JOB), "--rounds", "500", "--workspace", str(tmp_path / "w")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list((tmp_path / "w").rglob("audit.jsonl")) or child.poll() is not None)
        family = [child.pid, *(p.pid for p in psutil.Process(child.pid).children(recursive=True))]
        assert len(family) >= 6
        child.send_signal(signal.SIGTERM)
        child.wait(30)
        until(lambda: not any(psutil.pid_exists(pid) for pid in family), 10)
        assert not running(str(tmp_path / "w"))
    finally:
        child.kill()
        child.wait()
        for process in running(str(tmp_path / "w")):
            process.kill()
