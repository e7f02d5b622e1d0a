# SPDX-License-Identifier: Apache-2.0
"""What a task is: sites, data, a network, metrics and the training settings that its papers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairflare.clinic import measures
from fairflare.clinic.grouping import LABEL, NONE, Grouping, make_grouping
from fairflare.clinic.inputs import ImageInputs, TableInputs
from fairflare.clinic.measures import Ends
from fairflare.clinic.site_config import SiteConfig
from fairflare.clinic.tensors import TensorData, as_float, normalised
from fairflare.core.errors import UserError
from fairflare.core.objectives import Objective, local_objective
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Offer, Training, refuse_training
from fairflare.functional.intervals import of_mean
from fairflare.functional.resampling import Array, weighted_mean

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
        """``settings`` as they hold for ``method``."""
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
        """The set in its stored order."""
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
    classes: ClassVar[tuple[str, ...]]
    headline: ClassVar[str] = "balanced_accuracy"
    """The metric that fairness is reported in."""
    primary: ClassVar[str] = ""
    """The primary endpoint, in words: what a comparison of methods on this task is about, said before any run."""
    quick: ClassVar[bool] = False
    """Whether a site trains in seconds, so that a run may train each alone, too, without being asked."""
    small_sites: ClassVar[bool] = False
    """Whether sites may be too small for some methods, so that preflight asks each for what the method needs."""
    metrics: ClassVar[tuple[str, ...]]
    metric_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Metric -> range, of those that are no share of 1 (a loss: 0 to 1e6); what lies outside never leaves a site."""
    attributes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Sensitive attribute -> its known values, as the data spell them; any other value means unknown."""
    class_labels: ClassVar[bool] = True
    """Whether every example has one class; False for segmentation."""
    class_of_interest: ClassVar[str] = ""
    """The class whose risk is looked at for calibration and decisions; of two the second unless said otherwise."""
    threshold: ClassVar[float] = 0.5
    """The risk of that class from which on a patient is flagged, unless a run says otherwise."""
    presets: ClassVar[Mapping[str, Preset]]

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

    def test_data_as(self, other: Task) -> dict[str, TensorData]:
        """This task's test examples, dealt to the sites as ``other`` deals them: nobody's training examples.

        Args:
            other: this task with other options of the partition, e.g. another concentration of a Dirichlet split.

        Returns:
            Site of ``other`` -> data of which the split "test" counts.

        Raises:
            UserError: the task cannot do that, as every task that does not say how.
        """
        raise UserError(f"task {self.name}: its test examples cannot be dealt to the sites in another way")

    def test_sets(self) -> tuple[TestSet, ...]:
        """Shared test sets, where the task is simulated and has them."""
        return ()

    @property
    def has_test_sets(self) -> bool:
        """Whether ``test_sets`` may return any, known without building them."""
        return type(self).test_sets is not Task.test_sets

    def table_sets(self) -> dict[str, str]:
        """ "clean" and "corrupted" -> names of the two test sets that the papers' tables report, if there are any."""
        return {}

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """What a site with ``class_counts`` minimises: cross-entropy, with its logits adjusted when tau > 0."""
        return local_objective(class_counts, logit_tau)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What evaluation keeps of one batch of outputs (N, ...) and targets; both as they are by default."""
        return outputs, targets

    @abstractmethod
    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """All of ``metrics`` and "loss" from condensed outputs and targets, where defined."""

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float64 (N,) in [0, 1]: how right each condensed example is; by default whether its class is the top one."""
        return (outputs.argmax(1) == targets).double() if len(targets) else torch.empty(0, dtype=torch.float64)

    @property
    def measures(self) -> tuple[str, ...]:
        """The metrics that have intervals over a site's patients, the headline first."""
        return measures.names(self.headline, len(self.classes), self.class_labels)

    @property
    def group_measures(self) -> tuple[str, ...]:
        """Those that groups of patients have too: means over cases."""
        return measures.means(self.headline, len(self.classes), self.class_labels)

    def measured(self, outputs: Tensor, targets: Tensor, counts: Array) -> dict[str, Array]:
        """``measures`` and ``group_measures`` of condensed outputs (finite) for many resamples of the cases at once.

        Args:
            outputs: N of them, at least 1.
            targets: (N, ...).
            counts: (B, N), how often each resample holds each case; with ones the metric is that of ``evaluate``.

        Returns:
            metric -> (B,), nan where a resample leaves it undefined.
        """
        hits = self.hits(outputs, targets)
        if self.class_labels:
            return measures.of_classes(outputs, targets, hits, counts)
        return {self.headline: weighted_mean(hits.numpy(), counts)}

    def ends(self, outputs: Tensor, targets: Tensor, least: int, level: float) -> dict[str, Ends]:
        """Metric -> its value and its interval over the cases, of the metrics that have one here.

        Args:
            outputs: N condensed ones, finite, N at least 1.
            targets: (N, ...).
            least: the fewest cases of every class for an interval of what depends on classes.
            level: in (0, 1), e.g. 0.95.
        """
        hits = self.hits(outputs, targets)
        if self.class_labels:
            return measures.ends_of_classes(outputs, targets, hits, least, level)
        values = hits.numpy()
        return {self.headline: (float(values.mean()), *of_mean(values, level))}

    @property
    def default_grouping(self) -> str:
        """What examples are grouped by unless the user says otherwise."""
        return LABEL if self.class_labels else NONE

    def grouping(self, by: str) -> Grouping:
        """The partition into groups that ``by`` names, e.g. "label+sex"; raises UserError on an unknown attribute."""
        return make_grouping(by, self.name, self.classes if self.class_labels else (), self.attributes)

    def offer(self, grouping: Grouping) -> Offer:
        """What methods may ask this task for."""
        return Offer(self.name, self.metrics, self.headline, grouping.names, self.class_labels)
