# SPDX-License-Identifier: Apache-2.0
"""One trial of a search: a run that sees no test example, scored on the sites' validation splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairflare.app.folders import fresh_folder
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.findings import Finding
from fairflare.core.types import Batch, SiteData, SplitName
from fairflare.engine import audit
from fairflare.engine.best import Choice
from fairflare.engine.files import AUDIT
from fairflare.engine.in_process import InProcess
from fairflare.engine.memory import forget
from fairflare.engine.setup.assembly import build_federation, save_config
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.local import SITES, LocalSites
from fairflare.engine.setup.parts import build_parts

TRIAL = ("score", "mean", "worst", "worst_site", "model_sha256")
"""What a trial comes to, on validation."""
Look = tuple[list[Finding], SiteData | None]


class Untested:
    """A site's data without its test split: nothing can be measured on it.

    Args:
        data: the site's.
    """

    def __init__(self, data: SiteData) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def size(self, split: SplitName) -> int:
        """Number of examples; none to test on."""
        return 0 if split == "test" else self._data.size(split)

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """A split in its stored order; nothing of the test split."""
        return iter(()) if split == "test" else self._data.fixed(split, batch_size, at_most)


def run_trial(config: RunConfig, folder: Path, *, choice: Choice, workers: int = 1) -> dict[str, Any]:
    """Run ``config`` without tests into ``folder`` and return ``TRIAL``; "reason" where the run failed.

    Args:
        config: the trial's run.
        folder: its own; what a killed command has left there goes.
        choice: how sites' validation scores become one.
        workers: not used: trials run side by side.

    Raises:
        UserError: a site has no validation examples.
    """
    parts = build_parts(config)
    parts.task.check_data()
    with fresh_folder(folder, force=True):
        save_config(config, parts, folder, "local")
        try:
            with LocalSites(config, folder, parts) as sites:
                transport = sites.transport
                assert isinstance(transport, InProcess)
                for site in transport.members():
                    site.look = partial(_untested, site.look)
                federation = build_federation(config, parts, transport, folder, "local", (), sites.at_server)
                federation.score = None  # the shared test sets
                federation.run(parts.model)
        except RunFailed as failed:
            return {"score": None, "reason": str(failed)}
        forget(folder / SITES, site_of_client(config, parts.task))
        return scored(audit.verify(folder / AUDIT), choice)


def scored(entries: Sequence[Mapping[str, Any]], choice: Choice) -> dict[str, Any]:
    """What a trial's log says: the final model on the validation splits of all sites.

    Raises:
        UserError: a site has none.
    """
    evaluation = next(entry for entry in entries if entry["event"] == "evaluation")
    values = {site: found["val"].get(choice.metric) for site, found in evaluation["sites"].items()}
    missing = sorted(site for site, value in values.items() if value is None)
    if missing or not values:
        raise UserError(f"search: site {missing[0] if missing else '?'}: has no {choice.metric} on a validation split")
    last = next(entry for entry in reversed(entries) if "model_sha256" in entry)
    worst = (min if choice.higher else max)(sorted(values), key=lambda site: values[site])
    return {
        "score": choice.score(values),
        "mean": sum(values.values()) / len(values),
        "worst": values[worst],
        "worst_site": worst,
        "model_sha256": last["model_sha256"],
    }


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row with the largest score, the first of equals; None where no trial has one."""
    known = [row for row in rows if row["score"] is not None]
    return max(known, key=lambda row: row["score"], default=None)


def _untested(look: Any) -> Look:
    found, data = look()
    return found, None if data is None else Untested(data)
