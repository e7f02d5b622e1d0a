# SPDX-License-Identifier: Apache-2.0
"""`fairflare list` and `fairflare tasks`: what there is to run."""

from __future__ import annotations

import click

from fairflare.app.options import as_json


@click.command("list")
@click.option("--parts", is_flag=True, help="The parts instead: selectors, trainers, probes, rules, server optimizers.")
@as_json
def list_methods(parts: bool, as_json: bool) -> None:
    """Methods: what they are for, what they cost, and their parameters with defaults."""
    from fairflare.app import console
    from fairflare.app.later import put_off

    put_off("torch", "numpy")
    from fairflare.app import describe

    if parts:
        rows = describe.part_rows()
        console.dump(rows) if as_json else console.parts(rows)
    elif as_json:
        console.dump(describe.method_rows())
    else:
        console.methods(describe.listed_rows())


@click.command("tasks")
@as_json
def list_tasks(as_json: bool) -> None:
    """Tasks and presets: sites, sizes, metrics, what is real and what is simulated."""
    from fairflare.app import console
    from fairflare.app.describe import task_rows

    rows = task_rows()
    console.dump(rows) if as_json else console.tasks(rows)
