# SPDX-License-Identifier: Apache-2.0
"""What poc.sh and provisioned.sh need beyond FLARE's own commands: free ports, settings, and nothing left running.

Run as ``python federation.py COMMAND ...``; needs psutil, which comes with FLARE.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import psutil

GRACE = 10.0
"""Seconds that a process has to end after being told to."""
OURS = [
    "fairflare.flare.controller.FairController",
    "fairflare.flare.executor.FairExecutor",
    "fairflare.flare.egress.EgressFilter",
    "fairflare.flare.persistor.FairPersistor",
]
POLICY = "fairflare.flare.site_policy.SitePolicy"
REASON = "fairflare.flare.job_reason.JobReason"
STORES = {"jobs-storage": "uri_root", "snapshot-storage": "root_dir"}


def check_port(port: str) -> None:
    """Exit with one line when nothing can listen on ``port`` of 127.0.0.1."""
    with socket.socket() as probe:
        # As FLARE's server does, so that a port that was in use a moment ago is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(port)))
        except (OSError, OverflowError, ValueError) as error:
            sys.exit(f"port {port} of 127.0.0.1 cannot be used ({error}): choose another with --port")


def allow(local: str) -> None:
    """Add this package's classes to a site's allow-list, for jobs that bring no code."""
    settings = _resources(Path(local))
    settings["class_allow_list"] = sorted({*settings["class_allow_list"], *OURS})
    _write(Path(local), settings)


def policy(local: str) -> None:
    """Let a site check every job before anything of it is built, and stream no file of a job's folder.

    Its python needs this package, installed or in ``local/custom``.
    """
    settings = _resources(Path(local)) | {"allow_log_streaming": False}
    settings["app_validator"] = {"path": POLICY, "args": {}}
    _write(Path(local), settings)


def reasons(local: str) -> None:
    """Have ``nvflare job meta`` show why a job of this package failed; the server's python needs this package."""
    settings = _resources(Path(local))
    others = [one for one in settings.get("components", []) if one.get("path") != REASON]  # FLARE takes an id once
    settings["components"] = [*others, {"id": "fairflare_reason", "path": REASON, "args": {}}]
    _write(Path(local), settings)


def protect(folder: str) -> None:
    """Let nobody but their owner read the files below ``folder``: startup kits and the root key hold private keys."""
    for path in (Path(folder), *Path(folder).rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXU | (0o700 if path.is_dir() else 0o600))


def stores(local: str, folder: str) -> None:
    """Keep the server's jobs and snapshots below ``folder`` and not in /tmp/nvflare."""
    settings = _resources(Path(local))
    for text, key in STORES.items():
        for holder in _holders(settings, key, text):
            holder[key] = str(Path(folder).resolve() / text)  # FLARE takes no relative one
    _write(Path(local), settings)


def _holders(node: object, key: str, text: str) -> list[dict]:
    """Every object below ``node`` whose ``key`` is a path that ends in ``text``."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = [holder for child in children for holder in _holders(child, key, text)]
    if isinstance(node, dict) and str(node.get(key, "")).endswith(text):
        found.append(node)
    return found


def _resources(local: Path) -> dict:
    """What FLARE reads: resources.json, or without it the default that the kit came with."""
    own = local / "resources.json"
    return json.loads((own if own.is_file() else local / "resources.json.default").read_text())


def _write(local: Path, settings: dict) -> None:
    (local / "resources.json").write_text(json.dumps(settings, indent=2) + "\n")


def stop(kits: str, patience: str = "20") -> None:
    """End every FLARE process of the kits below ``kits``; those that are shutting down have ``patience`` seconds."""
    deadline = time.monotonic() + float(patience)
    while (left := running(kits)) and time.monotonic() < deadline:
        daemons = [p for p in left if _is_daemon(p)]
        if len(daemons) == len(left):
            break  # the services are gone; their daemons would look again after five seconds
        time.sleep(0.5)
    # Daemons first: they start again whatever ends without them.
    for process in sorted(running(kits), key=lambda p: not _is_daemon(p)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(running(kits), timeout=GRACE)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE)
    for name in ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl"):
        for file in Path(kits).glob(f"**/{name}"):
            file.unlink()
    if left := running(kits):
        sys.exit(f"still running: {', '.join(str(p.pid) for p in left)}")


def running(kits: str) -> list[psutil.Process]:
    """FLARE's processes whose startup kit lies below ``kits``: daemons, services, jobs and consoles."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        flare = any(w.startswith("nvflare.") or w.endswith(("start.sh", "fl_admin.sh")) for w in words)
        if flare and process.pid != os.getpid() and any(_below(w, kits) for w in words):
            found.append(process)
    return found


def _below(word: str, kits: str) -> bool:
    return word.startswith("/") and Path(os.path.normpath(word)).is_relative_to(os.path.normpath(kits))


def _is_daemon(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("start.sh") for word in process.cmdline())
    return False


def show(kits: str) -> None:
    """One line per FLARE process of the kits below ``kits``; exits with 1 when there is none."""
    found = running(kits)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            print(process.pid, " ".join(process.cmdline())[:100])
    sys.exit(0 if found else 1)


if __name__ == "__main__":
    commands = {"check-port": check_port, "stop": stop, "show": show, "protect": protect}
    commands |= {"allow": allow, "policy": policy, "stores": stores, "reasons": reasons}
    command, *words = sys.argv[1:] or [""]
    if command not in commands:
        sys.exit(f"federation.py: expected one of {', '.join(commands)}, got {command!r}")
    try:
        commands[command](*words)
    except (OSError, TypeError, ValueError, KeyError) as error:
        sys.exit(f"federation.py {command}: {error}")
