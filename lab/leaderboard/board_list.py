# SPDX-License-Identifier: Apache-2.0
"""What the leaderboard compares and how it judges: written and committed before its runs.

**Question.** With linear models of real hospitals' patients, does a method serve the worst site, or the mean over
sites, better than FedAvg, and than what a site can do alone?

**Endpoints**, lower is better: the Brier score at the worst site of each run, and its mean over the sites. Both are
read on a site's own test patients, of the model that the site would use: its own where the method gives it one, else
the shared one. Beside them: calibration error (mean predicted risk minus observed share, absolute), AUC, and the log
loss, each a mean over sites; CPU seconds of a run.

**Data.** A task's sites are those with at least 25 patients, of each outcome at least 5; of IST the countries with at
least 600. A patient is one row. Each site's patients are dealt by outcome: 35 % test, 15 % validate, 50 % train. A seed
draws this split, the first model and the order together, the same for all arms, so that differences are paired.

**Arms** have the settings of their authors or of the house; what is tuned is the learning rate alone (ridge: C).
Trees of more than 200 columns are grown on 50 principal components; this was set while HAM10000 ran, because trees of
all its columns took ten CPU seconds a run, and before a score of its trees was looked at. All federated arms have as
many rounds, local steps and examples in a batch. FedBN needs BatchNorm; FedAvg with the same network stands beside it.
FedAvg with equal weights was added after all others had run, as most methods came out alike where one site is large.

**Tuning.** Every arm tries the same number of values, three, on seeds 100 and 101, which are never judged. The value
with the smallest mean over sites and seeds of the validation Brier score is taken.

**Judging.** Ten seeds, 0 to 9, which are never tuned on. Intervals are Student's at 95 % of the paired difference to
FedAvg, one by one. "Better" and "worse" are said where Holm's p of the sign-flip test is at most .05 over all arms of
the task, for each endpoint by itself; else "no difference shown", which does not say that there is none. Seeds share
patients, so intervals speak of these patients divided anew; for new patients they are too narrow. With fewer seeds than
ten nothing is called better or worse. Nothing holds beyond linear models, these data and this length. Rows stay in the
order of this list, whoever leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SEEDS = tuple(range(10))
TUNING_SEEDS = (100, 101)
HELD_OUT = (0.35, 0.15)
"""Shares of a site's patients that test and validate."""
LEAST_PATIENTS, LEAST_OF_CLASS = 25, 5
FEDAVG = "fedavg"
ROUNDS, STEPS, BATCH = 15, 10, 32


@dataclass(frozen=True)
class Source:
    """A task, a row.

    Attributes:
        title: who the patients are and what is predicted.
        rates: learning rates that federated arms try.
        least: patients that a site has at least.
        rounds: communication rounds.
        judged: whether it is on the page.
    """

    title: str
    rates: tuple[float, float, float] = (0.01, 0.05, 0.25)
    least: int = LEAST_PATIENTS
    rounds: int = ROUNDS
    judged: bool = True


@dataclass(frozen=True)
class Arm:
    """A way to make a model, a row: METHOD of ``fairflare compare``, or what a site makes of its own patients alone.

    Attributes:
        words: what it is, in the tables.
        own: whether a site uses a model or layers of its own.
        kind: "federated", or the model that scikit-learn fits at each site.
        values: what is tried where it is no learning rate.
        over: further settings.
    """

    label: str
    words: str
    own: bool = False
    kind: Literal["federated", "ridge", "trees"] = "federated"
    values: tuple[float, ...] = ()
    over: Mapping[str, Any] = field(default_factory=dict)

    def tried(self, source: Source) -> tuple[float, ...]:
        return self.values or source.rates


SOURCES = {
    "heart": Source("Heart disease: four hospitals, narrowed coronary artery (UCI)"),
    "ist": Source("IST: six countries, dead or dependent after six months", least=600),
    "tcga-brca": Source("TCGA-BRCA: five regions, death within three years"),
    "ptbxl": Source("PTB-XL: three recording sites, abnormal ECG, spectra of 500 records"),
    "ham10000": Source("HAM10000: four sources, malignant, EfficientNet-lite0's features", (0.001, 0.005, 0.025)),
    "toy": Source("made up, for the test", rounds=2, judged=False),
}
ARMS = {
    "ridge": Arm("ridge", "alone, ridge logistic", True, "ridge", (0.01, 0.1, 1.0)),
    "trees": Arm("trees", "alone, boosted trees", True, "trees", (0.03, 0.1, 0.3)),
    "solo": Arm("solo", "alone, FedAvg's network", True),
    FEDAVG: Arm("fedavg", "FedAvg"),
    "equal": Arm("fedavg:weighting=uniform", "FedAvg, equal weights"),
    "fedism-plus": Arm("fedism-plus", "FedISM+"),
    "fedlwr": Arm("fedlwr", "Fed-LWR"),
    "fedheal": Arm("fedheal", "FedHEAL"),
    "fedufo": Arm("fedufo:level=client", "FedUFO, sites"),
    "fedce": Arm("fedce", "FedCE"),
    "ditto": Arm("ditto", "Ditto", True),
    "fedbn": Arm("fedbn", "FedBN", True, over={"task.norm": True}),
    "fedavg-norm": Arm("fedavg", "FedAvg, FedBN's network", over={"task.norm": True}),
    "fedlesam": Arm("fedlesam", "FedLESAM"),
    "fedeba-plus": Arm("fedeba-plus", "FedEBA+"),
}
JUDGED = {key: source for key, source in SOURCES.items() if source.judged}
