# SPDX-License-Identifier: Apache-2.0
"""Median, trimmed mean and multi-Krum: robust aggregation."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

YIN = Paper(
    authors="Yin et al.",
    title="Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    venue="ICML",
    year=2018,
    url="https://arxiv.org/abs/1803.01498",
)
KRUM = Paper(
    authors="Blanchard et al.",
    title="Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    venue="NeurIPS",
    year=2017,
    url="https://arxiv.org/abs/1703.02757",
)


method(
    "median",
    title="Median",
    summary="Takes the weighted median of the updates at each position; against a minority of wild sites.",
    rule="median",
    paper=YIN,
)


method(
    "trimmed-mean",
    title="Trimmed mean",
    summary="Averages the updates at each position without the outermost share; against a few wild sites.",
    rule="trimmed-mean",
    paper=YIN,
)


method(
    "multi-krum",
    title="Multi-Krum",
    summary="Averages the updates that have near neighbours and drops the others; against a few wild sites.",
    rule="multi-krum",
    paper=KRUM,
)
