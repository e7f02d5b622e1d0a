# SPDX-License-Identifier: Apache-2.0
"""docs/audit-a-job.md names files that are there, at the site or at the server as it says, and the limits that hold."""

import re
import sys
from pathlib import Path

from printed_commands import ROOT

import fairflare

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from test_staging import MOST_FILES, MOST_LINES, SERVER, SITE, Run, at_site, own_files  # noqa: E402

from fairflare.cli.jobs import CHECKS  # noqa: E402
from fairflare.flare.staging import modules_of_run, needed  # noqa: E402

PAGE = (ROOT / "docs" / "audit-a-job.md").read_text()
AT_SERVER = {"engine/gate.py", "engine/preflight.py"}
INSTALLED = {"flare/site_policy.py"}
"""What the page says is not in a site's copy."""


def test_the_files_that_the_page_names_are_where_it_says():
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))
    own = {path.as_posix() for task in ("tabular", "segmentation") for path in at_site("fedism-plus", task)}
    assert len(named) > 15 and named - AT_SERVER - INSTALLED <= own, sorted(named - own)
    server = {path.as_posix() for path in needed([*SERVER, *modules_of_run(Run("fedavg", "tabular"))])}
    assert named >= AT_SERVER | INSTALLED and server >= AT_SERVER
    assert all((Path(fairflare.__file__).parent / name).is_file() for name in named | set(CHECKS))
    folders = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*)/`", PAGE)) - {
        "app_sites",
        "app_server",
        "custom",
        "fairflare_state",
    }
    assert {"app_sites/custom/fairflare"} < folders
    decision = needed([*SITE, "fairflare.engine.exchanges.decide"], own_files())
    here = {parent.as_posix() for name in [*own, *decision] for parent in Path(name).parents}
    assert folders - {"app_sites/custom/fairflare"} <= here


def test_what_inspect_says_is_checked_the_page_says_too():
    assert all(f"`{name}`" in PAGE for name in CHECKS)


def test_the_page_states_the_limits_that_are_tested():
    assert f"at most {MOST_LINES:,} lines in {MOST_FILES} files" in PAGE
    for name in ("README.md", "docs/index.md"):
        assert "audit-a-job.md" in (ROOT / name).read_text()
