# SPDX-License-Identifier: Apache-2.0
"""Whether a run's configuration can be built: everything in it is known and fits together."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairflare.aggregators.base import SPREAD, Bounds, Combining, Rule, SummedRule
from fairflare.core import registry, user_code
from fairflare.core.errors import UserError
from fairflare.core.schema import HIDDEN_METRICS
from fairflare.core.types import Round, TensorSpec
from fairflare.core.validation import SITE, expected
from fairflare.data.tensors import LABEL
from fairflare.engine.checks import NO_CHOICE
from fairflare.engine.exchanges.base import find
from fairflare.engine.files import SUFFIX
from fairflare.engine.memory import ALONE_ENDING, PERSONAL_ENDING, WORK_ENDING
from fairflare.engine.setup import tasks
from fairflare.engine.setup.method_parts import NO_STEP, MethodParts, step_class
from fairflare.participation import Selector
from fairflare.privacy.schemes import AUTO, LEAST, MOST_CKKS_Q, NONE, check_scheme
from fairflare.probes.base import Probe
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.own import OwnData
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.setup.run_config import RunConfig

GRAPHS = "fairflare.privacy.sum_protocol"
"""Of secure sums: by a name that no reader of imports follows, as other jobs do not carry them."""


def check_config(config: RunConfig) -> None:
    """Raise UserError unless everything in ``config``, whose fields have the right types, is known and fits."""
    entry, made, training = registry.get_method(config.method), config.components, config.training
    # By name: a plugin's file that is read anew makes its classes anew.
    classes = {owner: cls.__qualname__ for owner, cls in registry.owners(entry, **config.parts).items()}
    own = {owner: type(one).__qualname__ for owner, one in made.by_owner().items()}
    expected("components", own == classes, f"parts of {', '.join(classes.values())}", own)
    if reason := made.trainer.unsuited_to(training):
        raise UserError(f"{config.method}: {reason}")
    task = tasks.load(config.task, config.preset, **config.options)
    names = config.clients or list(task.sites())
    _check_sites(config, list(task.sites()))
    _check_selector(config, made.selector, names)
    if isinstance(task, OwnData):
        refuse_pooling(made.selector, f"task {config.task}, whose data belong to the sites")
    _check_early_end(config, made.selector, names)
    _check_after(config, task)
    for name in config.exchanges:
        find(name)
    if config.solo:
        _check_solo(config, made.rule, made.selector, names)
    if made.trainer.private or config.site_epsilon:
        _check_budget(config, made.trainer, task)
    if config.site_epsilon:
        _check_site_noise(config, made.trainer, task)
    if task.by_script:
        _check_script(config, made.trainer)
    _check_tuning(config, made.trainer)
    if config.evaluation:
        _check_evaluation(config)
    _check_bounds(config, made.rule, made.trainer)
    _check_best(config, made.rule, made.trainer, task.headline)
    for module in config.code:
        expected("code", module.isidentifier() and module != user_code.PACKAGE, "names of modules", module)
    offer, pieces = task.offer(task.grouping(config.group_by)), list[Any]([made.rule, made.trainer, *made.probes])
    if training.logit_tau and not offer.has_classes:
        raise UserError(f"logit_tau: task {offer.task} has no class labels to adjust logits by; set logit_tau=0")
    if missing := next(filter(None, (piece.missing(offer) for piece in pieces)), ""):
        raise UserError(f"{config.method} on task {offer.task}: {missing}")
    if config.secure_sum == NONE:
        expected("mask_neighbours", config.mask_neighbours == AUTO, "auto without secure_sum", config.mask_neighbours)
    else:
        _check_sums(config, made, len(task.sites()) - bool(config.leave_out))
    if reason := misfit({"method": config.method, "rule": entry.rule, **config.parts}, made.rule, made.trainer):
        raise UserError(reason)


def _check_script(config: RunConfig, trainer: Trainer) -> None:
    """Raise UserError for what a site cannot do whose own script trains in the place of this package's parts."""
    alone, sums = not (trainer.has_server_half or trainer.keeps_personal_model or trainer.receives), config.secure_sum
    what = "one that exchanges models alone with a script, which trains in its place (--set trainer=sgd)"
    expected("trainer", alone, what, config.trainer)
    expected("secure_sum", sums == NONE, "none with a script, whose answers nobody masks", sums)
    expected("after", config.after == NO_STEP, "none with a script, whose cases nobody reads", config.after)
    expected("stacked", not config.stacked, "false with a script", config.stacked)
    expected("tune", config.tune == "all", "all with a script, which has its own network", config.tune)
    expected("solo", not config.solo, "false with a script, which nobody else can have train alone", config.solo)
    expected("exchanges", not config.exchanges, "none with a script, whose cases nobody reads", config.exchanges)


def _check_tuning(config: RunConfig, trainer: Trainer) -> None:
    """Raise UserError for a frozen body that nobody can build, and for what is said of one that is not there."""
    if config.tune == "all":
        expected("body", config.body == "job", "job without tune", config.body)
    else:
        expected(
            "tune", not trainer.sums_only, f"all with trainer {config.trainer}, which trains no network", config.tune
        )
        expected("stacked", not config.stacked, "false with tune", config.stacked)
    expected("tune_views", not config.tune_views or config.tune == "head", "0 without tune=head", config.tune_views)
    plain = config.secure_sum == NONE and not (trainer.sums_only or config.stacked or config.task == "script")
    short = "float32 with secure sums, exact regressions, stacked runs and scripts"
    expected("exchange", plain or config.exchange == "float32", short, config.exchange)
    if config.body == "site":
        expected("init_from", bool(config.init_from), "the weights that sites have, with body=site", "none")
    if config.tune != "lora":
        plain = config.tune_layers == "" and config.tune_alpha == 0
        expected(
            "tune_layers", plain, "none, and tune_alpha 0, without tune=lora", config.tune_layers or config.tune_alpha
        )


def _check_budget(config: RunConfig, trainer: Trainer, task: Task) -> None:
    """Raise UserError for what would tell of a site's records past the run's privacy budget."""
    by = f"trainer {config.trainer}" if trainer.private else "site_epsilon"
    what = f"with {by}, whose budget does not cover"
    expected("solo", not config.solo, f"false {what} a site's model of its own", config.solo)
    expected("exchanges", not config.exchanges, f"none {what} those of plugins", config.exchanges)
    expected("after", config.after == NO_STEP, f"none {what} sums over calibration cases", config.after)
    expected("best_by", config.best_by == NO_CHOICE, f"none {what} validation cases", config.best_by)
    expected("fold", not config.fold, f"none {what} the deals of join", config.fold)
    expected("evaluation", not config.evaluation, f"false {what} how many cases the results are of", config.evaluation)
    expected("task", not task.by_script, f"no script {what} what a script does", config.task)
    if trainer.private and getattr(task, "crops", False):
        raise UserError(f"train_transforms: expected num_samples of 1 {what} several examples of a record")
    if isinstance(task, OwnData) and (reason := task.not_public()):
        raise UserError(f"{reason} with {by}: training rows may decide nothing past the budget")


def _check_site_noise(config: RunConfig, trainer: Trainer, task: Task) -> None:
    """Raise UserError where a hospital's updates cannot have a budget."""
    what = "with site_epsilon, whose noise is added behind masks"
    expected("secure_sum", config.secure_sum != NONE, f"masks or ckks {what}", config.secure_sum)
    if trainer.sums_only:
        raise UserError(f"site_epsilon: trainer {config.trainer} sends sums over patients, which no norm bounds")
    most = len(task.sites()) - bool(config.leave_out) - 1
    expected("site_colluders", config.site_colluders < most, f"at most {most - 1}", config.site_colluders)


def _check_evaluation(config: RunConfig) -> None:
    """Raise UserError for what goes with training alone, in a run that only evaluates."""
    for name, none in (("after", NO_STEP), ("best_by", NO_CHOICE), ("secure_sum", NONE), ("leave_out", "")):
        expected(name, getattr(config, name) == none, f"{none or 'no site'} in an evaluation", getattr(config, name))
    for name in ("solo", "stacked", "exchanges"):
        expected(name, not getattr(config, name), "none in an evaluation", getattr(config, name))
    expected("rounds", config.training.rounds == 1, "1 in an evaluation", config.training.rounds)


def _check_bounds(config: RunConfig, rule: Rule, trainer: Trainer) -> None:
    """Raise UserError where updates cannot be clipped, or weights capped, as the run asks."""
    try:
        bounds = config.bounds
    except ValueError as error:
        raise UserError(str(error)) from None
    if config.secure_sum != NONE and (bounds.clip or bounds.mix != "none"):
        raise UserError(f"{_bounding(bounds)}: compares single updates, which secure sums hide")
    if config.secure_sum != NONE and bounds.cap != 1:
        raise UserError("cap_weights: needs single weights, which stay at the sites with secure sums")
    if reason := bounds.uncappable(rule):
        raise UserError(f"cap_weights: {reason}")
    if bounds.mix != "none" and (rule.own_models or rule.alone):
        raise UserError(f"mix_updates: {config.method} gives sites models of their own, whose updates do not compare")
    if trainer.sums_only and bounds != Bounds():
        raise UserError(f"{_bounding(bounds)}: expected none, since trainer {config.trainer} sends sums over patients")
    if trainer.collects and bounds not in (Bounds(), USUAL, dataclasses.replace(USUAL, cap=1.0)):
        what = f"does not bound what the server half of trainer {config.trainer} takes up; leave it out"
        raise UserError(f"{_bounding(bounds, (0, SPREAD))}: {what}")


USUAL = Bounds(clip=SPREAD, cap=SPREAD)
"""Clipped is what a trainer's server half takes up, too."""


def _bounding(bounds: Bounds, clips: Collection[float | str] = (0,)) -> str:
    """The key of a run that bounds a site, where ``clips`` are the values of clip_updates that may stand."""
    return "clip_updates" if bounds.clip not in clips else "mix_updates" if bounds.mix != "none" else "cap_weights"


def _check_best(config: RunConfig, rule: Rule, trainer: Trainer, headline: str) -> None:
    """Raise UserError where no best model can be chosen as the run asks."""
    if config.best_by == NO_CHOICE:
        expected("headline", config.headline == "final", "final without best_by", config.headline)
    if config.best_by != "trade-off":
        expected("best_weight", config.best_weight == 0.5, "0.5 without best_by=trade-off", config.best_weight)
    if config.best_by == NO_CHOICE:
        return
    if rule.own_models or not trainer.is_shared:
        raise UserError(f"best_by: {config.method} gives sites models or layers of their own: a round has no one model")
    if config.secure_sum != NONE and headline in HIDDEN_METRICS:
        raise UserError(f"best_by: sites do not say their {headline} in a run with secure sums")


def _check_solo(config: RunConfig, rule: Rule, selector: Selector, names: Iterable[str]) -> None:
    """Raise UserError where no site could report its benefit of joining."""
    if rule.alone:
        raise UserError(f"solo: {config.method} is what the others are held against; leave it out")
    if selector.pools:
        raise UserError("solo: expected sites that train on data of their own, got selector pool")
    for name in names:
        endings = f"names that do not end in {ALONE_ENDING.removesuffix(SUFFIX)} or {WORK_ENDING.removesuffix(SUFFIX)}"
        expected("solo: site", not f"{name}{SUFFIX}".endswith((ALONE_ENDING, WORK_ENDING)), endings, name)


def _check_after(config: RunConfig, task: Task) -> None:
    """Raise UserError where the task lacks what the step after the last round needs."""
    step = config.after_step
    expected("after", type(step) is (step_class(config.after) or type(None)), f"a step for {config.after}", step)
    if step is None:
        return
    known = step.shape_of(task, task.grouping(config.group_by).names)
    if step.by == "group" and not known.groups:
        raise UserError("after.by: expected site, or group_by=ATTRIBUTE, for the run has no groups")
    if step.by == "group" and LABEL in config.group_by.split("+"):
        raise UserError("after.by: expected groups that are known of a new patient (group_by=ATTRIBUTE), got the label")
    if reason := step.missing(known):
        raise UserError(f"after: {reason}")


def refuse_pooling(selector: Selector, where: str) -> None:
    """Raise UserError where ``selector`` trains on the data of all sites: they leave no site but in a simulation."""
    if selector.pools:
        raise UserError(f"selector pool: expected a simulated or published task in one process, got {where}")


def _check_sites(config: RunConfig, sites: list[str]) -> None:
    if not sites:
        raise UserError(f"task {config.task}: name its sites: --datalists DIR, or --set site_names=A,B,C")
    for name in sites:
        expected("site_names", bool(SITE.fullmatch(name)), "names of letters, digits, spaces, - . and _", name)
        expected("site_names", not name.endswith(PERSONAL_ENDING), f"names that do not end in {PERSONAL_ENDING}", name)
    n_sites, clients = len(sites), config.clients
    if config.min_sites > n_sites:
        raise UserError(f"min_sites: expected at most the task's {n_sites} sites, got {config.min_sites}")
    if clients and (len(clients) != n_sites or len({name.lower() for name in clients}) < n_sites):
        different = f"{n_sites} different names, one per site of task {config.task}"
        raise UserError(f"clients: expected {different}, got {len(clients)}")
    if config.leave_out:
        expected("leave_out", config.leave_out in (clients or sites), f"a site of task {config.task}", config.leave_out)
    named = n_sites - bool(config.leave_out)
    if config.require != "all" and config.require > named:
        raise UserError(f"require: expected at most the {named} sites that the run names, got {config.require}")


def _check_selector(config: RunConfig, selector: Selector, names: list[str]) -> None:
    """Raise UserError where a round cannot have the sites that it needs."""
    training = [name for name in names if name != config.leave_out]
    if reason := selector.missing(training):
        raise UserError(reason)
    count = asked_sites(config, selector, names)
    if count < min(config.min_sites, len(training)):
        asked = f"the {count} sites that selector {config.selector} asks"
        raise UserError(f"min_sites: expected at most {asked}, got {config.min_sites}")


def asked_sites(config: RunConfig, selector: Selector, names: list[str]) -> int:
    """How many sites a round asks while all are there."""
    training = [name for name in names if name != config.leave_out]
    return len(selector.select(training, Round(1, 1), config.seed, config.min_sites)) if training else 0


def _check_early_end(config: RunConfig, selector: Selector, names: list[str]) -> None:
    """Raise UserError where a round would end with fewer answers than it needs, or more than it asks for."""
    if config.min_responses is None:
        return expected("grace", config.grace == 0, "0 without min_responses", config.grace)
    asked = asked_sites(config, selector, names)
    least = min(config.min_sites, asked)
    words = f"a whole number from min_sites, {least}, to the {asked} sites that a round asks"
    expected("min_responses", least <= config.min_responses <= asked, words, config.min_responses)


def _check_sums(config: RunConfig, made: MethodParts, n_sites: int) -> None:
    """Raise UserError where there can be no secure sums over ``n_sites`` sites that train."""
    rule, neighbours = made.rule, config.mask_neighbours
    check_scheme(config.secure_sum)
    if not isinstance(rule, SummedRule):
        raise UserError(f"secure_sum: {config.method} weighs by more than sums over the sites")
    if rule.own_models:
        raise UserError(f"secure_sum: {config.method} gives sites models of their own, which no sum can")
    if reason := rule.unsummable():
        raise UserError(f"secure_sum: {reason}")
    if config.secure_sum == "ckks" and (q := getattr(rule, "q", 0)) > MOST_CKKS_Q:
        what = f"expected q of at most {MOST_CKKS_Q}, got {q:g}"
        raise UserError(f"secure_sum: ckks rounds numbers too far apart: {what}")
    if neighbours.isdigit():  # fewer are not safe
        graph_of = importlib.import_module(GRAPHS).graph_of
        least = graph_of(AUTO, n_sites).degree(n_sites)
        words = f"auto, all or {least} to {n_sites - 1} with {n_sites} sites that train"
        expected("mask_neighbours", least <= int(neighbours) < n_sites, words, neighbours)
    if n_sites < LEAST:
        raise UserError(f"secure_sum: expected at least {LEAST} sites that train, got {n_sites}")
    if config.min_sites < LEAST:
        raise UserError(f"min_sites: expected at least {LEAST} with secure_sum, got {config.min_sites}")
    pieces: tuple[Trainer | Probe, ...] = (made.trainer, *made.probes)
    specs = [spec for piece in pieces for spec in (*piece.sends, *piece.receives)]
    if names := [spec.name for spec in specs if isinstance(spec, TensorSpec)]:
        what = f"sends tensors ({names[0]}) beside the model, which it does not hide"
        raise UserError(f"secure_sum: {config.method} {what}")
    if made.trainer.reads_answers:
        raise UserError(f"secure_sum: the server half of {config.method}'s trainer needs more than sums over the sites")


AVERAGING = "fedavg"
"""The rule that is as good as any where all updates are zero."""
NO_SERVER_STEP = "none"


def misfit(ids: Mapping[str, str], rule: Rule, trainer: Trainer) -> str:
    """Why a method's parts (``ids``, the method's too) do not go together, in one line; empty where they do."""
    method, steps = ids["method"], ids["server_optimizer"] != NO_SERVER_STEP
    by, under = f"trainer {ids['trainer']}", f"rule {ids['rule']}"
    unheeded = [name for name in rule.heeded if name not in trainer.heeds]
    reasons = (
        (rule.own_models and steps, f"server_optimizer: expected none, for {method} gives sites models of their own"),
        (rule.ends_apart and steps, f"server_optimizer: expected none, for {method} ends with a mean of its models"),
        (
            "minus_error" in rule.useful and steps,
            f"server_optimizer: expected none, for {method} takes sites out of plain averages (or terms=cosine)",
        ),
        (bool(unheeded), f"{under}: expected a trainer that heeds its orders ({', '.join(unheeded)}), got {by}"),
        (
            rule.alone and (trainer.has_server_half or bool(trainer.receives)),
            f"{under}: expected a trainer that exchanges nothing, since every site is alone, got {by}",
        ),
        (
            rule.own_models and trainer.corrects,
            f"{by}: corrects the shared model at the server, but {under} gives sites models of their own",
        ),
        (
            isinstance(rule, Combining) and trainer.collects,
            f"{by}: its server half takes up what every site sends, so that {under} would protect from nobody",
        ),
        (
            trainer.sums_only and not rule.weighs_sums,
            f"{under}: expected a rule that weighs sites by numbers of their own, since {by} sends sums, got {method}",
        ),
        (
            trainer.sums_only and steps,
            f"{by}: sends sums and not a step, so that server optimizer {ids['server_optimizer']} has none to scale",
        ),
        (
            trainer.for_one_site and not rule.alone,
            f"{by}: trains every site by itself, expected rule solo, got {under}",
        ),
        (
            not trainer.shares_model and ids["rule"] != AVERAGING,
            f"{by}: leaves the models at the sites, so that {under} has no updates to weigh",
        ),
        (
            not trainer.shares_model and steps,
            f"{by}: leaves the models at the sites, so that server optimizer {ids['server_optimizer']} never moves",
        ),
    )
    return next((words for holds, words in reasons if holds), "")
