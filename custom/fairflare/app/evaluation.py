# SPDX-License-Identifier: Apache-2.0
"""What `fairflare evaluate` writes, and the short table that it ends with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fairflare.app.console import say
from fairflare.app.terminal import out
from fairflare.federation.state import save_json, save_text
from fairflare.inference.whole import whole_folder
from fairflare.report.external import PAGE, RESULT, lines, render
from fairflare.report.metrics import label
from fairflare.report.values import ends, signed, text

KIND = "evaluation"
CALIBRATION = {"calibration": "calibration in the large", "slope": "calibration slope", "brier": "Brier score"}
Json = Mapping[str, Any]


def whole(folder: Path, force: bool) -> AbstractContextManager[Path]:
    """Within: an empty folder, which becomes ``folder`` if nothing is raised; see ``whole_folder``."""
    return whole_folder(folder, KIND, force=force)


def write(content: dict[str, Any], folder: Path) -> None:
    """Both files."""
    save_json(folder / RESULT, content)
    save_text(folder / PAGE, render(content))


def show(content: dict[str, Any], folder: Path) -> None:
    """A table per hospital, and where the page is."""
    for name, cases, metrics in lines(content):
        shown = Table(title=f"{escape(name)}: {cases}")
        shown.add_column("")
        for column in ("value", "95 % interval", "same for all"):
            shown.add_column(column, justify="right")
        for metric, one in metrics:
            shown.add_row(escape(metric), one["why"] or text(one["value"]), ends(one), text(one["trivial"]))
        site = content["sites"][name]
        for row in _calibration(site):
            shown.add_row(*row)
        out.print(shown)
        for sentence in _sentences(site, content):
            say(sentence)
    for name, why in content["rejected"].items():
        say(f"{name}: not evaluated: {why.get('detail') or why.get('code')}")
    say(f"page: {folder / PAGE}")


def _calibration(site: Json) -> list[tuple[str, str, str, str]]:
    found = []
    after = (site["recalibration"] or {}).get("calibration")
    for stage, view in (("", site["calibration"]), (", recalibrated", after)):
        for key, words in CALIBRATION.items() if view else ():
            one, trivial = view[key], site["trivial_brier"] if key == "brier" else None
            value = signed(one["value"]) if key == "calibration" else text(one["value"])
            found.append((words + stage, value, ends(one), text(trivial)))
    return found


def _sentences(site: Json, content: Json) -> list[str]:
    said = [f"calibration: {site['calibration_why']}"] if site["calibration_why"] else []
    known = [row for row in site["groups"] if row["value"] is not None]
    if known:
        worst = min(known, key=lambda row: (row["value"], row["group"]))
        metric = label(content["group_metric"], content)
        said.append(f"groups by {content['by']}: lowest {metric} {text(worst['value'])} ({worst['group']})")
    for metric, one in ((site["own"] or {}).get("metrics") or {}).items():
        what = f"{label(metric, content)}: {signed(one['difference'])} beside {site['own']['model']}"
        said.append(what + (f" [{signed(one['low'])}, {signed(one['high'])}]" if one["low"] is not None else ""))
    if site["recalibration"]:
        said.append(site["recalibration"]["words"])
    return said
