# SPDX-License-Identifier: Apache-2.0
"""A run whose log has several segments and columns: every command reads it, and whatever is changed there is found."""

import shutil
import stat

import pytest

from fairflare.engine import audit
from fairflare.engine.audit import verify
from fairflare.engine.files import AUDIT
from fairflare.privacy.log_files import log_files
from run_folders import call, files, make_folders


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """ "plain": with whole lines in one file; "done" and "early" (killed in round 3): in segments, with columns."""
    folder = tmp_path_factory.mktemp("segments")
    make_folders(folder, ("plus",)).joinpath("plus").rename(folder / "plain")
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        make_folders(folder, ("plus", "early")).joinpath("plus").rename(folder / "done")
    return folder


def small(patch):
    """Limits that a run of three rounds reaches."""
    patch.setattr(audit, "LONG_LINE", 1_000)
    patch.setattr(audit, "LONG_PART", 200)
    patch.setattr(audit, "MAX_SEGMENT", 2_500)


@pytest.fixture
def copied(root, tmp_path):
    return shutil.copytree(root / "done", tmp_path / "run")


def test_the_model_and_its_report_do_not_depend_on_the_logs_form(root):
    names = [path.name for path in log_files(root / "done" / AUDIT)]
    assert (
        len(names) > 4 and "audit-2.columns" in names and log_files(root / "plain" / AUDIT) == [root / "plain" / AUDIT]
    )
    plain, done = (verify(root / name / AUDIT) for name in ("plain", "done"))
    assert [entry["event"] for entry in plain] == [entry["event"] for entry in done]
    for one, other in zip(plain, done):
        assert one.get("model_sha256") == other.get("model_sha256") and one.keys() == other.keys()
        assert one.get("weights") == other.get("weights") and one.get("sites") == other.get("sites")
    assert call("verify", root / "done") == 0


def test_what_a_run_leaves_is_its_users_alone(root):
    assert stat.S_IMODE((root / "done").stat().st_mode) == 0o700
    there = [path for path in (root / "done").rglob("*") if path.is_file()]
    assert len(there) > 6 and not [path for path in there if stat.S_IMODE(path.stat().st_mode) != 0o600]


def test_a_run_goes_on_in_its_segments(root, tmp_path, monkeypatch):
    folder = shutil.copytree(root / "early", tmp_path / "run")
    small(monkeypatch)
    last = log_files(folder / AUDIT)[-1]
    last.write_bytes(last.read_bytes() + b"left by a kill" * last.name.endswith("columns"))
    assert call("resume", folder) == 0 and call("verify", folder) == 0
    assert verify(folder / AUDIT)[-1]["model_sha256"] == verify(root / "plain" / AUDIT)[-1]["model_sha256"]
    before = files(folder)
    assert call("report", folder) == 0 and files(folder) == before, "the same report needs no second line"
    assert call("watch", folder) == 0


def edited(name):
    def change(folder):
        path = folder / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return change


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


def gone(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def swapped(one, other):
    def change(folder):
        first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(second), (folder / other).write_bytes(first)

    return change


TAMPERED = {
    "a bit of a block": edited("audit.columns"),
    "a bit of a line": edited("audit-2.jsonl"),
    "a block cut": cut("audit-2.columns"),
    "a segment gone": gone("audit-2.jsonl", "audit-2.columns"),
    "the first segment gone": gone("audit.jsonl", "audit.columns"),
    "columns gone": gone("audit-2.columns"),
    "lines swapped": swapped("audit.jsonl", "audit-2.jsonl"),
    "columns swapped": swapped("audit.columns", "audit-2.columns"),
    "a segment twice": lambda folder: shutil.copyfile(folder / "audit-2.jsonl", folder / "audit-9.jsonl"),
    "the last segment gone": lambda folder: log_files(folder / AUDIT)[-1].unlink(),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_no_command_takes_a_changed_log(how, copied, capsys):
    TAMPERED[how](copied)
    before = files(copied)
    for command in ("verify", "report"):
        assert call(command, copied) == 2
        assert "audit" in capsys.readouterr().err
    assert files(copied) == before
