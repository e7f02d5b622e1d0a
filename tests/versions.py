# SPDX-License-Identifier: Apache-2.0
"""The package under each release of FLARE that it supports: ``make versions`` prints the table of docs/in_flare.md.

Each release is installed into an environment of its own in build/versions; all else, torch among it, is this
environment's. There run the import of every module, a federation in FLARE's simulator, and the tests of the aggregator
under FLARE's own controllers, recipe and simulator. The models of all releases must be equal bit for bit.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ("2.7.3", "2.8.3", "2.9.0", "2.9.1rc5")
"""The last of each series, and the newest candidate that pip found."""
IMPORT = """
import importlib, pkgutil, fairflare
for module in pkgutil.walk_packages(fairflare.__path__, "fairflare."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
RUN = ("-m", "fairflare", "run", "fedism-plus", "--task", "support2", "--rounds", "2", "--force")
GATHER = "tests/flare/test_stock_recipe.py::test_scatter_and_gather_weighs_by_sharpness"
TESTS = ("tests/flare/test_aggregator.py", "tests/flare/test_stock_doors.py", GATHER)
LIMIT = 600
"""Seconds for one step."""


def environment(release):
    """The Python of an environment with this release, made anew where there is none."""
    folder = ROOT / "build" / "versions" / release
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
        subprocess.run([*install, "--disable-pip-version-check", f"nvflare=={release}"], check=True)
        places = Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))
        lines = [ROOT / "custom", ROOT / "lab", sysconfig.get_path("purelib")]
        (places / "others.pth").write_text("".join(f"{line}\n" for line in lines))
        (folder / "made").touch()
    return python


def said(python, *command):
    """What a command says; AssertionError with its last words where it fails or hangs, and none of it goes on."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(part) for part in (python, *command)]
    child = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        text, _ = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        text, _ = child.communicate()
    assert child.returncode == 0, f"{' '.join(command)}\n{text[-3000:]}"
    return text


def simulated(python):
    """The model's hash, and seconds."""
    folder, begun = python.parents[1] / "run", time.monotonic()
    said(python, *RUN, "--env", "sim", "--out", folder)
    model = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return model[:12], time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    options = parser.parse_args()
    models = set()
    print("| FLARE | modules imported | simulator: model, s | aggregator's tests |\n|---|---|---|---|")
    for release in options.releases:
        python = environment(release)
        said(python, "-c", IMPORT)
        model, seconds = simulated(python)
        models.add(model)
        passed = said(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS).splitlines()[-1]
        cells = [release, "all", f"{model}, {seconds:.0f}", passed.partition(" passed")[0] + " passed"]
        print(f"| {' | '.join(cells)} |", flush=True)
    if len(models) > 1:
        raise SystemExit("the releases' models differ")


if __name__ == "__main__":
    main()
