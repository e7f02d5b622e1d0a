# SPDX-License-Identifier: Apache-2.0
"""Three hospitals with startup kits of their own: both ways for the code to get there, and what is turned away."""

import importlib
import json
import pickle
import re
import stat
import subprocess
from pathlib import Path

import pytest
from federation_processes import ROOT, check_run, composed, federation, here, in_process, processes, until

from fairflare.data.site_config import read_site_config
from fairflare.engine.audit import verify
from fairflare.engine.files import read_model
from fairflare.flare.site_policy import FILES, Policy, read_policy
from fairflare.privacy import log_verifier
from own_folder import write_tables

pytestmark = pytest.mark.deploy
ADMIN, LEAD, LOCAL_IT = "admin@hub.org", "lead@clinic-a.org", "it@clinic-b.org"
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
SUPPORT2 = ["--task", "support2:dirichlet", "--sites", "3", "--set", f"clients={','.join(HOSPITALS)}", "--rounds", "2"]
COLUMNS = ("label=outcome", "features=age,score", "attribute_values=sex=f|m", "group_by=label+sex")
FORGED = Path(__file__).with_name("forged_job.py")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Sites that take code from jobs, each with a table of its own that its local configuration names."""
    folder = tmp_path_factory.mktemp("provisioned")
    with federation("provisioned.sh", folder / "hub") as made:
        made.tables = write_tables(folder / "tables", HOSPITALS)
        for site in HOSPITALS:
            text = (ROOT / "poc_workspace" / "local" / "fairflare_site_table.yaml").read_text()
            text = re.sub("data_root: .*", f"data_root: {made.tables}", text)
            (local(made, site) / "fairflare_site.yaml").write_text(
                re.sub("datalist: .*", f"datalist: {site}.csv", text)
            )
        yield made


@pytest.fixture(scope="module")
def strict(three):
    """The same after a restart, as the services of compose.yaml: every site has the package; hospital-b takes no code,
    hospital-c no other classes.
    """
    three.sh("stop")
    three.sh("install")
    samples = [("hospital-b", "authorization.json"), ("hospital-c", "resources.json"), ("hospital-c", FILES[0])]
    for site, name in samples:
        (local(three, site) / name).write_text((ROOT / "poc_workspace" / "local" / name).read_text())
    before = {site: three.registered(site) for site in HOSPITALS}
    with composed(three) as services:
        assert set(services) == {"server", *HOSPITALS}
        until(lambda: all(three.registered(site) > before[site] for site in HOSPITALS))
        yield three


def local(made, site):
    return made.kits / site / "local"


def prod(made, kit, method, *options, out, check=True):
    where = ["--env", "prod", "--kit", made.kits / kit, "--out", out]
    return made.fairflare("run", method, *options, *where, check=check)


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


def test_secure_sums_of_own_data_with_keys_that_the_hospitals_certificates_sign(three, tmp_path):
    """A job that brings its code and finds each hospital's data."""
    own = ["--datalists", three.tables, "--kind", "tabular", "--classes", "lived,died", "--rounds", "2", "--solo"]
    own += [part for pair in (*COLUMNS, "secure_sum=masks") for part in ("--set", pair)]
    expected = in_process(tmp_path / "local", "fedism-plus", *own)
    prod(three, LEAD, "fedism-plus", *own, out=tmp_path / "run")
    entries = check_run(tmp_path / "run", expected)
    assert entries[0]["sites"] == list(HOSPITALS)
    for file in (p for p in (tmp_path / "run").iterdir() if p.suffix in (".json", ".jsonl", ".html", ".txt")):
        assert str(three.tables) not in file.read_text(), (
            f"{file.name}: a hospital's path left it, or came with the job"
        )
    assert all(
        not e["weights"] and not any(a["scalars"] for a in e["accepted"].values()) for e in entries if "weights" in e
    )
    (log,) = three.kits.glob(f"hospital-a/{job_of(tmp_path / 'run')}/log.txt")
    assert re.search(r"fairflare [0-9.]+, package_sha256 [0-9a-f]{12}", log.read_text()), "each site says what it runs"
    assert "SumRefused" not in log.read_text()
    assert joining(entries)["sites"] == joining(verify(tmp_path / "local" / "audit.jsonl"))["sites"]
    assert not list((tmp_path / "run").rglob("*.solo.safetensors")), (
        "the models that sites have trained alone stay there"
    )
    vouches(three, tmp_path / "run", job_of(tmp_path / "run"))


def vouches(made, run, job):
    """Server and hospitals have signed the whole log of a run, by the root and the heads that each hospital kept."""
    heads = [made.kits / site / "fairflare_state" / job / "sites" / f"{site}.heads.jsonl" for site in HOSPITALS]
    found = log_verifier.check(run, made.kits / "hospital-a" / "startup" / "rootCA.pem", heads)
    assert not found.problem and not found.remarks
    assert set(found.vouched) == {"server localhost", *(f"site {site}" for site in HOSPITALS)}
    assert all("rounds to 2, evaluation, finish, report" in said for said in found.vouched.values()), found.vouched
    assert all("its own: updates 1 to 2, evaluation;" in found.vouched[f"site {site}"] for site in HOSPITALS)
    heads[0].write_text(heads[0].read_text().replace('"seq": 2', '"seq": 1'))
    assert log_verifier.check(run, made.kits / "hospital-a" / "startup" / "rootCA.pem", heads[:1]).problem


def joining(entries):
    """The benefit of joining for each of the three."""
    (found,) = (entry for entry in entries if entry["event"] == "benefit")
    assert sorted(found["sites"]) == list(HOSPITALS) and not found["rejected"]
    return found


def job_of(run):
    """Id of the job whose run this is, from the submitter's copy of the server's log."""
    return re.search(r"run=([0-9a-f-]{36})", (run / "flare_log.txt").read_text())[1]


def test_adapters_train_on_a_body_that_neither_server_nor_hospital_is_sent(three, tmp_path):
    """Each hospital reads it from a file of its own; the server has what trains alone."""
    pytest.importorskip("peft")
    own = ["--datalists", three.tables, "--kind", "tabular", "--classes", "lived,died", "--rounds", "2", "--no-solo"]
    own += [part for pair in (*COLUMNS, "model=mlp") for part in ("--set", pair)]
    in_process(tmp_path / "body", "fedavg", *own)
    body = (tmp_path / "body" / "model.safetensors").read_bytes()
    tuned = [*own, "--init-from", tmp_path / "body", "--tune", "lora", "--set", "tune_rank=1", "--set", "body=site"]
    expected = in_process(tmp_path / "local", "fedism-plus", *tuned)
    files = [local(three, site) / "fairflare_site.yaml" for site in HOSPITALS]
    before = [path.read_text() for path in files]
    try:
        for path, text in zip(files, before, strict=True):
            path.with_name("body.safetensors").write_bytes(body)
            path.write_text(f"{text}\nweights: body.safetensors\n")
        prod(three, LEAD, "fedism-plus", *tuned, out=tmp_path / "run")
        check_run(tmp_path / "run", expected)
        homes = list(three.kits.glob(f"**/{job_of(tmp_path / 'run')}"))
        assert {one.relative_to(three.kits).parts[0] for one in homes} == {*HOSPITALS, "localhost"}
        kept = [one.read_bytes() for path in homes for one in path.rglob("*") if one.is_file()]
        frozen = read_model(tmp_path / "body" / "model.safetensors")["hidden1.0.weight"].numpy().tobytes()
        assert kept and frozen in body and not [one for one in kept if frozen in one]
    finally:
        for path, text in zip(files, before, strict=True):
            path.write_text(text)


def test_a_decision_gives_the_numbers_of_one_place_and_each_hospital_keeps_its_own_answer(three, tmp_path):
    own = ["--datalists", three.tables, "--kind", "tabular", "--classes", "lived,died"]
    own += [part for pair in COLUMNS for part in ("--set", pair)]
    asked = ["join", "decide", *own, "--folds", "2", "--repeats", "1", "--threshold", "0.3"]
    here(*asked, "--out", tmp_path / "local")
    where = ["--env", "prod", "--kit", three.kits / LEAD, "--out", tmp_path / "run"]
    done = three.fairflare(*asked, *where)
    assert "FINISHED:COMPLETED" in done.stderr and "page: " in done.stdout and "sheets: " in done.stdout
    found, expected = (json.loads((tmp_path / name / "decision.json").read_text()) for name in ("run", "local"))
    assert list(found["sites"]) == list(HOSPITALS)
    for site in HOSPITALS:
        told, wanted = found["sites"][site], expected["sites"][site]
        assert told["sentence"] == wanted["sentence"]
        (kept,) = (three.kits / site).glob(f"fairflare_state/*/sites/{site}.*decision.json")
        own = json.loads(kept.read_text())["sites"][site]
        for kind in ("estimands", "net_benefit"):
            for key, numbers in wanted[kind].items():
                assert own[kind][key] == pytest.approx(numbers, abs=1e-6), (site, kind, key)
            assert all(own[kind][key] == pytest.approx(numbers) for key, numbers in told[kind].items())
        assert told["estimands"]  # net benefit is told of enough patients alone
    assert not list((tmp_path / "run").rglob("*.decision.json"))


def test_who_may_not_submit_is_told_so(three, tmp_path):
    done = prod(three, LOCAL_IT, "fedavg", *SUPPORT2, out=tmp_path / "run", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the server refuses the job: user 'it@clinic-b.org' is not authorized for 'submit_job'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_job_without_code_needs_sites_that_list_its_classes(three, tmp_path):
    done = prod(three, LEAD, "fedavg", *SUPPORT2, "--preinstalled", out=tmp_path / "run", check=False)
    assert done.returncode == 1
    assert "'fairflare.flare.controller.FairController'" in last_line(done)
    assert "not in allow_list" in last_line(done)


@pytest.mark.parametrize(
    "how, reason", [("unsigned", "unsigned job rejected"), ("changed", "does not pass signature verification")]
)
def test_a_forged_job_does_not_run(three, tmp_path, how, reason):
    here("export", "fedavg", *SUPPORT2, "--out", tmp_path / "job")
    command = [str(three.python), str(FORGED), LEAD, str(three.kits / LEAD), str(tmp_path / "job"), how]
    done = subprocess.run(command, env=three.cli, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    three.nvflare("job", "wait", job, "--timeout", "60", kit=LEAD, check=False)
    meta = three.meta(job, LEAD)
    assert meta["status"] == "FINISHED:FAILED_TO_RUN"
    assert any(reason in text for text in meta["job_deploy_detail"]), meta["job_deploy_detail"]
    assert not [site for site in HOSPITALS if (three.kits / site / job).exists()], "it never reached a hospital"


def in_order(file):
    """FLARE writes a filter's tasks in the order of a set."""
    content = json.loads(file.read_text())
    for chain in content.get("task_result_filters", []):
        chain["tasks"] = sorted(chain["tasks"])
    return content


def test_an_export_without_code_is_the_other_one_but_for_it(three, tmp_path):
    for name, options in (("with", ()), ("without", ("--preinstalled",))):
        here("export", "fedlwr", *SUPPORT2, "--out", tmp_path / name, *options)
    found = {n: {p.relative_to(tmp_path / n) for p in (tmp_path / n).rglob("*")} for n in ("with", "without")}
    assert {p for p in found["with"] if "custom" not in p.parts and p.name != "MANIFEST.json"} == found["without"]
    for file in ("meta.json", "app_server/config/config_fed_server.json", "app_sites/config/config_fed_client.json"):
        assert in_order(tmp_path / "with" / file) == in_order(tmp_path / "without" / file)
    code = ["--code", Path(__file__).with_name("tiny_net.py"), "--out", tmp_path / "own"]
    done = three.fairflare("export", "fedlwr", *SUPPORT2, *code, "--preinstalled", check=False)
    assert done.returncode == 2 and "would have to carry tiny_net.py" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "own").exists()


def test_a_site_that_takes_no_code_refuses_a_job_that_brings_some(strict, tmp_path):
    all_three = [*SUPPORT2, "--set", "min_sites=3"]
    done = prod(strict, LEAD, "fedavg", *all_three, out=tmp_path / "run", check=False)
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert "hospital-b: BYOC not permitted" in last_line(done)
    assert "hospital-c: refused by this site's policy: the job brings code (app/custom)" in last_line(done)


def test_such_a_site_takes_part_in_a_job_without_code(strict, tmp_path):
    own = ["--datalists", strict.tables, "--kind", "tabular", "--classes", "lived,died", "--rounds", "2", "--solo"]
    own += [part for pair in COLUMNS for part in ("--set", pair)]
    expected = in_process(tmp_path / "local", "fedlwr", *own)
    here("export", "fedlwr", *own, "--preinstalled", "--out", tmp_path / "job")
    assert not list((tmp_path / "job").glob("*/custom"))
    told = strict.sh("submit", tmp_path / "job").stdout
    job = re.search(r"submitted: (\S+)", told)[1]
    strict.sh("wait")
    strict.sh("download")
    told = strict.sh("report").stdout
    assert "verified:" in told and "report.html" in told
    assert strict.meta(job, LEAD)["status"] == "FINISHED:COMPLETED"
    run = strict.folder / "results" / job / "workspace" / "fairflare"
    entries = check_run(run, expected)
    assert entries[0]["sites"] == list(HOSPITALS)
    vouches(strict, run, job)
    assert joining(entries)["sites"] == joining(verify(tmp_path / "local" / "audit.jsonl"))["sites"]
    settings = json.loads((local(strict, "hospital-b") / "resources.json").read_text())
    assert "fairflare.flare.executor.FairExecutor" in settings["class_allow_list"]


def test_no_key_of_a_federation_can_be_read_by_others(three):
    """The root key and everybody's private keys: whoever shares the machine sees none of them."""
    files = [path for path in three.folder.rglob("*") if not path.is_symlink()]
    files = [path for path in files if path.parent.name != "local"]  # where this file's fixtures write
    files = [path for path in files if not {".cache", ".config"} & {*path.parts}]  # matplotlib's fonts and settings
    open_to_others = [path for path in files if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)]
    assert three.folder / "provisioned" / "fairflare" / "state" / "cert.json" in files
    assert not open_to_others, open_to_others[:5]


class Owned:
    """A pickle that writes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (self.marker, "w")


def test_a_job_without_code_that_names_a_loader_runs_nothing_at_any_hospital(strict, tmp_path):
    """Signed and submitted by a lead; of a plain export only the network's name is changed."""
    own = ["--kind", "classification", "--classes", "2", "--set", "site_names=a,b,c", "--rounds", "2"]
    named = ["--set", f"clients={','.join(HOSPITALS)}", "--set", "model=small-cnn"]
    here("export", "fedavg", *own, *named, "--preinstalled", "--out", tmp_path / "job")
    marker, weights = tmp_path / "marker", tmp_path / "weights.pth"
    weights.write_bytes(pickle.dumps(Owned(str(marker))))
    args = {"url": weights.as_uri(), "model_dir": str(tmp_path / "hub"), "weights_only": False}
    model = {"class_path": "monai.networks.nets.densenet.load_state_dict_from_url", "args": args}
    file = tmp_path / "job" / "app_sites" / "config" / "config_fed_client.json"
    text = file.read_text()
    assert text.count('"small-cnn"') == text.count('"model"') == 1
    file.write_text(text.replace('"small-cnn"', json.dumps(json.dumps(model))))
    job = strict.nvflare("job", "submit", "-j", tmp_path / "job", kit=LEAD)["data"]["job_id"]
    strict.nvflare("job", "wait", job, "--timeout", "60", kit=LEAD, check=False)
    meta = strict.meta(job, LEAD)
    assert meta["status"] == "FINISHED:FAILED_TO_RUN", meta
    for site in HOSPITALS:
        told = [text for text in meta["job_deploy_detail"] if text.startswith(f"{site}: ")]
        refusal = "refused by this site's policy: model: expected a network that monai.networks.nets defines, got"
        assert len(told) == 1 and f"{refusal} '{model['class_path']}'" in told[0], meta
        assert str(strict.folder) not in told[0]
        assert not (strict.kits / site / job).exists(), "nothing of it is left there"
    assert not marker.exists() and not (tmp_path / "hub").exists()


def test_whoever_submits_is_told_what_a_hospital_expects(strict, tmp_path):
    wanted = [*SUPPORT2, "--preinstalled", "--set", "min_sites=3"]
    rules = [
        ("methods: [fedism-plus]\nmax_rounds: 1\n", (), "method: expected one of fedism-plus, got 'fedavg'"),
        (
            "after: [recalibrate]\n",
            ("--solo",),
            "solo: expected false, for this site does not report its benefit of joining",
        ),
    ]
    for text, more, refusal in rules:
        (local(strict, "hospital-a") / FILES[0]).write_text(text)
        try:
            done = prod(strict, LEAD, "fedavg", *wanted, *more, out=tmp_path / "run", check=False)
        finally:
            (local(strict, "hospital-a") / FILES[0]).unlink()
        assert done.returncode == 1 and not (tmp_path / "run").exists()
        assert f"hospital-a: refused by this site's policy: {refusal}" in last_line(done), done.stderr


def test_a_site_with_another_version_of_the_package_keeps_a_run_from_starting(strict, tmp_path):
    file = local(strict, "hospital-a") / "custom" / "fairflare" / "core" / "manifest.py"
    as_installed = file.read_bytes()
    file.write_bytes(as_installed + b"# changed at this hospital\n")
    try:
        done = prod(strict, LEAD, "fedavg", *SUPPORT2, "--preinstalled", out=tmp_path / "run", check=False)
    finally:
        file.write_bytes(as_installed)
    told = [line for line in done.stderr.splitlines() if "preflight: hospital-a: versions: package_sha256 " in line]
    assert done.returncode == 1 and told == [last_line(done)], done.stderr
    assert not any(f"hospital-{other}: " in told[0] for other in "bc")
    entries = verify(tmp_path / "run" / "audit.jsonl")
    begun = [e["event"] for e in entries if e["event"] != "report"]
    assert begun == ["start", "finish"] and entries[1]["status"] == "failed"


def test_the_sample_settings_name_what_there_is(tmp_path):
    samples = ROOT / "poc_workspace" / "local"
    allowed = set(json.loads((samples / "resources.json").read_text())["class_allow_list"])
    assert allowed < set(processes().OURS)
    assert json.loads((samples / "resources.json").read_text())["app_validator"]["path"] == processes().POLICY
    (local := tmp_path / "local").mkdir()
    (local / FILES[0]).write_text((samples / FILES[0]).read_text())
    assert read_policy(local) == Policy(allow_code=False, max_rounds=500, min_count=10)
    for path in (*processes().OURS, processes().POLICY):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    for name in ("fairflare_site.yaml", "fairflare_site_table.yaml"):
        assert read_site_config(samples / name).min_count == 10
    roles = json.loads((samples / "authorization.json").read_text())["permissions"]
    assert {role: rights.get("byoc", "none") for role, rights in roles.items()} == dict.fromkeys(roles, "none")
    assert json.loads((samples / "privacy.json").read_text())["default_scope"] == "clipped"
