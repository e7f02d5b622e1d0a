# SPDX-License-Identifier: Apache-2.0
"""A POC of four sites over mTLS: three ways to submit, the bits of the in-process run, and nothing left running."""

import csv
import re
import socket

import numpy as np
import psutil
import pytest
from federation_processes import Federation, check_run, here, in_process, until

from cases import each
from external_data import OWN, cells, evaluation, numbers_of, recomputed, same_figures, write_hospital
from fairflare.cli.main import main
from own_folder import write_tables

pytestmark = pytest.mark.deploy
ADMIN, LEAD = "admin@hub.org", "lead@hub.org"
SITES = [f"site-{k}" for k in range(1, 5)]
BRAIN = ["--task", "brain-seg:small", "--sites", "3", "--rounds", "2"]
BRAIN += ["--set", "images=90", "--set", "size=32", "--set", "site_test_images=0"]
TABLE = ["--task", "support2", "--rounds", "2"]
TWO = ["--task", "support2:dirichlet", "--sites", "2"]
"""For jobs of which some of the POC's sites are enough: each has a process for every site."""


def test_listens_on_this_machine_only(poc):
    family = poc.running()
    assert len(family) >= 10, "a server and four sites, each with its daemon"
    addresses = [c for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip.removeprefix("::ffff:") for c in addresses} == {"127.0.0.1"}
    assert poc.port in {c.laddr.port for c in addresses}
    shown = poc.sh("check").stdout
    assert all(site in shown for site in SITES)


def test_fedism_plus_with_one_command(poc, tmp_path):
    expected = in_process(tmp_path / "local", "fedism-plus", *TABLE)
    done = poc.fairflare("run", "fedism-plus", *TABLE, "--env", "poc", "--out", tmp_path / "run")
    assert f"submitted by {ADMIN}" in done.stderr and "FINISHED:COMPLETED" in done.stderr
    assert re.search(r"job \S+: (start|\w+, round \d of \d)\n", done.stderr), "how far the job is"
    assert "report:" in done.stdout and "Connecting" not in done.stdout
    entries = check_run(tmp_path / "run", expected)
    assert entries[0]["sites"] == SITES and entries[0]["method"] == "fedism-plus"
    again = poc.fairflare("run", "fedism-plus", *TABLE, "--env", "poc", "--out", tmp_path / "run", check=False)
    assert again.returncode == 2 and "exists" in again.stderr, "no job is submitted for a folder that cannot be used"


def test_fedlwr_with_flares_own_command(poc, tmp_path):
    expected = in_process(tmp_path / "local", "fedlwr", *BRAIN)
    here("export", "fedlwr", *BRAIN, "--out", tmp_path / "job")
    job = poc.nvflare("job", "submit", "-j", tmp_path / "job", kit=LEAD)["data"]["job_id"]
    run, meta = poc.finish(job, LEAD)
    assert meta["status"] == "FINISHED:COMPLETED"
    check_run(run, expected)


def test_fedufo_through_the_console_from_given_weights(poc, tmp_path):
    plain = in_process(tmp_path / "first", "fedavg", *TWO, "--rounds", "2")
    table = [*TWO, "--rounds", "2", "--set", "level=multi", "--init-from", tmp_path / "first"]
    expected = in_process(tmp_path / "local", "fedufo", *table)
    assert check_run(tmp_path / "local", expected)[0]["model_sha256"] == plain
    here("export", "fedufo", *table, "--out", poc.kits / LEAD / "transfer" / "fedufo")
    told = poc.console(LEAD, "submit_job fedufo", "list_jobs")
    job = re.search(r"Submitted job: (\S+)", told)
    assert job and "fedufo_support2" in told, told
    run, _ = poc.finish(job[1], LEAD)
    check_run(run, expected)


def test_a_head_on_a_body_that_the_job_brings_with_updates_of_16_bits(poc, tmp_path):
    in_process(tmp_path / "body", "fedavg", *TWO, "--rounds", "1", "--set", "model=mlp")
    own = [*TWO, "--rounds", "2", "--set", "model=mlp", "--init-from", tmp_path / "body", "--tune", "head"]
    own += ["--set", "exchange=bfloat16"]
    expected = in_process(tmp_path / "local", "fedheal", *own)
    poc.fairflare("run", "fedheal", *own, "--env", "poc", "--kit", poc.kits / LEAD, "--out", tmp_path / "run")
    check_run(tmp_path / "run", expected)


def test_a_model_is_evaluated_at_sites_that_never_trained(poc, tmp_path):
    """Two of the POC's sites have labelled tables of their own, one of them with a larger minimum."""
    in_process(tmp_path / "run", "fedavg", "--datalists", write_tables(tmp_path / "trained"), *OWN, "--rounds", "2")
    least = {"site-1": 10, "site-3": 120}
    tables = {site: write_hospital(tmp_path / "new" / f"{site}.csv", seed=k) for k, site in enumerate(least)}
    configured = [poc.kits / site / "local" / "fairflare_site.yaml" for site in tables]
    try:
        for path, (site, table) in zip(configured, tables.items(), strict=True):
            path.write_text(f"data_root: {table.parent}\ndatalist: {table.name}\nmin_count: {least[site]}\n")
        where = ["--env", "poc", "--kit", poc.kits / LEAD, "--sites", ",".join(tables)]
        poc.fairflare("evaluate", tmp_path / "run", *where, "--out", tmp_path / "far")
    finally:
        for path in configured:
            path.unlink(missing_ok=True)
    found = evaluation(tmp_path / "far")
    assert list(found["sites"]) == list(tables) and not found["rejected"]
    for site, table in tables.items():
        here("predict", tmp_path / "run", table, "--out", tmp_path / f"p-{site}")
        with (tmp_path / f"p-{site}" / "predictions.csv").open(newline="") as file:
            p = np.array([float(row["p_died"]) for row in csv.DictReader(file)])
        y = np.array([row["outcome"] == "died" for row in cells(table)]).astype(int)
        sex, one = np.array([row["sex"] for row in cells(table)]), found["sites"][site]
        if site == "site-1":
            assert same_figures(one, recomputed(y, p, sex))
            assert one["metrics"]["auc_ovo"]["low"] < one["metrics"]["auc_ovo"]["value"]
        else:
            assert one["metrics"]["auc_ovo"]["value"] == pytest.approx(recomputed(y, p)["auc_ovo"])
            assert one["metrics"]["auc_ovo"]["low"] is None and one["calibration"]["slope"]["value"] is None
        assert all(n >= least[site] for name in ("n", "positives", "flagged") for n in numbers_of(one, name))
    here("verify", tmp_path / "far")
    names = ("evaluation.json", "evaluation.html", "audit.jsonl")
    text = "".join((tmp_path / "far" / name).read_text() for name in names)
    assert "PAT-" not in text and str(tmp_path) not in text


def test_the_wait_ends_and_the_job_goes_on(poc, tmp_path):
    run = ["run", "fedavg", *TWO, "--rounds", "500", "--env", "poc", "--kit", poc.kits / LEAD]
    done = poc.fairflare(*run, "--wait", "4", "--out", tmp_path / "run", check=False)
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    last = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(r"fairflare: job \S+: not over in time, but (RUNNING|SUBMITTED|DISPATCHED).*", last), (
        done.stderr
    )
    job = re.search(r"nvflare job abort (\S+)", done.stderr)[1]
    assert poc.meta(job, LEAD)["status"] in ("RUNNING", "SUBMITTED", "DISPATCHED")
    poc.nvflare("job", "abort", job, "--force", kit=LEAD)
    poc.nvflare("job", "wait", job, "--timeout", "60", kit=LEAD, check=False)
    assert poc.meta(job, LEAD)["status"].startswith("FINISHED")


def test_a_killed_servers_run_is_continued_by_a_new_job(poc, tmp_path):
    run = ["fedavg", *TWO, "--rounds", "6"]
    expected = in_process(tmp_path / "local", *run)
    where = ["--env", "poc", "--kit", poc.kits / LEAD, "--out", tmp_path / "run"]
    before = set(poc.kits.glob("localhost/fairflare_state/*"))
    with poc.start_fairflare("run", *run, *where) as submitter:
        state = until(lambda: [f for f in set(poc.kits.glob("localhost/fairflare_state/*")) - before if rounds(f)])
        for process in poc.running():
            if any("nvflare.private.fed.app.server" in word for word in process.cmdline()):
                process.kill()
        said = submitter.communicate(timeout=180)[1]
    assert submitter.returncode == 1 and not (tmp_path / "run").exists()
    assert f"the server has started anew and lost it; the same run with --set federation={state[0].name}" in said, said
    until(lambda: poc.connected(LEAD) == SITES)
    poc.fairflare("run", *run, *where, "--set", f"federation={state[0].name}")
    entries = check_run(tmp_path / "run", expected)
    assert [e["event"] for e in entries].count("resume") == 1 and entries[0]["event"] == "start"


def rounds(state):
    log = state / "audit.jsonl"
    return log.is_file() and '"event": "round"' in log.read_text()


def test_sites_that_are_not_connected_are_one_line(poc, tmp_path):
    other = ["--env", "poc", "--set", "clients=a,b,c,d", "--out", tmp_path / "run"]
    done = poc.fairflare("run", "fedavg", *TABLE, *other, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "connected are site-1, site-2, site-3, site-4" in done.stderr and not list(tmp_path.iterdir())


MISTAKES = [
    (["--env", "prod"], "--kit: expected the startup kit"),
    (["--env", "prod", "--kit", "nowhere"], "--kit nowhere: expected a user's startup kit"),
    (["--env", "sim", "--kit", "nowhere"], "--kit: expected --env poc or --env prod, got --env sim"),
]


@each("options, text", MISTAKES)
def test_mistakes_are_one_line(options, text, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", *TABLE, *options, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and text in said and said.count("\n") == 1, said
    assert not list(tmp_path.iterdir())


def test_a_busy_port_is_one_line(tmp_path):
    other = Federation("poc.sh", tmp_path / "other")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", other.port))
        busy.listen()
        done = other.sh("prepare", check=False)
    assert done.returncode and done.stderr.count("\n") == 1
    assert f"port {other.port} of 127.0.0.1 cannot be used" in done.stderr and "--port" in done.stderr
