# SPDX-License-Identifier: Apache-2.0
"""Two simulators never choose the same port."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fairflare
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
    assert one != other and not ports._reserve(one[0]) and not ports._reserve(other[0])


def test_the_simulator_s_server_is_a_fork_where_there_is_no_gpu(monkeypatch, tmp_path):
    """What a process has asked CUDA for, a fork of it cannot use."""
    from fairflare.engine.setup.config import make_config
    from fairflare.flare import forked_simulator, forked_sites, simulate

    ran = []
    monkeypatch.setattr(forked_simulator.SimulatorRunner, "run", lambda self: ran.append(self) and None)
    monkeypatch.setattr(forked_simulator.os, "register_at_fork", lambda **handlers: ran.append(handlers))
    monkeypatch.setattr(forked_simulator.SimEnv, "deploy", lambda self, job: ran.append("another Python") or job.name)
    monkeypatch.setattr(simulate.signal, "signal", lambda *args: None)
    monkeypatch.setattr(ports, "reserve_ports", lambda: None)
    monkeypatch.setattr(
        forked_sites,
        "SiteStarter",
        lambda folder, worker: SimpleNamespace(take_over=lambda: ran.append("forked sites")),
    )
    config = make_config("fedism-plus", "support2:dirichlet", rounds=1, sites=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    for gpus in (0, 1):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        simulate.main(str(tmp_path), "2")
    first, handlers, runner, other = ran
    assert (
        first == "forked sites"
        and handlers == {"after_in_child": forked_simulator._end_at_once}
        and other == "another Python"
    )
    assert runner.clients == "site-1,site-2" and runner.threads == 2


@pytest.fixture
def ask_a_fork(tmp_path):
    """A Python that forks ``module`` with the arguments "--client site-1", and what it prints of that process."""

    def ask(module, then, **env):
        (tmp_path / "module.py").write_text(module)
        (tmp_path / "sites").mkdir()
        script = f"""
import os, pathlib
from fairflare.flare.forked_sites import SiteStarter
starter = SiteStarter(pathlib.Path("sites"), "nvflare.private.fed.app.simulator.simulator_worker")
site = starter.start(["python", "-m", "module", "--client", "site-1"], {{**os.environ, **{env!r}}}, shell=False)
{then}
print(*[(file.name == str(site.pid), file.read_text()) for file in pathlib.Path("sites").iterdir()], site.poll())
"""
        path = f"{Path(fairflare.__file__).parents[1]}{os.pathsep}."
        command = [sys.executable, "-c", script]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120)

    return ask


def test_a_fork_is_as_a_new_python_and_says_how_it_ended(ask_a_fork, tmp_path):
    """Its arguments, variables, session and path are its own, and so is the package, which it imports anew."""
    (tmp_path / "job" / "fairflare").mkdir(parents=True)
    (tmp_path / "job" / "fairflare" / "__init__.py").write_text("carried = True\n")
    module = """
import os, sys, numpy, fairflare
assert __name__ == "__main__" and sys.argv[1:] == ["--client", "site-1"] and os.environ["OWN"] == "1"
assert "OTHER" not in os.environ and os.getsid(0) == os.getpid() and "torch" in sys.modules and fairflare.carried
open(f"drawn {numpy.random.rand()}", "w")
sys.exit(3)
"""
    again = 'site.wait(60); site = starter.start(["", "-m", "module", "--client", "site-1"], site_env); site.wait(60)'
    path = f"{tmp_path / 'job'}{os.pathsep}{tmp_path}"
    done = ask_a_fork(
        module, again.replace("site_env", f"{{'OWN': '1', 'PYTHONPATH': {path!r}}}"), OWN="1", PYTHONPATH=path
    )
    assert done.stdout.split()[-1] == "3" and done.stdout.count("'site-1'") == 2 and not done.stderr
    assert len(list(tmp_path.glob("drawn *"))) == 2, "each has its own random numbers"


def test_a_fork_is_stopped_and_none_outlives_who_asked(ask_a_fork):
    waits = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('up', 'w')\ntime.sleep(60)"
    then = """
import subprocess, time
while not pathlib.Path("up").exists(): time.sleep(0.05)
site.terminate()
try: site.wait(0.2)
except subprocess.TimeoutExpired: site.kill()
site.wait(60)
"""
    done = ask_a_fork(waits, then)
    assert done.stdout == "(True, 'site-1') -9\n" and not done.stderr
