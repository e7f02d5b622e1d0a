# SPDX-License-Identifier: Apache-2.0
"""Real runs of a second or so each, finished, failed and killed, and what an attacker does to their files."""

import json
import shutil
from pathlib import Path

from fairflare.cli.main import main
from fairflare.engine import loop
from fairflare.engine.audit import GENESIS, entry_hash
from fairflare.engine.files import read_tensors, save_tensors
from fairflare.engine.site import Site

SMALL = ["--task", "support2", "--rounds", "3", "--no-solo", "--set", "model=linear", "--set", "batch_size=512"]
FINISHED = {"fedavg": "done", "fedism-plus": "plus", "fedheal": "heal"}


class Dies(BaseException):
    """The process is killed."""


def call(*arguments):
    """The exit code of the command line."""
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        return stop.code
    raise AssertionError("the command line did not end")


def run(method, folder, code=0):
    assert call("run", method, *SMALL, "--out", folder) == code


def killed(method, folder, owner, name, when):
    """A run that dies when ``owner.name`` is called with arguments for which ``when`` holds."""
    original = getattr(owner, name)

    def patched(*arguments):
        if when(*arguments):
            raise Dies
        return original(*arguments)

    setattr(owner, name, patched)
    try:
        run(method, folder)
    except Dies:
        return
    finally:
        setattr(owner, name, original)
    raise AssertionError("nobody died")


def too_few(method, folder):
    """A run of which only one site answers in round 3."""
    original = loop.Federation._require_quorum

    def patched(self, round, verdict):
        if round.number == 3:
            del verdict.replies[1:]
        return original(self, round, verdict)

    loop.Federation._require_quorum = patched
    try:
        run(method, folder, code=1)
    finally:
        loop.Federation._require_quorum = original


def in_round_three(site, instruction):
    return instruction.task == "train" and instruction.round.number == 3


MAKERS = {
    **{name: lambda folder, method=method: run(method, folder) for method, name in FINISHED.items()},
    "cut": lambda folder: killed("fedheal", folder, Site, "handle", in_round_three),
    "early": lambda folder: killed("fedism-plus", folder, Site, "handle", in_round_three),
    "window": lambda folder: killed("fedavg", folder, loop, "save_checkpoint", lambda path, c: c.round == 2),
    "failed": lambda folder: too_few("fedavg", folder),
}


def make_folders(root: Path, only=tuple(MAKERS)) -> Path:
    """done, plus, heal: finished runs; cut, early: killed in round 3; window: between a line and its checkpoint."""
    for name in only:
        MAKERS[name](root / name)
    return root


def files(folder: Path) -> dict[str, bytes]:
    """Every file's content, but for sparse giants."""
    found = (p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < 2**24)
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def entries_of(folder):
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def put_entries(folder, entries, *, anew=False):
    """Write a log; ``anew``: with every hash made to fit, as whoever can write the file can."""
    head = GENESIS
    for number, entry in enumerate(entries if anew else ()):
        entry.update(seq=number, prev=head)
        entry["hash"] = head = entry_hash(entry)
    (folder / "audit.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def edit_tensors(path, change):
    content = read_tensors(path)
    save_tensors(path, changed if (changed := change(content)) is not None else content)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=2) + "\n")


def edit_bytes(path, change):
    path.write_bytes(change(path.read_bytes()))


def instead(path, make):
    """Put something else, made by ``make``, in the place of a file."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    make(path)


def loop_of_links(path):
    path.symlink_to(path.name)


def huge(path):
    with path.open("wb") as file:
        file.truncate(3 << 30)  # sparse: takes no room
