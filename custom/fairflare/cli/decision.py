# SPDX-License-Identifier: Apache-2.0
"""Commands about the decision to join: ``join`` before it, ``sheet`` for who decides, ``monitor`` after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import console
from fairflare.cli.choices import choices_options, run_options
from fairflare.cli.options import PATH, Told, as_json, grid_options, option
from fairflare.studies.labels import comparison_name

if TYPE_CHECKING:
    from fairflare.studies.parallel import Workers


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


DECIDE, DATA_ONLY = "decide", "fedavg"
"""The word for no METHOD, and the method whose configuration then says which data."""


def as_margin(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """0 for "strict", or a loss in [0, 0.1]."""
    try:
        found = 0.0 if value == "strict" else float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 0.1:
        raise click.BadParameter(f"expected strict or a loss from 0 to 0.1, got {value[:40]!r}", ctx, param)
    return found


@click.command()
@click.argument("methods", nargs=-1, metavar="[decide|METHOD...]")
@choices_options
@run_options
@click.option("--secure", is_flag=True, help="Sites send sums in secret alone; each hospital makes its own answer.")
@click.option("--export", type=PATH, metavar="DIR", help="Write the FLARE job to DIR, and run nothing.")
@option("--folds", type=click.IntRange(2, 20), default=5, metavar="K", help="Folds.")
@option("--repeats", type=click.IntRange(1, 20), default=3, metavar="R", help="Deals of folds.")
@option(
    "--no-harm",
    "margin",
    default="0.002",
    metavar="strict|LOSS",
    callback=as_margin,
    help="What a mix of models may lose, with probability .05 at most.",
)
@option(
    "--new-size",
    type=click.IntRange(30, 100_000),
    default=100,
    metavar="N",
    help="Patients of a hospital that is not in yet, for which a forecast is given.",
)
@click.option(
    "--event", default="", metavar="CLASS", help="The class whose risk is asked for, of a task with more than two."
)
@threshold_options
@click.option("--class-shares", "shares", is_flag=True, help="A shared model counts with own class shares, too.")
@option("--seed", type=int, default=0, help="Of the initial models and all local work.")
@grid_options
def join(
    methods: tuple[str, ...],
    task: str,
    choices: dict[str, Any],
    folds: int,
    repeats: int | None,
    threshold: float | None,
    worthwhile: float,
    seed: int,
    env: str,
    deployment: dict[str, Any] | None,
    secure: bool,
    export: Path | None,
    out: Path | None,
    force: bool,
    workers: Workers | None,
    **asked: Any,
) -> Told | None:
    """Alone, use, or join: what should each hospital do, and which METHOD's model is best for it?

    `decide`, or no METHOD, needs one federated regression on a table of two classes. For every hospital it compares its
    own model, the others' model with its own calibration (use) and the model of all (join). docs/decision.md

    With METHODs their models are compared with the own one, too.

    Every patient is tested by models that never saw this patient: for each fold the federation trains without it. The
    own model is the better of penalised regression and boosted trees on the hospital's table. Finished runs found in
    --out are reused, so that an interrupted measurement goes on where it stopped. docs/join.md

    With --env sim, poc or prod, and with --secure, it is one FLARE job: risks stay at the sites, which send a few means
    over all their patients, or with --secure sums over sites alone.
    """
    from fairflare.functional.decision import Design
    from fairflare.studies.join import Question, measure_decision, measure_join

    if alone := methods in ((), (DECIDE,)):
        methods = (DATA_ONLY,)
    question = Question(
        methods, task, Design(folds, repeats or (10 if alone else 3)), seed=seed, choices=choices, **asked
    )
    if not alone and (threshold is not None or worthwhile):
        raise click.UsageError("--threshold and --worthwhile: expected `fairflare join decide`, without a METHOD")
    folder = out or Path("runs") / comparison_name(task, {**choices, "seed": seed, "by": methods}, "join")
    if alone:
        from fairflare.decision.study import lines

        if export or secure or env != "local":
            raise click.UsageError(
                "join decide: expected patients on this machine; --env, --secure and --export need a METHOD"
            )
        found = measure_decision(question, folder, threshold=threshold, worthwhile=worthwhile)
        return found, "\n".join([*lines(found), f"page: {folder / 'join.html'}"])
    if export or secure or env != "local":
        from fairflare.studies.join_job import job_of, join_by_job

        config = job_of(question, secure=secure)
        if export:
            from fairflare.cli.jobs import export_job

            export_job(config, export, name=None, simulation=env == "sim", force=force)
            return None
        found = join_by_job(config, folder, env=env, deployment=deployment, force=force)
    else:
        found = measure_join(question, folder, force=force, workers=workers)
    said = [f"{site}: {row['answer']}" for site, row in found["sites"].items()]
    said += [f"{site}: not answered: {why}" for site, why in found["refused"].items()]
    if "decision" in found:
        from fairflare.decision.study import lines

        said = ["Alone, use, or join:", *lines(found["decision"]), "Methods:", *said]
    if secure:
        said.append("each hospital's own answer lies at its site, in SITE.join.json: fairflare join-sheet FILE")
    said.append(f"page: {folder / 'join.html'}")
    said += [f"sheets: {folder / 'sheets'}"] if (folder / "sheets").is_dir() else []
    return found, "\n".join(said)


@click.command("join-sheet")
@click.argument("file", type=PATH)
def join_sheet(file: Path) -> None:
    """Show a hospital its own answer from FILE, which its site has kept of a join: SITE.join.json. docs/join.md"""
    from fairflare.studies.join_job import sheet

    words, target = sheet(file)
    console.say(words)
    console.say(f"page: {target}")


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
@click.argument("folder", type=PATH)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="A hospital; repeat for more. All by default.")
@option("--language", type=click.Choice(["en", "de", "fr"]), default="en", help="Of the sheet's texts.")
@as_json
def sheet(folder: Path, sites: tuple[str, ...], language: str) -> Told:
    """Write the decision sheets of the join in FOLDER: a page for each hospital, to print, and the same as JSON.

    What was asked, who took part, the answer with its interval, what could go wrong, what leaves the hospital, and how
    to withdraw. docs/join.md
    """
    from fairflare.studies.joined import sheets_of

    pages = [str(path) for path in sheets_of(folder, sites, language)]
    return {"pages": pages}, "\n".join(pages)


@click.command()
@click.argument("folder", type=PATH, metavar="JOIN_FOLDER")
@grid_options
def combine(folder: Path, out: Path | None, **how: Any) -> Told:
    """Write for every hospital of a finished join its own model mixed with the candidates, as join found it safe.

    The candidates and the own models are trained once more, on all patients. DIR/HOSPITAL is a model that `predict`,
    `evaluate`, `export-model` and `monitor` take. docs/join.md
    """
    from fairflare.studies.candidates import combine

    place = out or Path(f"{folder.resolve().name}-mixes")
    weights = combine(folder, place, **how)
    parts = {site: [f"{weight:.0%} {name}" for name, weight in each.items()] for site, each in weights.items()}
    said = [f"{site}: {', '.join(each)}" for site, each in parts.items()]
    return {"folder": str(place), "weights": weights}, "\n".join([*said, f"a model for each hospital: {place}"])


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
    the folder that `combine` wrote for the hospital, it holds what the model takes, and the label; without one it holds
    both models' risks. However often it is looked at, at most 5 % of the hospitals are told something false.
    docs/join.md
    """
    from fairflare.inference.monitor import counted, watch

    *mixes, table = places
    kept = state or table.with_name(f"{table.stem}.monitor.json")
    if not mixes:
        found, new = watch(table, kept, margin, (outcome or "outcome", risks["own"] or "own", risks["used"] or "used"))
    else:
        from fairflare.inference.mix import monitored

        if any(risks.values()) or len(mixes) > 1:
            raise click.UsageError("expected MIX and TABLE alone: a MIX computes both risks by itself")
        found, new = counted(monitored(mixes[0], table, outcome or ""), kept, margin)
    said = found.summary()
    capital = ", ".join(f"{name} {min(said[name]['capital'], 9999):.2f}" for name in ("certificate", "alarm"))
    words = f"{found.sentence()}\n{new} new patients, {found.cases} in all; capital of 20: {capital}\nstate: {kept}"
    return {**said, "new": new, "state": str(kept)}, words
