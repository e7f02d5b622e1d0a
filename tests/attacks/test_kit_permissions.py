# SPDX-License-Identifier: Apache-2.0
"""What FLARE's provisioning leaves readable for everybody, such as the root key, is its owner's after ``protect``."""

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "poc_workspace"
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    return provision(tmp_path_factory.mktemp("kits"), SCRIPTS / "project.yml")


def provision(folder, project):
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", "made"]
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run([*command, "--force"], cwd=folder, env=environment, check=True, capture_output=True, timeout=120)
    return folder / "made" / "fairflare"


@pytest.fixture(scope="module")
def federation():
    spec = importlib.util.spec_from_file_location("federation_of_scripts", SCRIPTS / "federation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_their_owners_and_scripts_still_run(provisioned, federation, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (provisioned / "link").symlink_to(outside)
    cert = provisioned / "state" / "cert.json"
    assert "root_pri_key" in json.loads(cert.read_text())
    cert.chmod(0o644)  # as FLARE leaves it under the usual umask
    federation.protect(str(provisioned))
    found = [provisioned, *(path for path in provisioned.rglob("*") if not path.is_symlink())]
    assert not [path for path in found if mode(path) & OTHERS]
    assert mode(cert) == mode(provisioned / "prod_00" / "hospital-a" / "startup" / "client.key") == 0o600
    assert mode(provisioned / "state") == mode(provisioned / "prod_00" / "hospital-a" / "startup" / "start.sh") == 0o700
    assert mode(outside) == 0o644, "a link's target is none of ours"


def test_a_site_gets_its_check_of_jobs_and_keeps_what_it_had(provisioned, federation):
    local = provisioned / "prod_00" / "hospital-a" / "local"
    default = json.loads((local / "resources.json.default").read_text())
    federation.allow(str(local))
    federation.policy(str(local))
    settings = json.loads((local / "resources.json").read_text())
    assert settings["app_validator"] == {"path": federation.POLICY, "args": {}}
    assert settings["allow_log_streaming"] is False
    assert {*default["class_allow_list"], *federation.OURS} == set(settings["class_allow_list"])
    changed = {"app_validator", "allow_log_streaming", "class_allow_list"}
    assert {k: v for k, v in settings.items() if k not in changed} == {
        k: v for k, v in default.items() if k not in changed
    }


def ways(kits):
    """Scheme and security of each way between the hub, the relay and the hospitals behind it, as their kits say."""

    def said(name, file, key):
        found = json.loads((kits / "prod_00" / name / file).read_text())[key]
        return found["scheme"], found.get("resources", found)["connection_security"]

    return {
        "relay listens": said("region", "local/comm_config.json", "internal"),
        "relay to hub": said("region", "startup/fed_relay.json", "connect_to"),
        "hospital-a": said("hospital-a", "local/relay__resources.json", "relay_config"),
        "hospital-b": said("hospital-b", "local/relay__resources.json", "relay_config"),
    }


def test_a_server_told_twice_has_one_reason_and_mistakes_are_one_line(federation, tmp_path):
    """FLARE's server does not start with two components of one id."""
    (tmp_path / "resources.json").write_text("{}")
    federation.reasons(str(tmp_path))
    first = (tmp_path / "resources.json").read_text()
    federation.reasons(str(tmp_path))
    assert (tmp_path / "resources.json").read_text() == first and first.count(federation.REASON) == 1
    for words in ([], ["bogus"], ["policy"], ["policy", str(tmp_path / "nowhere")]):
        done = subprocess.run([sys.executable, SCRIPTS / "federation.py", *words], capture_output=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith(b"federation.py") and done.stderr.count(b"\n") == 1


def test_behind_a_relay_nothing_is_in_the_clear(tmp_path):
    assert set(ways(provision(tmp_path, SCRIPTS / "project_relay.yml")).values()) == {("grpc", "mtls")}


def test_without_its_two_keys_a_relay_is_in_the_clear(tmp_path):
    """Why the sample and docs/deployment.md ask for them: FLARE's default."""
    text = (SCRIPTS / "project_relay.yml").read_text()
    keys = "      scheme: grpc\n      connection_security: mtls\n"
    assert text.count(keys) == 1
    project = tmp_path / "project.yml"
    project.write_text(text.replace(keys, ""))
    found = ways(provision(tmp_path, project))
    assert found["relay listens"] == found["hospital-a"] == found["hospital-b"] == ("tcp", "clear")
