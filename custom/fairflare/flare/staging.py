# SPDX-License-Identifier: Apache-2.0
"""The copy of this package that a job carries: all rooms, and of ``datasets/`` only what the job's task needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import fairflare
from fairflare.build import tasks
from fairflare.core import registry, user_code, versions
from fairflare.core.errors import UserError
from fairflare.core.imports import imports, module_files, reached

PACKAGE = "fairflare"
DATASETS = "fairflare.datasets"
DATA = Path("datasets", "data")
ABOUT_DATA = "README.md"
"""Origin and licence of the data files, which go with each of them."""
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


def stage_package(folder: Path, task: str) -> Path:
    """A copy of this package in ``folder`` without caches; FLARE would ship links as empty folders.

    It has the plugins among its rules. A published or simulated task brings its module, what that imports and its data
    file; a task on a hospital's own data brings nothing of ``datasets/``. The user's own files may ask for more by
    importing it. ``core.versions`` gives the copy the hash of the whole package.

    Args:
        folder: an existing folder.
        task: name of the job's task.

    Raises:
        UserError: unknown task, or a plugin is named as a rule of the package.
    """
    source, target = Path(fairflare.__file__).parent, folder / PACKAGE
    kept = needed_datasets(source, task)
    shutil.copytree(source, target, ignore=CACHES)
    left_out = [
        path
        for path in sorted((target / "datasets").rglob("*"))
        if path.is_file() and path.relative_to(target) not in kept
    ]
    versions.leave_out(target, left_out)
    for plugin in registry.plugin_files():
        if (target / "rules" / plugin.name).exists():
            raise UserError(f"plugin {plugin.name}: the package has a rule file of that name; rename the plugin")
        shutil.copy(plugin, target / "rules" / plugin.name)
    return target


def needed_datasets(package: Path, task: str) -> set[Path]:
    """Files of ``datasets/``, relative to ``package``, that the task and the user's own files need."""
    modules = {name: path for name, path in module_files(package).items() if f"{name}.".startswith(f"{DATASETS}.")}
    names = [tasks.known(task).__module__]
    names += [name for file in _own_files() for name in imports(file)]
    found = {modules[name] for name in reached(names, modules)}
    return {path.relative_to(package) for path in [*found, *_data_files(package, found)]}


def _data_files(package: Path, modules: Iterable[Path]) -> list[Path]:
    """The data files that these modules name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    named = [path for path in sorted((package / DATA).glob("*")) if path.name in text and path.name != ABOUT_DATA]
    return [*named, package / DATA / ABOUT_DATA] if named else []


def _own_files() -> list[Path]:
    """The plugins and the files that ``FAIRFLARE_CODE`` names."""
    code = [file for path in user_code.code_files() for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return [*registry.plugin_files(), *code]
