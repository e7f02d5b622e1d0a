# SPDX-License-Identifier: Apache-2.0
"""The files that ``fairflare init`` writes, all of them or none; what it shows before; and a DataFrame by the same way.

DIR/fairflare/
    dataset.json            what the data are: kind, classes, options, sites
    <site>.json, <site>.csv the site's datalist, whose paths start at DIR, or its table with a column "split"
    sites/<site>.yaml       a site's configuration
    preview.html            three examples of every class at every site
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
import re
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import flag, in_order, shown, some
from fairflare.data.readers.cases import patient_key
from fairflare.data.readers.datalist import DESCRIPTION, INSIDE, PATIENTS, Frame
from fairflare.data.readers.tables import GERMAN, as_cell, may_be_thousands
from fairflare.import_data.detect import look
from fairflare.import_data.labels import AGE, BAND, bare
from fairflare.import_data.proposal import SPLITS, Choices, Example, Found, check_sites, check_texts, site_names
from fairflare.tasks.forms import IMAGE_AMOUNTS

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
    rows = []
    shown = list(examples_of(found).items())
    for (site, label), own in shown[:MOST_ROWS]:
        cells = "".join(_picture(root, one) if one.image else _row(one) for one in own)
        label = label or ("" if found.form.masks else ", ".join(one.label or "none" for one in own))
        rows.append(f"<tr><th scope=row>{escape(site)}</th><th scope=row>{escape(label)}</th><td>{cells}</td></tr>")
    more = f"<p>and {len(shown) - MOST_ROWS} more</p>" if len(shown) > MOST_ROWS else ""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Examples</title><style>{STYLE}</style><main><h1>Three examples of every class at every site</h1>"
        f"<p>{escape(found.layout)}. This page stays with the data and is never sent.</p><div class=wide tabindex=0>"
        f"<table><tr><th>site</th><th>class</th><th>examples</th></tr>{''.join(rows)}</table></div>{more}</main></html>\n"
    )


def _row(one: Example) -> str:
    cells = [f"{name} {value or '(missing)'}" for name, value in list(one.cells.items())[:MOST_CELLS]]
    return f"<small>{escape(', '.join(cells))}</small>"


def _picture(root: Path, one: Example) -> str:
    from PIL import Image

    from fairflare.data.readers.pictures import Reader

    source = root / one.image if one.frame is None else Frame(root / one.image, one.frame)
    try:
        found = Reader(size=EDGE, channels=3).image(source)
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


PREVIEW = "preview.html"
SHORT = dict(zip(SPLITS, ("train", "val", "test")))


def contents(root: Path, found: Found) -> dict[str, bytes]:
    """Path below ``root``/fairflare -> content, of what was ``found`` with every example in a split.

    UserError where two sites have names that a file system may take for one.
    """
    check_sites(found.sites)
    check_texts(found)
    files: dict[str, str] = {f"{DESCRIPTION}.json": _json(description(root, found)), PREVIEW: page(root, found)}
    home, kept, numbers = str(root.resolve()), set(attributes(found)), _numbers(found)
    for site in found.sites:
        name = f"{site}.csv" if found.form.table else f"{site}.json"
        if found.form.table:
            files[name] = _table(found, site, numbers)
        else:
            own = found.of(site)
            files[name] = _json(
                {split: [_entry(found, one, kept, numbers) for one in own if one.split == split] for split in SPLITS}
            )
        keys = {
            "data_root": home,
            "datalist": f"{INSIDE}/{name}",
            **({"links": True} if found.links else {}),
            "min_count": 10,
        }
        files[f"sites/{site}.yaml"] = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    masks = {one.label.removeprefix(f"{INSIDE}/"): found.masks[one.label] for one in found.examples if found.masks}
    return {name: text.encode() for name, text in files.items()} | masks


def description(root: Path, found: Found) -> dict[str, Any]:
    """What ``dataset.json`` says: the form that ``fairflare prepare`` writes, and where paths start."""
    groups = attributes(found)
    options = dict(found.options)
    if groups:
        options["attribute_values"] = "; ".join(f"{name}={'|'.join(values)}" for name, values in groups.items())
    allowed = {}
    if found.links:
        from fairflare.tasks.kinds.own import mark_of

        allowed = {"links": mark_of(root)}
    return {
        "kind": found.kind,
        "classes": list(found.classes),
        "options": options,
        "root": "..",
        **allowed,
        "source": f"{found.layout}; written by fairflare init",
        "sites": {site: {"kind": "own data", **sizes(found, site)} for site in found.sites},
        "run": f"fairflare run METHOD {flag('data', root.name)}",
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


def _numbers(found: Found) -> dict[str, str]:
    """Patient, as spellings of one agree -> the number that stands in place of its name, at all sites."""
    names = dict.fromkeys(patient_key(one.patient) for one in found.examples if one.patient)
    return {name: str(k) for k, name in enumerate(names, 1)}


def _entry(found: Found, one: Example, kept: set[str], numbers: Mapping[str, str]) -> dict[str, Any]:
    about = {name: value for name, value in one.about.items() if name in kept}
    patient = {PATIENTS[0]: numbers[patient_key(one.patient)]} if one.patient else {}
    frame = {} if one.frame is None else {"frame": one.frame}
    label = dict(one.told) or (float(one.label) if found.kind == IMAGE_AMOUNTS.name else one.label)
    image = [one.image, *one.contrasts] if one.contrasts else one.image
    return {"image": image, "label": label, **frame, **about, **patient}


def _table(found: Found, site: str, numbers: Mapping[str, str]) -> str:
    """The site's rows; where a patient has several, at any site, numbers in place of the patients' names."""
    own, label = found.of(site), found.options["label"]
    cells = own[0].cells
    rows = np.array([one.cells.number for one in own])
    columns = {label: [one.label for one in own]} if label else {}
    columns |= {name: column.texts[column.codes[rows]].tolist() for name, column in cells.columns.items()}
    kept = [name for name in attributes(found) if name not in cells]
    columns |= {name: [one.about.get(name, "") for one in own] for name in kept}
    if len(numbers) < sum(one.patient != "" for one in found.examples):
        columns["patient"] = [numbers.get(patient_key(one.patient), "") for one in own]
    columns["split"] = [SHORT[one.split] for one in own]
    text = io.StringIO()
    text.write(POINTS if any(map(may_be_thousands, columns.values())) else "")
    csv.writer(text, lineterminator="\n").writerows([columns, *zip(*columns.values())])
    return text.getvalue()


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def refuse_existing(root: Path) -> None:
    """Raise UserError where ``root`` has been looked at before: nothing is overwritten."""
    there = root / INSIDE
    if there.exists() or there.is_symlink():
        raise UserError(f"init: {there} exists; remove it to look at the folder anew")


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write ``files`` below ``root``/fairflare, which appears whole or not at all; returns that folder.

    Raises:
        UserError: it exists, or ``root`` cannot be written to.
    """
    refuse_existing(root)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".fairflare-init-", dir=root))
        try:
            for name, content in files.items():
                (scratch / name).parent.mkdir(exist_ok=True)
                (scratch / name).write_bytes(content)
            os.rename(scratch, root / INSIDE)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"init: {root}: cannot be written to ({error.strerror})") from None
    return root / INSIDE


WIDTH = 80
INDENT = 12
HEAD = ("site", "train", "val", "test", "patients")
MOST_SITES = 20
MOST_EXAMPLES = 12


def summary(root: Path, found: Found, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What was found in the folder ``root`` and would be written, for a program: what ``fairflare init --json`` prints.

    Args:
        root: the folder of the data.
        found: what its lists would say.
        files: name -> content of what would be written.
    """
    return {
        "folder": str(root),
        "kind": found.kind,
        "layout": found.layout,
        "classes": list(found.classes),
        "options": dict(found.options),
        "groups": attributes(found),
        "sites": {site: {**sizes(found, site), "patients": _patients(found, site)} for site in found.sites},
        "splits": list(found.splits),
        "patients": found.patients,
        "reading": [str(one) for one in found.reading],
        "notes": list(found.notes),
        "suspects": list(found.suspects),
        "links": len(found.links),
        "files": sorted(files),
    }


def lines(root: Path, found: Found, files: Mapping[str, bytes]) -> list[str]:
    """The same for people, a line each; arguments as of ``summary``."""
    shown = _line("found", f"{found.layout} ({found.kind})")
    shown += _line("classes", _classes(found)) if found.classes else []
    if found.form.classes and len(found.classes) == 2:
        turned = flag("classes", *reversed(found.classes))
        shown += _line("risk", f"of {found.classes[1]}, the second class ({turned}: of the other)")
    shown += _columns(found) if found.form.table else []
    for one in found.reading:
        shown += _line("reading", str(one))
    for key, value in found.options.items():
        if key not in ("features", "columns") and value:
            shown += _line(key.replace("mask_values", "values"), value)
    for name, values in attributes(found).items():
        shown += _line("group", f"{name}: {some(values, 8)}")
    shown += _line("splits", "; ".join(found.splits))
    column = " (--patient COLUMN says it)" if found.form.table else ""
    unknown = f"unknown{column}: every {found.form.example} is taken for a patient of its own"
    who = "nobody" if all(one.patient for one in found.examples) else "nobody known"
    known = f"known by {found.patients}; {who} is in two splits"
    shown += _line("patients", known if found.patients else unknown)
    shown += ["", *_site_table(found), ""]
    first = [(key, own[0]) for key, own in examples_of(found).items() if key[0] in found.sites[:2]]
    for (site, label), one in first[:MOST_EXAMPLES]:
        cells = ", ".join(f"{name} {value or '-'}" for name, value in list(one.cells.items())[:6])
        what = label or ("mask" if found.form.masks else one.label or "none")
        shown.append(f"  {textwrap.shorten(f'{site}, {what}: {one.image or cells}', WIDTH - 2, placeholder=' ...')}")
    shown += [""]
    for name, text in [*(("suspect", one) for one in found.suspects), *(("note", one) for one in found.notes)]:
        shown += _line(name, text)
    if found.links:
        text = f"{len(found.links)} images are symbolic links out of {root}, e.g. {found.links[0]}"
        shown += _line("links", f"{text}; the site files allow them (links: true)")
    where = (
        f"{root / 'fairflare'}: dataset.json, preview.html (three examples of every class and site), "
        f"a {found.form.listed} and a site file"
    )
    return [*shown, *_line("writes", f"{where} (sites/SITE.yaml) for each site, {len(files)} files")]


def _columns(found: Found) -> list[str]:
    specs = json.loads(found.options.get("columns", "{}"))
    by_kind: dict[str, list[str]] = {}
    for name in next(csv.reader([found.options["features"]])):
        spec = specs.get(name, {})
        levels = spec.get("levels", [])
        shown = f" ({'|'.join([*levels[:4], *(['...'] if len(levels) > 4 else [])])})" if levels else ""
        by_kind.setdefault(spec.get("kind", "number"), []).append(f"{name}{shown}")
    words = {"number": "numbers", "category": "categories", "yes_no": "yes or no", "days": "dates"}
    return [line for kind, own in by_kind.items() for line in _line(words[kind], some(own, 12))]


def _classes(found: Found) -> str:
    if not found.form.classes:
        return ", ".join(found.classes)
    counts = Counter(one.label for one in found.examples)
    return ", ".join(f"{name} ({counts[name]})" for name in found.classes)


def _patients(found: Found, site: str) -> int | None:
    own = found.of(site)
    return len({patient_key(one.patient) for one in own}) if all(one.patient for one in own) else None


def _site_table(found: Found) -> list[str]:
    rows: list[Sequence[Any]] = [HEAD]
    for site in found.sites[:MOST_SITES]:
        n = _patients(found, site)
        rows.append((site, *sizes(found, site).values(), "" if n is None else n))
    width = min(40, max(len(row[0]) for row in rows))
    shown = [f"{row[0][:width]:<{width}}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
    rest = len(found.sites) - MOST_SITES
    return [line.rstrip() for line in shown] + ([f"and {rest} more sites"] if rest > 0 else [])


def _line(name: str, text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(f"{name + ':':<{INDENT}}{text}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)


TABLE = "table.csv"
POINTS = "sep=,.\n"
"""A file's first line that says that its points are decimal."""
FLAG = re.compile(r"--([a-z][a-z-]*)(?: (?:([^\s=):;]+=[^\s):;]+)|(?=[^\s):;])))?")
KEYWORDS = {"label": "outcome"}
"""Flag of ``fairflare init`` -> what the same is called in Python, where that differs."""


def text_of(frame: pd.DataFrame) -> str:
    """``frame`` as a CSV file whose cells are those that a Parquet file of it would have; an index with names counts.

    Raises:
        UserError: no DataFrame of pandas, no rows, a column without a name of its own in text, or a row without values.
    """
    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"expected a DataFrame of pandas, got {type(frame).__name__}")
    if any(name is not None for name in frame.index.names):
        kept = [name for name in frame.index.names if name is not None and name not in frame.columns]
        frame = frame.reset_index(kept)
    names = list(frame.columns)
    if odd := [name for name in names if not isinstance(name, str) or not name.strip() or names.count(name) > 1]:
        raise UserError(f"expected columns with names of their own, in text, got {shown(str(odd[0]))}")
    if frame.empty:
        raise UserError(f"expected rows and columns, got {len(frame)} rows of {len(names)} columns")
    cells = frame.astype(object).map(as_cell)
    if (blank := (cells == "").all(axis=1)).any():
        raise UserError(f"row {shown(str(frame.index[blank.to_numpy().argmax()]))}: expected values, got none")
    texts = (one for name in frame.select_dtypes(exclude="number") for one in frame[name] if isinstance(one, str))
    said = "sep=,\n" if any(GERMAN.fullmatch(one.strip()) for one in texts) else POINTS
    return said + cells.to_csv(index=False, lineterminator="\n")


def imported(frame: pd.DataFrame, folder: Path, chosen: Choices) -> Found:
    """Write ``folder``/fairflare, as ``fairflare init`` would of the table; what is there already must be the same.

    Raises:
        UserError: in the user's columns and the keywords of ``Federation.fit``; ``chosen.ask`` decides what is unclear.
    """
    with in_keywords(), tempfile.TemporaryDirectory(prefix="fairflare_") as scratch:
        table = Path(scratch, TABLE)
        table.write_text(text_of(frame), encoding="utf-8")
        found = look(table, chosen)
        files = contents(folder, found)
        there = [folder / INSIDE / name for name in files]
        if not all(
            path.is_file() and path.read_bytes() == files[path.relative_to(folder / INSIDE).as_posix()]
            for path in there
        ):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write(folder, files)
    return found


def grouping(groups: Sequence[str]) -> str:
    """The run's ``group_by`` of columns that were asked for; ages are in bands."""
    return "+".join(BAND if bare(name) in AGE else name for name in groups)


@contextlib.contextmanager
def in_keywords() -> Iterator[None]:
    """Within: what ``fairflare init`` refuses is said with keywords in place of flags."""
    try:
        yield
    except UserError as error:
        text, _, advice = str(error).partition(": fairflare init ")
        text += ": write it to a file, of which `fairflare init` makes one (docs/data.md)" if advice else ""
        raise UserError(f"data: {FLAG.sub(_keyword, text).removeprefix('init: ')}") from None


def _keyword(found: re.Match[str]) -> str:
    name = KEYWORDS.get(found[1], found[1].replace("-", "_"))
    return f'{name}="{found[2].strip(chr(39))}"' if found[2] else f"{name}=" if found[0].endswith(" ") else name


def by_column(frame: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """Site, as ``fit`` would call the value of ``column`` -> its rows.

    UserError where there is no such column, a row has no value in it, or two values would have the same name.
    """
    if column not in frame.columns:
        raise UserError(
            f"site: expected a column among {some([str(name) for name in frame.columns], 12)}, got {shown(column)}"
        )
    cells = frame[column].map(as_cell)
    if (cells == "").any():
        raise UserError(f"{column}: expected the site of every row, {int((cells == '').sum())} have none")
    with in_keywords():
        names = site_names(cells.tolist())
    return {name: frame[[one == name for one in names]] for name in dict.fromkeys(names)}
