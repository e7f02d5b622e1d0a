# SPDX-License-Identifier: Apache-2.0
"""``fairflare forget``: a hospital leaves, and the model becomes the one of a run that never had it.

Nothing is taken out of a model: it is trained again without the site. The audit log of the run says from where. A run
keeps its checkpoint of the round before a site first passed preflight (``JOINED``); where the sites that stay start
every round from what they are sent alone, training goes on from there, else from the initial model. Either way the
result has the bits of a run that never had the site. No run keeps a site's sums or updates, so exact regression is
fitted anew: to the same maximum, in a few passes over the patients of those who stay.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.signals import command
from fairflare.engine import files
from fairflare.engine.audit import AuditLog, Entries
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.engine.files import AUDIT, CHECKPOINT, CONFIG, JOINED, SUFFIX, is_there, read_json
from fairflare.engine.history import RunHistory, alike, left_behind, standing_rounds
from fairflare.engine.setup.assembly import header, save_config, site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites, run_local, starts_anew
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.weights import find
from fairflare.privacy.log_files import remove_log
from fairflare.report import REPORT
from fairflare.report.write import verified_run, write_report
from fairflare.studies import display
from fairflare.studies.folders import created, is_complete, is_run, opened, refuse_existing, require_run
from fairflare.studies.study import leaving_out

STATEMENT = "statement"
CHAIN = ("seq", "time", "event", "prev", "hash")
REMAINS = (
    "models that were handed out before, copies of them, and predictions made with them",
    "the folder of the run with the site, its audit log and report, until somebody deletes them",
    "how the task is described: which columns, categories and classes there are, and how columns are scaled",
    "which settings were chosen while the site took part, and what people learned from results with it",
)
Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What it takes to forget a site."""

    folder: Path
    """Of the run that had the site."""
    site: str
    config: RunConfig
    """Of the run without it."""
    state: Checkpoint | None
    """Where training goes on, of a round before the site joined; None: at the initial model."""
    why: str
    rounds: int
    stay: tuple[str, ...]
    """The sites that are trained on again."""
    exact: bool
    """Whether the method's result depends on nothing but the patients: exact regression."""
    took_part: tuple[int, ...]
    """Rounds in which the site's update was accepted."""
    model: str
    """Hash of the run's final model; ``head``: of the log's last line."""
    head: str

    @property
    def first(self) -> int:
        return 1 + (self.state.round if self.state else 0)

    def cost(self) -> str:
        rounds, again = self.rounds - self.first + 1, f"rounds {self.first} to {self.rounds}"
        what = f"{rounds} rounds ({again}) at {len(self.stay)} sites ({', '.join(self.stay)})"
        return f"forgetting {self.site} takes {what}; {self.why}"


def plan(folder: Path, site: str) -> Plan:
    """Read what the run's folder says; nothing is written.

    Raises UserError: no complete run, no such site, too few sites stay, or the sites' data are not on this machine.
    """
    require_run(folder)
    with opened(folder):
        run_history, entries = verified_run(folder)
        described = read_json(folder / CONFIG)
        config = RunConfig.from_json(described)
        if not run_history.completed:
            raise UserError(f"{folder}: the run is not complete; {command('resume', folder)} goes on")
        if run_history.segment is not run_history.start:
            raise UserError(f"{folder}: has several segments; forget the site from a run of one")
        if described.get("env") not in ("local", "sim") and "site_names" in config.options:
            again = f"the same `fairflare run` with --set leave_out={site}"
            raise UserError(f"{folder}: its sites' data are elsewhere; {again} trains without the site")
        names = site_names(config)
        if site not in names or site == config.leave_out:
            raise UserError(f"--site: expected a site that the run trained on ({', '.join(names)}), got {site}")
        if config.leave_out:
            raise UserError(f"{folder}: is without {config.leave_out}; forget both from the run that had them")
        find(config.init_from, folder)
        parts = build_parts(config)
        parts.task.check_data()
        state, why = _state_before(folder, site, config, parts, run_history, entries)
    return Plan(
        folder=folder,
        site=site,
        config=leaving_out(config, names)[site],
        state=state,
        why=why,
        rounds=config.training.rounds,
        stay=tuple(name for name in names if name != site),
        exact=parts.trainer.sums_only,
        took_part=tuple(sorted({e["round"] for e in entries if e["event"] == "round" and site in e["accepted"]})),
        model=run_history.finish["model_sha256"],
        head=entries.hashes[-1],
    )


def _state_before(
    folder: Path, site: str, config: RunConfig, parts: Parts, run_history: RunHistory, entries: Entries
) -> tuple[Checkpoint | None, str]:
    """The state from which training without ``site`` goes on, and why it is that one."""
    if site in run_history.start["declared"]:
        return None, "it was there from the start"
    if site not in run_history.counted:
        return None, "its update was never accepted; the run is repeated without it"
    if not starts_anew(config, parts):
        return None, f"sites keep something from round to round under {config.method}, which has not been kept"
    before: Mapping[str, Any] = {}
    for line in standing_rounds(entries):
        if site in line["declared"]:
            joined = line["round"]
            break
        before = line
    path = folder / JOINED / f"{joined - 1}{SUFFIX}"
    if not is_there(path):
        return None, f"no state of round {joined - 1}, before it joined, has been kept"
    state = load_checkpoint(path)
    left = {key: before.get(key) for key in left_behind(state)}
    if state.round != joined - 1 or not alike(left, left_behind(state)):
        raise UserError(f"{JOINED}/{path.name}: is not what {AUDIT} says of round {joined - 1}")
    return state, f"it joined after round {state.round}, of which the state has been kept"


def forget(chosen: Plan, out: Path, *, force: bool = False) -> Json:
    """Train without the site into ``out``; write and return the statement for it. What was cut short goes on.

    Raises UserError: the folder holds something else; RunFailed: the federation stopped.
    """
    site, config = chosen.site, chosen.config
    with created(out), opened(out):
        begun = is_run(out) and RunConfig.from_json(read_json(out / CONFIG)) == config
        if not begun:
            refuse_existing(out, force)
        if not begun or not is_complete(out):
            parts = build_parts(config)
            if chosen.state is not None and not is_there(out / CHECKPOINT):
                remove_log(out / AUDIT)  # killed while the rounds before were written
            if not is_there(out / AUDIT):
                find(config.init_from, chosen.folder)
                save_config(config, parts, out, "local")
                if chosen.state is not None:
                    _begin_at(chosen, chosen.state, out)
            with LocalSites(config, out, parts, without=site) as sites:
                title = f"{config.method} on {config.task}:{config.preset} without {site}"
                with display.progress(title, chosen.rounds, len(chosen.stay), headline=parts.task.headline) as shown:
                    run_local(config, out, [shown], shown.preparing, parts, shown.found, sites)
        after = write_report(out)
        said = _statement(chosen, read_json(chosen.folder / REPORT), after, out)
        files.save_text(out / f"{STATEMENT}.json", files.json_text(said))
        files.save_text(out / f"{STATEMENT}.md", _in_words(said))
    return said


def _begin_at(chosen: Plan, state: Checkpoint, out: Path) -> None:
    """A log with the rounds before the site joined, as the run's own says them, and their checkpoint."""
    _, entries = verified_run(chosen.folder)
    scores = {entry["round"]: entry for entry in entries if entry["event"] == "scores"}
    log = AuditLog(out / AUDIT)
    start = {**entries[0], **header(chosen.config, out)}
    start["sites"] = [name for name in start["sites"] if name != chosen.site]
    start["preflight"] = {name: said for name, said in start["preflight"].items() if name != chosen.site}
    _append(log, chosen.site, start)
    for round in standing_rounds(entries, state.round):
        line = _append(log, chosen.site, round)
        if round["round"] in scores:
            _append(log, chosen.site, scores[round["round"]])
    save_checkpoint(out / CHECKPOINT, dataclasses.replace(state, entry=line["hash"]))


def _append(log: AuditLog, site: str, line: Mapping[str, Any]) -> Json:
    """The line of another log as the next one of ``log``, without what it says of ``site``."""
    content = {key: value for key, value in line.items() if key not in CHAIN}
    for key in {"rejected", "site_seconds"} & content.keys():
        content[key] = {name: value for name, value in content[key].items() if name != site}
    return log.append(line["event"], **content)


def _statement(chosen: Plan, before: Json, after: Json, out: Path) -> Json:
    metric = after["fairness"]["metric"]
    both = {"before": before, "after": after}
    rows = {name: {when: _score(one, name, metric) for when, one in both.items()} for name in chosen.stay}
    entries = Entries(out / AUDIT)
    how = "trained again from the initial model, without the site"
    if chosen.exact:
        how = "exact regression, fitted again without the site: the fit that the patients of the others give"
    elif chosen.state is not None:
        how = f"trained again from the state after round {chosen.state.round}, which the site had no part in"
    return {
        "site": chosen.site,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "run": {"method": after["method"], "task": after["task"], "seed": after["seed"], "rounds": chosen.rounds},
        "removed": {"rounds": list(chosen.took_part), "n_train": before["sites"][chosen.site]["n_train"]},
        "how": how,
        "why": chosen.why,
        "rounds_run": [chosen.first, chosen.rounds],
        "model_before": chosen.model,
        "model_after": next(e["model_sha256"] for e in reversed(entries) if e["event"] == "finish"),
        "log_before": chosen.head,
        "log_after": entries.hashes[-1],
        "metric": metric,
        "stay": rows,
        "cannot_be_undone": list(REMAINS),
    }


def _score(report: Json, site: str, metric: str) -> Json:
    """A site's test score, with its interval over test patients where it has one."""
    row = report["sites"].get(site) or {}
    ends = (row.get("intervals") or {}).get(metric) or {}
    return {"value": (row.get("metrics") or {}).get(metric), "low": ends.get("low"), "high": ends.get("high")}


def told(score: Json) -> str:
    """A score with its interval, in words."""
    if score["value"] is None:
        return "not told"
    return f"{score['value']:.3f}" + ("" if score["low"] is None else f" ({score['low']:.3f} to {score['high']:.3f})")


def _in_words(said: Json) -> str:
    run, removed = said["run"], said["removed"]
    rounds = ", ".join(map(str, removed["rounds"])) or "none"
    rows = "\n".join(f"| {site} | {told(o['before'])} | {told(o['after'])} |" for site, o in said["stay"].items())
    how = f"{said['how']} (rounds {said['rounds_run'][0]} to {said['rounds_run'][1]}; {said['why']})"
    undone = "\n".join(f"- {one}" for one in said["cannot_be_undone"])
    return f"""# Statement for {said["site"]}

{said["date"]}. Run: {run["method"]} on {run["task"]}, seed {run["seed"]}, {run["rounds"]} rounds.

- **Removed:** the updates of {removed["n_train"]} training patients, in rounds {rounds}.
- **How:** {how}. The site was not asked for anything, and its data were not read.
- **Model before:** SHA-256 {said["model_before"]}; its audit log ends in {said["log_before"]}.
- **Model now:** SHA-256 {said["model_after"]}; its audit log ends in {said["log_after"]}.

**What cannot be undone:**

{undone}

**Those who stay** ({said["metric"]} on each site's test split, 95 % interval over its test patients):

| site | before | now |
|---|---|---|
{rows}
"""
