# SPDX-License-Identifier: Apache-2.0
"""The model card that goes with an exported model, from the run's own report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.core.versions import versions
from fairflare.engine.files import CONFIG, is_file, read_json
from fairflare.inference.loaded_run import Opened
from fairflare.report import REPORT

WARNING = "**Not a medical device.** A research model. Nobody has shown that its predictions are safe to act on."


def card(opened: Opened, how: Sequence[str], inputs: str, outputs: str, remarks: Sequence[str]) -> str:
    """Markdown: task, data, method, results as reported, inputs and outputs, limits.

    Args:
        opened: the run.
        how: lines that say how the file is used.
        inputs: what it takes.
        outputs: what it gives.
        remarks: what is not in it, or whose it is.
    """
    about, described = opened.about, read_json(opened.folder / CONFIG)
    report = read_json(opened.folder / REPORT) if is_file(opened.folder / REPORT) else {}
    whose = "shared by all sites" if opened.whose == "shared" else f"{opened.site}'s own ({opened.whose})"
    parts = [
        f"# {_text(about.get('title'))}",
        WARNING,
        "## Model",
        _listed(
            {
                "Classes or structures": ", ".join(map(_text, about.get("classes", ()))),
                "Method": f"{_text(described.get('title'))} ({_text(described.get('paper'))})",
                "Trained": f"{opened.finished} rounds over {len(about['sites'])} sites",
                "Which": f"{whose}; SHA-256 of the entries {opened.model_sha256}",
                "Inputs": inputs,
                "Outputs": outputs,
                "Made with": ", ".join(f"{name} {number}" for name, number in versions().items()),
            }
        ),
        "## Use",
        "\n".join(how),
        *(["\n".join(f"- {line}" for line in remarks)] if remarks else []),
        "## Data",
        f"Real: {_text(about.get('real'))}.\nSimulated: {_text(about.get('simulated'))}.",
        "## Results",
        _results(opened, report),
        "## Limits",
        _limits(opened),
    ]
    return "\n\n".join(parts) + "\n"


def _results(opened: Opened, report: Mapping[str, Any]) -> str:
    """The reported metrics of every site on its own test split; nothing is computed anew."""
    sites = report.get("sites") or {}
    rows = []
    for name, site in sites.items():
        found = site.get("personal_metrics") if opened.whose == "personal" else site.get("metrics")
        rows += [(name, site.get("n_test"), found)] if isinstance(found, dict) and found else []
    if not rows:
        return "The run reported none."
    names = list(dict.fromkeys(metric for *_, found in rows for metric in found))
    lines = [f"| site | test cases | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    for site, n, found in rows:
        cells = " | ".join(f"{found[metric]:.3f}" if metric in found else "" for metric in names)
        lines.append(f"| {_text(site)} | {_text(n)} | {cells} |")
    benefit = report.get("benefit")
    said = [f"\nBenefit of joining, as reported: {_text(benefit)[:500]}"] if benefit else []
    return "\n".join(
        ["As the run reported them, on each site's own test split, before recalibration:", "", *lines, *said]
    )


def _limits(opened: Opened) -> str:
    lines = [
        "Results hold for patients and devices like those of the sites above; others may get much worse ones.",
        "Its probabilities need not be calibrated elsewhere, nor its threshold right: both depend on prevalence.",
        "Groups of patients that a site has few of were hardly tested.",
    ]
    if not opened.site:
        lines.append("No site's recalibration, threshold or own model is in it.")
    return "\n".join(f"- {line}" for line in lines)


def _listed(found: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in found.items())


def _text(value: Any) -> str:
    """One line without markup that could hide anything."""
    return " ".join(str("" if value is None else value).split()).replace("<", "&lt;").replace("|", "/")
