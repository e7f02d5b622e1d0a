# SPDX-License-Identifier: Apache-2.0
"""What a site keeps from round to round: its own models and optimizer state, on its own disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairflare.federation.state import write_atomically


class SiteMemory:
    """Values of the last two rounds, so that a round which is asked for again starts from where it started before.

    Args:
        path: the file that survives a restart; None keeps values in this object only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._rounds: dict[int, dict[str, Any]] = {}
        if path is not None and path.is_file():
            self._rounds = torch.load(path, map_location="cpu", weights_only=True)

    def before(self, round: int) -> dict[str, Any]:
        """A copy of what was kept by the latest round before ``round``; empty when there is none."""
        earlier = [r for r in self._rounds if r < round]
        return _detached(self._rounds[max(earlier)]) if earlier else {}

    def at(self, round: int) -> dict[str, Any]:
        """A copy of what ``round`` itself has kept; empty when it kept nothing."""
        return _detached(self._rounds.get(round, {}))

    def keep(self, round: int, values: Mapping[str, Any]) -> None:
        """Keep ``values`` as those of ``round``; of the rounds before, only the latest is kept beside it."""
        earlier = [r for r in self._rounds if r < round]
        kept = {max(earlier): self._rounds[max(earlier)]} if earlier else {}
        self._rounds = {**kept, round: _detached(dict(values))}
        if self._path is not None and any(self._rounds.values()):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, lambda file: torch.save(self._rounds, file))


def _detached(value: Any) -> Any:
    """Tensors as copies on the CPU: what is kept must not change when the network trains on."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _detached(item) for key, item in value.items()}
    return [_detached(item) for item in value] if isinstance(value, (list, tuple)) else value
