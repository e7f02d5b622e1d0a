# SPDX-License-Identifier: Apache-2.0
"""Small runs in this process, whole or killed in their second round, and what they end in."""

from pathlib import Path

import pytest

from fairflare.engine import loop
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local

TASK = "support2:dirichlet"


class Dies(BaseException):
    """The process ends here."""


def run(method, folder, values, rounds=3):
    """A whole run in ``folder``, or what is left of the one that is there."""
    Path(folder).mkdir(exist_ok=True)
    run_local(make_config(method, TASK, rounds=rounds, values=values), Path(folder))
    return Path(folder)


def interrupted(method, folder, values, monkeypatch, rounds=3):
    """A run that dies before the checkpoint of its second round is written, and is then continued."""
    save, written = loop.save_checkpoint, []

    def dying(path, checkpoint):
        if checkpoint.round == 2:
            raise Dies
        written.append(checkpoint.round)
        save(path, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", dying)
        with pytest.raises(Dies):
            run(method, folder, values, rounds)
    assert written == [1]
    return run(method, folder, values, rounds)


def bits(folder):
    """What a finished run ends in: hashes of the model, the server's state and the sites' own models, and results."""
    entries = verify(folder / "audit.jsonl")
    last = [entry for entry in entries if entry["event"] == "round"][-1]
    own = {path.name: model_hash(read_tensors(path)) for path in sorted(folder.rglob("*.personal.safetensors"))}
    results = next(entry for entry in entries if entry["event"] == "evaluation")["sites"]
    return {"model": last["model_sha256"], "state": last["state_sha256"], "own": own, "results": results}
