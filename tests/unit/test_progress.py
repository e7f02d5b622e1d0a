# SPDX-License-Identifier: Apache-2.0
"""The progress bar of a simulated run, which follows the audit log."""

import json

from fairflare.app.console import MOST_ERRORS, Progress
from fairflare.core.findings import Finding

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
