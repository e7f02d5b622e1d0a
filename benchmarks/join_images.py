# SPDX-License-Identifier: Apache-2.0
"""Real digits at eight simulated sites, dealt again: is what a join says of small networks so, and harms its mix?

    python benchmarks/join_images.py [--deals 20] [--out deals.csv] [--toy]

The 1,797 images of optdigits (8 x 8; Alpaydin and Kaynak, CC BY 4.0, in scikit-learn), shared out among eight sites:
five plain, one with noise, one with inverted grey, one turned by a quarter. Is the digit five or more? In each deal
70 % of a site's images train, in three folds, and the others say what the models are worth. The network has two
convolutions. Candidates are FedAvg with and without own intercept and Ditto's personal network; the own model is the
network with rate and epoch chosen by a fifth of the site's images, then trained on all. The answers are those of
``report.join``. With --out finished deals are kept, so that the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from join import show_real
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from fairflare.functional import slopes
from fairflare.functional.calibration import fitted
from fairflare.functional.decision import Array, Design
from fairflare.report.join import OutOfFold, answers

SITES, FOLDS, BATCH, RATE, RATES, MOMENTUM = 8, 3, 32, 0.05, (1.0, 0.3), 0.9
ROUNDS, EPOCHS, ALONE, PERSONAL, PULL = 30, 2, 40, 10, 0.01
"""Of FedAvg; epochs alone at most, then of the personal network, with Ditto's pull."""
NAMES = ("FedAvg", "FedAvg + intercept", "Ditto")
DESIGN = Design(FOLDS, 1)
Model = dict[str, Tensor]
"""Every tensor with the models' axes in front."""


def sites(seed: int) -> tuple[Tensor, Tensor]:
    """(S, n, 1, 8, 8) images and (S, n) whether the digit is five or more."""
    rng, data = np.random.default_rng(seed), load_digits()
    rows = rng.permutation(len(data.images))[: len(data.images) // SITES * SITES].reshape(SITES, -1)
    x = data.images[rows] / 16
    x[-3] = np.clip(x[-3] + rng.normal(0, 0.5, x[-3].shape), 0, 1)
    x[-2], x[-1] = 1 - x[-2], np.rot90(x[-1], axes=(1, 2))
    return torch.tensor(x[:, :, None], dtype=torch.float32), torch.tensor(data.target[rows] >= 5, dtype=torch.float32)


def begun(shape: tuple[int, ...], seed: int) -> Model:
    """The same first weights in each of ``shape`` models."""
    rng = torch.Generator().manual_seed(seed)
    sizes = {"a": (8, 1, 3, 3), "b": (16, 8, 3, 3), "c": (1, 64)}
    found = {k: torch.randn(s, generator=rng) * (2 / np.prod(s[1:])) ** 0.5 for k, s in sizes.items()}
    found |= {k + "0": torch.zeros(s[0]) for k, s in sizes.items()}
    return {k: v.expand(*shape, *v.shape).clone() for k, v in found.items()}


def logits(model: Model, x: Tensor) -> Tensor:
    """(N,) of one model."""
    for k in "ab":
        x = F.max_pool2d(F.relu(F.conv2d(x, model[k], model[k + "0"], padding=1)), 2)
    return F.linear(x.flatten(1), model["c"], model["c0"])[:, 0]


def loss(model: Model, x: Tensor, y: Tensor, used: Tensor) -> Tensor:
    """Mean cross-entropy of the images in use."""
    each = F.binary_cross_entropy_with_logits(logits(model, x), y, reduction="none")
    return (each * used).sum() / used.sum().clamp(min=1)


def over(function, axes):  # type: ignore[no-untyped-def]  # of torch's own types
    """For (S, K) models and the sites' (S, n) images: ``axes`` as of the inner ``vmap`` over the K models of a site."""
    return vmap(vmap(function, axes), (0,) * len(axes))


def like(values: Tensor, v: Tensor) -> Tensor:
    """(S, K) values, to be multiplied with a tensor (S, K, ...) of models."""
    return values.reshape(*values.shape, *[1] * (v.dim() - 2))


def epochs(
    model: Model, x: Tensor, y: Tensor, used: Tensor, seed: int, rate: Tensor | None = None, pull: float = 0.0
) -> Iterator[Model]:
    """Models (S, K) after each epoch of SGD with momentum on the images ``used`` (S, K, n) by each.

    Args:
        rate: (S, K) times ``RATE``; None: 1.
        pull: of Ditto towards the models at the start.
    """
    rng, first = torch.Generator().manual_seed(seed), model
    rate = RATE * (torch.ones(used.shape[:2]) if rate is None else rate)
    step, moving = over(grad(loss), (0, None, None, 0)), {k: torch.zeros_like(v) for k, v in model.items()}
    while True:
        for rows in torch.randperm(x.shape[1], generator=rng).split(BATCH):
            slope = step(model, x[:, rows], y[:, rows], used[:, :, rows])
            moving = {k: MOMENTUM * moving[k] + slope[k] + pull * (v - first[k]) for k, v in model.items()}
            model = {k: v - like(rate, v) * moving[k] for k, v in model.items()}
        yield model


def nth(found: Iterable[Model], many: int) -> Model:
    for _, model in zip(range(many), found):
        last = model
    return last


def shared(x: Tensor, y: Tensor, used: Tensor, seed: int) -> Model:
    """(S, K) FedAvg's models, the same at every site; weights are numbers of images."""
    model, share = begun(used.shape[:2], seed), used.sum(2) / used.sum((0, 2))
    for number in range(ROUNDS):
        model = nth(epochs(model, x, y, used, 1000 * seed + number), EPOCHS)
        model = {k: (v * like(share, v)).sum(0).expand_as(v) for k, v in model.items()}
    return model


def alone(x: Tensor, y: Tensor, used: Tensor, seed: int) -> Model:
    """(S, K) own networks: a fifth of the images chooses rate and epoch, then all train."""
    held = (torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed)) % 5 == 0).float()
    k, many = used.shape[1], len(RATES)
    twice, rates = used.repeat(1, many, 1), torch.tensor(RATES).repeat_interleave(k).expand(SITES, -1)
    tried = epochs(begun(twice.shape[:2], seed), x, y, twice * (1 - held), seed, rates)
    test = over(loss, (0, None, None, 0))
    losses = torch.stack([test(model, x, y, twice * held) for _, model in zip(range(ALONE), tried)])
    best = losses.view(ALONE, SITES, many, k).permute(1, 3, 2, 0).flatten(2).argmin(2)  # of rate and epoch, (S, K)
    found = first = begun(used.shape[:2], seed)
    for number, model in zip(range(ALONE), epochs(first, x, y, used, seed, torch.tensor(RATES)[best // ALONE])):
        found = {k: torch.where(like(best % ALONE == number, v), v, found[k]) for k, v in model.items()}
    return found


def deal(number: int, x: Tensor, y: Tensor) -> Iterable[dict[str, float | str]]:
    """Losses on a deal's test images, and what was said from its training images."""
    rng = np.random.default_rng(number)
    train, test = np.split(rng.permutation(x.shape[1]), [round(0.7 * x.shape[1])])
    x, new, y, true = x[:, train], x[:, test], y[:, train], y[:, test].double().numpy()
    folds = np.stack([rng.permutation(len(train)) % FOLDS for _ in range(SITES)])
    kept = np.stack([[*(one != k for k in range(FOLDS)), np.full(len(one), True)] for one in folds])
    used = torch.tensor(kept, dtype=torch.float32)
    one = shared(x, y, used, number)
    personal = nth(epochs(one, x, y, used, number, pull=PULL), PERSONAL)
    read = over(logits, (0, None))
    inside, fresh = (
        np.stack([read(model, images).double().numpy() for model in (alone(x, y, used, number), one, one, personal)], 1)
        for images in (x, new)
    )
    for s in range(SITES):
        for k in range(FOLDS + 1):
            own = kept[s, k]
            by = fitted(inside[s, 1, k, own], y[s].double().numpy()[own]).intercept
            inside[s, 2, k] += by
            fresh[s, 2, k] += by
    risks, tested = (1 / (1 + np.exp(-values)) for values in (inside, fresh))
    return said(risks, tested[:, :, -1], y.double().numpy(), true, folds, number)


def said(
    risks: Array, tested: Array, y: Array, true: Array, folds: Array, number: int
) -> Iterable[dict[str, float | str]]:
    """Rows of ``show_real``: risks (S, 4, K, n) of training images and (S, 4, m) of test images."""
    rows = np.arange(y.shape[1])
    asked = {str(s): OutOfFold(y[s], risks[s][:, folds[s], rows][:, None]) for s in range(SITES)}
    both = {margin: answers(asked, NAMES, DESIGN, margin) for margin in (0.0, slopes.TOLERANCE)}
    for s, name in enumerate(asked):
        losses = ((tested[s] - true[s]) ** 2).mean(1)
        label = {"deal": number, "site": name, "n": y.shape[1], "own": losses[0]}
        for c, candidate in enumerate(NAMES, 1):
            told = both[0.0]["sites"][name]["candidates"][candidate]
            yield label | {"what": candidate, "true": losses[0] - losses[c], "said": told["shrunken"]} | told
        for margin, found in both.items():
            share, weights = found["sites"][name]["mix"]["share"], list(found["weights"].values())
            mixed = (1 - share) * tested[s, 0] + share * np.tensordot(weights, tested[s, 1:], 1)
            gain = losses[0] - ((mixed - true[s]) ** 2).mean()
            yield label | {"what": f"mix, {margin or 'strict'}", "true": gain, "share": share}


def main() -> None:
    """Deal, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deals", type=int, default=20)
    parser.add_argument("--out", type=Path, help="keep every row as CSV here")
    parser.add_argument("--toy", action="store_true", help="one deal of short trainings")
    options = parser.parse_args()
    if options.toy:
        globals().update(ROUNDS=1, ALONE=2)
        options.deals = 2
    torch.set_num_threads(1)
    x, y = sites(0)
    table = pd.read_csv(options.out) if options.out and options.out.exists() else pd.DataFrame({"deal": []})
    for number in sorted(set(range(options.deals)) - set(table.deal)):
        table = pd.concat([table, pd.DataFrame(deal(number, x, y))])
        if options.out:
            table.to_csv(options.out, index=False)
    show_real(table.astype({"site": int}))  # rows read again have numbers where new ones have names


if __name__ == "__main__":
    main()
