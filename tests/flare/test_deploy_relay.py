# SPDX-License-Identifier: Apache-2.0
"""Two of three hospitals behind a FLARE relay, over mTLS: it passes messages on, and the model has the same bits."""

from pathlib import Path

import psutil
import pytest
from federation_processes import federation, until, without

from fairflare.engine.setup import tasks
from fairflare.report.write import verify_run

pytestmark = pytest.mark.deploy
LEAD = "lead@clinic-a.org"
HOSPITALS = ["hospital-a", "hospital-b", "hospital-c"]
RUN = ["fedism-plus", "--task", "support2:dirichlet", "--sites", "3", "--set", f"clients={','.join(HOSPITALS)}"]
RUN += ["--rounds", "3", "--solo"]


@pytest.fixture(scope="module")
def region(tmp_path_factory):
    with federation("relay.sh", tmp_path_factory.mktemp("relay") / "hub") as made:
        yield made


def connected_to(made, name):
    """Ports of this machine that the processes of a kit's owner have connected to."""
    own = made.running_for(name).values()
    return {c.raddr.port for p in own for c in p.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED}


def test_hospitals_connect_to_the_relay_and_it_alone_to_the_hub(region):
    hub, relay = region.port, region.port + 1
    for name in ("hospital-a", "hospital-b"):
        assert relay in connected_to(region, name) and hub not in connected_to(region, name)
    assert hub in connected_to(region, "hospital-c") and relay not in connected_to(region, "hospital-c")
    assert hub in connected_to(region, "region")


def test_a_late_site_behind_the_relay_takes_part_in_the_next_round(region, tmp_path):
    """Hospital-a never ends its round 2, in the federation or alone: neither the others nor the question of what
    joining gives wait for it, and the model has the bits of a run without FLARE.
    """
    early = ["min_responses=2", "grace=15", "keep_optimizer=true"]
    common = [*RUN, *(word for one in early for word in ("--set", one))]
    victim = tasks.load("support2", "dirichlet", n_sites=3).site_data("site-1").size("train")
    slow = [word for one in ("trainer=slow", f"victim={victim}", "trainer.rounds=2") for word in ("--set", one)]
    region.cli["FAIRFLARE_PLUGINS"] = str(Path(__file__).with_name("slow_trainer.py"))
    where = ["--env", "prod", "--kit", region.kits / LEAD, "--out", tmp_path / "run"]
    region.fairflare("run", *common, *slow, *where)
    entries = verify_run(tmp_path / "run")
    rounds = [e for e in entries if e["event"] == "round"]
    codes = [{site: why["code"] for site, why in e["rejected"].items()} for e in rounds]
    assert codes == [{}, {"hospital-a": "late"}, {}]
    assert [sorted(e["accepted"]) for e in rounds] == [HOSPITALS, HOSPITALS[1:], HOSPITALS]
    missed, plain = {"hospital-a": [2]}, ["--set", "trainer=sgd"]
    assert entries[-1]["model_sha256"] == without(tmp_path / "local", missed, *common, *plain)
    (given,) = (e for e in entries if e["event"] == "benefit")
    assert {site: why["code"] for site, why in given["rejected"].items()} == {"hospital-a": "late"}
    assert sorted(given["sites"]) == HOSPITALS[1:] and entries[-1]["status"] == "completed"
    logs = "".join(file.read_text() for file in (region.kits / "hospital-a").glob("*/log.txt"))
    assert "train: round 2 went on without this site" in logs


def relay(made):
    """Its process, not the daemon that starts it."""
    return next(process for role, process in made.running_for("region").items() if role != "daemon")


@pytest.mark.long
def test_a_killed_relay_comes_back_and_the_run_ends(region, tmp_path):
    """Kill -9 of the relay's process in a round: its daemon starts it anew, and no round waits longer than its end."""
    before, folder = region.states(), tmp_path / "run"
    run = [*RUN, "--rounds", "12", "--set", "task_timeout=40", "--set", "min_sites=1"]
    with region.start_fairflare("run", *run, "--env", "prod", "--kit", region.kits / LEAD, "--out", folder) as child:
        (state,) = until(lambda: region.states() - before)
        log = state / "audit.jsonl"
        until(lambda: log.is_file() and log.read_text().count('"event": "round"') >= 2)
        old = relay(region)
        old.kill()
        said = child.communicate(timeout=280)[1]
        code = child.returncode
    assert relay(region).pid != old.pid
    entries = verify_run(folder)
    rounds = [e for e in entries if e["event"] == "round"]
    print(code, said[-600:], [{s: w["code"] for s, w in e["rejected"].items()} for e in rounds], entries[-1])
    assert code == 0 and entries[-1]["status"] == "completed" and len(rounds) == 12, said
