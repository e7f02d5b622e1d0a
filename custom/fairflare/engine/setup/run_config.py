# SPDX-License-Identifier: Apache-2.0
"""What a run is: every choice spelt out, so that ``config.json`` alone repeats it and a FLARE job can carry it.

Its parts, training and last step are objects, made once; whoever builds a server or a site takes them from here.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import InstanceOf
from pydantic.dataclasses import dataclass

from fairflare.aggregators.base import LIARS, MIXES, SPREAD, At, Bounds, Mix
from fairflare.core import registry, validation
from fairflare.core.findings import ACCEPTABLE
from fairflare.core.settings import exactly_the_keys, flat, nested, whole
from fairflare.core.types import Training
from fairflare.core.validation import CLIENT, FEDERATION, SHA256, Entries, Range, Seed, Sites, Text, expected
from fairflare.engine.checks import BY, NO_CHOICE, RATIO
from fairflare.engine.setup import method_parts, tasks
from fairflare.engine.setup.config_checks import check_config
from fairflare.engine.setup.method_parts import NO_STEP, PART_KEYS, STEPS, MethodParts, checked_part, step_class
from fairflare.privacy.schemes import AUTO, NEIGHBOURS, SCHEMES
from fairflare.tasks.base import Task

FORMAT = 2
NO_CHOICES = ("federation", "task_timeout", "require", "require_within")
"""Keys that may differ between a job and the one that continues the same segment."""
CHANGES = (*NO_CHOICES, "min_sites", "min_responses", "grace", "accept", "clients")
"""Keys that may differ between the segments of a federation, as do the rounds and the task's ``MEMBERS``."""
MEMBERS = ("site_names", "datalists")

DESCRIPTIONS = frozenset({"format", "about", "title", "paper", "probes", "normalisation", "env", "versions"})
"""Keys of a ``config.json`` beside the choices; they describe, and nothing is built from them."""
Client = Annotated[str, Text(pattern=CLIENT.pattern, words="a name of letters, digits, - and _")]
Code = Annotated[str, Text(pattern="|".join(ACCEPTABLE), words=f"one of {', '.join(ACCEPTABLE)}")]
Fingerprint = Annotated[str, Text(pattern=SHA256.pattern, words="a SHA-256 of 64 hexadecimal digits")]
Name = Annotated[str, Text(most=64, pattern=r"[A-Za-z0-9][A-Za-z0-9_-]*", words="a name")]


@validation.one_line
@dataclass(frozen=True, config=validation.STRICT)
class RunConfig:
    """One federation, valid by construction: UserError for a value or a name that does not fit.

    Attributes:
        trainer: id of the trainer, the method's own unless the user combined it with another.
        components: the objects of these ids, of the rule and the probes; ``settings`` are all their parameters.
        preset: the preset that options and training settings started from.
        training: local training, T among its fields.
        seed: seeds the initial model and every site's work; the data have a seed of their own among the options.
        min_sites: accepted sites that a round needs. Where it is not set: half of the run's sites, rounded up, and at
            least two (three with secure sums).
        threads: torch threads per process; results are bit-identical only between runs that share it.
        group_by: the groups that results are given for, and that methods for subpopulations weigh: "label", an
            attribute of the task, several joined as in "label+sex", or "none".
        min_count: the fewest examples of a group whose numbers leave a site; None: none leave.
        leave_out: a site that trains nothing and is only evaluated; empty: none.
        clients: the FLARE clients that take the task's sites, in the task's order; empty: named as in the task.
        federation: id of the federation that a deployed job continues, which is its first job's; empty: a new one.
        require: how many of the named sites must be there before the first round; 0: min_sites, see
            ``Federation.require``.
        require_within: seconds for which whoever starts a deployed run waits for them.
        task_timeout: seconds that FLARE's sites have for one task; who takes longer is left out of that round and not
            waited for until it answers again.
        stacked: True computes the local steps of all sites in batched calls, in process only; the model is then equal
            within rounding, not bit for bit. See ``trainers.vmap_training``.
        min_responses: answers after which a round's training exchange ends over FLARE; None: those of all asked sites.
        grace: seconds after them in which further answers still count.
        secure_sum: how sites sum the numbers that the weights are made of: "none" (they say them), "masks" or "ckks",
            see ``privacy.secure_sums``.
        mask_neighbours: how many sites each shares masks of updates with: "auto", "all", or the fewest as a number.
        site_epsilon: budget of a hospital's updates over the run; 0: none, see ``privacy.differential_privacy``.
        site_delta: the chance that goes with it.
        site_clip: the largest norm of a site's update, as if all weights were alike.
        site_colluders: sites that may tell their share of the noise, or drop out of a sum.
        max_norm_ratio: how many times larger than the other sites', its own earlier ones and the model a site's update
            may be; see ``engine.norms``.
        robust: level against sites that lie: "off", "bounded" (of a new run without a level) or "mixed". It stands for
            values of the keys below, see ``LEVELS``, each of which may be set by itself.
        clip_updates: updates are clipped to this many times their median norm; 0: none is; "spread": those that stand
            out, see ``aggregators.bounded``.
        clip_at: which median: "median", "weighted" by examples, or followed by "bits".
        clip_memory: share of the past in a moving average of that median.
        cap_weights: the largest weight of a site; 1: any; "auto": 2 / K; "spread": 1.5 to 2 / K or its share.
        mix_updates: what takes the place of single updates: "none" or one of ``aggregators.base.MIXES``.
        liars: share of the sites that mixing holds against.
        accept: codes of preflight's errors that count as warnings in this run, see ``findings.ACCEPTABLE``.
        after: what is done with the final model: "none", "recalibrate" or "conformal", see ``engine.after``.
        after_step: the object of this name, an ``AfterStep``, whose code no other run's job carries; None: no step.
        best_by: how the best model among those of the rounds is chosen by validation: "none", "mean", "worst" or
            "trade-off", see ``engine.best``.
        best_weight: w of the trade-off, mean - w (mean - worst).
        headline: whose results the report shows first: those of the "final" or of the "best" model.
        solo: whether each site also trains alone, and says how much better the federation's model serves it, see
            ``engine.benefit``.
        exchanges: exchanges of plugins that follow the last round, see ``engine.exchanges``.
        score_rounds: whose models are scored on the shared test sets: those of the "last" rounds, or of "all".
        threshold: the risk from which on a patient counts as flagged in the report; None: the task's, .5 mostly.
        init_from: SHA-256 of the tensors that the initial model starts from, see ``engine.setup.weights``; "": none.
        tune: what of the network trains and travels: "all", or beside its last layer ("head") its normalisation layers
            ("norm") or low-rank adapters ("lora"), see ``engine.setup.tuning``.
        tune_rank: r of the adapters.
        tune_alpha: their outputs are multiplied with this over r; 0: with 1.
        tune_layers: names of layers, or their ends, with commas, that get adapters; "": all convolutions or, in a
            network without, all linear layers.
        tune_views: with "head": how many augmented views of each training image go through the body, once; 0: images
            that are augmented go through it in every step.
        body: where sites have the frozen weights from: "job", which brings them, or "site", whose own file names them.
        exchange: numbers of an update that train; of 16 bits what rounding leaves is added to the site's next update.
        evaluation: True trains nothing: every site evaluates the initial model on all that it has labelled.
        fold: "F/K/D": every site tests its patients of fold F of K and trains on the others, by the D-th deal, see
            ``tasks.folds``; "all": it trains on all of them and tests none, "all without SITE" but for this site; "":
            the task's own splits.
        decision: settings of the exchange "decide", see ``engine.exchanges.decide``.
        code: module -> SHA-256 of the user's own files that the run needs, see ``user_code``.
    """

    method: Name
    trainer: Name
    selector: Name
    server_optimizer: Name
    components: InstanceOf[MethodParts]
    task: Name
    preset: Name
    options: dict[str, Any]
    training: InstanceOf[Training]
    seed: Seed = 0
    min_sites: Sites = 2
    threads: Annotated[int, Range(1, 1024)] = 1
    group_by: Annotated[str, Text()] = "label"
    min_count: Annotated[int, Range(0, 1_000_000)] | None = 10
    leave_out: Annotated[str, Text(most=64)] = ""
    clients: Annotated[list[Client], Entries()] = dataclasses.field(default_factory=list)
    federation: Annotated[str, Text(pattern=f"({FEDERATION.pattern})?", words="the id of an earlier job")] = ""
    task_timeout: Annotated[int, Range(1, 30 * 86_400)] = 3600
    stacked: bool = False
    min_responses: Sites | None = None
    grace: Annotated[float, Range(0, 30 * 86_400)] = 0.0
    secure_sum: Annotated[str, Text(pattern="|".join(SCHEMES), words=f"one of {', '.join(SCHEMES)}")] = "none"
    mask_neighbours: Annotated[str, Text(pattern=NEIGHBOURS, words="auto, all or a number of sites")] = AUTO
    site_epsilon: Annotated[float, Range(0, 1e6)] = 0.0
    site_delta: Annotated[float, Range(1e-15, 0.1)] = 1e-5
    site_clip: Annotated[float, Range(1e-9, 1e9)] = 1.0
    site_colluders: Annotated[int, Range(0, 1000)] = 1
    max_norm_ratio: Annotated[float, Range(2, 1_000_000)] = RATIO
    robust: Annotated[str, Text(pattern="off|bounded|mixed", words="one of off, bounded, mixed")] = "off"
    clip_updates: Annotated[float, Range(0, 1_000_000)] | Literal["spread"] = 0.0
    clip_at: Annotated[str, Text(pattern="|".join(get_args(At)), words=f"one of {', '.join(get_args(At))}")] = "median"
    clip_memory: Annotated[float, Range(0, 1)] = 0.0
    cap_weights: Annotated[float, Range(0, 1)] | Literal["auto", "spread"] = 1.0
    mix_updates: Annotated[str, Text(pattern="|".join(MIXES), words=f"one of {', '.join(MIXES)}")] = "none"
    liars: Annotated[float, Range(0, 0.5)] = LIARS
    accept: Annotated[list[Code], Entries(16)] = dataclasses.field(default_factory=list)
    after: Annotated[str, Text(pattern="|".join(STEPS), words=f"one of {', '.join(STEPS)}")] = NO_STEP
    after_step: Any = None
    best_by: Annotated[str, Text(pattern="|".join(BY), words=f"one of {', '.join(BY)}")] = NO_CHOICE
    best_weight: Annotated[float, Range(0, 1)] = 0.5
    headline: Annotated[str, Text(pattern="final|best", words="final or best")] = "final"
    solo: bool = False
    exchanges: Annotated[list[Name], Entries(16)] = dataclasses.field(default_factory=list)
    score_rounds: Annotated[str, Text(pattern="last|all", words="last or all")] = "last"
    threshold: Annotated[float, Range(0.001, 0.999)] | None = None
    init_from: Annotated[str, Text(pattern=f"({SHA256.pattern})?", words="a run, a file of weights or a bundle")] = ""
    tune: Literal["all", "head", "norm", "lora"] = "all"
    tune_rank: Annotated[int, Range(1, 1024)] = 8
    tune_alpha: Annotated[float, Range(0, 1e6)] = 0.0
    tune_layers: Annotated[str, Text(most=4096)] = ""
    tune_views: Annotated[int, Range(0, 1000)] = 0
    body: Literal["job", "site"] = "job"
    exchange: Literal["float32", "bfloat16", "float16"] = "float32"
    evaluation: bool = False
    fold: Annotated[str, Text(pattern=r"(all( without [^/]+)?|1?\d/(1?\d|20)/[1-4]?\d)?", words="a fold as 0/5/0")] = ""
    decision: dict[str, Any] = dataclasses.field(default_factory=dict)
    require: Annotated[int, Range(0, 1_000_000)] | Literal["all"] = 0
    require_within: Annotated[int, Range(0, 30 * 86_400)] = 600
    code: Annotated[dict[str, Fingerprint], Entries(100)] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", whole(tasks.known(self.task), "options", self.options))
        check_config(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process reads it anew: it may not have imported the files that declare the parts."""
        return RunConfig.from_json, (self.to_json(),)

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter of the components by full name ("rule.q"), see ``core.settings``."""
        parts = self.components.by_owner().items()
        return {f"{owner}.{key}": value for owner, one in parts for key, value in dataclasses.asdict(one).items()}

    @property
    def bounds(self) -> Bounds:
        """How far one site may reach; raises ValueError where the values do not fit each other."""
        of = (cast("At", self.clip_at), self.clip_memory, self.cap_weights, cast("Mix", self.mix_updates), self.liars)
        return Bounds(self.clip_updates, *of)

    @property
    def parts(self) -> dict[str, str]:
        """Kind -> id of the parts that may be others than the method's own."""
        return {kind: getattr(self, kind) for kind in PART_KEYS}

    def to_json(self) -> dict[str, Any]:
        """The content of ``config.json`` but for what it says of the environment."""
        step = {} if self.after_step is None else dataclasses.asdict(self.after_step)
        objects = {
            "settings": nested(self.settings),
            "training": dataclasses.asdict(self.training),
            "after_settings": step,
        }
        plain = {name: copy.deepcopy(getattr(self, name)) for name in PLAIN}
        return without_later({"format": FORMAT, **plain, **objects})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunConfig:
        """Read ``to_json`` back, from whoever it comes, and check all of it before anything is built from it.

        Keys that only describe are ignored.

        Raises:
            UserError: another format, a key that is missing or unknown, a value of another type or out of its bounds,
                an unknown method, trainer, task or preset, or choices that do not fit each other.
        """
        expected("config", isinstance(content, Mapping), "keys and values", content)
        validation.check_plain("config", content)
        number = content.get("format")
        expected("config", number == FORMAT and type(number) is int, f"format {FORMAT}", number)
        content = with_later(content)
        exactly_the_keys("config", content.keys() - DESCRIPTIONS, JSON_NAMES)
        names = {name: validation.exact(cls, name, content[name]) for name in ("method", *PART_KEYS, "after")}
        method, ids = registry.get_method(names["method"]), {kind: names[kind] for kind in PART_KEYS}
        return cls(
            **{name: content[name] for name in PLAIN},
            components=method_parts.method_parts(method, flat(content["settings"]), **ids),
            training=checked_part(Training, "training", content["training"]),
            after_step=checked_part(step_class(names["after"]), "after_settings", content["after_settings"]),
        )

    def sha256(self) -> str:
        """Hash of the canonical JSON, but for what a job that continues the run may have otherwise."""
        choices = {key: value for key, value in self.to_json().items() if key not in NO_CHOICES}
        return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()

    def lineage(self) -> str:
        """Hash of what no segment of a federation changes: the same for all of them.

        A budget of privacy is dealt out over the rounds, which then are part of it.
        """
        choices = {key: value for key, value in self.to_json().items() if key not in CHANGES}
        choices["options"] = without_members(choices["options"])
        if self.best_by != NO_CHOICE:  # two models are compared over so many sites at least
            choices["min_sites"] = self.min_sites
        if not (self.components.trainer.private or self.site_epsilon):
            choices["training"] = {key: value for key, value in choices["training"].items() if key != "rounds"}
        return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()


LEVELS: Mapping[str, Mapping[str, Any]] = {
    "off": {},
    "bounded": {"clip_updates": SPREAD, "cap_weights": SPREAD},
    "mixed": {"clip_updates": 1.0, "cap_weights": "auto", "mix_updates": "krum-neighbours"},
}
"""Level of ``robust`` -> the settings that it stands for."""
USUAL_LEVEL = "bounded"

OBJECTS = {"components": "settings", "training": "training", "after_step": "after_settings"}
"""Fields that hold objects -> the key of their settings in ``config.json``."""
FIELDS = tuple(field.name for field in dataclasses.fields(RunConfig))
PLAIN = tuple(name for name in FIELDS if name not in OBJECTS)
"""Fields that hold JSON values."""
JSON_NAMES = tuple(OBJECTS.get(name, name) for name in FIELDS)
BESIDE = {"method", "settings", "task", "preset", "options", "training", "seed", "code"}
BESIDE |= {"evaluation", "fold", "decision"}
"""Keys that are no settings of a run, but what it is made of."""
RUN_KEYS = tuple(name for name in JSON_NAMES if name not in {*BESIDE, *PART_KEYS, "after", "after_settings"})
"""Settings of the run, whose owner is "run"; a step after the last round is chosen with its own."""


def without_members(options: Mapping[str, Any]) -> dict[str, Any]:
    """A task's options but for those that say whose data they are."""
    return {key: value for key, value in options.items() if key not in MEMBERS}


def site_of_client(config: RunConfig, task: Task) -> dict[str, str]:
    """FLARE client -> the task's site that it takes, in the task's order."""
    return dict(zip(config.clients or task.sites(), task.sites(), strict=True))


FIRST = BESIDE - {"evaluation", "fold", "decision"} | {*PART_KEYS, "min_sites", "threads", "group_by", "min_count"}
FIRST |= {"leave_out", "clients", "federation", "task_timeout", "secure_sum", "max_norm_ratio", "accept"}
"""The fields that format 2 began with."""
LATER = {
    name: default for name, default in registry.parameters(RunConfig).items() if name in PLAIN and name not in FIRST
}
LATER |= {"after_settings": {}}
LATER_IN_TRAINING: Mapping[str, Any] = {"local_steps": None, "fewest_steps": None, "most_steps": None, "horizon": None}
TABLES = ("tabular", "regression", "multilabel", "ordinal", "survival")
LATER_IN_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "heart": {"reference": False, "scaling": "centre"},
    "classification": {"window": "percentiles"},
    "segmentation": {"window": "percentiles"},
    **dict.fromkeys(TABLES, {"vectors": "", "encoder": "", "pooling": "mean", "renamed": "", "reading": ""}),
}
"""Keys, settings of training and, by task, options that came after format 2, with what holds where a file does not name
them: they are then not written either, so that a run which was begun without them keeps its hash."""


def without_later(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's content as a file has it: of what came later only what says something."""
    options = LATER_IN_OPTIONS.get(content["task"], {})
    found = {"training": _but(LATER_IN_TRAINING, content["training"]), "options": _but(options, content["options"])}
    return {**_but(LATER, content), **found}


def with_later(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's content in which nothing that came later is missing."""
    training, options, task = (content.get(key) for key in ("training", "options", "task"))
    found = {"training": {**LATER_IN_TRAINING, **training}} if isinstance(training, Mapping) else {}
    if isinstance(options, Mapping) and isinstance(task, str):
        found["options"] = {**LATER_IN_OPTIONS.get(task, {}), **options}
    return {**LATER, **content, **found}


def _but(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
