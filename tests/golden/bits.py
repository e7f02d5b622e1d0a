# SPDX-License-Identifier: Apache-2.0
"""Models that must not change: the SHA-256 of the final model of sixteen forms of the methods, on two tasks.

They are those of version 0.1, which laid no network out for a CPU: its sites computed in ``contiguous`` memory.

``python tests/golden/bits.py`` adds this machine's hashes to ``bits.json`` beside this file; ``test_bits.py`` makes the
models again. A hash holds on a machine that computes as the one that wrote it, which ``arithmetic`` (torch),
``products`` (NumPy's matrix products, whose kernels another library chooses by the processor) and ``convolutions``
(torch's at the size of a batch of images, for which it takes other kernels) tell.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F

FILE = Path(__file__).with_name("bits.json")
TASKS = {
    "support2": ("--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--set", "group_by=sex"),
    "digits": (
        *("--task", "digits:small", "--sites", "4", "--rounds", "2", "--set", "images_per_site=64"),
        *("--set", "test_images=40", "--set", "site_test_images=40"),
    ),
}
FORMS = {
    "fedavg": ("fedavg",),
    "fedavg-uniform": ("fedavg", "--set", "weighting=uniform"),
    "fedism": ("fedism",),
    "fedism-plus": ("fedism-plus",),
    "fedism-plus-reference": ("fedism-plus", "--set", "variant=reference"),
    "fedlwr-cka": ("fedlwr",),
    "fedlwr-cosine": ("fedlwr", "--set", "similarity=cosine"),
    "fedheal": ("fedheal",),
    "fedheal-fphl": ("fedheal", "--set", "parts=fphl"),
    "fedheal-fael": ("fedheal", "--set", "parts=fael"),
    "fedufo-client": ("fedufo", "--set", "level=client"),
    "fedufo-multi": ("fedufo", "--set", "level=multi"),
    "fedce-sum": ("fedce",),
    "fedce-multi": ("fedce", "--set", "combine=multi"),
    "fedce-cosine": ("fedce", "--set", "terms=cosine"),
    "fedce-error": ("fedce", "--set", "terms=error"),
}
AS_PUBLISHED = ("--no-solo", "--set", "robust=off")
OF_PRODUCTS = ("fedheal", "fedheal-fael", "fedce-sum", "fedce-multi", "fedce-cosine")
"""Forms whose weights come from NumPy's products of the updates."""


def arithmetic() -> str:
    """What this machine's torch makes of a few operations: equal on machines that round alike."""
    draw = torch.Generator().manual_seed(7)
    x, w = torch.randn(8, 3, 24, 24, generator=draw), torch.randn(5, 3, 3, 3, generator=draw)
    y = F.conv2d(x, w).requires_grad_()
    z = torch.log_softmax(y.flatten(1) @ torch.randn(y[0].numel(), 7, generator=draw), 1).exp().sum()
    z.backward()
    digest = hashlib.sha256(torch.__version__.encode())
    for tensor in (y.detach(), y.grad, torch.erf(x), torch.sqrt(x.abs())):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def products() -> str:
    """What this machine's NumPy makes of a few matrix products."""
    draw = np.random.default_rng(7)
    digest = hashlib.sha256(np.__version__.encode())
    for shape in ((3, 8192), (4, 8192), (20, 8192), (4, 37)):
        for kind in (np.float32, np.float64):
            block = draw.standard_normal(shape).astype(kind)
            digest.update((block @ block.T).tobytes() + (block.T @ block[:, :5]).tobytes())
    return digest.hexdigest()


def convolutions() -> str:
    """What this machine's torch makes of a batch of images: two convolutions, and their gradients."""
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(32, 3, 32, 32, generator=draw)
    first, second = (torch.randn(16, inner, 3, 3, generator=draw).requires_grad_() for inner in (3, 16))
    z = F.max_pool2d(F.conv2d(F.conv2d(x, first, padding=1).relu(), second, stride=2, padding=1).relu(), 2)
    z.square().mean().backward()
    digest = hashlib.sha256(torch.__version__.encode())
    for tensor in (z.detach(), first.grad, second.grad):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def kept_here() -> dict[str, str]:
    """ "form on task" -> hash, of what is known of machines that compute as this one.

    Hashes that were written before ``convolutions`` was asked count wherever no entry that was asked is like this one.
    """
    here = {"arithmetic": arithmetic(), "products": products(), "convolutions": convolutions()}
    machines = [one for one in json.loads(FILE.read_text()) if one["arithmetic"] == here["arithmetic"]]
    machines = [one for one in machines if one.get("convolutions") in (None, here["convolutions"])]
    machines.sort(key=lambda one: "convolutions" not in one)
    for one in machines:
        if one["products"] == here["products"]:
            return one["models"]
    found = machines[0]["models"] if machines else {}
    return {case: kept for case, kept in found.items() if case.split(" on ")[0] not in OF_PRODUCTS}


def hash_of(folder: Path) -> str:
    """The hash of a finished run's model, as its audit log says."""
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return next(line["model_sha256"] for line in reversed(lines) if line["event"] == "finish")


def make(form: str, task: str, folder: Path, env: str = "local") -> str:
    """Run a form on a task in version 0.1's layout; the hash of its final model, after which no site trains alone.

    Raises:
        RuntimeError: the run failed.
    """
    from fairflare.cli.main import main

    try:
        with mock.patch("fairflare.core.execution.WIDEST", 0):
            main(["run", *FORMS[form], *TASKS[task], *AS_PUBLISHED, "--env", env, "--out", str(folder)])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{form} on {task} ended with {end.code}") from None
    return hash_of(folder)


def write() -> None:
    """Make every model and keep their hashes as this machine's."""
    with tempfile.TemporaryDirectory() as scratch:
        models = {
            f"{form} on {task}": make(form, task, Path(scratch, f"{form}_{task}")) for task in TASKS for form in FORMS
        }
    here = {"arithmetic": arithmetic(), "products": products(), "convolutions": convolutions()}
    others = [one for one in json.loads(FILE.read_text()) if {key: one.get(key) for key in here} != here]
    FILE.write_text(json.dumps([*others, {**here, "models": models}], indent=2) + "\n")


if __name__ == "__main__":
    write()
