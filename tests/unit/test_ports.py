# SPDX-License-Identifier: Apache-2.0
"""FLARE's simulator as forks of one process; two simulators never choose the same port."""

import json
import multiprocessing
import subprocess
import sys

import psutil
import pytest
import torch

from fairflare.flare import forked_simulator as ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux only")


def _take(queue, done):
    queue.put(ports.reserved_ports(2, lambda number: [41001, 41002][-number:]))
    done.wait(30)


def test_a_port_that_another_process_has_reserved_is_not_taken():
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    other = context.Process(target=_take, args=(queue, done))
    other.start()
    assert queue.get(timeout=60) == [41001, 41002]
    offered = iter([[41001, 41002], [41002, 41003], [41004]])
    assert ports.reserved_ports(2, lambda number: next(offered)) == [41003, 41004]
    done.set()
    other.join(30)
    assert ports.reserved_ports(1, lambda number: [41001]) == [41001]


def test_the_simulator_asks_for_reserved_ports(monkeypatch):
    from nvflare.private.fed.app.deployer import simulator_deployer
    from nvflare.private.fed.app.simulator import simulator_runner

    for module in (simulator_deployer, simulator_runner):
        monkeypatch.setattr(module, "get_open_ports", None)
    ports.reserve_ports()
    one, other = simulator_runner.get_open_ports(1), simulator_deployer.get_open_ports(1)
    assert all(20000 <= port < 32768 for port in (*one, *other)), "Linux gives the others to outgoing connections"
    assert one != other and not ports._reserve(one[0]) and not ports._reserve(other[0])


def test_the_simulator_s_server_and_sites_are_forks_where_there_is_no_gpu(monkeypatch, tmp_path):
    """What a process has asked CUDA for, a fork of it cannot use."""
    from fairflare.engine.setup.config import make_config
    from fairflare.flare import forked_simulator, simulate

    ran = []
    monkeypatch.setattr(forked_simulator.SimulatorRunner, "run", lambda self: ran.append(self) and None)
    monkeypatch.setattr(forked_simulator.os, "register_at_fork", lambda **handlers: ran.append(handlers))
    monkeypatch.setattr(forked_simulator.SimEnv, "deploy", lambda self, job: ran.append("another Python") or job.name)
    monkeypatch.setattr(simulate.signal, "signal", lambda *args: None)
    monkeypatch.setattr(ports, "reserve_ports", lambda: None)
    monkeypatch.setattr(ports, "fork_sites", lambda: ran.append("a copy to fork sites from"))
    config = make_config("fedism-plus", "support2:dirichlet", rounds=1, sites=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    for gpus in (0, 1):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        simulate.main(str(tmp_path))
    copy, handlers, runner, other = ran
    assert (
        copy == "a copy to fork sites from"
        and handlers == {"after_in_child": forked_simulator._end_at_once}
        and other == "another Python"
    )
    assert runner.clients == "site-1,site-2" and runner.threads == 2


SIMULATOR = """
import json, os, subprocess, sys, threading, time
from pathlib import Path
import fairflare.core.errors
from fairflare.flare.forked_simulator import fork_sites
fork_sites()
from nvflare.private.fed.app.simulator import simulator_runner
job, site = Path(sys.argv[1]), Path(sys.argv[2])
start = simulator_runner.subprocess.Popen
env = {"PYTHONPATH": str(job), "SITE": "north"}
process = start([sys.executable, "-m", "client", "-o", str(site)], shell=False, preexec_fn=os.setsid, env=env)
while not (site / "said.json").exists():
    time.sleep(0.01)
said = json.loads((site / "said.json").read_text())
assert said["pid"] == process.pid and process.poll() is None and os.getpgid(process.pid) == process.pid
try:
    process.wait(timeout=0.01)
except simulator_runner.subprocess.TimeoutExpired:
    process.terminate()
process.wait(timeout=10)
process.terminate(), process.kill()
assert process.poll() is not None and process.returncode
print(json.dumps(said))
"""
CLIENT = """
import json, os, sys, time
import torch, fairflare
said = {"pid": os.getpid(), "parent": os.getppid(), "words": sys.argv[1:], "here": os.getcwd(), "main": __name__}
said |= {"package": fairflare.__file__, "loaded": "fairflare.core" in sys.modules, "environment": dict(os.environ)}
open("said.part", "w").write(json.dumps(said)), os.rename("said.part", "said.json")
time.sleep(60)
"""


def test_a_simulated_site_is_a_fork_that_runs_what_its_job_carries(tmp_path):
    """Arguments, environment and imports are those of a Python of its own; it can be waited for and ended."""
    job, site = tmp_path / "job", tmp_path / "site"
    (job / "fairflare").mkdir(parents=True), site.mkdir()
    (job / "fairflare" / "__init__.py").touch(), (job / "client.py").write_text(CLIENT)
    command = [sys.executable, "-c", SIMULATOR, str(job), str(site)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["package"] == str(job / "fairflare" / "__init__.py") and not said["loaded"]
    assert (said["words"], said["here"], said["main"]) == (["-o", str(site)], str(site), "__main__")
    assert said["environment"] == {"PYTHONPATH": str(job), "SITE": "north"}
    assert not psutil.pid_exists(said["pid"]) and not psutil.pid_exists(said["parent"])
