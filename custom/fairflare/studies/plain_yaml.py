# SPDX-License-Identifier: Apache-2.0
"""YAML files as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairflare.core.errors import UserError
from fairflare.core.validation import check_plain, expected, shown
from fairflare.engine.files import read_bytes

LARGEST = 65_536
"""Bytes of a file."""
SUFFIXES = (".yaml", ".yml")


def read_yaml(path: Path, what: str = "run file") -> dict[str, Any]:
    """The keys and values of a YAML file, read as plain data.

    Raises UserError: no such file, no mapping, a key twice, too large, or other values than text, numbers, lists and
    mappings.
    """
    where = f"{what} {path.name}"
    try:
        content = yaml.load(read_bytes(path, LARGEST).decode("utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{where}: {line}{error.problem or 'is no YAML'}") from None
    except (ValueError, yaml.YAMLError, RecursionError, TypeError) as error:
        raise UserError(f"{where}: expected a YAML file ({type(error).__name__})") from None
    is_list = isinstance(content, list)  # it is not shown: its aliases may make a small file long
    expected(where, isinstance(content, dict), "keys and values", "a list" if is_list else content)
    check_plain(where, content)
    found: dict[str, Any] = content
    return found


class _Loader(yaml.SafeLoader):
    """Makes plain data only, and refuses a key that is there twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(problem=f"{shown(name)} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)
