# SPDX-License-Identifier: Apache-2.0
"""The script of docs/client.md, run as the page says by FLARE's simulator: real processes, FLARE's own Client API."""

import pytest

from fairflare.cli.main import main
from fairflare.core import user_code
from fairflare.engine.audit import verify
from fairflare.report.write import verify_run
from own_script import SITES, forget_script, write_script

pytestmark = pytest.mark.flare
COMMAND = "run fedism-plus --script train.py --data hospitals --rounds 2 --set train.lr=0.1 --out runs/script"


def test_the_pages_script_is_a_federation(tmp_path, monkeypatch):
    monkeypatch.setenv(user_code.VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    write_script(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(COMMAND.split())
    forget_script()
    folder = tmp_path / "runs" / "script"
    assert stop.value.code == 0, (folder / "flare_log.txt").read_text()[-3000:]
    verify_run(folder)
    entries = verify(folder / "audit.jsonl")
    rounds = [entry for entry in entries if entry["event"] == "round"]
    assert len(rounds) == 2 and all(set(one["weights"]) == set(SITES) and not one["rejected"] for one in rounds)
    inputs = rounds[0]["accepted"]
    assert {site: found["steps"] for site, found in inputs.items()} == {"north": 3, "south": 4, "west": 5}
    assert all(found["scalars"]["sharpness"] > 0 for found in inputs.values())
    assert "FedISM+, script train.py" in (folder / "config.json").read_text()
