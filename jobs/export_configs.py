# SPDX-License-Identifier: Apache-2.0
"""Writes app_configs/<job>/ from jobs/<job>/job.py; `--check` compares instead and exits 1 on a difference."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

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
    """Export one job into ``folder``; raises CalledProcessError with the script's output."""
    command = [sys.executable, str(script), "--export", "--export-dir", str(folder)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, cwd=script.parent, check=True, timeout=120, **quiet)


if __name__ == "__main__":
    sys.exit(main())
