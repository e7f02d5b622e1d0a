# SPDX-License-Identifier: Apache-2.0
"""FLARE's simulator started from this process, where ``SimEnv`` would start another Python for it and for each site.

The server is a fork of this process: it has PyTorch and this package already, which a new Python would import again
(2 CPU seconds), and it takes the ports that ``reserve_ports`` has set aside here. The sites are forks of a process that
has PyTorch and other libraries: FLARE, and this package and the user's files as its job carries them, each imports.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import psutil
import torch  # noqa: F401  (here and below: forks share what is imported)
from nvflare.fuel.f3.drivers import aio_http_driver  # noqa: F401  (and what this imports)
from nvflare.fuel.utils.log_utils import LogMode
from nvflare.job_config.api import FedJob
from nvflare.recipe import SimEnv
from scipy import special  # noqa: F401

from fairflare.flare.compat import allow_default_classes, simulator_modules

simulator_runner, simulator_deployer = simulator_modules()
SimulatorRunner = simulator_runner.SimulatorRunner
MOST_SITES = 100
"""FLARE's default limit."""
NAME = "\0fairflare-port-{}"
"""A socket of this name in Linux's abstract namespace stands for a port; it ends with the last process that has it."""
PATH = "PYTHONPATH"
IMPORTED_ANEW = ("fairflare", "nvflare")
"""Packages that no two processes share."""
_held: list[socket.socket] = []


class ForkedSimEnv(SimEnv):
    """FLARE's environment for the simulator, run from this process; on SIGTERM and Ctrl-C nothing of it is left."""

    def deploy(self, job: FedJob) -> str:
        """Run the job to its end and return its name, under which the workspace lies in ``workspace_root``.

        Raises:
            RuntimeError: the simulator failed; the words are those of FLARE's own environment.
        """
        workspace = os.path.join(self.workspace_root, job.name)
        allow_default_classes(self, workspace)
        os.register_at_fork(after_in_child=_end_at_once)
        with tempfile.TemporaryDirectory() as folder:
            job.export_job(folder)
            runner = SimulatorRunner(
                job_folder=os.path.join(folder, job.name),
                workspace=workspace,
                clients=",".join(self.clients),
                n_clients=len(self.clients),
                threads=self.num_threads,
                log_config=os.environ.get("FL_LOG_LEVEL", LogMode.CONCISE),
                max_clients=max(MOST_SITES, len(self.clients)),
            )
            status = runner.run()
        self.last_run_failed = status not in (None, 0)
        if self.last_run_failed:
            raise RuntimeError(f"Simulation failed with return code {status}")
        return job.name


def _end_at_once() -> None:
    """This process clears up after SIGTERM as after Ctrl-C; the server and FLARE's helpers just end, as by default."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def reserved_ports(number: int, find: Callable[[int], list[int]]) -> list[int]:
    """As FLARE's ``get_open_ports``, but no port that another process of this package has reserved.

    FLARE looks for a free port, closes it, and starts a process that opens it seconds later; in between another
    simulator may be given the same port, and its site then waits for the other's server.

    Returns:
        Ports that stay reserved until this process and its children have ended.
    """
    ports: list[int] = []
    while len(ports) < number:
        ports += [port for port in find(number - len(ports)) if _reserve(port)]
    return ports


def reserve_ports() -> None:
    """Have FLARE's simulator in this process, and in the processes that it forks, take reserved ports."""
    for module in (simulator_deployer, simulator_runner):
        module.get_open_ports = lambda number: reserved_ports(number, _free_ports)


def _free_ports(number: int) -> list[int]:
    """As FLARE's ``get_open_ports``, but below the ports that Linux gives to outgoing connections.

    One of those may take a listener's port while its process starts; the simulator would wait for that site until the
    task's deadline.
    """
    found: list[int] = []
    while len(found) < number:
        port = 20000 + secrets.randbelow(12768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", port))
            found.append(port)
    return found


def _reserve(port: int) -> bool:
    """Whether ``port`` is this process's now; elsewhere than on Linux nothing can be reserved."""
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        mark.bind(NAME.format(port))
        _held.append(mark)
        return True
    mark.close()
    return False


def fork_sites() -> None:
    """Have FLARE's simulator in this process, and in those that it forks, fork its sites from a copy of this process.

    The copy is made here and now: call it before this process has threads and before it reads any file of the user's.
    It ends with this process.
    """
    ours, theirs = Pipe()
    if not (copy := os.fork()):
        ours.close()
        _serve(theirs)
    theirs.close()
    atexit.register(_end, copy)
    asking = threading.Lock()

    def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> SiteProcess:
        with asking:
            ours.send((list(command), dict(env)))
            return SiteProcess(ours.recv())

    simulator_runner.subprocess = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)


def _end(copy: int) -> None:
    """End it, and wait for it: so this process's times hold those of its sites."""
    os.kill(copy, signal.SIGTERM)
    os.waitpid(copy, 0)


def _serve(asked: Connection) -> None:
    """Fork a process for every command ``python -m MODULE ...`` that comes, and run it there; never returns."""
    signal.signal(signal.SIGCHLD, _clear_away)
    while True:
        try:
            command, env = asked.recv()
        except EOFError:
            os._exit(0)
        if not (pid := os.fork()):
            break
        asked.send(pid)
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    before, now = ([path for path in one.get(PATH, "").split(os.pathsep) if path] for one in (os.environ, env))
    sys.path[:] = [*now, *(path for path in sys.path if path not in before)]
    os.environ.clear()
    os.environ.update(env)
    # The job carries a package of its own, and FLARE numbers its streams from the moment when it was imported.
    for name in [name for name in sys.modules if name.partition(".")[0] in IMPORTED_ANEW]:
        del sys.modules[name]
    module, sys.argv[1:] = command[2], command[3:]
    os.chdir(sys.argv[sys.argv.index("-o") + 1])  # where the module goes first of all
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _clear_away(*ignored: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class SiteProcess(psutil.Process):
    """What FLARE asks of a ``subprocess.Popen``, of a process that another one has started.

    ``returncode`` is 1 once the process has ended: how it did, only its parent is told.
    """

    returncode: int | None = None

    def poll(self) -> int | None:
        if not self.is_running():
            self.returncode = 1
        return self.returncode

    def terminate(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            super().terminate()

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            super().kill()

    def wait(self, timeout: float | None = None) -> int:
        try:
            return super().wait(timeout)
        except psutil.TimeoutExpired as late:
            raise subprocess.TimeoutExpired(str(self.pid), late.seconds) from None
