# SPDX-License-Identifier: Apache-2.0
"""What a site could do to its weight with counts that its examples cannot have."""

import dataclasses

import pytest
import torch

from cases import each
from fairflare.core.schema import Answer
from fairflare.core.types import Outline
from fairflare.engine.audit import verify
from fairflare.engine.gate import Gate
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare_lab.methods.fairness_counts import FairnessCounts

MODEL = {"w": torch.zeros(2)}
HONEST = {
    "seen": 40.0,
    "correct": 30.0,
    "positives/a": 10.0,
    "true_positives/a": 7.0,
    "negatives/a": 12.0,
    "false_positives/a": 3.0,
    "positives/b": 5.0,
    "true_positives/b": 4.0,
    "negatives/b": 13.0,
    "false_positives/b": 0.0,
}
LIES = {
    "more seen than there are": {"seen": 41.0},
    "as many as any site may have": {"seen": 1e8, "positives/a": 1e8, "negatives/a": 1e8, "correct": 0.0},
    "half a patient": {"correct": 29.5},
    "half a positive": {"positives/a": 9.5},
    "more right than seen": {"correct": 41.0},
    "more found than positive": {"true_positives/b": 6.0},
    "more taken than negative": {"false_positives/b": 14.0},
    "found, but not right": {"correct": 10.0},
    "wrong, but not so of all": {"correct": 40.0},
    "groups larger than the whole": {"negatives/a": 13.0},
    "found without positives": {"positives/a": 0.0},
}


def accepted(change, n_examples=40, **settings):
    specs = FairnessCounts(**settings).scalars(Outline({}, ("a", "b"), classes=3))
    told = Answer("site-1", 1, {"w": torch.ones(2)}, n_examples=n_examples, scalars=HONEST | change, steps=1)
    verdict = Gate(frozenset("w"), specs).inspect([told], MODEL, 1, {})
    return [r.code for r in verdict.rejections]


@each("lie", LIES)
def test_counts_that_no_examples_have_are_refused(lie):
    assert accepted(LIES[lie]) == ["count_mismatch"]


def test_counts_that_examples_have_are_accepted():
    """All groups of all examples, of some, of none; none of a kind; a larger validation split."""
    assert accepted({}) == accepted({"seen": 39.0, "negatives/b": 12.0}) == accepted({}, n_examples=900) == []
    assert accepted(dict.fromkeys(HONEST, 0.0)) == []
    assert accepted({}, n_examples=4, count_split="val") == []
    assert accepted({}, n_examples=3, count_split="val") == ["count_mismatch"]


@pytest.mark.parametrize("method", ["fairfed", "fairfedavg"])
def test_a_site_cannot_make_its_counts_those_of_the_federation(tmp_path, monkeypatch, method):
    """It says all examples of both groups, and none of them right."""
    honest = InProcess.exchange

    def overstated(self, instructions):
        for answer in honest(self, instructions):
            if answer.site == "site-3" and instructions[answer.site].task == "train":
                told = {name: 1e8 if name.startswith(("seen", "positives", "neg")) else 0.0 for name in answer.scalars}
                answer = dataclasses.replace(answer, scalars=told)
            yield answer

    monkeypatch.setattr(InProcess, "exchange", overstated)
    values = {"n_sites": 3, "batch_size": 512, "model": "linear", "group_by": "sex"}
    run_local(make_config(method, "support2:dirichlet", rounds=2, values=values), tmp_path)
    rounds = [entry for entry in verify(tmp_path / "audit.jsonl") if entry["event"] == "round"]
    assert [entry["rejected"]["site-3"]["code"] for entry in rounds] == ["count_mismatch"] * 2
    assert all(set(entry["weights"]) == {"site-1", "site-2"} for entry in rounds)
