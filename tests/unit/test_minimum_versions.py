# SPDX-License-Identifier: Apache-2.0
"""setup.cfg takes no version below the first safe one of SECURITY.md."""

import configparser
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from cases import each

ROOT = Path(__file__).parents[2]
ADVISORY = re.compile(r"CVE-20\d\d-\d+")


def table():
    """Package -> (first safe version, the advisories' cell) of SECURITY.md."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    text = page.partition("<!-- minimum versions: begin -->\n")[2].partition("<!-- minimum versions: end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {package.strip("`"): (Version(version), advisories) for package, version, advisories, _ in rows}


def minimums():
    """Package -> the smallest version of each line, of either distribution, that asks for it; None of one without."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lab = re.findall(r'^ +"(.+)",$', (ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    lines = [config["options"]["install_requires"], *config["options.extras_require"].values(), "\n".join(lab)]
    found = {}
    for one in (Requirement(line) for text in lines for line in text.split("\n") if line.strip()):
        lower = [Version(spec.version) for spec in one.specifier if spec.operator in (">=", "~=", "==")]
        found.setdefault(one.name.lower(), []).append(max(lower, default=None))
    return found


@each("package", table())
def test_no_version_with_a_known_hole_is_installed(package):
    (safe, advisories), asked = table()[package], minimums()[package]
    assert all(lowest is not None and lowest >= safe for lowest in asked), (asked, safe)
    assert ADVISORY.search(advisories)
    mended = [Version(version) for version in re.findall(r"\(before ([\d.]+)\)", advisories)]
    assert not mended or max(mended) == safe


def test_the_table_names_what_reads_files_of_others():
    assert {"torch", "monai", "pillow", "pydicom", "cryptography", "jinja2"} <= set(table())


def test_what_the_tests_run_with_is_no_older():
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    tested = {pin.name.lower(): Version(next(iter(pin.specifier)).version) for pin in pins}
    assert all(tested[package] >= safe for package, (safe, _) in table().items())
