# SPDX-License-Identifier: Apache-2.0
"""A real FLARE federation for tests: poc_workspace's scripts, processes that know nothing of this repository."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from bare_libraries import link_libraries
from fairflare.cli.main import main
from fairflare.core.processes import RUN_FOLDER
from fairflare.engine.in_process import InProcess
from fairflare.flare.deploy import Server, find_kit
from fairflare.report.write import verify_run

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "poc_workspace"
LIMIT = 300
"""Seconds for one command."""
NVFLARE = ["-m", "nvflare.cli", "--connect-timeout", "60"]
"""FLARE's command for Python, which by itself waits five seconds for a login: a busy machine's server answers later."""


def free_port():
    """A port that is free, and so is the one after it, on which a relay listens."""
    while True:
        with socket.socket() as probe, socket.socket() as after:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                after.bind(("127.0.0.1", port + 1))
                return port


def bare_python(folder):
    """A python that has this one's libraries but not this package, as at a hospital: it can only come with a job."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    libraries = Path(subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip())
    (libraries / "libraries.pth").write_text(f"{link_libraries(folder / 'libraries')}\n")
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [str(python), "-c", "import fairflare"], cwd=folder, env=bare, capture_output=True, timeout=60
    )
    assert found.returncode, "the package must be installed with pip install -e, so that the sites' python lacks it"
    return python


class Federation:
    """One federation below ``folder``; ``script`` is poc.sh or provisioned.sh; ``more`` goes into its environment."""

    def __init__(self, script, folder, **more):
        self.script, self.folder, self.port = SCRIPTS / script, folder, free_port()
        self.python = bare_python(folder.parent / "python")
        self.kits = folder / ("poc/fairflare_poc/prod_00" if script == "poc.sh" else "sites")
        home = folder / "home"
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "PYTHON": str(self.python),
            "FAIRFLARE_PYTHON": sys.executable,
            "FAIRFLARE_WORKSPACE": str(folder),
            "FAIRFLARE_PORT": str(self.port),
            "FAIRFLARE_PATIENCE": str(LIMIT - 60),
            **more,
        }
        self.cli = {**self.environment, "HOME": str(home), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}

    def sh(self, *arguments, check=True):
        """A subcommand of the script."""
        return _call([str(self.script), *map(str, arguments)], self.environment, check)

    def nvflare(self, *arguments, kit, check=True, table=False):
        """FLARE's own command line, as the owner of ``kit``; its JSON, or its table for people."""
        command = [str(self.python), *NVFLARE, *(() if table else ("--format", "json")), *map(str, arguments)]
        done = _call([*command, "--startup-kit", str(self.kits / kit)], self.cli, check, self.folder / "home")
        return done.stdout if table else json.loads(done.stdout.strip().splitlines()[-1])

    def fairflare(self, *arguments, check=True):
        """This package's command line."""
        return _call([sys.executable, "-m", "fairflare", *map(str, arguments)], self.cli, check)

    @contextlib.contextmanager
    def start_fairflare(self, *arguments):
        """This package's command line as a process that is still at work."""
        command = [sys.executable, "-m", "fairflare", *map(str, arguments)]
        child = subprocess.Popen(command, env=self.cli, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield child
        finally:
            child.kill()
            child.wait()

    def console(self, kit, *lines):
        """What FLARE's admin console prints when these lines are typed into it."""
        path = f"{self.python.parent}{os.pathsep}{self.cli['PATH']}"
        done = subprocess.run(
            [str(self.kits / kit / "startup" / "fl_admin.sh")], input="\n".join([*lines, "bye", ""]), text=True,
            env={**self.cli, "PATH": path}, capture_output=True, timeout=LIMIT,
        )  # fmt: skip
        return done.stdout + done.stderr

    def finish(self, job, kit):
        """Wait for ``job`` and return the folder of its run, fetched from the server, and its meta."""
        with self._server(kit) as server:
            until(lambda: server.meta(job)["status"].startswith("FINISHED"), LIMIT)
            folder = server.download(job, self.folder / "fetched")
            return folder / "workspace" / "fairflare", server.meta(job)

    def meta(self, job, kit):
        """What the server says of a job."""
        with self._server(kit) as server:
            return server.meta(job)

    def running(self):
        """The federation's processes."""
        return processes().running(str(self.folder))

    def running_for(self, name):
        """Role -> the process of one kit's owner: "daemon", "service" or "job"."""
        return {_role(process): process for process in processes().running(str(self.kits / name))}

    def connected(self, kit):
        """The sites that the server has, as it tells the owner of ``kit``."""
        with self._server(kit) as server:
            return server.connected()

    def _server(self, kit):
        """A session of the owner of ``kit``; no process is started for a question."""
        return Server(*find_kit("prod", self.kits / kit))

    def registered(self, name):
        """How often a site has told its log that the server knows it."""
        log = self.kits / name / "log.txt"
        return log.read_text().count("Successfully registered client") if log.is_file() else 0

    def start(self, name, *before, **more):
        """Start a kit's daemon by the command ``before``; what it prints goes to ``NAME.printed``."""
        more["PATH"] = f"{self.python.parent}{os.pathsep}{self.environment['PATH']}"
        with (self.folder / f"{name}.printed").open("w") as out:
            subprocess.run(
                [*before, "./startup/start.sh"], cwd=self.kits / name, env=self.environment | more, check=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=60,
            )  # fmt: skip

    def kill(self, name):
        """All of a kit's owner's processes, the parent first, which starts again whatever ends without it."""
        for process in sorted(self.running_for(name).values(), key=lambda one: one.pid):
            process.kill()
        until(lambda: not self.running_for(name), 30)
        for file in ("pid.fl", "daemon_pid.fl"):
            (self.kits / name / file).unlink(missing_ok=True)

    def states(self):
        """The server's state folders, one per federation that a job has begun."""
        return set(self.kits.glob("localhost/fairflare_state/*"))


def blocks(page):
    """What the first line of each of a page's blocks of commands says -> the block, in the page's order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {name: block for block, name in re.findall(r"```bash\n(# (.*?)[:.].*?)```", text, re.DOTALL)}


class Hub(Federation):
    """A federation in whose folder the commands of a page are typed."""

    def type(self, block):
        """Run a block of commands; what they print. Processes that stay hold no pipe of it, and write on elsewhere."""
        said = self.folder / "said.txt"
        said.unlink(missing_ok=True)
        path = os.pathsep.join(map(str, (self.folder / "bin", self.python.parent, self.cli["PATH"])))
        with said.open("w") as file:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, env={**self.cli, "PATH": path},
                stdout=file, stderr=file, stdin=subprocess.DEVNULL, timeout=LIMIT,
            )  # fmt: skip
        assert done.returncode == 0, said.read_text()[-3000:]
        return said.read_text()

    def commands(self):
        """``fairflare`` and ``nvflare`` as the pages have them."""
        (self.folder / "bin").mkdir()
        for name, command in (
            ("fairflare", f"{sys.executable} -m fairflare"),
            ("nvflare", shlex.join([str(self.python), *NVFLARE])),
        ):
            (self.folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (self.folder / "bin" / name).chmod(0o700)

    def begin(self, *names):
        """Start kits, and wait until the server has them."""
        before = {name: self.registered(name) for name in names}
        for name in names:
            self.type(f"cd {self.kits / name} && ./startup/start.sh")
        until(lambda: all(self.registered(name) > before[name] for name in names if name != "localhost"))


def processes():
    """poc_workspace/federation.py as a module."""
    spec = importlib.util.spec_from_file_location("poc_workspace_federation", SCRIPTS / "federation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def ended(made):
    """A federation whose processes and folder are gone after this, whatever happens within."""
    try:
        yield made
    finally:
        made.sh("stop", check=False)
        for process in made.running():
            process.kill()
        shutil.rmtree(made.folder, ignore_errors=True)


@contextlib.contextmanager
def federation(script, folder, *options, **more):
    """A started federation."""
    with ended(Federation(script, folder, **more)) as made:
        made.sh("prepare", *options)
        made.sh("start")
        yield made


def image(target):
    """What the Dockerfile says of a container of ``target``: instruction -> value, a stage's over its base's."""
    stages, said = {}, {}
    for line in (SCRIPTS / "containers" / "Dockerfile").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            said = stages[name] = dict(stages.get(base, {}))
        else:
            said[word] = rest
    return stages[target]


@contextlib.contextmanager
def composed(made, patience=120):
    """The services of compose.yaml over ``made``'s kits: a process each, which runs what its container would.

    Where the container's file system is, the kit's folder and ``made``'s python stand in.
    """
    (made.kits / "server").symlink_to("localhost")  # FLARE's server listens on this machine alone under that name
    children = {}
    try:
        for name, service in yaml.safe_load((SCRIPTS / "containers" / "compose.yaml").read_text())["services"].items():
            said = image(service["build"]["target"])
            kit, inside = re.sub(r"\$\{KITS[^}]*\}", str(made.kits), service["volumes"][0]).split(":")
            assert inside == said["WORKDIR"]
            more = dict(word.split("=", 1) for word in shlex.split(said["ENV"]))
            more["PATH"] = (
                more["PATH"].replace("/venv/bin", str(made.python.parent)).replace("$PATH", os.environ["PATH"])
            )
            children[name] = subprocess.Popen(
                json.loads(said["CMD"]), cwd=kit, env=made.environment | more, umask=0o022,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        yield children
        made.sh("stop")
        for child in children.values():
            assert child.wait(patience) == 0
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def check_run(folder, model_sha256=None):
    """A run's folder is whole: its report is there, its chain is, and the model is the expected one."""
    entries = verify_run(folder)
    assert (folder / "report.html").stat().st_size > 10_000
    assert json.loads((folder / "report.json").read_text())["status"] == "completed"
    assert [e["event"] for e in entries if e["event"] == "round"] and not any(
        e["rejected"] for e in entries if e["event"] == "round"
    )
    assert model_sha256 in (None, entries[-1]["model_sha256"])
    return entries


def here(*arguments, check=True):
    """This package's command line in this process, where no federation is asked for anything."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(word) for word in arguments])
    assert not check or not stop.value.code, err.getvalue()
    return subprocess.CompletedProcess(arguments, stop.value.code or 0, out.getvalue(), err.getvalue())


def in_process(folder, *run):
    """The model's hash of the same run without FLARE."""
    try:
        main(["run", *map(str, run), "--out", str(folder)])
    except SystemExit as end:
        assert end.code == 0
    return check_run(folder)[-1]["model_sha256"]


def without(folder, away, *run):
    """The model's hash of a run in this process in which sites are not reached in their rounds of ``away``."""
    exchange = InProcess.exchange

    def some(self, instructions):
        return exchange(self, {s: i for s, i in instructions.items() if i.round.number not in away.get(s, ())})

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(InProcess, "exchange", some)
        main(["run", *run, "--out", str(folder)])
    return verify_run(folder)[-1]["model_sha256"]


def until(found, seconds=240):
    """What ``found`` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return what


def _role(process):
    words = " ".join(process.info["cmdline"])
    return "daemon" if "start.sh" in words else "service" if "_train " in words else "job"


def _call(command, environment, check, folder=None):
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT
    )
    assert not check or done.returncode == 0, f"{command[:4]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


def simulated_processes(folder):
    """The processes of the simulated run or join in ``folder``, without its command."""

    def belongs(process):
        try:
            return process.environ().get(RUN_FOLDER) == str(folder) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if belongs(process)]
