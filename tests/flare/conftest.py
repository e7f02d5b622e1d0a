# SPDX-License-Identifier: Apache-2.0
"""The one POC that the files test_deploy_* share: starting a federation takes longer than most of what it is asked."""

import pytest
from federation_processes import federation


@pytest.fixture(scope="session")
def poc(tmp_path_factory):
    """Four sites, which can have bad luck (unlucky_trainer.py); the server waits briefly for a dead site's farewell."""
    folder = tmp_path_factory.mktemp("poc")
    (faults := folder / "faults").mkdir()
    more = {"FAIRFLARE_FAULTS": str(faults), "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    with federation("poc.sh", folder / "poc", **more) as made:
        made.faults = faults
        yield made
