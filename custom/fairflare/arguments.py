# SPDX-License-Identifier: Apache-2.0
"""What the command line's texts mean: settings, seeds, methods with settings of their own, grids."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fairflare.errors import UserError

KINDS = ("classification", "segmentation", "tabular")


def own_data(
    task: str | None, datalists: Path | None, kind: str | None, classes: str | None
) -> tuple[str, tuple[str, ...]]:
    """The task and the settings that ``--task`` or ``--datalists DIR --kind K --classes N`` stand for.

    A folder that ``fairflare prepare`` wrote says itself what kind of data it holds.

    Raises:
        UserError: neither is given, or the folder holds no lists.
    """
    from fairflare.clinic.kinds.own import sites_in
    from fairflare.clinic.tasks import TASKS

    if datalists is None:
        if task is None and kind is not None and classes is not None:
            return kind, (f"labels={classes}",)  # every site has its own configuration
        if task is None:
            raise UserError("--task: expected a task, or your own data: --datalists DIR --kind K --classes N")
        if kind or classes:
            raise UserError("--kind and --classes: go with --datalists DIR")
        return task, ()
    described = _description(datalists)
    chosen, classes = task or kind or described.get("kind"), classes or ",".join(described.get("classes", ()))
    if chosen is None or chosen.partition(":")[0] not in KINDS:
        raise UserError(f"--datalists: expected --kind {' or '.join(KINDS)} with it, got {chosen or 'none'}")
    suffixes = TASKS[chosen.partition(":")[0]].suffixes
    names = sites_in(datalists, suffixes) if datalists.is_dir() else []
    if not names:
        raise UserError(f"--datalists {datalists}: expected a folder with a <SITE>{suffixes[0]} per site")
    pairs = (f"datalists={datalists.resolve()}", f"site_names={','.join(names)}")
    pairs += tuple(f"{key}={value}" for key, value in described.get("options", {}).items())
    return chosen, pairs + ((f"labels={classes}",) if classes else ())


def own_pairs(pairs: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """``pairs`` of a folder of datalists and on top of them those that the user has ``given``, which win."""
    keys = {pair.partition("=")[0].strip() for pair in given}
    return tuple(pair for pair in pairs if pair.partition("=")[0] not in keys) + given


def _description(datalists: Path) -> dict[str, Any]:
    from fairflare.clinic.kinds.own import read_description

    return read_description(datalists)


def parse_pairs(pairs: tuple[str, ...] | list[str], pretrained_weights: str | None = None) -> dict[str, Any]:
    """("q=2", "beta=.5") -> {"q": "2", "beta": ".5"}, plus the weights' path; raises UserError on anything else."""
    values: dict[str, Any] = {"pretrained_weights": pretrained_weights} if pretrained_weights else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set: expected KEY=VALUE, got {pair!r}")
        if key.strip() in values:
            raise UserError(f"--set: {key.strip()} is given twice")
        values[key.strip()] = value.strip()
    return values


def split_method(label: str) -> tuple[str, dict[str, Any]]:
    """ "fedism-plus:state=L,q=1" -> ("fedism-plus", {"state": "L", "q": "1"})."""
    name, _, settings = label.partition(":")
    return name, parse_pairs([s for s in settings.split(",") if s])


def on_grid(methods: tuple[str, ...], grid: tuple[str, ...]) -> list[str]:
    """METHOD labels at every combination of the grid's values for the keys that the method has."""
    from fairflare.registry import get_method, method_keys

    axes = {key: value.split(",") for key, value in parse_pairs(grid).items()}
    unused = set(axes)
    labels = []
    for label in methods:
        name, _, own = label.partition(":")
        keys = [key for key in axes if key in method_keys(get_method(name))]
        unused -= set(keys)
        for values in itertools.product(*(axes[key] for key in keys)):
            settings = [own] if own else []
            settings += [f"{key}={value}" for key, value in zip(keys, values)]
            labels.append(":".join(filter(None, (name, ",".join(settings)))))
    if unused:
        raise UserError(f"--grid: no METHOD has the key {sorted(unused)[0]!r}")
    return labels


def parse_seeds(text: str) -> list[int]:
    """ "0,1,2" -> [0, 1, 2]; raises UserError on anything else."""
    try:
        seeds = [int(s) for s in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: expected whole numbers such as 0,1,2, got {text!r}") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: expected different numbers of at least 0, got {text!r}")
    return seeds
