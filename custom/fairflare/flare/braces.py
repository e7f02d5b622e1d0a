# SPDX-License-Identifier: Apache-2.0
"""Texts in braces in a job's configuration, which FLARE would take for variables of its own, and replace or refuse.

A table's columns and scaling are JSON; in a job their braces stand as "%7B" and "%7D", and "%" as "%25".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OPTIONS = ("columns", "scaling")
"""Of a task's options those that may be JSON; a network's class has a form that FLARE leaves alone."""
CODES = {"%": "%25", "{": "%7B", "}": "%7D"}
TEXTS = {code: text for text, code in CODES.items()}


def hidden(content: Mapping[str, Any]) -> dict[str, Any]:
    """A ``RunConfig`` as JSON, as a job carries it."""
    return _changed(content, re.compile(r"[%{}]"), CODES)


def shown(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``hidden`` was given; anything that is no such configuration as it is."""
    return _changed(content, re.compile("|".join(TEXTS)), TEXTS) if isinstance(content, Mapping) else content


def _changed(content: Mapping[str, Any], pattern: re.Pattern[str], by: Mapping[str, str]) -> dict[str, Any]:
    options = content.get("options")
    if not isinstance(options, Mapping):
        return dict(content)
    texts = {key: options[key] for key in OPTIONS if isinstance(options.get(key), str)}
    changed = {key: pattern.sub(lambda found: by[found[0]], text) for key, text in texts.items()}
    return {**content, "options": {**options, **changed}}
