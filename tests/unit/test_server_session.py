# SPDX-License-Identifier: Apache-2.0
"""The session with a running server, without one."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.flare_api.api_spec import JobNotRunning
from nvflare.fuel.utils.config_service import ConfigService

from fairflare.core.errors import RunFailed
from fairflare.engine.setup.config import make_config
from fairflare.flare import deploy


def test_flare_looks_for_its_configuration_in_the_kit_alone(tmp_path, monkeypatch):
    """Else it goes through every folder below the working directory, a hospital's images among them."""
    looked = []
    monkeypatch.setattr(ConfigService, "_config_path", [])
    monkeypatch.setattr(CommConfigurator, "_config_loaded", False)
    monkeypatch.setattr(deploy, "open_session", lambda *_, **__: CommConfigurator())
    monkeypatch.setattr(os, "walk", lambda top: looked.append(top) or iter(()))
    with deploy.Server("lead@hub.org", tmp_path):
        assert set(looked) == {str(tmp_path)}


def test_whoever_waits_for_a_job_is_told_how_far_it_is(monkeypatch):
    monkeypatch.setattr(deploy, "POLL", 0.0)
    monkeypatch.setattr(deploy, "PROGRESS_POLL", -1.0)
    metas = iter([{"status": "RUNNING"}] * 4 + [{"status": "FINISHED:COMPLETED"}])
    rounds = iter(["start", "train, round 1 of 2", "train, round 1 of 2", ""])
    server = SimpleNamespace(began=lambda: "", meta=lambda job: next(metas), progress=lambda job: next(rounds))
    said = []
    deploy._wait(server, "7", "7", float("inf"), said.append)
    assert said == [f"job 7: {text}" for text in ("RUNNING", "start", "train, round 1 of 2", "FINISHED:COMPLETED")]


def test_a_job_that_has_ended_has_no_progress_and_that_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(deploy.Server, "_ask", lambda *_: (_ for _ in ()).throw(JobNotRunning("7")))
    assert deploy.Server("lead", tmp_path).progress("7") == ""


def test_a_run_waits_for_the_sites_that_it_requires(monkeypatch):
    """One comes while it waits; where none does, the line names who is missing once the time is over."""
    monkeypatch.setattr(deploy, "POLL", 0.0)
    names, said = [f"site-{k}" for k in range(1, 5)], []
    answers = iter([names[:2], names[:2], names[:3], names])
    config = make_config("fedavg", "support2", values={"require": "all"})
    deploy._await_sites(config, SimpleNamespace(connected=lambda: next(answers)), Path("kits/lead"), said.append)
    assert said == ["waiting for site-3, site-4, up to 600 s", "waiting for site-4, up to 600 s"]
    config = make_config("fedavg", "support2", values={"require": 3, "require_within": 0})
    with pytest.raises(RunFailed, match="require=3: expected 3 sites within 0 s, missing: site-3, site-4"):
        deploy._await_sites(config, SimpleNamespace(connected=lambda: names[:2]), Path("kits/lead"), said.append)
