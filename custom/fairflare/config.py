# SPDX-License-Identifier: Apache-2.0
"""What a run is: every choice spelt out, so that ``config.json`` alone repeats it and a FLARE job can carry it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from fairflare import registry, user_code
from fairflare.clinic import tasks
from fairflare.clinic.base import Task
from fairflare.contracts import Offer, Training
from fairflare.errors import UserError
from fairflare.privacy.ckks import MOST_Q
from fairflare.privacy.schemes import NONE, check_scheme
from fairflare.privacy.sums import LEAST
from fairflare.rules.base import SummedRule

FORMAT = 1
RUN_KEYS = (
    "trainer",
    "min_sites",
    "threads",
    "group_by",
    "min_count",
    "leave_out",
    "clients",
    "federation",
    "task_timeout",
    "secure_sum",
)
NO_CHOICES = ("federation", "task_timeout")
"""Keys that may differ between a job and the one that continues it."""

FEDERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a federation's id may look like; it names a folder."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One federation, as JSON values.

    Attributes:
        method: id of the method.
        trainer: id of the trainer, the method's own unless the user combined it with another.
        settings: every parameter of the rule, the trainer and the probes.
        task: name of the task.
        preset: the preset that options and training settings started from.
        options: every option of the task.
        training: every local training setting, T among them.
        seed: seeds the initial model and every site's work; the data have a seed of their own among the options.
        min_sites: accepted sites that a round needs; half of them by default, at least two.
        threads: torch threads per process; results are bit-identical only between runs that share it.
        group_by: the groups that results are told apart by, and that methods for subpopulations weigh: "label", an
            attribute of the task, several joined as in "label+sex", or "none".
        min_count: the fewest examples of a group whose numbers leave a site; None: none leave.
        leave_out: a site that trains nothing and is only evaluated; empty: none.
        clients: the FLARE clients that take the task's sites, in the task's order; empty: named as in the task.
        federation: id of the federation that a deployed job continues, which is its first job's; empty: a new one.
        task_timeout: seconds that FLARE's sites have for one task; who takes longer is left out of that round and not
            waited for until it answers again.
        secure_sum: how sites sum the numbers that the weights are made of: "none" (they say them), "masks" or "ckks",
            see ``privacy.sums``.
        code: module -> SHA-256 of the user's own files that the run needs, see ``user_code``.
    """

    method: str
    trainer: str
    settings: dict[str, Any]
    task: str
    preset: str
    options: dict[str, Any]
    training: dict[str, Any]
    seed: int = 0
    min_sites: int = 2
    threads: int = 1
    group_by: str = "label"
    min_count: int | None = 10
    leave_out: str = ""
    clients: list[str] = dataclasses.field(default_factory=list)
    federation: str = ""
    task_timeout: int = 3600
    secure_sum: str = "none"
    code: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The content of ``config.json`` but for what it says of the environment."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunConfig:
        """Read ``to_json`` back; keys that only describe are ignored. Raises UserError on another format."""
        if content.get("format") != FORMAT:
            raise UserError(f"config: expected format {FORMAT}, got {content.get('format')!r}")
        try:
            return cls(**{f.name: content[f.name] for f in dataclasses.fields(cls)})
        except KeyError as missing:
            raise UserError(f"config: expected a value for {missing.args[0]!r}, got none") from None

    def sha256(self) -> str:
        """Hash of the canonical JSON, but for what a job that continues the run may have otherwise."""
        choices = {key: value for key, value in self.to_json().items() if key not in NO_CHOICES}
        return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()


def make_config(
    method: str,
    task: str,
    *,
    rounds: int | None = None,
    sites: int | None = None,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Put defaults, the preset's training, the method's settings, the preset's and the user's together; later ones win.

    Args:
        method: id, e.g. "fedism-plus".
        task: name or name:preset, e.g. "ich-phantom:small".
        rounds: T, the preset's when None.
        sites: number of sites, the preset's when None.
        seed: see ``RunConfig``.
        values: ``--set`` pairs: parameters of rule, trainer, probes, training settings, task options, or RUN_KEYS.

    Raises:
        UserError: one line that names the key, what was expected and what came.
    """
    values = dict(values or {})
    if rounds is not None:
        values["rounds"] = rounds
    if sites is not None:
        values["n_sites"] = sites
    name, _, preset = task.partition(":")
    entry = registry.get_method(method)
    task_class = type(tasks.load(name, preset or None))
    preset = preset or next(iter(task_class.presets))
    trainer_id = str(values.pop("trainer", entry.trainer))
    parts = [entry.rule, registry.get_trainer(trainer_id), *map(registry.get_probe, entry.probes)]

    known = {key for part in (*parts, Training, task_class) for key in registry.parameters(part)}
    unknown = sorted(set(values) - known - set(RUN_KEYS))
    if unknown:
        raise UserError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(known | set(RUN_KEYS)))}")

    chosen = dict(entry.settings) | task_class.presets[preset].settings
    if values.get("variant") == "reference":
        chosen |= entry.reference
    settings = _settings(parts, chosen | values)
    built = tasks.load(name, preset, **_among(task_class, values))
    choices = _run_choices(name, built, values)
    offer = built.offer(built.grouping(choices["group_by"]))
    base = dataclasses.asdict(task_class.presets[preset].training)
    training = _filled(Training, base | _among(Training, chosen) | _among(Training, values))
    made = [part(cls, settings) for cls in parts]
    _refuse_what_is_missing(method, made, training, offer)
    if choices["secure_sum"] != NONE:
        choices["min_sites"] = _enough_for_sums(method, made[0], choices, values, len(built.sites()))
    return RunConfig(
        method=method,
        trainer=trainer_id,
        settings=settings,
        task=name,
        preset=preset,
        options=dataclasses.asdict(built),
        training=training,
        code=user_code.fingerprints(),
        seed=_whole("seed", seed, 0),
        **choices,
    )


def _run_choices(name: str, built: Task, values: Mapping[str, Any]) -> dict[str, Any]:
    """What RUN_KEYS say, beside the trainer, of a run on the task ``built``."""
    n_sites = len(built.sites())
    if not n_sites:
        raise UserError(f"task {name}: name its sites: --datalists DIR, or --set site_names=A,B,C")
    min_sites = _whole("min_sites", values.get("min_sites", min(n_sites, max(2, -(-n_sites // 2)))), 1)
    if min_sites > n_sites:
        raise UserError(f"min_sites: expected at most the task's {n_sites} sites, got {min_sites}")
    clients = [part.strip() for part in str(values.get("clients", "")).split(",") if part.strip()]
    if clients and (len(clients) != n_sites or len({name.lower() for name in clients}) < n_sites):
        raise UserError(f"clients: expected {n_sites} different names, one per site of task {name}, got {len(clients)}")
    leave_out = str(values.get("leave_out", ""))
    if leave_out and leave_out not in (clients or built.sites()):
        raise UserError(f"leave_out: expected a site of task {name}, got {leave_out!r}")
    federation = str(values.get("federation", ""))
    if federation and not FEDERATION.fullmatch(federation):
        raise UserError(f"federation: expected the id of an earlier job, got {federation!r}")
    min_count = values.get("min_count", 10)
    return {
        "min_sites": min_sites,
        "threads": _whole("threads", values.get("threads", 1), 1),
        "group_by": str(values.get("group_by", built.default_grouping)),
        "min_count": None if str(min_count) == "none" else _whole("min_count", min_count, 0),
        "leave_out": leave_out,
        "clients": clients,
        "federation": federation,
        "secure_sum": str(values.get("secure_sum", NONE)),
        "task_timeout": _whole("task_timeout", values.get("task_timeout", 3600), 1),
    }


def _enough_for_sums(
    method: str, rule: Any, choices: Mapping[str, Any], values: Mapping[str, Any], n_sites: int
) -> int:
    """``min_sites`` of a run with secure sums; raises UserError where there can be none."""
    check_scheme(choices["secure_sum"])
    if not isinstance(rule, SummedRule):
        raise UserError(f"secure_sum: {method} weighs by more than sums over the sites")
    if reason := rule.unsummable():
        raise UserError(f"secure_sum: {reason}")
    if choices["secure_sum"] == "ckks" and getattr(rule, "q", 0) > MOST_Q:
        raise UserError(
            f"secure_sum: ckks rounds numbers too far apart: expected q of at most {MOST_Q}, got {rule.q:g}"
        )
    if n_sites - bool(choices["leave_out"]) < LEAST:
        raise UserError(f"secure_sum: expected at least {LEAST} sites that train, got {n_sites}")
    if "min_sites" in values and choices["min_sites"] < LEAST:
        raise UserError(f"min_sites: expected at least {LEAST} with secure_sum, got {choices['min_sites']}")
    return max(choices["min_sites"], LEAST)


def site_of_client(config: RunConfig, task: Task) -> dict[str, str]:
    """FLARE client -> the task's site that it takes, in the task's order."""
    return dict(zip(config.clients or task.sites(), task.sites(), strict=True))


def _refuse_what_is_missing(method: str, parts: list[Any], training: Mapping[str, Any], offer: Offer) -> None:
    if training["logit_tau"] and not offer.class_labels:
        raise UserError(f"logit_tau: task {offer.task} has no class labels to adjust logits by; set logit_tau=0")
    for piece in parts:
        missing = piece.missing(offer)
        if missing:
            raise UserError(f"{method} on task {offer.task}: {missing}")


def part(cls: type, settings: Mapping[str, Any]) -> Any:
    """An instance of a rule, trainer, probe or Training with its share of ``settings``; raises UserError."""
    try:
        return cls(**{key: registry.checked(cls, key, value) for key, value in _among(cls, settings).items()})
    except ValueError as error:
        raise UserError(str(error)) from None


def _settings(parts: list[type], chosen: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for cls in parts:
        settings |= _filled(cls, _among(cls, chosen))
    return settings


def _filled(cls: type, chosen: Mapping[str, Any]) -> dict[str, Any]:
    checked = {key: registry.checked(cls, key, value) for key, value in chosen.items()}
    return dataclasses.asdict(part(cls, checked))


def _among(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in registry.parameters(cls)}


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise UserError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number
