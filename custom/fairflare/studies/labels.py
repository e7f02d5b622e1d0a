# SPDX-License-Identifier: Apache-2.0
"""Texts that stand for runs: methods with settings of their own, grids, and the folders that are named after them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.settings import parse_pairs
from fairflare.core.validation import expected, shown

DATA_SEED = "data_seed"
"""Option of a task that draws its data."""
RUN_FILE = "run.yaml"
"""In a run's folder, what repeats it."""
LONGEST_NAME = 100
"""Characters of a folder's name that stand for a method's settings."""
LONGEST_BYTES = 200
"""Of them in UTF-8; a file system takes 255 in all."""
MOST_RUNS = 1000
"""Of methods, of seeds, and of combinations of a grid in one comparison."""
MOST_WORKERS = 1024
"""Processes that may be asked for."""
OWNERS = frozenset({"rule", "trainer", "probe", "select", "server", "train", "task", "after", "run"})
"""Owners of settings, whose values may stand below them, as in ``config.json``."""


def flat_settings(settings: Any) -> Iterator[tuple[str, str]]:
    """Name and text of every setting, as ``--set`` takes them: "rule.q" and "2" of {"rule": {"q": 2}}.

    Raises UserError: no mapping.
    """
    expected("set", isinstance(settings, Mapping), "names and values", settings)
    for key, value in settings.items():
        if isinstance(value, Mapping) and key in OWNERS:
            for name, own in value.items():
                inner = own if key == "probe" and isinstance(own, Mapping) else {"": own}
                yield from ((".".join(filter(None, (key, name, last))), as_text(one)) for last, one in inner.items())
        else:
            yield key, as_text(value)


def as_text(value: Any) -> str:
    """A value as the command line has it: true, none, 0.1, "a,b" of a list of plain values, JSON of anything else."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)) and all(isinstance(one, (str, int, float)) for one in value):
        return ",".join(map(as_text, value))
    return json.dumps(value) if isinstance(value, (Mapping, list, tuple)) else str(value)


def split_method(label: str) -> tuple[str, dict[str, str]]:
    """ "fedism-plus:state=L,q=1" -> ("fedism-plus", {"state": "L", "q": "1"})."""
    name, _, settings = label.partition(":")
    return name, parse_pairs([s for s in settings.split(",") if s])


def on_grid(methods: Sequence[str], grid: Sequence[str]) -> list[str]:
    """METHOD labels at every combination of the grid's values for the keys that the method has."""
    axes = {key: value.split(",") for key, value in parse_pairs(grid).items()}
    for key, found in axes.items():
        _refuse_twins(f"--grid: {key}", found)
    unused = set(axes)
    labels: list[str] = []
    for label in methods:
        name, _, own = label.partition(":")
        keys = [key for key in axes if _has(name, own, key)]
        unused -= set(keys)
        at_most("--grid", len(labels) + math.prod(len(axes[key]) for key in keys))
        for values in itertools.product(*(axes[key] for key in keys)):
            settings = [own] if own else []
            settings += [f"{key}={value}" for key, value in zip(keys, values)]
            labels.append(":".join(filter(None, (name, ",".join(settings)))))
    if unused:
        raise UserError(f"--grid: no METHOD has the key {shown(sorted(unused)[0])}")
    at_most("METHOD", len(labels))
    _refuse_twins("METHOD", labels)
    return labels


def _has(method: str, own: str, key: str) -> bool:
    """Whether a part of METHOD with the settings ``own`` has the key, or its training, run or a last step; one that
    several have is refused later."""
    from fairflare.core import registry
    from fairflare.core.settings import Owners
    from fairflare.core.types import Training
    from fairflare.engine.setup.config import RULE, RUN_KEYS, chosen_parts
    from fairflare.engine.setup.method_parts import PART_KEYS, STEPS, step_class
    from fairflare.engine.setup.run_config import RunConfig

    chosen = chosen_parts(method, [split_method(f"{method}:{own}")[1]])
    classes = {**registry.owners(chosen.method, **chosen.ids), "train": Training}
    owners = Owners(classes, chosen.method.shared, (RunConfig, (*RUN_KEYS, *PART_KEYS, RULE, "after")))
    steps = [Owners({"after": step}) for step in map(step_class, STEPS) if step]
    return any(key in one.full or key in one.shared or one.having(key) for one in (owners, *steps))


def at_most(key: str, count: int) -> None:
    """Raise UserError where more than ``MOST_RUNS`` are asked for."""
    if count > MOST_RUNS:
        raise UserError(f"{key}: expected at most {MOST_RUNS}, got {count}")


def _refuse_twins(key: str, found: Sequence[str]) -> None:
    twins = [one for one, count in Counter(found).items() if count > 1]
    if twins:
        raise UserError(f"{key}: {shown(twins[0])} is given twice")


def folder_name(label: str) -> str:
    """The name of a METHOD's folder: "fedism-plus-state=L-q=1". Odd characters are replaced, a long name is cut, and
    then a hash keeps two labels apart."""
    plain = label.replace(":", "-").replace(",", "-")
    name = re.sub(r"[^\w.=+-]", "_", plain)[:LONGEST_NAME]
    name = name.encode()[:LONGEST_BYTES].decode(errors="ignore")
    return name if name == plain else f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def comparison_name(task: str, shared: Mapping[str, Any], what: str = "compare") -> str:
    """The folder's name of a comparison on ``task``: another one for every choice that all of its runs share.

    More methods or seeds with the same choices find their finished runs again; other choices never meet them.
    """
    chosen = {key: value for key, value in shared.items() if value and value != "local"}
    suffix = f"-{hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:6]}" if chosen else ""
    return f"{what}-{task.replace(':', '-')}{suffix}"


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None: unset."""
    for key, value in variables.items():
        os.environ.pop(key, None)
        os.environ.update({} if value is None else {key: value})


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Within: these variables; after it they are as they were, whatever was set meanwhile."""
    before = {key: os.environ.get(key) for key in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(before)
