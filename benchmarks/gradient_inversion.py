# SPDX-License-Identifier: Apache-2.0
"""What does an update tell of the images that it was made from? Gradient inversion, with and without masks and noise.

    python benchmarks/gradient_inversion.py --draws 5 --steps 1000

A site makes one step of gradient descent on a few digits (UCI's, 8 x 8, inside scikit-learn). Whoever sees its update,
the model and the classes searches images whose gradient has the direction of the update:

    min over x of  1 - <g(x), u> / (|g(x)| |u|) + a TV(x),   Adam on the gradient's signs, x kept in [0, 1]

Geiping et al., "Inverting gradients", NeurIPS 2020, https://arxiv.org/abs/2003.14053, Eq. 4. Masks and noise are this
package's own. Printed: mean squared error over pixels in [0, 1] and PSNR, images matched to those found, beside
guessing the mean of all other digits. Means over draws of the images, with their standard deviation.
"""

from __future__ import annotations

import argparse
import math
import statistics

import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fairflare.privacy.differential_privacy import Draws, bounded, noise_for, share
from fairflare.privacy.secure_sums import STEP, mask_update
from fairflare.privacy.sum_keys import PairwiseKeys
from fairflare.privacy.sum_protocol import SumOrder

SITES, ROUNDS, DELTA, SMOOTH = 8, 10, 1e-5, 1e-3
Update = dict[str, Tensor]


def main() -> None:
    """Attack and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    draws, steps = (1, 20) if given.toy else (given.draws, given.steps)
    torch.set_num_threads(1)
    print("| what is seen | images | MSE | PSNR in dB |\n|---|---|---|---|")
    for images in (1, 4):
        for name in ("guess", *SEEN):
            errors = [attacked(name, images, draw, steps) for draw in range(draws)]
            spread = statistics.stdev(errors) if draws > 1 else 0.0
            told = statistics.fmean(errors)
            print(f"| {WORDS[name]} | {images} | {told:.4f} (sd {spread:.4f}) | {-10 * math.log10(told):.1f} |")


def attacked(name: str, images: int, draw: int, steps: int) -> float:
    """Mean squared error of what is found of one site's images."""
    digits = load_digits()
    pixels, classes = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    rows = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(draw))
    of_site = [rows[site * images : (site + 1) * images] for site in range(SITES)]
    if name == "guess":
        return float((pixels[of_site[0]] - pixels[rows[SITES * images :]].mean(0)).square().mean())
    torch.manual_seed(draw)
    network = nn.Sequential(nn.Linear(64, 128), nn.Sigmoid(), nn.Linear(128, 10))
    updates = [gradient(network, pixels[own], classes[own]) for own in of_site]
    seen, known = SEEN[name](updates)
    labels = torch.cat([classes[own] for own in of_site[:known]])
    found = inverted(network, seen, labels, steps)
    wrong = (pixels[of_site[0]][:, None] - found[None]).square().mean(2)
    return float(wrong.numpy()[linear_sum_assignment(wrong.numpy())].mean())


def gradient(network: nn.Module, images: Tensor, classes: Tensor, graph: bool = False) -> Update:
    """What one step of gradient descent subtracts, over its learning rate."""
    loss = nn.functional.cross_entropy(network(images), classes)
    found = torch.autograd.grad(loss, list(network.parameters()), create_graph=graph)
    return {name: one for (name, _), one in zip(network.named_parameters(), found)}


def inverted(network: nn.Module, seen: Update, classes: Tensor, steps: int) -> Tensor:
    """Images in [0, 1] whose gradient points where ``seen`` does."""
    target = torch.cat([value.flatten().float() for value in seen.values()])
    images = torch.full((len(classes), 64), 0.5) + 0.05 * torch.randn(len(classes), 64)
    images.requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        own = torch.cat([value.flatten() for value in gradient(network, images, classes, graph=True).values()])
        square = images.view(-1, 8, 8)
        rough = square.diff(dim=1).abs().mean() + square.diff(dim=2).abs().mean()
        loss = 1 - nn.functional.cosine_similarity(own, target, dim=0) + SMOOTH * rough
        (images.grad,) = torch.autograd.grad(loss, [images])
        images.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()


def masked(updates: list[Update]) -> tuple[Update, int]:
    """What the server is sent of one site in a secure sum."""
    keys = {name: PairwiseKeys(name, "run") for name in (f"site-{k}" for k in range(SITES))}
    order = SumOrder(1, 0, {name: own.statement() for name, own in keys.items()})
    sent = mask_update(keys["site-0"], {key: value / SITES for key, value in updates[0].items()}, order)
    return {key: value.double() * STEP for key, value in sent.items()}, 1


def summed(updates: list[Update]) -> tuple[Update, int]:
    """The mean over all sites, which secure sums show; every site's images are searched for."""
    return {key: torch.stack([one[key] for one in updates]).mean(0) for key in updates[0]}, SITES


def noised(epsilon: float, sites: int) -> tuple[float, float]:
    """Largest norm and deviation for a site's own update: clipped at the norm 1, as one of ``sites``."""
    most, deviation = share(1.0, noise_for(epsilon, DELTA, 1.0, ROUNDS), sites, 0)
    return most * sites, deviation * sites


def single(updates: list[Update], epsilon: float = 1000.0) -> tuple[Update, int]:
    """A site's update with all of the noise of its budget."""
    return bounded(updates[0], *noised(epsilon, 1), Draws(5)), 1


SEEN = {
    "clear": lambda updates: (updates[0], 1),
    "masked": masked,
    "sum": summed,
    "noise-1000": single,
    "noise-8": lambda updates: single(updates, 8.0),
}
WORDS = {
    "guess": "nothing: the mean of other digits",
    "clear": "the site's update",
    "masked": "the site's masked update",
    "sum": f"the mean of {SITES} sites' updates",
    "noise-1000": f"the site's update, clipped, with noise: epsilon 1000 over {ROUNDS} rounds",
    "noise-8": f"the same, epsilon 8 over {ROUNDS} rounds",
}

if __name__ == "__main__":
    main()
