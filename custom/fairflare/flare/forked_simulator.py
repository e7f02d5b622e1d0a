# SPDX-License-Identifier: Apache-2.0
"""FLARE's simulator started from this process, where ``SimEnv`` would start another Python for it.

The server is a fork of this process: it has PyTorch and this package already, which a new Python would import again
(2 CPU seconds), and it takes the ports that ``ports.reserve_ports`` has set aside here.
"""

from __future__ import annotations

import os
import signal
import tempfile

from nvflare.fuel.utils.log_utils import FL_LOG_LEVEL, LogMode
from nvflare.job_config.api import FedJob
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
from nvflare.recipe import SimEnv

MOST_SITES = 100
"""FLARE's default limit."""


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
