# SPDX-License-Identifier: Apache-2.0
"""Exported FLARE jobs: written whole or not at all, replaced only where all of it is an export's own; and what a
hospital's reviewer must know of one, read from its folder: nothing of the job is imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import stat
import tempfile
import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import fairflare
from fairflare import __version__
from fairflare.core import manifest
from fairflare.core.errors import FairFlareError, UserError
from fairflare.core.manifest import PACKAGE, package_files, package_sha256
from fairflare.core.validation import JOB_NAME, shown
from fairflare.data.site_config import FILES as SITE_FILES
from fairflare.engine.audit import CANONICAL
from fairflare.engine.exchanges.base import find
from fairflare.engine.files import LOCAL_FINDINGS, LOCAL_LOG, read_json
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.method_parts import NO_STEP
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.paths import SITES, STATE, unescaped
from fairflare.flare.site_policy import EXECUTOR, Policy, check_app
from fairflare.flare.site_policy import FILES as POLICY_FILES
from fairflare.flare.staging import APPS, SIDES
from fairflare.inference.atomic_output import whole_folder
from fairflare.privacy.schemes import NONE, SITE_CONTEXT
from fairflare.studies import display
from fairflare.studies.describe import leaving
from fairflare.studies.folders import check_path

SIGNED = "SIGNED.json"
"""In a job's folder: the hash of every other file of it, and a signature of these."""
CHECKS = {
    "flare/site_policy.py": "before anything is built: code against MANIFEST.json, configuration, classes, policy file",
    "engine/checks.py": "what the server sends, before the site works with it",
    "privacy/egress.py": "the allow-list: every field of an answer has a name, a kind and a range, or nothing leaves",
    "privacy/counts.py": "groups below min_count: their numbers stay",
    "flare/egress.py": "the same list as the job's last filter, after the site's own filters",
    "engine/gate.py": "at the server: every answer again, before it is added to anything",
}
"""File of the package -> what is checked there, in the order in which it happens."""
WIDTH = 110
MOST_FILES, MOST_UNPACKED = 20_000, 2**30
"""Of a zipped job."""


def export_job(
    config: RunConfig, out: Path, *, name: str | None, simulation: bool, force: bool, preinstalled: bool = False
) -> None:
    """Write the FLARE job folder ``out``; it appears whole or not at all."""
    with _quiet():  # FLARE takes an option --export of this command for its own
        from fairflare.flare.recipe import FairRecipe, job_name

    if name is not None and not JOB_NAME.fullmatch(name):
        raise UserError(f"--name: expected letters, digits, ., - and _, at most 64, got {shown(name)}")
    check_path(out)
    if config.init_from and (origin := build_parts(config).origin):
        for line in origin.lines():
            display.note(line)
    name = name or job_name(config)
    with whole_folder(out, "job", force=force, inside=name, later=(SIGNED,)) as folder, _quiet():
        FairRecipe(config, name=name, simulation=simulation, preinstalled=preinstalled).export(str(folder))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within: FLARE's chatter and its warnings about recipe arguments stay away from the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def sign(folder: Path, kit: Path) -> None:
    """Write ``SIGNED`` into a job's folder: every other file of it, signed by the user whose startup ``kit`` it is."""
    from fairflare.flare.credentials import OF_CLIENT, Certificate

    files = _files(folder)
    try:
        proof = Certificate(kit / "startup", OF_CLIENT).sign(_signed_bytes(files))
    except (OSError, ValueError, TypeError):
        text = "expected a user's startup kit, with startup/rootCA.pem, client.crt and client.key"
        raise UserError(f"--sign {kit}: {text}") from None
    (folder / SIGNED).write_text(json.dumps({"files": files, **proof}, indent=1), encoding="utf-8")


def _files(folder: Path) -> dict[str, str]:
    """Every file of a job but ``SIGNED`` and the signatures that FLARE adds when it is submitted -> its SHA-256."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise UserError(f"{folder}: expected files, got a link: {shown(name)}")
        if path.is_file() and name != SIGNED and path.name not in manifest.SIGNATURES:
            found[name] = manifest.entry_of(path)["sha256"]
    return found


def _signed_bytes(files: Any) -> bytes:
    return CANONICAL.encode(["fairflare job", files]).encode()


def _signature(folder: Path, root: Path | None) -> dict[str, Any] | None:
    """Who signed the job: by, role, certified (whether ``root`` vouches for that) and holds (True, or what does not).

    None where nobody did.
    """
    from cryptography.x509 import load_pem_x509_certificate

    from fairflare.flare.credentials import signer_of

    try:
        trusted = load_pem_x509_certificate(root.read_bytes()) if root else None
    except (OSError, ValueError):
        raise UserError(f"--root {root}: expected rootCA.pem of a startup kit") from None
    if not (folder / SIGNED).is_file():
        return None
    told, here = read_json(folder / SIGNED), _files(folder)
    files, found = told.get("files"), signer_of(_signed_bytes(told.get("files")), told, trusted)
    if found is None or not isinstance(files, dict):
        whose = "; --root does not vouch for it, or it was changed" if root else ""
        return {"by": "", "role": "", "certified": False, "holds": f"the signature in {SIGNED} does not hold{whose}"}
    wrong = [name for name in sorted({*files, *here}) if files.get(name) != here.get(name)]
    holds = f"{shown(wrong[0])} is not as it was signed" if wrong else True
    return {"by": found[0], "role": found[1], "certified": root is not None, "holds": holds}


@contextlib.contextmanager
def unpacked(job: Path) -> Iterator[Path]:
    """A job's folder; of a zip, as FLARE keeps it, within: a copy of the folder, which may lie deeper.

    Raises:
        UserError: the zip is damaged or encrypted, holds links, names that lead out of it, or more than a job does.
    """
    if not (job.is_file() and zipfile.is_zipfile(job)):
        yield job
        return
    with tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
        try:
            with zipfile.ZipFile(job) as packed:
                parts = packed.infolist()
                if len(parts) > MOST_FILES or sum(one.file_size for one in parts) > MOST_UNPACKED:
                    most = f"{MOST_FILES:,} files and {MOST_UNPACKED // 2**20} MB unpacked"
                    raise UserError(f"{job}: expected a job of at most {most}, got {len(parts):,} files or more MB")
                for one in parts:
                    path = PurePosixPath(one.filename.replace("\\", "/"))
                    if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(one.external_attr >> 16):
                        raise UserError(f"{job}: expected files inside of it and no links, got {shown(one.filename)}")
                packed.extractall(scratch)  # no file gets longer than it says, which was summed
        except (zipfile.BadZipFile, zlib.error, RuntimeError, OSError, ValueError, EOFError) as error:
            raise UserError(f"{job}: cannot be unpacked ({error})") from None
        found = sorted(Path(scratch).rglob(APPS["site"]), key=lambda path: len(path.parts))
        yield found[0].parent if found else Path(scratch)


def inspected(folder: Path, root: Path | None = None) -> dict[str, Any]:
    """What there is to say of the job in ``folder``, as JSON values; UserError of none that ``fairflare export`` wrote.

    ``root``: rootCA.pem of the reader's own startup kit, which must vouch for who signed the job.
    """
    if not (folder / "meta.json").is_file():
        raise UserError(f"{folder}: expected a job's folder, with meta.json in it")
    apps = {side: folder / app for side, app in APPS.items()}
    if not all(app.is_dir() for app in apps.values()):
        raise UserError(f"{folder}: expected {' and '.join(APPS.values())}, as an export of this version has them")
    content = _run_of(apps["site"])
    meta = read_json(folder / "meta.json")
    config, refusal = _config(content, apps["site"])
    about = {"job": str(meta.get("name", "")), **{key: str(content.get(key, "")) for key in ("method", "task")}}
    code = {side: _code(apps[side]) for side in ("site", "server")}
    told: dict[str, Any] = {"signed": _signature(folder, root), "policy": refusal or "accepted"}
    sites = _deployed(folder, meta)
    asks = {key: value for key, value in meta.items() if value and key not in (*PLAIN_META, *OF_FLARE)}
    told |= {"reads": [*_reads(config)], "asks": asks, "leaves": _leaves(config), "checked": dict(CHECKS)}
    return {**about, "sites": sites, **code, **told}


SERVER = "server"
PLAIN_META = ("name", "deploy_map", "min_clients")
"""What an export writes into meta.json."""
OF_FLARE = ("job_id", "submit_time", "submit_time_iso", "submitter_name", "submitter_org", "submitter_role", "status")
"""What FLARE adds to a job that it keeps."""
MOST_ASKED = 300


def _deployed(folder: Path, meta: Mapping[str, Any]) -> list[str]:
    """The sites that get the site's app; UserError where anyone would get another app than what is inspected."""
    deployed = meta.get("deploy_map")
    named = deployed if isinstance(deployed, dict) else {}
    if odd := sorted({*named, *(one.name for one in folder.iterdir() if one.is_dir())} - {*APPS.values()}):
        raise UserError(f"{folder}: expected the apps {' and '.join(APPS.values())} alone, got {shown(odd[0])}")
    if (server := named.get(APPS["server"])) not in (None, [SERVER]):
        raise UserError(f"meta.json: deploy_map: {APPS['server']}: expected ['{SERVER}'], got {shown(server)}")
    names = named.get(APPS["site"])
    return [str(name) for name in names] if isinstance(names, list) else []


def _run_of(app: Path) -> dict[str, Any]:
    """The run's configuration, as the executor of a site is given it."""
    path = app / "config" / SIDES["site"]
    try:
        (entry,) = read_json(path)["executors"]
        content = entry["executor"]["args"]["config"]
        if entry["executor"]["path"] == EXECUTOR and isinstance(content, dict):
            return content
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(f"{path}: expected one executor, {EXECUTOR}, with a run's configuration")


def _config(content: Mapping[str, Any], app: Path) -> tuple[RunConfig | None, str]:
    """The configuration where this version can read it, and why a site without rules of its own would refuse it."""
    try:
        check_app(app, Policy(), [app / manifest.CUSTOM])
        refusal = ""
    except (FairFlareError, ValueError) as error:
        refusal = f"refused: {' '.join(str(error).split())[:300]}"
    try:
        return RunConfig.from_json(unescaped(content)), refusal
    except UserError:  # e.g. a method that the job itself brings
        return None, refusal


def _code(app: Path) -> dict[str, Any]:
    """What one side is sent: where running begins, files and lines by package, and whether they are as listed."""
    if not (app / manifest.CUSTOM).is_dir():
        entry = EXECUTOR if app.name == APPS["site"] else ""
        return {"brings_code": False, "entry_point": entry, "files": 0, "lines": 0}
    try:
        found = manifest.read_manifest(app)
        here = {name: manifest.entry_of(path) for name, path in manifest.code_of(app)}
        wrong = manifest.mismatch(app, found)
    except UserError as error:
        raise UserError(f"{app}: {error}") from None
    lines = {name: entry["lines"] or 0 for name, entry in here.items()}
    own = {name: count for name, count in lines.items() if not name.startswith("fairflare/")}
    told = {"brings_code": True, **{key: found[key] for key in ("entry_point", "components")}}
    told |= {"files": len(lines), "lines": sum(lines.values()), "packages": _by_package(lines), "own_files": own}
    told |= {"reading": _in_order(lines)}
    other = _other_than_installed(here)
    return {**told, "matches": wrong or True, "package": found["package"], "other_than_installed": other}


LINES_AN_HOUR = 400
"""That a careful reviewer reads; an assumption, which the minutes follow from."""
READING = {
    "what the job brings of its own": ("",),
    "where it begins, and what it opens": ("fairflare/flare/executor.py", "fairflare/flare/paths.py"),
    "what leaves": ("fairflare/core/schema.py", "fairflare/privacy/", "fairflare/flare/egress.py"),
    "what is done for each task": (
        "fairflare/engine/site.py",
        "fairflare/engine/exchanges/",
        "fairflare/engine/after/",
    ),
    "the method": tuple(f"fairflare/{name}/" for name in ("aggregators", "trainers", "probes", "functional")),
    "how data are read": ("fairflare/data/", "fairflare/tasks/", "fairflare/networks/"),
    "how it is set up": ("fairflare/engine/", "fairflare/flare/"),
    "small services": ("fairflare/",),
}
"""What a reviewer asks -> where the files lie that answer it; a file counts where it is first asked for."""


def _in_order(lines: Mapping[str, int]) -> list[dict[str, Any]]:
    """What to read first, and how long it takes: question, files, lines, minutes."""
    left, found = dict(lines), []
    for question, places in READING.items():
        own = [
            name for name in left if name.startswith(places) and (places != ("",) or name.split("/")[0] != "fairflare")
        ]
        count = sum(left.pop(name) for name in own)
        if own:
            minutes = math.ceil(60 * count / LINES_AN_HOUR)
            found.append({"question": question, "files": len(own), "lines": count, "minutes": minutes})
    return found


def _by_package(lines: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Package of fairflare -> its files and lines, the largest first."""
    counts: dict[str, list[int]] = {}
    for name, count in lines.items():
        top, *rest = name.split("/")
        if top == "fairflare":
            counts.setdefault(rest[0] if len(rest) > 1 else top, []).append(count)
    found = {package: {"files": len(each), "lines": sum(each)} for package, each in counts.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]["lines"]))


def _other_than_installed(here: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The job's files of fairflare that differ from, or are not in, the package that this command runs from."""
    installed = package_files(Path(fairflare.__file__).parent)
    known = {f"fairflare/{name}": path for name, path in installed.items()}
    own = [name for name in here if name.startswith("fairflare/")]
    return [n for n in own if n not in known or manifest.entry_of(known[n])["sha256"] != here[n]["sha256"]]


def _reads(config: RunConfig | None) -> Iterator[str]:
    yield f"local/{SITE_FILES[0]}: where the data are and what the site allows"
    yield f"local/{POLICY_FILES[0]}: the site's rules for jobs, if it has the SitePolicy"
    if config is None or tasks.known(config.task).__module__.startswith("fairflare.tasks."):
        yield "the list or table that the site file names, and the files in it, below data_root"
    else:
        yield f"the data of task {config.task}, which are published or simulated: none of the hospital's own"
    yield f"{STATE}/FEDERATION/{SITES}/: its own memory of the run; {LOCAL_LOG} and {LOCAL_FINDINGS} it writes"
    if config is not None and config.secure_sum != NONE:
        yield "the certificate and key of its startup kit, for secure sums"
    if config is not None and config.secure_sum == "ckks":
        yield f"{SITE_CONTEXT}, the sites' key for sums"


def _leaves(config: RunConfig | None) -> list[dict[str, str]]:
    """The fields of the site's answers in this run, and the numbers of the method's parts."""
    if config is None:
        return leaving("", secure=False, after=True, solo=True)
    secure = config.secure_sum != NONE
    further = [task for name in config.exchanges for task in find(name).tasks]
    return leaving(config.method, secure=secure, after=config.after != NO_STEP, solo=config.solo, further=further)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The same for people, on one screen."""
    site, server = found["site"], found["server"]
    yield f"job {found['job']}: {found['method']} on {found['task']}, sites {', '.join(found['sites']) or 'unnamed'}"
    yield from _wrapped("entry point", f"{site['entry_point']}; the server's is {server['entry_point'] or 'installed'}")
    if site["brings_code"]:
        lines = f"{site['lines']:,} lines ({server['lines']:,} at the server)"
        yield from _wrapped("at a site", f"{site['files']} files, {lines}")
        parts = (f"{name} {one['files']}/{one['lines']:,}" for name, one in site["packages"].items())
        yield from _wrapped("files/lines", ", ".join(parts))
        each = (f"{one['question']} {one['files']}/{one['lines']:,}, {one['minutes']} min" for one in site["reading"])
        yield from _wrapped("to be read", *each)
        own = ", ".join(f"{shown(name)[1:-1]} ({count} lines)" for name, count in site["own_files"].items())
        yield from _wrapped("user's own", own or "none")
        yield from _wrapped("hashes", "; ".join(_hashes(site, server)))
    else:
        yield from _wrapped("at a site", "no code: the site runs the package that it has installed")
    yield from _wrapped("signed", _signed_by(found["signed"]))
    asks = json.dumps(found["asks"], ensure_ascii=True)[:MOST_ASKED]
    yield from _wrapped("asks FLARE", *[f"{asks} (meta.json)"] * bool(found["asks"]))
    yield from _wrapped("site policy", f"{found['policy']} (without a policy file)")
    yield from _wrapped("is read", *found["reads"])
    yield from _wrapped("leaves", *(f"{one['name']}: {one['meaning']}" for one in found["leaves"]))
    yield from _wrapped("is checked", *(f"{file}: {what}" for file, what in found["checked"].items()))


def _signed_by(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "by nobody"
    if found["holds"] is not True:
        return str(found["holds"])
    who = shown(found["by"])[1:-1] + (f" ({shown(found['role'])[1:-1]})" if found["role"] else "")
    sure = "their federation's root vouches" if found["certified"] else "as the certificate says: --root checks"
    return f"every file, by {who}; {sure} who that is"


def _hashes(site: Mapping[str, Any], server: Mapping[str, Any]) -> Iterator[str]:
    """Whether the files are as listed, and the same as installed here."""
    for name, side in (("site", site), ("server", server)):
        if side["matches"] is not True:
            yield f"{name}: {side['matches']}"
    if site["matches"] is True and server["matches"] is True:
        yield f"all files are as {manifest.NAME} lists them"
    other = site["other_than_installed"]
    here = f"fairflare {__version__} installed here"
    yield f"the site's are those of {here}" if not other else f"{len(other)} differ from {here}: {other[0]}"
    same = "the same as here" if site["package"]["sha256"] == package_sha256() else "another than here"
    yield f"{manifest.NAME} says {PACKAGE} {site['package']['sha256'][:16]}..., {same}"


def _wrapped(title: str, *texts: str) -> Iterator[str]:
    """Texts below each other beside a title."""
    for text in texts:
        yield from textwrap.wrap(text, WIDTH, initial_indent=f"{title:<12} ", subsequent_indent=" " * 15)
        title = ""
