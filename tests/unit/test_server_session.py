# SPDX-License-Identifier: Apache-2.0
"""The session with a running server, without one."""

import os

from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.utils.config_service import ConfigService

from fairflare.flare import deploy


def test_flare_looks_for_its_configuration_in_the_kit_alone(tmp_path, monkeypatch):
    """Else it goes through every folder below the working directory, a hospital's images among them."""
    looked = []
    monkeypatch.setattr(ConfigService, "_config_path", [])
    monkeypatch.setattr(CommConfigurator, "_config_loaded", False)
    monkeypatch.setattr(deploy, "new_secure_session", lambda *_, **__: CommConfigurator())
    monkeypatch.setattr(os, "walk", lambda top: looked.append(top) or iter(()))
    with deploy.Server("lead@hub.org", tmp_path):
        assert set(looked) == {str(tmp_path)}
