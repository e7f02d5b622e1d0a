# SPDX-License-Identifier: Apache-2.0
"""How a run's configuration is made: defaults, preset, method and user put together, later ones winning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.core import registry, user_code, validation
from fairflare.core.errors import UserError
from fairflare.core.findings import accepted_codes
from fairflare.core.settings import Given, Owners, bare, owner_of
from fairflare.core.types import Round, Training
from fairflare.engine.setup import tasks
from fairflare.engine.setup.after import NO_STEP, STEPS, step_class
from fairflare.engine.setup.chosen import PART_KEYS, Chosen, chosen_parts, taken
from fairflare.engine.setup.config_checks import checked_config
from fairflare.engine.setup.initial import named
from fairflare.engine.setup.method_parts import part, reference_of
from fairflare.engine.setup.run_config import RUN_KEYS, RunConfig, site_of_client
from fairflare.participation.base import Selector
from fairflare.privacy.secure_sum.protocol import LEAST
from fairflare.privacy.secure_sum.schemes import NONE
from fairflare.tasks.base import Preset, Task
from fairflare.tasks.kinds.own import OwnData

__all__ = ["PART_KEYS", "RUN_KEYS", "RunConfig", "checked_config", "make_config", "site_of_client", "with_step"]


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
        method: id, e.g. "fedism-plus".
        task: name or name:preset, e.g. "ich-phantom:small".
        rounds: T, the preset's when None.
        sites: number of sites, the preset's when None.
        seed: see ``RunConfig``.
        values: ``--set`` pairs by any name that works, see ``core.settings``; the owners are "rule", "trainer",
            "probe.ID", "select", "server", "train", "task" and "run". Whole parts are chosen as ``chosen_parts`` says.
        over: further pairs, which win over ``values``.

    Raises:
        UserError: one line that names the key, what was expected and what came.
    """
    layers = [dict(values or {}), dict(over or {})]
    name, _, preset = task.partition(":")
    chosen = chosen_parts(method, layers)
    task_class = type(tasks.load(name, preset or None))
    classes = registry.owners(chosen.method, **chosen.ids)
    step = validation.parsed(RunConfig, "after", taken("after", layers) or NO_STEP)
    after = step_class(step)
    everyone = {**classes, "train": Training, "task": task_class, **({"after": after} if after else {})}
    owners = Owners(everyone, chosen.method.shared, (RunConfig, (*RUN_KEYS, *PART_KEYS)))
    given = _given(owners, layers, rounds, sites)
    used = preset or next(iter(task_class.presets))
    found = _found(chosen, owners, classes, task_class.presets[used], given)
    filled = {owner: _filled(owners, owner, cls, found) for owner, cls in classes.items()}
    built, training, run = _data_and_training(owners, found, task_class, used, planned=not preset)
    made = {owner: part(classes[owner], filled[owner]) for owner in ("rule", "trainer", "select")}
    own = _values(given, "run")
    run = {} if made["rule"].own_models or not made["trainer"].is_shared or own.get("secure_sum", NONE) != NONE else run
    return checked_config(
        RunConfig(
            method=chosen.method.id,
            **dict[str, Any](chosen.ids),
            settings={f"{owner}.{key}": value for owner, own in filled.items() for key, value in own.items()},
            task=name,
            preset=used,
            options=dataclasses.asdict(built),
            training=training,
            after=step,
            after_settings=_filled(owners, "after", after, given) if after else {},
            code=user_code.fingerprints(),
            seed=validation.parsed(RunConfig, "seed", seed),
            **_run_choices(built, made["select"], _chosen_round(run, own) | own),
        )
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
        given |= owners.resolved({"task.n_sites" if "task.n_sites" in owners.full else "n_sites": sites})
    return given


def _found(
    chosen: Chosen, owners: Owners, classes: Mapping[str, type], preset: Preset, given: dict[str, Given]
) -> dict[str, Given]:
    """Full name -> what holds of the parts' defaults, the preset's, the reference variant's and the user's settings.

    Local training is the task's, equal for all methods, unless the user asks for another or for variant=reference.
    """
    defaults = chosen.defaults(owners) | owners.spread(preset.settings_of(chosen.method.id))
    found = {full: one for full, one in defaults.items() if owner_of(full) in classes}
    return found | (reference_of(chosen.method, owners) if _wants_reference(given) else {}) | given


def _data_and_training(
    owners: Owners, found: Mapping[str, Given], cls: type[Task], preset: str, *, planned: bool
) -> tuple[Task, dict[str, Any], dict[str, Any]]:
    """The task, every setting of local training and what a plan says of the run; ``planned``: whether there may be one.

    A user who names a preset has said how to train; otherwise a plan that was made of their data counts.
    """
    options, trained = (_checked(owners, owner, found) for owner in ("task", "train"))
    usual = dataclasses.asdict(cls.presets[preset].training)
    if not issubclass(cls, OwnData):
        return tasks.load(cls.name, preset, **options), _made(Training, usual | trained), {}
    from fairflare.engine.setup.plans import NOTHING, plan_for  # and with it what reads images and tables
    from fairflare.tasks.own.tabular import Tabular
    from fairflare.tasks.planning import AGAIN

    learned = plan_for(cls.name, options) if planned or cls is Tabular else NOTHING
    chosen = learned if planned else NOTHING
    built = tasks.load(cls.name, preset, **{**chosen.values("task", options), **options, **learned.agreed(options)})
    base = usual | chosen.values("train", {*trained, *options})
    if planned and "run.init_from" in found:
        base["lr"] *= AGAIN
    return built, _made(Training, base | trained), chosen.values("run", ())


def _chosen_round(planned: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan says of a choice among rounds, but for a user who wants none."""
    return {} if own.get("best_by") == "none" or own.get("headline") == "final" else dict(planned)


def with_step(config: RunConfig, step: str, values: Mapping[str, Any]) -> RunConfig:
    """``config`` with a step after the last round, and its settings by their own or full names; raises UserError."""
    step = validation.parsed(RunConfig, "after", step)
    after = step_class(step)
    if after is None:
        raise UserError(f"step: expected {' or '.join(STEPS[1:])}, got {step}")
    owners = Owners({"after": after})
    settings = _made(after, _checked(owners, "after", owners.resolved(values)))
    return checked_config(dataclasses.replace(config, after=step, after_settings=settings))


def _values(given: Mapping[str, Given], owner: str) -> dict[str, Any]:
    return {bare(full): one.value for full, one in given.items() if owner_of(full) == owner}


def _wants_reference(given: Mapping[str, Given]) -> bool:
    owner = "rule" if "rule.variant" in given else "trainer"
    return f"{owner}.variant" in given and given[f"{owner}.variant"].value == "reference"


def _run_choices(built: Task, selector: Selector, values: Mapping[str, Any]) -> dict[str, Any]:
    """What RUN_KEYS say, beside the parts, of a run on the task ``built``."""
    secret = str(values.get("secure_sum", NONE)) != NONE
    clients = [part.strip() for part in str(values.get("clients", "")).split(",") if part.strip()]
    sites = [name for name in clients or built.sites() if name != values.get("leave_out")]
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
        "init_from": named(values.get("init_from", "")),
    }
    return {key: validation.parsed(RunConfig, key, value) for key, value in chosen.items()}


def _filled(owners: Owners, owner: str, cls: type, found: Mapping[str, Given]) -> dict[str, Any]:
    """Every setting of one owner: what was found for it, defaults for the rest."""
    return _made(cls, _checked(owners, owner, found))


def _made(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return dataclasses.asdict(part(cls, values))


def _checked(owners: Owners, owner: str, found: Mapping[str, Given]) -> dict[str, Any]:
    """Own name -> checked value of what was found for one owner."""
    return {bare(full): owners.checked(full, given) for full, given in found.items() if owner_of(full) == owner}
