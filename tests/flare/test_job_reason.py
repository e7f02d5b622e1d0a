# SPDX-License-Identifier: Apache-2.0
"""Why a job failed reaches FLARE's own job store, of which ``nvflare job meta`` tells."""

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import RunStatus
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage

from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.files import LOCAL_LOG
from fairflare.flare import deploy, job_reason, kit_dates, simulate
from fairflare.flare.controller import FairController
from fairflare.flare.job_reason import JobReason

REASON = "Exception in model controller run: RunFailed: round 1: 0 accepted sites, 2 needed; a: site_error"


def engine_in(folder):
    """A server's engine: a workspace and FLARE's own job store."""
    for name in ("startup", "local"):
        (folder / name).mkdir(exist_ok=True)
    engine, jobs = MagicMock(ServerEngineSpec), SimpleJobDefManager(uri_root=str(folder / "jobs"))
    engine.store, engine.jobs = FilesystemStorage(root_dir=str(folder / "store")), jobs
    engine.get_component.side_effect = {SystemComponents.JOB_MANAGER: jobs, jobs.job_store_id: engine.store}.get
    engine.get_workspace.return_value = Workspace(str(folder))
    return engine


def context_of(engine, job=""):
    return FLContextManager(engine=engine, identity_name="server", job_id=job).new_context()


def ended(engine, job):
    context = context_of(engine)
    context.set_prop(FLContextKey.CURRENT_JOB_ID, job)
    JobReason().handle_event(EventType.JOB_COMPLETED, context)
    return engine.store.get_meta(engine.jobs.job_uri(job))


def test_the_reason_of_a_failed_job_is_in_its_meta_data(tmp_path):
    engine, job = engine_in(tmp_path), "0123"
    engine.store.create_object(engine.jobs.job_uri(job), b"", {"job_id": job, "status": "RUNNING"})
    controller, inside = FairController({}), context_of(engine, job)
    inside.set_prop(FLContextKey.EVENT_DATA, REASON)
    controller.handle_event(EventType.FATAL_SYSTEM_ERROR, inside)
    told = f"{REASON.partition(': ')[2]}; traceback in 0123/app_SITE/{LOCAL_LOG} of that site's kit"
    row = {"job_deploy_detail": [f"reason: {told}"]}
    assert ended(engine, job) == {"job_id": job, "status": "RUNNING", "fairflare_reason": told, **row}
    assert not [path for path in tmp_path.iterdir() if path.is_file()], "nothing is left for a job of the same name"


def test_a_job_that_has_not_failed_keeps_its_meta_data(tmp_path):
    engine, job = engine_in(tmp_path), "0123"
    engine.store.create_object(engine.jobs.job_uri(job), b"", {"job_id": job})
    assert ended(engine, job) == {"job_id": job}


def test_a_job_whose_process_dies_without_a_word_says_so_and_where_its_log_is(tmp_path):
    engine, job = engine_in(tmp_path), "0123"
    status = RunStatus.FINISHED_EXECUTION_EXCEPTION.value
    died = {"job_id": job, "status": status, "job_deploy_detail": ["server: OK"]}
    engine.store.create_object(engine.jobs.job_uri(job), b"", died)
    told = f"{job_reason.WORDLESS}; log: nvflare job download 0123"
    row = {"job_deploy_detail": ["server: OK", f"reason: {told}"]}
    assert ended(engine, job) == {**died, "fairflare_reason": told, **row}


def test_the_parent_process_needs_no_library_for_it():
    """The server's own process loads what it names in resources.json, not PyTorch."""
    source = "".join(Path(one.__file__).read_text(encoding="utf-8") for one in (job_reason, kit_dates))
    named = {"__future__", "pathlib", "nvflare", "fairflare", "datetime", "cryptography"}
    assert set(re.findall(r"^from (\w+)", source, re.M)) == named
    assert set(re.findall(r"^from (fairflare\S+)", source, re.M)) == {"fairflare.flare.kit_dates"}


def test_a_simulation_s_tracebacks_are_brought_home(tmp_path):
    (workspace := tmp_path / "workspace").mkdir()
    app = workspace / "job" / "site-1" / "simulate_job" / "app_site-1"
    app.mkdir(parents=True)
    for name in ("fairflare_errors.txt", "fairflare_preflight.txt", "other.txt"):
        (app / name).write_text(name)
    simulate._fetch(workspace, tmp_path)
    brought = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert brought == {"errors_site-1.txt": "fairflare_errors.txt", "preflight_site-1.txt": "fairflare_preflight.txt"}


def kit_with(folder, days):
    """A kit whose one certificate ends that many days from now."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(timezone.utc)
    first, last = now - timedelta(days=9), now + timedelta(days=days)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), first, last)
    (folder / "startup").mkdir()
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / "startup" / "client.crt").write_bytes(pem)
    return folder


@pytest.mark.parametrize(
    "days, kind, words", [(-1, UserError, "startup/client.crt: expected"), (1, RunFailed, "30 sec")]
)
def test_a_server_that_does_not_answer_a_login_is_one_line(days, kind, words, tmp_path, monkeypatch):
    """Where the submitter's own certificate has run out, the line says that."""

    def late(*arguments):
        raise FLCommunicationError("failed to challenge server: timeout")

    monkeypatch.setattr(deploy, "open_session", late)
    with pytest.raises(kind, match=words), deploy.Server("lead", kit_with(tmp_path, days)):
        pass
