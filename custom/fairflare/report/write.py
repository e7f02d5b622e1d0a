# SPDX-License-Identifier: Apache-2.0
"""Writes ``report.json`` and ``report.html``, and the editions of single sites, from what a run left in its folder."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.signals import command
from fairflare.core.types import StateDict
from fairflare.engine import audit, files
from fairflare.engine.best import Choice, check_files, check_line, of_line
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.checks import BY, NO_CHOICE
from fairflare.engine.files import AUDIT, CHECKPOINT, CONFIG, MODEL, is_file, is_there, json_text, read_json, save_text
from fairflare.engine.hashes import model_hash
from fairflare.engine.history import REPORT as RECORD
from fairflare.engine.history import Follower, RunHistory, alike, events, left_behind, read_final, read_standing
from fairflare.report import PAGE, REPORT
from fairflare.report.coefficients import coefficient_section
from fairflare.report.edition import render_edition
from fairflare.report.page import render_run
from fairflare.report.summary import counted_trail, report_json, summarise
from fairflare.report.values import higher_is_better, json_value


def write_report(folder: Path, page: bool = True) -> dict[str, Any]:
    """(Re)write both files and return the content of ``report.json``; no new page without ``page``.

    The log records their hashes before they are written. The head that they print is that of the log before this
    record: a report cannot hold the hash of a line that holds its own. Nothing but the folder is read: what task and
    method are was written down before the first round, and every score during the run.

    Raises:
        UserError: the folder holds no run, its audit chain is broken, a file does not fit to it, or an older version
            wrote it.
    """
    _require_run(folder)
    follower = Follower()
    log = audit.AuditLog(folder / AUDIT, follower.saw)
    run_history, entries = follower.history, events(log.entries)
    config = _described(_checked_config(folder, run_history))
    model, model_sha256 = _logged_model(folder, run_history)
    with _made_of_the_log("report"):
        summary = summarise(_without_paths(config), entries)
        if found := coefficient_section(model or {}, config, summary["sites"]):
            summary["coefficients"] = json_value(found)
        evaluated = log.entries.last("evaluation")
        report = report_json(summary, [] if evaluated is None else [log.entries[evaluated]])
        texts = {REPORT: json_text(report)}
        texts |= {PAGE: render_run(summary)} if page or is_there(folder / PAGE) else {}
    about = {"status": report["status"], "reason": report["reason"], "model_sha256": model_sha256}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    record = {"of": run_history.last["hash"], **about, "files": hashes}
    if not run_history.reports or {**run_history.reports[-1], **record} != run_history.reports[-1]:
        log.append(RECORD, **record)
    for name, text in texts.items():
        save_text(folder / name, text)
    return report


def write_editions(folder: Path, sites: Sequence[str], out: Path) -> dict[str, dict[str, Any]]:
    """Write ``SITE.html`` and ``SITE.json`` of ``sites``, or of all with none named, into ``out``; return site -> JSON.

    The log is read and not written: an edition is a view of it, and ``fairflare report`` writes it again in the same
    bytes. Raises as ``write_report``, and where the run has no such site.
    """
    from fairflare.report.edition import edition, require_site

    config, entries = read_run(folder)
    with _made_of_the_log("edition"):
        summary, trail = summarise(config, entries), counted_trail(config, entries)
        names = list(sites) or [row["site"] for row in summary["sites"]]
        for site in names:
            require_site(summary, site)
        found = {site: edition(summary, trail, site) for site in names}
        pages = {site: render_edition(one) for site, one in found.items()}
    out.mkdir(parents=True, exist_ok=True)
    for site, one in found.items():
        save_text(out / f"{site}.json", json_text(one))
        save_text(out / f"{site}.html", pages[site])
    return found


@contextlib.contextmanager
def _made_of_the_log(what: str) -> Iterator[None]:
    """Within: values that no run writes are a UserError. The chain holds, so whoever can write the folder made them."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        kind = type(error).__name__  # alone in a hospital's edition: the rest may name another one
        reason = f"{kind}: {error}"[:120] if what == "report" else kind
        raise UserError(f"{AUDIT}: holds values that no {what} can be made of ({reason})") from error


def read_run(folder: Path) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
    """The configuration without paths and the log's events of the run in ``folder``, checked as for a report."""
    _require_run(folder)
    run_history, entries = _followed(folder, torn=True)
    return _without_paths(_described(_checked_config(folder, run_history))), events(entries)


def _followed(folder: Path, *, torn: bool) -> tuple[RunHistory, audit.Entries]:
    follower = Follower()
    entries = audit.Entries(folder / AUDIT, torn=torn, each=follower.saw)
    return follower.history, entries


def _described(config: dict[str, Any]) -> dict[str, Any]:
    """``config``, which says what task and method are; raises UserError for one that does not."""
    if not isinstance(config.get("about"), dict):
        raise UserError(f"{CONFIG}: was written by an older version of this package, which alone can write its report")
    return config


def _without_paths(described: dict[str, Any]) -> dict[str, Any]:
    """The configuration with file names in place of paths: reports are passed on."""
    options = described.get("options") or {}
    names = {"datalists": Path(options["datalists"]).name} if options.get("datalists") else {}
    return {**described, "options": options | names}


def verify_run(folder: Path) -> Sequence[Mapping[str, Any]]:
    """The audit entries of a run, but for records of reports, when the log and every file it speaks of fit together.

    Checked: each line's hash and canonical form, and that it can follow the lines before it; ``config.json``,
    ``report.json`` and ``report.html`` by their bytes; model, rule state, declared counts and round of
    ``checkpoint.safetensors``; models that are still to be scored; ``model.safetensors``; ``best.safetensors``, and
    that it is the model which the logged scores choose; and that none of them is missing. Nothing is changed. Not to
    be found without the head kept elsewhere: a folder of which log, checkpoint and reports were all made anew.

    Raises:
        UserError: one line that says what does not fit.
    """
    return events(verified_run(folder)[1])


def verified_run(folder: Path, head: str = "") -> tuple[RunHistory, audit.Entries]:
    """What ``verify_run`` checks and raises: what the log says, and all its entries.

    ``head``: a hash that was kept; one of the lines must have it, so that none up to there was changed. Empty: none.
    """
    run_history, entries = _verified(folder, torn=False)
    if read_final(folder, run_history) is None and run_history.finish:
        raise UserError(f"{MODEL}: is missing, and {AUDIT} says that the run ended")
    _check_reports(folder, run_history)
    _check_head(entries, head)
    return run_history, entries


def verified_so_far(folder: Path, head: str = "") -> tuple[RunHistory, audit.Entries] | None:
    """What can be checked of a run in which a command is at work, which writes one file after the other.

    Checked: each line's hash, and that it can follow the lines before it; ``config.json``; that a logged round
    has left the checkpoint, which is read before the log, whose line is written before it. None: the log has no line
    yet. Not checked: ``model.safetensors``, reports, models to be scored and the best model. Raises as ``verify_run``.
    """
    checkpoint = load_checkpoint(folder / CHECKPOINT) if is_there(folder / CHECKPOINT) else None
    if checkpoint is None and not (is_there(folder / AUDIT) and audit.is_begun(folder / AUDIT)):
        return None
    _require_run(folder)
    run_history, entries = _followed(folder, torn=True)
    _checked_config(folder, run_history)
    if checkpoint is not None:
        known, left = checkpoint.entry in entries.hashes, left_behind(checkpoint)
        logged = entries[entries.hashes.index(checkpoint.entry)] if known else {}
        if logged.get("event") != "round" or any(not alike(logged.get(key), value) for key, value in left.items()):
            raise UserError(f"{CHECKPOINT}: {AUDIT} names no round that left it")
    _check_head(entries, head)
    return run_history, entries


def absent(folder: Path, run_history: RunHistory) -> list[str]:
    """What a verified run lacks: "not ended" without the log's end, "no report" without its record or a file of it."""
    reported = bool(run_history.reports) and all(is_file(folder / name) for name in run_history.reports[-1]["files"])
    return ([] if run_history.finish else ["not ended"]) + ([] if reported else ["no report"])


def check_resumable(folder: Path) -> RunHistory | None:
    """What the log says of the run in ``folder``, when every file there fits to it, so that it can go on.

    As ``verify_run``, but for what a kill leaves: a last line without its end, a checkpoint or report not yet written.
    None: the process was killed before the first line was there. Raises as ``verify_run``.
    """
    if not is_there(folder / AUDIT) or not audit.is_begun(folder / AUDIT):
        for name in (CHECKPOINT, MODEL, files.BEST, files.BEST_MODELS, REPORT, PAGE):
            if is_there(folder / name):
                raise UserError(f"{name}: lies there, and the {AUDIT} that it belongs to is missing or empty")
        return None
    _require_run(folder)
    _described(read_json(folder / CONFIG))
    run_history, _ = _verified(folder, torn=True, begins=True)
    read_final(folder, run_history)
    for name in (REPORT, PAGE):
        known = [record["files"].get(name) for record in run_history.reports]
        if is_there(folder / name) and _file_hash(folder / name) not in known:
            raise UserError(f"{name}: {AUDIT} does not record it; {command('report', folder)} writes it anew")
    return run_history


def _verified(folder: Path, *, torn: bool, begins: bool = False) -> tuple[RunHistory, audit.Entries]:
    """``begins``: a segment may have been killed between its configuration and its line."""
    _require_run(folder)
    run_history, entries = _followed(folder, torn=torn)
    if not (begins and _begins(folder, run_history)):
        _checked_config(folder, run_history)
    standing = read_standing(folder, run_history)
    _check_choice(folder, run_history, entries, standing.round if standing else 0)
    return run_history, entries


def _check_choice(folder: Path, run_history: RunHistory, entries: Sequence[Mapping[str, Any]], standing: int) -> None:
    """The best model, and how it was chosen, are what the configuration and the logged scores say."""
    choice, line = _choice(read_json(folder / CONFIG)), run_history.chosen
    if line and of_line(line, choice.least) != choice:
        raise UserError(f"{AUDIT}: a model was chosen otherwise than {CONFIG} says")
    if run_history.completed and choice.chooses and not line:
        raise UserError(f"{AUDIT}: ends without the choice of a model that {CONFIG} asks for")
    if line:
        check_line(entries, line, choice.least, run_history.segment["rounds"])
    check_files(folder, run_history, entries, choice, standing, ended=run_history.completed)


def _choice(config: Mapping[str, Any]) -> Choice:
    by, weight, least = config.get("best_by", NO_CHOICE), config.get("best_weight", 0.5), config.get("min_sites", 1)
    if by == NO_CHOICE:
        return Choice()
    described = config["about"] if isinstance(config.get("about"), Mapping) else {}
    metric = described.get("headline")
    if by not in BY or not (isinstance(weight, (int, float)) and isinstance(least, int) and isinstance(metric, str)):
        raise UserError(f"{CONFIG}: expected how the best model is chosen, got something else")
    return Choice(by, weight, metric, higher_is_better(metric, described), least)


def _require_run(folder: Path) -> None:
    for name in (CONFIG, AUDIT):
        if not is_there(folder / name):
            raise UserError(f"{folder}: expected the folder of a run, found no {name}")
        if not is_file(folder / name):
            raise UserError(f"{folder}: expected the folder of a run, {name} is no file")


def _checked_config(folder: Path, run_history: RunHistory) -> dict[str, Any]:
    """The content of ``config.json``, whose bytes are those that the log's last segment begins with."""
    if _file_hash(folder / CONFIG) != run_history.segment.get("config_json_sha256"):
        raise UserError(f"{CONFIG}: is that of a run of another configuration than {AUDIT} begins with, or was changed")
    return read_json(folder / CONFIG)


def _begins(folder: Path, run_history: RunHistory) -> bool:
    """Whether ``config.json`` is that of a segment which the log does not yet name."""
    from fairflare.engine.setup.run_config import RunConfig  # which no report needs

    config = RunConfig.from_json(read_json(folder / CONFIG))
    same = config.sha256() == run_history.segment.get("config_sha256")
    return not same and config.lineage() == run_history.start.get("lineage")


def _logged_model(folder: Path, run_history: RunHistory) -> tuple[StateDict | None, str]:
    """The folder's model and its hash: ``model.safetensors`` of a run that ended, else that of the last checkpoint."""
    standing, final = read_standing(folder, run_history), read_final(folder, run_history)
    if final is None and standing is None:
        raise UserError(f"{folder}: no round was finished, so there is no model")
    model = final or standing.model  # type: ignore[union-attr]  # one of them is there
    return model, model_hash(model)


def _check_head(entries: audit.Entries, head: str) -> None:
    if head and head not in entries.hashes:
        raise UserError(f"{AUDIT}: no line has the hash {head[:64]!r}: it is not the log whose head was kept")


def _check_reports(folder: Path, run_history: RunHistory) -> None:
    """The reports' bytes are those of the log's last record of them; a run that ended since must have it anew."""
    again = f"{command('report', folder)} writes it anew"
    record: Mapping[str, Any] = run_history.reports[-1] if run_history.reports else {"files": {}, "of": ""}
    for name in (REPORT, PAGE):
        recorded = record["files"].get(name)
        if not is_there(folder / name):
            if recorded:
                raise UserError(f"{name}: is missing, and {AUDIT} records it; {again}")
        elif not recorded or _file_hash(folder / name) != recorded:
            raise UserError(f"{name}: is not the report that {AUDIT} records; {again}")
    if not record["of"]:
        return
    if run_history.finish and record["of"] != run_history.last["hash"]:
        what = "the last step after the run" if run_history.last["event"] == "after" else "the run ended"
        raise UserError(f"{REPORT}: was made before {what}; {again}")
    provenance = (read_json(folder / REPORT).get("detail") or {}).get("provenance") or {}
    if provenance.get("chain_head") != record["of"]:
        raise UserError(f"{REPORT}: was made from another log; {again}")


def _file_hash(path: Path) -> str:
    return hashlib.sha256(files.read_bytes(path, files.MOST_JSON)).hexdigest()
