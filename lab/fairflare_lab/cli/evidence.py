# SPDX-License-Identifier: Apache-2.0
"""The command ``evidence``."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.cli.options import PATH, Told, as_json

KINDS = {"evidence": "from the run", "human": "by a human", "blank": "blank"}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[init] RUN")
@click.option("--out", type=PATH, metavar="DIR", help="Where the documents go; RUN/evidence by default.")
@click.option("--human", type=PATH, metavar="FILE.yaml", help="What a human says; RUN/evidence.yaml by default.")
@as_json
def evidence(words: tuple[str, ...], out: Path | None, human: Path | None) -> Told:
    """Write documents on the finished run in RUN for reviewers, each value with a pointer to its source.

    CHAI model card, CycloneDX ML-BOM, RO-Crate, TRIPOD+AI map, EU AI Act Annex IV skeleton, data protection, change
    control. `fairflare evidence init RUN` writes RUN/evidence.yaml with the questions that only a human can answer.
    lab/docs/evidence.md
    """
    from fairflare_lab.studies.evidence import init_evidence, write_evidence

    if len(words) != 1 + (words[0] == "init"):
        raise click.UsageError("expected one folder of a run, after `init` or alone")
    if words[0] == "init":
        if out or human:
            raise click.UsageError("init: takes neither --out nor --human")
        path = init_evidence(Path(words[1]))
        return {"file": str(path)}, f"questions: {path}"
    found, said = write_evidence(Path(words[0]), out, human), []
    for title, row in found["documents"].items():
        total = max(row["evidence"] + row["human"] + row["blank"], 1)
        parts = ", ".join(f"{row[kind]} {words} ({row[kind] / total:.0%})" for kind, words in KINDS.items())
        said.append(f"{title}: {parts}")
    said.append(f"completeness of the ML-BOM: {found['score']} of 100")
    return found, "\n".join([*said, f"evidence pack: {found['folder']}/index.html"])
