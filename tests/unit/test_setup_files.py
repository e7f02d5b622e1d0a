# SPDX-License-Identifier: Apache-2.0
"""How many files a reader passes from the command `run` to its first round: measured on a run, with a profiler."""

import collections
import inspect
import sys
from pathlib import Path

import pytest

import fairflare
from fairflare.cli import main as cli
from fairflare.cli.run import run
from fairflare.core.errors import UserError
from fairflare.engine.loop import Federation

PACKAGE = f"{Path(fairflare.__file__).parent}/"
MOST = 23
"""Files of the package that set-up may lead through."""
NO_SETUP = {
    "datasets/": "the data set",
    "data/": "what a hospital brings: its readers, columns and checks",
    "tasks/": "the task, which answers what it is asked",
    "networks/": "the network",
    "engine/": "the round's own loop and what it is made of",
    "cli/console.py": "terminal display",
    "report/": "display and log",
}
"""Files whose functions run before the first round without being set-up, and what they are."""
SETUP = "engine/setup/"
FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
IMPORTING = "find_spec"
"""Python calls the finders of plugins and of users' code at every import: no function of ours leads there."""


class Trail:
    """As a profiler: file -> the files of the package that its functions call into.

    Of a module only what its functions do counts, not what is declared while it is imported. A generator belongs to the
    function that has written it, whoever takes its values.
    """

    def __init__(self):
        self.calls = collections.defaultdict(set)
        self.importing = 0

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == "<module>":
            self.importing += 1 if event == "call" else -1
        elif event == "call" and not self.importing and code.co_flags & FUNCTION == FUNCTION:
            self.saw(frame)

    def saw(self, frame):
        """Note a function and its caller in the package, over whatever lies between, but for this test."""
        if frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_code.co_name == IMPORTING:
            return
        here, caller = file_of(frame), frame.f_back
        self.calls[here]  # noqa: B018  (it is a file that was seen, whatever it calls)
        while caller.f_code.co_filename != __file__ and file_of(caller) is None:
            caller = caller.f_back
        if file_of(caller) not in (here, None):
            self.calls[file_of(caller)].add(here)


def file_of(frame):
    name = frame.f_code.co_filename
    return name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else None


def is_setup(file):
    return file.startswith(SETUP) or not file.startswith(tuple(NO_SETUP))


def trail_of_a_run(monkeypatch, out):
    """What runs between the entry of the command and that of the federation's loop, which ends the run here."""
    trail, command = Trail(), run.callback

    def entered(*args, **values):
        sys.setprofile(trail)
        return command(*args, **values)

    def round_1(federation, model):
        sys.setprofile(before)
        raise UserError("set-up is over")

    monkeypatch.setattr(run, "callback", entered)
    monkeypatch.setattr(Federation, "run", round_1)
    before = sys.getprofile()
    try:
        given = ["fedavg", "--task", "support2", "--rounds", "2", "--no-solo", "--workers", "1", "--out", str(out)]
        with pytest.raises(SystemExit):
            cli.main(["run", *given])
    finally:
        sys.setprofile(before)
    return trail.calls


def test_setup_leads_through_few_files(tmp_path, monkeypatch, capsys):
    """A file is led through where it calls into another one: there a reader has to follow.

    A file that only answers, as a check or a value does, is read where it is called.
    """
    calls = trail_of_a_run(monkeypatch, tmp_path / "run")
    assert "set-up is over" in capsys.readouterr().err
    through = sorted(file for file, called in calls.items() if called and is_setup(file))
    assert {"studies/runs.py", f"{SETUP}config.py", f"{SETUP}assembly.py", f"{SETUP}local.py"} <= set(through)
    assert len(through) <= MOST, f"{len(through)} files: {', '.join(through)}"
