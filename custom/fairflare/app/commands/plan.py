# SPDX-License-Identifier: Apache-2.0
"""`fairflare fingerprint` and `fairflare plan`: defaults from the data, where no machine has those of all sites."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.arguments import own_data, own_names, own_pairs, parse_pairs
from fairflare.app.options import PATH, as_json, set_option
from fairflare.tasks.forms import FORMS


@click.command()
@click.argument("site_config", type=PATH)
@click.option("--kind", type=click.Choice([*FORMS]), required=True, help="What the data are.")
@click.option("--classes", metavar="N", required=True, help="Classes or structures: a number, or names A,B,C.")
@click.option("--site", metavar="NAME", help="The site's name in the federation; the file's by default.")
@click.option("--out", type=PATH, metavar="FILE", help="Where it goes; <SITE>.fingerprint.json by default.")
@set_option
def fingerprint(
    site_config: Path, kind: str, classes: str, site: str | None, out: Path | None, pairs: tuple[str, ...]
) -> None:
    """Write what a site's training data look like, to be passed on to whoever makes the federation's plan.

    Run it at the hospital and read the file before it leaves: it holds the number of training examples and, from
    min_count images on, medians of height, width and pixel spacing, whether images have colours, mean and spread of
    their pixels.
    """
    from fairflare.app import console
    from fairflare.app.fingerprints import write_fingerprint

    values = own_names(parse_pairs(pairs), "task")
    console.say(f"fingerprint: {write_fingerprint(site_config, kind, classes, values, site, out)}")


@click.command()
@click.argument("sources", type=PATH, nargs=-1, required=True, metavar="DIR|FILE...")
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data in DIR are.")
@click.option("--classes", metavar="N", help="Classes or structures of DIR: a number, or names A,B,C.")
@click.option("--out", type=PATH, metavar="FILE", help="Also write the plan, for --plan of run, compare and export.")
@set_option
@as_json
def plan(
    sources: tuple[Path, ...],
    kind: str | None,
    classes: str | None,
    out: Path | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Which defaults the data ask for, each with its reason: of DIR with every site's list, or of fingerprints.

    `fairflare run --datalists DIR` uses the same plan by itself.
    """
    from fairflare.app import console
    from fairflare.app.fingerprints import plan_of_files, plan_of_folder
    from fairflare.engine.setup.plans import write_plan

    if sources[0].is_dir():
        task, own = own_data(None, sources[0], kind, classes)
        found = plan_of_folder(sources, task, own_names(parse_pairs(own_pairs(own, pairs)), "task"))
    else:
        found = plan_of_files(sources)
    if out:
        write_plan(found, out)
    console.dump(found.to_json()) if as_json else console.say("\n".join([*map(str, found.choices), *found.cautions]))
