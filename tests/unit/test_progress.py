# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself while it goes on, and how a display follows an audit log."""

import io
import json

import pytest
from rich.console import Console

from cases import each
from fairflare.core.findings import Finding
from fairflare.studies import display
from fairflare.studies.display import MOST_ERRORS, OneLine, Progress, duration, score_words

START = {"event": "start"}
ROUNDS = [{"event": "round", "round": number, "rounds": 3, "rejected": {}} for number in (1, 2, 3)]


def test_every_line_is_shown_once_and_a_half_one_when_it_is_whole(tmp_path):
    log, progress, seen = tmp_path / "audit.jsonl", Progress("run", 3, 2), []
    progress.saw = seen.append
    progress.follow(tmp_path)
    assert not seen
    half = json.dumps(ROUNDS[1])
    log.write_text(f"{json.dumps(START)}\n{json.dumps(ROUNDS[0])}\n{half[:20]}")
    progress.follow(tmp_path)
    progress.follow(tmp_path)
    assert seen == [START, ROUNDS[0]]
    with log.open("a") as file:
        file.write(f"{half[20:]}\n{json.dumps(ROUNDS[2])}\n")
    progress.follow(tmp_path)
    assert seen == [START, *ROUNDS]


def test_what_was_shown_is_not_read_again(tmp_path):
    """Whatever stands there by now; a last line that a kill tore may be written anew."""
    log, progress, seen = tmp_path / "audit.jsonl", Progress("run", 3, 2), []
    progress.saw = seen.append
    first = json.dumps(START) + "\n"
    log.write_text(first + '{"ev')
    progress.follow(tmp_path)
    log.write_text("x" * (len(first) - 1) + "\n" + json.dumps(ROUNDS[0]) + "\n")
    progress.follow(tmp_path)
    assert seen == [START, ROUNDS[0]]


def test_of_hundreds_of_errors_the_first_are_printed(capsys):
    progress = Progress("run", 3, 400)
    for k in range(400):
        progress.found(f"hospital-{k:03d}", Finding("error", "empty_split", "val", 0, "0 examples"))
        progress.found(f"hospital-{k:03d}", Finding("warning", "few_examples", "test", 1, "1 example"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_ERRORS + 1 and lines[0] == "hospital-000: error: val: 0 examples"
    assert lines[-1] == "further errors of preflight are in audit.jsonl"


def test_after_the_last_round_the_bar_says_that_own_models_are_trained():
    for solo, words in ((True, "each site's own model, final evaluation"), (False, "final evaluation")):
        progress = Progress("run", 3, 2, solo=solo)
        progress.reached(ROUNDS[-1], "")
        assert progress._bar.tasks[0].description == words


SITES = {
    "a": {"metrics": {"auc": 0.9, "loss": 0.2, "train_loss": 0.1}},
    "b": {"metrics": {"auc": 0.7, "loss": 0.6, "train_loss": 0.5}},
}


@each(
    "accepted, headline, words",
    [
        (SITES, "auc", "validation AUC 0.800, worst 0.700 (b)"),
        (SITES, "dice", "validation loss 0.400, worst 0.600 (b)"),
        (SITES, "accuracy", "validation AUC 0.800, worst 0.700 (b)"),
        (
            {"a": {"metrics": {"balanced_accuracy": 0.25}}},
            "balanced_accuracy",
            "validation balanced accuracy 0.250, worst 0.250 (a)",
        ),
        ({"a": {"metrics": {"train_loss": 0.5}}}, "auc", "training loss 0.500, worst 0.500 (a)"),
        ({"a": {"metrics": {"auc": float("nan")}}, "b": {}}, "auc", ""),
        ({}, "auc", ""),
    ],
)
def test_a_round_in_words(accepted, headline, words):
    assert score_words({"accepted": accepted}, headline) == words


def test_a_redirected_run_gets_a_line_for_each_round_with_the_time_left(capsys):
    with Progress("run", 3, 2, headline="auc") as progress:
        progress.saw({"event": "start", "method": "fedavg", "task": "heart", "seed": 0, "sites": ["a", "b"]})
        for entry in ROUNDS:
            progress.saw({**entry, "accepted": SITES})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "start: fedavg on heart, seed 0, 2 sites, 3 rounds"
    assert lines[1] == "round 1 of 3: 2 sites, validation AUC 0.800, worst 0.700 (b), about 1 s left"
    assert lines[3] == "round 3 of 3: 2 sites, validation AUC 0.800, worst 0.700 (b)"


@pytest.mark.parametrize("done, text", [(0, ""), (4, ""), (5, "about 50 s left"), (10, "")])
def test_the_time_left_is_known_after_one_step(done, text):
    class Bar:
        completed, total, elapsed, fields, description = done, 10, 10.0, {"begun": 4}, "run"

    assert OneLine(True).render(Bar()).plain.split("0:00:10")[1].strip() == text


@each("colour", [True, False])
@each("width", [40, 60, 80, 120])
def test_a_row_is_one_line_with_the_count_and_the_time_left(width, colour, monkeypatch):
    """At every width: no number is broken, and the bar is the first to go."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, no_color=not colour)
    monkeypatch.setattr(display, "err", screen)

    class Row:
        completed, total, elapsed = 12, 40, 120.0
        description = "FedISM+ on ich-phantom:small"
        fields = {"begun": 0, "state": "validation balanced accuracy 0.735, worst 0.530 (Hospital of Switzerland)"}

    shown = OneLine(True).render(Row()).plain
    assert len(shown) < width and "12/40" in shown and shown.endswith("about 5 min left") and "\n" not in shown
    assert ("0.735" in shown) == (width >= 80) and ("━" in shown) == (width > 150)
    bars = display._bar()
    bars.add_task(Row.description, total=40, completed=12, begun=0, state=Row.fields["state"])
    with screen.capture() as drawn:
        screen.print(bars.get_renderable())
    assert drawn.get().count("\n") == 1 and "12/40" in drawn.get()


def test_durations_are_short():
    assert [duration(s) for s in (0.2, 89, 100, 7200, 10_000)] == ["1 s", "89 s", "2 min", "2 h 0 min", "2 h 47 min"]


def test_a_terminal_gets_a_bar_at_every_moment_of_a_run(monkeypatch):
    """Rich forgets a task's fields when it is reset; what is drawn before the first round must not miss one."""
    screen = io.StringIO()
    monkeypatch.setattr(display, "err", Console(file=screen, force_terminal=True, width=80))
    accepted = {"a": {"metrics": {"dice": 0.5}}}
    with Progress("fedavg", 2, 1, headline="dice") as shown:
        shown._bar.refresh()
        shown.preparing("a")
        shown._bar.refresh()
        for entry in (
            {"event": "start", "sites": ["a"], "method": "fedavg", "task": "t", "seed": 0},
            {"event": "round", "round": 1, "rounds": 2, "accepted": accepted, "rejected": {}},
            {"event": "round", "round": 2, "rounds": 2, "accepted": accepted, "rejected": {}},
            {"event": "evaluation", "sites": {}},
        ):
            shown.saw(entry)
            shown._bar.refresh()
    assert "1/2" in screen.getvalue() and "scoring, writing the report" in screen.getvalue()
