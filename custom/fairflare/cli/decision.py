# SPDX-License-Identifier: Apache-2.0
"""Commands about the decision to join: ``monitor``."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.cli.options import PATH, as_json


@click.command()
@click.argument("table", type=PATH)
@click.option(
    "--state", type=PATH, metavar="FILE", help="Where the sums are kept; TABLE with .monitor.json by default."
)
@click.option("--margin", type=float, metavar="LOSS", help="A loss (Brier score) that does not matter; 0.01 at first.")
@click.option("--outcome", default="outcome", show_default=True, metavar="COLUMN", help="0 or 1.")
@click.option("--own", default="own", show_default=True, metavar="COLUMN", help="The risk by the hospital's own model.")
@click.option("--used", default="used", show_default=True, metavar="COLUMN", help="The risk by the model in use.")
@as_json
def monitor(
    table: Path, state: Path | None, margin: float | None, outcome: str, own: str, used: str, as_json: bool
) -> None:
    """Say whether the model in use is still no worse than the hospital's own, as outcomes become known.

    TABLE holds a row per patient in the order in which outcomes became known; rows are added at its end. However often
    it is looked at, at most 5 % of the hospitals are told something false. docs/join.md
    """
    from fairflare.cli import console
    from fairflare.inference.monitor import watch

    kept = state or table.with_name(f"{table.stem}.monitor.json")
    found, new = watch(table, kept, margin, (outcome, own, used))
    if as_json:
        console.dump({**found.summary(), "new": new, "state": str(kept)})
        return
    said = found.summary()
    capital = ", ".join(f"{name} {min(said[name]['capital'], 9999):.2f}" for name in ("certificate", "alarm"))
    console.say(
        f"{found.sentence()}\n{new} new patients, {found.cases} in all; capital of 20: {capital}\nstate: {kept}"
    )
