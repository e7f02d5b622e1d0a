# SPDX-License-Identifier: Apache-2.0
"""How soon commands say something about very many images, and what they hold in memory.

    python benchmarks/many_images.py [--images 20000] [--others 600] [--edge 256] [--simulator]

``--toy`` runs the same code on few small images, as the tests do.

Three hospitals have pictures of two classes; one has ``--images`` of them, each of the others ``--others``. ``init``,
``preflight`` and one round of FedAvg run one after the other as processes of their own, at a terminal and with a pipe
for one. Printed are, for each: seconds until the first words are seen, the longest time without a sign of life (what
a terminal is sent, or a line in a pipe), the whole time, and the most memory that the command and all processes below
it held together, read five times a second (PSS: a page that several processes share counts once).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SOON = 2.0
"""Seconds within which something is to be seen."""
MOST = 4.0
"""GB that all processes of a command may hold together."""
EVERY = 0.2
"""Seconds between two looks at the memory."""
LONGEST = 3600
"""Seconds that a command may take."""
CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
WORDS = re.compile(rb"[A-Za-z]{3}")
INIT = ("init", "DIR", "--yes")
PREFLIGHT = ("preflight", "DIR")
RUN = ("run", "fedavg", "--data", "DIR", "--rounds", "1", "--no-solo", "--out", "OUT")


@dataclass
class Seen:
    """What somebody who waits for a command sees of it: seconds, and GB."""

    first: float
    silent: float
    whole: float
    memory: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, help="of the largest hospital")
    parser.add_argument("--others", type=int, default=600, help="of each of the two others")
    parser.add_argument("--edge", type=int, default=256, help="of the images, in pixels")
    parser.add_argument("--simulator", action="store_true", help="the run in FLARE's simulator, too")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.toy:
        options.images, options.others, options.edge = 48, 24, 32
    commands = {"init": INIT, **({} if options.toy else {"preflight": PREFLIGHT}), "run": RUN}
    if options.simulator:
        commands["run --env sim"] = (*RUN, "--env", "sim")
    sizes = {"Charite hospital": options.images, "Mayo clinic": options.others, "UCL hospital": options.others}
    print(f"{sum(sizes.values())} images of {options.edge} x {options.edge}, {options.images} of them at one site")
    with tempfile.TemporaryDirectory() as made:
        data = Path(made, "data")
        draw(data, sizes, options.edge)
        for at_terminal in (True,) if options.toy else (True, False):
            shutil.rmtree(data / "fairflare", ignore_errors=True)
            for name, words in commands.items():
                out = str(Path(made, f"run{at_terminal}{len(name)}"))
                given = [{"DIR": str(data), "OUT": out}.get(word, word) for word in words]
                show(f"{name}, {'terminal' if at_terminal else 'pipe'}", watched(given, at_terminal))
    print(f"goals: first words after at most {SOON} s, memory at most {MOST} GB")


def draw(folder: Path, sizes: dict[str, int], edge: int) -> None:
    """Write pictures of two classes, a brighter spot left or right on smooth noise, none like another."""
    rng = np.random.default_rng(0)
    for site, n in sizes.items():
        for label in ("benign", "malignant"):
            (folder / site / label).mkdir(parents=True)
        for number in range(n):
            coarse = rng.integers(60, 140, (8, 8), dtype=np.uint8)
            coarse[3:5, slice(5, 7) if number % 2 else slice(1, 3)] += 60
            picture = Image.fromarray(coarse).resize((edge, edge), Image.Resampling.BICUBIC)
            label = ("benign", "malignant")[number % 2]
            picture.save(folder / site / label / f"{number:06d}.jpg", quality=90)


def watched(words: list[str], at_terminal: bool) -> Seen:
    """Run ``fairflare`` with ``words`` and look at what it prints and holds; SystemExit where it fails."""
    reads, writes = pty.openpty() if at_terminal else os.pipe()
    if at_terminal:
        fcntl.ioctl(writes, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fairflare", *words], stdin=subprocess.DEVNULL, stdout=writes, stderr=writes
    )
    os.close(writes)
    memory = Memory(process.pid)
    printed, moments, first = bytearray(), [began], 0.0
    while (now := time.perf_counter()) < began + LONGEST:
        if not select.select([reads], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(reads, 65536)
        except OSError:  # how Linux says that nobody holds the terminal any more
            part = b""
        if not part:
            break
        printed += part
        now = time.perf_counter()
        moments.append(now)
        if not first and WORDS.search(CONTROLS.sub(b"", printed)):
            first = now - began
    os.close(reads)
    code = process.wait(timeout=60)
    ended = time.perf_counter()
    if code:
        sys.exit(f"fairflare {' '.join(words)} ended with {code}:\n{printed[-2000:].decode(errors='replace')}")
    silent = max(late - early for early, late in zip(moments, [*moments[1:], ended]))
    return Seen(first, silent, ended - began, memory.most())


class Memory:
    """The most bytes that a process and all below it have held since this was made."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most, self._ended = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def most(self) -> float:
        """In GB; ends the looking."""
        self._ended.set()
        self._thread.join()
        return self._most / 1e9

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            self._most = max(self._most, sum(map(held, below(self._pid))))


def below(pid: int) -> list[int]:
    """A process and all that come from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            children[parent].append(int(entry.name))
    found, rest = [], [pid]
    while rest:
        found.append(rest.pop())
        rest += children[found[-1]]
    return found


def held(pid: int) -> int:
    """Bytes of a process, a page that n processes share counting as 1/n of one; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def show(name: str, seen: Seen) -> None:
    """One line."""
    times = f"first words after {seen.first:.2f} s, silent for at most {seen.silent:.1f} s, {seen.whole:.1f} s in all"
    print(f"{name}: {times}; {seen.memory:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
