# SPDX-License-Identifier: Apache-2.0
"""Training by a script of the sites' own: this package reads no data there, and knows what the script reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fairflare.core.errors import DataError, UserError
from fairflare.core.imports import imports
from fairflare.core.types import Training
from fairflare.core.user_code import check_name, declared_file, load_object
from fairflare.core.validation import Names
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import NONE, TensorData
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.own import OwnData

CLIENT = "fairflare.client"
"""What a script of a federation imports."""


@dataclass(frozen=True)
class Script(OwnData):
    """A user's own training loop, which reads, trains and scores by itself (``fairflare.client``).

    Args:
        datalists: folder with a folder of data per site on this machine; in a federation each site has its own.
        script: "module.name": the script, and the function or class in it that makes the network without arguments.
        scores: names of the metrics that the script reports, each from 0 to 1; the first is the headline.
    """

    name = "script"
    by_script = True
    title = "Your own training script"
    real = "everything: the sites' own data, read by their own script"
    suffixes = ("",)
    presets = {
        "default": Preset("how it trains is the script's; these numbers are told to it", {}, Training(rounds=10))
    }
    default_grouping = NONE

    datalists: str = ""
    site_names: Names = ""
    script: str = "train.network"
    scores: Names = "accuracy"
    labels: Names = "2"
    attribute_values: str = ""

    def __post_init__(self) -> None:
        self._check_own(fewest=1)
        check_name(self.script, "script")
        names = self.metrics
        expect("scores", len(names) == len(set(names)) > 0 and all(names), "different names", self.scores)
        expect("scores", all(name.isidentifier() for name in names), "names of letters, digits and _", self.scores)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.scores.split(","))

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on an option
        """The first of ``scores``."""
        return self.metrics[0]

    @property
    def module(self) -> str:
        return self.script.rpartition(".")[0]

    def network(self) -> nn.Module:
        """What the script's function makes; UserError where it is not there or makes something else.

        Raises:
            DataError: the file is no script of a federation; nothing of it was run.
        """
        script_file(self.module)
        made = load_object(self.script, "script", callable, "a function or class")
        try:
            network = made()
        except Exception as error:  # user's code runs here
            text = " ".join(str(error).split())[:300]
            raise UserError(f"script: {self.script}() failed ({type(error).__name__}: {text})") from error
        if not isinstance(network, nn.Module):
            raise UserError(f"script: {self.script}(): expected a torch.nn.Module, got {type(network).__name__}")
        return network

    def check_data(self) -> None:
        for site in self.sites() if self.datalists else ():
            if not (Path(self.datalists) / site).is_dir():
                raise UserError(f"site {site}: expected a folder {site} in {self.datalists}, found none")

    def folder(self, site: str, own: SiteConfig | None) -> Path:
        """Where the script finds the data of ``site``; raises DataError where nobody says so."""
        if own is not None and own.data_root:
            return Path(own.data_root)
        if self.datalists:
            return Path(self.datalists) / site
        raise DataError("no_datalist", f"site {site}: expected a site configuration with data_root")

    def read(self, own: SiteConfig) -> TensorData:
        raise DataError("data", f"site {own.site}: its data are read by its script alone")

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return {}


def script_file(module: str) -> Path:
    """The file of a declared module that is a script of a federation; DataError where it is none.

    A job names a module. What lies in a site's ``local/custom`` runs only if it is meant to: it imports
    ``fairflare.client``.
    """
    path = declared_file(module)
    if path is None or path.suffix != ".py":
        raise DataError("code", f"script: the module {module!r} is not here, or is no single file")
    if not any(f"{name}.".startswith(f"{CLIENT}.") for name in imports(path)):
        raise DataError("code", f"script: {path.name} does not import {CLIENT}: it is no script of a federation")
    return path
