# SPDX-License-Identifier: Apache-2.0
"""What a run is made of, as a user gives it: one model for the command line, a YAML file and Python.

Relative paths of a file start at its folder. Every run writes its own file, ``RUN_FILE``, which repeats it bit for bit.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from fairflare.core import user_code
from fairflare.core.errors import UserError
from fairflare.core.settings import Shared, bare, nested, parse_pairs
from fairflare.core.signals import command
from fairflare.core.validation import SITE, Range, Seed, expected, refused, shown, unlisted
from fairflare.studies.labels import MOST_WORKERS, RUN_FILE, as_text, flat_settings
from fairflare.studies.plain_yaml import SUFFIXES, read_yaml
from fairflare.tasks.forms import FORMS

if TYPE_CHECKING:
    from typing_extensions import Self

    from fairflare.engine.setup.config import RunConfig

DAY = 86400.0
ROBUST = {"robust": "mixed"}
"""The run's setting that ``robust`` stands for."""
Values = Mapping[str, str]
"""Setting -> its text."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """How the command line shows a field: what it is for, what stands for its value, its words, and whether commas
    divide several.

    Without ``help`` it is not shown: ``--set`` with its name replaces it.
    """

    help: str = ""
    metavar: str | None = None
    words: tuple[str, ...] = ()
    listed: bool = False


def _pairs(given: Any) -> dict[str, str]:
    return parse_pairs(given) if isinstance(given, tuple) else dict(flat_settings(given))


def _method(given: Any) -> str:
    if not isinstance(given, str) or not given or given.startswith("-") or given.endswith(SUFFIXES):
        raise PydanticCustomError("expected", "a method's id")
    return given


Paths = Annotated[list[Path], BeforeValidator(lambda given: [given] if isinstance(given, (str, Path)) else given)]
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class Given(BaseModel):
    """What a user gives, by the names of fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str = "", home: Path | None = None) -> Self:
        """One of ``given``, whose relative paths start at ``home``; errors begin with ``where``, "--" for flags."""
        try:
            found = cls.model_validate(given)
        except (ValidationError, UserError) as error:
            known = [key for name, field in cls.model_fields.items() for key in names_of(name, field)]
            known.sort(key=lambda key: key != "method")
            said = refused(error, known=known) if isinstance(error, ValidationError) else error
            flag = where == "--" and isinstance(error, ValidationError)
            raise UserError(f"--{said}" if flag else f"{where}: {said}" if where.strip("-") else str(said)) from None
        if home is not None:
            for name in found.model_fields_set:
                setattr(found, name, _at(home, getattr(found, name)))
        return found


class Choices(Given):
    """On what a method is run, and how: what the methods of a comparison share."""

    task: Annotated[str | None, Flag("Task and preset; see `fairflare tasks`.", "T[:PRESET]")] = None
    datalists: Annotated[Path | None, Flag("Your own data, after `fairflare init DIR`.", "DIR")] = Field(
        default=None, validation_alias=AliasChoices("datalists", "data")
    )
    kind: Annotated[str | None, Flag("What --datalists are of.", words=(*FORMS,))] = None
    classes: Annotated[
        str | None,
        BeforeValidator(lambda given: given if given is None else as_text(given)),
        Flag("Classes or structures of --datalists: a number, or their names.", "N|A,B", listed=True),
    ] = None
    code: Annotated[
        Paths,
        Flag("Your own .py file or package that the run needs, for a network or a script; repeat for more.", "FILE"),
    ] = []
    script: Annotated[Path | None, Flag("Your own training loop, on fairflare.client; FLARE runs it.", "FILE")] = None
    bundle: Annotated[
        Path | None, Flag("A MONAI bundle: its network, transforms, loss and optimizer on --datalists.", "DIR")
    ] = None
    without: Annotated[Texts, Flag("Sites of your own data that are left out.", "A,B", listed=True)] = []
    plan: Annotated[Path | None, Flag("Defaults that `fairflare plan` made of fingerprints.", "FILE")] = None
    rounds: Annotated[int | None, Flag("Communication rounds; the preset's by default.", "N")] = None
    sites: Annotated[int | None, Flag("Number of sites; the preset's by default.", "K")] = None
    trainer: Annotated[str | None, Flag()] = None
    rule: Annotated[str | None, Flag()] = None
    selector: Annotated[str | None, Flag()] = None
    server_optimizer: Annotated[str | None, Flag()] = None
    after: Annotated[str | None, Flag()] = None
    tune: Annotated[str | None, Flag()] = None
    robust: Annotated[bool, Flag("Against sites that lie: clip, mix and cap; see docs/robustness.md.")] = False
    values: Annotated[
        dict[str, str],
        BeforeValidator(_pairs),
        Flag("A setting, be it trainer, rule, selector, after or tune; see `fairflare describe`.", "KEY=VALUE"),
    ] = Field(default={}, validation_alias=AliasChoices("set", "values"))
    require: Annotated[
        str | None,
        BeforeValidator(lambda given: given if given is None else as_text(given)),
        Flag("Named sites that must be there before the first round; else nothing begins.", "all|N"),
    ] = None
    accept: Annotated[Texts, Flag("Preflight's errors of these codes are warnings.", "A,B", listed=True)] = []
    init_from: Annotated[
        Path | None,
        Flag(
            "Weights to start from: an earlier run's, a state dict or a MONAI bundle's; a line says what fits.",
            "RUN|FILE|BUNDLE",
        ),
    ] = None

    def choices(self, folds: bool = False) -> tuple[str, dict[str, Any]]:
        """The task, and what ``make_config`` takes of it: rounds, sites and settings.

        Args:
            folds: the run is one of several folds, which have no best round.

        Raises:
            UserError: neither a task nor data are given, or what is given does not fit together.
        """
        user_code.use((*self.code, *([self.script] if self.script else [])))
        values = beneath(ROBUST, self.values, "run.") if self.robust else self.values
        named = {
            key: getattr(self, key)
            for key in ("trainer", "rule", "selector", "server_optimizer", "after", "tune", "require")
        }
        named |= {"accept": ",".join(self.accept) or None, "init_from": self.init_from and str(self.init_from)}
        values = united(values, {key: value for key, value in named.items() if value is not None})
        if self.script:
            if self.task or self.kind or self.plan:
                raise UserError("--script: goes with --data DIR, without --task, --kind and --plan")
            chosen, own = own_script(self.script, self.datalists, self.classes)
        elif self.continues:
            chosen, own = "", self.members()
        else:
            chosen, own = own_data(self.task, self.datalists, self.kind, self.classes)
        if self.bundle:
            if self.script or self.task or self.plan or self.continues:
                raise UserError("--bundle: goes with --data DIR, without --task, --script, --plan and --continue")
            from fairflare.studies.bundle import bundled

            chosen, own = bundled(self.bundle, chosen, own, values)
        planned = plan_values(self.plan, chosen, {**values, **({"best_by": "none"} if folds else {})})
        values = without_sites(united(beneath(own, values), planned), self.without)
        return chosen, {"rounds": self.rounds, "sites": self.sites, "values": values}

    @property
    def continues(self) -> Path | None:
        """The folder of the run whose next segment this is."""
        return None

    def members(self) -> Values:
        """The sites of the run that goes on, or those whose files lie in the folder that ``datalists`` names now."""
        from fairflare.engine.files import CONFIG, read_json
        from fairflare.engine.setup.run_config import MEMBERS
        from fairflare.studies.folders import require_run

        assert self.continues is not None
        require_run(self.continues)
        if self.task or self.kind or self.classes:
            raise UserError("--continue: goes on with its own task; --data DIR may name other sites")
        before = read_json(self.continues / CONFIG)
        lists = own_data(before["task"], self.datalists, None, None)[1] if self.datalists else before["options"]
        return {key: lists[key] for key in MEMBERS if lists.get(key)}


class Place(Given):
    """Where a run takes place."""

    env: Annotated[
        Literal["local", "sim", "poc", "prod"], Flag("Where the federation runs; poc and prod are one that is up.")
    ] = "local"
    kit: Annotated[Path | None, Flag("Who submits: a user's startup kit.", "DIR")] = None
    preinstalled: Annotated[bool, Flag("The sites have this package: the job brings no code.")] = False
    wait: Annotated[
        Annotated[float, Range(1, 30 * DAY)] | None, Flag("Seconds until the job must be over; a day.", "S")
    ] = None

    def deployment(self, workers: int | None = None) -> dict[str, Any] | None:
        """How a federation that is up gets the run; None: it runs on this machine."""
        given = [name for name in ("kit", "preinstalled", "wait") if getattr(self, name)]
        if self.env in ("local", "sim"):
            if given:
                raise UserError(f"--{given[0]}: expected --env poc or --env prod, got --env {self.env}")
            return None
        if (workers or 1) > 1:
            raise UserError(f"--workers: expected --env local, got --env {self.env}")
        return {"env": self.env, "kit": self.kit, "preinstalled": self.preinstalled, "timeout": self.wait or DAY}


class Run(Choices):
    """One run."""

    method: Annotated[str, BeforeValidator(_method)] = ""
    continued: Annotated[
        Path | None,
        Flag("The next segment of the federation in the folder RUN, without METHOD, or of the job ID.", "RUN|ID"),
    ] = Field(default=None, validation_alias=AliasChoices("continue", "continued"))
    seed: Annotated[Seed, Flag("Seeds the initial model and all local work; the data have --set data_seed=N.", "N")] = 0

    def config(self) -> RunConfig:
        """The run's whole configuration; raises UserError for what does not fit."""
        from fairflare.engine.setup.config import make_config

        task, choices = self.choices()
        if self.continues:
            from fairflare.studies.segments import next_segment

            for name in ("method", "sites", "seed"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise UserError(f"--continue {self.continues}: goes on with the run's own {name}")
            return next_segment(self.continues, choices["rounds"], choices["values"])
        own = {"federation": str(self.continued)} if self.continued else {}
        choices["values"] = united(choices["values"], own)
        return make_config(self.method, task, seed=self.seed, **choices)

    @property
    def continues(self) -> Path | None:
        return self.continued if self.continued and self.continued.is_dir() else None


class RunFile(Run, Place):
    """One run, and how it is made: the keys of a file, and Python's keywords."""

    solo: bool | None = None
    workers: Annotated[
        Annotated[int, Range(1, MOST_WORKERS)] | None,
        BeforeValidator(lambda given: None if given == "auto" else given),
    ] = None
    no_cache: bool = False
    out: Path | None = None

    def beneath(self, given: Mapping[str, Any]) -> Self:
        """This under what is ``given``: settings win one by one, lists go on, all else is replaced."""
        found = dict(given)
        for name, value in given.items():
            if isinstance(own := getattr(self, name), (dict, list)):
                found[name] = {**own, **value} if isinstance(own, dict) else [*own, *value]
        if values := given.get("values"):
            from fairflare.core import registry

            method = found.get("method", self.method)
            shared = registry.get_method(method).shared if method else {}
            found["values"] = {**_not_set_by(values, self.values, shared), **values}
        return self.model_copy(update=found)


def _not_set_by(given: Values, own: Values, shared: Shared) -> Values:
    """What of the settings ``own`` none that is ``given`` sets, under whatever name; shared ones by their targets."""
    taken = {name for key in given for name in (key, *shared.get(key, ()))}
    short, full = {name for name in taken if "." not in name}, {bare(name) for name in taken}

    def is_set(name: str) -> bool:
        return name in taken or bare(name) in (short if "." in name else full)

    found: dict[str, Any] = {}
    for key, value in own.items():
        names = shared.get(key, (key,))
        rest = [name for name in names if not is_set(name)]
        found |= {key: value} if len(rest) == len(names) else dict.fromkeys(rest, value)
    return found


Words = Annotated[
    list[str], BeforeValidator(lambda given: [*map(as_text, given)] if isinstance(given, list) else given)
]


class ColumnRule(Given):
    """How every hospital's table codes a column; a plain number without any key.

    Attributes:
        unit: of its numbers, in words.
        usual: lowest and highest of what nine patients in ten have, in that unit: by it a site's other unit is seen.
        range: lowest and highest that can be; what is beyond counts as the nearer.
        codes: cells of a category, or cell -> meaning.
        yes: cells that count as 1.
        no: cells that count as 0.
        since: the column of dates that days are counted from.
        empty: cells that count as missing, such as 999.
    """

    unit: str = ""
    usual: tuple[float, float] | None = None
    range: tuple[float, float] | None = None
    codes: Words | dict[str, str] = []
    yes: Words = []
    no: Words = []
    since: str = ""
    empty: Words = []

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.usual and not self.usual[0] < self.usual[1]:
            raise UserError(f"usual: expected [lowest, highest], got {shown(list(self.usual))}")
        return self

    def option(self) -> dict[str, Any]:
        """What the option ``columns`` of a table's task says of it, see ``data.table_columns``."""
        kind = "category" if self.codes else "yes_no" if self.yes or self.no else "days" if self.since else "number"
        own: dict[str, Any] = (
            {"levels": [*self.codes]} if self.codes else {"yes": self.yes, "no": self.no} if kind == "yes_no" else {}
        )
        own |= {"since": self.since} if self.since else {}
        own |= {"range": [*self.range]} if self.range else {}
        return {"kind": kind, **own, **({"codes": self.empty} if self.empty else {})}


def _rules(given: Any) -> Any:
    """Each column's rule, whose errors name the column."""
    for name, one in given.items() if isinstance(given, dict) else ():
        expected(f"columns: {name}", isinstance(one, (dict, type(None))), "keys and values", one)
    is_dict = isinstance(given, dict)
    return {name: ColumnRule.read(one or {}, f"columns: {name}") for name, one in given.items()} if is_dict else given


class FederationFile(RunFile):
    """A run file that says, too, which hospitals there are and what their data mean: one file for all of them.

    Attributes:
        sites: the hospitals' names, or a number of sites.
        outcome: the column of the outcome; or option -> column, where a task has several.
        columns: feature -> how it is coded, at every hospital.
        groups: features with ``codes`` by which patients are grouped.
        min_count: the fewest patients of a group whose numbers leave a hospital.
    """

    sites: int | Texts | None = None  # type: ignore[assignment]  # a number of sites is one, too
    outcome: str | dict[str, str] | None = None
    columns: Annotated[dict[str, ColumnRule], BeforeValidator(_rules)] = {}
    groups: Texts = []
    min_count: int | None = None

    @model_validator(mode="after")
    def _settled(self) -> Self:
        """Say by a task's and a run's settings what the file's own keys say."""
        own: dict[str, str] = {}
        if isinstance(self.sites, list):
            odd = next((one for one in self.sites if not SITE.fullmatch(one) or self.sites.count(one) > 1), None)
            expected("sites", odd is None and bool(self.sites), "different names of letters, digits, - . and _", odd)
            own["site_names"], self.sites = ",".join(self.sites), None
        if self.outcome is not None:
            own |= {"label": self.outcome} if isinstance(self.outcome, str) else self.outcome
        if self.columns:
            with io.StringIO() as line:
                csv.writer(line, lineterminator="").writerow(self.columns)
                own["features"] = line.getvalue()
            rules = {name: rule.option() for name, rule in self.columns.items()}
            plain = {"kind": "number"}
            own["columns"] = json.dumps({name: rule for name, rule in rules.items() if rule != plain})
        for name in self.groups:
            coded = name in self.columns and bool(self.columns[name].codes)
            expected("groups", coded, "columns with codes", name)
        if self.groups:
            own["attribute_values"] = "; ".join(f"{name}={'|'.join(self.columns[name].codes)}" for name in self.groups)
        if self.min_count is not None:
            own["run.min_count"] = str(self.min_count)
        if own:
            self.values = {**united(self.values, own)}
        return self

    @property
    def hospitals(self) -> list[str]:
        """The sites' names; [] where the file names none."""
        return [name for name in self.values.get("site_names", "").split(",") if name]


def federation_text(described: Mapping[str, Any], sites: Sequence[str]) -> str:
    """A federation's file to be read and completed, of what ``fairflare init`` has found of one's own data.

    Args:
        described: the content of ``dataset.json``.
    """
    options = described["options"]
    content: dict[str, Any] = {"method": "fedism-plus", "rounds": 20, "sites": [*sites], "kind": described["kind"]}
    content |= {"classes": [*described["classes"]]} if described["classes"] else {}
    if "features" in options:
        rules = json.loads(options.get("columns") or "{}")
        names = next(csv.reader([options["features"]], skipinitialspace=True))
        content |= {"outcome": options["label"], "columns": {name: _rule(rules.get(name, {})) for name in names}}
        content["set"] = {key: value for key, value in options.items() if key not in ("label", "features", "columns")}
    else:
        content["set"] = dict(options)
    content = {**content, "min_count": 10}
    if not content["set"]:
        del content["set"]
    head = [
        "# One file for all hospitals: complete the sites, and each number's unit and usual: [lowest, highest].",
        "# A hospital checks its data: fairflare preflight local/fairflare_site.yaml --federation federation.yaml",
        "# The lead makes the job: fairflare export federation.yaml --out job",
    ]
    return "\n".join((*head, yaml.safe_dump(content, sort_keys=False, allow_unicode=True)))


def _rule(found: Mapping[str, Any]) -> dict[str, Any]:
    """A column's rule of what the option ``columns`` says of it."""
    rule = {"empty" if key == "codes" else "codes" if key == "levels" else key: one for key, one in found.items()}
    number = rule.pop("kind", "number") == "number"
    rule.pop("missing", None)
    return ({"unit": ""} if number else {}) | rule


def names_of(name: str, field: FieldInfo) -> list[str]:
    """The keys by which a file may name a field, the usual one first."""
    alias = field.validation_alias
    if not isinstance(alias, AliasChoices):
        return [name]
    return [str(key) for key in alias.choices if key not in ("values", "continued")]


def _at(home: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_at(home, one) for one in value]
    return home / value if isinstance(value, Path) else value


def read_run_file(path: Path) -> FederationFile:
    """The run that a YAML file describes; UserError, which names file, key, what was expected and what came."""
    where, content = f"run file {path.name}", read_yaml(path)
    expected(where, "method" in content, "the key 'method'", list(content))
    return FederationFile.read(content, where, path.resolve().parent)


def write_run_file(config: RunConfig, folder: Path, env: str) -> None:
    """Write ``RUN_FILE`` to a run's folder, with every choice; nothing for a fold, a decision or an evaluation."""
    from fairflare.engine.files import INITIAL, save_text
    from fairflare.engine.setup.run_config import RUN_KEYS

    if config.fold or config.evaluation:
        return
    run = {key: getattr(config, key) for key in RUN_KEYS if key != "init_from"}
    code = [path for path in user_code.code_files() if path.stem in config.code]
    content = {
        "method": config.method,
        "task": f"{config.task}:{config.preset}",
        "seed": config.seed,
        **config.parts,
        **({"after": config.after} if config.after_step else {}),
        **({"init_from": INITIAL} if config.init_from else {}),
        **({"code": [os.path.relpath(path, folder) for path in code]} if code else {}),
        "env": env,
        "set": {
            **nested(config.settings),
            "train": dataclasses.asdict(config.training),
            "task": config.options,
            "run": run,
            **({"after": dataclasses.asdict(config.after_step)} if config.after_step else {}),
        },
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    save_text(folder / RUN_FILE, f"# fairflare run {RUN_FILE} --out DIR repeats this run.\n{text}")


def say_reasons(config: RunConfig) -> None:
    """Why a run on a user's own data has the defaults it has, a line each; UserError where no run can be made of it."""
    if not config.options.get("datalists"):
        return
    from fairflare.engine.setup.parts import build_parts
    from fairflare.engine.setup.plans import reasons
    from fairflare.studies import display

    if lines := reasons(config):
        build_parts(config)  # before anything is shown: what is wrong with it is the user's to mend
    for line in lines:
        display.note(line)


def own_data(task: str | None, datalists: Path | None, kind: str | None, classes: str | None) -> tuple[str, Values]:
    """The task and the settings that ``--task`` or ``--datalists DIR --kind K --classes N`` stand for.

    A folder that ``fairflare prepare`` wrote says itself what kind of data it holds. Raises UserError where neither is
    given, or the folder holds no lists.
    """
    from fairflare.engine.setup import tasks
    from fairflare.tasks.kinds.own import OwnData, folder_of_lists, read_description, sites_in

    if datalists is None:
        if task is None and kind is not None and classes is not None:
            return kind, {"labels": classes}  # every site has its own configuration
        if task is None:
            raise UserError("--task: expected a task, or your own data: --data DIR")
        if kind or classes:
            raise UserError("--kind and --classes: go with --datalists DIR")
        return task, {}
    shown_as, datalists = datalists, folder_of_lists(datalists)
    if not datalists.is_dir():
        raise UserError(f"--data {shown_as}: expected a folder, with a list or table per site in it")
    described = read_description(datalists)
    chosen, classes = task or kind or described.get("kind"), classes or ",".join(described.get("classes", ()))
    if chosen is None or chosen.partition(":")[0] not in FORMS:
        kinds = f"expected --kind with it, one of {', '.join(FORMS)}"
        text = f"got task {chosen}" if chosen else f"or that {command('init', shown_as)} writes down what it holds"
        raise UserError(f"--datalists {shown_as}: {kinds}; {text}")
    kind_of_data = tasks.known(chosen.partition(":")[0])
    assert issubclass(kind_of_data, OwnData)  # as every one of FORMS is
    suffixes = kind_of_data.suffixes
    names = sites_in(datalists, suffixes)
    if not names:
        lists = f"expected a folder with a <SITE>{suffixes[0]} per site"
        raise UserError(f"--datalists {shown_as}: {lists}; {command('init', shown_as)} writes them")
    values = {"datalists": str(datalists.resolve()), "site_names": ",".join(names)}
    values |= {key: str(value) for key, value in described.get("options", {}).items()}
    return chosen, values | ({"labels": classes} if classes else {})


def own_script(script: Path, data: Path | None, classes: str | None) -> tuple[str, Values]:
    """The task and the settings that ``--script FILE --data DIR --classes N`` stand for: a site per folder in DIR.

    Without ``--data`` the sites are named with ``--set site_names``, and each has its own site file. Raises UserError
    where no folder is in DIR.
    """
    values = {"script": f"{script.stem}.network"}
    if data is not None:
        names = sorted(path.name for path in data.iterdir() if path.is_dir()) if data.is_dir() else []
        names = [name for name in names if SITE.fullmatch(name)]
        if not names:
            raise UserError(f"--data {data}: expected a folder with a folder per site")
        values |= {"datalists": str(data.resolve()), "site_names": ",".join(names)}
    return "script", values | ({"labels": classes} if classes else {})


def beneath(own: Values, given: Values, owner: str = "task.") -> Values:
    """The settings ``own``, of a folder of datalists, and on top of them those that the user has ``given``."""
    keys = {key.removeprefix(owner) for key in given}
    return {key: value for key, value in own.items() if key not in keys} | dict(given)


def united(some: Values, others: Values) -> Values:
    """Both; UserError where one is in both."""
    for key in some.keys() & others.keys():
        raise UserError(f"--set: {key[:80]} is given twice")
    return {**some, **others}


def without_sites(values: Values, left_out: Sequence[str]) -> Values:
    """``values`` whose ``site_names`` lack those that are left out; UserError where one is unknown or none is left."""
    if not left_out:
        return values
    key = "task.site_names" if "task.site_names" in values else "site_names"
    if key not in values:
        raise UserError("--without: goes with your own data, --data DIR, or with --set site_names=A,B")
    names = [name.strip() for name in values[key].split(",")]
    for one in left_out:
        if one not in names:
            raise UserError(f"--without: {unlisted('site', one, names)}")
    rest = ",".join(name for name in names if name not in left_out)
    if not rest:
        raise UserError("--without: no site would be left")
    return {**values, key: rest}


def plan_values(plan: Path | None, task: str, given: Values) -> Values:
    """The settings of a plan's file, but for those that the user has ``given`` or that mean nothing beside them."""
    if plan is None:
        return {}
    from fairflare.core import registry
    from fairflare.engine.setup.plans import BESIDE, read_plan

    trainer = str(given.get("trainer", given.get("run.trainer", "")))
    private = trainer in registry.trainers() and registry.get_trainer(trainer).private
    if private or any(key in given for key in ("site_epsilon", "run.site_epsilon")):
        raise UserError(f"--plan {plan.name}: expected none with a privacy budget, which does not cover fingerprints")
    kind, values = read_plan(plan)
    if task.partition(":")[0] != kind:
        raise UserError(f"--plan {plan.name}: is of {kind} data, expected {task.partition(':')[0]}")
    keys = {key.rpartition(".")[2] for key in given}
    off = {name for key in keys for name in (key, *BESIDE.get(key, ()))}
    own = {name.rpartition(".")[2]: value for name, value in values.items()}
    return {name: value for name, value in own.items() if name not in off}
