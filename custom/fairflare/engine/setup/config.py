# SPDX-License-Identifier: Apache-2.0
"""How a run's configuration is made: defaults, preset, method and user put together, later ones winning."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairflare.aggregators.base import SPREAD, Bounds, Rule
from fairflare.core import registry, user_code, validation
from fairflare.core.errors import UserError
from fairflare.core.findings import accepted_codes
from fairflare.core.registry import Method
from fairflare.core.settings import Given, Owners, owned, owner_of
from fairflare.core.types import Round, Training
from fairflare.data.inputs import VECTORS
from fairflare.data.tensors import LABEL
from fairflare.data.tensors import NONE as UNGROUPED
from fairflare.engine.checks import NO_CHOICE
from fairflare.engine.setup import method_defaults, method_parts, tasks
from fairflare.engine.setup.method_parts import PART_KEYS, MethodParts, part, step_class
from fairflare.engine.setup.run_config import LEVELS, RUN_KEYS, USUAL_LEVEL, RunConfig, site_of_client
from fairflare.engine.setup.tasks import known
from fairflare.engine.setup.weights import named
from fairflare.networks.own import is_own
from fairflare.networks.own_class import HUGGING_FACE
from fairflare.participation import Selector
from fairflare.privacy.schemes import LEAST, NONE
from fairflare.tasks.base import Preset, Task
from fairflare.tasks.kinds.own import OwnData
from fairflare.trainers.base import Trainer

__all__ = ["RUN_KEYS", "RunConfig", "make_config", "site_of_client", "with_step"]


def make_config(
    method: str,
    task: str,
    *,
    rounds: int | None = None,
    sites: int | None = None,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Put defaults, the preset's training, the method's settings, the preset's and the user's together; later ones win.

    Args:
        rounds: T, the preset's when None.
        sites: number of sites, the preset's when None.
        values: ``--set`` pairs by any name that works, see ``core.settings``; the owners are "rule", "trainer",
            "probe.ID", "select", "server", "train", "task" and "run". Whole parts are chosen as ``chosen_parts`` says.

    Raises:
        UserError: one line that names the key, what was expected and what came.
    """
    layers = [dict(values or {}), dict(over or {})]
    name, _, preset = task.partition(":")
    chosen = chosen_parts(method, layers)
    task_class = type(tasks.load(name, preset or None))
    classes = registry.owners(chosen.method, **chosen.ids)
    step = validation.parsed(RunConfig, "after", taken("after", layers) or method_parts.NO_STEP)
    after = step_class(step)
    everyone = {**classes, "train": Training, "task": task_class, **({"after": after} if after else {})}
    owners = Owners(everyone, chosen.method.shared, (RunConfig, (*RUN_KEYS, *PART_KEYS)))
    given = _given(owners, layers, rounds, sites)
    used = preset or next(iter(task_class.presets))
    found = _found(chosen, owners, classes, task_class.presets[used], given)
    components = MethodParts.of({owner: part(cls, owners.values(owner, found)) for owner, cls in classes.items()})
    if (model := registry.get_trainer(chosen.ids["trainer"]).model) and "model" in registry.parameters(task_class):
        found = {"task.model": Given("model", model)} | found
    own = owned({full: one.value for full, one in given.items()}, "run")
    # What a plan says follows from training records, which no privacy budget covers.
    epsilon = validation.parsed(RunConfig, "site_epsilon", own.get("site_epsilon", 0.0))
    budget = components.trainer.private or epsilon > 0
    built, training, run = _data_and_training(owners, found, task_class, used, planned=None if budget else not preset)
    # A plan says nothing of a choice among rounds where there can be none, nor to a user who wants none.
    unwanted = own.get("best_by") == "none" or own.get("headline") == "final" or own.get("secure_sum", NONE) != NONE
    run = {} if unwanted or components.rule.own_models or not components.trainer.is_shared else run
    bounds = _bounds_of(run | own, components.rule, components.trainer)
    return RunConfig(
        method=chosen.method.id,
        **dict[str, Any](chosen.ids),
        components=components,
        task=name,
        preset=used,
        options=dataclasses.asdict(built),
        training=training,
        after=step,
        after_step=part(after, owners.values("after", given)) if after else None,
        code=user_code.fingerprints(),
        seed=validation.parsed(RunConfig, "seed", seed),
        **_run_choices(built, components.selector, bounds),
    )


def _given(
    owners: Owners, layers: Sequence[Mapping[str, Any]], rounds: int | None, sites: int | None
) -> dict[str, Given]:
    """Full name -> what the user gave for it: ``rounds`` stand between the two layers, ``sites`` above both."""
    given = owners.resolved(layers[0])
    if rounds is not None:
        given["train.rounds"] = Given("rounds", rounds)
    given |= owners.resolved(layers[1])
    if sites is not None:
        if "task.n_sites" not in owners.full:
            raise UserError(f"sites: expected no number, for the task says which sites there are, got {sites}")
        given |= owners.resolved({"task.n_sites": sites})
    return given


def _found(
    chosen: Chosen, owners: Owners, classes: Mapping[str, type], preset: Preset, given: dict[str, Given]
) -> dict[str, Given]:
    """Full name -> what holds of the parts' defaults, the preset's, the reference variant's and the user's settings.

    Local training is the task's, equal for all methods, unless the user asks for another or for variant=reference.
    """
    defaults = chosen.defaults(owners) | owners.spread(preset.settings_of(chosen.method.id))
    found = {full: one for full, one in defaults.items() if owner_of(full) in classes}
    variant = given.get("rule.variant", given.get("trainer.variant"))
    wants = variant is not None and variant.value == "reference"
    level = given.get("run.robust", Given("robust", USUAL_LEVEL)).value
    plain = registry.get_trainer(chosen.ids["trainer"]).as_published if level == "off" else {}
    found |= {f"trainer.{name}": Given(name, value) for name, value in plain.items()}
    return found | (method_defaults.reference_of(chosen.method, owners) if wants else {}) | given


def _data_and_training(
    owners: Owners, found: Mapping[str, Given], cls: type[Task], preset: str, *, planned: bool | None
) -> tuple[Task, Training, dict[str, Any]]:
    """The task, local training and what a plan says of the run.

    Args:
        planned: whether a plan may say how to train, as where no preset is named. None: there is no plan at all, not
            even for what the sites' tables have in common.
    """
    options, trained = (owners.values(owner, found) for owner in ("task", "train"))
    reader: Any
    usual = dataclasses.asdict(cls.presets[preset].training)
    if not issubclass(cls, OwnData) or planned is None:
        return tasks.load(cls.name, preset, **options), part(Training, usual | trained), {}
    if not is_own(model := str(options.get("model", ""))) and (Path(model) / "config.json").is_file():
        reader = importlib.import_module(HUGGING_FACE)
        known = registry.parameters(cls)
        own = {key: value for key, value in reader.options_of(Path(model)).items() if key in known}
        options |= {key: value for key, value in own.items() if key == "model" or key not in options}
    from fairflare.engine.setup.plans import NOTHING, plan_for  # and with it what reads images and tables
    from fairflare.tasks.kinds.own import root_of
    from fairflare.tasks.own.tabular import Tabular
    from fairflare.tasks.planning import AGAIN

    if options.get("vectors") and options.get("datalists") and not options.get("encoder"):
        root, links = root_of(Path(str(options["datalists"])))
        sites = str(options.get("site_names", "")).split(",")
        reader = importlib.import_module(VECTORS)
        options["encoder"] = reader.common_encoder(root, str(options["vectors"]), sites, links)
    planned = planned and options.get("pooling") != "attention"  # nobody has measured what suits bags
    agree = issubclass(cls, Tabular) or "outcome_scale" in registry.parameters(cls)
    learned = plan_for(cls.name, options) if planned or agree else NOTHING
    chosen = learned if planned else NOTHING
    built = tasks.load(cls.name, preset, **{**chosen.values("task", options), **options, **learned.agreed(options)})
    base = usual | chosen.values("train", {*trained, *options})
    if planned and "run.init_from" in found:
        base["lr"] *= AGAIN
    return built, part(Training, base | trained), chosen.values("run", ())


def with_step(config: RunConfig, step: str, values: Mapping[str, Any]) -> RunConfig:
    """``config`` with a step after the last round, and its settings by their own or full names; raises UserError."""
    step = validation.parsed(RunConfig, "after", step)
    after = step_class(step)
    if after is None:
        raise UserError(f"step: expected {' or '.join(method_parts.STEPS[1:])}, got {step}")
    owners = Owners({"after": after})
    return replace(config, after=step, after_step=part(after, owners.values("after", owners.resolved(values))))


def _bounds_of(values: Mapping[str, Any], rule: Rule, trainer: Trainer) -> dict[str, Any]:
    """``values`` with the settings of their level against sites that lie, ``USUAL_LEVEL`` unless they name one.

    Of the usual one, each setting that cannot act in this run is left out.
    """
    level = validation.parsed(RunConfig, "robust", values.get("robust", USUAL_LEVEL))
    secret = values.get("secure_sum", NONE) != NONE or trainer.sums_only or rule.alone
    meant = {} if secret and level == USUAL_LEVEL else dict(LEVELS[level])
    if level == USUAL_LEVEL and Bounds(cap=SPREAD).uncappable(rule):
        meant.pop("cap_weights", None)
    return {"robust": level, **meant, **values}


def _run_choices(built: Task, selector: Selector, values: Mapping[str, Any]) -> dict[str, Any]:
    """What RUN_KEYS say, beside the parts, of a run on the task ``built``."""
    secret = str(values.get("secure_sum", NONE)) != NONE
    clients = [name.strip() for name in str(values.get("clients", "")).split(",") if name.strip()]
    sites = [name for name in clients or built.sites() if name != values.get("leave_out")]
    asked = values.get("exchanges")
    # No site is there: the check of the sites says so.
    count = len(selector.select(sites, Round(1, 1), 0, 1)) if sites else 0
    count = len(built.sites()) if count == len(sites) else count
    half = min(count, max(2, -(-count // 2)))
    chosen = {
        "min_sites": max(1, min(count, max(half, LEAST)) if secret else half),
        "group_by": built.default_grouping,
        **values,
        "clients": clients,
        "accept": accepted_codes(values.get("accept", "")),
        "exchanges": [name.strip() for name in asked.split(",")] if isinstance(asked, str) and asked else asked or [],
        "init_from": named(values.get("init_from", "")),
    }
    return {key: validation.parsed(RunConfig, key, value) for key, value in chosen.items()}


RULE = "rule"
"""The one that makes another method of it: the rule's own, with the first one's other parts."""
OWNERS = {"trainer": "trainer", "selector": "select", "server_optimizer": "server"}
"""Kind of part -> the owner of its settings."""


@dataclass(frozen=True)
class Chosen:
    """What was chosen.

    Attributes:
        method: whose rule and probes they are.
        ids: kind of ``PART_KEYS`` -> id.
        lenders: a method that other parts are of -> the owners of settings that it has lent its defaults.
    """

    method: Method
    ids: Mapping[str, str]
    lenders: tuple[tuple[Method, frozenset[str]], ...]

    def defaults(self, owners: Owners) -> dict[str, Given]:
        """Full name -> default, of what the methods say that the parts are of."""
        found = method_defaults.defaults_of(self.method, owners)
        for lender, lent in self.lenders:
            own = method_defaults.declared(lender, owners)
            found |= {full: one for full, one in own.items() if owner_of(full) in lent}
        return found


def chosen_parts(method: str, layers: list[dict[str, Any]]) -> Chosen:
    """The parts of a run of ``method``; the choices are taken out of ``layers``, the last of which wins.

    ``rule=fedheal`` with the method moon is the method fedheal with the trainer moon. As a trainer a method's id will
    do too: its trainer, with the settings that the method gives it.

    Args:
        layers: settings by any name; "rule", "trainer", "selector" and "server_optimizer", also with "run.", are ids.

    Raises:
        UserError: there is no such method, rule or trainer, or a part is given twice in one layer.
    """
    first = registry.get_method(method)
    rule, given = taken(RULE, layers), {kind: taken(kind, layers) for kind in PART_KEYS}
    home = first if rule in (None, first.rule) else _home(str(rule))
    ids = {kind: getattr(first, kind) if one is None else one for kind, one in given.items()}
    lenders = []
    if home is not first:
        lenders.append((first, frozenset(owner for kind, owner in OWNERS.items() if given[kind] is None)))
    if given["trainer"] is not None and (lender := registry.methods().get(ids["trainer"])):
        if ids["trainer"] not in registry.trainers():
            ids["trainer"] = lender.trainer
        if lender.trainer == ids["trainer"]:
            lenders.append((lender, frozenset({OWNERS["trainer"]})))
    return Chosen(home, ids, tuple(lenders))


def composed_title(method: Method, ids: Mapping[str, str]) -> str:
    """The method's title, with the parts that are not its own: "FedHEAL, trainer moon"."""
    others = (kind for kind in PART_KEYS if ids[kind] != getattr(method, kind))
    return ", ".join([method.title, *(f"{kind.replace('_', ' ')} {ids[kind]}" for kind in others)])


def _home(rule: str) -> Method:
    """The method that a rule is the rule of: of its own name, or the first that has it."""
    registry.get_rule(rule)
    found = sorted((one for one in registry.methods().values() if one.rule == rule), key=lambda one: one.id != rule)
    if not found:
        raise UserError(f"rule {rule}: expected a rule that a method has")
    return found[0]


def taken(kind: str, layers: list[dict[str, Any]]) -> str | None:
    """Takes the id that was given for a kind of part out of ``layers``; the last one wins, None: none was given."""
    found = None
    for layer in layers:
        keys = [key for key in (kind, f"run.{kind}") if key in layer]
        if len(keys) > 1:
            raise UserError(f"run.{kind}: is given twice, as {keys[0]} and as {keys[1]}")
        found = str(layer.pop(keys[0])) if keys else found
    return found


def asks_by_itself(config: RunConfig) -> bool:
    """Whether a run on this machine reports the benefit of joining where no setting decides.

    It does in the clear, on tables and on a user's own data: a site alone takes the run's local steps once more,
    without its scoring, exchanges and probes, and so less than the run.
    """
    task = tasks.load(config.task, config.preset, **config.options)
    own = isinstance(task, OwnData) and not task.by_script
    if not (task.quick or own) or config.secure_sum != NONE:
        return False
    return can_ask(config)


def can_ask(config: RunConfig) -> bool:
    """Whether a run can report the benefit of joining: not one that is itself what others are held against."""
    parts = config.components
    return not (parts.rule.alone or parts.selector.pools or parts.trainer.private)


def words(config: RunConfig) -> str:
    """What it costs that sites also train alone without being asked to, for whoever starts the run; "" on tables."""
    if not config.solo or tasks.load(config.task, config.preset, **config.options).quick:
        return ""
    rounds = config.training.rounds
    cost = f"{rounds} rounds without exchange, up to as long as the run itself"
    return f"each site also trains alone: {cost} (--no-solo leaves it out)"


def with_benefit(config: RunConfig, solo: bool) -> RunConfig:
    """``config`` with the question or without it; raises UserError where no site could answer it."""
    return config if solo == config.solo else replace(config, solo=solo)


EVALUATED_AS = "fedavg"
"""The method of a run that only evaluates: nothing is trained, and the model is one for all."""
NO_MATTER = ["outsized"]
"""What preflight finds that an evaluation accepts: how many cases a site has weighs nothing there."""


def evaluation_of(
    config: RunConfig,
    task: Task,
    sites: Sequence[str],
    *,
    datalists: str = "",
    group_by: str = "",
    min_count: int | None = None,
    init_from: str = "",
) -> RunConfig:
    """What server and sites are told: the run's task and inputs, one exchange, everything labelled for testing.

    Args:
        sites: names of those that evaluate it; ignored by a task that brings its data, whose sites they are.
        datalists: a folder with the lists of all of them on this machine; empty: each has its own.
        group_by: the groups of patients; empty: by what the run knows of them beside the label.
        min_count: the fewest patients whose numbers leave; None: the run's.
        init_from: SHA-256 of the model's tensors; empty: it is loaded by other means.

    Raises:
        UserError: the task has no such groups, or the sites' names cannot be any.
    """
    options = dict(config.options)
    own = issubclass(known(config.task), OwnData)
    if own:
        options |= {"datalists": datalists, "site_names": ",".join(sites)}
    named = {"task.site_names": ",".join(sites)} if own else {}
    base = make_config(EVALUATED_AS, f"{config.task}:{config.preset}", values=named)
    return replace(
        base,
        options=options,
        training=replace(config.training, rounds=1),
        **{key: getattr(config, key) for key in ("seed", "threads", "task_timeout", "threshold", "code")},
        group_by=group_by or patients_by(config, task),
        min_count=config.min_count if min_count is None else min_count,
        min_sites=1,
        accept=NO_MATTER,
        init_from=init_from,
        solo=False,
        best_by=NO_CHOICE,
        best_weight=0.5,
        headline="final",
        evaluation=True,
    )


def patients_by(config: RunConfig, task: Task) -> str:
    """The attributes that the run groups by, without the label; where it names none, all that the task has."""
    named = [key.strip() for key in config.group_by.split("+")]
    kept = [key for key in named if key not in (LABEL, UNGROUPED)] or list(task.attributes)
    return "+".join(kept) or UNGROUPED
