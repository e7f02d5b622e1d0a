# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without a warning, which a dead link or anchor is, and its references are whole."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairflare
from fairflare.cli.main import COMMANDS
from fairflare.core import registry

ROOT = Path(__file__).parents[2]


def public(thing):
    """Methods and properties of a class but for fields, functions and classes of a module but for imported ones."""
    kinds = (classmethod, property, staticmethod)
    for name, part in tuple(vars(thing).items()) if inspect.isclass(thing) or inspect.ismodule(thing) else ():
        own = getattr(part, "__module__", "") == (thing.__module__ if inspect.isclass(thing) else thing.__name__)
        if (
            name[0] != "_"
            and name not in getattr(thing, "__annotations__", ())
            and (callable(part) and own or isinstance(part, kinds))
        ):
            yield name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_no_page_of_the_site_shuts_a_reader_out(browser, axe, site):
    found = []
    for name in ("index", "tutorial", "results/STUDY", "notebooks/comparing_methods", "reference/methods"):
        for scheme, width in (("light", 1280), ("dark", 390)):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(f"file://{site}/{name}.html")
            wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
            found += [(name, scheme, one) for one in [*axe(page), *["scrolls sideways"] * wide]]
            page.close()
    assert found == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_references_are_whole(site):
    page = {name: (site / f"reference/{name}.html").read_text() for name in ("python", "cli", "methods")}
    homes = {name: f"{fairflare._HOMES[name] or 'fairflare'}.{name}" for name in fairflare.__all__ if name[0] != "_"}
    assert [name for name, home in homes.items() if f'id="{home}"' not in page["python"]] == []
    members = [f"{homes[name]}.{part}" for name in homes for part in public(getattr(fairflare, name))]
    assert [member for member in members if f'id="{member}"' not in page["python"]] == []
    assert [name for name in COMMANDS if f'id="fairflare-{name}"' not in page["cli"]] == []
    assert [id for id in registry.methods() if f"methods/{id}.html" not in page["methods"]] == []
    listed = re.findall(r"\]\((\S+\.html)\)", (site / "llms.txt").read_text())
    assert len(listed) > 30 and [link for link in listed if not (site / link).exists()] == []
