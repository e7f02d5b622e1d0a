# SPDX-License-Identifier: Apache-2.0
"""What the research distribution brings, by name, so that a message can say how to install what somebody asks for."""

from __future__ import annotations

CACHE = "FAIRFLARE_CACHE"
"""Environment variable: the folder where it keeps the images that its tasks render, or "off"."""
COMMANDS = frozenset(("contribution", "evidence", "forget", "new", "paper", "prepare", "riders", "risk", "search"))
_METHODS = (
    "afl apfl cffl cgsv fairfed fairfedavg fedadagrad fedamp fedci fedcostwavg feddg-ga feddyn fedeba-plus "
    "fedfv fedga fedlesam fedpid fedpidavg fedproc fedproto fedrdn fedyogi flexfair ifca maxfl multi-krum pfedme "
    "qfedavg shapfed silobn"
)
_TASKS = (
    "brain-seg brain-seg3d covid-brazil ctg digits digits5 fundus fundus-phantom ham10000 "
    "ham10000-malignant ham10000-masks ich-phantom isic2019 office-caltech prostate rsna-ich "
    "seer-prostate support support2-stay support2-survival tcga-brca"
)
METHODS, TASKS = frozenset(_METHODS.split()), frozenset(_TASKS.split())
WHERE = "is part of fairflare-lab, which is not installed: pip install 'fairflare[lab]'"


def absent(kind: str, name: object) -> str:
    """The line for a method, task or command ``name`` that the research distribution would bring, else ""."""
    known = {"method": METHODS, "task": TASKS, "command": COMMANDS, "secure_sum": {"ckks"}}
    names = known.get(kind.rstrip(":"), frozenset())
    return f"{kind.rstrip(':')} {name!r} {WHERE}" if name in names else ""
