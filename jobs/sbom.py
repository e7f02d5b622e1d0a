# SPDX-License-Identifier: Apache-2.0
"""Print a CycloneDX 1.5 bill of materials of a wheel or of an exported job: `python jobs/sbom.py WHEEL_OR_JOB`.

Its files have their SHA-256 (of a job as MANIFEST.json lists them), its dependencies the versions installed here.
"""

import hashlib
import json
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "fairflare"


def files(path: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of a wheel, or of the code of an exported job."""
    if path.is_file():
        with zipfile.ZipFile(path) as wheel:
            return {name: hashlib.sha256(wheel.read(name)).hexdigest() for name in sorted(wheel.namelist())}
    found = {app.parent.name: json.loads(app.read_text())["files"] for app in sorted(path.glob("*/MANIFEST.json"))}
    return {f"{app}/custom/{name}": one["sha256"] for app, listed in found.items() for name, one in listed.items()}


def installed(name: str, extras: frozenset[str], found: dict[str, metadata.Distribution]) -> None:
    """Put the distributions that ``name`` needs here into ``found``."""
    for text in metadata.requires(name) or ():
        one = Requirement(text)
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        if one.name.lower() not in found:
            found[one.name.lower()] = metadata.distribution(one.name)
            installed(one.name, frozenset(one.extras), found)


def bill(path: Path) -> dict[str, object]:
    """The bill of materials as JSON."""
    found: dict[str, metadata.Distribution] = {}
    installed(PACKAGE, frozenset(), found)
    libraries = [
        {
            "type": "library",
            "name": name,
            "version": one.version,
            "purl": f"pkg:pypi/{name}@{one.version}",
            **({"licenses": [{"license": {"name": text[:100]}}]} if (text := licence(one)) else {}),
        }
        for name, one in sorted(found.items())
    ]
    own = [
        {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": sha256}]}
        for name, sha256 in files(path).items()
    ]
    version = metadata.version(PACKAGE)
    about = {"type": "application", "name": path.name, "version": version, "purl": f"pkg:pypi/{PACKAGE}@{version}"}
    made = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1}
    return {**made, "metadata": {"component": about}, "components": [*own, *libraries]}


def licence(one: metadata.Distribution) -> str:
    """What a distribution says of its licence, in one line."""
    return str(one.metadata["License-Expression"] or one.metadata["License"] or "").partition("\n")[0]


if __name__ == "__main__":
    print(json.dumps(bill(Path(sys.argv[1])), indent=1))
