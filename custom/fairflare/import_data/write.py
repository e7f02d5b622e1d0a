# SPDX-License-Identifier: Apache-2.0
"""The files that ``fairflare init`` writes, all of them or none.

DIR/fairflare/
    dataset.json            what the data are: kind, classes, options, sites
    <site>.json, <site>.csv the site's datalist, whose paths start at DIR, or its table with a column "split"
    sites/<site>.yaml       a site's configuration
    preview.html            three examples of every class at every site
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairflare.core.errors import DataError, UserError
from fairflare.core.suggest import in_order
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.pictures import Reader
from fairflare.import_data.proposal import SPLITS, Example, Found, check_sites, check_texts
from fairflare.tasks.forms import IMAGE_AMOUNTS
from fairflare.tasks.kinds.own import DESCRIPTION, INSIDE, mark_of
from fairflare.tasks.preflight import PATIENT

EDGE = 96
MOST_ROWS = 200
"""Pairs of site and class that are shown."""
MOST_CELLS = 12
STYLE = """body{font:15px/1.4 system-ui,sans-serif;margin:1.5rem;max-width:70rem}
:root{color-scheme:light dark}table{border-collapse:collapse;width:100%}
td,th{border-top:1px solid #8886;padding:.4rem;text-align:left;vertical-align:top}img{margin-right:.4rem}
small{display:block;overflow-wrap:anywhere;opacity:.8}.wide{overflow-x:auto}"""


def examples_of(found: Found) -> dict[tuple[str, str], list[Example]]:
    """(site, class) -> its first, middle and last example; of masks the class is ""."""
    several: dict[tuple[str, str], list[Example]] = {}
    for site in found.sites:
        for label in found.classes if found.form.classes else [""]:
            several[site, label] = [one for one in found.of(site) if not label or one.label == label]
    return {key: [own[k] for k in sorted({0, len(own) // 2, len(own) - 1})] for key, own in several.items() if own}


def page(root: Path, found: Found) -> str:
    """The page as HTML without scripts; images are drawn into it."""
    rows, window = [], found.options.get("window", "")
    shown = list(examples_of(found).items())
    for (site, label), own in shown[:MOST_ROWS]:
        cells = "".join(_picture(root, one, window) if one.image else _row(one) for one in own)
        label = label or ("" if found.form.masks else ", ".join(one.label or "none" for one in own))
        rows.append(f"<tr><th scope=row>{escape(site)}</th><th scope=row>{escape(label)}</th><td>{cells}</td></tr>")
    more = f"<p>and {len(shown) - MOST_ROWS} more</p>" if len(shown) > MOST_ROWS else ""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Examples</title><style>{STYLE}</style><h1>Three examples of every class at every site</h1>"
        f"<p>{escape(found.layout)}. This page stays with the data and is never sent.</p><div class=wide tabindex=0>"
        f"<table><tr><th>site</th><th>class</th><th>examples</th></tr>{''.join(rows)}</table></div>{more}</html>\n"
    )


def _row(one: Example) -> str:
    cells = [f"{name} {value or '(missing)'}" for name, value in list(one.cells.items())[:MOST_CELLS]]
    return f"<small>{escape(', '.join(cells))}</small>"


def _picture(root: Path, one: Example, window: str) -> str:
    from PIL import Image

    source = root / one.image if one.frame is None else Frame(root / one.image, one.frame)
    try:
        found = Reader(size=EDGE, channels=3, window=window).image(source)
    except DataError:
        return f"<small>{escape(one.image)}: cannot be read</small>"
    image = Image.fromarray(np.moveaxis(found.numpy(), 0, -1))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    frame = "" if one.frame is None else f", slice {one.frame}"
    named = escape(one.image + frame)
    size = f"width={image.width} height={image.height}"
    return f'<img alt="{named}" title="{named}" {size} src="data:image/png;base64,{data}">'


def lines_of(found: Found, sites: Sequence[str]) -> list[str]:
    """One example of each class at each of ``sites``, as text."""
    shown = []
    for (site, label), own in examples_of(found).items():
        if site in sites:
            one = own[0]
            cells = ", ".join(f"{name} {value or '-'}" for name, value in list(one.cells.items())[:6])
            what = label or ("mask" if found.form.masks else one.label or "none")
            shown.append(f"{site}, {what}: {one.image or cells}")
    return shown


PREVIEW = "preview.html"
SHORT = dict(zip(SPLITS, ("train", "val", "test")))


def contents(root: Path, found: Found, links: bool) -> dict[str, str]:
    """Path below ``root``/fairflare -> text.

    Args:
        root: the folder of the data, or of the one table that they are.
        found: what it holds, every example in a split.
        links: whether symbolic links may lead out of it.

    Raises:
        UserError: two sites have names that a file system may take for one.
    """
    check_sites(found.sites)
    check_texts(found)
    files = {f"{DESCRIPTION}.json": _json(description(root, found, links)), PREVIEW: page(root, found)}
    home = str(root.resolve())
    for site in found.sites:
        name = f"{site}.csv" if found.form.table else f"{site}.json"
        files[name] = _table(found, site) if found.form.table else _list(found, site)
        own = {"data_root": home, "datalist": f"{INSIDE}/{name}", **({"links": True} if links else {}), "min_count": 10}
        files[f"sites/{site}.yaml"] = "".join(f"{key}: {json.dumps(value)}\n" for key, value in own.items())
    return files


def description(root: Path, found: Found, links: bool) -> dict[str, Any]:
    """What ``dataset.json`` says: the form that ``fairflare prepare`` writes, and where paths start."""
    groups = attributes(found)
    options = dict(found.options)
    if groups:
        options["attribute_values"] = "; ".join(f"{name}={'|'.join(values)}" for name, values in groups.items())
    return {
        "kind": found.kind,
        "classes": list(found.classes),
        "options": options,
        "root": "..",
        **({"links": mark_of(root)} if links else {}),
        "source": f"{found.layout}; written by fairflare init",
        "sites": {site: {"kind": "own data", **sizes(found, site)} for site in found.sites},
        "run": f"fairflare run METHOD --data {root.name}",
    }


def attributes(found: Found) -> dict[str, list[str]]:
    """Attribute -> its values, of those that differ."""
    known: dict[str, set[str]] = {}
    for one in found.examples:
        for name, value in one.about.items():
            known.setdefault(name, set()).add(value)
    return {name: in_order(values) for name, values in known.items() if len(values) > 1}


def sizes(found: Found, site: str) -> dict[str, int]:
    """Split -> examples of a site."""
    own = found.of(site)
    return {short: sum(one.split == split for one in own) for split, short in SHORT.items()}


def _list(found: Found, site: str) -> str:
    own, kept = found.of(site), set(attributes(found))
    lists = {split: [_entry(found, one, kept) for one in own if one.split == split] for split in SPLITS}
    return _json(lists)


def _entry(found: Found, one: Example, kept: set[str]) -> dict[str, Any]:
    about = {name: value for name, value in one.about.items() if name in kept}
    patient = {PATIENT: one.patient} if one.patient else {}
    frame = {} if one.frame is None else {"frame": one.frame}
    return {"image": one.image, "label": _label(found, one), **frame, **about, **patient}


def _label(found: Found, one: Example) -> Any:
    """A class or a mask as text, a number, or what is said of several labels."""
    if one.told:
        return dict(one.told)
    return float(one.label) if found.kind == IMAGE_AMOUNTS.name else one.label


def _table(found: Found, site: str) -> str:
    """The site's rows without the patients' names, which the splits have no more need of."""
    own, label = found.of(site), found.options["label"]
    kept = [name for name in attributes(found) if name not in own[0].cells]
    rows = [
        {**({label: one.label} if label else {}), **one.cells, **{name: one.about.get(name, "") for name in kept}}
        | {"split": SHORT[one.split]}
        for one in own
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def refuse_existing(root: Path) -> None:
    """Raise UserError where ``root`` has been looked at before: nothing is overwritten."""
    there = root / INSIDE
    if there.exists() or there.is_symlink():
        raise UserError(f"init: {there} exists; remove it to look at the folder anew")


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write ``files`` below ``root``/fairflare, which appears whole or not at all; returns that folder.

    Raises:
        UserError: it exists, or ``root`` cannot be written to.
    """
    refuse_existing(root)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".fairflare-init-", dir=root))
        try:
            for name, text in files.items():
                (scratch / name).parent.mkdir(exist_ok=True)
                (scratch / name).write_text(text, encoding="utf-8")
            os.rename(scratch, root / INSIDE)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"init: {root}: cannot be written to ({error.strerror})") from None
    return root / INSIDE
