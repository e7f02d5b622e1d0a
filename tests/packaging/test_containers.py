# SPDX-License-Identifier: Apache-2.0
"""Container and cluster files against FLARE's own kits; test_deploy_provisioned.py runs what compose.yaml starts."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fairflare import __version__

ROOT = Path(__file__).parents[2]
HERE = ROOT / "poc_workspace" / "containers"
SITES = ("hospital-a", "hospital-b", "hospital-c")


def nvflare(*words, cwd):
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Of poc_workspace/project.yml, with the name that the server has among containers."""
    folder = tmp_path_factory.mktemp("kits")
    project = (ROOT / "poc_workspace" / "project.yml").read_text()
    (folder / "project.yml").write_text(project.replace("name: localhost", "name: server"))
    nvflare("provision", "-p", "project.yml", "-w", folder / "made", cwd=folder)
    return folder / "made" / "fairflare" / "prod_00"


@pytest.mark.slow
def test_the_composition_mounts_every_kit_and_starts_what_kits_bring(kits):
    services = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", *SITES}
    for name, service in services.items():
        assert (
            service["volumes"][0].endswith(f"/{name}:/workspace")
            and (kits / name / "startup" / "sub_start.sh").exists()
        )
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "ports" not in service
    text = (HERE / "Dockerfile").read_text()
    assert text.count("exec /bin/bash startup/sub_start.sh") == 1 and "ENTRYPOINT" not in text
    assert text.count("--require-hashes") == text.count("pip install") - 1 == 2, "all but our own wheel"
    users = [line.split()[1] for line in text.splitlines() if line.startswith("USER ")]
    assert users[-1] == "10001", "neither image runs as root"
    assert (ROOT / "requirements.lock.txt").exists()


RUNTIMES = [("docker", "server"), ("k8s", "server"), ("k8s", "hospital-a"), ("slurm", "hospital-b")]


@pytest.mark.slow
@pytest.mark.parametrize("runtime, name", RUNTIMES)
def test_flare_prepares_kits_for_each_runtime(runtime, name, kits, tmp_path):
    to, config = tmp_path / "kit", HERE / f"{runtime}.yaml"
    nvflare("deploy", "prepare", kits / name, "--output", to, "--config", config, cwd=tmp_path)
    assert f"{runtime}_launcher" in (to / "local" / "resources.json.default").read_text()
    if runtime == "k8s":
        check_manifests(to / "helm_chart", name)


def check_manifests(chart, name):
    """What Helm makes of a chart passes Kubernetes' schema, which refuses what it does not know."""
    helm, kubernetes = pytest.importorskip("helm_python"), pytest.importorskip("kubernetes_validate")
    with helm.Chart.load(str(chart)) as loaded:  # with the option that k8s.yaml advises
        files = loaded.render({"image": {"pullPolicy": "IfNotPresent"}}, name=name, namespace="fairflare")
    made = {one["kind"]: one for text in files.values() for one in yaml.safe_load_all(text) if one}
    for one in made.values():
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert pod["containers"][0]["image"] == f"registry.example.org/fairflare-site:{__version__}"
    assert {"Service", "ServiceAccount", "Role", "RoleBinding"} < set(made)
    pod["securityContext"]["runAsNoneRoot"] = True
    with pytest.raises(kubernetes.ValidationError, match="runAsNoneRoot"):
        kubernetes.validate(made["Deployment"], kubernetes.latest_version(), strict=True)


def test_the_server_s_image_has_no_cuda_and_every_other_package(tmp_path):
    """The Dockerfile's own line, run on the lock: whole entries go, and what stays has its hashes."""
    text = (HERE / "Dockerfile").read_text()
    (line,) = re.findall(r"^RUN (sed .* requirements\.lock\.txt >others\.txt) \\$", text, re.M)
    shutil.copy(ROOT / "requirements.lock.txt", tmp_path)
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
    entry = re.compile(r"^([\w.-]+)==\S+.*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
    before, after = (
        {name: hashes for name, hashes in entry.findall((tmp_path / file).read_text())}
        for file in ("requirements.lock.txt", "others.txt")
    )
    gone = set(before) - set(after)
    assert gone == {name for name in before if name.startswith(("nvidia-", "cuda-")) or name in ("torch", "triton")}
    assert len(gone) > 10 and all(after[name] == before[name] for name in after)
    assert len(entry.sub("", (tmp_path / "others.txt").read_text()).strip()) == 0, "no half entry"
    (cpu,) = re.findall(r"^torch==(\S+)\+cpu --hash=sha256:[0-9a-f]{64}$", (HERE / "torch-cpu.txt").read_text(), re.M)
    assert f"torch=={cpu} " in (ROOT / "requirements.lock.txt").read_text()


def composition(text):
    """What a parser of the compose specification makes of ``text``, once the shell's variables have values."""
    compose_spec = pytest.importorskip("compose_spec")
    whole = yaml.safe_load(re.sub(r"\$\{[A-Z_]+:[?-][^}]*\}", "/kits", text))  # anchors are YAML's business
    return compose_spec.PyCompose.from_yaml(yaml.safe_dump(whole))


def test_the_composition_is_one_by_its_specification():
    text = (HERE / "compose.yaml").read_text()
    assert sorted(composition(text).service_names()) == sorted(["server", *SITES])
    for right, wrong in (
        ("cap_drop: [ALL]", "cap_drop: 3"),
        ("read_only: true", "read_onyl: true"),
        ("restart: ", "restart: x"),
    ):
        with pytest.raises(ValueError):
            composition(text.replace(right, wrong))


def test_a_site_starts_by_one_command_as_the_composition_starts_it():
    """Docker's client takes its options; no daemon is there to start it."""
    page = (ROOT / "docs" / "operations.md").read_text()
    (command,) = re.findall(r"^```bash\n(docker run .*?)```", page, re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    service = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]["hospital-a"]
    given = lambda option: [words[k + 1] for k, word in enumerate(words) if word == option]  # noqa: E731
    assert words[-1] == service["image"] and "--read-only" in words
    assert (given("--cap-drop"), given("--security-opt"), given("--tmpfs")) == (
        service["cap_drop"], service["security_opt"], service["tmpfs"],
    )  # fmt: skip
    inside = [one.partition("}")[2] for one in service["volumes"]]
    assert [one[one.index(":") :] for one in given("--volume")] == [one[one.index(":") :] for one in inside]
    if not (docker := shutil.which("docker")):
        pytest.skip("no docker client")
    nowhere = [docker, "--host", "tcp://127.0.0.1:9", "create", *(word for word in words[2:] if word != "--detach")]
    said = subprocess.run(nowhere, capture_output=True, text=True, timeout=60).stderr
    assert "annot connect to the Docker daemon" in said and "unknown flag" not in said, said


def test_the_image_lints_clean():
    linter = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    if not Path(linter).exists():
        pytest.skip("no hadolint")
    done = subprocess.run([linter, HERE / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
