# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md keeps to its form, so that a reader finds what is new; CITATION.cff names the same version."""

import re
from datetime import date
from pathlib import Path

import yaml

from fairflare import __version__

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_versions_have_dates_newest_first():
    versions = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]
    assert versions[0] == "Unreleased"
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", version) for version in versions[1:]]
    assert all(found), versions
    assert [m.group(1, 2, 3) for m in found] == sorted((m.group(1, 2, 3) for m in found), reverse=True)
    assert all(date.fromisoformat(m.group(4)) for m in found)
    assert __version__ in [".".join(m.group(1, 2, 3)) for m in found]


def test_every_entry_stands_under_a_kind_once():
    kinds, bullets = [], 0
    for line in LINES:
        if line.startswith("## "):
            kinds = []
        elif line.startswith("### "):
            kinds.append(line.removeprefix("### "))
            assert kinds[-1] in KINDS and kinds == sorted(set(kinds), key=KINDS.index), f"{line}: {kinds}"
        elif line.startswith("- "):
            bullets += 1
            assert kinds, line
    assert bullets > 40


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"
    assert f"## {__version__} - {citation['date-released']}" in LINES
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
