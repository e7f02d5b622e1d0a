# SPDX-License-Identifier: Apache-2.0
"""CFFL and CGSV: each site receives as much of the aggregate as it has earned."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

CFFL = Paper(
    authors="Lyu et al.",
    title="Collaborative Fairness in Federated Learning",
    venue="Federated Learning, LNCS 12500",
    year=2020,
    url="https://arxiv.org/abs/2008.12161",
)
CGSV = Paper(
    authors="Xu et al.",
    title="Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning",
    venue="NeurIPS",
    year=2021,
    url="https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html",
)


method(
    "cffl",
    title="CFFL",
    summary="A model per site; sites whose models do well at home download more of the others' updates.",
    rule="cffl",
    paper=CFFL,
    probes=("local-error",),
)


method(
    "cgsv",
    title="CGSV",
    summary="A model per site; sites whose updates agree with the aggregate receive more of it.",
    rule="cgsv",
    paper=CGSV,
)
