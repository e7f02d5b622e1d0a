# SPDX-License-Identifier: Apache-2.0
"""What may happen to a run's folder: two commands at once, a kill at any moment, --force on what is not ours."""

import contextlib
import gc
import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from cases import each
from command_line import call
from fairflare.cli.main import main
from fairflare.core.errors import DataError, RunFailed, UserError
from fairflare.engine import audit, files, loop, memory
from fairflare.engine.exchanges.evaluate import EvaluateAtSite
from fairflare.engine.exchanges.train import TrainAtSite
from fairflare.engine.files import LOCK, SERVER_LOCK, locked
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.config import make_config
from fairflare.engine.site import Site
from fairflare.report import write
from fairflare.report.write import verify_run
from fairflare.studies import folders

TASK = ["--task", "support2", "--rounds", "2"]
RUN = ["run", "fedavg", *TASK, "--no-solo"]
FORK = multiprocessing.get_context("fork")


def in_child(*arguments, patch=lambda: None, said=os.devnull):
    """The command line in a process of its own, after ``patch``; its exit code, negative for a signal."""

    def run():
        gc.freeze()  # what other files have left is collected in no fork
        patch()
        with open(said, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            main([str(a) for a in arguments])

    child = FORK.Process(target=run)
    child.start()
    child.join(60)
    assert child.exitcode is not None, "did not end"
    return child.exitcode


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def litter(folder):
    """What no finished run holds."""
    return [p.name for p in Path(folder).rglob(".*")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("life") / "run"
    with pytest.raises(SystemExit) as stop:
        main([*RUN, "--out", str(folder)])
    assert stop.value.code == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


# Two commands in one folder


@contextlib.contextmanager
def held(folder, name=LOCK):
    """Another process has the folder, until the end of the block."""

    def hold():
        with locked(folder, name):
            ready.set()
            time.sleep(60)

    ready = FORK.Event()
    child = FORK.Process(target=hold)
    child.start()
    try:
        assert ready.wait(20)
        yield child
    finally:
        child.kill()
        child.join()


COMMANDS = {
    "run": lambda folder: [*RUN, "--out", folder],
    "run --force": lambda folder: [*RUN, "--out", folder, "--force"],
    "resume": lambda folder: ["resume", folder],
    "report": lambda folder: ["report", folder],
    "sim": lambda folder: [*RUN, "--env", "sim", "--out", folder, "--force"],
    "compare": lambda folder: ["compare", "fedavg", *TASK, "--out", folder.parent],
    "contribution": lambda folder: ["contribution", "fedavg", *TASK, "--out", folder.parent],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_command_in_a_folder_is_refused_and_changes_nothing(name, capsys, copy):
    place = copy.parent if name in ("compare", "contribution") else copy
    if place != copy:
        copy.rename(copy.parent / "all-sites")
    with held(place) as other:
        before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
        code, out, err = call(capsys, *COMMANDS[name](copy))
        assert code == 2 and f"another command is at work there (process {other.pid})" in err
        assert len(err.splitlines()) == 1 and not out
        assert {p: p.read_bytes() for p in place.rglob("*") if p.is_file()} == before
        if place == copy:
            assert call(capsys, "verify", copy)[0] == 0  # which only reads
    assert other.exitcode == -signal.SIGKILL and (place / LOCK).exists()
    if place == copy:
        assert call(capsys, "report", copy)[0] == 0
        assert not litter(copy), "the lock of a killed command stayed"


def test_a_servers_folder_is_left_alone_while_its_job_runs(capsys, copy):
    with held(copy, SERVER_LOCK):
        code, _, err = call(capsys, "report", copy)
        assert code == 2 and "another command is at work there" in err and (copy / SERVER_LOCK).exists()
    assert call(capsys, "report", copy)[0] == 0 and not litter(copy), "the lock of a killed server stayed"


def test_a_command_gives_its_lock_back_however_it_ends(capsys, copy, tmp_path):
    assert call(capsys, "resume", copy)[0] == 2 and not litter(copy)
    assert call(capsys, *RUN, "--out", copy)[0] == 2 and not litter(copy)
    assert call(capsys, *RUN, "--out", tmp_path / "new", "--set", "no_such=1")[0] == 2
    assert not (tmp_path / "new").exists()


def test_a_lock_is_not_put_through_a_link(tmp_path, copy, capsys):
    (tmp_path / "precious").write_text("years of work")
    (copy / LOCK).symlink_to(tmp_path / "precious")
    code, _, err = call(capsys, "report", copy)
    assert code == 2 and "cannot be locked" in err and (tmp_path / "precious").read_text() == "years of work"


@pytest.mark.parametrize("name", [LOCK, SERVER_LOCK])
@pytest.mark.parametrize("kind", ["pipe", "hard link", "folder", "socket"])
def test_a_lock_is_a_regular_file_of_one_name(kind, name, tmp_path, copy, capsys, monkeypatch):
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    if kind == "pipe":
        os.mkfifo(copy / name)
    elif kind == "hard link":
        os.link(precious, copy / name)
    elif kind == "folder":
        (copy / name).mkdir()
    else:
        monkeypatch.chdir(copy)  # the address of a socket is short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(name)
    before = files_of(copy)
    for command in (["report", copy], ["resume", copy], [*RUN, "--out", copy, "--force"]):
        code, out, err = call(capsys, *command)
        assert code == 2 and "cannot be locked" in err and err.count("\n") == 1 and not out, (command, err)
    assert files_of(copy) == before and os.path.lexists(copy / name)
    assert precious.read_text() == "years of work"


def files_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_jobs_do_not_keep_one_sites_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "WAIT", 0.0)
    path = tmp_path / "sites" / "site-1.safetensors"

    def hold():
        with memory.claimed(path):
            SiteMemory(path).keep(1, {"a": 1.0})
            ready.set()
            time.sleep(60)

    ready = FORK.Event()
    child = FORK.Process(target=hold)
    child.start()
    assert ready.wait(20)
    with pytest.raises(DataError, match="another job of this federation is at work") as error, memory.claimed(path):
        pass
    assert error.value.code == "memory" and str(tmp_path) not in str(error.value)
    child.kill()
    child.join()
    (path.parent / ".site-1.safetensors.abcd1234.tmp").write_bytes(b"half")
    with memory.claimed(path):
        assert SiteMemory(path).before(2) == {"a": 1.0} and not list(path.parent.glob("*.tmp"))


def test_two_jobs_do_not_continue_one_federation(tmp_path, monkeypatch):
    places = pytest.importorskip("fairflare.flare.server_state")
    monkeypatch.setattr(places, "WAIT", 0.0)
    folder = tmp_path / "id"

    def second():
        refused = pytest.raises(RunFailed, match="federation id: another job is at work on it")
        with refused, places.claimed(folder, "id", fresh=False):
            pass

    with places.claimed(folder, "id", fresh=True):
        (folder / "audit.jsonl").write_text("")
        child = FORK.Process(target=second)
        child.start()
        child.join(20)
        assert child.exitcode == 0
    with places.claimed(folder, "id", fresh=False):
        assert [p.name for p in folder.iterdir() if not p.name.startswith(".")] == ["audit.jsonl"]
    with places.claimed(folder, "id", fresh=True):
        assert [p.name for p in folder.iterdir()] == [".server.lock"], "an earlier job's state stayed"
    assert not list(folder.iterdir())


# Another lead's federation: its id stands in FLARE's list of jobs


VICTIM, LEAD = "0b5e5e0c-victim", "lead@one.org"


class Job:
    """A job's context in a real federation, at the server or at a site."""

    def __init__(self, root, lead=LEAD, number="another-job"):
        self.root, self.lead, self.number = root, lead, number
        self.get_engine = self.get_workspace = lambda: self

    def get_prop(self, key, default=None):
        from nvflare.apis.fl_constant import FLContextKey

        known = {FLContextKey.JOB_META: {"submitter_name": self.lead}, FLContextKey.APP_ROOT: str(self.root)}
        return known.get(key, default)

    def get_job_id(self):
        return self.number

    def get_identity_name(self):
        return "site-1"

    def get_root_dir(self):
        return str(self.root)

    def get_app_custom_dir(self, job):
        return str(self.root / "none")

    get_app_config_dir = get_app_custom_dir

    get_site_custom_dir = get_site_config_dir = get_startup_kit_dir = lambda self: str(self.root / "none")


@pytest.fixture
def victim(finished, tmp_path, monkeypatch):
    """The state of another lead's federation at the server, and the configuration that it began with."""
    pytest.importorskip("nvflare")
    from fairflare.core.processes import RUN_FOLDER
    from fairflare.engine.setup.config import RunConfig

    monkeypatch.delenv(RUN_FOLDER, raising=False)
    folder = tmp_path / "fairflare_state" / VICTIM
    shutil.copytree(finished, folder)
    (folder / ".submitter").write_text(LEAD)
    config = RunConfig.from_json(json.loads((finished / "config.json").read_text()))
    return folder, config


def controller(config, job, monkeypatch, **change):
    """The server's side of a job that names the victim's federation; no site is asked for anything."""
    from fairflare.flare import controller

    def sites():
        raise RunFailed("asked for the sites")

    monkeypatch.setattr(controller, "end_with_command", lambda: None)
    one = controller.FairController({**config.to_json(), "federation": VICTIM, **change})
    one.fl_ctx, one.engine, one.sites, one.info = job, job, sites, lambda text: None
    one.get_run_dir = lambda: str(job.root / "result")
    return one


def content(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("lead, change", [(LEAD, {"seed": 9}), ("lead@two.org", {"seed": 9}), ("lead@two.org", {})])
def test_a_job_of_another_does_not_touch_a_federation_and_gets_nothing_of_it(lead, change, victim, monkeypatch):
    folder, config = victim
    before, job = content(folder), Job(folder.parents[1], lead)
    with pytest.raises((RunFailed, UserError)) as refused:
        controller(config, job, monkeypatch, **change).run()
    assert not (job.root / "result").exists(), "it was handed over"
    assert content(folder) == before
    with pytest.raises(RunFailed) as absent:
        controller(config, job, monkeypatch, federation="no-such-id").run()
    assert str(refused.value) == str(absent.value).replace("no-such-id", VICTIM), "it tells that there is one"
    assert "\n" not in str(refused.value) and not (folder.parent / "no-such-id").exists()


def test_its_own_lead_continues_it_and_gets_it_once_it_has_begun(victim, monkeypatch):
    folder, config = victim
    job = Job(folder.parents[1])
    with pytest.raises(RunFailed, match="asked for the sites"):
        controller(config, job, monkeypatch).run()
    assert not (job.root / "result").exists()
    (folder / ".submitter").unlink()  # as the version before left it
    with pytest.raises(RunFailed, match="asked for the sites"):
        controller(config, job, monkeypatch, task_timeout=99).run()


def test_who_begins_a_federation_is_noted_and_not_handed_over(victim, monkeypatch):
    folder, config = victim
    job = Job(folder.parents[1], number="mine")
    with pytest.raises(RunFailed, match="asked for the sites"):
        controller(config, job, monkeypatch, federation="").run()
    assert (folder.parent / "mine" / ".submitter").read_text() == LEAD
    assert not (job.root / "result" / "fairflare" / ".submitter").exists()


@pytest.mark.parametrize("torn", [b"", b"[]\n", b"{", b"\xff\n"])
def test_a_log_without_a_first_line_is_nobodys(torn, victim, monkeypatch):
    folder, config = victim
    (folder / "audit.jsonl").write_bytes(torn)
    with pytest.raises((RunFailed, UserError), match="this job cannot continue it"):
        controller(config, Job(folder.parents[1]), monkeypatch).run()


def test_the_persistor_of_another_job_serves_no_model(victim):
    from fairflare.flare.persistor import FairPersistor

    folder, config = victim
    root = folder.parents[1]
    for known, lead in ([], LEAD), (["0" * 64], LEAD), ([config.lineage()], "lead@two.org"):
        for read in ("load_model", "get_model_inventory"):
            with pytest.raises(RunFailed):
                getattr(FairPersistor(VICTIM, *known), read)(Job(root, lead))
    assert FairPersistor(VICTIM, config.lineage()).load_model(Job(root))["weights"]


@pytest.mark.parametrize("lead, change", [(LEAD, {"seed": 9}), ("lead@two.org", {})])
def test_a_sites_memory_is_one_configurations_and_one_leads(lead, change, victim, monkeypatch):
    from nvflare.apis.event_type import EventType

    from fairflare.flare import executor

    folder, config = victim
    monkeypatch.setattr(executor, "end_with_command", lambda: None)

    @contextlib.contextmanager
    def site(lead, **change):
        one = executor.FairExecutor({**config.to_json(), "federation": VICTIM, **change})
        one.log_info = lambda *args: None
        yield one._ready(Job(folder.parents[1], lead)).memory
        one.handle_event(EventType.END_RUN, None)

    with site(LEAD) as memory:
        memory.keep(1, {"a": 1.0})
    with site(lead, **change) as memory:
        assert memory.before(9) == {}, "another job reads it"
        memory.keep(1, {"a": 9.0})
    with site(LEAD, task_timeout=99) as memory:
        assert memory.before(9) == {"a": 1.0}, "another job has replaced it"


# A kill at every moment of a run's life


def at(place, name, when=lambda *a: True):
    """Die in ``place.name`` the first time that ``when`` is true of its arguments."""

    def patch():
        original = getattr(place, name)

        def dying(*args, **kwargs):
            if when(*args):
                die()
            return original(*args, **kwargs)

        setattr(place, name, dying)

    return patch


def nth(number):
    """True at the call of this number, from 0."""
    counted = iter(range(999))
    return lambda *args: next(counted) == number


def half_a_line():
    """The audit log's first line is half on disk."""
    emptied_log('{"seq": 0, "ti')


def emptied_log(text):
    """The audit log holds ``text`` in place of its first line."""

    def torn(path, data, at):
        path.write_text(text)
        die()

    audit._write = torn


def while_replacing(name):
    """``name`` is whole under its temporary name."""
    return at(files.os, "replace", lambda source, target: Path(target).name == name)


BEGIN = "found no config.json of one; `fairflare run` begins"
MOMENTS = {
    "before anything": (at(folders, "refuse_existing"), BEGIN),
    "the configuration half written": (while_replacing("config.json"), BEGIN),
    "the first site's data": (at(Site, "_find_data"), None),
    "the log's first line": (half_a_line, None),
    "the first round": (at(TrainAtSite, "train"), None),
    "the first checkpoint": (while_replacing("checkpoint.safetensors"), None),
    "the second round": (at(TrainAtSite, "train", lambda half, site, order, *_: order.round.number == 2), None),
    "evaluation": (at(EvaluateAtSite, "evaluate", lambda half, site, order, *_: order.task == "evaluate"), None),
    "the model": (while_replacing("model.safetensors"), None),
    "before the report": (at(write, "summarise"), None),
    "report.json": (while_replacing("report.json"), None),
    "report.html": (while_replacing("report.html"), None),
}


@each("moment", MOMENTS)
def test_after_a_kill_one_command_goes_on(moment, capsys, finished, tmp_path):
    kill, refusal = MOMENTS[moment]
    folder = tmp_path / "run"
    assert in_child(*RUN, "--out", folder, patch=kill) == -signal.SIGKILL
    if refusal:
        code, _, err = call(capsys, "resume", folder)
        assert code == 2 and refusal in err and err.count("\n") == 1
        assert call(capsys, *RUN, "--out", folder)[0] == 0
    else:
        code, _, err = call(capsys, *RUN, "--out", folder)
        assert code == 2 and f"`fairflare resume {folder}` goes on" in err and err.count("\n") == 1
        assert call(capsys, "resume", folder)[0] == 0
    assert verify_run(folder)[-1]["model_sha256"] == verify_run(finished)[-1]["model_sha256"]
    assert {p.name for p in folder.iterdir()} == {p.name for p in finished.iterdir()}
    assert call(capsys, "resume", folder)[0] == 2 and call(capsys, *RUN, "--out", folder)[0] == 2
    assert not litter(tmp_path)


FORCED = {
    "the third file put aside": at(Path, "rename", nth(2)),
    "all put aside": at(folders, "_put_aside", lambda folder: put_aside(folder) or True),
    "the configuration": while_replacing("config.json"),
    "the first site's data": at(Site, "_find_data"),
    "the log is empty": lambda: emptied_log(""),
    "the log's first line is half there": half_a_line,
    "the log's first line lacks its end": lambda: emptied_log('{"seq": 0, "event": "start"}'),
    "the log's first line is no entry": lambda: emptied_log("{}\n"),
}
put_aside = folders._put_aside


@pytest.mark.parametrize("moment", FORCED)
def test_a_killed_run_with_force_brings_the_old_one_back(moment, capsys, copy):
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    again = [*RUN, "--seed", "3", "--out", copy, "--force"]
    assert in_child(*again, patch=FORCED[moment]) == -signal.SIGKILL
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} != before
    code, _, err = call(capsys, "resume", copy)
    assert code == 2 and "the run is complete" in err
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before
    assert call(capsys, *again)[0] == 0 and not litter(copy.parent)
    assert json.loads((copy / "config.json").read_text())["seed"] == 3


@pytest.mark.parametrize("text", ["", '{"seq": 0, "ti', "{}\n"])
def test_a_failed_run_with_force_brings_the_old_one_back(text, capsys, copy, monkeypatch):
    """The disk was full when the first line was to be written."""
    original = audit.AuditLog.append

    def full(self, event, **content):
        if event == "start":
            self.path.write_text(text)
            raise OSError(28, "No space left on device")
        return original(self, event, **content)

    monkeypatch.setattr(audit.AuditLog, "append", full)
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    assert call(capsys, *RUN, "--seed", "3", "--out", copy, "--force")[0] in (1, 2)
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


def test_a_log_that_breaks_later_does_not_bring_the_old_run_back(capsys, copy):
    again = [*RUN, "--seed", "3", "--out", copy, "--force"]
    assert in_child(*again, patch=at(TrainAtSite, "train")) == -signal.SIGKILL
    with (copy / "audit.jsonl").open("ab") as log:
        log.write(b"garbage\n")
    assert call(capsys, "resume", copy)[0] == 2
    assert json.loads((copy / "config.json").read_text())["seed"] == 3


def test_a_killed_run_with_force_goes_on_once_it_has_begun(capsys, copy):
    again = [*RUN, "--seed", "3", "--out", copy, "--force"]
    assert in_child(*again, patch=at(TrainAtSite, "train")) == -signal.SIGKILL
    assert call(capsys, "resume", copy)[0] == 0 and not litter(copy)
    assert json.loads((copy / "report.json").read_text())["seed"] == 3


@pytest.mark.parametrize(
    "command, moment",
    [
        ("compare", "before anything"),
        ("compare", "the configuration half written"),
        ("compare", "the second round"),
        ("contribution", "the second round"),
    ],
)
def test_the_same_command_goes_on(command, moment, capsys, tmp_path):
    small = ["--task", "support2:dirichlet", "--sites", "3", "--rounds", "2"]
    whole = [command, "fedavg", *small, "--out", tmp_path / "c"]
    assert in_child(*whole, patch=MOMENTS[moment][0]) == -signal.SIGKILL
    code, _, err = call(capsys, *whole)
    assert code == 0, err
    said = "was cut short, begins again" if command == "compare" else "was cut short, goes on"  # as short runs do
    assert (said in err) == (moment == "the second round")
    assert not litter(tmp_path)
    for log in (tmp_path / "c").glob("*/audit.jsonl"):
        events = [entry["event"] for entry in verify_run(log.parent)]
        assert events.count("round") == 2 and events[-1] == "finish"


def test_what_was_left_half_written_goes(capsys, copy):
    """And a name without ``.tmp`` at its end may be the user's copy of a file."""
    strangers = {
        ".notes.txt.abcd1234.tmp",
        ".report.json.mybackup",
        ".checkpoint.safetensors.abc_1234",
        ".model.safetensors.backup.tmp",
    }
    for name in (".checkpoint.safetensors.abc_1234.tmp", ".report.json.abcd1234.tmp", *strangers):
        (copy / name).write_bytes(b"half")
    assert call(capsys, "report", copy)[0] == 0
    assert set(litter(copy)) == strangers, "only our own names are known"


KEPT = (".inputs.json", ".asked.json")
"""Endings of what a site's own files have beside its memory."""


def strange(place):
    """What others keep in ``place``, by name."""
    place.mkdir(exist_ok=True)
    (place / "thesis.txt").write_text("years of work")
    (place / "thesis.safetensors").write_text("years of work")
    (place / "notes").mkdir()
    (place / "notes" / "site-1.safetensors").write_text("years of work")
    return {path: path.is_dir() or path.read_bytes() for path in place.rglob("*")}


@pytest.mark.parametrize("moment", ["run", "resume", "complete"])
def test_strangers_beside_the_sites_memories_stay(moment, capsys, tmp_path, copy):
    folder = copy if moment == "complete" else tmp_path / "new"
    if moment == "resume":
        assert in_child(*RUN, "--out", folder, patch=MOMENTS["the second round"][0]) == -signal.SIGKILL
    folder.mkdir(exist_ok=True)
    if moment == "run":
        original = loop.Federation.run
        found = {}

        def run(self, *args):
            final = original(self, *args)
            found.update(strange(folder / "sites"))
            (folder / "sites" / "site-1.asked.json").write_bytes(b"")
            return final

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop.Federation, "run", run)
            assert call(capsys, *RUN, "--out", folder)[0] == 0
    else:
        found = strange(folder / "sites")
        (folder / "sites" / "site-1.asked.json").unlink(missing_ok=True)
        if moment == "complete":
            (folder / "sites" / "site-1.asked.json").write_bytes(b"")
        assert call(capsys, "resume", folder)[0] == (2 if moment == "complete" else 0)
    ours = {folder / "sites" / f"site-{number}.safetensors" for number in range(1, 5)}
    theirs = {p: p.is_dir() or p.read_bytes() for p in (folder / "sites").rglob("*") if not p.name.endswith(KEPT)}
    assert theirs == {path: held for path, held in found.items() if path not in ours and not path.name.endswith(KEPT)}


@pytest.mark.parametrize("stranger", [True, False])
def test_strangers_beside_the_keys_of_a_simulated_run_stay(stranger, tmp_path, monkeypatch):
    simulate = pytest.importorskip("fairflare.flare.simulate")
    place, wrote = tmp_path / "he", (simulate.SITE_CONTEXT, simulate.SERVER_CONTEXT)

    def contexts(folder):
        place.mkdir()
        for name in wrote:
            (place / name).write_bytes(b"key")

    monkeypatch.setattr(simulate, "make_contexts", contexts)
    monkeypatch.setattr(simulate, "_environment", lambda folder: dict(os.environ))
    monkeypatch.setattr(simulate.sys, "executable", "false")  # the simulator ends at once
    found = {}
    monkeypatch.setattr(simulate, "_fetch", lambda *_: found.update(strange(place) if stranger else {}))
    config = make_config("fedavg", "support2", rounds=1, values={"secure_sum": "ckks"})
    with pytest.raises(RunFailed, match="the simulator ended"):
        simulate.run_simulator(config, tmp_path, ["site-1"])
    found = {path: content for path, content in found.items() if path.name not in wrote}
    assert place.exists() == stranger and {p: p.is_dir() or p.read_bytes() for p in place.rglob("*")} == found


# --force and strangers


STRANGERS = {
    "thesis.txt": lambda run: (run / "thesis.txt").write_text("years"),
    "tb_events/thesis.txt": lambda run: (run / "tb_events" / "thesis.txt").write_text("years"),
    "sites/thesis.txt": lambda run: (
        (run / "sites").mkdir(exist_ok=True),
        (run / "sites" / "thesis.txt").write_text("years"),
    ),
    "thesis": lambda run: (run / "thesis").mkdir(),
    "model.safetensors": lambda run: (
        (run / "model.safetensors").rename(run / "../w"),
        (run / "model.safetensors").symlink_to(run / "../w"),
    ),
    "tb_events": lambda run: ((run / "tb_events").rename(run / "../e"), (run / "tb_events").symlink_to(run / "../e")),
    ".thesis.safetensors.abcd1234.tmp": lambda run: (run / ".thesis.safetensors.abcd1234.tmp").write_text("years"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_force_keeps_and_names_a_strangers_file(name, capsys, copy):
    STRANGERS[name](copy)
    before = sorted(copy.parent.rglob("*"))
    code, _, err = call(capsys, *RUN, "--out", copy, "--force")
    assert code == 2 and f"holds {name!r}, which is not fairflare's" in err and err.count("\n") == 1
    assert sorted(copy.parent.rglob("*")) == before


def test_force_knows_everything_that_a_run_writes(copy, capsys):
    from fairflare.flare.simulate import LOG
    from fairflare.privacy.schemes import HE, SERVER_CONTEXT, SITE_CONTEXT

    (copy / LOG).write_text("")
    (copy / "preflight_site-1.txt").write_text("")
    for name in ("he", "sites"):
        (copy / name).mkdir(exist_ok=True)
    for name in (
        f"{HE}/{SERVER_CONTEXT}",
        f"{HE}/{SITE_CONTEXT}",
        "sites/site-1.safetensors",
        "sites/site-1.safetensors.lock",
    ):
        (copy / name).write_bytes(b"")
    assert folders.strangers(copy) == []
    assert call(capsys, *RUN, "--out", copy, "--force")[0] == 0
    assert not (copy / LOG).exists() and not list((copy / "sites").glob("*.safetensors*"))


def test_export_replaces_jobs_only(capsys, tmp_path):
    export = ["export", "fedavg", "--task", "support2", "--out", tmp_path / "job", "--force"]
    assert call(capsys, *export)[0] == 0 and call(capsys, *export)[0] == 0
    for name in ("thesis.txt", "app_sites/custom/thesis.py", "app_server/custom/fairflare/thesis.txt"):
        (tmp_path / "job" / name).write_text("years of work")
        code, _, err = call(capsys, *export)
        assert code == 2 and f"holds {name!r}" in err and (tmp_path / "job" / name).exists()
        (tmp_path / "job" / name).unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["job"]


def test_a_killed_export_leaves_the_old_job_or_the_new_one(capsys, tmp_path):
    out = tmp_path / "job"
    export = ["export", "fedavg", "--task", "support2", "--out", out, "--force"]
    assert call(capsys, *export)[0] == 0
    for number in (0, 1):
        assert in_child(*export, patch=at(Path, "rename", nth(number))) == -signal.SIGKILL
        assert call(capsys, *export)[0] == 0
        assert (out / "meta.json").is_file() and [p.name for p in tmp_path.iterdir()] == ["job"]


@pytest.mark.parametrize("command", ["compare", "contribution"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_strangers_folder_is_refused(command, force, capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = call(capsys, command, "fedavg", *TASK, "--out", tmp_path, *force)
    assert code == 2 and "holds 'thesis.txt'" in err and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_contribution_does_not_replace_another_finished_run(capsys, copy):
    place = copy.rename(copy.parent / "all-sites")
    before = (place / "audit.jsonl").read_bytes()
    command = ["contribution", "fedavg", "--task", "support2", "--rounds", 1, "--out", copy.parent]
    code, _, err = call(capsys, *command)
    assert code == 2 and "--force to replace it" in err and (place / "audit.jsonl").read_bytes() == before


# Signals, names and files that are not what they should be


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_in_one_line(number, code, capsys, tmp_path):
    def signalled():
        original = TrainAtSite.train
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background jobs are born like that
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # so are those of nohup
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

        def train(self, site, order, *more):
            if order.round.number == 2:
                os.kill(os.getpid(), number)
            return original(self, site, order, *more)

        TrainAtSite.train = train

    folder, said = tmp_path / "run", tmp_path / "said"
    assert in_child(*RUN, "--out", folder, patch=signalled, said=said) == code
    *progress, last = said.read_text().strip().splitlines()
    assert all(line.startswith(("start: ", "round ")) for line in progress if line), progress
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert last == f"fairflare: {word}; `fairflare resume {folder}` goes on after the last finished round"
    assert not litter(folder) and call(capsys, "resume", folder)[0] == 0


BROKEN = {
    "config.json": [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}'],
    "report.json": [b"", b"{", b"[]", b"\xff\xfe"],
    "audit.jsonl": [b"{", b"[]\n", b"\xff\xfe\n", b"{}\n"],
}


@each("name, content", [(name, content) for name, all in BROKEN.items() for content in all], ids=str)
@each("command", ["resume", "compare"])
def test_a_broken_file_is_one_line(command, name, content, capsys, finished, tmp_path):
    place = tmp_path / "fedavg-seed0"
    shutil.copytree(finished, place)
    (place / name).write_bytes(content)
    words = {"resume": ["resume", place], "compare": ["compare", "fedavg", *TASK, "--out", tmp_path]}
    code, _, err = call(capsys, *words[command])
    assert code in (0, 2) and "internal error" not in err
    assert sum(line.startswith("fairflare: ") for line in err.splitlines()) == (code == 2)


@each("out", ["\0", "a\0b", "x" * 300, "loop/run", "loop"])
@each("command", ["run", "compare", "contribution", "export", "resume", "report"])
def test_an_impossible_folder_is_one_line(command, out, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    if command in ("resume", "report"):
        words = [command, out]
    else:
        words = [command, "fedavg", *(TASK if command != "export" else TASK[:2]), "--out", out]
    code, _, err = call(capsys, *words)
    assert code == 2 and "internal error" not in err and err.count("\n") == 1, err
    assert [p.name for p in tmp_path.iterdir()] == ["loop"]


@each("name", ["a/b", "..", "", ".", "x" * 300, "-x"])
def test_a_jobs_name_is_a_name(name, capsys, tmp_path):
    code, _, err = call(capsys, "export", "fedavg", "--task", "support2", "--out", tmp_path / "job", "--name", name)
    assert code == 2 and "--name: expected" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
