# SPDX-License-Identifier: Apache-2.0
"""`fairflare report` and `fairflare verify`: a finished run's folder."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.options import PATH, as_json


@click.command()
@click.argument("folder", type=PATH)
@as_json
def report(folder: Path, as_json: bool) -> None:
    """(Re)write report.html and report.json of the run in FOLDER."""
    from fairflare.app import console, results
    from fairflare.app.runs import report_again

    with console.busy("scoring the final model"):
        summary = report_again(folder)
    console.dump(summary) if as_json else results.run_result(summary, folder)


@click.command()
@click.argument("folder", type=PATH)
@click.option("--head", default="", metavar="HASH", help="A head that was kept: the log must hold that line.")
@as_json
def verify(folder: Path, head: str, as_json: bool) -> None:
    """Check that audit log, model, checkpoint, configuration and reports of the run in FOLDER fit together.

    Says what is absent: "not ended" of a run that was cut short, "no report". Exits with 1 when a completed run lacks
    its report.
    """
    from fairflare.app import console
    from fairflare.federation.log_lines import events
    from fairflare.report.write import absent, verified_run

    run_history, entries = verified_run(folder, head)
    happened, lacks = events(entries), absent(folder, run_history)
    whole = not (run_history.completed and lacks)
    head, status = happened[-1]["hash"], run_history.finish.get("status")
    if as_json:
        found = {"entries": len(happened), "head": head, "verified": whole}
        console.dump({**found, "ended": bool(run_history.finish), "status": status, "absent": lacks})
    else:
        words = "verified" if whole else "NOT verified"
        console.say("; ".join([f"{words}: {len(happened)} entries, chain head {head}", *lacks]))
    if not whole:
        click.get_current_context().exit(1)
