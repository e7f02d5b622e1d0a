# SPDX-License-Identifier: Apache-2.0
"""Five provisioned hospitals decide with sums in secret over mTLS: the numbers of one place."""

import json
import re
import shutil

import pytest
from federation_processes import ROOT, SCRIPTS, federation, here

from own_folder import write_tables

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]
HOSPITALS = tuple(f"hospital-{letter}" for letter in "abcde")
LEAD = "lead@clinic-a.org"
PATIENCE = 1500
"""Seconds for about 90 questions to five hospitals, each answered twice, where other tests run beside."""


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """The federation of ``provisioned.sh`` with two more hospitals."""
    folder = tmp_path_factory.mktemp("five")
    shutil.copytree(SCRIPTS, scripts := folder / "scripts")
    more = "".join(f"  - {{name: {name}, type: client, org: clinic_{name[-1]}}}\n" for name in HOSPITALS[3:])
    project, script = scripts / "project.yml", scripts / "provisioned.sh"
    project.write_text(project.read_text().replace("  # Runs the federation.\n", f"{more}  # Runs the federation.\n"))
    script.write_text(re.sub('^SITES=".*"', f'SITES="{" ".join(HOSPITALS)}"', script.read_text(), flags=re.MULTILINE))
    with federation(script, folder / "hub") as made:
        made.tables = write_tables(folder / "tables", HOSPITALS)
        text = (ROOT / "poc_workspace" / "local" / "fairflare_site_table.yaml").read_text()
        for site in HOSPITALS:
            own = re.sub("data_root: .*", f"data_root: {made.tables}", text)
            own = re.sub("datalist: .*", f"datalist: {site}.csv", own)
            (made.kits / site / "local" / "fairflare_site.yaml").write_text(own)
        yield made


def test_sums_in_secret_over_mtls_give_the_numbers_of_one_place(five, tmp_path):
    """U, J, D, E and EJ of each hospital, which alone has them, and the averages that the lead gets."""
    asked = ["join", "decide", "--datalists", five.tables, "--kind", "tabular", "--classes", "lived,died"]
    asked += ["--set", "label=outcome", "--set", "features=age,score", "--folds", "2", "--repeats", "1"]
    here(*asked, "--out", tmp_path / "local")
    where = ["--secure", "--env", "prod", "--kit", five.kits / LEAD, "--out", tmp_path / "run"]
    with five.start_fairflare(*asked, *where) as job:
        _, said = job.communicate(timeout=PATIENCE)
    assert not job.returncode and "FINISHED:COMPLETED" in said
    found, expected = (json.loads((tmp_path / name / "decision.json").read_text()) for name in ("run", "local"))
    assert found["secure"] and found["sites"] == {} and not list((tmp_path / "run").rglob("*.decision.json"))
    for key, one in expected["averages"].items():
        assert found["averages"][key] == pytest.approx(one, abs=1e-6), key
    for site in HOSPITALS:
        (kept,) = (five.kits / site).glob(f"fairflare_state/*/sites/{site}.*decision.json")
        own, wanted = json.loads(kept.read_text())["sites"][site], expected["sites"][site]
        assert own["verdict"] == wanted["verdict"] and set(own["estimands"]) == {"U", "J", "D", "E", "EJ"}
        assert "gives" in wanted and "gives" not in own
        for key, numbers in wanted["estimands"].items():
            assert own["estimands"][key] == pytest.approx(numbers, abs=1e-6), (site, key)
