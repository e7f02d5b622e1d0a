# SPDX-License-Identifier: Apache-2.0
"""A frozen body runs once per image: heads then train on the features that it gives.

With ``tune=head`` all that trains is behind the body, so that what enters the last layer is the same in every round.
It takes the images' place in a site's data, and the network computes the last layer of it. Where the site's own file
names a folder (``features``), features stay there for its next runs. The name of each is a hash of the body's weights
and layers, and of the pixels as the network takes them: after reading, resampling, normalising and any augmentation.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.seeds import derive
from fairflare.core.types import Batch
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.hashes import model_hash
from fairflare.networks.builtin import Ordered

BATCH = 16
SUFFIX = ".npy"
OFTEN = 5.0
"""Seconds after which it is said how far it is."""
CLOSE = 1e-4
"""By how much the last layer's answer to features may differ from the network's to images, which it should be."""


class Folder:
    """Features on disk, one file each, at most ``most`` bytes of them: those that were not used longest go first."""

    def __init__(self, path: Path, most: float) -> None:
        self._path, self._most = path, most
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._size = sum(size for _, size, _ in self._files())

    def get(self, key: str) -> Tensor | None:
        """What was kept, None where there is nothing, or a half of it."""
        path = self._path / f"{key}{SUFFIX}"
        try:
            found = torch.from_numpy(np.load(path, allow_pickle=False))
            os.utime(path)
        except (OSError, ValueError, EOFError):
            return None
        return found

    def put(self, key: str, value: Tensor) -> None:
        """Keep ``value``, whole or not at all."""
        written = io.BytesIO()
        np.save(written, value.numpy())
        descriptor, name = tempfile.mkstemp(dir=self._path)
        with os.fdopen(descriptor, "wb") as file:
            file.write(written.getbuffer())
        os.replace(name, self._path / f"{key}{SUFFIX}")
        self._size += len(written.getbuffer())
        if self._size > self._most:
            self._size = 0
            for _, size, path in sorted(self._files(), reverse=True):
                self._size += size
                if self._size > 0.9 * self._most:  # so that not every further one needs a look at all
                    self._size -= size
                    path.unlink(missing_ok=True)

    def _files(self) -> Iterable[tuple[float, int, Path]]:
        for path in self._path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process made room
                about = path.stat()
                yield about.st_mtime, about.st_size, path


class _Headed(nn.Module):
    """A network that takes the D features (N, D, 1, 1) that enter its last layer, too."""

    _fairflare_head: str
    _fairflare_width: int

    def forward(self, x: Tensor) -> Any:
        if tuple(x.shape[1:]) == (self._fairflare_width, 1, 1):
            return self.get_submodule(self._fairflare_head)(x.flatten(1))
        return super().forward(x)  # the network's own class comes next


class Features(TensorData):
    """A site's data with features in the images' place; of training images there may be several augmented views."""

    views: Tensor
    """Float32 (K, N, D, 1, 1)."""

    def _picked(self, batches: Any, generator: torch.Generator) -> Any:
        groups, split = self._groups["train"], self.splits["train"]
        for rows, (_, targets) in zip(batches, split.read(batches), strict=True):
            view = torch.randint(len(self.views), (len(rows),), generator=generator)
            yield Batch(self.views[view, rows], targets, groups[rows]).to(self.device)


def featured(
    data: TensorData, network: nn.Module, views: int, seed: int, folder: Folder | None, tell: Callable[[str], None]
) -> TensorData:
    """``data`` with features in the images' place; ``data`` itself where the network's last layer takes no vectors.

    Args:
        network: with a frozen body, on the device of the data; it takes features, too, from now on.
        views: how many times each training image is augmented; 0 where the data augment: images stay.
        seed: of the views.
        folder: where features are kept; None: in memory alone.
        tell: called with how far it is.
    """
    inner = network.network if isinstance(network, Ordered) else network
    assert isinstance(inner, nn.Module)
    first = next(iter(data.fixed("train", 2)), None)
    if first is None or first.inputs.dim() < 4 or (data.augment and not views):
        return data
    network.eval()
    last = [name for name, one in inner.named_modules() if next(one.parameters(recurse=False), None) is not None][-1]
    expected, entered = _entering(inner, last, first.inputs)
    if entered.dim() != 2:
        return data
    if not isinstance(inner, _Headed):
        kind = type(inner)
        inner.__class__ = type(kind.__name__, (_Headed, kind), {})
        inner._fairflare_head, inner._fairflare_width = last, entered.shape[1]  # type: ignore[assignment]  # of _Headed
    if not torch.allclose(inner(entered[:, :, None, None]), expected, atol=CLOSE, rtol=CLOSE):
        inner.__class__ = type(inner).__mro__[2]
        return data
    head = f"{last}."
    whole = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
    body = model_hash({name: value.cpu() for name, value in whole.items() if not name.startswith(head)})
    key, total, done = f"{body} {type(inner).__name__} {inner}", sum(map(len, data.splits.values())), 0
    total += views * len(data.splits["train"]) if data.augment else 0
    said = time.monotonic()

    def of(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        nonlocal done, said
        parts, targets = list[Tensor](), list[Tensor]()
        for batch in batches:
            pixels = batch.inputs.cpu().contiguous().numpy()
            names = [hashlib.sha256(key.encode() + one.tobytes()).hexdigest() for one in pixels]
            kept = [folder.get(name) if folder else None for name in names]
            if any(one is None or one.shape != entered.shape[1:] for one in kept):
                kept = [*_entering(inner, last, batch.inputs)[1].cpu()]
                for name, one in zip(names, kept) if folder else ():
                    folder.put(name, one)  # type: ignore[union-attr,arg-type]  # there are both
            parts.append(torch.stack(kept)[:, :, None, None])  # type: ignore[arg-type]  # none is missing
            targets.append(batch.targets.cpu())
            done += len(names)
            if time.monotonic() > said + OFTEN or done == total:
                said = time.monotonic()
                tell(f"{done} of {total} images through the encoder")
        return (
            (torch.cat(parts), torch.cat(targets))
            if parts
            else (torch.empty(0, entered.shape[1], 1, 1), torch.empty(0))
        )

    made = copy.copy(data)
    made.splits, made.mean, made.std, made.augment, made._ready = {}, (), (), False, {}
    for name, split in data.splits.items():
        inputs, targets = of(data.fixed(name, BATCH))  # type: ignore[arg-type]  # a split's name
        made.splits[name] = Split(inputs, targets if len(split) else split.labels, split.attributes, split.patients)
    made.source = data
    if data.augment:
        made.__class__ = Features
        rows = torch.arange(len(data.splits["train"])).split(BATCH)
        seen = [of(data.picked(rows, derive(seed, "view", k)))[0] for k in range(views)]
        made.views = torch.stack(seen)  # type: ignore[attr-defined]  # of Features
    return made


@torch.no_grad()
def _entering(network: nn.Module, head: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What the network answers to ``inputs``, and what then enters its last layer."""
    found: list[Tensor] = []
    hook = network.get_submodule(head).register_forward_pre_hook(lambda layer, given: found.append(given[0]))
    try:
        answer = network(inputs)
    finally:
        hook.remove()
    return answer, found[-1].float()
