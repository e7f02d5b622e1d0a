# SPDX-License-Identifier: Apache-2.0
"""The plugins of tests/plugins, loaded into this process for a while as ``FAIRFLARE_PLUGINS`` loads them."""

import contextlib
import os
import sys
from pathlib import Path

from fairflare.core import plugins, registry

FOLDER = Path(__file__).parent / "plugins"


def paths(*names):
    """The value of ``FAIRFLARE_PLUGINS`` that names these plugins; a method of the package needs none."""
    return os.pathsep.join(str(FOLDER / f"{name}.py") for name in names if (FOLDER / f"{name}.py").is_file())


@contextlib.contextmanager
def loaded(*names):
    """Within: these plugins' methods are known; yields their modules by name."""
    names = [name for name in names if (FOLDER / f"{name}.py").is_file()]
    registry.methods()
    tables = [registry._methods, registry.exchanges, *registry._parts.values()]
    content, whole, done = [dict(table) for table in tables], set(registry._whole), set(plugins._done)
    before = os.environ.get(plugins.VARIABLE)
    os.environ[plugins.VARIABLE] = paths(*names)
    try:
        registry.methods()
        yield {name: sys.modules[f"fairflare_plugin_{name}"] for name in names}
    finally:
        del os.environ[plugins.VARIABLE]
        os.environ.update({} if before is None else {plugins.VARIABLE: before})
        for table, known in zip(tables, content):
            table.clear()
            table.update(known)
        for current, kept in ((registry._whole, whole), (plugins._done, done)):
            current.intersection_update(kept)
        for name in names:
            sys.modules.pop(f"fairflare_plugin_{name}", None)
