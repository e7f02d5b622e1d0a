# SPDX-License-Identifier: Apache-2.0
"""FLARE's simulator started from this process, where ``SimEnv`` would start another Python for it.

The server is a fork of this process: it has PyTorch and this package already, which a new Python would import again
(2 CPU seconds), and it takes the ports that ``reserve_ports`` has set aside here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable

from nvflare.fuel.utils.log_utils import FL_LOG_LEVEL, LogMode
from nvflare.job_config.api import FedJob
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
from nvflare.recipe import SimEnv

MOST_SITES = 100
"""FLARE's default limit."""
NAME = "\0fairflare-port-{}"
"""A socket of this name in Linux's abstract namespace stands for a port; it ends with the last process that has it."""
_held: list[socket.socket] = []


class ForkedSimEnv(SimEnv):
    """FLARE's environment for the simulator, run from this process; on SIGTERM and Ctrl-C nothing of it is left."""

    def deploy(self, job: FedJob) -> str:
        """Run the job to its end and return its name, under which the workspace lies in ``workspace_root``.

        Raises:
            RuntimeError: the simulator failed; the words are those of FLARE's own environment.
        """
        workspace = os.path.join(self.workspace_root, job.name)
        self._ensure_default_component_policy(workspace)
        os.register_at_fork(after_in_child=_end_at_once)
        with tempfile.TemporaryDirectory() as folder:
            job.export_job(folder)
            runner = SimulatorRunner(
                job_folder=os.path.join(folder, job.name),
                workspace=workspace,
                clients=",".join(self.clients),
                n_clients=len(self.clients),
                threads=self.num_threads,
                log_config=os.environ.get(FL_LOG_LEVEL, LogMode.CONCISE),
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
    from nvflare.private.fed.app.deployer import simulator_deployer
    from nvflare.private.fed.app.simulator import simulator_runner

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
