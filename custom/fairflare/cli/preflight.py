# SPDX-License-Identifier: Apache-2.0
"""What is looked at of sites' data before a run: for what is wrong with them, and for defaults that fit them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median_low
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import Execution, default_device, memory_findings
from fairflare.core.findings import Finding, packed, unpacked
from fairflare.core.signals import command
from fairflare.core.types import Need
from fairflare.core.validation import expected, in_order, unlisted
from fairflare.data.readers.tables import SUFFIXES, read_table
from fairflare.data.site_config import FILES, SiteConfig, read_site_config
from fairflare.data.tensors import TensorData
from fairflare.engine.files import save_json
from fairflare.engine.setup import tasks
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.engine.setup.plans import FORMAT, Plan, plan_for, plan_of, read_fingerprint
from fairflare.import_data.labels import event_last, may_be_turned
from fairflare.tasks.base import Task
from fairflare.tasks.fingerprint import Fingerprint, file_name, fingerprint
from fairflare.tasks.kinds.own import OwnData, folder_of_lists, read_description
from fairflare.tasks.own.tabular import GAPS, Tabular
from fairflare.tasks.planning import conversion, converting, turned
from fairflare.tasks.preflight import FEW, numbers_of, preflight, spread_of

if TYPE_CHECKING:
    from fairflare.studies.run_file import FederationFile

CONFIGURATIONS = (".yaml", ".yml")
"""Of a folder with a configuration for each site; where there are lists or tables too, these are meant."""
LISTS = (".json", ".csv", ".parquet")
Tell = Callable[[str, int, int], None]
"""Takes a site or test set, how many of its files (or of all) are read or written, and how many there are."""


@dataclass(frozen=True)
class Question:
    """What the data are for."""

    task: str = ""
    """A task that reads files, as "name" or "name:preset"; empty: what the folder of the lists says of itself."""
    classes: str | None = None
    """Number or names of the classes or structures of own data."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task, and "group_by"."""
    site: str | None = None
    """The site's name in the task; the file's when None."""
    method: str | None = None
    """Id of the method that the data are for; None: whatever only some methods need is a warning."""
    accepted: Collection[str] = ()
    """Codes of errors that stop nothing."""
    without: Sequence[str] = ()
    """Sites of a folder with all sites' lists that are not looked at."""
    units: Mapping[str, tuple[str, tuple[float, float]]] = field(default_factory=dict)
    """Column -> its unit, and lowest and highest of what nine patients in ten have."""

    def of_federation(self, file: FederationFile, site: str | None) -> Question:
        """This question with what a federation's file says of its data; UserError where ``site`` is none of its own."""
        if self.task or self.classes or self.method:
            raise UserError("--federation: says kind, classes and method itself; leave them out")
        task = (file.kind or file.task or "").partition(":")[0]
        expected("federation file", bool(task), "the key 'kind'", task)
        if site is not None and file.hospitals and site not in file.hospitals:
            raise UserError(f"site: {unlisted('site', site, file.hospitals)}; --site NAME says which this is")
        taken = {one.name for one in dataclasses.fields(tasks.known(task))} | {"group_by"}
        bare = {key.rpartition(".")[2]: value for key, value in file.values.items()}
        own = {key: value for key, value in bare.items() if key in taken}
        units = {name: (rule.unit, rule.usual) for name, rule in file.columns.items() if rule.usual}
        made: dict[str, Any] = {"task": task, "classes": file.classes, "method": file.method, "units": units}
        return replace(self, values={**own, **self.values}, **made)


def check(path: Path, asked: Question, tell: Tell = lambda part, done, total: None) -> dict[str, list[Finding]]:
    """Site -> findings on its data, sites in natural order.

    ``path`` is a site's configuration, a folder of configurations, or the folder of all sites' data and lists.
    """
    if path.suffix.lower() in SUFFIXES:
        raise UserError(f"preflight: {path.name} is a table: {command('init', path)} looks at it first")
    if not path.is_dir():
        return {asked.site or named_in(path): check_site(path, asked, tell)}
    if asked.site is not None:
        raise UserError("--site: goes with one site's configuration, not with a folder of all sites")
    files = {one.stem: one for one in path.iterdir() if one.suffix in CONFIGURATIONS}
    if files and folder_of_lists(path) == path and not any(one.suffix in LISTS for one in path.iterdir()):
        both = {site: _of_site(files[site], replace(asked, site=site), tell) for site in in_order(files)}
        across = between(
            {site: numbers for site, (_, numbers, _) in both.items()}, _words(built for *_, built in both.values())
        )
        return {site: [*own, *across.get(site, ())] for site, (own, _, _) in both.items()}
    return _check_lists(path, asked, tell)


def named_in(path: Path) -> str:
    """The site's name where nobody gives it: its startup kit's, or the file's."""
    kit = path.absolute().parents[1]
    return kit.name if path.name in FILES and (kit / "startup").is_dir() else path.stem


def check_site(path: Path, asked: Question, tell: Tell = lambda part, done, total: None) -> list[Finding]:
    """Findings on the data of the site whose configuration is ``path``, and whether its GPU holds a batch; UserError
    where the configuration or an option cannot be read."""
    return _of_site(path, asked, tell)[0]


def _of_site(path: Path, asked: Question, tell: Tell) -> tuple[list[Finding], dict[str, np.ndarray], Task]:
    """As ``_findings``, of the site whose configuration is ``path``."""
    own = read_site_config(path)
    described = read_description(Path(own.data_root, own.datalist).parent) if own.data_root and own.datalist else {}
    built, preset = _task(asked, described)
    if not own.data_root:
        raise UserError(f"site configuration {path.name}: expected data_root, got none")
    return _findings(built, preset, asked.site or named_in(path), own, asked, tell)


def _check_lists(folder: Path, asked: Question, tell: Tell) -> dict[str, list[Finding]]:
    from fairflare.studies.run_file import own_data, without_sites

    described = read_description(folder_of_lists(folder))
    if not asked.task and not described:
        raise UserError(f"preflight: nothing says what {folder} holds; {command('init', folder)} finds out, or --kind")
    kind, values = own_data(None, folder, asked.task or None, asked.classes or ",".join(described.get("classes", ())))
    built, preset = _task(asked, {"kind": kind, "options": without_sites(values, asked.without)})
    found, numbers = {}, {}
    for site in in_order(built.sites()):
        found[site], numbers[site], _ = _findings(built, preset, site, None, asked, tell)
    across = between(numbers, _words([built]))
    return {site: [*own, *across.get(site, ())] for site, own in found.items()}


def _words(tasks_of_sites: Iterable[Task]) -> dict[str, Sequence[str]]:
    """Outcome of two classes -> their names."""
    return {task.label: task.classes for task in tasks_of_sites if isinstance(task, Tabular) and len(task.classes) == 2}


NINE_IN_TEN = 1.645
"""Standard deviations of a normal distribution within which nine in ten lie, either way."""
FAR = 3.0
"""Robust standard deviations from which on a site's median lies far from the others'."""


def between(
    numbers: Mapping[str, Mapping[str, np.ndarray]], words: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, list[Finding]]:
    """Site -> a finding on the numbers whose median lies far from the other sites': other units, or other patients; and
    on columns of 0 and 1 that count the other way round.

    ``numbers`` is site -> what ``numbers_of`` finds, and its outcome; ``words``: what 0 and 1 of an outcome stand for.
    Where usual units explain it, the finding holds the lines of the site's file that convert its numbers.
    """
    said: dict[str, dict[str, str]] = defaultdict(dict)
    rules: dict[str, dict[str, Any]] = defaultdict(dict)
    codes: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in dict.fromkeys(name for own in numbers.values() for name in own):
        of_sites = {site: own[name] for site, own in numbers.items() if name in own and len(own[name]) >= FEW["train"]}
        if of_sites and all(np.isin(values.round(6), (0, 1)).all() for values in of_sites.values()):
            none, event = words.get(name, ("0", "1"))
            shares = {site: float(values.mean()) for site, values in of_sites.items()}
            share = median_low(shares.values())
            for site in (site for site, own in shares.items() if turned(own, share)):
                text = f"{name} is {event} in {shares[site]:.0%} of the rows, at the other sites in {share:.0%}"
                said[site][name], codes[site][name] = text, {none: event, event: none}
            continue
        middles = {site: (float(np.median(values)), spread_of(values)) for site, values in of_sites.items()}
        spread = float(np.median([one for _, one in middles.values()])) if len(of_sites) > 1 else 0.0
        usual = sorted(middles.values())[(len(middles) - 1) // 2] if middles else (0.0, 0.0)
        for site, own in middles.items() if spread else ():
            if abs(own[0] - usual[0]) > FAR * spread:
                said[site][name] = f"half of {name} are about {own[0]:.4g}, at the other sites {usual[0]:.4g}"
                rules[site][name] = conversion(name, own, usual)
    found = {}
    for site, texts in said.items():
        same = " and ".join([*["units"] * bool(rules[site]), *["codes"] * bool(codes[site])])
        parts = [f"{'; '.join(texts.values())}: are the {same} the same?", converting(site, rules[site], codes[site])]
        found[site] = [Finding("warning", "far", "train", len(texts), " ".join(filter(None, parts)))]
    return found


def _task(asked: Question, described: Mapping[str, Any]) -> tuple[Task, str | None]:
    """The task that ``asked`` names, or what a folder says of itself, and its preset."""
    if asked.classes is not None and "labels" in asked.values:
        raise UserError("--classes: is what --set labels=... says as well; expected one of them")
    chosen = asked.task or described.get("kind", "")
    if not chosen:
        raise UserError("preflight: expected --kind or --task; `fairflare init DIR` writes down what a folder holds")
    name, _, preset = chosen.partition(":")
    options: dict[str, Any] = {}
    if name == described.get("kind"):
        options |= {"labels": ",".join(described["classes"])} if described.get("classes") else {}
        options |= described.get("options", {})
    options |= {key: value for key, value in asked.values.items() if key != "group_by"}
    if asked.classes:
        options["labels"] = asked.classes
    return tasks.load(name, preset or None, **options), preset or None


def _findings(
    built: Task, preset: str | None, site: str, own: SiteConfig | None, asked: Question, tell: Tell
) -> tuple[list[Finding], dict[str, np.ndarray], Task]:
    """Findings on a site, of a table its numbers (see ``tasks.preflight.numbers_of``) and its outcome, and the task."""
    grouping = built.grouping(str(asked.values.get("group_by", built.default_grouping)))
    needs = needs_of(asked.method) if asked.method else ()
    limits = own or SiteConfig()
    found, data = preflight(built, site, own, grouping, limits.min_count, needs, asked.accepted, partial(tell, site))
    if data is not None:
        batch_size = limits.batch_size or built.presets[preset or next(iter(built.presets))].training.batch_size
        found += _of_gpu(built, data, limits, batch_size)
        numbers = numbers_of(data, built)
        return found + _other_units(site, numbers, asked.units), numbers | _outcome_of(data, built), built
    way = _way(built, site, own) if isinstance(built, Tabular) and built.kind.has_classes else ""
    return [replace(one, text=f"{one.text}{way}") if one.code == "label" else one for one in found], {}, built


def _outcome_of(data: TensorData, task: Task) -> dict[str, np.ndarray]:
    """The outcome's column -> float64 (N,) of the training rows: amounts, or the place of two classes; else nothing."""
    labels = getattr(data.splits["train"], "labels", None)
    amounts = task.kind.name == "regression" or (task.kind.has_classes and len(task.classes) == 2)
    if not isinstance(task, Tabular) or not amounts or labels is None or labels.ndim != 1:
        return {}
    return {task.label: labels.double().numpy()}


def _way(task: Tabular, site: str, own: SiteConfig | None) -> str:
    """What to add where a site's outcome has other words than the federation's: the line of its file that converts it,
    where both say by their words which is the event, or are spelled alike; else nothing."""
    here = task.located(site, own)
    with contextlib.suppress(DataError):
        table = read_table(Path(here.data_root, here.datalist))
        here.convert(table, GAPS)
        words = in_order({cell for cell in table.get(task.label, ()) if cell and cell not in GAPS})
        (ours, sure), (theirs, known) = event_last(words), event_last(task.classes)
        turned = may_be_turned(task.label, ours, theirs)
        plain = {"".join(name.lower().split()): name for name in task.classes}
        pairs = {word: plain.get("".join(word.lower().split()), "") for word in words}
        if not all(pairs.values()) and sure and known and len(ours) == len(theirs) and not turned:
            pairs = dict(zip(ours, theirs, strict=True))
        if pairs and all(pairs.values()):
            return f". {converting(site, {}, {task.label: pairs})}"
    return ""


def _other_units(
    site: str, numbers: Mapping[str, np.ndarray], units: Mapping[str, tuple[str, tuple[float, float]]]
) -> list[Finding]:
    """An error for each column whose median lies far from what is usual in the federation's unit."""
    found = []
    for name, (unit, (low, high)) in units.items():
        if name not in numbers or len(numbers[name]) < FEW["train"]:
            continue
        usual = (low + high) / 2, (high - low) / (2 * NINE_IN_TEN)
        own = float(np.median(numbers[name])), spread_of(numbers[name])
        if abs(own[0] - usual[0]) > FAR * usual[1]:
            text = f"half of {name} are about {own[0]:.4g}: expected {unit or 'the unit'} of about {low:g} to {high:g}."
            lines = converting(site, {name: conversion(name, own, usual)}, {})
            found.append(Finding("error", "far", "train", 1, f"{text} {lines}".strip()))
    return found


def needs_of(method: str) -> tuple[Need, ...]:
    """What a method with its default parameters needs of a site's data; UserError where there is no such method."""
    made = default_parts(method)
    parts: tuple[Any, ...] = (made.rule, made.trainer, *made.probes)
    return tuple(need for part in parts for need in part.needs)


def leaving(path: Path, site: str, found: Sequence[Finding]) -> list[dict[str, str]]:
    """What of the findings leaves the ``site`` that ``path`` is the configuration of, or one of, and no more."""
    files = [path] if not path.is_dir() else [path / f"{site}{suffix}" for suffix in CONFIGURATIONS]
    least = next((read_site_config(file).min_count for file in files if file.is_file()), SiteConfig().min_count)
    return [finding.public for finding in unpacked(packed(found, least))]


def _of_gpu(task: Task, data: TensorData, own: SiteConfig, batch_size: int) -> list[Finding]:
    execution = Execution(default_device(own.gpu), "auto")
    if not execution.on_gpu:
        return []
    network = task.network()
    execution.place(network)
    batch = next(iter(data.on(execution.device).training(batch_size, 0)))
    objective = task.objective(data.class_counts.to(execution.device), 0.0)
    return memory_findings(execution, network, batch, objective)


def write_fingerprint(
    site_config: Path, kind: str, classes: str, values: Mapping[str, Any], site: str | None, out: Path | None
) -> Path:
    """Write the fingerprint of the site whose configuration is in ``site_config``; returns the file."""
    own, name = read_site_config(site_config), site or named_in(site_config)
    task = tasks.load(kind, None, **{**values, "labels": classes})
    assert isinstance(task, OwnData)  # as every kind is
    found = fingerprint(task, name, own, own.min_count)
    if found is None:
        raise UserError(f"site {name}: its data cannot be read; `fairflare preflight` says why")
    path = out or Path(file_name(name))
    save_json(path, {"format": FORMAT, "kind": kind, "site": name, "fingerprint": found.to_json()})
    return path


def plan_of_folder(sources: Sequence[Path], task: str, values: Mapping[str, Any]) -> Plan:
    """The plan for the data of a folder with every site's list; UserError where nothing can be read."""
    if len(sources) > 1:
        raise UserError(f"plan: expected one folder, or files of `fairflare fingerprint`, got {len(sources)}")
    found = plan_for(task.partition(":")[0], values)
    if not found.choices:
        raise UserError(f"{sources[0]}: no site's data can be read; `fairflare preflight` says why")
    return found


def plan_of_files(sources: Sequence[Path]) -> Plan:
    """The plan for the sites whose fingerprints are in files; UserError for one that is none, twins and other kinds."""
    prints: dict[str, Fingerprint] = {}
    kinds = set()
    for path in sources:
        kind, site, found = read_fingerprint(path)
        kinds.add(kind)
        if site in prints:
            raise UserError(f"{path.name}: is a second fingerprint of site {site} (fingerprint --site NAME)")
        prints[site] = found
    if len(kinds) > 1:
        raise UserError(f"plan: expected fingerprints of one kind of data, got {' and '.join(sorted(kinds))}")
    return plan_of(kinds.pop(), prints)
