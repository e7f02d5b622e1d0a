# SPDX-License-Identifier: Apache-2.0
"""Rendered data on disk: the same bits, one rendering, and nothing that is broken, foreign or a pickle is read."""

import io
import json
import multiprocessing
import os
import stat
import time

import numpy as np
import pytest

from fairflare.app.cli import main
from fairflare.app.runs import execute
from fairflare.build.config import make_config
from fairflare.build.tasks import load
from fairflare.datasets.simulated import cache, fundus, mr, numerals, phantom
from fairflare.federation import audit
from fairflare.flare import simulate

TASKS = {
    "ich-phantom": {"images": 72, "n_sites": 3, "corrupted": 1, "size": 32, "test_images": 20, "site_test_images": 8},
    "brain-seg": {"images": 40, "n_sites": 2, "size": 32, "site_test_images": 6},
    "fundus-phantom": {"images": 60, "n_sites": 2, "size": 32, "site_test_images": 6},
    "digits": {"images_per_site": 24, "test_images": 20, "site_test_images": 8},
}
DRAWERS = ((phantom, "render"), (mr, "subject"), (fundus, "eye"), (numerals, "draw"))
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
        monkeypatch.setattr(module, name, lambda *a, draw=draw, **k: found.append(1) or draw(*a, **k))
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


def test_the_code_is_that_of_all_that_renders(tmp_path, monkeypatch):
    cache._code.cache_clear()
    before, read = cache._code(type(_task())), []
    cache._code.cache_clear()
    original = cache.Path.read_bytes
    monkeypatch.setattr(cache.Path, "read_bytes", lambda path: read.append(path.name) or original(path) + b"#")
    assert cache._code(type(_task())) != before
    assert {"phantom.py", "anatomy.py", "corruptions.py", "partition.py", "seeds.py", "ich_phantom.py"} <= set(read)
    cache._code.cache_clear()


def _pickled(key):
    """A file of ours in all but its content: an array of objects, which only a pickle can hold."""
    memory = io.BytesIO()
    np.savez(memory, **{"train inputs": np.array([{"a": 1}], dtype=object)})
    return cache._head(key, memory.getvalue()).encode() + b"\n" + memory.getvalue()


BREAK = {
    "empty": lambda content, key: b"",
    "cut": lambda content, key: content[: len(content) // 2],
    "one bit": lambda content, key: content[:-500] + bytes([content[-500] ^ 1]) + content[-499:],
    "longer": lambda content, key: content + b"more",
    "not ours": lambda content, key: b"\x80\x04\x95" + os.urandom(2000),
    "not utf-8": lambda content, key: b"\xff\xfe\n" + content,
    "another key": lambda content, key: content.replace(b'\\"data_seed\\": 2024', b'\\"data_seed\\": 2025', 1),
    "a pickle": lambda content, key: _pickled(key),
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


def _render(_):
    return _bits(_task().site_data("site-1"))


def test_processes_at_once(folder):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_render, range(4))
    assert all(bits == found[0] for bits in found) and len(list(folder.iterdir())) == 1


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
