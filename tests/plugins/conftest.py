# SPDX-License-Identifier: Apache-2.0
"""A plugin is registered while the tests of its file run, and for nobody else's."""

from pathlib import Path

import pytest

from plugin_files import loaded


@pytest.fixture(scope="module")
def plugin(request):
    """The module of the plugin that the test file is named after: ``test_x.py`` tests ``x.py``."""
    name = Path(request.path).stem.removeprefix("test_")
    with loaded(name) as found:
        yield found[name]
