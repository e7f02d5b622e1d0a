# SPDX-License-Identifier: Apache-2.0
"""The script of docs/client.md, tables for three sites, and a run of it without FLARE's processes."""

import queue
import re
import runpy
import sys
import threading
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "client.md"
SITES = ("north", "south", "west")


def script_text():
    """What the page prints."""
    return re.search(r"^```python\n# train.py\n(.*?)^```", PAGE.read_text(), re.S | re.M)[1]


def write_script(folder, text=None, name="train.py"):
    """A script in ``folder``, by default that of the page, and ``hospitals`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text or script_text())
    for k, site in enumerate(SITES):
        home = folder / "hospitals" / site
        home.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(k)
        for split, n in (("train", 40 + 20 * k), ("val", 20), ("test", 30)):
            x = draw.normal(size=(n, 4))
            y = x[:, 0] + x[:, 1] + draw.normal(0, 0.2 + 0.4 * k, n) > 0
            np.savetxt(home / f"{split}.csv", np.c_[x, y], delimiter=",", fmt="%.5f")
    return folder / name, folder / "hospitals"


class FakeFlare:
    """FLARE's Client API as a script sees it: tasks come in, models go out, one at a time."""

    def __init__(self):
        self.tasks, self.results, self._task = queue.Queue(), queue.Queue(), None

    def init(self):
        pass

    def is_running(self):
        self._task = self._task or self.tasks.get(timeout=60)
        return self._task != "end"

    def get_task_name(self):
        return self._task[0]

    def receive(self):
        return self._task[1]

    def send(self, model):
        self._task = None
        self.results.put(model)


class ScriptThread:
    """A script in a thread of its own, asked as FLARE's executor asks it."""

    def __init__(self, path):
        self.flare, self.error = FakeFlare(), None
        self._thread = threading.Thread(target=self._run, args=(path,), daemon=True)

    def _run(self, path):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except BaseException as error:
            self.error = error
            self.flare.results.put(None)

    def ask(self, task, model):
        if not self._thread.ident:
            self._thread.start()
        self.flare.tasks.put((task, model))
        found = self.flare.results.get(timeout=60)
        if found is None:
            raise self.error
        return found

    def end(self):
        if self._thread.ident:
            self.flare.tasks.put("end")
            self._thread.join(60)


def forget_script(name="train"):
    """Another test's script of the same name is another one."""
    sys.modules.pop(name, None)
