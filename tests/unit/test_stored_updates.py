# SPDX-License-Identifier: Apache-2.0
"""Updates that lie in files, as FLARE leaves them there, make the same model."""

import dataclasses

import pytest
import torch

from fairflare.core.tensor_files import Entries, Stored
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.method_defaults import default_parts
from helpers import initial_model, make_federation, make_sites


def stored(path, update):
    """The update with its entries in a file."""
    found = {}
    with path.open("wb") as file:
        for key, value in update.items():
            start = -(-file.tell() // 64) * 64
            file.seek(start)
            file.write(value.contiguous().numpy().tobytes())
            found[key] = Stored(path, start, value.dtype, tuple(value.shape))
    return found


class Lying(InProcess):
    """Its answers' updates lie in files."""

    def __init__(self, sites, folder):
        super().__init__(sites)
        self.folder = folder

    def exchange(self, instructions):
        for number, answer in enumerate(super().exchange(instructions)):
            if not answer.update:
                yield answer
                continue
            path = self.folder / f"{answer.round}-{number}"
            yield dataclasses.replace(answer, update=stored(path, answer.update))


def test_a_federation_makes_the_same_model_from_files(tmp_path):
    finals = []
    for name in ("memory", "file"):
        (tmp_path / name / "updates").mkdir(parents=True)
        sites = make_sites()
        transport = InProcess(sites) if name == "memory" else Lying(sites, tmp_path / name / "updates")
        finals.append(model_hash(make_federation(tmp_path / name, transport).run(initial_model())))
    assert finals[0] == finals[1] and any((tmp_path / "file" / "updates").iterdir())
    logs = [
        [e for e in verify(tmp_path / name / "audit.jsonl") if e["event"] == "round"] for name in ("memory", "file")
    ]
    for key in ("norms", "weights", "bytes", "state_sha256", "accepted"):
        assert [e[key] for e in logs[0]] == [e[key] for e in logs[1]]


@pytest.mark.parametrize("method", ["fedavg", "fedce", "fedheal", "fedlwr"])
def test_rules_do_not_see_where_an_update_lies(method, tmp_path):
    """Entries longer than a block, of which the last is not whole, and one that is mapped."""
    draw = torch.Generator().manual_seed(3)
    model = {"l.w": torch.randn(400, 401, generator=draw), "l.b": torch.randn(7, generator=draw)}
    updates = [{k: torch.randn(v.shape, generator=draw) * 0.01 for k, v in model.items()} for _ in range(4)]
    rule, outcomes = default_parts(method).rule, []
    for kept in (updates, [stored(tmp_path / str(k), u) for k, u in enumerate(updates)]):
        dtypes = {key: value.dtype for key, value in model.items()}
        held = [u if u is kept[k] and kept is updates else Entries(u, dtypes) for k, u in enumerate(kept)]
        replies = [Reply(f"site-{k}", u, 10 + k, trainable=frozenset(model)) for k, u in enumerate(held)]
        state = {}
        for t in (1, 2):
            outcome = rule.aggregate(model, replies, state, Info(Round(t, 5)))
            state = outcome.state
        outcomes.append(outcome)
    assert outcomes[0].weights == outcomes[1].weights
    assert model_hash(outcomes[0].model) == model_hash(outcomes[1].model)
