# SPDX-License-Identifier: Apache-2.0
"""Thirty defects, planted one at a time in a copy of the package, and whether the tests named for each find it.

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
    Defect(
        "exchange train: a site goes on though its budget is spent",
        "engine/exchanges/train.py",
        "if reason := site.trainer.halted(work):",
        "if (reason := site.trainer.halted(work)) and not reason:",
        ("unit/test_private_training.py",),
    ),
    Defect(
        "exchange train: nobody asks on how many patients a sum rests",
        "engine/exchanges/train.py",
        "            site.referee.check_support(work.support)\n",
        "            pass\n",
        ("attacks/test_referee_attacks.py",),
    ),
    Defect(
        "exchange train: the update is against the site's own entries",
        "engine/exchanges/train.py",
        "if v.is_floating_point() and k not in personal}",
        "if v.is_floating_point()}",
        ("unit/test_personal.py",),
    ),
    Defect(
        "exchange benefit: asked before the site has trained alone",
        "engine/exchanges/benefit.py",
        "if self.alone.done < site.training.rounds:",
        "if self.alone.done < 0:",
        ("attacks/test_benefit_attacks.py",),
    ),
    Defect(
        "exchange benefit: asked twice of two models",
        "engine/exchanges/benefit.py",
        '        site.asked.once("benefit", model)\n',
        "",
        ("attacks/test_benefit_attacks.py",),
    ),
    Defect(
        "exchange evaluate: calibration of a model that is not in use",
        "engine/exchanges/evaluate.py",
        "if cases is not None and site.asked.is_of(model_hash(model)):",
        "if cases is not None:",
        ("attacks/test_clinical_attacks.py", "unit/test_clinical.py"),
    ),
    Defect(
        "referee: a site enters sums as often as the server likes",
        "privacy/referee.py",
        "    return {site for site, n in entries_of(sets).items() if n >= most and site not in sets[-1]}",
        "    return set()",
        ("attacks/test_referee_attacks.py",),
    ),
    Defect(
        "referee: one patient is enough for a sum",
        "privacy/referee.py",
        "effective(weights) < MIN_EFFECTIVE[kind]",
        "effective(weights) < 1",
        ("unit/test_referee.py",),
    ),
    Defect(
        "folds: rows are dealt, not patients",
        "tasks/folds.py",
        "found = (rng.permutation(owner.max() + 1) % folds)[owner]",
        "found = rng.permutation(len(owner)) % folds",
        ("unit/test_repeat_visits.py",),
    ),
    Defect(
        "intervals: rows of one patient count as patients",
        "functional/intervals.py",
        "    if patients is None:\n        return values\n    if values.ndim > 1:",
        "    if True:\n        return values\n    if values.ndim > 1:",
        ("unit/test_repeat_visits.py",),
    ),
    Defect(
        "configuration: the laxer of two minimum counts holds",
        "data/site_config.py",
        "else max(own, job)",
        "else min(own, job)",
        ("unit/test_privacy.py",),
    ),
    Defect(
        "configuration: numbers have no largest value",
        "core/validation.py",
        "lambda value: self.low <= value <= self.high",
        "lambda value: self.low <= value",
        ("attacks/test_configuration.py",),
    ),
    Defect(
        "configuration: documents of any depth",
        "core/validation.py",
        'expected(name, depth <= DEEPEST, f"at most {DEEPEST} levels", "more")',
        "pass",
        ("attacks/test_configuration.py",),
    ),
    Defect(
        "configuration: unknown keys are passed over",
        "core/settings.py",
        "    if unknown := sorted(set(values) - set(known)):",
        "    if unknown := []:",
        ("attacks/test_configuration.py",),
    ),
    Defect(
        "configuration: what the user gives loses against the method",
        "engine/setup/config.py",
        "return found | (method_defaults.reference_of(chosen.method, owners) if wants else {}) | given",
        "return given | found | (method_defaults.reference_of(chosen.method, owners) if wants else {})",
        ("unit/test_config.py",),
    ),
    Defect(
        "configuration: the level of robust beats a key of the run",
        "engine/setup/config.py",
        'return {"robust": level, **meant, **values}',
        'return {**values, "robust": level, **meant}',
        ("laws/test_bounded.py",),
    ),
    Defect(
        "bounds: a direction that stands out keeps its weight",
        "aggregators/bounded.py",
        "(low + (high - low) * part)",
        "high",
        ("laws/test_bounded.py",),
    ),
    Defect(
        "tuning: the body trains its statistics",
        "engine/setup/tuning.py",
        "    network.register_forward_pre_hook(_still)\n",
        "",
        ("unit/test_tuning.py",),
    ),
    Defect(
        "tuning: a site takes any body",
        "engine/setup/weights.py",
        "    if found != sha256:\n        raise DataError",
        "    if not found:\n        raise DataError",
        ("unit/test_tuning.py",),
    ),
    Defect(
        "readers: a file of any size is unpacked",
        "data/readers/limits.py",
        "        if number > most:",
        "        if number < 0:",
        ("unit/data/test_tables.py",),
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
