# SPDX-License-Identifier: Apache-2.0
"""What the command line's texts mean: settings, seeds, methods with settings of their own, grids."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.suggest import unlisted
from fairflare.core.validation import SITE, shown
from fairflare.tasks.forms import FORMS

LONGEST_NAME = 100
"""Characters of a folder's name that stand for a method's settings."""
LONGEST_BYTES = 200
"""Of them in UTF-8; a file system takes 255 in all."""
MOST_RUNS = 1000
"""Of methods, of seeds, and of combinations of a grid in one comparison."""


def own_data(
    task: str | None, datalists: Path | None, kind: str | None, classes: str | None
) -> tuple[str, tuple[str, ...]]:
    """The task and the settings that ``--task`` or ``--datalists DIR --kind K --classes N`` stand for.

    A folder that ``fairflare prepare`` wrote says itself what kind of data it holds.

    Raises:
        UserError: neither is given, or the folder holds no lists.
    """
    from fairflare.engine.setup.tasks import TASKS
    from fairflare.tasks.kinds.own import OwnData, folder_of_lists, sites_in

    if datalists is None:
        if task is None and kind is not None and classes is not None:
            return kind, (f"labels={classes}",)  # every site has its own configuration
        if task is None:
            raise UserError("--task: expected a task, or your own data: --datalists DIR --kind K --classes N")
        if kind or classes:
            raise UserError("--kind and --classes: go with --datalists DIR")
        return task, ()
    shown_as, datalists = datalists, folder_of_lists(datalists)
    described = _description(datalists)
    chosen, classes = task or kind or described.get("kind"), classes or ",".join(described.get("classes", ()))
    if chosen is None or chosen.partition(":")[0] not in FORMS:
        text = f"--datalists: expected --kind {' or '.join(FORMS)} with it, got {chosen or 'none'}"
        raise UserError(text if chosen else f"{text} (`fairflare init {shown_as}` finds out)")
    kind_of_data = TASKS[chosen.partition(":")[0]]
    assert issubclass(kind_of_data, OwnData)  # as every one of FORMS is
    suffixes = kind_of_data.suffixes
    names = sites_in(datalists, suffixes) if datalists.is_dir() else []
    if not names:
        lists = f"expected a folder with a <SITE>{suffixes[0]} per site"
        hint = f"; `fairflare init {shown_as}` writes them" if datalists.is_dir() else ""
        raise UserError(f"--datalists {shown_as}: {lists}{hint}")
    pairs: tuple[str, ...] = (f"datalists={datalists.resolve()}", f"site_names={','.join(names)}")
    pairs += tuple(f"{key}={value}" for key, value in described.get("options", {}).items())
    return chosen, pairs + ((f"labels={classes}",) if classes else ())


def own_script(script: Path, data: Path | None, classes: str | None) -> tuple[str, tuple[str, ...]]:
    """The task and the settings that ``--script FILE --data DIR --classes N`` stand for: a site per folder in DIR.

    Without ``--data`` the sites are named with ``--set site_names``, and each has its own site file.

    Raises:
        UserError: no folder in DIR.
    """
    pairs: tuple[str, ...] = (f"script={script.stem}.network",)
    if data is not None:
        names = sorted(path.name for path in data.iterdir() if path.is_dir()) if data.is_dir() else []
        names = [name for name in names if SITE.fullmatch(name)]
        if not names:
            raise UserError(f"--data {data}: expected a folder with a folder per site")
        pairs += (f"datalists={data.resolve()}", f"site_names={','.join(names)}")
    return "script", pairs + ((f"labels={classes}",) if classes else ())


def own_pairs(pairs: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """``pairs`` of a folder of datalists and on top of them those that the user has ``given``, which win."""
    keys = {pair.partition("=")[0].strip().removeprefix("task.") for pair in given}
    return tuple(pair for pair in pairs if pair.partition("=")[0] not in keys) + given


def without_sites(pairs: tuple[str, ...], left_out: Sequence[str]) -> tuple[str, ...]:
    """``pairs`` whose ``site_names`` lack those that are left out.

    Raises:
        UserError: no pair names the sites, one is not among them, or none would be left.
    """
    if not left_out:
        return pairs
    given = {pair.partition("=")[0].strip().removeprefix("task."): pair for pair in pairs}
    if "site_names" not in given:
        raise UserError("--without: goes with your own data, --data DIR, or with --set site_names=A,B")
    pair = given["site_names"]
    names = [name.strip() for name in pair.partition("=")[2].split(",")]
    for one in left_out:
        if one not in names:
            raise UserError(f"--without: {unlisted('site', one, names)}")
    rest = ",".join(name for name in names if name not in left_out)
    if not rest:
        raise UserError("--without: no site would be left")
    return tuple(f"{one.partition('=')[0]}={rest}" if one is pair else one for one in pairs)


def plan_pairs(plan: Path | None, task: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """The settings of a plan's file, but for those that the user has ``given`` or that mean nothing beside them.

    Raises:
        UserError: the file is no plan, or one of another kind of data.
    """
    if plan is None:
        return ()
    from fairflare.engine.setup.plans import BESIDE, read_plan

    kind, values = read_plan(plan)
    if task.partition(":")[0] != kind:
        raise UserError(f"--plan {plan.name}: is of {kind} data, expected {task.partition(':')[0]}")
    keys = {pair.partition("=")[0].strip().rpartition(".")[2] for pair in given}
    off = {name for key in keys for name in (key, *BESIDE.get(key, ()))}
    own = {name.rpartition(".")[2]: value for name, value in values.items()}
    return tuple(f"{name}={value}" for name, value in own.items() if name not in off)


def _description(datalists: Path) -> dict[str, Any]:
    from fairflare.tasks.kinds.own import read_description

    return read_description(datalists)


def parse_pairs(pairs: tuple[str, ...] | list[str], init_from: str | None = None) -> dict[str, Any]:
    """("q=2", "beta=.5") -> {"q": "2", "beta": ".5"}, plus the weights' path; raises UserError on anything else."""
    values: dict[str, Any] = {"init_from": init_from} if init_from else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set: expected KEY=VALUE, got {shown(pair)}")
        if key.strip() in values:
            raise UserError(f"--set: {key.strip()[:80]} is given twice")
        values[key.strip()] = value.strip()
    return values


def own_names(values: Mapping[str, Any], *owners: str) -> dict[str, Any]:
    """{"task.size": 32, "labels": 3} -> {"size": 32, "labels": 3}, for commands that know these owners alone.

    Raises:
        UserError: a bare and a full name stand for the same.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        owner, _, name = key.rpartition(".")
        bare = name if owner in owners else key
        if bare in found:
            raise UserError(f"--set: {shown(bare)} is given twice")
        found[bare] = value
    return found


def split_method(label: str) -> tuple[str, dict[str, Any]]:
    """ "fedism-plus:state=L,q=1" -> ("fedism-plus", {"state": "L", "q": "1"})."""
    name, _, settings = label.partition(":")
    return name, parse_pairs([s for s in settings.split(",") if s])


def folder_name(label: str) -> str:
    """The name of a METHOD's folder: "fedism-plus-state=L-q=1". Odd characters are replaced, a long name is cut, and
    then a hash keeps two labels apart."""
    plain = label.replace(":", "-").replace(",", "-")
    name = re.sub(r"[^\w.=+-]", "_", plain)[:LONGEST_NAME]
    name = name.encode()[:LONGEST_BYTES].decode(errors="ignore")
    return name if name == plain else f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def on_grid(methods: tuple[str, ...], grid: tuple[str, ...]) -> list[str]:
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
        _limit("--grid", len(labels) + math.prod(len(axes[key]) for key in keys))
        for values in itertools.product(*(axes[key] for key in keys)):
            settings = [own] if own else []
            settings += [f"{key}={value}" for key, value in zip(keys, values)]
            labels.append(":".join(filter(None, (name, ",".join(settings)))))
    if unused:
        raise UserError(f"--grid: no METHOD has the key {shown(sorted(unused)[0])}")
    _limit("METHOD", len(labels))
    _refuse_twins("METHOD", labels)
    return labels


def _has(method: str, own: str, key: str) -> bool:
    """Whether a part of METHOD with the settings ``own`` has the key; one that several have is refused later."""
    from fairflare.core import registry
    from fairflare.core.settings import Owners
    from fairflare.engine.setup.config import chosen_parts

    chosen = chosen_parts(method, [split_method(f"{method}:{own}")[1]])
    owners = Owners(registry.owners(chosen.method, **chosen.ids), chosen.method.shared)
    return key in owners.full or key in owners.shared or bool(owners.having(key))


def parse_seeds(text: str) -> list[int]:
    """ "0,1,2" -> [0, 1, 2]; raises UserError on anything else."""
    try:
        _limit("--seeds", text.count(",") + 1)
        seeds = [int(s) for s in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: expected whole numbers such as 0,1,2, got {shown(text)}") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: expected different numbers of at least 0, got {shown(text)}")
    return seeds


def parse_pareto(text: str) -> tuple[str, str]:
    """ "mean,worst" -> ("mean", "worst"); raises UserError, before anything runs, on anything but two quantities."""
    from fairflare.report.quantities import QUANTITIES

    found = tuple(part.strip() for part in text.split(","))
    if len(found) != 2 or not set(found) <= set(QUANTITIES):
        raise UserError(f"--pareto: expected two of {', '.join(QUANTITIES)}, got {shown(text)}")
    return found[0], found[1]


def comparison_name(task: str, shared: Mapping[str, Any]) -> str:
    """The folder's name of a comparison on ``task``: another one for every choice that all of its runs share.

    More methods or seeds with the same choices find their finished runs again; other choices never meet them.
    """
    chosen = {key: value for key, value in shared.items() if value and value != "local"}
    suffix = f"-{hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:6]}" if chosen else ""
    return f"compare-{task.replace(':', '-')}{suffix}"


def contribution_name(method: str, task: str, seeds: Sequence[int]) -> str:
    """The folder's name of a measurement of contributions; several seeds share one."""
    which = f"seed{seeds[0]}" if len(seeds) == 1 else "seeds"
    return f"contribution-{folder_name(method)}-{task.replace(':', '-')}-{which}"


def _limit(key: str, count: int) -> None:
    if count > MOST_RUNS:
        raise UserError(f"{key}: expected at most {MOST_RUNS}, got {count}")


def _refuse_twins(key: str, found: Sequence[str]) -> None:
    twins = [one for one, count in Counter(found).items() if count > 1]
    if twins:
        raise UserError(f"{key}: {shown(twins[0])} is given twice")
