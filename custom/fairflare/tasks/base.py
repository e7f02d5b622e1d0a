# SPDX-License-Identifier: Apache-2.0
"""What a task is: sites, data, a network, metrics and the training settings that its papers use."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fairflare.core.metric import Metric
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Objective, Offer, Training, refuse_training
from fairflare.core.validation import expected as expect
from fairflare.core.validation import hints
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import LABEL, NONE, Grouping, ImageInputs, TensorData, as_float, make_grouping, normalised
from fairflare.functional.intervals import Array, Owners
from fairflare.tasks.kind import Ends, TaskKind, interval_of, resampled, value_of
from fairflare.tasks.kinds.classes import CLASSES

if TYPE_CHECKING:
    from fairflare.data.inputs import TableInputs


def expect_choices(options: Any) -> None:
    """Raise UserError unless every option declared as a Literal holds one of its values, and ``limit`` leaves some."""
    for name, hint in hints(options.__class__).items():
        if typing.get_origin(hint) is typing.Literal:
            choices, value = typing.get_args(hint), getattr(options, name)
            expect(name, value in choices, f"one of {', '.join(choices)}", value)
    limit = getattr(options, "limit", None)
    expect("limit", limit is None or limit >= 2, "at least 2, or none", limit)


def site_index(site: str, sites: Mapping[str, object]) -> int:
    """Place of ``site`` in a task's site list, from 0; UserError when it has no such site."""
    expect("site", site in sites, f"one of {', '.join(sites)}", site)
    return list(sites).index(site)


PARTITION, SPLIT, RENDERING = "partition", "split", "rendering"
"""What a data seed may draw: who has which example, which of a site's examples are for testing, the images."""
OPEN_SPLIT = "split where the data leave it open"
"""The same of data that may name their own split."""
DATA_FOLDER = "FAIRFLARE_DATA"
"""Environment variable that names the folder where tasks find data that do not come with the package."""


@dataclass(frozen=True)
class Preset:
    """A named size of a task.

    Attributes:
        summary: one line that says what it is for.
        options: task options that differ from the task's defaults.
        training: local training settings.
        settings: method parameters that depend on the preset's network rather than on the method, e.g. the radius of a
            weight perturbation, which is in units of the weights; they replace a method's default where it has them.
        by_method: method -> the same for that method alone, e.g. a smaller radius.

    Raises:
        ValueError: ``settings`` or ``by_method`` names a training setting: what sites minimise, and how, is
            ``training``, for every method alike.
    """

    summary: str
    options: Mapping[str, object]
    training: Training
    settings: Mapping[str, object] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for settings in (self.settings, *self.by_method.values()):
            refuse_training(settings)

    def settings_of(self, method: str) -> dict[str, object]:
        return {**self.settings, **self.by_method.get(method, {})}


@dataclass(frozen=True)
class TestSet:
    """A shared test set of a simulated task, e.g. "clean" or "noise 3": never part of any site's data.

    Attributes:
        name: shown in reports.
        corrupted: True for the conditions that stand for poorer scanners; False for clean ones.
        images: uint8 (N, C, H, W), or float32 (N, ...).
        targets: int64 (N,), or uint8 masks (N, C, H, W).
        mean: per channel on [0, 1], subtracted as the sites do; empty: ``images`` are as the network takes them.
        std: per channel, > 0.
    """

    __test__: ClassVar[bool] = False  # pytest: not a test class

    name: str
    corrupted: bool
    images: Tensor
    targets: Tensor
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    @property
    def inputs(self) -> Tensor:
        """float32 (N, ...) as the network takes them."""
        return normalised(as_float(self.images), self.mean, self.std)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        no_groups = torch.full((len(self.targets),), -1)
        parts = (self.images, self.targets, no_groups)
        for images, targets, groups in zip(*(part.split(batch_size) for part in parts)):
            yield Batch(normalised(as_float(images), self.mean, self.std), targets, groups)


@dataclass(frozen=True)
class Task(ABC):
    """One federated problem; a concrete task is a frozen dataclass whose fields are its options.

    Class attributes describe it for ``fairflare tasks``; fields must be JSON values. Construction is cheap: data are
    generated or read on the first call of ``site_data`` or ``test_sets``, and only the part that is asked for.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    real: ClassVar[str]
    simulated: ClassVar[str]
    classes: ClassVar[tuple[str, ...]] = ()
    by_script: ClassVar[bool] = False
    """Whether sites train by a script of their own, see ``tasks.own.script``."""
    """Names of the classes, of the structures of masks, or of what else its kind calls so."""
    kind: ClassVar[TaskKind] = CLASSES
    """What the network gives, what that is trained to, scored by and means."""
    headline: ClassVar[str] = CLASSES.headline
    """The metric that fairness is reported in; the kind's where a task names a kind and no metric."""
    primary: ClassVar[str] = ""
    """The primary endpoint, in words: what a comparison of methods on this task is about, said before any run."""
    quick: ClassVar[bool] = False
    """Whether a site trains in seconds, so that a run may train each alone, too, without being asked."""
    small_sites: ClassVar[bool] = False
    """Whether sites may be too small for some methods, so that preflight asks each for what the method needs."""
    regresses: ClassVar[bool] = True
    """Whether the answer to beat of a table is a regression, as it is not where the model itself is one."""
    attributes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Sensitive attribute -> its known values, as the data spell them; any other value means unknown."""
    class_of_interest: ClassVar[str] = ""
    """The class whose risk is looked at for calibration and decisions; of two the second unless said otherwise."""
    threshold: ClassVar[float] = 0.5
    """The risk of that class from which on a patient is flagged, unless a run says otherwise."""
    presets: ClassVar[Mapping[str, Preset]]

    def __init_subclass__(cls, **given: object) -> None:
        super().__init_subclass__(**given)
        if "kind" in vars(cls) and "headline" not in vars(cls):
            cls.headline = cls.kind.headline

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.kind.names(self.classes)

    @abstractmethod
    def sites(self) -> dict[str, str]:
        """Site name ("site-1", ...) -> what kind of site it is, in words for a report, e.g. "noise, severity 3"."""

    @abstractmethod
    def network(self) -> nn.Module:
        """A freshly initialised network on the CPU; the caller has seeded torch."""

    def initial_seed(self, seed: int) -> int:
        """What torch is seeded with before ``network`` is called, in a run of seed ``seed``."""
        return derive(seed, "initial model")

    @abstractmethod
    def site_data(self, site: str) -> TensorData:
        """The data of one site, built without building any other site's."""

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        """The data of ``site`` where it runs, given its own configuration; embedded tasks have no use for one."""
        return self.site_data(site)

    @property
    def event(self) -> int | None:
        """Index of the class whose risk is looked at: the one of interest, of two the second; None: no one class."""
        if self.class_of_interest:
            return self.classes.index(self.class_of_interest)
        return 1 if len(self.classes) == 2 else None

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        """The columns of a table that hold what is predicted; the option ``label``, where there is one."""
        return (str(getattr(self, "label", "label")),)

    def table_inputs(self) -> TableInputs | None:
        """How rows of a table become what the network takes; None where nobody has said how."""
        return None

    def image_inputs(self) -> ImageInputs | None:
        """How an image file becomes what the network takes; None where examples are none."""
        return None

    def check_data(self) -> None:  # noqa: B027  (most tasks bring their data along)
        """Raise UserError when files that the task reads are not there; called before a run starts anything."""

    def drawn(self) -> tuple[str, ...]:
        """What the option ``data_seed`` draws, in the words above (``PARTITION`` ...); () without that option.

        ``compare`` draws it anew with every seed; what is natural (a hospital's patients, a data set's own split) is
        not drawn and stays.
        """
        return ()

    def domains(self) -> dict[str, str]:
        """Every site -> the domain (camera, collection) that it belongs to, in order; {} for a task without domains.

        A comparison gives mean and standard deviation over domains: on the shared test set of a domain's name where
        the task has one for each, else over its sites.
        """
        return {}

    def test_sets(self) -> tuple[TestSet, ...]:
        return ()

    @property
    def has_test_sets(self) -> bool:
        """Whether ``test_sets`` may return any, known without building them."""
        return type(self).test_sets is not Task.test_sets

    def table_sets(self) -> dict[str, str]:
        """ "clean" and "corrupted" -> names of the two test sets that the papers' tables report, if there are any."""
        return {}

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """What a site with ``class_counts`` minimises, with its logits adjusted when tau > 0; the kind's."""
        return self.kind.objective(class_counts, logit_tau)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What evaluation keeps of one batch of outputs (N, ...) and targets."""
        return self.kind.condense(outputs, targets)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """All of ``metrics`` and "loss" from condensed outputs and targets, where defined."""
        return self.kind.evaluate(self.metrics, outputs, targets, self.classes)

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float64 (N,): the score of each condensed example; empty where the kind has none."""
        return self.kind.scores(outputs, targets, self.classes)

    def metric(self, name: str) -> Metric:
        return self.kind.metric(name)

    @property
    def measures(self) -> tuple[str, ...]:
        """The metrics in which a site is told its benefit of joining, the headline first."""
        return tuple(one.name for one in self.kind.of_benefit(self.headline, self.classes))

    @property
    def group_measures(self) -> tuple[str, ...]:
        """Those that groups of patients have too."""
        return tuple(one.name for one in self.kind.of_groups(self.classes))

    def measured(self, outputs: Tensor, targets: Tensor, counts: Array, names: Sequence[str] = ()) -> dict[str, Array]:
        """Metrics ``names``, or all that a site is told, of condensed outputs (finite) for many resamples at once.

        Of N cases, at least 1, ``counts`` (B, N) says how often each resample holds each; with ones the metric is that
        of ``evaluate``. Gives metric -> (B,), nan where a resample leaves it undefined.
        """
        cases = self.kind.cases(outputs, targets, self.classes)
        names = tuple(dict.fromkeys(names or (*self.measures, *self.group_measures)))
        return {name: resampled(self.metric(name), cases, counts) for name in names}

    def enough(self, name: str, targets: Tensor, least: int) -> bool:
        """Whether a metric of these cases may leave: what compares classes needs ``least`` of each that is there."""
        return self.kind.enough(self.metric(name), targets, least, self.classes)

    def ends(
        self, outputs: Tensor, targets: Tensor, least: int, level: float, patients: Owners | None = None
    ) -> dict[str, Ends]:
        """Metric -> its value and its interval over the patients, of the metrics that have one here.

        Outputs are condensed, finite and at least 1. ``least``: the fewest cases of every class for an interval of what
        compares classes; ``level``: in (0, 1), e.g. 0.95; ``patients``: as of ``Cases``.
        """
        cases, found = replace(self.kind.cases(outputs, targets, self.classes), patients=patients), {}
        for metric in map(self.metric, self.metrics):
            if not self.enough(metric.name, targets, least):
                continue
            ends, value = interval_of(metric, cases, level), value_of(metric, cases)
            if ends is not None and value is not None:
                found[metric.name] = (value, *ends)
        return found

    @property
    def default_grouping(self) -> str:
        return LABEL if self.kind.has_classes else NONE

    def grouping(self, by: str) -> Grouping:
        """The partition into groups that ``by`` names, e.g. "label+sex"; raises UserError on an unknown attribute."""
        return make_grouping(by, self.name, self.classes if self.kind.has_classes else (), self.attributes)

    def offer(self, grouping: Grouping) -> Offer:
        """What methods may ask this task for."""
        return Offer(self.name, self.metrics, self.headline, grouping.names, self.kind.has_classes, self.kind.family)
