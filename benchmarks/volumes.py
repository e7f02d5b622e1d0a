# SPDX-License-Identifier: Apache-2.0
"""What the papers' methods hold at most in a run on volumes: three sites in one process, one torch thread.

python benchmarks/volumes.py fedavg fedlwr ...
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("fedavg", "fedlwr", "fedism-plus", "fedheal", "fedce", "fedufo")


TOY = {"images": 64, "site_test_images": 0, "size": 32, "patch": 16, "patches": 1}


def measured(method: str, rounds: int, options: dict[str, object]) -> None:
    """Run in this process and print its peak memory and CPU time, data included."""
    from fairflare.engine.setup.config import make_config
    from fairflare.engine.setup.local import run_local

    level = {"level": "client"} if method == "fedufo" else {}
    with tempfile.TemporaryDirectory() as folder:
        run_local(make_config(method, "brain-seg3d:small", rounds=rounds, values={**options, **level}), Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{method}: peak {peak:.1f} MiB, {time.process_time():.1f} CPU s for {rounds} rounds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="in this process, one method")
    parser.add_argument("--toy", action="store_true", help="one method on tiny volumes, for tests")
    given = parser.parse_args()
    if given.toy:
        measured("fedavg", 1, TOY)
        return
    if given.here:
        measured(given.methods[0], given.rounds, {})
        return
    for method in given.methods:  # a process each, whose peak is its own
        subprocess.run([sys.executable, __file__, method, "--rounds", str(given.rounds), "--here"], check=True)


if __name__ == "__main__":
    main()
