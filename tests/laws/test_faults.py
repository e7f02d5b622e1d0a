# SPDX-License-Identifier: Apache-2.0
"""One federation per method in which one site misbehaves in every round, each time in another way.

The rejected answer leaves no trace: the run ends in the model of a run in which that site was silent in those rounds.
"""

import dataclasses
import math

import pytest
import torch

from cases import each
from fairflare.core import registry
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import build_federation
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from helpers import sites_of
from mechanisms import representatives
from method_needs import task_of

BAD = "site-2"


def update(change):
    """A fault that changes the first entry of the update, or replaces all of it."""
    return lambda answer: {"update": change(dict(answer.update), next(iter(answer.update)))}


def entry(value):
    return update(lambda found, key: {**found, key: value(found[key])})


def scalars(answer, value):
    return {"scalars": {**answer.scalars, "sharpness" if "sharpness" in answer.scalars else "not/known": value}}


FAULTS = [
    ("nonfinite", entry(lambda t: t * math.nan)),
    ("nonfinite", entry(lambda t: t + math.inf)),
    ("shape", entry(lambda t: t.new_zeros(1))),
    ("shape", entry(lambda t: t.flatten()[:-1])),
    ("keys", update(lambda found, key: {k: v for k, v in found.items() if k != key})),
    ("keys", update(lambda found, key: {**found, "extra": found[key]})),
    ("dtype", entry(lambda t: t.to(torch.int64))),
    ("dtype", entry(lambda t: "a string")),
    ("params_type", lambda answer: {"update_kind": "full"}),
    ("n_examples", lambda answer: {"n_examples": None}),
    ("n_examples", lambda answer: {"n_examples": math.nan}),
    ("n_examples", lambda answer: {"n_examples": -3}),
    ("n_examples", lambda answer: {"n_examples": 0}),
    ("n_examples", lambda answer: {"n_examples": True}),
    ("n_examples", lambda answer: {"n_examples": "12"}),
    ("count_mismatch", lambda answer: {"n_examples": 10**9}),
    ("scalar", lambda answer: scalars(answer, math.nan)),
    ("scalar", lambda answer: scalars(answer, 1e300)),
    ("norm", update(lambda found, key: {k: (v + 0.01) * 1e6 for k, v in found.items()})),
    ("stale", lambda answer: {"round": answer.round - 1}),
    ("site_error", lambda answer: {"error": "EXECUTION_EXCEPTION OutOfMemory", "update": None}),
]


class Faulty(InProcess):
    """In round r + 1 ``BAD`` answers with fault r, or is refused beforehand where ``silent``."""

    def __init__(self, sites, silent):
        super().__init__(sites)
        self.silent = silent

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        fault = one.round.number - 2
        for answer in super().exchange(instructions):
            if one.task == "train" and answer.site == BAD and 0 <= fault < len(FAULTS):
                change = {"error": "left out"} if self.silent else FAULTS[fault][1](answer)
                answer = dataclasses.replace(answer, **change)
            yield answer


def run(method, folder, silent):
    folder.mkdir()
    task, values = task_of(method)
    config = make_config(method, task, rounds=len(FAULTS) + 2, values={**values, "min_sites": 3})
    parts = build_parts(config)
    initial = {key: value.clone() for key, value in parts.model.items()}
    sites = sites_of(config, parts)
    federation = build_federation(config, parts, Faulty(sites, silent), folder, "local")
    return model_hash(federation.run(initial)), verify(folder / "audit.jsonl")


QUICK = "fedavg"
ONE_SITE = "pooled"
"""A method that has one site train on the data of all."""
METHODS = sorted(set(registry.methods()) - {ONE_SITE})


def test_every_fault_is_named_and_leaves_no_trace(tmp_path):
    leaves_no_trace(QUICK, tmp_path)


@pytest.mark.slow
@each("method", METHODS, short=representatives(METHODS))
def test_every_fault_leaves_no_trace_whatever_the_method(method, tmp_path):
    leaves_no_trace(method, tmp_path)


def leaves_no_trace(method, tmp_path):
    final, entries = run(method, tmp_path / "faulty", silent=False)
    rounds = [e for e in entries if e["event"] == "round"]
    assert not rounds[0]["rejected"] and not rounds[-1]["rejected"]
    for expected, found in zip((code for code, _ in FAULTS), rounds[1:-1], strict=True):
        assert set(found["rejected"]) == {BAD} and len(found["accepted"]) == 3
        code, detail = found["rejected"][BAD]["code"], found["rejected"][BAD]["detail"]
        assert code == expected or (expected == "scalar" and code.startswith("scalar_")), (expected, code)
        assert detail and "\n" not in detail
        assert set(found["weights"]) == set(found["accepted"])
    assert entries[-1]["status"] == "completed"
    assert final == run(method, tmp_path / "silent", silent=True)[0]
