# SPDX-License-Identifier: Apache-2.0
"""Which site holds which example, decided from the labels and a seed alone."""

from __future__ import annotations

import numpy as np

from fairflare.core.errors import UserError

ATTEMPTS = 200
SMALLEST_SITE = 24
"""Images that every site has at least."""


def dirichlet_with_corrupted(labels: np.ndarray, n_sites: int, n_corrupted: int, alpha: float, seed: int) -> np.ndarray:
    """Label-skewed split in which the last ``n_corrupted`` sites together get their share of every class.

    The split of FedISM and FedISM+ (Wu et al., arXiv:2503.09587, Section V): of a class with N_c examples, the first
    round((K - n_corrupted) / K N_c) in stored order go to the clean sites and the rest to the corrupted ones, in both
    groups by proportions from Dirichlet(alpha).

    Args:
        labels: (N,) integers >= 0.
        n_corrupted: 0 <= n_corrupted < ``n_sites`` = K.
        alpha: concentration > 0; large values approach an even split.
        seed: of a legacy NumPy generator, in 0..2**32-1; the papers use 2024.

    Returns:
        int64 (N,): the site's index of every example. A site may be left with none: see ``redrawn``.
    """
    rng = np.random.RandomState(seed)
    n_clean = n_sites - n_corrupted
    clean, poor = np.arange(n_clean), np.arange(n_clean, n_sites)
    sites = np.full(len(labels), -1, dtype=np.int64)
    for c in range(int(np.max(labels)) + 1):
        members = np.flatnonzero(np.asarray(labels) == c)
        cut = round(n_clean / n_sites * len(members))
        # Both proportions are drawn before either assignment: the published partitions depend on this order.
        shares = [rng.dirichlet(np.full(len(group), alpha)) if len(group) else None for group in (clean, poor)]
        for group, part, share in zip((clean, poor), (members[:cut], members[cut:]), shares):
            if len(group):
                sites[part] = rng.choice(group, size=len(part), p=share)
    return sites


def redrawn(
    labels: np.ndarray,
    n_sites: int,
    alpha: float,
    seed: int,
    *,
    corrupted: int = 0,
    cases: tuple[np.ndarray, np.ndarray | slice] | None = None,
    minimum: int = SMALLEST_SITE,
    minimum_per_class: int = 0,
) -> np.ndarray:
    """The first split by ``seed``, ``seed`` + 1, ... that leaves every site enough examples; arguments as above.

    Args:
        cases: where examples are dealt out by cases: the class of each, and int64 (N,) the case of every example.
        minimum: examples that each site needs.
        minimum_per_class: examples of every class that each site needs.

    Raises:
        UserError: no such split in 200 draws, e.g. because there are too few examples for the sites.
    """
    n_classes = int(np.max(labels)) + 1
    classes, place = cases or (labels, slice(None))
    for attempt in range(ATTEMPTS):
        sites = dirichlet_with_corrupted(classes, n_sites, corrupted, alpha, (seed + attempt) % 2**32)[place]
        counts = np.bincount(sites * n_classes + labels, minlength=n_sites * n_classes).reshape(n_sites, n_classes)
        if counts.sum(1).min() >= minimum and counts.min() >= minimum_per_class:
            return sites
    raise UserError(
        f"no split of {len(labels)} examples over {n_sites} sites with at least {minimum} each in {ATTEMPTS} draws; "
        "use fewer sites, more examples or a larger alpha"
    )
