# SPDX-License-Identifier: Apache-2.0
"""What a job carries of this package: at the sites what their executor can reach, at the server its controller's.

Which modules these are follows from the import statements, function bodies included, from where the app's configuration
begins: the classes that it names, the parts and the task of the run, which are found by being there, and whatever the
user's own files import. ``MANIFEST.json`` lists what is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fairflare
from fairflare import __version__
from fairflare.core import manifest, metric, plugins, registry, user_code
from fairflare.core.errors import UserError
from fairflare.core.imports import imports, module_files, reached
from fairflare.core.manifest import package_files, sha256_of
from fairflare.core.plugins import installed_modules
from fairflare.data.inputs import VECTORS
from fairflare.engine.exchanges import base as exchanges
from fairflare.engine.exchanges.clinical import CURVES
from fairflare.engine.exchanges.sums import SITE_NOISE
from fairflare.engine.setup import tasks
from fairflare.engine.setup.at_site import EXTERNAL
from fairflare.engine.setup.method_parts import STEP_CLASSES
from fairflare.engine.setup.run_config import RunConfig
from fairflare.engine.setup.site_parts import FEATURES, FOLDS, TUNING
from fairflare.flare.executor import SCRIPT, WEIGHTS
from fairflare.functional.likelihood import COX_SUMS
from fairflare.networks.own import OWN_CLASS, is_own
from fairflare.networks.own_class import HUGGING_FACE, MONAI, class_path, is_hugging_face
from fairflare.privacy.schemes import module_of as sums_module
from fairflare.tasks.own.script import Script
from fairflare.tasks.preflight import OF_FILES

PACKAGE = "fairflare"
KIND_OF_TIMES, FILES = "fairflare.tasks.kinds.survival", "fairflare.data.readers.files"
DATA = Path("datasets", "data")
GROUPS = (plugins.GROUP, plugins.TASKS, plugins.SECURE_SUMS)
ABOUT_DATA = "README.md"
"""Origin and licence of the data files, which go with each of them."""
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")
APPS = {"server": "app_server", "site": "app_sites"}
"""Who reads an app -> its folder in the job."""
SIDES = {"server": "config_fed_server.json", "site": "config_fed_client.json"}
"""Who reads an app -> the configuration that FLARE reads there."""


def stage(app: Path, side: str, config: RunConfig, *, code: bool = True) -> None:
    """Put into the folder of an app, as FLARE has written it, what it needs of this package, and its manifest.

    Args:
        app: with its configuration, and with the user's own files in ``custom/``, if there are any.
        code: False for sites that have the package.

    Raises:
        UserError: a plugin is named as a rule of the package.
    """
    components = list(_components(json.loads((app / "config" / SIDES[side]).read_text(encoding="utf-8"))))
    custom = app / manifest.CUSTOM
    left_out: dict[str, str] = {}
    if code:
        own = [path for name, path in manifest.code_of(app) if path.suffix == ".py"]
        names, files = [*components, *modules_of_run(config)], [*own, *own_files()]
        left_out = copy_package(custom / PACKAGE, needed(names, files))
        copy_plugin_packages(custom, names, files)
    if not custom.is_dir():
        return
    content = {
        "format": manifest.FORMAT,
        "read_by": side,
        "entry_point": components[0],
        "components": sorted(set(components[1:])),
        "package": {"version": __version__, "sha256": sha256_of(custom / PACKAGE, left_out) if code else ""},
        "files": {name: manifest.entry_of(path) for name, path in manifest.code_of(app)},
        "left_out": left_out,
    }
    (app / manifest.NAME).write_text(json.dumps(content, indent=1), encoding="utf-8")


def copy_package(target: Path, kept: Iterable[Path]) -> dict[str, str]:
    """Copy files of the package, and the plugins among its rules, into the new folder ``target``.

    Returns:
        name -> SHA-256 of the files that stay behind.

    Raises:
        UserError: a plugin has the name of a rule's file.
    """
    source = Path(fairflare.__file__).parent
    files = package_files(source)
    for name in sorted(path.as_posix() for path in kept):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files.pop(name), target / name)
    for plugin in plugins.files():
        if (source / "aggregators" / plugin.name).exists():
            raise UserError(f"plugin {plugin.name}: the package has a rule file of that name; rename the plugin")
        shutil.copy(plugin, target / "aggregators" / plugin.name)
    return {name: manifest.entry_of(path)["sha256"] for name, path in files.items()}


def copy_plugin_packages(custom: Path, names: Iterable[str], own: Iterable[Path] = ()) -> None:
    """Copy what an app needs of installed packages of plugins into ``custom``, with the entry points that name them.

    Args:
        names, own: as in ``needed``.
    """
    modules = _modules()
    kept = {name for name in _reached(names, own, modules) if name.partition(".")[0] != PACKAGE}
    for top in sorted({name.partition(".")[0] for name in kept}):
        folder = _package_folders()[top]
        paths = [modules[name] for name in kept if name.partition(".")[0] == top]
        for path in {*paths, *_other_files(folder, paths)}:
            target = custom / top / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        points = [
            point for group in GROUPS for point in plugins.in_group(group) if point.module.partition(".")[0] == top
        ]
        about = custom / f"{top}-{points[0].dist.version if points[0].dist else 0}.dist-info"
        about.mkdir()
        groups = (
            f"[{group}]\n" + "".join(f"{one.name} = {one.value}\n" for one in points if one.group == group)
            for group in GROUPS
        )
        (about / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
        version = about.stem.rpartition("-")[2]
        text = f"Metadata-Version: 2.1\nName: {top.replace('_', '-')}\nVersion: {version}\n"
        (about / "METADATA").write_text(text, encoding="utf-8")


def needed(names: Iterable[str], own: Iterable[Path] = ()) -> set[Path]:
    """The files of this package, relative to it, that an app needs.

    Args:
        names: dotted names of classes and modules from which it begins.
        own: files from outside the package that it brings, or that a site has installed as plugins.
    """
    package, modules = Path(fairflare.__file__).parent, _modules()
    paths = [modules[name] for name in _reached(names, own, modules) if name.partition(".")[0] == PACKAGE]
    return {path.relative_to(package) for path in [*paths, *_other_files(package, paths)]}


def _package_folders() -> dict[str, Path]:
    """Top-level package -> folder: this one, and those of installed packages of plugins."""
    folders = {PACKAGE: Path(fairflare.__file__).parent}
    for top in plugins.top_packages():
        spec = find_spec(top)
        assert spec is not None and spec.submodule_search_locations  # it is a package
        folders[top] = Path(next(iter(spec.submodule_search_locations)))
    return folders


def _modules() -> dict[str, Path]:
    """Dotted name -> file of every module that a job may carry."""
    return {name: path for folder in _package_folders().values() for name, path in module_files(folder).items()}


def _reached(names: Iterable[str], own: Iterable[Path], modules: Mapping[str, Path]) -> set[str]:
    """The modules that an app needs, see ``needed``."""
    names = [*names, *(name for path in own for name in _imported(path))]
    found: set[str] = set()
    while not (more := reached([*names, *_declared_with(found, modules)], modules)) <= found:
        found |= more
        names += [CURVES, COX_SUMS] if KIND_OF_TIMES in found else []  # which others need none of
        names += [OF_FILES] if FILES in found else []
    return found


def modules_of_run(config: RunConfig) -> list[str]:
    """The modules of a run that no import names: its parts, its task, metrics, and where parts are looked for."""
    entry = registry.get_method(config.method)
    classes = [*registry.owners(entry, **config.parts).values(), tasks.known(config.task)]
    homes = [f"{PACKAGE}.{module}" for module, _ in registry.BASES.values()]
    wanted = {SCRIPT: config.task == Script.name, EXTERNAL: config.evaluation, FOLDS: bool(config.fold)}
    wanted |= {TUNING: config.tune != "all", WEIGHTS: config.tune != "all"}
    wanted[SITE_NOISE] = bool(config.site_epsilon)
    wanted |= {sums_module("ckks"): True} if config.secure_sum == "ckks" else {}
    wanted[OWN_CLASS] = wanted[MONAI] = is_own(str(config.options.get("model", "")))
    wanted[HUGGING_FACE] = is_hugging_face(class_path(str(config.options.get("model", ""))))
    wanted[FEATURES] = config.tune == "head"
    wanted[VECTORS] = bool(config.options.get("vectors"))
    own, _ = STEP_CLASSES.get(config.after, ("", ""))
    wanted |= {module: module == own for module, _ in STEP_CLASSES.values()}
    named = [name for name, asked in wanted.items() if asked]
    named += exchanges.modules(config, tasks.load(config.task, config.preset, **config.options))
    return [metric.OWN, registry.home(entry.id), *homes, *(cls.__module__ for cls in classes), *named]


def own_files() -> list[Path]:
    """The plugins, the files that ``FAIRFLARE_CODE`` names, and installed plugins of one module."""
    code = [file for path in user_code.code_files() for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return [*plugins.files(), *code, *_installed()]


def _installed() -> Iterator[Path]:
    """The files of installed plugins, each with the package that it lies in."""
    for name in installed_modules():
        spec = find_spec(name.partition(".")[0])
        if spec is not None and spec.submodule_search_locations:
            for folder in spec.submodule_search_locations:
                yield from sorted(Path(folder).rglob("*.py"))
        elif spec is not None and spec.origin:
            yield Path(spec.origin)


def _imported(path: Path) -> Iterator[str]:
    """What a file from outside the package imports of it; names that the package gives lazily with their modules."""
    for name in imports(path):
        yield name
        top, _, rest = name.partition(".")
        if top == PACKAGE and rest in fairflare._HOMES:
            yield fairflare._HOMES[rest]


def _declared_with(found: set[str], modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the parts of every method that is declared in ``found`` or outside the package.

    A declaration that is there must be whole.
    """
    for id, entry in registry.methods().items():
        home = registry.home(id)
        if home in found or home not in modules:
            yield from (cls.__module__ for cls in registry.owners(entry).values())


def _other_files(package: Path, paths: list[Path]) -> Iterator[Path]:
    """Files beside modules that are no modules: of data sets those that they name."""
    for folder in {path.parent for path in paths}:
        yield from (path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc"))
    if any((package / "datasets") in path.parents for path in paths):  # of data sets those that their modules name
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.parent.name != "data")
        data = [path for path in sorted((package / DATA).glob("*")) if path.name in text and path.name != ABOUT_DATA]
        yield from [*data, package / DATA / ABOUT_DATA] if data else []


def _components(content: Any) -> Iterator[str]:
    """The paths of the classes that an app's configuration names, the executor's or controller's first."""
    first = content.get("executors") or content.get("workflows")
    found: list[Any] = [first, {key: value for key, value in content.items() if value is not first}]
    while found:
        value = found.pop(0)
        if isinstance(value, dict):
            if isinstance(value.get("path"), str) and "args" in value:
                yield value["path"]
            found = [one for key, one in value.items() if key != "config"] + found
        elif isinstance(value, list):
            found = [*value, *found]
