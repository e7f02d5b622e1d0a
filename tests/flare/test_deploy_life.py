# SPDX-License-Identifier: Apache-2.0
"""A federation's life by the commands of docs/life.md: late, renewed, replaced, left and new hospitals."""

import json

import pytest
from federation_processes import Hub, blocks, check_run, ended

from fairflare.cli.main import main
from fairflare.engine.audit import verify
from fairflare.engine.in_process import InProcess
from fairflare.privacy import log_verifier
from own_folder import write_tables

pytestmark = pytest.mark.deploy
SITES = ["hospital-a", "hospital-b", "hospital-c", "hospital-d"]
SETTINGS = {"label": "outcome", "features": "age,score", "attribute_values": "sex=f|m"}


def in_this_process(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert not stop.value.code


class Living(Hub):
    """The federation of the page."""

    def site_file(self, site):
        own = f"data_root: {self.folder / 'tables'}\ndatalist: {site}.csv\nmin_count: 10\n"
        (self.kits / site / "local" / "fairflare_site.yaml").write_text(own)


@pytest.fixture
def hub(tmp_path):
    with ended(Living("provisioned.sh", tmp_path / "hub")) as made:
        made.sh("prepare")
        made.commands()
        write_tables(made.folder / "tables", SITES)
        said = {"kind": "tabular", "classes": ["lived", "died"], "options": SETTINGS}
        (made.folder / "tables" / "dataset.json").write_text(json.dumps(said))
        for site in SITES[:3]:
            made.site_file(site)
        yield made


def test_the_commands_of_the_page(hub, tmp_path, monkeypatch):
    """Three hospitals, one of them late; one leaves, a fourth comes, rounds are added, and the rest goes on."""
    page, run = blocks("life.md"), hub.folder / "run"
    hub.begin("localhost", "hospital-a", "hospital-b")
    said = hub.type(page["The first segment"])
    assert "the job starts without sites that the next segment takes up; missing: hospital-c; a site that runs" in said
    first = verify(run / "audit.jsonl")[0]
    assert first["sites"] == SITES[:2] and first["rejected"]["hospital-c"]["code"] == "absent"
    assert "hospital-c is named and was not connected at the start" in (run / "log.txt").read_text()
    assert "hospital-c was named and not connected when the run began." in (run / "report.html").read_text()

    hub.begin("hospital-c")
    hub.type(page["The next one begins when all three are there; two more rounds"])

    hub.type(page["A hospital comes"])
    hub.site_file("hospital-d")
    hub.begin("hospital-d")
    old = (hub.kits / "hospital-b" / "startup" / "client.crt").read_bytes()
    hub.type(page["A certificate is renewed"])
    assert (hub.kits / "hospital-b" / "startup" / "client.crt").read_bytes() != old
    hub.type(page["A hospital leaves"])
    hub.type(page["A machine is replaced"])
    hub.type(page["The last segment"])

    entries = check_run(run)
    segments = [e for e in entries if e["event"] in ("start", "segment")]
    assert [(e["rounds"], e["sites"]) for e in segments] == [(2, SITES[:2]), (4, SITES[:3]), (6, SITES[1:])]
    assert [e["rejected"].get("hospital-c", {}).get("code") for e in segments] == ["absent", None, None]
    places = [hub.kits / site for site in SITES if site != "hospital-c"] + [hub.folder / "new-machine" / "hospital-c"]
    kept = [at / "fairflare_state" / first["federation"] / "sites" / f"{at.name}.heads.jsonl" for at in places]
    found = log_verifier.check(run, hub.kits / "hospital-a" / "startup" / "rootCA.pem", kept)
    assert not found.problem and set(found.vouched) == {"server localhost", *(f"site {site}" for site in SITES)}

    here, data = tmp_path / "here", hub.folder / "tables"
    sites = InProcess.sites
    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "sites", lambda self: [site for site in sites(self) if site != "hospital-c"])
        own = ["--data", data, "--without", "hospital-d", "--rounds", "2", "--set", "horizon=6"]
        in_this_process("run", "fedism-plus", *own, "--no-solo", "--out", here)
    in_this_process("run", "--continue", here, "--rounds", "4")
    in_this_process("run", "--continue", here, "--data", data, "--without", "hospital-a", "--rounds", "6")
    models = [[e["model_sha256"] for e in verify(at / "audit.jsonl") if e["event"] == "finish"] for at in (run, here)]
    assert models[0] == models[1] and len(models[0]) == 3
