# SPDX-License-Identifier: Apache-2.0
"""Commands on a folder that is there: of a run, of an exported job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fairflare.cli import console
from fairflare.cli.options import PATH, Told, as_json, json_option, listed, set_option
from fairflare.core.errors import UserError
from fairflare.studies.run_file import Values

IN_PROGRESS = 3
"""Exit code of ``verify`` while a run goes on."""


@click.command()
@click.argument("folder", type=PATH)
@listed("--site", "sites", metavar="A,B", help="The pages for these hospitals instead.")
@click.option("--sites", "every", is_flag=True, help="The pages for all hospitals instead.")
@click.option("--out", type=PATH, metavar="DIR", help="Where these pages are written; FOLDER/editions by default.")
@click.option("--mlflow", metavar="URI", help="Send it as it is to an MLflow server instead, http://HOST:PORT.")
@click.option("--experiment", default="fairflare", metavar="NAME", help="Its experiment there.")
@as_json
def report(
    folder: Path, sites: tuple[str, ...], every: bool, out: Path | None, mlflow: str | None, experiment: str
) -> Told:
    """(Re)write report.html and report.json of the run in FOLDER.

    With --site or --sites: a page and a JSON file for one hospital, or for each, which name no other hospital and give
    no number of a single one, to be passed on to its people.

    With --mlflow: a run for the federation with parameters, mean, worst, gap, intervals and the report's files, and a
    child for each site. MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, say who sends it.
    """
    from fairflare.cli import results
    from fairflare.studies import display
    from fairflare.studies.runs import report_again, report_editions

    if sites and every:
        raise click.UsageError("--site and --sites: expected one of them")
    if out and not (sites or every):
        raise click.UsageError("--out: only with --site or --sites")
    if mlflow:
        from fairflare.studies.mlflow_server import publish

        run, remarks = publish(folder, mlflow, experiment)
        said = [f"MLflow run {run} of experiment {experiment}: {mlflow}", *remarks]
        return {"run": run, "remarks": remarks}, "\n".join(said)
    if sites or every:
        found, where = report_editions(folder, sites, out)
        return found, partial(results.editions, found, where)
    with display.busy("scoring the final model"):
        summary = report_again(folder)
    return summary, partial(results.run_result, summary, folder)


@click.command()
@click.argument("folder", type=PATH)
@click.option("--head", default="", metavar="HASH", help="A head that was kept: the log must hold that line.")
@click.option("--heads", multiple=True, type=PATH, metavar="FILE", help="What a site kept of the log; repeatable.")
@click.option("--root", type=PATH, metavar="FILE", help="rootCA.pem of a startup kit, which must vouch for signatures.")
@json_option
def verify(folder: Path, head: str, heads: tuple[Path, ...], root: Path | None, as_json: bool) -> None:
    """Check that audit log, model, checkpoint, configuration and reports of the run in FOLDER fit together.

    Says what is absent: "not ended" of a run that was cut short, "no report". Exits with 1 when a completed run lacks
    its report, and with 3 while another command is at work in FOLDER and not all is there: of a run that goes on only
    log, configuration and checkpoint can be checked. Says who vouches for what of the log by a signature
    (docs/audit-log.md).
    """
    from fairflare.engine.files import at_work
    from fairflare.engine.history import events
    from fairflare.privacy.log_verifier import check
    from fairflare.report.write import absent, verified_run

    worker = at_work(folder)
    try:
        run_history, entries = verified_run(folder, head)
        signed = check(folder, root, heads)
    except UserError:
        if not (worker := worker or at_work(folder)):  # which may have ended, or begun, in the meantime
            raise
        _in_progress(folder, head, worker, as_json)
        return
    if signed.problem:
        raise UserError(signed.problem)
    happened, lacks = events(entries), absent(folder, run_history)
    if lacks and worker:
        _in_progress(folder, head, worker, as_json)
        return
    whole = not (run_history.completed and lacks)
    head, status = happened[-1]["hash"], run_history.finish.get("status")
    if as_json:
        found = {"entries": len(happened), "head": head, "verified": whole, "in_progress": False}
        who = {"vouched": signed.vouched, "remarks": signed.remarks}
        console.dump({**found, "ended": bool(run_history.finish), "status": status, "absent": lacks, **who})
    else:
        words = "verified" if whole else "NOT verified"
        console.say("; ".join([f"{words}: {len(happened)} entries, chain head {head}", *lacks]))
        for line in signed.lines():
            console.say(line)
    if not whole:
        click.get_current_context().exit(1)


def _in_progress(folder: Path, head: str, worker: str, as_json: bool) -> None:
    """Say what holds so far of a run in which ``worker`` is at work, and exit with ``IN_PROGRESS``."""
    from fairflare.engine.history import events
    from fairflare.report.write import absent, verified_so_far

    found: dict[str, Any] = {"entries": 0, "head": "", "verified": False, "in_progress": True, "ended": False}
    found |= {"status": None, "absent": ["not ended", "no report"]}
    words = "no line of its log is written yet"
    if so_far := verified_so_far(folder, head):
        run_history, entries = so_far
        happened, finish = events(entries), run_history.finish
        found |= {"entries": len(happened), "head": happened[-1]["hash"], "ended": bool(finish)}
        found |= {"status": finish.get("status"), "absent": absent(folder, run_history)}
        done, total = run_history.standing.round, run_history.segment["rounds"]
        words = f"round {done} of {total}, {len(happened)} entries fit together so far, chain head {found['head']}"
    if as_json:
        console.dump(found)
    else:
        console.say(f"in progress ({worker}), not verified yet: {words}; verify again once it has ended")
    click.get_current_context().exit(IN_PROGRESS)


@click.command()
@click.argument("folder", type=PATH)
@json_option
def watch(folder: Path, as_json: bool) -> None:
    """Follow the run in FOLDER: each site's last score and weight, and who is away.

    Reads the audit log and changes nothing; Ctrl-C ends the display, not the run. With --json, and where the output is
    redirected, it prints the state once.
    """
    if as_json:
        console.dump(console.looked(console.watched_in(folder), folder, console.shown))
    else:
        console.watch(folder)


@click.command()
@click.argument("folder", type=PATH)
@click.option("--step", type=click.Choice(("recalibrate", "conformal")), required=True, help="What is done.")
@set_option
@as_json
def after(folder: Path, step: str, values: Values) -> Told:
    """Recalibrate the model of the finished run in FOLDER, or set thresholds, for each site or group.

    The sites' data must be on this machine; a deployed run takes the step itself, with --set after=STEP. The model
    stays as it is; the report shows what came of it, and each site keeps its own in sites/SITE.after.json.
    """
    from fairflare.cli import results
    from fairflare.studies.after import take_step

    found = take_step(folder, step, values)
    return {"folder": str(folder), "report": found}, partial(results.run_result, found, folder)


@click.command()
@click.argument("job", type=PATH)
@click.option("--sign", "kit", type=PATH, metavar="KIT", help="Sign every file with the key of a user's startup kit.")
@click.option("--root", type=PATH, metavar="FILE", help="rootCA.pem of a startup kit, which must vouch for who signed.")
@json_option
@click.pass_context
def inspect(context: click.Context, job: Path, kit: Path | None, root: Path | None, as_json: bool) -> None:
    """What the exported JOB (a folder, or FLARE's zip of it) runs at a hospital: entry point, files and lines, what is
    read, what leaves, where it is checked, who signed it.

    Nothing of the job is imported. Exits with 1 where its files are not those that MANIFEST.json lists or somebody
    signed, and, with --root, where nobody of that federation signed them (docs/audit-a-job.md).
    """
    from fairflare.cli.jobs import inspected, lines, sign, unpacked

    if kit and job.is_file():
        raise click.UsageError("--sign: expected a job's folder, got a file")
    with unpacked(job) as folder:
        found = inspected(folder, root)
    whole = all(found[side].get("matches", True) is True for side in ("site", "server"))
    if kit and whole:
        sign(job, kit)
        found = inspected(job, root)
    console.dump(found) if as_json else console.say("\n".join(lines(found)))
    signed = found["signed"]["holds"] is True if found["signed"] else not root
    if not (whole and signed):
        context.exit(1)
