# SPDX-License-Identifier: Apache-2.0
"""Writes app_configs/<job>/ from jobs/<job>/job.py; `--check` compares instead and exits 1 on a difference."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import fairflare.engine.setup.config  # noqa: F401 - once for all scripts, each of which runs in a fork

ROOT = Path(__file__).resolve().parent.parent
FILES = ("meta.json", "config_fed_server.json", "config_fed_client.json")


def main() -> int:
    """Export every job; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for script in sorted((ROOT / "jobs").glob("*/job.py")):
        name = script.parent.name
        with tempfile.TemporaryDirectory() as scratch:
            export(script, Path(scratch))
            for file in FILES:
                (made,) = [path for path in (Path(scratch) / name).rglob(file) if path.parent.name in (name, "config")]
                kept = ROOT / "app_configs" / name / file
                if check and not (kept.is_file() and kept.read_text() == in_order(made)):
                    stale.append(str(kept.relative_to(ROOT)))
                elif not check:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_text(in_order(made))
    for name in stale:
        print(f"{name}: not what its job exports; run `make jobs`")
    return 1 if stale else 0


def in_order(file: Path) -> str:
    """The file's JSON with the tasks of filters sorted: FLARE writes them in the order of a set, another each time."""
    content = json.loads(file.read_text())
    for chain in content.get("task_result_filters", []):
        chain["tasks"] = sorted(chain["tasks"])
    return json.dumps(content, indent=4)


def export(script: Path, folder: Path) -> None:
    """Export one job into ``folder``; raises RuntimeError for a script that fails."""
    child = multiprocessing.get_context("fork").Process(target=_run, args=(script, folder))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"{script.parent.name}: the script ended with code {child.exitcode}")


def _run(script: Path, folder: Path) -> None:
    os.chdir(script.parent)
    sys.path[0], sys.argv = str(script.parent), [str(script), "--export", "--export-dir", str(folder)]
    warnings.simplefilter("ignore")  # FLARE's of its own arguments
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    sys.exit(main())
