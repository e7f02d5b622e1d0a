# SPDX-License-Identifier: Apache-2.0
"""What a log of years costs: 466 hospitals and 10,000 rounds, verified, reported and resumed.

    python benchmarks/long_log.py --out DIR [--rounds 10000] [--seed 0]

``--toy`` runs the same code at a size that says nothing about memory, as the tests do.

FedAvg on ``ist:hospitals`` dies in its third real round. The rounds up to the last but one are written behind them by
the package's own writer: a hundred entries of the form of the third in turn, every float drawn from [0, 1), which
compresses worse than what sites say, and every hundredth round without the answer of one site. Then each command works
in a process of its own, on the folder as it was after three rounds and on the long one: the checks of ``fairflare
verify``, ``fairflare report``, and the checks of ``fairflare resume`` with one round more. Printed are bytes a round,
files, and for each command seconds, the memory before it begins (resident, after imports) and its peak.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch

from fairflare.engine import audit, files
from fairflare.engine.audit import AuditLog
from fairflare.engine.checkpoint import load_checkpoint, save_checkpoint
from fairflare.engine.files import AUDIT, CHECKPOINT
from fairflare.engine.history import Follower, left_behind
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.run_config import RunConfig
from fairflare.privacy.log_files import log_files

CHAIN = ("seq", "time", "event", "prev", "hash")
REAL = 2
DIFFERENT = 100
"""Simulated rounds, which come in turn."""
LEAST_IN_TOY = 300


class Dies(BaseException):
    """The process ends here."""


class Killer:
    """Ends a run after the line of a round, whose checkpoint is then missing."""

    def __init__(self, after: int) -> None:
        self._after = after

    def saw(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] == "round" and entry["round"] == self._after:
            raise Dies


def main() -> None:
    """Write the folders, let each command work, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the folders go; by default one that goes at the end")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    parser.add_argument("--do", choices=list(COMMANDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.do:
        measured(COMMANDS[options.do], options.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(options, options.out or Path(scratch) / "logs")


def measure(options: argparse.Namespace, out: Path) -> None:
    """The figures of the folders in ``out``, which is written anew."""
    rounds = 12 if options.toy else options.rounds
    short, long = out / "short", out / "long"
    shutil.rmtree(out, ignore_errors=True)
    short.mkdir(parents=True)
    values = {"least": LEAST_IN_TOY if options.toy else 1}
    go_on(make_config("fedavg", "ist:hospitals", rounds=rounds, values=values), short, REAL + 1)
    shutil.copytree(short, long)
    sites, grown = extend(long, rounds - 1, random.Random(options.seed))
    there = log_files(long / AUDIT)
    size = sum(path.stat().st_size for path in there)
    print(f"{sites} sites, {rounds} rounds: {size / 1e6:.0f} MB in {len(there)} files, {grown / 1e3:.1f} kB a round")
    for name in COMMANDS:
        for folder in (long,) if options.toy else (short, long):
            subprocess.run([sys.executable, __file__, "--out", str(folder), "--do", name], check=True)


def go_on(config: RunConfig, folder: Path, until: int) -> None:
    """A run that dies in round ``until``."""
    try:
        run_local(config, folder, [Killer(until)])
    except Dies:
        return
    raise RuntimeError("expected a run that dies")


def extend(folder: Path, last: int, generator: random.Random) -> tuple[int, float]:
    """Write simulated rounds up to ``last`` and the checkpoint of that one; the sites, and bytes a round."""
    follower = Follower()
    log = AuditLog(folder / AUDIT, follower.saw)
    form, checkpoint = log.last, load_checkpoint(folder / CHECKPOINT)
    before = sum(path.stat().st_size for path in log_files(folder / AUDIT))
    kept, parted = [dict[str, Any]() for _ in range(DIFFERENT)], audit._parted
    for place, entry in enumerate(kept):
        entry |= {key: drawn(value, generator) for key, value in form.items() if key not in CHAIN}
        if place == 0:
            lost = generator.choice(sorted(entry["accepted"]))
            del entry["accepted"][lost]
            entry["rejected"] = {lost: {"code": "no_answer", "detail": "simulated"}}
    blocks = dict[int, tuple[dict[str, Any], bytes]]()

    def again(entry: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        place = entry["round"] % DIFFERENT
        line, packed = blocks.setdefault(place, ({}, b""))
        if not line:
            line, packed = blocks[place] = parted(entry)
        return {key: entry.get(key, value) for key, value in line.items()}, packed

    with mock.patch("os.fsync"), mock.patch.object(audit, "_parted", again):  # no power cut, and each block packed once
        for number in range(form["round"] + 1, last + 1):
            entry = {**kept[number % DIFFERENT], "round": number}
            entry["model_sha256"] = f"{generator.getrandbits(256):064x}"
            log.append("round", **entry | (left_behind(checkpoint) if number == last else {}))
    save_checkpoint(folder / CHECKPOINT, dataclasses.replace(checkpoint, round=last, entry=log.last["hash"]))
    grown = sum(path.stat().st_size for path in log_files(folder / AUDIT)) - before
    return len(form["declared"]), grown / (last - form["round"])


def drawn(value: Any, generator: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: drawn(one, generator) for key, one in value.items()}
    return generator.random() if isinstance(value, float) else value


def verify(folder: Path) -> None:
    """What ``fairflare verify`` checks."""
    from fairflare.privacy.log_verifier import check
    from fairflare.report.write import verified_run

    verified_run(folder)
    if problem := check(folder).problem:
        raise RuntimeError(problem)


def report(folder: Path) -> None:
    """``fairflare report``."""
    from fairflare.report.write import write_report

    write_report(folder)


def resume(folder: Path) -> None:
    """What ``fairflare resume`` checks, and one round more."""
    from fairflare.report.write import check_resumable

    check_resumable(folder)
    go_on(
        RunConfig.from_json(files.read_json(folder / files.CONFIG)),
        folder,
        load_checkpoint(folder / CHECKPOINT).round + 1,
    )


COMMANDS: dict[str, Callable[[Path], None]] = {"verify": verify, "report": report, "resume": resume}


def measured(command: Callable[[Path], None], folder: Path) -> None:
    """Run it and print seconds, and memory before and at its peak."""
    before, begun = psutil.Process().memory_info().rss, time.monotonic()
    command(folder)
    peak, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.monotonic() - begun
    print(
        f"{command.__name__} of {folder.name}: {seconds:.0f} s, {before / 1e6:.0f} MB at its start, "
        f"{(peak - before) / 1e6:+.0f} MB at its peak",
        flush=True,
    )


if __name__ == "__main__":
    main()
