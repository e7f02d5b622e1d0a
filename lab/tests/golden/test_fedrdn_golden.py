# SPDX-License-Identifier: Apache-2.0
"""FedRDN's statistics and normalised images against its authors' code, FL-MedSegBench and a restatement."""

import numpy as np
import pytest
import torch

from fairflare.core.types import Batch
from fairflare_lab.methods.fedrdn import STATISTICS, FedRDN, OwnNormalised, Pair, normalised_by, pair_of, renormalised
from golden import file

GOLDEN = np.load(file("fedrdn.npz"))
SITES = [torch.from_numpy(GOLDEN[f"site{k}/images"]) for k in range(3)]
NAMES = {"paper": "paper", "reference": "ref", "medsegbench": "medsegbench"}
"""Variant -> name in the file."""


def stored(variant):
    mean, sd = (torch.from_numpy(GOLDEN[f"{NAMES[variant]}/{name}"]) for name in ("mean", "std"))
    return [Pair(mean[k], sd[k]) for k in range(3)]


class Images:
    """One site's images."""

    class_counts = group_counts = torch.zeros(1, dtype=torch.int64)

    def __init__(self, images):
        self.images = images

    def fixed(self, split, batch_size, at_most=None):
        for rows in self.images.split(2):  # batches of any size add up to the same
            yield Batch(rows, torch.zeros(len(rows)), torch.zeros(len(rows)))

    training = fixed

    def size(self, split):
        return len(self.images)


@pytest.mark.parametrize("variant, tolerance", [("paper", 1e-12), ("reference", 1e-12), ("medsegbench", 1e-6)])
def test_every_sites_statistics(variant, tolerance):
    for images, pair in zip(SITES, stored(variant), strict=True):
        found = pair_of(images.split(4), STATISTICS[variant])
        for value, expected in zip(found, pair, strict=True):
            np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=0, atol=tolerance)


def test_pooled_statistics_follow_from_sums():
    """n, sum and sum of squares of a channel's pixels."""
    n, first, second = (GOLDEN[f"sums/{name}"] for name in ("n", "s1", "s2"))
    for k, images in enumerate(SITES):
        found = pair_of([images], "pixels")
        np.testing.assert_allclose(found.mean.numpy(), first[k] / n[k], atol=1e-12)
        np.testing.assert_allclose(found.sd.numpy() ** 2, second[k] / n[k] - (first[k] / n[k]) ** 2, atol=1e-12)


def test_a_site_evaluates_with_its_own_pair():
    for k, images in enumerate(SITES):
        data = FedRDN().site_data(Images(images))
        found = torch.cat([batch.inputs for batch in data.fixed("test", 2)])
        np.testing.assert_allclose(found.numpy(), GOLDEN[f"paper/eval/site{k}"], rtol=0, atol=1e-12)


def taken_on(site, rows, means, sds):
    """The first images of a site, from its own pair to the drawn ones, as a training step does it."""
    own = pair_of([SITES[site]], "images")
    return renormalised(normalised_by(SITES[site][:rows], own), own, means, sds).numpy()


def test_the_papers_training_images():
    """Site 0: one pair per image."""
    means, sds = (torch.stack(values) for values in zip(*(stored("paper")[j] for j in GOLDEN["paper/pairs"])))
    found = taken_on(0, len(GOLDEN["paper/pairs"]), means, sds)
    np.testing.assert_allclose(found, GOLDEN["paper/train_images"], rtol=0, atol=1e-12)


def test_the_authors_training_batches():
    """Mean and standard deviation of two sites, the same for all images of a batch."""
    pairs = stored("reference")
    for batch, (site, of_mean, of_sd) in zip(GOLDEN["ref/train_batches"], GOLDEN["ref/picks"], strict=True):
        found = taken_on(int(site), len(batch), pairs[of_mean].mean[None], pairs[of_sd].sd[None])
        np.testing.assert_allclose(found, batch, rtol=0, atol=1e-12)


def test_the_draws_of_the_variants():
    """One pair per image and both of one site; or one mean and one deviation for a batch, drawn apart."""
    pairs, generator = stored("paper"), torch.Generator().manual_seed(0)
    means, sds = FedRDN().drawn(pairs, 50, generator)
    whose = [
        [torch.equal(row, value[k]) for k in range(3)].index(True)
        for value, row in [(torch.stack([p.mean for p in pairs]), row) for row in means]
    ]
    assert set(whose) == {0, 1, 2} and torch.equal(sds, torch.stack([pairs[k].sd for k in whose]))
    drawn = [FedRDN("reference").drawn(pairs, 50, generator) for _ in range(40)]
    assert {tuple(m.shape) for m, _ in drawn} == {(1, 3)}
    apart = [(m, s) for m, s in drawn if not any(torch.equal(m[0], p.mean) and torch.equal(s[0], p.sd) for p in pairs)]
    assert apart


def test_site_data_are_wrapped_once():
    data = FedRDN().site_data(Images(SITES[0]))
    assert isinstance(data, OwnNormalised) and FedRDN().site_data(data) is data
