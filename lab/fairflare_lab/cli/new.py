# SPDX-License-Identifier: Apache-2.0
"""``fairflare new``: a part to begin with."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path

import click

from fairflare.cli import console
from fairflare.cli.about import put_off
from fairflare.cli.options import PATH, Told, as_json
from fairflare.core.errors import UserError
from fairflare.core.validation import shown

KINDS = ("rule", "trainer", "probe")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
TEMPLATES = Path(__file__).parent / "templates"


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Where to write; the current folder by default.")
@as_json
def new(kind: str, name: str, out: Path) -> Told:
    """Write a working rule, trainer or probe NAME as a plugin of one file, with its test and its card.

    No file is overwritten. The example is a method of its own at once: run it, then change it.
    """
    put_off()
    files = write_part(kind, name, out)
    return {"files": [str(path) for path in files]}, partial(_written, files, name)


def write_part(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the plugin ``name``, its test and its card into ``folder``, which is made if need be; return the files.

    UserError, and nothing is written, where the name cannot be an id and a module, is taken, or such a file is there.
    """
    from fairflare.engine.files import save_text

    module = _checked(kind, name)
    texts = _texts(kind, name, module)
    paths = {folder / file: text for file, text in texts.items()}
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UserError(f"new: {path}: is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        save_text(path, text)
    return list(paths)


def _checked(kind: str, name: str) -> str:
    """The module of a new part; UserError where the name does not fit or is taken."""
    from fairflare.core import registry

    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(module):
        words = f"lower-case words of letters and digits joined by hyphens, at most {LONGEST} characters"
        raise UserError(f"new: expected a name of {words}, got {shown(name)}")
    for taken, known in ((kind, list(registry.parts(kind))), ("method", list(registry.methods()))):
        if name in known:
            raise UserError(f"new: there is a {taken} {name!r} already; known: {', '.join(known)}")
    return module


def _texts(kind: str, name: str, module: str) -> dict[str, str]:
    import yaml
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from fairflare.core import registry

    files = {f"{module}.py": f"{kind}.py.j2", f"test_{module}.py": "test.py.j2", f"{name}.md": "card.md.j2"}
    words = name.split("-")
    values = {
        **yaml.safe_load((TEMPLATES / "cards.yaml").read_text(encoding="utf-8"))[kind],
        "kind": kind,
        "id": name,
        "module": module,
        "name": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
        "number": f"{module}_loss",
        "probe": "loss" if "loss" in registry.parts("probe") else "group-loss",
        "card": f"{name}.md",
        "year": date.today().year,
    }
    # Not HTML: these are Python and Markdown, and the one value that comes from outside is a checked name.
    made = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True)
    return {file: made.get_template(template).render(values).rstrip("\n") + "\n" for file, template in files.items()}


def _written(files: Sequence[Path], name: str) -> None:
    """Say what was written, and what to do with it."""
    for path in files:
        console.say(f"wrote {path}")
    plugin, test = (shlex.quote(str(path)) for path in files[:2])
    console.say(f"run it:  FAIRFLARE_PLUGINS={plugin} fairflare run {name} --task support2 --rounds 2")
    console.say(f"test it: pytest {test}")
