# SPDX-License-Identifier: Apache-2.0
"""``fairflare run --continue``: the next segment of a run's federation, in its log, its report and its pages."""

import json
import shutil

import pytest

from command_line import code_of as call
from fairflare.engine import loop
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.privacy import log_verifier
from fairflare.report.write import verify_run
from own_folder import write_tables

SETTINGS = ("label=outcome", "features=age,score", "attribute_values=sex=f|m", "group_by=label+sex", "horizon=4")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """How a run of hospitals a and b, of four that have a table in one folder, begins."""
    tables = write_tables(tmp_path_factory.mktemp("own") / "tables", ["a", "b", "c", "d"])
    options = ["--data", tables, "--kind", "tabular", "--classes", "lived,died", "--workers", "1", "--no-solo"]
    return [*options, *(part for pair in SETTINGS for part in ("--set", pair))]


@pytest.fixture(scope="module")
def run(own, tmp_path_factory):
    """Rounds 1 and 2 of a and b, 3 and 4 of b, c and d; beside it the first segment alone."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert call("run", "fedism-plus", *own, "--without", "c", "--without", "d", "--rounds", "2", "--out", folder) == 0
    assert call("run", "--continue", folder, "--data", own[1], "--without", "a", "--rounds", "4") == 0
    return folder


def test_members_and_rounds_change(run):
    entries = verify_run(run)
    start, segment = (next(e for e in entries if e["event"] == event) for event in ("start", "segment"))
    assert (start["sites"], segment["sites"]) == (["a", "b"], ["b", "c", "d"])
    assert (start["rounds"], segment["rounds"], segment["from_round"]) == (2, 4, 2)
    assert start["config_sha256"] != segment["config_sha256"] and start["lineage"] == segment["lineage"]
    rounds = {e["round"]: sorted(e["accepted"]) for e in entries if e["event"] == "round"}
    assert rounds == {1: ["a", "b"], 2: ["a", "b"], 3: ["b", "c", "d"], 4: ["b", "c", "d"]}
    assert json.loads((run / "config.json").read_text())["options"]["site_names"] == "b,c,d"
    assert not log_verifier.check(run).problem
    assert "segment after round 2, to round 4: b, c, d" in (run / "log.txt").read_text()


def test_report_and_page_show_the_segments(run):
    report = json.loads((run / "report.json").read_text())
    first, last = report["detail"]["segments"]
    assert (first["sites"], last["sites"], last["came"], last["left"]) == (
        ["a", "b"],
        ["b", "c", "d"],
        ["c", "d"],
        ["a"],
    )
    assert report["status"] == "completed" and report["rounds"] == 4
    page = (run / "report.html").read_text()
    assert "The last of 2 segments began after round 2: c and d came and a left." in page
    assert "A segment is one job of the federation" in page
    assert page.count("not evaluated</td>") == 1, "a has left: none says that it has too few patients"


def test_another_segment_may_be_cut_short_anywhere(run, own, tmp_path, monkeypatch):
    """Killed between its configuration and its line, then in a round: ``resume`` goes on to the same model."""
    entries = verify(run / "audit.jsonl")
    folder = tmp_path / "run"
    assert call("run", "fedism-plus", *own, "--without", "c", "--without", "d", "--rounds", "2", "--out", folder) == 0
    log = loop.Federation._log

    def dies(at):
        def logs(self, event, **content):
            if (event, content.get("round")) == at:
                raise KeyboardInterrupt
            return log(self, event, **content)

        return logs

    changes = ["--data", own[1], "--without", "a", "--rounds", "4"]
    for at, command in (
        (("segment", None), ["run", "--continue", folder, *changes]),
        (("round", 4), ["resume", folder]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(loop.Federation, "_log", dies(at))
            assert call(*command) != 0
    assert call("resume", folder) == 0
    found = verify_run(folder)
    assert [e["event"] for e in found if e["event"] in ("start", "segment", "resume")] == ["start", "segment", "resume"]
    last, expected = ([e for e in log if e["event"] == "finish"][-1] for log in (found, entries))
    assert last["model_sha256"] == expected["model_sha256"]


def test_nothing_new_is_no_segment(run, capsys):
    assert call("run", "--continue", run) == 2
    assert "the run is complete, there is nothing to resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (["--set", "lr=0.5"], "setting that a segment may change"),
        (["--rounds", "1"], "rounds: expected at least 4, which are finished, got 1"),
        (["--task", "heart"], "goes on with its own task"),
        (["--seed", "1"], "goes on with the run's own seed"),
        (["--without", "nobody"], "--without"),
        (["--set", "min_sites=9"], "min_sites"),
        (["--rounds", "6", "--require", "4"], "require: expected at most the 3 sites that the run names, got 4"),
        (["--out", "elsewhere"], "the run's folder goes on"),
        (["--rounds", "6", "--env", "sim"], "goes on where it ran, in env local, got sim"),
        (["--rounds", "6", "--env", "poc"], "goes on where it ran, in env local, got poc"),
        (["--rounds", "6", "--solo"], "goes on with the run's own solo"),
    ],
    ids=["lr", "rounds", "task", "seed", "site", "min_sites", "require", "out", "sim", "poc", "solo"],
)
def test_what_a_segment_cannot_be(run, words, said, capsys):
    before = [(run / name).read_bytes() for name in ("audit.jsonl", "config.json")]
    assert call("run", "--continue", run, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert [(run / name).read_bytes() for name in ("audit.jsonl", "config.json")] == before


def test_a_method_is_not_given_twice_nor_left_out(run, capsys):
    assert call("run", "fedavg", "--continue", run) == 2
    assert "goes on with the run's own method" in capsys.readouterr().err
    assert call("run", "--task", "heart") == 2
    assert "METHOD" in capsys.readouterr().err


def test_a_job_of_the_next_segment(run, tmp_path):
    words = ("export", "--continue", run, "--rounds", "6", "--out", tmp_path / "job")
    assert call(*words) == 2 and not (tmp_path / "job").exists(), "a job that names no federation begins a new one"
    assert call(*words, "--set", "federation=1234") == 0
    (config,) = (tmp_path / "job").rglob("config_fed_server.json")
    (carried,) = (one["args"]["config"] for one in json.loads(config.read_text())["workflows"])
    assert carried["training"]["rounds"] == 6 and carried["options"]["site_names"] == "b,c,d"


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_site_is_not_forgotten_from_several_segments(site, run, capsys):
    """Nor does the page advise it."""
    assert call("forget", run, "--site", site, "--yes") == 2
    assert "has several segments" in capsys.readouterr().err
    assert "fairflare forget" not in (run / "report.html").read_text()


def test_who_trained_in_an_earlier_segment_is_no_external_hospital(run, own, tmp_path, capsys):
    """By name, by its list's content, by its rows, and in a job; the exported model's card counts it."""
    table = own[1] / "a.csv"
    for path in (table, shutil.copy(table, tmp_path / "x.csv")):
        assert call("evaluate", run, path, "--out", tmp_path / "refused") == 2
        assert "took part in the run's training as 'a'" in capsys.readouterr().err
    assert call("evaluate", run, "--sites", "a", "--export", tmp_path / "job") == 2
    assert "--sites: a took part in the run's training" in capsys.readouterr().err
    head, *rows = table.read_text().splitlines()
    (tmp_path / "sorted.csv").write_text("\n".join([head, *sorted(rows)]) + "\n")
    assert call("evaluate", run, tmp_path / "sorted.csv", "--out", tmp_path / "evaluated") == 0
    assert "rows trained the model, at a: this is no" in " ".join("".join(capsys.readouterr()).split())
    assert call("export-model", run, "--format", "state-dict", "--out", tmp_path / "model") == 0
    assert "Trained: 4 rounds over 4 sites" in (tmp_path / "model" / "README.md").read_text()


def test_the_risk_names_who_trained_and_is_not_asked(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    assert call("risk", folder, "--shadows", "0") == 0
    risk = json.loads((folder / "report.json").read_text())["detail"]["risk"]
    assert risk["rejected"]["a"]["code"] == "absent" and [row["site"] for row in risk["sites"]] == ["b", "c", "d"]


def test_an_absence_is_on_the_first_screen_and_on_a_hospitals_page(own, tmp_path, monkeypatch, capsys):
    sites = InProcess.sites
    monkeypatch.setattr(InProcess, "sites", lambda self: [site for site in sites(self) if site != "c"])
    folder = tmp_path / "run"
    asked = ["run", "fedavg", *own, "--without", "d", "--rounds", "1", "--out", folder]
    assert call(*asked, "--require", "all") == 1
    assert "2 sites are there, 3 required; missing: c" in capsys.readouterr().err
    assert call(*asked, "--require", "2", "--force") == 0
    assert verify_run(folder)[0]["rejected"]["c"]["code"] == "absent"
    assert (
        "c is named and was not connected at the start: the next segment takes it up"
        in (folder / "log.txt").read_text()
    )
    page = (folder / "report.html").read_text()
    assert "c was named and not connected when the run began." in page[: page.index("What happened in the rounds")]
    assert call("report", folder, "--site", "a", "--site", "c") == 0
    own_page, others = ((folder / "editions" / f"{site}.html").read_text() for site in ("c", "a"))
    assert "1 of 3 named hospitals were not connected at the start, c among them." in own_page
    assert "1 of 3 named hospitals were not connected at the start." in others
