# SPDX-License-Identifier: Apache-2.0
"""Two of three hospitals behind a FLARE relay, over mTLS: it passes messages on, and the model has the same bits."""

import re
import time
from pathlib import Path

import psutil
import pytest
from federation_processes import LIMIT, check_run, federation, in_process, until, without

from fairflare.engine.setup import tasks
from fairflare.report.write import verify_run

pytestmark = pytest.mark.deploy
LEAD = "lead@clinic-a.org"
HOSPITALS = ["hospital-a", "hospital-b", "hospital-c"]
RUN = ["fedism-plus", "--task", "support2:dirichlet", "--sites", "3", "--set", f"clients={','.join(HOSPITALS)}"]
RUN += ["--rounds", "3", "--solo"]


@pytest.fixture(scope="module")
def region(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relay")
    (faults := folder / "faults").mkdir()
    with federation("relay.sh", folder / "hub", FAIRFLARE_FAULTS=str(faults)) as made:
        made.faults = faults
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


def test_a_relay_that_dies_in_a_round_and_comes_back_changes_no_bit(region, tmp_path):
    """Its machine is away for 40 seconds, in which hospital-a, behind it, ends its training of round 2."""
    run = [*RUN[:-1], "--set", "min_sites=3"]
    expected = in_process(tmp_path / "local", *run)
    (region.faults / "hospital-a").write_text("2 10")
    region.cli["FAIRFLARE_PLUGINS"] = str(Path(__file__).with_name("unlucky_trainer.py"))
    where = ["--env", "poc", "--kit", region.kits / LEAD, "--out", tmp_path / "run"]
    with region.start_fairflare("run", *run, "--set", "trainer=unlucky-gsam", *where) as child:
        until((region.faults / "hospital-a.met").is_file)
        region.kill("region")
        time.sleep(40)
        region.start("region")
        said = child.communicate(timeout=LIMIT)[1]
    assert child.returncode == 0, said
    check_run(tmp_path / "run", expected)
    assert re.search(r"round 2 of 3; nothing is heard of hospital-a", said), said
    log = (region.kits / "hospital-a" / re.search(r"job (\S+): submitted", said)[1] / "log.txt").read_text()
    assert re.search(r"the answer took \d+ seconds: the server or the way to it was away", log)
