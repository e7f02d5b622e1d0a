# SPDX-License-Identifier: Apache-2.0
"""The first format of ``config.json``, in which settings had no owners: it is read, and written for runs begun in it.

In format 1 a setting had one value for all parts that have a parameter of its name, and there were neither selectors
nor server optimizers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.settings import Owners, bare
from fairflare.core.suggest import unlisted

SINCE = {"selector": "all", "server_optimizer": "none"}
"""What format 2 says in addition, with what holds for a run in format 1."""

LATER: Mapping[str, Any] = {
    "mask_neighbours": "auto",
    "mask_bits": 64,
    "min_responses": None,
    "grace": 0.0,
    "stacked": False,
    "clip_updates": 0.0,
    "clip_at": "median",
    "clip_memory": 0.0,
    "cap_weights": 1.0,
    "after": "none",
    "after_settings": {},
    "best_by": "none",
    "best_weight": 0.5,
    "headline": "final",
    "solo": False,
    "threshold": None,
    "init_from": "",
    "evaluation": False,
}
LATER_IN_TRAINING: Mapping[str, Any] = {"local_steps": None, "fewest_steps": None, "most_steps": None}
LATER_IN_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "heart": {"reference": False, "scaling": "centre"},
    "classification": {"window": "percentiles"},
    "segmentation": {"window": "percentiles"},
}
"""Keys, settings of training and, by task, options that came after format 2, with what holds where a file does not name
them: they are then not written either, so that a run which was begun without them keeps its hash."""


def without_later(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's content as a file has it: of what came later only what says something."""
    options = LATER_IN_OPTIONS.get(content["task"], {})
    found = {"training": _but(LATER_IN_TRAINING, content["training"]), "options": _but(options, content["options"])}
    return {**_but(LATER, content), **found}


def with_later(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's content in which nothing that came later is missing."""
    training, options, task = (content.get(key) for key in ("training", "options", "task"))
    found = {"training": {**LATER_IN_TRAINING, **training}} if isinstance(training, Mapping) else {}
    if isinstance(options, Mapping) and isinstance(task, str):
        found["options"] = {**LATER_IN_OPTIONS.get(task, {}), **options}
    return {**LATER, **content, **found}


def _but(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


def from_format_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same content in the keys of format 2; its ``format`` stays 1.

    Raises:
        UserError: an unknown method or trainer, or settings that are not those of its parts.
    """
    if unknown := sorted(set(content) & {*SINCE, *LATER}):
        raise UserError(f"config: unknown key {unknown[0]!r} in format 1")
    method, trainer, settings = (content.get(key) for key in ("method", "trainer", "settings"))
    if isinstance(method, str) and isinstance(trainer, str) and isinstance(settings, Mapping):
        owners = Owners(registry.owners(registry.get_method(method), trainer, **SINCE))
        exactly_the_keys("settings", settings, dict.fromkeys(map(bare, owners.full)))
        settings = {full: settings[bare(full)] for full in owners.full}
    found = {"settings": settings} if "settings" in content else {}
    return {**content, **SINCE, **found}


def in_format_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of a run that was read in format 1, as it stood there."""
    settings = {bare(full): value for full, value in content["settings"].items()}
    return {**{key: value for key, value in content.items() if key not in SINCE}, "settings": settings}


def exactly_the_keys(what: str, values: Collection[str], known: Collection[str]) -> None:
    """Raise UserError, which names the first, where a known key is missing or one is unknown."""
    if missing := [key for key in known if key not in values]:
        raise UserError(f"{what}: expected a value for {missing[0]!r}, got none")
    if unknown := sorted(set(values) - set(known)):
        raise UserError(f"{what}: {unlisted('key', unknown[0], sorted(known))}")
