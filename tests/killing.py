# SPDX-License-Identifier: Apache-2.0
"""A process that is killed (SIGKILL) at a named point of round 2; a plugin, for the point that KILLING_POINT names."""

import os
import signal
from pathlib import Path

from fairflare.engine import combination, files
from fairflare.engine.loop import Federation
from fairflare.engine.site import Site
from fairflare.trainers.base import Trainer


def die(*args, **kwargs):
    """No clean-up, no farewell."""
    if marker := os.environ.get("KILLING_MARKER"):
        Path(marker).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def in_round_two(kind, name, act, after=False):
    """Have ``act`` take the place of a method or function the second time its round's arguments say round 2."""
    original = getattr(kind, name)

    def patched(first, *args, **kwargs):
        rounds = [getattr(a, "round", a) for a in (first, *args, *kwargs.values())]
        if any(getattr(r, "number", None) == 2 for r in rounds) and not after:
            act()
        result = original(first, *args, **kwargs)
        if any(getattr(r, "number", None) == 2 for r in rounds) and after:
            act()
        return result

    setattr(kind, name, patched)


def while_writing_state():
    """Half of the second checkpoint is on disk."""
    original, seen = files.write_atomically, []

    def patched(path, write):
        def half(file):
            write(file)
            file.truncate(file.tell() // 2)
            file.flush()
            die()

        seen.append(path.name)
        second = path.name == files.CHECKPOINT and seen.count(path.name) == 2
        return original(path, half if second else write)

    files.write_atomically = patched


def while_training():
    """In the middle of a site's second round, after a few steps."""
    original = Trainer.train

    def patched(self, work):
        if work.round.number == 2:
            step, count = type(self).step, iter(range(99))
            type(self).step = lambda me, *args: die() if next(count) == 1 else step(me, *args)
        return original(self, work)

    Trainer.train = patched


POINTS = {
    "training": while_training,
    "sending": lambda: in_round_two(Site, "finish", die, after=True),
    "between the exchanges": lambda: in_round_two(combination, "second_exchange", die),
    "writing state": while_writing_state,
    "between rounds": lambda: in_round_two(Federation, "_round", die),
}

if os.environ.get("KILLING_POINT") and not Path(os.environ["KILLING_MARKER"]).exists():
    POINTS[os.environ["KILLING_POINT"]]()
