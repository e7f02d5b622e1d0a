# SPDX-License-Identifier: Apache-2.0
"""Ten defects, planted one at a time in a copy of the package, and whether the tests named for each find it.

python tests/mutations.py [TEXT]: all, or those whose name contains TEXT. Exits with 1 where one is not found, or where
its tests fail without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT = 1200
"""Seconds for the tests of one defect."""


class Defect(NamedTuple):
    """What stands in ``file`` once in place of ``right``; ``tests`` are to find it."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


DEFECTS = [
    Defect(
        "gate: an update of any size is accepted",
        "engine/gate.py",
        "outliers |= norms.too_large(known, scales, self.max_norm_ratio, history)",
        "outliers |= {}",
        ("unit/test_gate.py",),
    ),
    Defect(
        "gate: an answer to another round counts",
        "engine/checks.py",
        "type(answer.round) is not int or answer.round != round",
        "type(answer.round) is not int",
        ("unit/test_gate.py",),
    ),
    Defect(
        "egress: values that are not finite leave",
        "privacy/egress.py",
        "if not all_finite(tensor):",
        "if False and not all_finite(tensor):",
        ("unit/test_privacy.py",),
    ),
    Defect(
        "egress: with secure sums an unmasked update leaves",
        "privacy/egress.py",
        "if not self.secure or answer.update is None:",
        "if True or answer.update is None:",
        ("flare/test_egress.py",),
    ),
    Defect(
        "audit: a line need not follow the one before it",
        "engine/audit.py",
        'or entry.get("prev") != head',
        'or entry.get("prev") == ""',
        ("unit/test_audit.py",),
    ),
    Defect(
        "audit: the hash of a model leaves its values out",
        "engine/hashes.py",
        "        digest.update(_data(value))\n",
        "",
        ("unit/test_audit.py",),
    ),
    Defect(
        "resume: a site goes on from what the repeated round has kept",
        "engine/memory.py",
        "earlier = [r for r in self._rounds if r < round]\n        return _copied(",
        "earlier = [r for r in self._rounds if r <= round]\n        return _copied(",
        ("unit/test_memory.py",),
    ),
    Defect(
        "aggregator FedISM: the past weighs as the present should",
        "aggregators/fedism.py",
        "self.beta * fresh + (1 - self.beta) * past",
        "(1 - self.beta) * fresh + self.beta * past",
        ("golden/test_fedism_golden.py",),
    ),
    Defect(
        "aggregator q-FFL: a larger loss lowers the weight",
        "aggregators/qffl.py",
        "math.log(priors[site]) + self.q * math.log(f)",
        "math.log(priors[site]) - self.q * math.log(f)",
        ("golden/test_qffl_golden.py",),
    ),
    Defect(
        "aggregator trimmed mean: half of the mass is dropped",
        "aggregators/robust.py",
        "trim=self._trim(len(replies))",
        "trim=self._trim(len(replies)) / 2",
        ("golden/test_robust_golden.py",),
    ),
]


def passes(package: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass with the package in ``package``; stops at the first that does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in tests)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(tests)}: no tests could be run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def plant(defect: Defect, package: Path) -> None:
    """Put a defect into the package in ``package``."""
    file = package / "fairflare" / defect.file
    text = file.read_text()
    if text.count(defect.right) != 1:
        raise SystemExit(f"{defect.name}: {defect.file} has {text.count(defect.right)} times {defect.right!r}")
    file.write_text(text.replace(defect.right, defect.wrong))


def main(wanted: str = "") -> int:
    """How many defects are not found."""
    chosen = [defect for defect in DEFECTS if wanted in defect.name]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fairflare_mutations.") as folder:
        package = Path(folder) / "custom"
        for defect in chosen:
            shutil.copytree(ROOT / "custom", package, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            begun = time.monotonic()
            sound = passes(package, defect.tests)
            plant(defect, package)
            found = sound and not passes(package, defect.tests)
            missed += not found
            said = "found" if found else "NOT FOUND" if sound else "its tests fail without it"
            print(f"{said:10} {defect.name} ({', '.join(defect.tests)}; {time.monotonic() - begun:.0f} s)", flush=True)
            shutil.rmtree(package)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return missed


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
