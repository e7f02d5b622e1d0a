# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own data share: which sites there are, where a site's list is, names and attributes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from fairflare.clinic.base import Task
from fairflare.clinic.checks import expect
from fairflare.clinic.tensors import TensorData
from fairflare.errors import UserError
from fairflare.site_config import SiteConfig

PREFIX = "client_"
"""Datalists are often called client_<SITE>.json."""


class OwnData(Task):
    """A task whose examples are files of the sites.

    A concrete task is a frozen dataclass with the fields datalists (a folder with one list per site on this machine,
    for trying things out), site_names (separated by commas), labels (a number of classes, or their names separated by
    commas) and attribute_values ("sex=female|male; race=black|white").
    """

    real = "everything: the sites' own files"
    simulated = "nothing"
    suffix = ".json"

    datalists: str
    site_names: str
    labels: str
    attribute_values: str

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names from ``labels``: "3" makes class 0, class 1, class 2."""
        names = [name.strip() for name in self.labels.split(",")]
        if len(names) == 1 and names[0].isdigit():
            return tuple(f"class {k}" for k in range(int(names[0])))
        return tuple(names)

    @property
    def attributes(self) -> Mapping[str, tuple[str, ...]]:  # type: ignore[override]
        """Attribute -> its values, from ``attribute_values``."""
        found = {}
        for part in filter(None, (p.strip() for p in self.attribute_values.split(";"))):
            name, equals, values = part.partition("=")
            expect("attribute_values", bool(equals and values), "NAME=VALUE|VALUE; NAME=...", part)
            found[name.strip()] = tuple(value.strip() for value in values.split("|"))
        return found

    def sites(self) -> dict[str, str]:
        """The sites of ``site_names``."""
        return {name: "own data" for name in filter(None, (n.strip() for n in self.site_names.split(",")))}

    def check_data(self) -> None:
        """Every site's list is there, where this machine is to have them all."""
        for site in self.sites() if self.datalists else ():
            self._list_of(site)

    def site_data(self, site: str) -> TensorData:
        """The site's examples, from the folder of all sites' lists."""
        if not self.datalists:
            raise UserError(f"site {site}: expected a site configuration with data_root and datalist, found none")
        return self.read(self._list_of(site), Path(self.datalists))

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        """The site's examples, where its own configuration says they are."""
        if own is None or not own.datalist:
            return self.site_data(site)
        root = Path(own.data_root or ".")
        return self.read(root / own.datalist, root)

    @abstractmethod
    def read(self, datalist: Path, root: Path) -> TensorData:
        """The examples that ``datalist`` names, with paths relative to ``root``."""

    def _list_of(self, site: str) -> Path:
        folder = Path(self.datalists)
        for name in (f"{site}{self.suffix}", f"{PREFIX}{site}{self.suffix}"):
            if (folder / name).is_file():
                return folder / name
        raise UserError(f"site {site}: expected {site}{self.suffix} in {self.datalists}, found none")

    def _check_own(self, fewest: int) -> None:
        expect("labels", len(self.classes) >= fewest, f"at least {fewest} classes", self.labels)
        expect("labels", len(set(self.classes)) == len(self.classes), "different names", self.labels)
        dict(self.attributes)  # raises where they cannot be read


def sites_in(folder: Path, suffix: str) -> list[str]:
    """Names of the sites that have a list in ``folder``, sorted."""
    return sorted(path.name.removesuffix(suffix).removeprefix(PREFIX) for path in folder.glob(f"*{suffix}"))
