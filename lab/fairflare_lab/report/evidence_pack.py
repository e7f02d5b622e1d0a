# SPDX-License-Identifier: Apache-2.0
"""What a run can prove: values of its report and log by pointer, and sentences and rows that are made of several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fairflare.engine.evaluation import LEVEL
from fairflare.report.benefit import GAINS, LOSES
from fairflare.report.personal import as_used
from fairflare.report.values import environment, listing, number, plural, size, stop, text

Json = dict[str, Any]
Said = tuple[str, list[str]] | None
"""A text and the pointers that it is made of; None: the run does not say."""
CALIBRATION = {"calibration": "calibration in the large", "slope": "calibration slope"}
CALIBRATION |= {"ece": "expected calibration error"}
SPREAD = {"mean": "mean over hospitals", "std": "standard deviation over hospitals (ddof 0)"}
SPREAD |= {"gap": "best minus worst hospital"}
HERE = Path(__file__).parent / "evidence"


@cache
def table(name: str) -> dict[str, Any]:
    """A file of the folder ``evidence``."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        report, entries, config: of ``report.json``, the lines of the audit log, and ``config.json`` without paths.
        leaves: what its method may send, from the schema of what travels: name, meaning and exchanges.
        files: name -> SHA-256 and bytes of the files that lie in the pack.
        model: the file of the model that was evaluated: name, sha256 and bytes; None: it is not in the folder.
    """

    report: Json
    entries: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    leaves: Sequence[Mapping[str, str]]
    files: Mapping[str, tuple[str, int]]
    model: tuple[str, str, int] | None

    @property
    def detail(self) -> Json:
        found: Json = self.report["detail"]
        return found

    def value(self, token: str) -> Said:
        if token.startswith("@"):
            return SENTENCES[token[1:]](self) if token[1:] in SENTENCES else self._sentence(token[1:])
        where, colon, path = token.rpartition(":")
        if where == "config":
            content, base = self.config, "config.json#"
        elif colon:
            if where not in self.noted.last:
                return None
            line, content = self.noted.last[where]
            base = f"audit.jsonl:{line}#"
        else:
            content, base = self.detail, "report.json#/detail"
        found: Any = content
        for step in path.split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        return None if found in (None, "", [], {}) else (_words(found), [f"{base}/{path}"])

    def _sentence(self, name: str) -> Said:
        """A text of the table of items, and the places that it is made of."""
        absent = dict.fromkeys(("learned", "after", "groups", "preflight"))  # in reports of earlier versions
        given = {**absent, **self.detail, "run": self, "where": table("items.yaml")["where"]}
        made = environment().overlay(autoescape=False)
        ((where, text),) = table("items.yaml")["sentences"][name].items()
        words = made.from_string(text).render(given)
        places = made.from_string(where).render(given).split() if words else ()
        return (words, [at(place[1:]) if place.startswith("/") else place for place in places]) if words else None

    @cached_property
    def noted(self) -> Noted:
        """What the documents say of the log, which is read once."""
        return Noted(self.entries)


class Noted:
    """What one look through a log gives.

    Attributes:
        last: event -> the place of its last entry, from 1 on, and that entry.
        rounds: places of the first and the last round, and how many there are.
        incidents: place, event, site and code of each rejection.
        arrivals: site -> places of the first and the last round that accepted its update, bytes, names of its numbers.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self.last: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self.rounds = 0, 0, 0
        self.incidents: list[tuple[int, str, str, str]] = []
        self.arrivals: dict[str, tuple[int, int, int, set[str]]] = {}
        for place, entry in enumerate(entries, 1):
            event = entry["event"]
            self.last[event] = place, entry
            self.incidents += [(place, event, s, why["code"]) for s, why in (entry.get("rejected") or {}).items()]
            if event == "round":
                self.rounds = self.rounds[0] or place, place, self.rounds[2] + 1
                self._note_answers(place, entry)

    def _note_answers(self, place: int, entry: Mapping[str, Any]) -> None:
        sent = entry.get("bytes") or {}
        for site, answer in entry["accepted"].items():
            first, _, up, numbers = self.arrivals.get(site, (place, place, 0, set()))
            up += (sent.get(site) or {}).get("up") or 0
            self.arrivals[site] = first, place, up, numbers.union(answer.get("scalars") or ())


def _words(found: Any) -> str:
    if isinstance(found, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in found.items())
    if isinstance(found, list):
        return listing(map(_words, found))
    return found if isinstance(found, str) else json.dumps(found)


def at(*steps: Any) -> str:
    """A pointer into the report's detail: one path, or steps whose names may hold a slash."""
    path = steps if len(steps) == 1 else [str(step).replace("~", "~0").replace("/", "~1") for step in steps]
    return "report.json#/detail/" + "/".join(path)


def outcome(run: Run, name: Any = None) -> str:
    """A class in words: "died = 1" where the table's own column has no name but 1."""
    task = run.detail["task"]
    event = str((run.detail.get("clinical") or {}).get("event") if name is None else name)
    column = (task.get("options") or {}).get("label")
    named = column and (name is None or event in (task.get("classes") or ()))
    return f"{column} = {event}" if named else event


def group(run: Run, name: str) -> str:
    by = (run.detail.get("groups") or {}).get("by", "label")
    return outcome(run, name) if by == "label" else f"{by.replace('+', ' and ')}: {name}"


def _site_rows(run: Run) -> Iterator[tuple[str, Json, str]]:
    """Site, its row as the sites use the model, and where that stands in the report."""
    own = (run.detail.get("personal") or {}).get("rows") or []
    places = {row["site"]: ("personal/rows", i) for i, row in enumerate(own) if row.get("personal") is not None}
    shown = as_used(run.detail)
    for i, row in enumerate(shown["sites"]):
        room, place = places.get(row["site"], ("sites", i)) if shown is not run.detail else ("sites", i)
        yield row["site"], row, f"report.json#/detail/{room}/{place}"


def _label(run: Run, metric: str) -> str:
    return str((run.detail["metrics"].get(metric) or {}).get("label") or metric)


def _row(metric: str, slice: str, value: Any, source: str, ends: Mapping[str, Any] | None = None, **more: Any) -> Json:
    interval = {end: number((ends or {}).get(end)) for end in ("low", "high")}
    return {"metric": metric, "slice": slice, "value": number(value), **interval, **more, "source": source}


def performance(run: Run) -> list[Json]:
    """Every metric of every site's test split, with its interval where there is one, and the headline's mean."""
    rows = []
    for site, row, place in _site_rows(run):
        for metric, value in (row.get("test") or {}).items():
            ends = (row.get("intervals") or {}).get(metric)
            if number(value) is not None and "loss" not in metric.split("_")[:1] and metric != "train_loss":
                at_site = _label(run, metric), f"hospital {site}", value, f"{place}/test/{metric}"
                rows.append(_row(*at_site, ends, n=row.get("n_test"), level=LEVEL if ends else None))
    return rows


def fairness(run: Run) -> list[Json]:
    """How evenly the headline serves sites and groups, and the benefit of joining."""
    found, shown = run.detail, as_used(run.detail)
    label, fair = _label(run, found["headline"]), shown["fairness"]
    base = "personal/personal" if shown is not found else "fairness"
    rows = [_row(label, words, fair[key], at(f"{base}/{key}")) for key, words in SPREAD.items()]
    for key in ("worst", "best"):
        rows.append(_row(label, f"{key} hospital: {fair[key]['site']}", fair[key]["value"], at(f"{base}/{key}/value")))
    groups = shown.get("groups") or {}
    room = ("groups",) if shown is found else ("personal", "groups")
    label = _label(run, groups.get("metric") or found["headline"])
    for i, row in enumerate(groups.get("rows") or ()):
        place, who = at(*room, "rows", i, "value"), f"group {group(run, row['group'])}"
        rows.append(_row(label, who, row["value"], place, n=row["n"]))
    for metric, i, row in _benefits(run):
        place = at("benefit", "metrics", metric, "sites", i, "benefit")
        more = {"n": row["n"], "level": found["benefit"]["level"], "verdict": row["verdict"]}
        told = f"benefit of joining in {_label(run, metric)}"
        rows.append(_row(told, f"hospital {row['site']}", row["benefit"], place, row, **more))
    return [row for row in rows if row["value"] is not None]


def _benefits(run: Run, rows: str = "sites") -> Iterator[tuple[str, int, Json]]:
    for metric, found in ((run.detail.get("benefit") or {}).get("metrics") or {}).items():
        yield from ((metric, i, row) for i, row in enumerate(found[rows]))


def calibration(run: Run) -> list[Json]:
    """Calibration of the predicted risk at every site, where the task has one."""
    found, rows = run.detail.get("clinical") or {}, []
    for i, (site, used) in enumerate(_in_use(run)):
        for key, words in CALIBRATION.items():
            if (one := used.get(key)) and number(one["value"]) is not None:
                place, more = at("clinical", "rows", i, found["in_use"], key, "value"), {"n": used["n"], "level": LEVEL}
                step = f" after {found['step']}" if found["in_use"] == "after" else ""
                rows.append(_row(f"{words}{step}", f"hospital {site}", one["value"], place, one, **more))
    return rows


def harms(run: Run) -> list[Json]:
    """Who may be harmed, for CycloneDX: a row per hospital and group that the run has numbers of."""
    found: dict[str, Json] = {}
    for rows in ("sites", "groups"):
        for metric, i, row in _benefits(run, rows):
            who = f"patients of {row['site']}" + (f", {group(run, row['group'])}" if "group" in row else "")
            one = found.setdefault(who, {"groupAtRisk": who, "benefits": [], "harms": [], "source": []})
            values = f"after joining {text(row['federated'])}, alone {text(row['solo'])}"
            words = f"{_label(run, metric)} {values}: {row['verdict'] or 'no answer'}"
            told = words if row["verdict"] in (GAINS, LOSES) else f"not excluded: {words}"
            one["benefits" if row["verdict"] == GAINS else "harms"].append(told)
            one["source"].append(at("benefit", "metrics", metric, rows, i))
    worst = SENTENCES["worst"](run)
    if not found and worst:
        site = as_used(run.detail)["fairness"]["worst"]["site"]
        return [{"groupAtRisk": f"patients of {site}", "harms": worst[0], "source": worst[1][0]}]
    parts = [{key: one for key, one in row.items() if one} for row in found.values()]
    return [{key: "; ".join(one) if isinstance(one, list) else one for key, one in row.items()} for row in parts]


def datasets(run: Run) -> list[Json]:
    """The training data of each site, for CycloneDX; they are at the hospital and in no file of the pack."""
    rows = []
    for i, row in enumerate(run.detail["sites"]):
        if row.get("n_examples"):
            words = f"{plural(row['n_examples'], 'example')}, {row.get('description') or 'held at the hospital'}"
            one = {"type": "dataset", "name": f"training data of {row['site']}", "description": stop(words)}
            rows.append({**one, "source": at("sites", i, "n_examples")})
    return rows


RESULTS: Mapping[str, Callable[[Run], list[Json]]] = {
    one.__name__: one for one in (performance, fairness, calibration, harms, datasets)
}


def _in_use(run: Run) -> list[tuple[str, Json]]:
    """Site and calibration of the model that it uses."""
    found = run.detail.get("clinical") or {}
    return [(row["site"], row.get(found["in_use"]) or {}) for row in found.get("rows") or ()]


def _outcome(run: Run) -> Said:
    classes = run.detail["task"].get("classes") or []
    if (run.detail.get("clinical") or {}).get("event") is not None:
        return f"Predicted risk of: {outcome(run)}.", [at("clinical/event"), at("task/classes")]
    return (f"One of: {listing(outcome(run, name) for name in classes)}.", [at("task/classes")]) if classes else None


def _tested(run: Run) -> Said:
    line, entry = run.noted.last.get("evaluation", (0, {"sites": {}}))
    away = [row["site"] for row in run.detail["sites"] if row["site"] not in entry["sites"]]
    words = f"Each hospital scored the model on its own test split; intervals are of {LEVEL:.0%} over its patients."
    words += f" Not evaluated: {listing(away)}." if away else ""
    return (words, [f"audit.jsonl:{line}#/sites"]) if line else None


def _groups(run: Run) -> Said:
    found = as_used(run.detail).get("groups") or {}
    known = (row for row in found.get("rows") or () if row["value"] is not None)
    rows = (f"{group(run, row['group'])} {row['n']:g} test patients, {text(row['value'])}" for row in known)
    room, words = "groups/rows" if found is run.detail.get("groups") else "personal/groups/rows", "; ".join(rows)
    return (f"{_label(run, found['metric'])} by group: {words}.", [at(room)]) if words else None


def _events(run: Run) -> Said:
    known = ((site, one) for site, one in _in_use(run) if one.get("positives") is not None)
    words = "; ".join(f"{site} {one['positives']:g} of {one['n']:g}" for site, one in known)
    return (f"{outcome(run)} in the test split: {words}.", [at("clinical/rows")]) if words else None


def _worst(run: Run) -> Said:
    shown = as_used(run.detail)
    fair, base = shown["fairness"], "fairness" if shown is run.detail else "personal/personal"
    if fair["mean"] is None:
        return None
    ends = ", ".join(f"{key} hospital {fair[key]['site']} ({text(fair[key]['value'])})" for key in ("worst", "best"))
    words = f"{_label(run, run.detail['headline'])}: {ends}, mean {text(fair['mean'])}."
    return words, [at(f"{base}/{key}") for key in ("worst", "best", "mean")]


def _measures(run: Run) -> Said:
    used = {metric for _, row, _ in _site_rows(run) for metric in row.get("test") or ()}
    told = (found for metric, found in run.detail["metrics"].items() if metric in used)
    words = "; ".join(one["label"] + (f" ({one['meaning']})" if one.get("meaning") else "") for one in told)
    return (f"{words}.", [at("metrics")]) if words else None


def _warnings(run: Run) -> Said:
    found, learned = run.detail["caveats"], run.value("@learned")
    if learned and not run.detail["learned"]["learned"]:
        found = [learned[0], *found]
    return (" ".join(map(stop, found)), [*(learned[1] if learned else ()), at("caveats")]) if found else None


def _losing(run: Run) -> Said:
    rows = [(m, r) for kind in ("sites", "groups") for m, _, r in _benefits(run, kind) if r["verdict"] == LOSES]
    if not run.detail.get("benefit"):
        return None
    who = [f"{r['site']}{', ' + group(run, r['group']) if 'group' in r else ''} in {_label(run, m)}" for m, r in rows]
    words = "; ".join(f"{one} ({text(r['benefit'], sign='+')})" for one, (_, r) in zip(who, rows, strict=True))
    none = "None whose interval lies below zero; this is no proof that none is harmed."
    return f"Loses against its own model: {words}." if words else none, [at("benefit/metrics")]


def _incidents(run: Run) -> Said:
    found = run.noted.incidents
    rows = (f"line {place}, {event}: {site} ({code})" for place, event, site, code in found)
    if not found:
        return "The log names no refused and no missing answer.", [at("contributions")]
    return "; ".join(rows) + ".", [f"audit.jsonl:{i}#/rejected" for i in dict.fromkeys(place for place, *_ in found)]


def _states(run: Run) -> Said:
    first, last, count = run.noted.rounds
    kept = f"the folder keeps {run.model[0] + ', ' if run.model else 'not '}the evaluated one"
    words = f"The log has the hash of the model after each round ({count}); of these models {kept}."
    return (words, [f"audit.jsonl:{i}#/model_sha256" for i in (first, last)]) if count else None


SENTENCES: Mapping[str, Callable[[Run], Said]] = {
    name[1:]: one
    for name, one in list(globals().items())
    if name.startswith("_") and getattr(one, "__annotations__", {}).get("return") == "Said"
}
"""What ``{@name}`` stands for in the table of items, where no text of the table says it."""


def arrivals(run: Run) -> list[Json]:
    """What the log has of each site: from which lines, how many bytes, which numbers, how often it was refused."""
    rows = []
    for site in run.detail["sites"]:
        name = site["site"]
        first, last, up, numbers = run.noted.arrivals.get(name, (0, 0, 0, set[str]()))
        where = f"audit.jsonl:{first} to {last}#/accepted/{name}" if first else ""
        names = ", ".join(sorted(numbers)) or "none"
        found = {"bytes": size(up) if up else "not recorded", "numbers": names, "source": where}
        rows.append({"site": name, "accepted": site["accepted"], "rejected": site["rejected"], **found})
    return rows
