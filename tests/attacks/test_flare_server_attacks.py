# SPDX-License-Identifier: Apache-2.0
"""What a FLARE server may ask of a site's client beside jobs, in messages that no administrator has typed."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from nvflare.apis.workspace import Workspace
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client import shell_cmd
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor
from nvflare.security.security import FLAuthorizer

from fairflare.flare.site_policy import SitePolicy

COMMANDS, CHECK = dict(shell_cmd.SHELL_CMD_VALIDATORS), Workspace._check_job_id
"""As FLARE has them: a site's own check, once made, changes them for its process."""
STRICT = Path(__file__).parents[2] / "poc_workspace" / "local" / "authorization.json"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Sends a client whose own authorization is the strict sample what a server may send that asks nobody."""
    monkeypatch.setattr(shell_cmd, "SHELL_CMD_VALIDATORS", dict(COMMANDS))
    monkeypatch.setattr(Workspace, "_check_job_id", staticmethod(CHECK))
    monkeypatch.setattr(AuditService, "the_auditor", None)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", None)
    AuditService.initialize(str(tmp_path / "audit.log"))
    AuthorizationService.initialize(FLAuthorizer("clinic-a.org", json.loads(STRICT.read_text())))
    engine = MagicMock(ClientEngine, args=SimpleNamespace(workspace=str(tmp_path)))
    engine.delete_run = partial(ClientEngine.delete_run, engine)
    agent = FedAdminAgent("hospital-a", MagicMock(), engine)
    for processor in (shell_cmd.ShellCommandProcessor(), DeleteRunNumberProcessor()):
        agent.register_processor(processor)

    def send(topic, text="", job_id=""):
        message = Message(topic, text)
        message.set_header(RequestHeader.REQUIRE_AUTHZ, "false")
        message.set_header(RequestHeader.JOB_ID, job_id)
        return agent._dispatch_request(new_cell_message({}, message)).payload.body

    return send


@pytest.mark.parametrize("command", ["cat {}", "tail -n 9 {}", "head -c 99 {}", "grep P- {}"])
def test_a_server_reads_no_file_of_a_site_that_checks_jobs(ask, command, tmp_path):
    file = tmp_path / "patients.csv"
    file.write_text("patient_id,age\nP-001,93\n")
    assert "P-001,93" in ask(SysCommandTopic.SHELL, command.format(file)), "FLARE itself shows it to any server"
    SitePolicy()
    answer = ask(SysCommandTopic.SHELL, command.format(file))
    assert answer == f"Error: {command.format(file)} is not a supported shell command"


def test_a_server_makes_no_site_that_checks_jobs_forget_what_it_has_told(ask, tmp_path):
    """The folder of a job that is deleted has the job's name, and the site's memory and rules lie beside it."""
    told = [tmp_path / name for name in ("fairflare_state", "local", "startup")]
    job = "13d573f0-7da8-47d2-9a5c-a8bd26c996a9"
    for folder in (*told, tmp_path / job):
        folder.mkdir()
    (told[0] / "hospital-a.answered.jsonl").write_text("{}")
    SitePolicy()
    for folder in told:
        ask(TrainingTopic.DELETE_RUN, job_id=folder.name)
    assert all(folder.is_dir() for folder in told) and (told[0] / "hospital-a.answered.jsonl").exists()
    ask(TrainingTopic.DELETE_RUN, job_id=job)
    assert not (tmp_path / job).exists()
