# SPDX-License-Identifier: Apache-2.0
"""`fairflare watch`: what it shows of an audit log."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner
from rich.console import Console

from cases import each
from fairflare.cli.console import MOST_SITES, Watched, headlines, picture, watch
from fairflare.cli.main import cli
from fairflare.core.errors import UserError
from fairflare.engine.files import save_json
from fairflare.studies.folders import opened

BEGUN = datetime.now(timezone.utc) - timedelta(seconds=60)


def _entry(event: str, seconds: float, **content):
    return {"event": event, "time": (BEGUN + timedelta(seconds=seconds)).isoformat(), **content}


def _start(sites):
    return _entry("start", 0, method="fedavg", task="heart:full", seed=1, rounds=6, sites=list(sites))


def _round(number: int, scores: dict[str, float], rejected: tuple[str, ...] = ()):
    accepted = {site: {"metrics": {"auc": value}} for site, value in scores.items()}
    refused = {site: {"code": "no_answer", "detail": ""} for site in rejected}
    weights = dict.fromkeys(scores, 1 / len(scores))
    return _entry("round", 10 * number, round=number, rounds=6, accepted=accepted, rejected=refused, weights=weights)


def _watched(*entries) -> Watched:
    watched = Watched("auc")
    for entry in entries:
        watched.saw(entry)
    return watched


def _text(watched: Watched, tmp_path) -> str:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(picture(watched, tmp_path))
    return shown.get()


def test_scores_weights_and_who_is_away(tmp_path):
    watched = _watched(
        _start("abc"),
        _round(1, {"a": 0.5, "b": 0.6, "c": 0.7}),
        _round(2, {"a": 0.6, "b": 0.7}, ("c",)),
        _round(3, {"a": 0.7}, ("c",)),
    )
    assert watched.scores("c") == [0.7, None, None] and watched.weights("a") == [1 / 3, 1 / 2, 1]
    assert [watched.state(site) for site in "abc"] == ["in", "not asked", "away for 2 rounds: no_answer"]
    text = _text(watched, tmp_path)
    assert "round 3 of 6, validation AUC 0.700, worst 0.700 (a)" in text and "about 30 s left" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_resumed_run_forgets_the_rounds_that_are_done_again(tmp_path):
    watched = _watched(_start("a"), _round(1, {"a": 0.5}), _round(2, {"a": 0.6}), _entry("resume", 40, from_round=1))
    assert watched.scores("a") == [0.5] and "left" not in headlines(watched, tmp_path)[-1]
    watched.saw(_entry("finish", 50, status="failed", reason="too few sites"))
    assert headlines(watched, tmp_path)[-1] == "failed: too few sites"


def test_of_many_sites_those_in_need_are_listed(tmp_path):
    sites = [f"site-{k}" for k in range(466)]
    scores = {site: k / 466 for k, site in enumerate(sites[:-1])}
    text = _text(_watched(_start(sites), _round(1, scores, (sites[-1],))), tmp_path)
    assert "site-0 " in text and "site-465" in text and "site-300" not in text
    assert f"and {466 - MOST_SITES} more sites" in text


def test_the_command_prints_once_where_output_is_redirected(tmp_path):
    log = [_start("ab"), _round(1, {"a": 0.5, "b": 0.25}), _entry("finish", 12, status="completed", reason="")]
    (tmp_path / "audit.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    result = CliRunner().invoke(cli, ["watch", str(tmp_path)])
    assert result.exit_code == 0 and "completed" in result.output and "fedavg on heart:full" in result.output


def test_a_folder_without_a_run_is_refused(tmp_path):
    result = CliRunner().invoke(cli, ["watch", str(tmp_path)], standalone_mode=False)
    assert "expected the folder of a run" in str(result.exception)


@each(
    "line",
    [
        "[1]",
        "[" * 100_000,
        '{"event": "round"}',
        '{"event": "round", "time": "yesterday"}',
        json.dumps(_round(1, {"A": 0.5}) | {"accepted": []}),
        json.dumps(_round(1, {"A": 0.5}) | {"weights": {"A": "x"}}),
        json.dumps(_start(["A"]) | {"sites": 3}),
    ],
)
def test_a_log_that_is_none_is_said_in_one_line(line, tmp_path):
    (tmp_path / "audit.jsonl").write_text(f"{json.dumps(_start(['A']))}\n{line}\n")
    with pytest.raises(UserError, match="audit.jsonl: expected a run's log"):
        watch(tmp_path)


def test_a_run_that_nobody_makes_any_more_is_not_called_running(tmp_path):
    """After Ctrl-C or a kill; of one over FLARE the folder does not know."""
    watched = _watched(_start(["a"]), _round(1, {"a": 0.5}))
    assert "running" in _text(watched, tmp_path)
    save_json(tmp_path / "config.json", {"env": "local"})
    shown = "".join(_text(watched, tmp_path).split())
    assert "stopped" in shown and f"fairflareresume{tmp_path}" in shown
    with opened(tmp_path):
        assert "running" in _text(watched, tmp_path)
