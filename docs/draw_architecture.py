# SPDX-License-Identifier: Apache-2.0
"""Writes the drawing of the rooms in docs/architecture.md from the package's imports; `--check` compares instead.

An arrow means that some module of the one room imports some module of the other. What follows from other arrows is left
out. A room's words are the first sentence of its ``__init__``.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "custom"))

from fairflare.core.imports import imports, module_files, module_of  # noqa: E402  (the package of this checkout)

PACKAGE = ROOT / "custom" / "fairflare"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: begin (python docs/draw_architecture.py) -->", "<!-- rooms: end -->"

SINGLE = ("participation",)
"""Rooms of one file."""
Graph = dict[str, set[str]]


def main() -> int:
    """Write the page, or with ``--check`` return 1 where it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = drawn(old, drawing(PACKAGE))
    if check and new != old:
        print("docs/architecture.md: not what the imports are; run python docs/draw_architecture.py")
        return 1
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


def drawn(page: str, drawing: str) -> str:
    """The page with ``drawing`` between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing}{END}{after}"


def drawing(package: Path) -> str:
    """The package's rooms as a Mermaid chart, those that nothing imports first."""
    graph = rooms(package)
    arrows = reduced(graph)
    lines = ["```mermaid", "flowchart TD"]
    for name in ordered(graph):
        file = package / f"{name}.py"
        title, file = (file.name, file) if file.is_file() else (f"{name}/", package / name / "__init__.py")
        node = f'{name}["<b>{title}</b><br/>{words(file)}"]'
        below = " & ".join(other for other in ordered(graph) if other in arrows[name])
        lines.append(f"    {node} --> {below}" if below else f"    {node}")
    return "\n".join([*lines, "```", ""])


def rooms(package: Path) -> Graph:
    """Room -> the rooms that its modules import at run time."""
    modules = module_files(package)
    graph: Graph = {path.name: set() for path in package.iterdir() if (path / "__init__.py").is_file()}
    graph |= {name: set() for name in SINGLE}
    for name, path in modules.items():
        here = room(name)
        if here in graph:
            found = {room(module_of(imported, modules) or "") for imported in imports(path)}
            graph[here] |= found & set(graph) - {here}
    return graph


def room(module: str) -> str:
    """ "core" of "fairflare.core.types"; empty for the package itself and for what lies outside."""
    return (module.split(".") + ["", ""])[1]


def reduced(graph: Graph) -> Graph:
    """The arrows that do not follow from others; raises ValueError where rooms import each other in a circle."""
    below = {name: reachable(graph, name) for name in graph}
    return {name: {one for one in graph[name] if not any(one in below[o] for o in graph[name])} for name in graph}


def reachable(graph: Graph, start: str) -> set[str]:
    """All rooms below ``start``, over whatever way."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name == start:
            raise ValueError(f"{start} imports itself over other rooms")
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def ordered(graph: Graph) -> list[str]:
    """The rooms from top to bottom: by the longest way down, then by name."""

    def depth(name: str) -> int:
        return max((1 + depth(other) for other in graph[name]), default=0)

    return sorted(graph, key=lambda name: (-depth(name), name))


def words(file: Path) -> str:
    """The first sentence of a room's description, as Mermaid takes it."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    return sentence.replace("``", "").replace('"', "'")


if __name__ == "__main__":
    sys.exit(main())
