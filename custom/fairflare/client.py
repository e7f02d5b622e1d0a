# SPDX-License-Identifier: Apache-2.0
"""A training loop of your own as a site of any federation: receive, evaluate, train, report (docs/client.md).

FLARE's Client API is underneath. What a script reports goes through the site's egress check, the server's gate and the
audit log like every other answer.

Example::

    from fairflare import client

    for work in client.rounds(net, n_examples=len(data), evaluate=score):
        numbers = client.sharpness(net, loader, cross_entropy, work.rho)
        train(net, loader, lr=work.training["lr"])
        work.report(numbers)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fairflare.probes.plain import group_losses, layer_features, layer_similarity, sharpness

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fairflare.flare.script_side import Work

__all__ = [
    "data_folder", "group_losses", "layer_features", "layer_similarity", "rounds", "sharpness", "site_name",
]  # fmt: skip


def rounds(
    network: nn.Module,
    n_examples: int,
    evaluate: Callable[[nn.Module, str], Mapping[str, float]] | None = None,
    compare: Callable[[nn.Module, dict[str, Tensor]], Mapping[str, float]] | None = None,
) -> Iterator[Work]:
    """Each round that this site trains in, with the received model in ``network``; see ``flare.script_side.rounds``.

    Args:
        network: receives every model.
        n_examples: of the training split, the same in all rounds.
        evaluate: network and "val" or "test" -> metrics, with the split's size as "n"; empty without such a split.
        compare: network with the trained model, and the rule's anchor -> numbers; for Fed-LWR's second exchange.

    Raises:
        UserError: this process is no site of a federation, or a round was not reported.
    """
    from fairflare.flare import script_side

    return script_side.rounds(network, n_examples, evaluate, compare)


def site_name() -> str:
    """This site's name; raises UserError outside a federation."""
    from fairflare.flare.script_side import where

    return where().site


def data_folder() -> Path:
    """Where this site's data are: ``data_root`` of its site file, or its folder in ``--data``; raises UserError."""
    from fairflare.flare.script_side import where

    return where().folder
