# SPDX-License-Identifier: Apache-2.0
"""A machine's clock that is set back and forth by a day during a run: only the times in the log differ."""

import itertools
import time
from datetime import datetime, timedelta

import pytest

from fairflare.cli.main import main
from fairflare.engine import audit
from fairflare.report.write import verify_run

RUN = ["run", "fedce", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "3", "--no-solo", "--workers", "1"]


def finished(folder):
    with pytest.raises(SystemExit) as stop:
        main([*RUN, "--out", str(folder)])
    assert stop.value.code == 0
    return verify_run(folder)


def test_a_clock_that_jumps_changes_nothing_but_the_times_in_the_log(tmp_path, monkeypatch):
    whole, clock = finished(tmp_path / "whole"), time.time
    days = itertools.cycle([0, -1, 2, 1, -3])

    class Jumping(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=next(days))

    monkeypatch.setattr(time, "time", lambda: clock() + 86_400 * next(days))
    monkeypatch.setattr(audit, "datetime", Jumping)
    entries = finished(tmp_path / "run")
    times = [entry["time"] for entry in entries]
    assert times != sorted(times), "the clock did jump"
    assert [entry["event"] for entry in entries] == [entry["event"] for entry in whole]
    assert entries[-1]["model_sha256"] == whole[-1]["model_sha256"]
    seconds = [value for entry in entries if entry["event"] == "round" for value in entry["seconds"].values()]
    assert all(0 <= value < 3600 for value in seconds)
