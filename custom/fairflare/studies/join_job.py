# SPDX-License-Identifier: Apache-2.0
"""A join as one job: sites keep their risks and send means or sums, see ``engine.setup.join_site``."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from fairflare.core.errors import RunFailed, UserError
from fairflare.engine.audit import AuditLog, first_entry
from fairflare.engine.files import AUDIT, SUFFIX, is_there, read_json, save_json, save_text
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import new_credentials
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.join_plan import BOUNDS, plan_of, with_join
from fairflare.engine.setup.join_server import Join
from fairflare.engine.setup.join_site import Phases
from fairflare.engine.setup.local import SITES
from fairflare.engine.setup.parts import build_parts
from fairflare.report.join import SEPARATELY, page, sentence
from fairflare.studies import display
from fairflare.studies.display import err
from fairflare.studies.folders import JOIN, JOIN_PAGE, check_path, content, created, opened
from fairflare.studies.join import Question, titled
from fairflare.studies.study import config_of, facts
from fairflare.tasks.folds import everyone

OWN_FILES = re.compile(
    r"fold\d+(-again\d+)?|sites|he|audit(-\d+)?\.(jsonl|columns)|join\.(json|html)|flare_log\.txt|(preflight|errors)_.+\.txt"
)
SECRET = {"secure_sum": "masks", "min_sites": 5}
LAST = {"best_by": "none", "headline": "final"}
"""A fold has no validation split to choose a model by."""


def job_of(question: Question, *, secure: bool = False) -> RunConfig:
    """The configuration of the job; ``secure``: sites send sums in secret alone.

    Raises UserError: no table of two classes, candidates that cannot be asked, or too few hospitals for secret sums.
    """
    if question.event or question.shares:
        where = "expected no --env, --secure and --export, which ask of two classes and tell no class shares"
        raise UserError(f"{'--event' if question.event else '--class-shares'}: {where}")
    values = {**LAST, **(SECRET if secure else {}), **(question.choices.get("values") or {})}
    choices = {**question.choices, "values": values}
    runs = {label: config_of(label, question.task, question.seed, choices, draw=False) for label in question.methods}
    built = {label: build_parts(run, at_site=True) for label, run in runs.items()}
    columns = int(next(next(iter(built.values())).network.parameters()).shape[-1])  # of the first layer's weight
    features = columns if columns <= BOUNDS["features"][1] else 0
    config = with_join(runs, question.design, question.margin, question.new_size, features)
    for label, made in built.items():
        if made.personal or made.rule.own_models:
            raise UserError(f"join: {label}: expected a method with one shared model, or a personal one beside it")
    task = made.task
    if len(task.classes) != 2 or not task.kind.has_classes:
        raise UserError(f"join: expected a task of two classes, got {question.task}: {', '.join(task.classes)}")
    if not config.options.get("site_names"):  # else the data are at the sites, which say so
        one = everyone(task.site_data(next(iter(task.sites()))))
        if len(one.inputs.shape) != 2:
            raise UserError(f"join: expected a task on a table, got {question.task}")
    return config


def join_by_job(
    config: RunConfig,
    folder: Path,
    *,
    env: str = "local",
    deployment: Mapping[str, Any] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Run the join that ``config`` (see ``job_of``) describes, or go on with it, and write join.json and join.html.

    ``env`` is "local" (this process), "sim" (FLARE's simulator), or "poc" and "prod" with ``deployment``, the arguments
    of ``run_deployed``; ``force`` begins anew. Raises UserError: the folder holds something else; RunFailed: the join
    stopped; the same command goes on.
    """
    check_path(folder)
    plan = plan_of(config)
    with created(folder), opened(folder):
        _make_room(folder, config, force)
        display.note(f"{plan.folds} federated trainings in one job, then sums over {len(site_names(config))} sites")
        if not is_there(folder / JOIN) or AuditLog(folder / AUDIT).last.get("status") != "completed":
            _run(config, folder, env, deployment)
        result = finished(read_json(folder / JOIN), titled(plan.first, build_parts(plan.first, at_site=True)))
        save_json(folder / JOIN, result)
        save_text(folder / JOIN_PAGE, page(result))
    return result


def _run(config: RunConfig, folder: Path, env: str, deployment: Mapping[str, Any] | None) -> None:
    if env == "local":
        run_join(config, folder)
        return
    if env == "sim":
        from fairflare.flare.simulate import LOG, run_simulator

        run_simulator(config, folder, site_names(config))
        last = AuditLog(folder / AUDIT).last
        if last.get("status") != "completed":
            raise RunFailed(last.get("reason") or f"the simulator stopped early; see {folder / LOG}")
        return
    from fairflare.flare.deploy import run_deployed

    _clear(folder)  # what an earlier job has brought home comes again, and more
    where = {"env": env, **(deployment or {})}
    run_deployed(config, folder, watch=lambda text: err.print(escape(text), soft_wrap=True), **where)


def finished(result: Mapping[str, Any], title: str) -> dict[str, Any]:
    """The server's result with a sentence for each hospital whose numbers it has."""
    names, found = list(result["candidates"]), dict(result)
    weights = [result["weights"][name] for name in names]
    found["sites"] = {s: {**row, "answer": sentence(row, names, weights)} for s, row in result["sites"].items()}  # type: ignore[arg-type]  # it only looks through them
    few = not any(result["candidates"].values())
    return {"title": title, **found, "methods": names, "note": SEPARATELY if few else "", **facts()}


def _make_room(folder: Path, config: RunConfig, force: bool) -> None:
    if not content(folder):
        return
    first = first_entry(folder / AUDIT) if is_there(folder / AUDIT) else {}
    if first.get("config_sha256") == config.sha256() and not force:
        return
    if "join" not in first or not force:
        raise UserError(f"--out {folder}: holds something else; give another folder, or --force to replace a join")
    _clear(folder)


def _clear(folder: Path) -> None:
    for item in folder.iterdir():
        if OWN_FILES.fullmatch(item.name):
            shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def sheet(path: Path) -> tuple[str, Path]:
    """A hospital's own answer from the file that its site has kept, ``SITE.join.json``; writes a page beside it.

    Raises UserError: it is no such file.
    """
    kept = read_json(path)
    if not {"site", "together", "weights", "hospitals"} <= kept.keys():
        raise UserError(f"{path}: expected the file of a join that a site keeps, SITE.join.json")
    why = kept.get("refused")
    sites = {} if why else {kept["site"]: {key: kept[key] for key in ("n", "by", "candidates", "mix")}}
    size = next((one["new_hospital"]["n"] for one in kept["together"].values() if one), 0)
    refused = {kept["site"]: why} if why else {}
    result = {**kept, "candidates": kept["together"], "sites": sites, "refused": refused, "new_size": size}
    found = finished(json.loads(json.dumps(result)), f"{kept['site']}'s own sheet")
    target = path.with_suffix(".html")
    save_text(target, page(found))
    return (why or found["sites"][kept["site"]]["answer"]), target


def run_join(config: RunConfig, folder: Path, tell: Any = lambda name, finding: None) -> dict[str, Any]:
    """The join that ``config`` describes, in ``folder``, where it goes on if it was cut short.

    ``tell`` is called with a site and what preflight finds there.
    """
    at_site, at_server = new_credentials(config)
    home = folder / SITES
    with contextlib.ExitStack() as stack:
        sites: dict[str, Any] = {}
        for name in site_names(config):
            memory, own = home / f"{name}{SUFFIX}", partial(tell, name)
            sites[name] = Phases(config, name, memory, tell=own, credentials=at_site, ledger=home / name)
            stack.callback(sites[name].close)
        return Join(config, InProcess(sites), folder, "local", at_server).run()
