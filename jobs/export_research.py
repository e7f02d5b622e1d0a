# SPDX-License-Identifier: Apache-2.0
"""Writes folders as NVIDIA FLARE's `research/` takes them, one for each of four papers, from their cards and jobs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nvflare import __version__ as flare

from fairflare import __version__
from fairflare.core import registry
from fairflare.engine.setup import tasks

ROOT = Path(__file__).resolve().parent.parent
JOBS = ("fedism_plus_ich", "fedlwr_brain", "fedheal_ich", "fedufo_support2")
WHEEL = f"fairflare-{__version__}-py3-none-any.whl"
"""No index has this package: a folder brings it."""
REQUIREMENTS = f"./{WHEEL}\nnvflare~={flare}\n"
README = """# {title}

## Abstract

{purpose}

## Papers and Links

- Paper: {paper.authors}, [{paper.title}]({paper.url}), {paper.venue} {paper.year}

## Objective

{method} as a job for NVIDIA FLARE: {summary}

## Method Summary

{rule}

{cost}

## Repository Layout

```text
{folder}/
|-- README.md
|-- job.py             the recipe; runs in the simulator, or exports the job
|-- {wheel}   FairFLARE {version}
`-- requirements.txt
```

## Setup

Python 3.10 to 3.13; a CPU is enough.

```bash
python3 -m venv venv
source venv/bin/activate
pip install -r requirements.txt     # in this folder, which holds the wheel
```

## Data Preparation

None: the task `{task}` is simulated by the package or comes with it.

## Run Instructions

```bash
python job.py                                               # FLARE's simulator; results in runs/{job}
python job.py --production --export --export-dir build      # a job for `nvflare job submit -j build/{job}`
```

`runs/{job}/{job}/server/simulate_job` has in `fairflare` the report by site (`report.html`, `report.json`), the
audit log and the model, in `metrics` FLARE's own records with `{key}` as their key metric.

## Expected Results

FairFLARE's bench of regimes has a federation of real images for the mechanism of each paper:
{bench}

`fairflare compare fedavg {id} --task {task} --seeds 0,1,2,3,4,5,6,7` compares it with FedAvg on
the data of this folder.

## License

Apache-2.0. Data that come with FairFLARE have licences of their own, see `datasets/data/README.md` in the package.

## Requirements

NVFlare {flare} and FairFLARE {version}; see `requirements.txt`.

## Citation

{attribution}

```bibtex
@misc{{{cite}{paper.year},
  title = {{{paper.title}}},
  author = {{{authors}}},
  howpublished = {{{paper.venue}}},
  year = {{{paper.year}}},
  url = {{{paper.url}}}
}}
```
"""


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "nvflare-research")
    folder = parser.parse_args().folder
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run([*map(str, build)], check=True)
    for job in JOBS:
        write(ROOT / "jobs" / job / "job.py", folder)
    (folder / WHEEL).unlink()


def write(script: Path, folder: Path) -> None:
    """The folder of one job: its script as it is, and a README of its method's card."""
    found = re.search(r'main\("([\w-]+)", "([^"]+)", "(\w+)"', script.read_text())
    assert found, f"{script}: no call of main"
    name, task, job = found.groups()
    method, card = registry.get_method(name), (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    card = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", card)  # links into our documentation
    readme = README.format(
        title=(ROOT / "jobs" / job / "README.md").read_text().partition("\n")[0].removeprefix("# "),
        purpose=part(card, "What it is for."),
        paper=method.paper,
        method=method.title,
        summary=method.summary[0].lower() + method.summary[1:],
        rule=re.sub(r"^\*\*|\*\*", "", card[card.index("**Rule**") : card.index("**Cost.**")].strip()),
        cost="Cost: " + part(card, "Cost."),
        folder=name,
        task=task,
        job=job,
        key=f"worst_{tasks.load(*task.split(':')).headline}",
        bench=card.partition("<!-- results -->")[2].partition("<!-- end")[0].strip(),
        id=name,
        flare=flare,
        version=__version__,
        wheel=WHEEL,
        attribution=part(card, "Attribution."),
        cite=re.sub(r"\W", "", name),
        authors=method.paper.authors.replace(" et al.", " and others"),
    )
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(script, target / "job.py")
    shutil.copy(folder / WHEEL, target)
    (target / "README.md").write_text(readme)
    (target / "requirements.txt").write_text(REQUIREMENTS)


def part(card: str, start: str) -> str:
    """The paragraph of a card that begins with ``start`` in bold."""
    return card.partition(f"**{start}**")[2].partition("\n\n")[0].strip()


if __name__ == "__main__":
    main()
