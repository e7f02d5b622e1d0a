# SPDX-License-Identifier: Apache-2.0
"""Three examples of every class at every site, as a page that stays beside the data: do labels fit what is seen?"""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from fairflare.app.intake.found import Example, Found
from fairflare.core.errors import DataError
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.pictures import Reader

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
    every: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for site in found.sites:
        for one in found.of(site):
            every[site, "" if found.form.masks else one.label].append(one)
    sites, classes = found.sites, list(found.classes)

    def place(key: tuple[str, str]) -> tuple[int, int]:
        return sites.index(key[0]), classes.index(key[1]) if key[1] in classes else 0

    several = {key: every[key] for key in sorted(every, key=place)}
    return {key: [own[k] for k in sorted({0, len(own) // 2, len(own) - 1})] for key, own in several.items()}


def page(root: Path, found: Found) -> str:
    """The page as HTML without scripts; images are drawn into it."""
    rows, window = [], found.options.get("window", "")
    shown = list(examples_of(found).items())
    for (site, label), own in shown[:MOST_ROWS]:
        cells = "".join(_picture(root, one, window) if one.image else _row(one) for one in own)
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
            shown.append(f"{site}, {label or 'mask'}: {one.image or cells}")
    return shown
