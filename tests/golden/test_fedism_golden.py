# SPDX-License-Identifier: Apache-2.0
"""FedISM weights, rho schedule, sharpness probe, GSAM and SAM steps, logit adjustment against reference numbers."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from cases import each
from fairflare.aggregators.fedism import FedISM
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training, local_objective
from fairflare.functional.perturbation import rho_at
from fairflare.probes.sharpness import Sharpness
from fairflare.trainers.gsam import gsam_step
from golden import folder

AGG = np.load(folder() / "fedism_agg.npz")
STEPS = np.load(folder() / "gsam_sam_step.npz")
RHO = json.loads((folder() / "rho_schedule.json").read_text())["values"]
LOGIT = json.loads((folder() / "logit_adjust.json").read_text())


def weights_over_rounds(rule, loss, perturbed):
    state, rows = {}, []
    for t, (low, high) in enumerate(zip(loss, perturbed), 1):
        replies = [
            Reply(f"site-{k}", {}, 10, {"sharpness": h - f, "perturbed_loss": h, "loss": f})
            for k, (f, h) in enumerate(zip(low, high))
        ]
        weights, state = rule.weigh(replies, state, Info(Round(t, len(loss))))
        rows.append([weights[r.site] for r in replies])
    return np.array(rows)


@each("key", [k for k in AGG.files if re.match(r"[SL]_", k)])
def test_weights(key):
    state, kind, edge, q, beta = re.fullmatch(r"([SL])_(\w+?)(_edge)?_q([\d.]+)_b([\d.]+)", key).groups()
    variant, tolerance = ("reference", 1e-12) if kind == "ref" else ("paper", 1e-12)
    rule = FedISM(state=state, q=float(q), beta=float(beta), variant=variant)
    suffix = edge or ""
    got = weights_over_rounds(rule, AGG["loss" + suffix], AGG["ploss" + suffix])
    np.testing.assert_allclose(got, AGG[key], rtol=0, atol=tolerance)


@each("key", RHO)
def test_rho_schedule(key):
    parts = dict(p.split("=") for p in key.split("|")[1:])
    tau = float(parts["tau"]) if key.startswith("FedISM+") else 0.0
    total = int(parts["R"])
    got = [rho_at(Round(t, total), float(parts["rho_max"]), tau) for t in range(1, total + 1)]
    np.testing.assert_allclose(got[: len(RHO[key])], RHO[key], rtol=0, atol=1e-15)


class Everything:
    """A site's data that are one array."""

    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        self.class_counts = torch.bincount(self.y)

    def fixed(self, split, batch_size, at_most=None):
        yield from (Batch(x, y, y) for x, y in zip(self.x.split(batch_size), self.y.split(batch_size)))


def network_like(state, activation):
    """The multi-layer perceptron whose state dict has these keys; the reference used another activation per file."""
    hidden, features = state["0.weight"].shape
    norm = [nn.BatchNorm1d(hidden)] if "1.running_mean" in state else []
    classes = next(v for k, v in reversed(state.items()) if k.endswith(".bias")).shape[0]
    network = nn.Sequential(nn.Linear(features, hidden), *norm, activation(), nn.Linear(hidden, classes)).double()
    network.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in state.items()})
    return network


def under(archive, prefix):
    return {k.removeprefix(prefix): archive[k] for k in archive.files if k.startswith(prefix)}


@each("name, rho", list(product(["mlp", "bn"], ["0", "0.05", "0.1", "0.5"])))
def test_sharpness_probe(name, rho):
    archive = np.load(folder() / f"fedism_sharpness_{name}.npz")
    network = network_like(under(archive, "before/"), nn.Tanh)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    work = LocalWork(network, Everything(archive["x"], archive["y"]), Training(), Round(3, 3), seed=0)
    seen = {}
    probe = Sharpness(rho_max=float(rho), rho_tau=0.0)
    ascend = probe._ascend

    def spy(parameters, radius):
        ascend(parameters, radius)
        seen.update({k: v.clone() for k, v in network.state_dict().items()})

    object.__setattr__(probe, "_ascend", spy)
    got = probe.measure(work)
    assert got["loss"] == pytest.approx(float(archive[f"loss_rho{rho}"]), abs=1e-9)
    assert got["perturbed_loss"] == pytest.approx(float(archive[f"ploss_rho{rho}"]), abs=1e-9)
    assert got["sharpness"] == got["perturbed_loss"] - got["loss"]
    for key, value in under(archive, f"perturbed_rho{rho}/").items():
        np.testing.assert_allclose(seen[key].numpy(), value, rtol=0, atol=1e-9)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), key


CASES = sorted({k.rsplit("/", 2)[0] for k in STEPS.files if "/step1/" in k})


@each("path", ["fused", "foreach"])
@each("case", CASES)
def test_gsam_and_sam_steps(case, path):
    norm = re.search(r"bn(\d)", case).group(1)
    rho = float(re.search(r"rho([\d.]+)", case).group(1))
    alpha = re.search(r"alpha([\d.]+)", case)
    network = network_like(under(STEPS, f"init_bn{norm}/"), nn.ReLU).train()
    if "adam" in case:
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, weight_decay=5e-4, **{path: True})
    else:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-5, **{path: True})
    x, y = torch.from_numpy(STEPS["x"]), torch.from_numpy(STEPS["y"])

    def closure():
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        return loss

    losses = []
    for step in (1, 2, 3):
        losses.append(gsam_step(network, optimizer, closure, rho, float(alpha.group(1)) if alpha else 0.0).item())
        for key, value in under(STEPS, f"{case}/step{step}/").items():
            np.testing.assert_allclose(network.state_dict()[key].numpy(), value, rtol=0, atol=1e-12, err_msg=key)
    if f"{case}/losses" in STEPS.files:
        np.testing.assert_allclose(losses, STEPS[f"{case}/losses"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "tau, counts, targets, expected",
    [
        (1.0, "class_counts", "targets", "loss_tau1"),
        (0.5, "class_counts", "targets", "loss_tau0.5"),
        (0.0, "class_counts", "targets", "plain_ce"),
        (1.0, "class_counts_zero_case", "targets_zero_case", "loss_zero_case"),
    ],
)
def test_logit_adjustment(tau, counts, targets, expected):
    logits = torch.tensor(LOGIT["logits"], requires_grad=True)
    loss = local_objective(torch.tensor(LOGIT[counts]), tau)(logits, torch.tensor(LOGIT[targets]))
    loss.backward()
    assert loss.item() == pytest.approx(LOGIT[expected], abs=1e-6)
    gradient = {"loss_tau1": "grad", "loss_zero_case": "grad_zero_case"}.get(expected)
    if gradient:
        np.testing.assert_allclose(logits.grad.numpy(), LOGIT[gradient], rtol=0, atol=1e-6)
