# SPDX-License-Identifier: Apache-2.0
"""Who waits hears soon what is going on, at a terminal and in a pipe, and how far it is."""

import io
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from PIL import Image

from fairflare.cli import preflight
from fairflare.studies import display, waiting
from fairflare.studies.display import Counter, Progress
from fairflare.studies.waiting import Waiting, started, starting
from fairflare.tasks import preflight as at_site


class Terminal(io.StringIO):
    """A stream that somebody sees as it is written."""

    def isatty(self):
        return True


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(waiting, "SOON", 0.01)
    monkeypatch.setattr(waiting, "LINES", (0.01,) * 3)
    monkeypatch.setattr(waiting, "RARELY", 0.01)
    monkeypatch.setattr(waiting, "REDRAWN", 0.01)


def spoken(stream, text, patience=30):
    """What a stream holds once ``text`` is in it."""
    until = time.monotonic() + patience
    while text not in stream.getvalue():
        assert time.monotonic() < until, stream.getvalue()
        time.sleep(0.01)
    return stream.getvalue()


def test_a_pipe_gets_lines_while_somebody_waits_and_none_afterwards(monkeypatch, soon):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    before = threading.active_count()
    with Waiting(lambda: "looking"):
        assert spoken(stream, "looking ...\nlooking ...\n")
    said = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == said and threading.active_count() <= before  # another test's may end meanwhile


def test_a_terminals_line_is_taken_off_again(monkeypatch, soon):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with Waiting(lambda: "looking"):
        assert "\n" not in spoken(stream, "looking ...")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_what_is_over_at_once_needs_no_words(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Waiting(lambda: "looking"), starting(["init", "folder"]):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "words, speaks",
    [
        (["init", "data"], True),
        (["preflight", "data"], True),
        (["run", "fedavg", "--data", "data"], True),
        (["run", "fedavg", "--data=data"], True),
        (["run", "fedavg", "--task", "heart"], False),
        (["list"], False),
        ([], False),
    ],
)
def test_in_a_pipe_commands_on_a_users_own_data_say_that_they_start(monkeypatch, soon, words, speaks):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with starting(words):
        if speaks:
            spoken(stream, "...\n")
        else:
            time.sleep(0.05)
    assert bool(stream.getvalue()) == speaks


def test_nothing_speaks_and_no_thread_runs_once_a_command_has_started(monkeypatch, soon):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = threading.active_count()
    with starting(["run", "fedavg", "--data", "data"]):
        assert threading.active_count() == before + 1
        started()
        assert threading.active_count() == before


def test_the_first_words_wait_for_no_heavy_import(tmp_path):
    """Where anything of the data may take its time: the folder of ``init`` is not there, so that it ends soon."""
    code = f"""
    import sys
    from fairflare.studies import waiting
    waiting.SOON, said = 0.0, []
    heavy = ("torch", "pandas")
    waiting.Waiting._write = lambda self, text: said.append([name for name in heavy if name in sys.modules])
    from fairflare.cli.main import main
    for words in (["init", "--yes", {str(tmp_path / "none")!r}], ["run", "fedavg", "--data", {str(tmp_path)!r}]):
        try:
            main(words)
        except SystemExit:
            print(said[:1])
        said.clear()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "[[]]", done.stdout + done.stderr


def test_a_counter_says_in_a_pipe_how_far_it_is(monkeypatch, soon):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Counter("looking") as counter:
        spoken(stream, "looking ...\n")
        counter.saw("Mayo\x1b[2J", 300, 20_000)
        said = spoken(stream, "300 of 20000")
    assert "\x1b" not in said


def test_a_run_in_a_pipe_says_whose_data_it_reads_and_breaks_long_silences(monkeypatch, soon):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Progress("fedavg on heart", 3, 2) as shown:
        shown.preparing("VA")
        spoken(stream, "data of VA (1 of 2 sites)")
        shown.saw({"event": "start", "method": "fedavg", "task": "heart", "seed": 0, "sites": ["VA", "CH"]})
        spoken(stream, "fedavg on heart: round 1 of 3 ...")


def test_between_rounds_only_long_silences_are_broken(monkeypatch, soon):
    monkeypatch.setattr(waiting, "RARELY", 60.0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Progress("fedavg on heart", 3, 2) as shown:
        shown.saw({"event": "start", "method": "fedavg", "task": "heart", "seed": 0, "sites": ["VA", "CH"]})
        time.sleep(0.1)
    assert stream.getvalue().count("round 1 of 3 ...") <= 1  # whose time had begun before the start


@pytest.fixture
def folder(tmp_path):
    """Two hospitals with two classes of twelve images each."""
    rng = np.random.default_rng(0)
    for site in ("Mayo clinic", "UCL hospital"):
        for label in ("benign", "malignant"):
            (tmp_path / site / label).mkdir(parents=True)
            for k in range(12):
                picture = Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8))
                picture.save(tmp_path / site / label / f"{k}.png")
    return tmp_path


def test_init_and_preflight_count_what_they_have_read(folder, monkeypatch):
    from click.testing import CliRunner

    from fairflare.cli.main import cli

    seen: list[tuple] = []
    monkeypatch.setattr(display.Counter, "saw", lambda self, *told: seen.append(told))
    monkeypatch.setattr("fairflare.import_data.proposal.OFTEN", 1)
    assert CliRunner().invoke(cli, ["init", str(folder), "--yes"]).exit_code == 0
    assert seen[-1] == ("files", 47) and [done for _, done in seen] == list(range(48))
    seen.clear()
    monkeypatch.setattr(at_site, "OFTEN", 1)
    found = preflight.check(folder, preflight.Question(), lambda *told: seen.append(told))
    assert list(found) == ["Mayo clinic", "UCL hospital"]
    assert seen == [(site, done, 24) for site in found for done in range(1, 25)]
