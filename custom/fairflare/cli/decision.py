# SPDX-License-Identifier: Apache-2.0
"""Commands about the decision to join: ``join`` before it, ``join-sheet`` for who decides, ``monitor`` after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairflare.cli.choices import choices_options, run_options
from fairflare.cli.options import PATH, Told, as_json, exported, grid_options, listed, one_by_one_option, option
from fairflare.studies.labels import comparison_name


def threshold_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The clinic's threshold, and what is worthwhile there."""
    worthwhile = click.option(
        "--worthwhile",
        type=click.FloatRange(0, 1),
        default=0.0,
        metavar="GAIN",
        help="With --threshold: the smallest net benefit per patient that matters.",
    )
    return click.option(
        "--threshold",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="RISK",
        help="The risk from which on the clinic treats.",
    )(worthwhile(command))


@click.command()
@click.argument("methods", nargs=-1, metavar="[decide|METHOD...]")
@choices_options
@run_options
@click.option("--secure", is_flag=True, help="Sites send sums in secret alone; each hospital makes its own answer.")
@click.option("--export", type=PATH, metavar="DIR", help="Write the FLARE job to DIR, and run nothing.")
@option("--folds", type=click.IntRange(2, 20), default=5, metavar="K", help="Folds.")
@option("--repeats", type=click.IntRange(1, 50), metavar="R", help="Deals of folds: 10, with METHODs 3.")
@click.option(
    "--event", default="", metavar="CLASS", help="The class whose risk is asked for, of a task with more than two."
)
@listed("--for", "outside", metavar="A,B", help="Hospitals that METHODs also serve from outside: a training each.")
@option("--own-model", default="ridge", metavar="MODEL", help="Alone: ridge, trees, or module.Name of --code.")
@click.option("--shared-patients", is_flag=True, help="Some patients are at several hospitals: deal them alike.")
@one_by_one_option
@threshold_options
@option("--seed", type=int, default=0, help="Of the initial models and all local work.")
@grid_options
def join(
    methods: tuple[str, ...],
    task: str,
    choices: dict[str, Any],
    folds: int,
    repeats: int | None,
    event: str,
    outside: tuple[str, ...],
    own_model: str,
    shared_patients: bool,
    threshold: float | None,
    worthwhile: float,
    seed: int,
    env: str,
    deployment: dict[str, Any] | None,
    secure: bool,
    export: Path | None,
    out: Path | None,
    force: bool,
    workers: int | None,
    one_by_one: bool,
) -> Told:
    """Alone, use, or join: what should each hospital do, and what does METHOD's model bring it?

    `decide`, or no METHOD, needs one federated regression on a table of two classes. For every hospital it compares its
    own model, the others' model with its own calibration (use) and the model of all (join). docs/decision.md

    With METHODs their models are compared with the own one, too. Every patient is tested by models that never saw this
    patient: for each fold the federation trains without it. Finished runs found in --out are reused. --for trains each
    METHOD once more without a hospital, for what using and joining bring to it.
    `decide:vectors=FOLDER` compares the regressions on another encoder's features.

    With --env sim, poc or prod, --secure or --export, the decision is one FLARE job: rows stay at the sites, which send
    sums over their patients and their answer's numbers, or with --secure sums in secret alone.
    """
    from fairflare.decision.study import lines
    from fairflare.decision.sums import Plan
    from fairflare.studies.join import DECIDE, Question, job_of, measure, measure_by_job

    inputs = tuple(one for one in methods if one.startswith(f"{DECIDE}:"))
    methods = tuple(one for one in methods if one not in (DECIDE, *inputs))
    plan = Plan(folds, repeats or (3 if methods else 10), threshold, worthwhile, own_model, shared_patients)
    question = Question(task, methods, plan, seed, choices, event=event, inputs=inputs, outside=outside)
    folder = out or Path("runs") / comparison_name(task, {**choices, "seed": seed, "by": (*methods, *inputs)}, "join")
    if export:
        from fairflare.cli.jobs import export_job

        export_job(job_of(question, secure=secure), export, name=None, simulation=env == "sim", force=force)
        return exported(export)
    if secure or env != "local":
        found = measure_by_job(question, folder, secure=secure, env=env, deployment=deployment, force=force)
    else:
        found = measure(question, folder, force=force, workers=workers, lockstep=not one_by_one)
    said = lines(found) if found.get("averages") is not None else []
    for label, of in found.get("methods", {}).items():
        for site, row in of["sites"].items():
            gain, low, high = (f"{1e3 * row[key]:+.1f}" for key in ("value", "low", "high"))
            said.append(f"{label} at {site}: {row['verdict']} ({gain} [{low}, {high}] thousandths)")
    if secure:
        said.append("each hospital's answer lies at its site, in SITE.decision.json: fairflare join sheet FILE")
    said.append(f"page: {folder / 'join.html'}")
    said += [f"sheets: {folder / 'sheets'}"] if (folder / "sheets").is_dir() else []
    return found, "\n".join(said)


@click.command("join-sheet")
@click.argument("place", type=PATH, metavar="FOLDER|FILE")
@listed("--site", "sites", metavar="A,B", help="Hospitals; all by default.")
@option("--language", type=click.Choice(["en", "de", "fr", "es"]), default="en", help="Of the sheet's texts.")
@as_json
def join_sheet(place: Path, sites: tuple[str, ...], language: str) -> Told:
    """Write decision sheets, a page of A4 for each hospital: of the join in FOLDER, or from FILE, which a site keeps.

    Both answers with their intervals, what to do, what could go wrong, what leaves, and lines to sign. FILE is
    SITE.decision.json. docs/decision.md
    """
    from fairflare.studies.join import sheets_of

    pages = [str(path) for path in sheets_of(place, sites, language)]
    return {"pages": pages}, "\n".join(pages)


@click.command("join-forecast")
@click.argument("question", type=PATH)
@click.argument("table", type=PATH)
@threshold_options
@as_json
def join_forecast(question: Path, table: Path, threshold: float | None, worthwhile: float) -> Told:
    """Alone, use, or join, for a hospital that is not in: from the federation's QUESTION and the hospital's own TABLE.

    QUESTION is the file question.json that `join decide` writes. It is all computed at the hospital; nothing goes back.
    docs/decision.md
    """
    from fairflare.decision.study import lines
    from fairflare.studies.forecast import answer

    found = answer(question, table, threshold, worthwhile)
    return found, "\n".join(lines(found))


@click.command()
@click.argument("places", type=PATH, nargs=-1, required=True, metavar="[MIX] TABLE")
@click.option(
    "--state", type=PATH, metavar="FILE", help="Where the sums are kept; TABLE with .monitor.json by default."
)
@click.option("--margin", type=float, metavar="LOSS", help="A loss (Brier score) that does not matter; 0.01 at first.")
@click.option("--outcome", metavar="COLUMN", help="0 or 1; outcome by default, with a MIX the label of its task.")
@click.option("--own", metavar="COLUMN", help="The risk by the hospital's own model; own by default.")
@click.option("--used", metavar="COLUMN", help="The risk by the model in use; used by default.")
@as_json
def monitor(
    places: tuple[Path, ...], state: Path | None, margin: float | None, outcome: str | None, **risks: str | None
) -> Told:
    """Say whether the model in use is still no worse than the hospital's own, as outcomes become known.

    TABLE holds patients in the order in which outcomes became known; rows are added at its end. Of rows with the same
    patient or patient_id the first counts. With a MIX,
    a hospital's folder in `models` of a join, it holds what the model takes, and the label; without one it holds
    both models' risks. However often it is looked at, at most 5 % of the hospitals are told something false.
    docs/join.md
    """
    from fairflare.inference.monitor import counted, patients_of

    *mixes, table = places
    kept = state or table.with_name(f"{table.stem}.monitor.json")
    if not mixes:
        patients = patients_of(table, (outcome or "outcome", risks["own"] or "own", risks["used"] or "used"))
    else:
        from fairflare.inference.mix import monitored

        if any(risks.values()) or len(mixes) > 1:
            raise click.UsageError("expected MIX and TABLE alone: a MIX computes both risks by itself")
        patients = monitored(mixes[0], table, outcome or "")
    found, new = counted(patients, kept, margin)
    said = found.summary()
    capital = ", ".join(f"{name} {min(said[name]['capital'], 9999):.2f}" for name in ("certificate", "alarm"))
    words = f"{found.sentence()}\n{new} new patients, {found.cases} in all; capital of 20: {capital}\nstate: {kept}"
    return {**said, "new": new, "state": str(kept)}, words
