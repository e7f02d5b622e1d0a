# SPDX-License-Identifier: Apache-2.0
"""A stranger's path: the blocks of docs/deployment.md, typed in the order of the page into a folder of three tables."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from federation_processes import LIMIT, ROOT, Hub, blocks, check_run, ended, until

from own_folder import write_tables

pytestmark = pytest.mark.deploy
SITES = ["hospital-a", "hospital-b", "hospital-c"]
LEAD = "lead@clinic-a.org"


@pytest.fixture
def hub(tmp_path):
    with ended(Hub("provisioned.sh", tmp_path / "hub")) as made:
        (made.folder / "home").mkdir(parents=True)
        (made.folder / "poc_workspace").symlink_to(ROOT / "poc_workspace")
        made.python = Path(sys.executable)  # which has the package, as the page's machines have
        made.commands()
        write_tables(made.folder / "tables", SITES)
        yield made


def check_the_reason_of_a_failed_job(hub):
    """The last line, FLARE's command and its console name site, cause and the file with the traceback."""
    (state := hub.kits / "hospital-b" / "fairflare_state").rename(hub.folder / "kept")
    state.touch()  # no folder can be made there
    asked = ["--task", "support2:dirichlet", "--sites", "3", "--set", f"clients={','.join(SITES)}", "--rounds", "1"]
    where = ["--set", "min_sites=3", "--env", "prod", "--kit", hub.kits / LEAD, "--out", hub.folder / "failed"]
    done = hub.fairflare("run", "fedavg", *asked, *where, check=False)
    last, job = done.stderr.strip().splitlines()[-1], re.search(r"job (\S+): submitted", done.stderr)[1]
    reason = "hospital-b: site_error (EXECUTION_EXCEPTION DataError not_writable)"
    place = f"traceback in {job}/app_SITE/fairflare_errors.txt of that site's kit"
    assert list((hub.kits / "hospital-b").glob(f"{job}/app_*/fairflare_errors.txt")), "it is there"
    until(lambda: hub.meta(job, LEAD).get("fairflare_reason"), 60)
    shown = hub.nvflare("job", "meta", job, kit=LEAD, table=True)
    for text in (last, shown, hub.console(LEAD, LEAD, f"get_job_meta {job}")):
        assert reason in text and place in text and str(hub.kits) not in text, text


@pytest.mark.timeout(1800)
def test_the_blocks_of_the_page_in_its_order(hub):
    page = blocks("deployment.md")
    port = f"sed -i 's/8102/{hub.port}/' project.yml\n"  # the page's may be in use
    said = {}
    for name, block in page.items():
        if name.startswith("The end"):
            check_the_reason_of_a_failed_job(hub)
        said[name] = hub.type(block.replace("nvflare provision", f"{port}nvflare provision"))
        if "start.sh" in block:
            until(lambda: all(hub.registered(site) for site in SITES), LIMIT)
    assert all(site in said["Who is connected"] for site in SITES)
    run = check_run(hub.folder / "run")
    assert run[0]["sites"] == SITES
    job = json.loads((hub.folder / "submitted.json").read_text())["data"]["job_id"]
    check_run(hub.folder / "results" / job / "workspace" / "fairflare")
    console = next(text for name, text in said.items() if name.startswith("FLARE's console"))
    assert "Submitted job: " in console and job in console
    until(lambda: not hub.running(), LIMIT)
    assert not os.stat(hub.kits).st_mode & 0o077
