# SPDX-License-Identifier: Apache-2.0
"""FedDyn against the authors' ``train_feddyn_mdl``: two sites of equal size, three rounds of two full-batch steps."""

import numpy as np
import pytest
import torch
from torch import nn

from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare_lab.methods.feddyn import DRIFT, HISTORY, FedDynTrainer
from golden import file

GOLDEN = np.load(file("local_terms.npz"))
KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
SPLITS = (slice(0, 20), slice(20, 40))
TRAINING = Training(epochs=2, lr=0.1, batch_size=40, optimizer="sgd", momentum=0.0, weight_decay=1e-3)


class Rows:
    """All examples of a site as one batch."""

    def __init__(self, rows):
        self.x, self.y = torch.from_numpy(GOLDEN["x"][rows]), torch.from_numpy(GOLDEN["y"][rows])
        self.class_counts = torch.bincount(self.y, minlength=3)

    def training(self, batch_size, seed):
        yield Batch(self.x, self.y, torch.full((len(self.y),), -1))


def flat(model):
    return torch.cat([model[key].flatten() for key in KEYS]).numpy()


def local(trainer, rows, model, memory, sent, orders):
    """One site's round: its model after training."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    network.load_state_dict(model)
    work = LocalWork(network, Rows(rows), TRAINING, Round(1, 3), seed=0, memory=memory, received=model)
    work.tensors, work.orders = sent, orders
    trainer.train(work)
    return network.state_dict(), work


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_three_rounds(variant):
    """Means, starts and histories. Sites of equal size have the same alpha, and no gradient is clipped."""
    model = {key: torch.from_numpy(GOLDEN[f"global/{key}"]) for key in KEYS}
    rule, trainer = FedAvg(weighting="uniform"), FedDynTrainer(alpha=0.1, variant=variant)
    memories, state = [{}, {}], {}
    info = Info(Round(1, 3), known_sites=2, examples={"site-0": 20, "site-1": 20})
    for t in range(3):
        replies = []
        for k, rows in enumerate(SPLITS):
            sent, orders = trainer.tensors_for(state, f"site-{k}", info), trainer.orders(state, f"site-{k}", info)
            after, _ = local(trainer, rows, model, memories[k], sent, orders)
            update = {key: after[key] - model[key] for key in KEYS}
            replies.append(Reply(f"site-{k}", update, 20, trainable=frozenset(KEYS)))
        state = trainer.collect(model, replies, state, info)
        model = rule.aggregate(model, replies, {}, info).model
        start = {key: model[key] + state[DRIFT][key] for key in KEYS}
        found = (flat(model), flat(start), np.stack([flat(memory[HISTORY]) for memory in memories]))
        for value, name in zip(found, ("avg", "cloud", "hist"), strict=True):
            np.testing.assert_allclose(value, GOLDEN[f"feddyn/r{t}/{name}"], rtol=0, atol=1e-10)
