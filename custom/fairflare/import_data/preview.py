# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare init`` shows before it writes: lines of at most 80 columns, or JSON."""

from __future__ import annotations

import csv
import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.suggest import some
from fairflare.import_data.detect import Proposal
from fairflare.import_data.proposal import Found
from fairflare.import_data.write import attributes, lines_of, sizes

WIDTH = 80
INDENT = 12
HEAD = ("site", "train", "val", "test", "patients")
MOST_SITES = 20
MOST_EXAMPLES = 12


def summary(root: Path, proposal: Proposal, files: Mapping[str, str]) -> dict[str, Any]:
    """What was found in the folder ``root`` and would be written, for a program: what ``fairflare init --json`` prints.

    Args:
        root: the folder of the data.
        proposal: what its lists would say.
        files: name -> content of what would be written.
    """
    found = proposal.found
    return {
        "folder": str(root),
        "kind": found.kind,
        "layout": found.layout,
        "classes": list(found.classes),
        "options": dict(found.options),
        "groups": attributes(found),
        "sites": {site: {**sizes(found, site), "patients": _patients(found, site)} for site in found.sites},
        "splits": list(proposal.splits),
        "notes": list(found.notes),
        "suspects": list(found.suspects),
        "links": len(proposal.links),
        "files": sorted(files),
    }


def lines(root: Path, proposal: Proposal, files: Mapping[str, str]) -> list[str]:
    """The same for people, a line each; arguments as of ``summary``."""
    found = proposal.found
    shown = _entry("found", f"{found.layout} ({found.kind})")
    shown += _entry("classes", _classes(found)) if found.classes else []
    if found.form.classes and len(found.classes) == 2:
        turned = ",".join(reversed(found.classes))
        shown += _entry("risk", f"of {found.classes[1]}, the second class (--classes {turned}: of the other)")
    shown += _columns(found) if found.form.table else []
    for key, value in found.options.items():
        if key not in ("features", "columns") and value:
            shown += _entry(key.replace("mask_values", "values"), value)
    for name, values in attributes(found).items():
        shown += _entry("group", f"{name}: {some(values, 8)}")
    shown += _entry("splits", "; ".join(proposal.splits))
    column = " (--patient COLUMN says it)" if found.form.table else ""
    unknown = f"unknown{column}: every {found.form.example} is taken for a patient of its own"
    known = f"known by {found.patients}; nobody is in two splits"
    shown += _entry("patients", known if found.patients else unknown)
    shown += ["", *_table(found), ""]
    for line in lines_of(found, found.sites[:2])[:MOST_EXAMPLES]:
        shown += [f"  {line}" if len(line) <= WIDTH - 2 else f"  {line[: WIDTH - 5]}..."]
    shown += [""]
    for name, text in [*(("suspect", one) for one in found.suspects), *(("note", one) for one in found.notes)]:
        shown += _entry(name, text)
    if proposal.links:
        text = f"{len(proposal.links)} images are symbolic links out of {root}, e.g. {proposal.links[0]}"
        shown += _entry("links", f"{text}; the site files allow them (links: true)")
    where = (
        f"{root / 'fairflare'}: dataset.json, preview.html (three examples of every class and site), "
        f"a {found.form.listed} and a site file"
    )
    return [*shown, *_entry("writes", f"{where} (sites/SITE.yaml) for each site, {len(files)} files")]


def _columns(found: Found) -> list[str]:
    specs = json.loads(found.options.get("columns", "{}"))
    by_kind: dict[str, list[str]] = {}
    for name in next(csv.reader([found.options["features"]])):
        spec = specs.get(name, {})
        levels = spec.get("levels", [])
        shown = f" ({'|'.join([*levels[:4], *(['...'] if len(levels) > 4 else [])])})" if levels else ""
        by_kind.setdefault(spec.get("kind", "number"), []).append(f"{name}{shown}")
    words = {"number": "numbers", "category": "categories", "yes_no": "yes or no", "days": "dates"}
    return [line for kind, own in by_kind.items() for line in _entry(words[kind], some(own, 12))]


def _classes(found: Found) -> str:
    if not found.form.classes:
        return ", ".join(found.classes)
    counts = Counter(one.label for one in found.examples)
    return ", ".join(f"{name} ({counts[name]})" for name in found.classes)


def _patients(found: Found, site: str) -> int | None:
    own = found.of(site)
    return len({one.patient for one in own}) if all(one.patient for one in own) else None


def _table(found: Found) -> list[str]:
    rows: list[Sequence[Any]] = [HEAD]
    for site in found.sites[:MOST_SITES]:
        n = _patients(found, site)
        rows.append((site, *sizes(found, site).values(), "" if n is None else n))
    width = min(40, max(len(row[0]) for row in rows))
    shown = [f"{row[0][:width]:<{width}}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
    rest = len(found.sites) - MOST_SITES
    return [line.rstrip() for line in shown] + ([f"and {rest} more sites"] if rest > 0 else [])


def _entry(name: str, text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(f"{name + ':':<{INDENT}}{text}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
