# SPDX-License-Identifier: Apache-2.0
"""Simulated free riders: the same federation with a site that sends something else than what it has learnt.

Only for runs in one process on this machine: what a rider sends is put in place of its update between the sites and
the loop, and everything else, its data and the numbers that it reports, is honest: the rider that is hardest to find. A
run that was cut short starts anew, as ``resume`` knows no riders; finished ones are reused.

A detector sees what the server sees: the updates' norms and directions round by round, the weights, the rule's notes.
None of them proves anything: a site with little or unusual data may look like a rider, which is what the false-positive
rate is for.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.schema import Answer, Instruction, Transport
from fairflare.core.seeds import derive
from fairflare.core.types import StateDict
from fairflare.engine.files import is_file, read_json, save_json
from fairflare.engine.setup.assembly import save_config, site_names
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.report.fairness import mean_ci
from fairflare.report.write import verify_run, write_report
from fairflare.studies import display
from fairflare.studies.folders import RIDER, RIDERS, fresh_folder, is_run
from fairflare.studies.labels import folder_name
from fairflare.studies.study import Study, facts
from fairflare_lab.report.table_files import Cell, Column, Row, Table, write_tables
from fairflare_lab.studies.contribution import Question

FIRST_STEP = 0.01
"""Of the model's norm: as long as noise is in the first round, when there has been no global step."""
Json = dict[str, Any]


def measure_riders(
    question: Question, kinds: Sequence[str], folder: Path, *, force: bool = False, workers: int | None = 1
) -> Json:
    """Run every method with every kind of rider (of ``KINDS``, "none" in any case) and every seed into a folder below
    ``folder``, and count whom detectors mark.

    Returns task, metric, seeds; methods: label, kinds: kind -> score (mean over sites, over seeds), detectors
    (``rates``) and runs (seed, rider, marked); ``riders.json`` has the same.

    Raises UserError: fewer than three sites, an unknown kind, secure sums, or a task that has no rider of the kind.
    """
    kinds = ["none", *(kind for kind in dict.fromkeys(kinds) if kind != "none")]
    labels = (question.method, *question.others)
    every = product(labels, kinds, question.seeds)
    runs = {_name(label, kind, seed): _config(question, label, kind, seed) for label, kind, seed in every}
    one = partial(ride_once, force=force)
    own = re.compile(r".*-seed\d+")
    with Study(runs).finished(folder, one, workers=workers, is_part=lambda name: bool(own.fullmatch(name))) as found:
        methods = [_method(label, kinds, question.seeds, found) for label in labels]
        first = next(iter(found.values()))
        result = {"task": first["task"], "metric": first["metric"], "seeds": list(question.seeds), "methods": methods}
        save_json(folder / RIDERS, result)
        title = f"Free riders on {result['task']}"
        write_tables(folder, Path(RIDERS).stem, title, rider_tables(result), facts=facts(), with_json=False)
    return result


def ride_once(config: RunConfig, folder: Path, *, force: bool = False, workers: int | None = 1) -> Json:
    """One run; kind and seed are in the folder's name. A finished run of the very same configuration is reused.

    Returns kind, config_sha256, finished, task, metric, score, sites, rider (None for "none") and ``marked``.
    """
    kind = folder.name.split("-")[-2]
    about = {"kind": kind, "config_sha256": config.sha256()}
    if not force and is_run(folder) and is_file(folder / RIDER):
        kept = read_json(folder / RIDER)
        if kept.get("finished") and all(kept.get(key) == value for key, value in about.items()):
            verify_run(folder)
            display.note(f"{folder.name}: finished before, reused")
            return kept
    parts = build_parts(config)
    parts.task.check_data()
    names = site_names(config)
    rider = None if kind == "none" else rider_of(config.seed, names)
    with fresh_folder(folder, force=True):
        save_json(folder / RIDER, {**about, "finished": False})  # from here on no other command goes on with it
        save_config(config, parts, folder, "local")
        with LocalSites(config, folder, parts) as sites:
            riding = Riding(sites.transport, rider if kind != "repeated" else None, kind, config.seed, parts.trainable)
            sites.transport = riding
            run_local(config, folder, parts=parts, sites=sites)
        run = write_report(folder)["detail"]
        found = {**about, "finished": True, "task": f"{config.task}:{config.preset}", "metric": run["headline"]}
        found |= {"score": run["fairness"]["mean"], "sites": names, "rider": rider, "marked": marked(run, riding.seen)}
        save_json(folder / RIDER, found)
    return found


def rider_of(seed: int, sites: Sequence[str]) -> str:
    """The site that rides in the runs of a seed; another seed, another site."""
    return sites[derive(seed, "rider") % len(sites)]


class Riding:
    """A transport in which one site's updates are replaced, and which notes what the server sees of all of them."""

    def __init__(self, inner: Transport, rider: str | None, kind: str, seed: int, trainable: frozenset[str]) -> None:
        """``rider``: None where all updates are the sites' own; ``trainable``: what norms and directions are of."""
        self._inner, self._rider, self._kind, self._seed = inner, rider, kind, seed
        self._trainable = sorted(trainable)
        self._before: StateDict | None = None
        self.seen: list[Json] = []
        """Per round norms, nearest and last_step, see ``marked``."""

    def sites(self) -> list[str]:
        return self._inner.sites()

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """The answers; in a round's training the rider's update is another one."""
        told = next(iter(instructions.values()), None)
        if told is None or told.task != "train":
            yield from self._inner.exchange(instructions)
            return
        answers = sorted(self._inner.exchange(instructions), key=lambda answer: answer.site)
        step = self._step(told.model)
        rides = [answer.site == self._rider and not answer.error for answer in answers]
        answers = [self._ridden(a, answers, step, told) if rider else a for a, rider in zip(answers, rides)]
        self.seen.append(self._look({a.site: a.update for a in answers if not a.error}, step))
        yield from answers

    def _step(self, model: StateDict) -> StateDict | None:
        """What the last round did to the model; None in the first one."""
        before, self._before = self._before, {key: value.clone() for key, value in model.items()}
        return None if before is None else {key: model[key] - before[key] for key in before}

    def _ridden(self, answer: Answer, answers: Sequence[Answer], step: StateDict | None, told: Instruction) -> Answer:
        own: Mapping[str, Tensor] = answer.update
        if self._kind == "zeros" or (self._kind == "stale" and step is None):
            update = {key: torch.zeros_like(own[key]) for key in own}
        elif self._kind == "stale" and step is not None:
            update = {key: step[key].to(own[key].dtype) for key in own}
        elif self._kind == "copied":
            other = next(one for one in answers if one.site != self._rider and not one.error)
            update = {key: other.update[key].clone() for key in own}
        else:
            update = self._noise(own, step, told)
        return dataclasses.replace(answer, update=update)

    def _noise(self, own: Mapping[str, Tensor], step: StateDict | None, told: Instruction) -> StateDict:
        """Gaussian in the trainable entries, as long as the last global step; zero in the others."""
        generator = torch.Generator().manual_seed(derive(self._seed, "rider", told.round.number))
        drawn = {key: torch.randn(own[key].shape, generator=generator) for key in self._trainable if key in own}
        length = _norm(told.model, drawn) * FIRST_STEP if step is None else _norm(step, drawn)
        scale = length / max(_norm(drawn, drawn), 1e-12)
        return {
            key: (drawn[key] * scale).to(own[key].dtype) if key in drawn else torch.zeros_like(own[key]) for key in own
        }

    def _look(self, updates: Mapping[str, Mapping[str, Tensor]], step: StateDict | None) -> Json:
        flat = {site: _flat(update, self._trainable) for site, update in updates.items()}
        last = None if step is None else _flat(step, self._trainable)
        to_others = {site: [_cosine(own, flat[one]) for one in flat if one != site] for site, own in flat.items()}
        nearest = {site: max((c for c in each if c is not None), default=None) for site, each in to_others.items()}
        norms = {site: float(own.norm()) for site, own in flat.items()}
        steps = {site: None if last is None else _cosine(own, last) for site, own in flat.items()}
        return {"norms": norms, "nearest": nearest, "last_step": steps}


def _config(question: Question, label: str, kind: str, seed: int) -> RunConfig:
    if kind not in KINDS:
        raise UserError(f"--kinds: expected {', '.join(KINDS)}, got {kind[:40]!r}")
    config = question.config(label, seed)
    names = site_names(config)
    if len(names) < 3:
        raise UserError(f"riders: expected at least 3 sites, got {len(names)}")
    if config.secure_sum != "none":
        raise UserError("secure_sum: a server that sees sums alone sees no single update; expected none")
    if config.options.get("free_rider"):
        raise UserError("free_rider: is what this command varies; do not set it")
    if kind != "repeated":
        return config
    if "free_rider" not in config.options:
        raise UserError(f"--kinds: task {config.task} has no site that repeats one image; leave out 'repeated'")
    number = names.index(rider_of(seed, names)) + 1
    return question.config(label, seed, {"task.free_rider": str(number)})


def _method(label: str, kinds: Sequence[str], seeds: Sequence[int], found: Mapping[str, Any]) -> Json:
    runs = {kind: [found[_name(label, kind, seed)] for seed in seeds] for kind in kinds}
    rated = {}
    for kind, some in runs.items():
        each = [{"seed": seed, **run} for seed, run in zip(seeds, some)]
        rated[kind] = {"score": mean_ci(run["score"] for run in some), "detectors": rates(some), "runs": each}
    return {"label": label, "kinds": rated}


def _name(label: str, kind: str, seed: int) -> str:
    return f"{folder_name(label)}-{kind}-seed{seed}"


def _flat(update: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """float64 (P,): the trainable entries, in the order of their names."""
    return torch.cat([update[key].detach().double().flatten() for key in names if key in update])


def _norm(update: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(float(update[key].double().square().sum()) for key in sorted(like)))


def _cosine(a: Tensor, b: Tensor) -> float | None:
    """None where either is zero or not finite."""
    lengths = float(a.norm()) * float(b.norm())
    return float(a @ b) / lengths if lengths > 0 and math.isfinite(lengths) else None


DETECTORS = {
    "rule": "the method's own note marks it (FedCE's free-rider score)",
    "weight": "its mean weight is below a third of its share of the examples",
    "norm": "its updates' norm is zero, or far from the other sites' (3.5 robust standard deviations of the log)",
    "copy": "its updates point where another site's do (median cosine above .99)",
    "stale": "its updates point where the last global step went (median cosine above .99)",
    "gate": "more than half of its updates were rejected",
}
LOWERED, FAR, ALIKE = 1 / 3, 3.5, 0.99
KINDS = {
    "none": "nobody rides",
    "zeros": "the rider sends an update of zeros",
    "noise": "the rider sends Gaussian noise, as long as the last global step",
    "stale": "the rider sends the last global step again",
    "copied": "the rider sends what another site sends",
    "repeated": "the rider trains with one image of its own, again and again",
}


def marked(run: Mapping[str, Any], seen: Sequence[Mapping[str, Any]]) -> dict[str, list[str] | None]:
    """Detector -> the sites that it marks in one run; None for "rule" where the method has no such note.

    ``run``: its summary (the "detail" of report.json). ``seen``: per round norms, nearest (largest cosine to another
    site's update) and last_step (cosine to the last global step), site -> number or None.
    """
    rows = run["sites"]
    weighed = [row for row in rows if row["weight_mean"] is not None and row["data_share"]]
    notes = [note for note in run.get("notes") or () if note.get("mark_above")]
    named = {row["name"] for note in notes for row in note.get("rows") or () if row.get("marked")}
    return {
        "rule": sorted(named) if notes else None,
        "weight": [row["site"] for row in weighed if row["weight_mean"] < LOWERED * row["data_share"]],
        "norm": _unusual(seen),
        "copy": [site for site, value in _medians(seen, "nearest").items() if value > ALIKE],
        "stale": [site for site, value in _medians(seen, "last_step").items() if value > ALIKE],
        "gate": [row["site"] for row in rows if 2 * row["rejected"] > row["expected"]],
    }


def rates(runs: Sequence[Mapping[str, Any]]) -> Json:
    """Detector -> how often it "found" the rider and "accused" others over runs of one method and kind, as ``rate``."""
    return {name: _rates(name, runs) for name in DETECTORS}


def rate(count: int, of: int) -> Json:
    """Count, of, rate, and Wilson's 95 % interval low and high; None where there was nothing to find."""
    from scipy.stats import binomtest

    if not of:
        return {"count": 0, "of": 0, "rate": None, "low": None, "high": None}
    interval = binomtest(count, of).proportion_ci(method="wilson")
    return {"count": count, "of": of, "rate": count / of, "low": float(interval.low), "high": float(interval.high)}


def rider_tables(found: Mapping[str, Any]) -> list[Table]:
    return [_table(place, method) for place, method in enumerate(found["methods"], 1)]


def _rates(detector: str, runs: Sequence[Mapping[str, Any]]) -> Json:
    runs = [run for run in runs if run["marked"][detector] is not None]
    riding = [run for run in runs if run["rider"] is not None]
    found = sum(run["rider"] in run["marked"][detector] for run in riding)
    honest = [(run, site) for run in runs for site in run["sites"] if site != run["rider"]]
    accused = sum(site in run["marked"][detector] for run, site in honest)
    return {"found": rate(found, len(riding)), "accused": rate(accused, len(honest))}


def _table(place: int, method: Mapping[str, Any]) -> Table:
    names = product(DETECTORS, ("found", "accused"))
    columns = [Column(f"{name}-{what}", what.capitalize(), group=name, words=True) for name, what in names]
    rows = []
    for kind, one in method["kinds"].items():
        cells = {column.key: _share(one["detectors"], column.key) for column in columns}
        cells["score"] = Cell.of(one["score"])
        rows.append(Row(kind, kind, cells))
    score = Column("score", "Mean over sites", better="higher")
    notes = tuple(f"{name}: {words}." for name, words in DETECTORS.items())
    caption = (
        "Found: runs in which the detector marks the rider. Accused: sites that are no riders and are marked, over all "
        "runs. Counts; JSON has the rates with Wilson's 95 % interval."
    )
    title = f"Free riders under {method['label']}"
    return Table(f"riders-{place}", title, (score, *columns), tuple(rows), "Kind of rider", caption, notes)


def _share(detectors: Mapping[str, Any], key: str) -> Cell:
    name, _, what = key.rpartition("-")
    found = detectors[name][what]
    return Cell.text(f"{found['count']} of {found['of']}" if found["of"] else "\N{EN DASH}")


def _unusual(seen: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sites whose median norm is zero, or whose median log norm is far from the others' median."""
    norms = _medians(seen, "norms")
    logs = {site: math.log(value) for site, value in norms.items() if value > 0}
    if not logs:
        return sorted(norms)
    centre = median(logs.values())
    spread = 1.4826 * median(abs(value - centre) for value in logs.values())
    far = [site for site, value in logs.items() if spread > 0 and abs(value - centre) > FAR * spread]
    return sorted({*far, *(site for site in norms if site not in logs)})


def _medians(seen: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Site -> median over the rounds in which it has a value."""
    values = {site: [v for one in seen if (v := one[key].get(site)) is not None] for one in seen for site in one[key]}
    return {site: median(found) for site, found in sorted(values.items()) if found}
