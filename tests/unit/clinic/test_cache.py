# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk: the same bits, one rendering, and nothing that is broken, foreign or a pickle is read."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import stat
import struct
import time
from pathlib import Path

import pytest
import torch

import fairflare
from cases import each
from fairflare.cli.main import main
from fairflare.core.imports import imports, module_files
from fairflare.datasets import cache, ich_phantom
from fairflare.datasets.ich_phantom import IchPhantom
from fairflare.engine import audit
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.tasks import load
from fairflare.flare import simulate
from fairflare.studies.runs import execute
from fairflare_lab.datasets import brain_seg, digits, fundus_phantom

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


def test_other_code_renders_anew(folder, drawn, monkeypatch):
    _task().site_data("site-1")
    n = len(drawn)
    monkeypatch.setattr(cache, "_code", lambda task: "other code")
    _task().site_data("site-1")
    assert len(drawn) == 2 * n


def test_the_code_is_that_of_all_that_renders(monkeypatch):
    cache._code.cache_clear()
    before, read = cache._code(type(_task())), []
    cache._code.cache_clear()
    original = cache.Path.read_bytes
    monkeypatch.setattr(cache.Path, "read_bytes", lambda path: read.append(path.name) or original(path) + b"#")
    assert cache._code(type(_task())) != before
    assert {"phantoms.py", "partition.py", "seeds.py", "ich_phantom.py"} <= set(read)
    cache._code.cache_clear()


def test_each_file_that_renders_counts_and_no_other(monkeypatch):
    """One after the other is edited: exactly those on the way to the pixels change the name."""
    original, edited = cache.Path.read_bytes, []
    monkeypatch.setattr(
        cache.Path, "read_bytes", lambda path: original(path) + (b"\n#" if path.name in edited else b"")
    )

    def code(*names):
        cache._code.cache_clear()
        edited[:] = names
        return cache._code(type(_task()))

    plain = code()
    for name in ("ich_phantom.py", "phantoms.py", "partition.py", "seeds.py", "base.py", "cache.py"):
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


def test_on_another_processor_it_is_rendered_anew(folder, drawn, monkeypatch):
    _task().site_data("site-1")
    n = len(drawn)
    monkeypatch.setattr(cache, "_arithmetic", lambda: "rounds otherwise")
    _task().site_data("site-1")
    assert len(drawn) == 2 * n


def test_a_hospitals_own_data_are_never_kept():
    """Only what is drawn comes here: no task that reads a file, of a published data set neither, uses it."""
    package = Path(fairflare.__file__).parent
    users = {
        name.removeprefix("fairflare.")
        for name, path in module_files(package).items()
        if any(used.startswith("fairflare.datasets.cache") for used in imports(path))
    }
    assert users == {"datasets.ich_phantom", "datasets.phantoms", "flare.simulate"}


def headed(change):
    """Another header, and the tensors as they are."""

    def apply(content, key):
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return apply


def _another_key(header):
    about = header["__metadata__"]
    about["key"] = about["key"].replace('"data_seed": 2024', '"data_seed": 2025')


def _nested(header):
    header["__metadata__"]["fairflare"] = '{"map":[["train inputs",[{"tensor":0}]]]}'


BREAK = {
    "empty": lambda content, key: b"",
    "cut": lambda content, key: content[: len(content) // 2],
    "one bit": lambda content, key: content[:-500] + bytes([content[-500] ^ 1]) + content[-499:],
    "longer": lambda content, key: content + b"more",
    "not ours": lambda content, key: b"\x80\x04\x95" + os.urandom(2000),
    "not utf-8": lambda content, key: b"\xff\xfe\n" + content,
    "another key": headed(_another_key),
    "another shape": headed(lambda h: h["train inputs"]["shape"].reverse()),
    "another kind": headed(lambda h: h["train inputs"].update(dtype="I8")),
    "another name": headed(lambda h: h.update({"train x": h.pop("train inputs")})),
    "other content": headed(_nested),
    "no hash": headed(lambda h: h["__metadata__"].pop("sha256")),
    "no object": lambda content, key: struct.pack("<Q", 3) + b"[1]" + content,
    "an unknown kind": headed(lambda h: h["train inputs"].update(dtype="object")),
    "a shape below zero": headed(lambda h: h["train inputs"].update(shape=[-1, -1])),
    "a giant": headed(lambda h: h["train inputs"].update(shape=[2**60])),
}


@pytest.mark.parametrize("how", BREAK)
def test_what_is_broken_or_foreign_is_rendered_again(how, folder, drawn):
    task = _task()
    kept, n = _bits(task.site_data("site-1")), len(drawn)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    broken = BREAK[how](content, cache._key(task, "site-1"))
    assert broken != content
    path.write_bytes(broken)
    assert _bits(task.site_data("site-1")) == kept and len(drawn) == 2 * n
    assert path.read_bytes() == content and len(list(folder.iterdir())) == 1


def test_links_and_folders_and_pipes_are_not_read(folder, drawn, tmp_path):
    task = _task()
    task.site_data("site-1")
    n, (path,) = len(drawn), folder.iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    task.site_data("site-1")
    assert len(drawn) == 2 * n and not path.is_symlink()
    path.unlink()
    os.mkfifo(path)
    task.site_data("site-1")
    assert len(drawn) == 3 * n and path.is_file()
    path.unlink()
    path.mkdir()
    task.site_data("site-1")
    assert len(drawn) == 4 * n


def test_another_users_file_is_not_read(folder, drawn, monkeypatch):
    _task().site_data("site-1")
    n = len(drawn)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    _task().site_data("site-1")
    assert len(drawn) == 2 * n


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
    monkeypatch.setattr(cache, "LARGEST", int(2.5 * first.stat().st_size))
    task.site_data("site-2")
    for age, path in ((900, first), (600, max(folder.iterdir(), key=lambda path: path != first))):
        os.utime(path, (time.time() - age,) * 2)
    left = folder / f".{first.stem}.abcd_123.tmp"
    left.write_text("")
    os.utime(left, (0, 0))
    (folder / "notes.txt").write_text("the user's own")
    task.site_data("site-1")  # is used, so that site-2 is the oldest now
    task.site_data("site-3")
    names = {path.name.split("-site-")[-1][:1] for path in folder.glob("*.rendered")}
    assert names == {"1", "3"} and (folder / "notes.txt").is_file() and not left.exists()


NAMES = ("thesis.tmp", ".left.tmp", "thesis.rendered", "a-site-1-0123abcd.rendered", "{stem}.tmp", ".{stem}.old.tmp")


def test_files_of_other_names_stay_whatever_their_age(folder, monkeypatch):
    """The variable may name a folder that the user keeps other things in."""
    task = _task()
    task.site_data("site-1")
    (first,) = folder.iterdir()
    strangers = [folder / name.format(stem=first.stem) for name in NAMES]
    links = [folder / f"mine-{'0' * 40}.rendered", folder / f".mine-{'0' * 40}.abcd1234.tmp"]
    for path in strangers:
        path.write_bytes(b"years of work" * 1000)
        os.utime(path, (0, 0))
    for path in links:
        path.symlink_to(strangers[0])
        os.utime(path, (0, 0), follow_symlinks=False)
    monkeypatch.setattr(cache, "LARGEST", int(2.1 * first.stat().st_size))
    for site in ("site-2", "site-3"):
        task.site_data(site)
    assert all(path.read_bytes() == b"years of work" * 1000 for path in (*strangers, *links))
    assert not first.exists(), "nothing had to go"


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
    monkeypatch.setattr(cache, "LONGEST_WAIT", 0.2)
    with _held(folder):
        _task().site_data("site-1")
    assert drawn and len(list(folder.glob("*.rendered"))) == 1


def test_nobody_waits_for_the_dead(folder, drawn):
    with _held(folder) as child:
        os.kill(child.pid, signal.SIGKILL)
        started = time.monotonic()
        _task().site_data("site-1")
        assert time.monotonic() - started < cache.LONGEST_WAIT / 10
    assert drawn and [path.suffix for path in folder.iterdir()] == [".rendered"]


def test_a_lock_is_put_through_no_link(folder, tmp_path):
    name = hashlib.sha256(cache._key(_task(), "site-1").encode()).hexdigest()[:40]
    folder.mkdir()
    (folder / f".{ICH}-site-1-{name}.lock").symlink_to(tmp_path / "elsewhere")
    _task().site_data("site-1")
    assert not (tmp_path / "elsewhere").exists() and len(list(folder.glob("*.rendered"))) == 1


@each("kind", [torch.uint8, torch.int64, torch.float32])
@each("shape", [(), (0, 3), (2, 3, 4)])
def test_tensors_of_every_kind_and_shape(kind, shape, tmp_path):
    tensors = {"a": (torch.rand(shape) * 200).to(kind), "b": torch.arange(6).reshape(2, 3).T}
    cache.keep(tmp_path / f"x-{'0' * 40}.rendered", "key", tensors)
    found = cache.read(tmp_path / f"x-{'0' * 40}.rendered", "key")
    assert list(found) == ["a", "b"] and all(torch.equal(found[k], tensors[k]) for k in tensors)
    assert all(found[k].dtype == tensors[k].dtype and found[k].shape == tensors[k].shape for k in tensors)
    assert cache.read(tmp_path / f"x-{'0' * 40}.rendered", "another") is None


def test_what_is_no_plain_tensor_of_these_kinds_is_not_kept(tmp_path):
    cache.keep(tmp_path / f"x-{'0' * 40}.rendered", "key", {"a": torch.zeros(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_others_cannot_look(folder):
    _task().site_data("site-1")
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv(cache.CACHE)
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, expected in (("", tmp_path / ".cache"), ("relative", tmp_path / ".cache"), ("/x/y", "/x/y")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert str(cache.folder()) == f"{expected}/fairflare"
    for named, expected in (("~/here", tmp_path / "here"), ("off", None), ("OFF", None)):
        monkeypatch.setenv(cache.CACHE, named)
        assert cache.folder() == expected
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.CACHE, "mine")
    assert simulate._environment(tmp_path)[cache.CACHE] == str(tmp_path / "mine")
    monkeypatch.setenv(cache.CACHE, "off")
    assert simulate._environment(tmp_path)[cache.CACHE] == "off"


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
