# SPDX-License-Identifier: Apache-2.0
"""A stranger's path: the blocks of docs/deployment.md, typed in the order of the page into a folder of three tables."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from federation_processes import LIMIT, ROOT, Hub, blocks, check_run, until

from own_folder import write_tables

pytestmark = pytest.mark.deploy
SITES = ["hospital-a", "hospital-b", "hospital-c"]
LEAD = "lead@clinic-a.org"


@pytest.fixture
def hub(tmp_path):
    made = Hub("provisioned.sh", tmp_path / "hub")
    (made.folder / "home").mkdir(parents=True)
    (made.folder / "poc_workspace").symlink_to(ROOT / "poc_workspace")
    made.python = Path(sys.executable)  # which has the package, as the page's machines have
    made.commands()
    write_tables(made.folder / "tables", SITES)
    try:
        yield made
    finally:
        for process in made.running():
            process.kill()
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.mark.timeout(1800)
def test_the_blocks_of_the_page_in_its_order(hub):
    page = blocks("deployment.md")
    port = f"sed -i 's/8102/{hub.port}/' project.yml\n"  # the page's may be in use
    said = {}
    for name, block in page.items():
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
