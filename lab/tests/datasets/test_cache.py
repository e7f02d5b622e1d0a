# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk: the same bits, one rendering, and nothing that is broken, foreign or a pickle is read."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest

import fairflare
import fairflare_lab
from fairflare.cli.main import main
from fairflare.core.imports import imports, module_files
from fairflare.engine import audit
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare.studies.runs import execute
from fairflare_lab.datasets import brain_seg, cache, digits, fundus_phantom, ich_phantom
from fairflare_lab.datasets.ich_phantom import IchPhantom

TASKS = {
    "ich-phantom": {"images": 72, "n_sites": 3, "corrupted": 1, "size": 32, "test_images": 20, "site_test_images": 8},
    "brain-seg": {"images": 40, "n_sites": 2, "size": 32, "site_test_images": 6},
    "fundus-phantom": {"images": 60, "n_sites": 2, "size": 32, "site_test_images": 6},
    "digits": {"images_per_site": 24, "test_images": 20, "site_test_images": 8},
}
DRAWERS = ((ich_phantom, "render"), (brain_seg.BrainSeg, "subject"), (fundus_phantom, "eye"), (digits, "drawn_digit"))
ICH = "ich-phantom"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def drawn(monkeypatch):
    """Grows by one entry per image that is drawn."""
    found = []
    for module, name in DRAWERS:
        draw = getattr(module, name)
        counted = lambda *a, draw=draw, **k: found.append(1) or draw(*a, **k)  # noqa: E731
        monkeypatch.setattr(module, name, staticmethod(counted) if isinstance(module, type) else counted)
    return found


def _task(name=ICH, **options):
    return load(name, **TASKS[name] | options)


def _bits(data):
    return [t.numpy().tobytes() + str(t.dtype).encode() for s in data.splits.values() for t in (s.inputs, s.targets)]


def _tests(task):
    return [(t.name, t.corrupted, t.images.numpy().tobytes(), t.targets.numpy().tobytes()) for t in task.test_sets()]


@pytest.mark.parametrize("name", TASKS)
def test_cached_is_rendered_bit_for_bit(name, folder, drawn, monkeypatch):
    site = "site-2"
    kept, n = _bits(_task(name).site_data(site)), len(drawn)
    again, tests = _bits(_task(name).site_data(site)), _tests(_task(name))
    m = len(drawn)
    assert n > 0 and again == kept and _tests(_task(name)) == tests and len(drawn) == m
    monkeypatch.setenv(cache.CACHE, "off")
    assert _bits(_task(name).site_data(site)) == kept and _tests(_task(name)) == tests and len(drawn) > m
    assert {path.name.split("-site-")[0].split("-tests-")[0] for path in folder.iterdir()} == {name}


def test_a_site_renders_its_own_images_only(folder, drawn):
    task = _task()
    task.site_data("site-2")
    assert len(drawn) == sum(map(len, task.rows("site-2").values())) and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("change", [{"data_seed": 1}, {"severity": 2}, {"site_test_images": 9}, {"size": 48}])
def test_other_options_are_other_data(folder, drawn, change):
    _task().site_data("site-3")
    n = len(drawn)
    _task(**change).site_data("site-3")
    assert len(drawn) > n


def test_the_network_does_not_matter(folder, drawn):
    before, n = _bits(_task().site_data("site-1")), len(drawn)
    other = _task(model="resnet18", augment=True).site_data("site-1")
    assert _bits(other) == before and len(drawn) == n and other.augment and len(other.mean) == 3


def test_each_file_that_renders_counts_and_no_other(monkeypatch):
    """One after the other is edited: exactly those on the way to the pixels change the name."""
    original, edited = cache.Path.read_bytes, []
    monkeypatch.setattr(
        cache.Path, "read_bytes", lambda path: original(path) + (b"\n#" if path.name in edited else b"")
    )

    def code(*names):
        cache._code.cache_clear()
        edited[:] = names
        return cache._code(type(_task()).__module__)

    plain = code()
    for name in ("ich_phantom.py", "phantoms.py", "poor_images.py", "seeds.py", "base.py", "cache.py"):
        assert code(name) != plain, name
    assert (
        code("brain_seg.py", "fundus_phantom.py", "digits.py", "support2.py", "loop.py", "cli.py", "networks.py")
        == plain
    )
    cache._code.cache_clear()


@dataclasses.dataclass(frozen=True)
class Plugged(IchPhantom):
    """A class from outside the package, whose code nobody hashes."""


def test_what_others_write_is_rendered_each_time(folder, drawn):
    task = Plugged(**TASKS[ICH])
    task.site_data("site-1")
    n = len(drawn)
    task.site_data("site-1")
    assert len(drawn) == 2 * n and not folder.exists()


def test_a_hospitals_own_data_are_never_kept():
    """Only what is drawn comes here: no task that reads a file, of a published data set neither, uses it."""
    packages = [Path(package.__file__).parent for package in (fairflare, fairflare_lab)]
    modules = {name: path for package in packages for name, path in module_files(package).items()}
    users = {
        name.removeprefix("fairflare_lab.datasets.")
        for name, path in modules.items()
        if any(used.startswith("fairflare_lab.datasets.cache") for used in imports(path))
    }
    assert users == {"digits", "ich_phantom", "phantoms"}


BREAK = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "not ours": lambda content: b"\x80\x04\x95" + os.urandom(2000),
    "another key": lambda content: content.replace(b'\\"data_seed\\": 2024', b'\\"data_seed\\": 2025'),
}


@pytest.mark.parametrize("how", BREAK)
def test_what_is_broken_or_foreign_is_rendered_again(how, folder, drawn):
    task = _task()
    kept, n = _bits(task.site_data("site-1")), len(drawn)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    broken = BREAK[how](content)
    assert broken != content
    path.write_bytes(broken)
    assert _bits(task.site_data("site-1")) == kept and len(drawn) == 2 * n
    assert path.read_bytes() == content and len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_costs_rendering_only(tmp_path, monkeypatch, drawn):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "file" / "cache"))
    assert _bits(_task().site_data("site-1")) == _bits(_task().site_data("site-1")) and len(drawn) > 0
    assert (tmp_path / "file").read_text() == ""


def test_a_full_disk_leaves_nothing(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    _task().site_data("site-1")
    assert list(folder.iterdir()) == []


def test_the_oldest_go_when_there_are_too_many(folder, monkeypatch):
    task = _task()
    task.site_data("site-1")
    (first,) = folder.iterdir()
    monkeypatch.setattr(cache, "MAX_BYTES", int(2.5 * first.stat().st_size))
    task.site_data("site-2")
    for age, path in ((900, first), (600, max(folder.iterdir(), key=lambda path: path != first))):
        os.utime(path, (time.time() - age,) * 2)
    (folder / "notes.txt").write_text("the user's own")
    task.site_data("site-1")  # is used, so that site-2 is the oldest now
    task.site_data("site-3")
    names = {path.name.split("-site-")[-1][:1] for path in folder.glob("*.rendered")}
    assert names == {"1", "3"} and (folder / "notes.txt").is_file()


def _render(counter):
    """The bits, in a process of its own; a line in ``counter`` for every image that is drawn."""
    draw = ich_phantom.render

    def counted(*args):
        with counter.open("a") as file:
            file.write("x\n")
        return draw(*args)

    ich_phantom.render = counted
    return _bits(_task().site_data("site-1"))


def test_of_processes_at_once_one_renders(folder, tmp_path):
    counter = tmp_path / "drawn"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_render, [counter] * 4)
    assert all(bits == found[0] for bits in found) and len(list(folder.iterdir())) == 1
    assert len(counter.read_text().split()) == sum(map(len, _task().rows("site-1").values()))


@contextlib.contextmanager
def _held(folder):
    """Another process holds the lock of what ``site-1`` renders."""

    def hold(ready):
        name = hashlib.sha256(cache._key(_task(), "site-1").encode()).hexdigest()[:40]
        lock = os.open(folder / f".{ICH}-site-1-{name}.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready.set()
        time.sleep(60)

    folder.mkdir()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=hold, args=(ready,))
    child.start()
    assert ready.wait(30)
    try:
        yield child
    finally:
        child.kill()
        child.join()


def test_nobody_waits_for_ever(folder, drawn, monkeypatch):
    monkeypatch.setattr(cache, "MAX_WAIT", 0.2)
    with _held(folder):
        _task().site_data("site-1")
    assert drawn and len(list(folder.glob("*.rendered"))) == 1


def test_others_cannot_look(folder):
    _task().site_data("site-1")
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600


SETTINGS = [f"--set={key}={value}" for key, value in TASKS[ICH].items() if key != "n_sites"]


def _compare(capsys, out, *more):
    arguments = ["compare", "fedavg", "--task", "ich-phantom:small", "--sites", "3",
                 "--rounds", "1", *SETTINGS, "--out", str(out), "--json", *more]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return [m["runs"][0]["model_sha256"] for m in json.loads(capsys.readouterr().out)["methods"]]


def test_a_comparison_renders_once(capsys, folder, tmp_path, drawn):
    models = _compare(capsys, tmp_path / "a", "fedavg:weighting=uniform")
    assert len(models) == 2
    once = len(drawn)
    assert once == 72 + 20 + max(0, 3 * 8 - sum(round(0.15 * 24) for _ in range(3)))
    assert _compare(capsys, tmp_path / "b", "--no-cache") == models[:1] and len(drawn) == 2 * once
    assert os.environ[cache.CACHE] == str(folder)


def test_no_cache_on_every_command_that_renders(folder, monkeypatch, capsys):
    """Whatever the command says of its arguments, nothing is kept within it, and the variable is as before."""
    seen = []
    monkeypatch.setattr("fairflare.studies.runs.resume", lambda *a, **k: seen.append(cache.folder()) or {})
    with pytest.raises(SystemExit):
        main(["resume", "run", "--no-cache", "--json"])
    assert seen == [None] and cache.folder() == folder
    for command in ("run", "compare", "contribution", "resume"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--no-cache" in capsys.readouterr().out


def test_only_the_final_model_meets_all_test_sets(folder, tmp_path):
    """The other of the last five rounds are scored on the two sets of the papers' tables, whose means these are."""
    config = make_config("fedavg", "ich-phantom:small", rounds=2, values=TASKS[ICH])
    report = execute(config, tmp_path / "run")
    before, final = (e["test_sets"] for e in audit.verify(tmp_path / "run" / "audit.jsonl") if e["event"] == "scores")
    assert set(before) == {"clean", "noise 3"} and len(final) == 6
    assert [row["name"] for row in report["detail"]["test_sets"]["rows"]] == list(final)
    last = report["detail"]["test_sets"]["last"]
    assert last["clean"]["loss"] == pytest.approx(
        (before["clean"]["metrics"]["loss"] + final["clean"]["metrics"]["loss"]) / 2
    )
