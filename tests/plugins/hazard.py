# SPDX-License-Identifier: Apache-2.0
"""Survival as a kind of task, and a task of made-up patients, in one file: a network gives each interval's hazard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fairflare.core.metric import Metric
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.data.inputs import Scaling, TableInputs
from fairflare.data.readers.table_features import Feature
from fairflare.data.tensors import Split, TensorData
from fairflare.tasks.base import Preset, Task
from fairflare.tasks.kind import TaskKind

MONTHS = (3, 6, 12, 24)
"""Ends of the intervals; who is alive after the last one is censored in it."""


def hazard_loss(logits, targets, *, reduction="mean"):
    """- log likelihood (Gensheimer and Narasimhan, PeerJ 7, 2019), (N, K) logits; (N, 2): last interval, 1 if died."""
    last, died = targets[:, :1], targets[:, 1:]
    steps = torch.arange(logits.shape[1], device=logits.device)
    each = (F.softplus(logits) * (steps < last) + F.softplus(-logits) * (steps == last) * died).sum(1)
    return each.mean() if reduction == "mean" else each


def concordance(cases, counts):
    """(B,) Harrell's C: of two patients the one who died first has the larger hazards, ties counted half."""
    (last, died), risk = cases.targets.numpy().T, F.softplus(cases.outputs.double()).sum(1).numpy()
    comparable = (died[:, None] == 1) & (last[:, None] < last[None])
    won = np.heaviside(risk[:, None] - risk[None], 0.5) * comparable
    wins, pairs = (((counts @ each) * counts).sum(axis=1) for each in (won, comparable.astype(float)))
    return np.divide(wins, pairs, out=np.full(len(wins), np.nan), where=pairs > 0)


def likelihood(cases):
    """(N,) the probability that the model gave to what happened to each patient."""
    return (-hazard_loss(cases.outputs.double(), cases.targets, reduction="none")).exp().numpy()


SHOWN = {"kind": "survival", "groups": True, "benefit": True}
C_INDEX = Metric("c_index", label="C-index", chance=lambda n_classes: 0.5, weighted=concordance, **SHOWN)
LIKELIHOOD = Metric("likelihood", meaning="the probability of what happened, in the mean", each=likelihood, **SHOWN)


@dataclass(frozen=True)
class Survival(TaskKind):
    """Times to an event in intervals."""

    outputs, targets = "logits (N, K) of the hazard in each interval", "last interval and whether died there (N, 2)"

    def objective(self, class_counts, logit_tau):
        return hazard_loss

    def loss(self, cases):
        return float(hazard_loss(cases.outputs.double(), cases.targets))

    def answer(self, outputs, classes):
        dead = 1 - (1 - outputs.double().sigmoid()).cumprod(1)
        return [f"dead_after_{months}_months" for months in MONTHS], dead.tolist()


@dataclass(frozen=True)
class MadeUpSurvival(Task):
    """Patients of three hospitals whose hazard rises with two of three numbers."""

    name, title, real = "made-up-survival", "Survival of made-up patients", "nothing"
    simulated, presets, quick = "everything", {"default": Preset("seconds", {}, Training(rounds=5, lr=0.1))}, True
    kind = Survival("survival", metrics=("c_index", "likelihood"), headline="c_index", score="likelihood")
    attributes = {"sex": ("female", "male")}

    patients: int = 200

    def sites(self):
        return {f"site-{k}": "made-up patients" for k in (1, 2, 3)}

    def network(self):
        return nn.Linear(3, len(MONTHS))

    def table_inputs(self):
        same = Scaling(*(torch.full((3,), value, dtype=torch.float64) for value in (0.0, 0.0, 1.0)))
        return TableInputs(tuple(Feature(name) for name in "abc"), fixed=same)

    def site_data(self, site):
        rng, n_test, splits = np.random.default_rng(derive(0, self.name, site)), self.patients // 4, {}
        for split, n in (("train", self.patients), ("val", n_test), ("test", n_test)):
            x = rng.standard_normal((n, 3)).astype(np.float32)
            death, end = rng.exponential(12 / np.exp(x[:, 0] + x[:, 1])), rng.uniform(2, 30, n)
            died = (death <= end) & (death <= MONTHS[-1])
            last = np.searchsorted(MONTHS[:-1], np.minimum(death, end))
            targets = torch.from_numpy(np.stack([last, died], axis=1))
            splits[split] = Split(torch.from_numpy(x), targets, {"sex": rng.choice(["female", "male"], n).tolist()})
        return TensorData.of(splits, n_classes=0)
