# SPDX-License-Identifier: Apache-2.0
"""Commands that say what there is, and write a part to begin with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from fairflare.cli import console
from fairflare.cli.options import PATH, Told, as_json, json_option


@click.command("list")
@click.option("--parts", is_flag=True, help="The parts instead: selectors, trainers, probes, rules, server optimizers.")
@json_option
def list_methods(parts: bool, as_json: bool) -> None:
    """Methods: what they are for, what they cost, and their parameters with defaults."""
    from fairflare.studies.later import put_off

    put_off("torch", "numpy")
    from fairflare.studies import describe

    if parts:
        rows = describe.part_rows()
        console.dump(rows) if as_json else console.parts(rows)
    elif as_json:
        console.dump(describe.method_rows())
    else:
        console.methods(describe.listed_rows())


@click.command("tasks")
@as_json
def list_tasks() -> Told:
    """Tasks and presets: sites, sizes, metrics, what is real and what is simulated."""
    from fairflare.studies.describe import task_rows

    return (rows := task_rows()), partial(console.tasks, rows)


@click.command()
@click.argument("name", metavar="METHOD|TASK[:PRESET]|OWNER|KEY")
@as_json
def describe(name: str) -> Told:
    """Settings with owner, default, range and meaning: of a METHOD's parts, of a TASK and its training, of all parts of
    an OWNER (rule, trainer, train, run, after, ...), or every setting that is called KEY.

    The default is the one that the method or the task's preset has; a name of several settings is listed with each.
    """
    from fairflare.studies.later import put_off

    put_off("torch", "numpy")
    from fairflare.cli.settings_rows import about

    return (found := about(name)), partial(console.settings, found)


@click.command()
@click.argument("kind", type=click.Choice(("rule", "trainer", "probe")))
@click.argument("name")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Where to write; the current folder by default.")
@as_json
def new(kind: str, name: str, out: Path) -> Told:
    """Write a working rule, trainer or probe NAME as a plugin of one file, with its test and its card.

    No file is overwritten. The example is a method of its own at once: run it, then change it.
    """
    from fairflare.studies.later import put_off

    put_off("torch", "numpy")
    from fairflare.cli.scaffold import write_part

    files = write_part(kind, name, out)
    return {"files": [str(path) for path in files]}, partial(console.written, files, name)
