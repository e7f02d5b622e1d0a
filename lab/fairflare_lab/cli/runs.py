# SPDX-License-Identifier: Apache-2.0
"""The commands ``forget`` and ``risk``, on a finished run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fairflare.cli import console
from fairflare.cli.options import PATH, Told, as_json, force_option, json_option, option, out_option
from fairflare.core.errors import UserError


@click.command()
@click.argument("folder", type=PATH, metavar="RUN")
@click.option("--site", required=True, metavar="NAME", help="The hospital that leaves.")
@click.option("--yes", is_flag=True, help="Go on without asking.")
@out_option
@force_option
@json_option
def forget(folder: Path, site: str, yes: bool, out: Path | None, force: bool, as_json: bool) -> None:
    """Train the model of the finished RUN again as if the hospital NAME had never been there.

    Says first which rounds at which sites it takes. The new run goes to RUN-without-NAME, with statement.md for the
    hospital; RUN stays as it is.
    """
    from fairflare_lab.studies import forget as leaving

    chosen = leaving.plan(folder, site)
    target = out or folder.with_name(f"{folder.resolve().name}-without-{site}")
    if not as_json:
        console.say(chosen.cost())
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise UserError("forget: expected --yes where nobody can be asked")
        if not click.confirm("go on?", default=False):
            return
    said = leaving.forget(chosen, target, force=force)
    if as_json:
        console.dump({"folder": str(target), "statement": said})
        return
    for name, scores in said["stay"].items():
        console.say(f"{name}: {said['metric']} {leaving.told(scores['before'])} -> {leaving.told(scores['after'])}")
    console.say(f"statement: {target / 'statement.md'}")


@click.command()
@click.argument("folder", type=PATH, metavar="RUN")
@option("--shadows", type=int, default=8, metavar="N", help="Shadow models per site; 0: none.")
@click.option("--site", metavar="NAME", help="At this hospital alone, by itself; RUN stays as it is.")
@click.option("--site-data", type=PATH, metavar="DIR", help="With --site: where its fairflare_site.yaml lies.")
@as_json
def risk(folder: Path, shadows: int, site: str | None, site_data: Path | None) -> Told:
    """Say how well it can be told from the final model of RUN whose records it was trained on, by site and group.

    Each site attacks its own training records; an AUC with its interval leaves, of enough patients. The report shows
    it. The sites' data must be on this machine, or those of --site.
    """
    from fairflare_lab.studies.membership import measure_risk, risk_at

    if (site is None) != (site_data is None):
        raise click.UsageError("expected --site and --site-data together, or neither")
    if site is not None and site_data is not None:
        told, said = risk_at(folder, shadows, site, site_data), []
        for group in (key.removeprefix("low") for key in told if key.startswith("low")):
            auc, low, high = (told[f"{name}{group}"] for name in ("auc", "low", "high"))
            said.append(f"{site}{group}: AUC {auc:.3f} ({low:.3f} to {high:.3f}); 0.5 is guessing")
        return {"folder": str(folder), "site": site, "risk": told}, "\n".join(said)
    found = measure_risk(folder, shadows)["detail"]["risk"]
    return {"folder": str(folder), "risk": found}, found["sentence"]
