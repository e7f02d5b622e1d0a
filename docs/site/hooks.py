# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation site that are made when it is built: tables from the registry, references, llms.txt.

Pages link as in the repository. What lies outside ``docs/`` becomes a page under ``project/`` where people read it, and
plain text otherwise: the site has no copy of the code.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "custom"), str(ROOT / "lab")]

PROJECT = {
    "README.md": "project/README.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "SECURITY.md": "project/SECURITY.md",
    "poc_workspace/README.md": "project/poc_workspace.md",
    **{f"lab/docs/{path.name}": path.name for path in sorted((ROOT / "lab" / "docs").glob("*.md"))},
    **{f"lab/cards/{path.name}": f"methods/{path.name}" for path in sorted((ROOT / "lab" / "cards").glob("*.md"))},
}
"""File of the repository -> its page."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FILTER = """<p><label>Show methods with <input id="words" placeholder="fair, groups, personal" size="30"></label></p>
<script>
document.getElementById("words").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\\s+/);
  for (const row of document.querySelectorAll("table tbody tr"))
    row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
});
</script>
"""


def on_files(files: Any, config: Any) -> Any:
    """Add what is made here."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in PROJECT.items()}
    pages |= {"reference/methods.md": methods(), "reference/python.md": python(), "reference/cli.md": commands()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "llms.txt", content=llms(config["nav"])))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links from where a file stands in the repository to where its page stands on the site."""
    here = PurePosixPath(page.file.src_uri)
    source = next((s for s, p in PROJECT.items() if p == str(here)), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        target, _, anchor = link.partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(str(PurePosixPath(source).parent / target))
        inside = path.removeprefix("docs/")
        places = (PROJECT.get(path), inside, f"{inside}/README.md")
        place = next((one for one in places if one and files.get_file_from_path(one)), None)
        if place is None:
            return text if (ROOT / path).exists() else match[0]  # the second is an error of the build
        return f"{mark}[{text}]({os.path.relpath(place, here.parent)}{'#' + anchor if anchor else ''})"

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """What a keyboard and a screen reader need beyond the theme: what scrolls can be reached, the search has a name."""
    output = output.replace("<pre><span></span><code>", '<pre tabindex="0"><span></span><code>')
    output = output.replace("<table>", '<table tabindex="0">').replace("<th></th>", "<td></td>")
    return on_post_template(output, "", config)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Of the page of what is not found, too."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def methods() -> str:
    """Every method as ``fairflare list --json`` tells of it, with a field that filters the rows."""
    from fairflare.studies.describe import method_rows

    head = "| method | what it does | paper | cost | trainer | sends beside the update | needs |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for one in method_rows():
        card, paper = f"[`{one['id']}`](../methods/{one['id']}.md)", f"[{one['paper']}]({one['url']})"
        sends = ", ".join(sorted({row["number"].partition("/")[0] for row in one["sends"]})) or "nothing"
        needs = ", ".join(one["needs"]) or "any task"
        rows.append(f"| {card} | {one['summary']} | {paper} | {one['cost']} x | {one['trainer']} | {sends} | {needs} |")
    return f"---\nhide: [toc]\n---\n\n# Methods\n\n{FILTER}\n" + "\n".join(rows) + "\n"


def python() -> str:
    """Every public name of the package, and the bases and helpers that a part of one's own needs."""
    import fairflare

    names = [name for name in dir(fairflare) if not name.startswith("__")]
    lines = [
        "# Python",
        "",
        "Every public name of `fairflare`. [Work from Python](../python.md) shows them in use.",
        "",
    ]
    for name in names:
        thing = getattr(fairflare, name)
        home = thing.__name__ if inspect.ismodule(thing) else f"{thing.__module__}.{thing.__qualname__}"
        lines += [f"::: {home}", ""]
    return "\n".join(lines)


def commands() -> str:
    """Every command, from the command line's own definitions."""
    options = {"module": "fairflare.cli.main", "command": "cli", "prog_name": "fairflare", "depth": 1, "style": "plain"}
    return "# Commands\n\n::: mkdocs-click\n" + "".join(f"    :{key}: {value}\n" for key, value in options.items())


def llms(nav: Any) -> str:
    """The site's pages and what each is for, for programs that read (https://llmstxt.org)."""
    lines = ["# FairFLARE", "", "> Fair federated learning for hospitals, as NVIDIA FLARE jobs."]
    for section in nav:
        for title, pages in section.items():
            lines += ["", f"## {title}", ""]
            listed = (
                {title: pages}
                if isinstance(pages, str)
                else {name: path for page in pages for name, path in page.items()}
            )
            lines += [f"- [{name}]({address(path)}){purpose(path)}" for name, path in listed.items()]
    return "\n".join(lines) + "\n"


def address(path: str) -> str:
    """Where a page stands on the site."""
    return re.sub(r"(README)?\.(md|ipynb)$", lambda match: "index.html" if match[1] else ".html", path)


def purpose(path: str) -> str:
    """A page's first paragraph, as plain text."""
    source = ROOT / next((source for source, page in PROJECT.items() if page == path), f"docs/{path}")
    parts = source.read_text(encoding="utf-8").split("\n\n")[1:] if source.suffix == ".md" and source.exists() else []
    first = next((part for part in parts if part[0].isalpha()), "")
    return ": " * bool(first) + " ".join(LINK.sub(r"\2", first).split())
