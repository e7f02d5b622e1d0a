# SPDX-License-Identifier: Apache-2.0
"""The tables that runs, comparisons, measurements and evaluations end with in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fairflare.cli.console import say, show_table
from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.files import BEST, MODEL, is_file, save_json, save_tensors, save_text
from fairflare.report import EVALUATION, EVALUATION_PAGE
from fairflare.report.benefit import over_methods
from fairflare.report.compare import drawn_words, table
from fairflare.report.compare_page import differences, group_metric_words
from fairflare.report.external import discrimination, evaluation, render
from fairflare.report.personal import remark
from fairflare.report.sanity_checks import sentences, verdict
from fairflare.report.sections import quantities as known
from fairflare.report.sentences import worst_class
from fairflare.report.sites import final
from fairflare.report.values import ends, label, plural, signed, text
from fairflare.studies.display import note, out

if TYPE_CHECKING:
    from fairflare.engine.setup.config import RunConfig
    from fairflare.inference.loaded_run import Opened

LABELS = {
    "std": "standard deviation over sites",
    "gap": "gap best to worst",
    "calibration_worst": "worst site's calibration in the large",
    "ece_worst": "worst site's ECE",
    "worst vs first": "worst site, beside the first method",
    "wins": "seeds with a better worst site",
}


def run_result(report: Mapping[str, Any], folder: Path, advice: Mapping[str, Any] = {}) -> None:
    summary = report["detail"]
    fairness, headline = summary["fairness"], summary["headline"]
    held = [*(summary.get("risks") or ()), {"label": label(headline, summary), "metric": headline, **fairness}]
    if own := (summary.get("personal") or {}).get("personal"):
        held.append({"label": f"{label(headline, summary)}, personal models", "metric": f"personal_{headline}", **own})
    rows = [
        _metric_row(one) for place, one in enumerate(held) if one["metric"] not in [o["metric"] for o in held[:place]]
    ]
    rows += [
        [f"shared test set: {row['name']}", _number(row["value"]), "", "", ""] for row in summary["test_sets"]["rows"]
    ]
    title = f"{summary['method']['title']} on {summary['task']['id']}:{summary['task']['preset']}"
    show_table(title, [final(summary), "mean", "worst site", "best site", "gap"], rows)
    if doubt := verdict(summary):
        out.print(f"[bold red]{escape(doubt)}[/]")
    for sentence in worst_class(summary) + sentences(summary):
        out.print(escape(sentence))
    for section in summary["after"]:
        _after(section)
    for sentence in (summary["benefit"] or {}).get("sentences", ()):
        say(sentence)
    if left_out := sum(len(record.get("rejected") or {}) for record in summary["rounds"]):
        out.print(f"{left_out} updates were left out; the report says which and why")
    if advice:
        out.print(escape(f"Advice: {advice['text']} {advice['sure']}"))
    say(f"report: {folder / 'report.html'}")


def _metric_row(found: Mapping[str, Any]) -> list[str]:
    ends = ([found[end]["value"], found[end]["site"]] for end in ("worst", "best"))
    shown = ("-" if value is None else f"{_number(value)} ({site})" for value, site in ends)
    return [str(found["label"]), _number(found["mean"]), *shown, _number(found["gap"])]


def _after(section: Mapping[str, Any]) -> None:
    """What a step after the last round came to: mean and worst site, stage by stage."""
    rows = []
    for metric, name in section["metrics"].items():
        stages = section["summary"][metric].values()
        rows.append([name, *(f"{_number(found['mean'])} (worst {_number(found['worst'])})" for found in stages)])
    title = f"{section['title']} (by {section['by']}, from {section['split']})"
    show_table(title, ["over sites, absolute", *section["stages"].values()], rows)
    note(f"calibration cases: {section['remark']}")


def comparison(found: dict[str, Any], folder: Path) -> None:
    """The table of ``fairflare compare``, a column per method, and where the reports are."""
    rows, words = table(found), {name: one.label for name, one in known().items()} | LABELS
    quantities = [name for name in rows[0] if name not in ("method", "seeds")]
    show_table(
        f"{label(found['headline'], found)}, {'' if found['higher_is_better'] else 'less is better, '}"
        + plural(len(found["seeds"]), "seed"),
        ["", *(row["method"] for row in rows)],
        [[words.get(name, name), *(str(row.get(name, "")) for row in rows)] for name in quantities],
    )
    for sentence in (
        drawn_words(found),
        group_metric_words(found),
        remark(found["methods"]),
        *differences(found),
        *over_methods(found),
    ):
        if sentence:
            say(sentence)
    for said in found["notes"]:
        note(said)
    say(f"comparison: {folder / 'compare.html'}")
    if runs := sorted(path.parent for path in folder.glob("*/report.json")):
        say(f"a run's own page: fairflare report {shlex.quote(str(runs[0]))}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def editions(found: Mapping[str, Any], folder: Path) -> None:
    """Where the pages of hospitals are, with the first sentence of each."""
    from fairflare.report.edition import opening

    for site, one in found.items():
        say(f"{site}: {opening(one)[0][0]}")
        say(f"edition: {folder / f'{site}.html'}")


CALIBRATION = {"calibration": "calibration in the large", "slope": "calibration slope", "brier": "Brier score"}
Json = Mapping[str, Any]


def write(content: dict[str, Any], folder: Path) -> None:
    save_json(folder / EVALUATION, content)
    save_text(folder / EVALUATION_PAGE, render(content))


def show(content: dict[str, Any], folder: Path) -> None:
    """A table per hospital, and where the page is."""
    for name, site in content["sites"].items():
        told = discrimination(site, content)
        rows = [(metric, one["why"] or text(one["value"]), ends(one), text(one["trivial"])) for metric, one in told]
        title = f"{name}: {plural(int(site['n'] or 0), 'case')}"
        show_table(title, ("", "value", "95 % interval", "same for all"), [*rows, *_calibration(site)])
        for sentence in _sentences(site, content):
            say(sentence)
    for name, why in content["rejected"].items():
        say(f"{name}: not evaluated: {why.get('detail') or why.get('code')}")
    say(f"page: {folder / EVALUATION_PAGE}")


def _calibration(site: Json) -> list[tuple[str, str, str, str]]:
    found = []
    after = (site["recalibration"] or {}).get("calibration")
    for stage, view in (("", site["calibration"] or {}), (", recalibrated", after or {})):
        for key, words in CALIBRATION.items() if view else ():
            one, trivial = view[key], site["trivial_brier"] if key == "brier" else None
            value = signed(one["value"]) if key == "calibration" else text(one["value"])
            found.append((words + stage, value, ends(one), text(trivial)))
    return found


def _sentences(site: Json, content: Json) -> list[str]:
    said = [f"calibration: {site['calibration_why']}"] if site["calibration_why"] else []
    known = [row for row in site["groups"] if row["value"] is not None]
    if known:
        worst = min(known, key=lambda row: (row["value"], row["group"]))
        metric = label(content["group_metric"], content)
        said.append(f"groups by {content['by']}: lowest {metric} {text(worst['value'])} ({worst['group']})")
    for one in ((site["own"] or {}).get("metrics") or {}).values():
        what = f"{one['label']}: {signed(one['difference'])} beside {site['own']['model']}"
        said.append(what + (f" [{signed(one['low'])}, {signed(one['high'])}]" if one["low"] is not None else ""))
    if site["recalibration"]:
        said.append(site["recalibration"]["words"])
    return said


def job_config(opened: Opened, sites: str, data: Path | None, asked: Mapping[str, Any], scratch: Path) -> RunConfig:
    """The configuration of a job that evaluates the run's model at ``sites``, each on all that it has labelled.

    ``sites`` are names, separated by commas; empty: those of ``data``, a folder with the lists of all of them on this
    machine (None: each has its own). ``asked``: group_by and min_count. ``scratch``: a folder until the job's end,
    for the whole network where a run has trained a part.
    """
    from fairflare.engine.setup.config import evaluation_of
    from fairflare.engine.setup.tuning import whole
    from fairflare.engine.setup.weights import named
    from fairflare.inference.loaded_run import hospitals, refuse_trained
    from fairflare.tasks.kinds.own import OwnData, folder_of_lists

    if opened.parts.personal:
        raise UserError(f"{opened.config.method}: sites keep a part of the model, so that nobody else can evaluate it")
    names = [name for name in (part.strip() for part in sites.split(",")) if name]
    lists = ""
    if data is not None:
        found = hospitals(opened, data)
        refuse_trained(opened, found)
        names, lists = names or list(found), str(folder_of_lists(data).resolve())
    if not isinstance(opened.task, OwnData):
        raise UserError(f"task {opened.config.task}: brings data of its own; expected a run on hospitals' own data")
    if not names:
        raise UserError("--sites: expected the names of the sites that evaluate the model, separated by commas")
    trained = {site.lower() for site in opened.trained}
    if both := [name for name in names if name.lower() in trained]:
        raise UserError(f"--sites: {both[0]} took part in the run's training; expected sites that did not")
    files = [opened.folder / name for name in (MODEL, BEST) if is_file(opened.folder / name)]
    weights = next((sha256 for path in files if (sha256 := named(path)) == opened.model_sha256), "")
    if weights and opened.config.tune != "all":
        save_tensors(scratch / MODEL, whole(opened.network).state_dict())
        weights = named(scratch / MODEL)
    if not weights:
        raise UserError(f"{opened.folder}: the run has no file of the model that is in use")
    return evaluation_of(opened.config, opened.task, names, datalists=lists, init_from=weights, **asked)


def of_job(opened: Opened, config: RunConfig, folder: Path) -> dict[str, Any]:
    """The content of ``evaluation.json`` from the finished job's run folder, where it is written, too."""
    from fairflare.inference.external import ALL, about_evaluation
    from fairflare.report.write import read_run

    described, entries = read_run(folder)
    last = next((entry for entry in reversed(entries) if entry["event"] == "evaluation"), None)
    if last is None or not last["sites"]:
        refused = (last or {}).get("rejected", {})
        why = "; ".join(f"{site}: {one['detail'] or one['code']}" for site, one in refused.items())
        raise RunFailed(f"no site has evaluated the model{': ' + why if why else ''}")
    if last["model_sha256"] != config.init_from:
        raise RunFailed("another model was evaluated than the run's")
    about = {**described["about"], **about_evaluation(opened, config, ALL), "rejected": last["rejected"]}
    content = evaluation(about, last["sites"])
    write(content, folder)
    return content
