# SPDX-License-Identifier: Apache-2.0
"""``MANIFEST.json`` and ``fairflare inspect``: what a job runs, and that nobody has changed it."""

import json
import py_compile
import shutil
import stat
import sys
import zipfile
from py_compile import PycInvalidationMode

import pytest

from fairflare.cli import jobs
from fairflare.cli.main import main
from fairflare.core import manifest, registry, user_code
from fairflare.core.errors import DataError
from fairflare.core.manifest import package_sha256, sha256_of
from fairflare.engine.setup.config import make_config
from fairflare.flare.recipe import FairRecipe
from fairflare.flare.site_policy import SitePolicy
from fairflare.inference.atomic_output import check
from kits import certificate, new_key, write_kit

OWN = {"site_names": "north,south", "labels": "died,lived"}
APP = "app_sites"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A job on a hospital's own table, as it is exported."""
    folder = tmp_path_factory.mktemp("exported")
    config = make_config("fedism-plus", "tabular", values=OWN)
    jobs.export_job(config, folder / "job", name="job", simulation=False, force=False)
    return folder / "job"


@pytest.fixture
def job(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "job")


def inspect(capsys, *arguments):
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as end:
        main(["inspect", *map(str, arguments)])
    return end.value.code, *capsys.readouterr()


def test_it_says_what_runs_what_is_read_and_what_leaves(exported, capsys):
    code, out, _ = inspect(capsys, exported)
    assert code == 0 and len(out.splitlines()) <= 60 and max(map(len, out.splitlines())) <= 110
    for text in (
        "fedism-plus on tabular, sites north, south",
        "fairflare.flare.executor.FairExecutor",
        "all files are as MANIFEST.json lists them; the site's are those of fairflare",
        "accepted (without a policy file)",
        "local/fairflare_site.yaml",
        "update: difference of the trained and the received model",
        "privacy/egress.py: ",
    ):
        assert text in " ".join(out.split()), text


def test_its_json_has_the_same_and_counts_what_lies_there(exported, capsys):
    code, out, _ = inspect(capsys, exported, "--json")
    found = json.loads(out)
    files = [path for path in (exported / APP / "custom").rglob("*") if path.is_file()]
    assert code == 0 and found["site"]["files"] == len(files)
    assert found["site"]["lines"] == sum(len(path.read_text().splitlines()) for path in files)
    assert sum(one["lines"] for one in found["site"]["packages"].values()) == found["site"]["lines"]
    reading = found["site"]["reading"]
    assert reading[0]["question"] == "where it begins, and what it opens" and reading[0]["files"] == 2
    assert [sum(one[key] for one in reading) for key in ("files", "lines")] == [
        found["site"][key] for key in ("files", "lines")
    ]
    assert all(abs(one["minutes"] - one["lines"] * 60 / 400) <= 1 for one in reading)
    assert found["site"]["matches"] is found["server"]["matches"] is True and not found["site"]["other_than_installed"]
    assert found["site"]["package"]["sha256"] == package_sha256() and found["policy"] == "accepted"
    leaves = [one["name"] for one in found["leaves"]]
    assert {"update", "n_examples", "metrics"} < set(leaves) and "benefit" not in leaves and "sums" not in leaves
    assert any("sharpness" in name or "loss" in name for name in leaves), "the method's own numbers"


def test_what_leaves_follows_the_run(tmp_path, capsys):
    values = {"secure_sum": "masks", "after": "recalibrate", **OWN}
    config = make_config("fedism-plus", "tabular", values={**values, "site_names": "a,b,c"})
    FairRecipe(config, name="job", simulation=False).export(str(tmp_path))
    found = json.loads(inspect(capsys, tmp_path / "job", "--json")[1])
    leaves = {one["name"]: one["exchanges"] for one in found["leaves"]}
    assert "adjusted" in leaves and "weigh" in leaves["update"] and "scalars" not in leaves and "sums" not in leaves
    assert any("certificate" in text for text in found["reads"])


CHANGES = {
    "a changed file": (lambda custom: (custom / "fairflare/core/seeds.py").write_text("x = 1\n"), "is not the file"),
    "a file more": (lambda custom: (custom / "sitecustomize.py").write_text("x = 1\n"), "is not listed in"),
    "a file less": (lambda custom: (custom / "fairflare/core/seeds.py").unlink(), "which is not there"),
    "a link": (lambda custom: (custom / "more.py").symlink_to("/etc/hostname"), "expected files, got a link"),
    "no manifest": (lambda custom: (custom.parent / manifest.NAME).unlink(), "expected one beside custom/"),
    "no json": (lambda custom: (custom.parent / manifest.NAME).write_text("{"), "expected what an export writes"),
    "deep json": (lambda custom: (custom.parent / manifest.NAME).write_text("[" * 10**5), "expected what an export"),
    "another form": (lambda custom: (custom.parent / manifest.NAME).write_text('{"files": []}'), "expected what an"),
    "terminal's codes": (lambda custom: (custom / "\x1b[2J.py").write_text(""), "is not listed in"),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_job_that_is_not_as_listed_is_refused_in_one_line(name, job, capsys):
    """By the command, by the job's own processes, and by the site before anything of it is imported."""
    change, words = CHANGES[name]
    change(job / APP / "custom")
    code, out, err = inspect(capsys, job)
    assert code and words in " ".join((out + err).split()) and "\x1b" not in out + err
    assert code == 1 or (not out and err.count("\n") == 1)
    with pytest.raises(DataError, match=words.replace("(", r"\(")) as error:
        manifest.check_code(job / APP)
    assert error.value.code == "code" and "\n" not in str(error.value)
    (job / "local").mkdir()
    shutil.move(job / APP, job / "id" / APP)
    reason, _ = SitePolicy().validate(str(job / "id" / APP))
    assert words in reason and "\n" not in reason


@pytest.mark.parametrize("lines", [None, True, "3", [1]])
def test_a_manifest_is_read_as_strictly_as_it_is_written(lines, job):
    path = job / APP / manifest.NAME
    content = json.loads(path.read_text())
    next(iter(content["files"].values()))["lines"] = lines
    path.write_text(json.dumps(content))
    if lines is None:
        manifest.check_code(job / APP)
    else:
        with pytest.raises(DataError, match="expected what an export writes"):
            manifest.check_code(job / APP)


def test_what_python_compiles_and_what_flare_signs_is_no_change(job):
    package = job / APP / "custom" / "fairflare"
    (package / "__pycache__").mkdir()
    py_compile.compile(str(package / "__init__.py"), invalidation_mode=PycInvalidationMode.TIMESTAMP)
    for folder in (package, package.parent, package / "core"):
        (folder / ".__nvfl_sig.json").write_text("{}")
    manifest.check_code(job / APP)
    assert sha256_of(package) == package_sha256()
    with pytest.raises(DataError, match="expected nothing compiled in a job, got 'fairflare/__pycache__'"):
        manifest.check_code(job / APP, fresh=True)


HASHED = (PycInvalidationMode.UNCHECKED_HASH, PycInvalidationMode.CHECKED_HASH)


@pytest.mark.parametrize("mode", HASHED)
def test_a_compiled_file_that_python_takes_unasked_is_code(mode, job):
    """Its source is as listed, and Python would run what lies beside it (PEP 552)."""
    source = job / APP / "custom" / "fairflare" / "__init__.py"
    py_compile.compile(str(source), invalidation_mode=mode)
    with pytest.raises(DataError, match=r"__init__.*pyc' is not listed in"):
        manifest.check_code(job / APP)


def test_a_compiled_module_without_source_is_code(job):
    """It would stand for an installed module of its name."""
    (job / APP / "custom" / "numpy.pyc").write_bytes(b"")
    with pytest.raises(DataError, match="'numpy.pyc' is not listed in"):
        manifest.check_code(job / APP)


def test_a_manifest_lists_both_sides_and_the_user_s_own_files(tmp_path, monkeypatch):
    code, plugin = tmp_path / "mine.py", tmp_path / "my_probe.py"
    code.write_text("a = 1\nb = 2\n")
    plugin.write_text("")
    monkeypatch.setenv(user_code.VARIABLE, str(code))
    monkeypatch.setenv(registry.PLUGINS, str(plugin))
    FairRecipe(make_config("fedavg", "tabular", values=OWN), name="job").export(str(tmp_path))
    for app, side, entry in (
        ("app_sites", "site", "fairflare.flare.executor.FairExecutor"),
        ("app_server", "server", "fairflare.flare.controller.FairController"),
    ):
        found = manifest.read_manifest(tmp_path / "job" / app)
        assert found["read_by"] == side and found["entry_point"] == entry
        assert found["files"]["mine.py"]["lines"] == 2 and "fairflare/aggregators/my_probe.py" in found["files"]
        assert not set(found["files"]) & {f"fairflare/{name}" for name in found["left_out"]}


def test_a_job_without_code_has_none_to_list(tmp_path, capsys):
    config = make_config("fedavg", "tabular", values=OWN)
    FairRecipe(config, name="job", simulation=False, preinstalled=True).export(str(tmp_path))
    assert not list((tmp_path / "job").rglob(manifest.NAME))
    code, out, _ = inspect(capsys, tmp_path / "job")
    assert code == 0 and "no code: the site runs the package that it has installed" in out


def test_a_configuration_that_sites_refuse_is_shown_with_the_reason(job, capsys):
    path = job / APP / "config" / "config_fed_client.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_result_filters": []}))
    code, out, _ = inspect(capsys, job)
    assert code == 0 and "refused: " in out


@pytest.mark.parametrize("what", ["another app", "a folder", "another server", "an image"])
def test_a_job_that_brings_more_than_the_two_apps_is_not_vouched_for(what, job, capsys):
    meta = json.loads((job / "meta.json").read_text())
    if what in ("another app", "a folder"):
        shutil.copytree(job / APP, job / "app_evil")
    if what == "another app":
        meta["deploy_map"]["app_evil"] = [meta["deploy_map"][APP].pop()]
    elif what == "another server":
        meta["deploy_map"]["app_server"] = ["server", "north"]
    elif what == "an image":
        meta["resource_spec"] = {"north": {"docker": {"image": "of-somebody"}}}
    (job / "meta.json").write_text(json.dumps(meta))
    code, out, err = inspect(capsys, job)
    if what == "an image":
        assert code == 0 and "asks FLARE" in out and "of-somebody" in out
    else:
        assert code == 2 and not out and ("app_evil" in err or "app_server" in err) and err.count("\n") == 1


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "no apps", "no executor", "binary"])
def test_what_is_no_job_is_one_line(what, job, capsys):
    path = job / APP / "config" / "config_fed_client.json"
    if what == "nothing":
        job = job / "absent"
    elif what == "a file":
        job = job / "meta.json"
    elif what == "an empty folder":
        job = job / "empty"
        job.mkdir()
    elif what == "no apps":
        shutil.rmtree(job / APP)
    else:
        path.write_bytes(b"\xff\xfe\x00" if what == "binary" else b'{"executors": [{"executor": 5}]}')
    code, out, err = inspect(capsys, job)
    assert code == 2 and not out and err.count("\n") == 1 and err.startswith("fairflare: "), err


def test_a_zipped_job_is_as_its_folder(job, tmp_path, capsys):
    there = tmp_path / "download" / "0a1b" / "job"
    shutil.copytree(job, there)
    packed = shutil.make_archive(str(tmp_path / "0a1b"), "zip", tmp_path / "download")
    assert inspect(capsys, packed) == inspect(capsys, job)
    assert inspect(capsys, packed, "--sign", tmp_path)[0] == 2


@pytest.mark.parametrize("what", ["out", "back", "absolute", "link", "bomb", "damaged", "no job"])
def test_a_zip_that_is_none_of_a_job_is_one_line(what, tmp_path, capsys, monkeypatch):
    names = {"out": "job/../../out.py", "back": "..\\out.py", "absolute": "/out.py"}
    part = zipfile.ZipInfo(names.get(what, "job/meta.json"))
    part.external_attr = (stat.S_IFLNK | 0o777) << 16 if what == "link" else 0
    with zipfile.ZipFile(tmp_path / "job.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(part, b"0" * (jobs.MOST_UNPACKED // 2**10 if what == "bomb" else 100))
    monkeypatch.setattr(jobs, "MOST_UNPACKED", 2**18)
    if what == "damaged":
        content = bytearray((tmp_path / "job.zip").read_bytes())
        content[45] ^= 255
        (tmp_path / "job.zip").write_bytes(content)
    code, out, err = inspect(capsys, tmp_path / "job.zip")
    assert code == 2 and not out and err.count("\n") == 1 and not list(tmp_path.rglob("out.py")), err
    said = {"bomb": "at most", "damaged": "cannot be unpacked", "no job": "expected a job's folder"}
    assert said.get(what, "no links") in err


def test_nothing_of_the_job_is_imported(job, capsys):
    (job / APP / "custom" / "fairflare" / "core" / "seeds.py").write_text("raise SystemExit('imported')\n")
    before = list(sys.path)
    assert inspect(capsys, job)[0] == 1 and sys.path == before


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of a lead and of a site of one federation, and of a lead of another, in the folders that FLARE makes."""
    folder = tmp_path_factory.mktemp("kits")
    for federation in ("ours", "theirs"):
        root = new_key()
        pem = certificate("root", root, "root", root, ca=True)
        for name, more in (("lead", {"role": "lead"}), ("site", {})):
            (folder / federation / name).mkdir(parents=True)
            write_kit(folder / federation / name / "startup", f"{name}@{federation}.org", root, pem, **more)
    return folder


@pytest.fixture
def signed(job, kits, capsys):
    assert inspect(capsys, job, "--sign", kits / "ours" / "lead")[0] == 0
    return job


def root_of(kits, federation="ours"):
    return "--root", kits / federation / "lead" / "startup" / "rootCA.pem"


def test_a_lead_signs_a_job_and_inspect_says_who_did(signed, kits, capsys):
    code, out, _ = inspect(capsys, signed, *root_of(kits))
    assert code == 0 and "every file, by lead@ours.org (lead); their federation's root vouches" in " ".join(out.split())
    code, out, _ = inspect(capsys, signed)
    assert code == 0 and "--root checks" in out
    check(signed, "job", force=True)  # --force replaces it
    (signed / APP / manifest.SIGNATURES[0]).write_text("{}")  # as FLARE adds it when the job is submitted
    found = json.loads(inspect(capsys, signed, *root_of(kits), "--json")[1])["signed"]
    assert found == {"by": "lead@ours.org", "role": "lead", "certified": True, "holds": True}
    assert inspect(capsys, signed, "--sign", kits / "ours" / "site")[0] == 0, "again, by another"
    assert "by site@ours.org; " in " ".join(inspect(capsys, signed, *root_of(kits))[1].split())


def rewritten(name, change):
    def tamper(job):
        content = json.loads((job / name).read_text())
        change(content)
        (job / name).write_text(json.dumps(content))

    return tamper


def consistently(job):
    """A changed file, whose new hash is in the manifest and among the signed ones."""
    app = job / APP
    (app / "custom" / "fairflare" / "core" / "seeds.py").write_text("x = 1\n")
    listed = manifest.entry_of(app / "custom" / "fairflare" / "core" / "seeds.py")
    rewritten(f"{APP}/{manifest.NAME}", lambda found: found["files"].update({"fairflare/core/seeds.py": listed}))(job)
    rewritten(jobs.SIGNED, lambda found: found.update(files=jobs._files(job)))(job)


TAMPERINGS = {
    "a file of code": lambda job: (job / APP / "custom/fairflare/core/seeds.py").write_text("x = 1\n"),
    "a file more": lambda job: (job / APP / "custom" / "more.py").write_text(""),
    "a file less": lambda job: (job / "app_server" / "config" / "config_fed_server.json").unlink(),
    "a link": lambda job: (job / "more").symlink_to("/etc/hostname"),
    "the configuration": rewritten(f"{APP}/config/config_fed_client.json", lambda found: found.update(more=1)),
    "where it is deployed": rewritten("meta.json", lambda found: found["deploy_map"].update(app_sites=["elsewhere"])),
    "the manifest": rewritten(f"{APP}/{manifest.NAME}", lambda found: found.update(left_out={})),
    "a file, its manifest and the signed hashes": consistently,
    "a signed hash": rewritten(jobs.SIGNED, lambda found: found["files"].update({"meta.json": "0" * 64})),
    "no hashes": rewritten(jobs.SIGNED, lambda found: found.pop("files")),
    "the signature": rewritten(jobs.SIGNED, lambda found: found.update(signature=found["signature"][::-1])),
    "no signature": rewritten(jobs.SIGNED, lambda found: found.pop("signature")),
    "no certificate": rewritten(jobs.SIGNED, lambda found: found.update(certificate=5)),
    "no json": lambda job: (job / jobs.SIGNED).write_text("{"),
    "nothing signed": lambda job: (job / jobs.SIGNED).unlink(),
}


@pytest.mark.parametrize("name", sorted(TAMPERINGS))
def test_a_tampering_with_a_signed_job_is_found(name, signed, kits, capsys):
    TAMPERINGS[name](signed)
    code, out, err = inspect(capsys, signed, *root_of(kits))
    assert code in (1, 2) and "every file, by" not in out + err


def test_another_federation_s_signature_does_not_hold(job, kits, capsys):
    certified = rewritten(
        jobs.SIGNED,
        lambda found: found.update(certificate=(kits / "ours" / "lead" / "startup" / "client.crt").read_text()),
    )
    assert inspect(capsys, job, "--sign", kits / "theirs" / "lead")[0] == 0
    assert inspect(capsys, job, *root_of(kits))[0] == 1 and inspect(capsys, job, *root_of(kits, "theirs"))[0] == 0
    certified(job)
    assert inspect(capsys, job, *root_of(kits))[0] == inspect(capsys, job)[0] == 1


def test_only_a_whole_job_is_signed_and_only_with_a_kit(job, kits, tmp_path, capsys):
    code, out, err = inspect(capsys, job, "--sign", tmp_path)
    assert code == 2 and not out and err.startswith("fairflare: --sign ") and err.count("\n") == 1
    assert inspect(capsys, job, "--root", tmp_path / "absent")[0] == 2
    (job / APP / "custom" / "more.py").write_text("")
    assert inspect(capsys, job, "--sign", kits / "ours" / "lead")[0] == 1 and not (job / jobs.SIGNED).exists()
