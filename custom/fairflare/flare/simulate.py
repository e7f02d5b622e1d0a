# SPDX-License-Identifier: Apache-2.0
"""Runs a configuration in FLARE's simulator; ``python -m fairflare.flare.simulate`` is the child process of ``run``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from fairflare.core import plugins, user_code
from fairflare.core.errors import RunFailed
from fairflare.core.lab import CACHE
from fairflare.core.processes import COMMAND, OWNER, RUN_FOLDER, SCRATCH, end_with_command, stop, this_command
from fairflare.core.validation import expected
from fairflare.data.site_config import VARIABLE as SITE_CONFIG
from fairflare.engine.files import AUDIT, LOCAL_FINDINGS, LOCAL_LOG, private, remove_files
from fairflare.engine.setup.config import RunConfig
from fairflare.privacy.log_files import log_files
from fairflare.privacy.schemes import HE, SERVER_CONTEXT, SITE_CONTEXT
from fairflare.privacy.secure_sums import make_contexts
from fairflare.tasks.base import DATA_FOLDER

if TYPE_CHECKING:
    from nvflare.recipe import SimEnv

LOG = "flare_log.txt"
LONGEST = 75
"""Bytes of the folder for temporary files below which FLARE's simulator can make its socket: a path has 107 at most."""
ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""As FLARE advises for its clients: each arena of glibc's keeps what the transport's threads have freed there."""
PERIOD = 1.0
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds for which a client's process is gone before it is named: at the end of a run all of them go."""
FINISH, TAIL = b'"event": "finish"', 1 << 20
"""What the line of a run's end holds, and in how many of the log's last bytes it stands."""


def run_simulator(
    config: RunConfig,
    folder: Path,
    sites: Sequence[str],
    watch: Callable[[Path], None] = lambda folder: None,
    lost: Callable[[str], None] = lambda site: None,
) -> None:
    """Run ``config`` with real FLARE processes, whose server and sites keep everything in ``folder`` as they go.

    Args:
        folder: an existing folder, empty or that of the same run, which is continued.
        watch: called about twice a second with the folder where the audit log grows.
        lost: called once with each site whose process has ended while the run goes on, seconds after it has.

    Raises:
        UserError: the folder for temporary files has too long a path.
        RunFailed: quotes the log. No process is left behind, on Ctrl-C neither, and finished rounds are kept.
    """
    length = len(os.fsencode(tempfile.gettempdir()))
    expected("TMPDIR", length <= LONGEST, f"a path of at most {LONGEST} characters for the simulator's socket", length)
    if config.secure_sum == "ckks":
        make_contexts(folder)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
        workspace = Path(scratch)
        (workspace / OWNER).write_text(os.path.abspath(folder), encoding="utf-8")
        (workspace / "config.json").write_text(json.dumps(config.to_json()))
        with open(folder / LOG, "ab", opener=private) as log:
            command = [sys.executable, "-m", __spec__.name, str(workspace)]
            child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=_environment(folder)
            )
            heartbeat = Heartbeat(child.pid, folder, lost)
            try:
                _wait(child, folder, watch, heartbeat)
            finally:
                stop(_family(child.pid, str(workspace)))
                _fetch(workspace, folder)
                with contextlib.suppress(OSError):
                    remove_files(folder / HE, (SITE_CONTEXT, SERVER_CONTEXT).__contains__)
    if not (folder / AUDIT).is_file():
        raise RunFailed(f"the simulator ended with code {child.returncode}: {_last_words(folder / LOG)}")


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment with absolute folders, for FLARE's processes run somewhere else."""
    folders = {name: os.path.abspath(os.environ[name]) for name in (DATA_FOLDER, SITE_CONFIG) if os.environ.get(name)}
    if (kept := os.environ.get(CACHE, "off")).lower() != "off":
        folders[CACHE] = os.path.abspath(os.path.expanduser(kept))
    paths = [os.path.abspath(path) for path in plugins.files()]
    named = {plugins.VARIABLE: os.pathsep.join(paths)} if paths else {}
    # Without the working directory on the path: a file of the user's there would hide the one that the job carries.
    here = {RUN_FOLDER: os.path.abspath(folder), COMMAND: this_command(), "PYTHONSAFEPATH": "1"}
    return {**ARENAS, **os.environ, **folders, **named, **here}


def _fetch(workspace: Path, folder: Path) -> None:
    """Bring home what preflight found at each site, and tracebacks: the workspace goes."""
    for name, stem in ((LOCAL_FINDINGS, "preflight"), (LOCAL_LOG, "errors")):
        for found in sorted(workspace.glob(f"*/*/simulate_job/app_*/{name}")):
            site = found.parent.name.removeprefix("app_")
            shutil.move(str(found), folder / f"{stem}_{site}.txt")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() or ["no output"]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1])[-300:]


def _wait(child: subprocess.Popen, folder: Path, watch: Callable[[Path], None], heartbeat: Heartbeat) -> None:
    while child.poll() is None:
        heartbeat.look()
        if (folder / AUDIT).is_file():
            watch(folder)
        time.sleep(0.5)


def _family(pid: int, workspace: str) -> list[psutil.Process]:
    """The process, its descendants and whatever else runs for ``workspace``: FLARE's children leave the group."""
    family = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        family = {p.pid: p for p in [*parent.children(recursive=True), parent]}
    for process in psutil.process_iter(["cmdline"]):
        if any(workspace in part for part in process.info["cmdline"] or ()) and process.pid != os.getpid():
            family[process.pid] = process
    return list(family.values())


def main(workspace: str) -> None:
    """The child: build the job that ``export`` would write and run it in FLARE's simulator."""
    from fairflare.flare.forked_simulator import fork_sites, reserve_ports

    content = json.loads((Path(workspace) / "config.json").read_text())
    # Elsewhere forks of a process with PyTorch may crash; with a GPU the simulator is another Python, which forks none.
    if sys.platform == "linux" and not torch.cuda.device_count():
        if content["task"].startswith(("bundle-", "segmentation", "volume-")) and find_spec("monai"):
            import monai  # noqa: F401  (every site would, for seconds)
        fork_sites()
    # FLARE ends its processes on Ctrl-C only.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_command()
    from fairflare.flare.recipe import FairRecipe

    reserve_ports()
    config = RunConfig.from_json(content)
    recipe = FairRecipe(config)
    recipe.finalize()
    # From here on the user's files are the job's: whoever runs it elsewhere has no others.
    os.environ.pop(user_code.VARIABLE, None)
    recipe.execute(_simulator(recipe.sites, workspace))


def _simulator(sites: list[str], workspace: str) -> SimEnv:
    """The simulator, whose server is a fork of this process unless there is a GPU: a fork cannot use one."""
    from nvflare.recipe import SimEnv

    from fairflare.flare.forked_simulator import ForkedSimEnv

    if not torch.cuda.device_count():
        return ForkedSimEnv(clients=sites, num_threads=len(sites), workspace_root=workspace)
    gpus = gpu_groups(len(sites))
    return SimEnv(clients=sites, num_threads=len(sites), gpu_config=gpus, workspace_root=workspace)


def gpu_groups(n_sites: int) -> str | None:
    """The machine's GPUs in turn, one group per site: with fewer groups FLARE starts a process per site and task.

    Returns:
        e.g. "0,1,0,1"; None where there are fewer than two GPUs, where they have no numbers, or where the sites' own
        configurations may name one.
    """
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    gpus = [gpu.strip() for gpu in named.split(",")][:count]
    if count < 2 or os.environ.get(SITE_CONFIG) or not all(gpu.isdigit() for gpu in gpus):
        return None
    return ",".join(gpus[place % len(gpus)] for place in range(n_sites))


def clients(pid: int) -> dict[str, psutil.Process]:
    """Site -> its process, of those that are at work in the simulation that descends from process ``pid``.

    FLARE's client works in a folder of its site's name, its helpers too.
    """
    found: dict[str, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                here = Path(process.cwd())
                is_site = process.status() != psutil.STATUS_ZOMBIE and SCRATCH in here.parent.parent.name
                if is_site and process.ppid() not in [site.pid for site in found.values()]:
                    found[here.name] = process
    return found


class Heartbeat:
    """Names each site whose process ends while the run goes on, long before FLARE's server would miss its answer.

    Every site has a process of its own for the whole run: the system's table of processes says it.

    Args:
        pid: of the simulator's process, from which all others descend.
    """

    def __init__(
        self,
        pid: int,
        folder: Path,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._folder, self._tell, self._clock = pid, folder, tell, clock
        self._begun = {path.name: path.stat().st_size for path in log_files(folder / AUDIT)}
        self._known: set[str] = set()
        self._gone: dict[str, float] = {}
        self._looked = 0.0

    def look(self) -> None:
        """Tell of every site whose process is gone for ``PATIENCE`` seconds, once; looks once in ``PERIOD`` at most."""
        now = self._clock()
        if now - self._looked < PERIOD:
            return
        self._looked = now
        alive = clients(self._pid)
        for site in self._known - alive.keys():
            self._gone.setdefault(site, now)
        self._known |= alive.keys()
        # A table that was read while it changed may lack a process for once.
        self._gone = {site: since for site, since in self._gone.items() if site not in alive}
        due = [site for site, since in self._gone.items() if since < now - PATIENCE]
        if not due or not alive or self._finished():
            return
        for site in sorted(due):
            self._gone[site] = float("inf")
            self._tell(site)

    def _finished(self) -> bool:
        """Whether this command's run has come to its end, at which all clients go."""
        here = [path for path in log_files(self._folder / AUDIT) if path.suffix == ".jsonl"]
        begun = self._begun.get(here[-1].name, 0) if here else 0
        with contextlib.suppress(OSError, IndexError), here[-1].open("rb") as file:
            file.seek(max(begun, file.seek(0, os.SEEK_END) - TAIL))
            return FINISH in file.read()
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
