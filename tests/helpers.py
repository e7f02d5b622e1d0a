# SPDX-License-Identifier: Apache-2.0
"""A federation small enough to run in milliseconds, made of the real parts."""

import math
from functools import partial

import torch
from scipy.stats import beta
from torch import nn

from fairflare.aggregators.fedism import FedISM
from fairflare.core.types import Batch, Training
from fairflare.engine.gate import Gate
from fairflare.engine.in_process import InProcess
from fairflare.engine.loop import Federation
from fairflare.engine.setup.assembly import build_site, site_names
from fairflare.engine.setup.local import once_for_rows
from fairflare.engine.site import Site
from fairflare.functional.intervals import of_share
from fairflare.probes.sharpness import Sharpness
from fairflare.trainers.gsam import GSAM

PROBES = (Sharpness(),)
TRAINING = Training(rounds=3, epochs=1, batch_size=8, lr=0.05, optimizer="sgd")


class Blobs:
    """Two Gaussian classes in four dimensions; one site's are closer together than another's."""

    def __init__(self, site: int, n: int = 24):
        generator = torch.Generator().manual_seed(site)
        self.y = torch.arange(n) % 2
        self.x = torch.randn(n, 4, generator=generator) + self.y[:, None] * (2.0 / site)
        self.class_counts = torch.bincount(self.y, minlength=2)
        self.groups = self.y
        self.group_counts = self.class_counts

    def size(self, split):
        return len(self.y)

    def training(self, batch_size, seed):
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        for part in order.split(batch_size):
            yield Batch(self.x[part], self.y[part], self.groups[part])

    def fixed(self, split, batch_size, at_most=None):
        chosen = [part[:at_most] for part in (self.x, self.y, self.groups)]
        yield from map(Batch._make, zip(*(part.split(batch_size) for part in chosen)))


def small_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))


class Accuracy:
    headline = "accuracy"

    def condense(self, outputs, targets):
        return outputs, targets

    def evaluate(self, outputs, targets):
        return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}

    def hits(self, outputs, targets):
        return (outputs.argmax(1) == targets).double()

    def ends(self, outputs, targets, least, level, patients=None):
        right = int(self.hits(outputs, targets).sum())
        return {"accuracy": (right / len(targets), *of_share(right, len(targets), level))}


def make_sites(count=3, network=None, trainer=None, probes=PROBES):
    network = network or small_network()
    return {
        f"site-{k}": Site(f"site-{k}", Blobs(k), network, trainer or GSAM(), probes, TRAINING, Accuracy(), seed=5)
        for k in range(1, count + 1)
    }


def initial_model():
    return {k: v.detach().clone() for k, v in small_network().state_dict().items()}


def make_gate(network=None, wanted=("sharpness",)):
    names = frozenset(n for n, _ in (network or small_network()).named_parameters())
    return Gate(names, Sharpness.reports, wanted)


def make_federation(folder, transport=None, rule=None, rounds=3, min_sites=2, observers=()):
    return Federation(
        rule=rule or FedISM(),
        gate=make_gate(),
        transport=transport or InProcess(make_sites()),
        rounds=rounds,
        min_sites=min_sites,
        folder=folder,
        header={"method": "fedism-plus", "task": "blobs", "seed": 5},
        observers=observers,
    )


def sites_of(config, parts):
    """The sites of a run by name, each in a network of its own; what needs no network is computed once for all runs."""
    sites = {name: build_site(config, parts, name) for name in site_names(config)}
    for site in sites.values():
        of = site.exchanges["evaluate"]
        of.trivial = partial(once_for_rows, of.trivial, parts.task)
    return sites


def least_epsilon(right, trials, delta=0.0, doubt=1e-4):
    """The least epsilon that allows ``right`` guesses of ``trials`` fair coins, at confidence 1 - ``doubt``.

    A guess is right with chance (e^epsilon + delta) / (1 + e^epsilon) at most; the lower end of that chance is Clopper
    and Pearson's, which is exact. Below 0: none is needed.
    """
    chance = beta.ppf(doubt, right, trials - right + 1)
    return math.log((chance - delta) / (1 - chance))
