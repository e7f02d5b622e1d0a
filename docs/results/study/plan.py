# SPDX-License-Identifier: Apache-2.0
"""The study's plan, written before its runs: tasks, endpoints, arms, the grid of every arm, and seeds.

Every arm has four candidates, where the protocol leaves a choice: four learning rates, and one further where the best
is the least or the largest, or the two rates that served plain averaging best with two values of a setting of its own.
The one with the least Brier score on validation patients, a mean over sites and ``TUNING`` seeds, is run with the
reported seeds, none of which is used to choose.

Changed after the first results were known, as a review of them asked: the further rate; that the two rates are those
of plain averaging's own candidates; a chosen batch size; the logit-adjusted arm with the site's prior put back; the
trivial answer in all tables. All runs were then made again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

SEEDS = tuple(range(8))
"""Reported."""
TUNING = {True: (100,), False: (100, 101)}
"""Never reported; with natural splits, whose validation patients stay, one is enough, and two where they are drawn."""
SHOWN = ("trivial", "fedavg", "uniform", "fedavg+intercept-train", "qffl", "ditto")
SLOWEST = 10 / 3
"""Compute of the dearest arm (FedISM+) relative to FedAvg; as many times the rounds has the compute-matched FedAvg."""
STEPS = (0.1, 0.3, 1.0, 3.0)
"""Candidates of the learning rate, times the preset's, where an arm has nothing else to choose."""
FURTHER = {STEPS[0]: 0.03, STEPS[-1]: 10.0}
"""The candidate that is added where this one is the best."""
FIRST = ("trivial", "solo", "pooled", "fedavg", "uniform", "ditto", "qffl", "fedufo", "fedheal", "fedadam")
"""Keys of the arms that are run first, with their recalibrations; then the others."""


@dataclass(frozen=True)
class Endpoint:
    """A quantity of one run.

    Attributes:
        metric: of a site: accuracy, auc, brier or calibration (absolute calibration in the large).
        over: "mean", "worst" or "patients", over sites, or "worst kind", see ``Study.kinds``.
    """

    metric: str
    over: str

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric in ("accuracy", "auc")


@dataclass(frozen=True)
class Arm:
    """One line of a table.

    Attributes:
        key: its name in the files.
        title: its name in the tables.
        method: METHOD of ``fairflare compare``, with settings.
        values: candidates of a setting of its own, as "key=value"; () : four learning rates are the candidates.
        batches: candidates of the batch size, times the preset's, in their place.
        after: a step after the last round on the runs of this other arm; they are not trained anew.
        prior: the runs of this other arm, and each site puts the shares of its own training patients' classes back.
        like: takes what was chosen for this other arm, and nothing is chosen for it.
        longer: times as many rounds.
        trivial: needs no training: the share of each class among the site's own training patients.
    """

    key: str
    title: str
    method: str = ""
    values: tuple[str, ...] = ()
    batches: tuple[float, ...] = ()
    after: tuple[str, dict[str, str]] | None = None
    prior: str = ""
    like: str = ""
    longer: float = 1.0
    trivial: bool = False

    @property
    def chosen(self) -> bool:
        """Whether it has runs and settings of its own."""
        return not (self.of or self.like or self.trivial)

    @property
    def settings(self) -> bool:
        """Whether it has a setting of its own to choose, and its learning rates are those that served FedAvg best."""
        return bool(self.values or self.batches)

    @property
    def of(self) -> str:
        """Key of the arm whose runs it takes as they are; empty: none."""
        return self.after[0] if self.after else self.prior


@dataclass(frozen=True)
class Study:
    """One task.

    Attributes:
        key: of the task in the files.
        task: T:PRESET.
        lr: the preset's learning rate.
        rounds: the preset's.
        batch: the preset's batch size.
        group_by: the patients' groups, alike for all arms.
        primary: what the task's declaration names.
        benefit: the metric by which a site gains or loses.
        natural: the same test patients with every seed.
        known_again: whether a test patient of one seed is known again among those of another.
        kinds: whether several sites are of one kind, e.g. of one look, and the worst kind is compared.
        tuned: whether anything is chosen: a published protocol without validation patients leaves nothing to choose.
        settings: of all arms.
        without: keys of arms that are refused here: their trainer, or their need of validation patients.
        instead: key of an arm -> METHOD as the protocol has it.
        shown: keys of the arms in the table of sites.
        only: keys of its arms, where it has few; then ``without`` does not count.
        metrics: of a site; the area under the curve is that of two classes.
    """

    key: str
    task: str
    lr: float
    rounds: int
    batch: int
    group_by: str
    primary: tuple[Endpoint, ...]
    benefit: str = "brier"
    natural: bool = True
    known_again: bool = True
    kinds: bool = False
    tuned: bool = True
    settings: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    instead: dict[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = SHOWN
    only: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy", "auc", "brier", "calibration")

    def arms(self, first: bool = False) -> tuple[Arm, ...]:
        """Its arms, in the tables' order; ``first``: those alone that are run first."""
        return tuple(
            dataclasses.replace(arm, method=self.instead.get(arm.key, arm.method))
            for arm in ARMS
            if (arm.key in self.only if self.only else arm.key not in (*self.without, *OF_FEW))
            and not (first and (arm.of or arm.key) not in FIRST)
        )


def after(key: str, title: str, arm: str, **settings: str) -> Arm:
    """The arm ``arm`` recalibrated."""
    return Arm(key, title, after=(arm, settings))


REFERENCES = (
    Arm("trivial", "Trivial answer", trivial=True),
    Arm("solo", "Solo", "solo"),
    Arm("pooled", "Pooled", "pooled"),
    Arm("fedavg", "FedAvg", "fedavg"),
    Arm("uniform", "FedAvg, uniform weights", "fedavg:weighting=uniform"),
    Arm("batch", "FedAvg, other batch size", "fedavg", batches=(0.25, 4.0)),
    Arm("adjusted", "FedAvg, logit-adjusted loss", "fedavg:logit_tau=1"),
    Arm("adjusted+prior", "FedAvg, logit-adjusted loss, own shares added again", prior="adjusted"),
    Arm("longer", "FedAvg, 3.3 x the rounds", "fedavg", like="fedavg", longer=SLOWEST),
    Arm("twice", "FedAvg, twice the rounds", "fedavg", like="fedavg", longer=2.0),
)
OF_FEW = ("twice",)
"""Keys of arms of those tasks alone that name them: the compute of Ditto, where it is the dearest arm."""
RECALIBRATED = (
    after("fedavg+intercept", "FedAvg, then intercepts (validation)", "fedavg", slope="false", split="val"),
    after("fedavg+intercept-train", "FedAvg, then intercepts (training)", "fedavg", slope="false", split="train"),
    after("fedavg+line-train", "FedAvg, then intercepts and slopes (training)", "fedavg", split="train"),
    after("uniform+intercept-train", "FedAvg uniform, then intercepts (training)", "uniform", slope="false",
          split="train"),
)  # fmt: skip
METHODS = (
    Arm("fedprox", "FedProx", "fedprox", ("mu=0.01", "mu=0.1")),
    Arm("scaffold", "SCAFFOLD", "scaffold"),
    Arm("ditto", "Ditto, own models", "ditto", ("lam=0.1", "lam=1")),
    Arm("fedadam", "FedAdam", "fedadam", ("server.lr=0.01", "server.lr=0.1")),
    Arm("fedyogi", "FedYogi", "fedyogi", ("server.lr=0.01", "server.lr=0.1")),
    Arm("qffl", "q-FFL", "qffl", ("q=0.5", "q=2")),
    Arm("afl", "AFL", "afl", ("step=0.01", "step=0.1")),
    Arm("fedufo", "FedUFO", "fedufo", ("radius=0.1", "radius=0.5")),
    Arm("fedufo-client", "FedUFO, sites alone", "fedufo:level=client", ("radius=0.1", "radius=0.5")),
    Arm("fairfed", "FairFed", "fairfed", ("beta=0.5", "beta=1")),
    Arm("fedism-plus", "FedISM+", "fedism-plus", ("rho_max=0.02", "rho_max=0.1")),
    Arm("fedheal", "FedHEAL", "fedheal", ("tau=0.1", "tau=0.3")),
    Arm("fedlwr", "Fed-LWR", "fedlwr"),
    Arm("fedce", "FedCE", "fedce"),
    Arm("feddg-ga", "FedDG-GA", "feddg-ga", ("step=0.1", "step=0.2")),
    Arm("fedfv", "FedFV", "fedfv", ("rule.alpha=0.1", "rule.alpha=0.3")),
    Arm("median", "Median", "median"),
)
ARMS = (*REFERENCES, *RECALIBRATED, *METHODS)
WORST_ACCURACY, WORST_AUC = Endpoint("accuracy", "worst"), Endpoint("auc", "worst")
WORST_LOOK = Endpoint("accuracy", "worst kind")
FLAMBY = {
    "solo": "solo:train.optimizer=adam,train.local_steps=none,train.epochs=50,train.rounds=1",
    "pooled": "pooled:train.optimizer=adam,train.local_steps=none,train.epochs=50,train.rounds=1",
    "scaffold": "scaffold:weighting=examples",
    "fedadam": "fedadam:train.lr=0.01,server.lr=0.01,server.beta2=0.999,server.v_start=zero,server.tau=1e-8",
    "fedyogi": "fedyogi:train.lr=0.003162,server.lr=0.01,server.beta2=0.999,server.v_start=zero,server.tau=1e-8",
}
"""As in ``fairflare paper flamby-heart``; the pooled arm's patients have their own centre's scale here."""
OF_IMAGES = ("accuracy", "brier", "calibration")
STUDIES = (
    Study("ist", "ist:countries", 0.02, 30, 32, "label+sex", (Endpoint("calibration", "worst"), WORST_AUC)),
    Study("heart-full", "heart:full", 0.005, 40, 8, "label+sex", (WORST_ACCURACY,), "accuracy", without=("scaffold",)),
    Study("heart-flamby", "heart:flamby", 0.001, 15, 4, "label+sex", (WORST_ACCURACY,), "accuracy", tuned=False,
          without=("batch", "fedavg+intercept", "fedce", "feddg-ga"), instead=FLAMBY),
    Study("support2", "support2:default", 0.003, 20, 64, "label+sex", (WORST_AUC,), natural=False,
          without=("scaffold",)),
    Study("covid", "covid-brazil:regions", 0.1, 20, 32, "label+white", (WORST_AUC,), natural=False),
    Study("digits", "digits:small", 0.02, 20, 32, "label", (WORST_LOOK,), "accuracy", natural=False, kinds=True,
          known_again=False,
          only=("trivial", "solo", "pooled", "fedavg", "twice", "ditto", "qffl", "fedheal"),
          shown=("trivial", "fedavg", "twice", "qffl", "fedheal", "ditto"), metrics=OF_IMAGES),
)  # fmt: skip


def candidates(arm: Arm, study: Study, rates: tuple[float, ...] = STEPS) -> list[str]:
    """METHOD labels to choose from; one where nothing is chosen.

    Args:
        arm: of the study.
        study: its task.
        rates: candidates of the learning rate, times the preset's.
    """
    if not study.tuned or arm.like:
        return [arm.method]
    values = (*arm.values, *(f"train.batch_size={max(2, round(study.batch * times))}" for times in arm.batches))
    return [
        labelled(arm.method, f"lr={_text(study.lr * t)}", *value)
        for t in rates
        for value in [(v,) for v in values] or [()]
    ]


def labelled(method: str, *settings: str) -> str:
    """METHOD with further settings."""
    name, _, own = method.partition(":")
    named = [f"train.{setting}" if setting.startswith("lr=") else setting for setting in settings]
    return f"{name}:{','.join([part for part in (own, *named) if part])}" if own or named else name


def _text(value: float) -> str:
    return f"{value:.6g}"
