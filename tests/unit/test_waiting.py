# SPDX-License-Identifier: Apache-2.0
"""Who waits hears soon what is going on, at a terminal and in a pipe, and how far it is."""

import numpy as np
import pytest
from PIL import Image

from fairflare.cli import main as cli
from fairflare.cli import preflight
from fairflare.studies import display
from fairflare.studies.display import Counter, Progress


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(display, "SILENCE", 0.0)


@pytest.mark.parametrize(
    "words, speaks",
    [
        (["init", "none"], True),
        (["data", "preflight", "none"], True),
        (["run", "fedavg", "--data=none"], True),
        (["run", "fedavg", "--task", "none"], False),
        (["init", "none", "--quiet"], False),
    ],
)
def test_commands_on_a_users_own_data_say_that_they_start(words, speaks, capsys, monkeypatch):
    said = []
    monkeypatch.setattr(cli, "at_terminal", lambda: True)
    monkeypatch.setattr(cli.cli, "main", lambda *given, **how: said.append(capsys.readouterr().err))
    with pytest.raises(SystemExit):
        cli.main(words)
    assert said == ["looking at the data ...\n" if speaks else ""], "before the command imports anything"


def test_a_counter_says_in_a_pipe_how_far_it_is(soon, capsys):
    with Counter("looking") as counter:
        counter.saw("Mayo\x1b[2J", 300, 20_000)
    said = capsys.readouterr().err
    assert "300 of 20000" in said and "\x1b[2J" not in said


def test_a_run_in_a_pipe_says_whose_data_it_reads(soon, capsys):
    with Progress("fedavg on heart", 3, 2) as shown:
        shown.preparing("VA")
    assert "data of VA (1 of 2 sites)" in capsys.readouterr().err


def test_a_pipe_gets_no_line_for_every_file(capsys):
    with Counter("looking") as counter:
        for k in range(1000):
            counter.saw("files", k, 1000)
    assert capsys.readouterr().err == ""


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
    monkeypatch.setattr("fairflare.tasks.preflight_files.OFTEN", 1)
    found = preflight.check(folder, preflight.Question(), lambda *told: seen.append(told))
    assert list(found) == ["Mayo clinic", "UCL hospital"]
    assert seen == [(site, done, 24) for site in found for done in range(1, 25)]
