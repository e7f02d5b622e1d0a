# SPDX-License-Identifier: Apache-2.0
"""One federation over mTLS whose server dies, whose hospital-c has a network of its own, which is cut, and whose
hospital-b has a clock of its own, may not write, or has a certificate that is out of date.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from federation_processes import LIMIT, ROOT, Federation, check_run, in_process, processes, until

from fairflare.flare.deploy import KEPT_AWAY

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
]
ADMIN, LEAD = "admin@hub.org", "lead@clinic-a.org"
PACKAGE = ROOT / "custom" / "fairflare"
HOSPITALS = ["hospital-a", "hospital-b", "hospital-c"]
FAR = "hospital-c"
HERE, THERE = "10.48.0.1", "10.48.0.2"
CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Of Debian's package libfaketime."""
BEHIND, AHEAD = ({"LD_PRELOAD": str(CLOCK), "FAKETIME": by} for by in ("-1h", "+1h"))
BEHIND["FAKETIME_DONT_FAKE_MONOTONIC"] = "1"  # a machine that started within the hour would count from below zero
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
"""Before a command: root may write no more than an owner may."""
RUN = ["--task", "support2:dirichlet", "--sites", "3", "--set", f"clients={','.join(HOSPITALS)}", "--rounds", "3"]
RUN += ["--set", "min_sites=3"]
AWAY = re.compile(r"hospital-c: nothing heard of its job for 25 seconds.*the train, round 2 of 3 waits")


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=20, capture_output=True)


@contextlib.contextmanager
def network():
    """A namespace that a pair of devices joins with this machine's; its name."""
    name = f"fair{os.getpid()}"
    device = name[:12] + "a"
    try:
        ip("netns", "add", name)
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{HERE}/24", "dev", device)
        ip("link", "set", device, "up")
        for words in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{THERE}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            ip("-n", name, *words)
        yield name, device
    finally:
        subprocess.run(["ip", "link", "del", device], capture_output=True, timeout=20)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


class Hub(Federation):
    """A server that listens on an address of the network; every daemon starts by itself, hospital-c's there."""

    server = "hub"

    def prepare(self):
        self.sh("prepare")
        project = self.folder / "project.yml"
        said = yaml.safe_load(project.read_text())
        said["participants"][0] |= {"name": self.server, "default_host": HERE}
        project.write_text(yaml.safe_dump(said))
        for old in (self.folder / "provisioned", self.kits):
            shutil.rmtree(old)
        words = ["provision", "-p", project, "-w", self.folder / "provisioned", "--force"]
        subprocess.run(
            [self.python, "-m", "nvflare.cli", *words], env=self.cli, cwd=self.folder / "home", check=True,
            timeout=LIMIT, capture_output=True,
        )  # fmt: skip
        shutil.copytree(self.folder / "provisioned" / "fairflare" / "prod_00", self.kits)
        processes().stores(str(self.kits / self.server / "local"), str(self.folder / "stores"))

    def daemon(self, name, *before, **more):
        """Start one, and wait until the server has it."""
        known = 0 if name == self.server else self.registered(name)
        self.start(name, *before, **more)
        until(lambda: name == self.server or self.registered(name) > known, LIMIT)

    def start(self, name, *before, **more):
        there = ["ip", "netns", "exec", self.net] if name == FAR else []
        super().start(name, *there, *before, **more)

    def run(self, out, *more):
        where = ["--env", "poc", "--kit", self.kits / LEAD, "--out", out]  # sites ask often, as on one machine
        return self.start_fairflare("run", "fedavg", *RUN, "--set", "trainer=unlucky-sgd", *more, *where)

    def busy(self, site, number, seconds=4):
        """The site is at work for longer in that round, see unlucky_trainer.py; returns once it is."""
        met = self.faults / f"{site}.met"
        (self.faults / site).write_text(f"{number} {seconds}")
        yield
        until(met.is_file, 120)
        met.unlink()
        yield

    def said(self, site, run):
        """What the site's part of the last job has logged."""
        job = re.search(r"job (\S+): submitted", run)[1]
        return (self.kits / site / job / "log.txt").read_text()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    (faults := folder / "faults").mkdir()
    with network() as (name, device):
        more = {"FAIRFLARE_FAULTS": str(faults), "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
        made = Hub("provisioned.sh", folder / "hub", **more)
        made.net, made.device, made.faults = name, device, faults
        made.cli["FAIRFLARE_PLUGINS"] = str(Path(__file__).with_name("unlucky_trainer.py"))
        try:
            made.prepare()
            for one in (made.server, *HOSPITALS):
                made.daemon(one)
            until(lambda: made.connected(LEAD) == HOSPITALS)
            yield made
        finally:
            for process in made.running():
                process.kill()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The model's hash of the same run in one process."""
    return in_process(tmp_path_factory.mktemp("expected") / "run", "fedavg", *RUN)


def test_a_cut_a_dead_daemon_and_a_clock_an_hour_ahead_change_no_bit(hub, expected, tmp_path):
    """In round 2 hospital-c's network is down and hospital-b's daemon killed; hospital-b's clock is an hour ahead."""
    hub.kill("hospital-b")
    hub.daemon("hospital-b", **(AHEAD if CLOCK else {}))
    at_work = hub.busy(FAR, 2)
    next(at_work)
    with hub.run(tmp_path / "run") as child:
        next(at_work)
        ip("link", "set", hub.device, "down")
        hub.running_for("hospital-b")["daemon"].kill()
        time.sleep(60)
        ip("link", "set", hub.device, "up")
        back = time.monotonic()
        said = child.communicate(timeout=LIMIT)[1]
    assert child.returncode == 0, said
    assert time.monotonic() - back < 100, "an answer that got lost is sent again"
    entries = check_run(tmp_path / "run", expected)
    assert all(sorted(e["accepted"]) == HOSPITALS for e in entries if e["event"] == "round")
    assert "train, round 2 of 3; nothing is heard of hospital-c" in said
    assert AWAY.search((tmp_path / "run" / "log.txt").read_text() + (tmp_path / "run" / "flare_log.txt").read_text())
    assert re.search(r"the answer took \d+ seconds: the server or the way to it was away", hub.said(FAR, said))
    hub.kill("hospital-b")
    hub.daemon("hospital-b")
    if not CLOCK:
        pytest.skip("the cut and the dead daemon changed nothing; libfaketime is not there")


def test_a_server_that_is_killed_with_its_parent_goes_on_to_the_same_bits(hub, expected, tmp_path):
    at_work = hub.busy(FAR, 2)
    next(at_work)
    with hub.run(tmp_path / "run") as child:
        next(at_work)
        hub.kill(hub.server)
        hub.daemon(hub.server)
        said = child.communicate(timeout=LIMIT)[1]
    again = re.search(r"the server has started anew and lost it; the same run with (--set \S+) --force continues", said)
    assert child.returncode == 1 and again, said
    until(lambda: not any("job" in hub.running_for(site) for site in HOSPITALS), 120)
    for site in HOSPITALS:
        assert "this job ends before its run: the run failed, its server has started anew" in hub.said(site, said)
    until(lambda: hub.connected(LEAD) == HOSPITALS)
    with hub.run(tmp_path / "run", *again[1].split()) as child:
        said = child.communicate(timeout=LIMIT)[1]
    assert child.returncode == 0, said
    assert [e["from_round"] for e in check_run(tmp_path / "run", expected) if e["event"] == "resume"] == [1]


def test_a_site_that_may_not_write_ends_the_run_with_its_name(hub, tmp_path):
    hub.kill("hospital-b")
    state = hub.kits / "hospital-b" / "fairflare_state"
    state.mkdir(exist_ok=True)
    state.chmod(0o500)
    hub.daemon("hospital-b", *UNPRIVILEGED)
    with hub.run(tmp_path / "run") as child:
        said = child.communicate(timeout=LIMIT)[1]
    state.chmod(0o700)
    assert child.returncode == 1
    last = said.strip().splitlines()[-1]
    assert "hospital-b: site_error (EXECUTION_EXCEPTION DataError not_writable)" in last and str(hub.kits) not in last
    assert re.search(
        r"task preflight failed with DataError not_writable; see \S+fairflare_errors.txt", hub.said("hospital-b", said)
    )


def certificate(hub, site, days):
    """The site's certificate, valid until ``days`` from now, signed with the federation's root key."""
    file = hub.kits / site / "startup" / "client.crt"
    state = json.loads((hub.folder / "provisioned" / "fairflare" / "state" / "cert.json").read_text())
    key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    old, now = x509.load_pem_x509_certificate(file.read_bytes()), datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number,
        now - datetime.timedelta(minutes=30 if days > 0 else 3000), now + datetime.timedelta(days=days),
        list(old.extensions),
    ).sign(key, hashes.SHA256())  # fmt: skip
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("days, clock, mend", [(-1, {}, "have the hub renew it"), (300, BEHIND, "set the clock")])
def test_a_certificate_that_is_not_valid_by_a_machines_clock_is_named(hub, tmp_path, days, clock, mend):
    """At the site in its log, and to whoever starts a run; FLARE's client would wait without a word.

    The client is shut down first: FLARE lists a killed one as connected for ten minutes.
    """
    if clock and not CLOCK:
        pytest.skip("libfaketime is not there")
    hub.nvflare("system", "shutdown", "client", "hospital-b", "--force", kit=ADMIN, check=False)
    until(lambda: not hub.running_for("hospital-b"), 120)
    certificate(hub, "hospital-b", days)
    processes().policy(str(hub.kits / "hospital-b" / "local"))  # for which the site has the package
    shutil.copytree(PACKAGE, hub.kits / "hospital-b" / "local" / "custom" / "fairflare", dirs_exist_ok=True)
    log = hub.kits / "hospital-b" / "log.txt"
    before = log.stat().st_size
    hub.start("hospital-b", **clock)
    line = until(
        lambda: re.search(r"ERROR - (startup/\S+: expected a certificate .*)", log.read_text()[before:]), LIMIT
    )
    assert mend in line[1] and str(hub.kits) not in line[1]
    until(lambda: hub.connected(LEAD) == ["hospital-a", FAR], LIMIT)
    with hub.run(tmp_path / "run") as child:
        said = child.communicate(timeout=LIMIT)[1]
    cause = "hospital-b (startup/client.crt: expected a certificate" if days < 0 else f"hospital-b; {KEPT_AWAY}"
    assert child.returncode == 1 and f"missing: {cause}" in said and said.count("\n") == 1, said
    hub.kill("hospital-b")
