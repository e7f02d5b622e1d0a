# SPDX-License-Identifier: Apache-2.0
"""FedGA and FedDG-GA: generalization adjustment."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

GENERALIZATION = Paper(
    authors="Zhang et al.",
    title="Federated Domain Generalization with Generalization Adjustment",
    venue="CVPR",
    year=2023,
    url="https://openaccess.thecvf.com/content/CVPR2023/html/"
    "Zhang_Federated_Domain_Generalization_With_Generalization_Adjustment_CVPR_2023_paper.html",
)
PROBES = ("loss", "trained-loss", "local-error")
SHARED = {key: (f"probe.loss.{key}", f"probe.trained-loss.{key}") for key in ("loss_split", "probe_batch")}
"""Both losses of a gap are measured alike."""


method(
    "fedga",
    title="FedGA",
    summary="Weighs sites more that lose most by being averaged; the gap of the losses, in small steps.",
    rule="fedga",
    paper=GENERALIZATION,
    probes=PROBES,
    settings={"loss_split": "val"},
    shared=SHARED,
)

method(
    "feddg-ga",
    title="FedDG-GA",
    summary="As FedGA with centred gaps: sites above the mean gap weigh more, the others less.",
    rule="fedga",
    paper=GENERALIZATION,
    probes=PROBES,
    settings={"loss_split": "val", "form": "feddg-ga"},
    shared=SHARED,
)
