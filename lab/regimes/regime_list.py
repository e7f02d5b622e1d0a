# SPDX-License-Identifier: Apache-2.0
"""What the bench of regimes compares, how arms are tuned and judged: written before its runs.

**Room.** A ceiling that knows the truth beats tuned FedAvg by at least twice the smallest difference that ten seeds
find with a power of 80 % at a level of 5 % (MDD: 3.145 sd / sqrt(10)). Otherwise a regime has no verdict.

**Tuning.** Each arm has the same number of trials: four learning rates on a logarithmic grid times three values of a
parameter of its own (FedAvg: weight decay), all on seed 100; the best four go on to seeds 101 and 102, and the best
mean of the three is taken. A trial's value is ``Regime.tuned_by`` on pictures that nobody trains on, the mean of the
last five rounds: the primary endpoint, except where a model that has learnt nothing does well by it. A spread over
domains (D1, D2) and a minimum over classes (U1) do so; there it is the mean log loss, a proper score, over the same
sets. U1 had been run once with the worst class's recall as the trial's value, which chose a rate of 2.7e-5 for FedAvg;
the value was changed after that, from the trials of seed 100 and for all arms alike, before U1 ran again. Where an
arm's best rate is at the edge of the grid, every arm gets one more rate there, at most twice. Placebo and fixed
weights take the settings of the arm whose weights they have.

**Seeds** 0 to 9 draw sites, splits, first model and order together, and are never tuned on. Differences are paired.

**Two primary comparisons**: the method against FedAvg (weights by examples) after as many rounds, and against FedAvg
after as many forward and backward passes. Intervals are Student's at 95 %; Holm's correction is over the primary
comparisons of a regime and those with equal weights and the placebo. S2 has 16 rounds where S1 has 30, so that both
take about as many steps; this was set before S2 ran.

**Confirmed**: room; the interval lies above 0 in this comparison, against equal weights and against the placebo, each
of Holm's p is at most .05, and the guard falls by at most ``slack``. **Contradicted**: room; the upper end lies below
a third of it, and the MDD too. **Not shown**: anything else. No verdict holds beyond its network, data and length.
With fewer than ten seeds there is no verdict but "not shown", with the smallest difference that so many seeds find.
An arm still rises where the mean of its last five rounds is better on validation than that of the five rounds a
quarter of the run before, by the paired interval; the page says so beside the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fairflare_lab.datasets import ham10000, office_caltech

SEEDS = tuple(range(10))
TUNING_SEEDS = (100, 101, 102)
FINALISTS = 4
LAST = 5
EXTENSIONS = 2
METHOD, FEDAVG, EQUAL, CEILING, PLACEBO, FIXED = "method", "fedavg", "equal", "ceiling", "placebo", "fixed"
SITES = tuple(ham10000.SITES)


@dataclass(frozen=True)
class Endpoint:
    """A number of a model's scores on shared sets.

    Attributes:
        how: mean or worst of the sets, or the standard deviation over them (divisor n - 1).
        sign: 1 where higher is better, else -1.
    """

    words: str
    sets: tuple[str, ...]
    metric: str
    how: Literal["mean", "worst", "std"] = "mean"
    sign: int = 1

    def value(self, scores: Mapping[str, Mapping[str, Sequence[float]]], end: int, start: str = "") -> float:
        """The endpoint times its sign, a mean over the last rounds up to ``end``; ``start``: of the sets' names."""
        rows = np.array(
            [scores[start + name][self.metric][end - LAST : end] for name in self.sets if start + name in scores]
        )
        worst = rows.max(0) if self.metric == "loss" else rows.min(0)
        of_round = {"mean": rows.mean(0), "worst": worst, "std": rows.std(0, ddof=1) if len(rows) > 1 else worst * 0}
        return float(self.sign * of_round[self.how].mean())


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: METHOD of ``fairflare compare``; "{seed}" is the run's seed, "{run}" the run whose weights are replayed.
        words: what it is, in the tables.
        passes: forward and backward passes of a round, as a multiple of FedAvg's.
        long: whether it runs on until it has had the method's passes.
        own: name and values of the parameter that is tuned beside the learning rate.
        after: key of the arm whose weights it replays, and whose rate it takes, with ``own`` where it knows that.
        over: further settings.
    """

    label: str
    words: str
    passes: float = 1.0
    long: bool = False
    own: tuple[str, tuple[Any, ...]] = ("weight_decay", (0.0, 5e-4, 5e-3))
    after: str = ""
    over: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Regime:
    """A kind of federation.

    Attributes:
        judged: key of an arm that gets a verdict -> its card, and the keys of its placebo and its fixed weights.
        primary: the paper's endpoint; ``second``: the worst site's or set's loss.
        guard: what may fall by at most ``slack``.
        proper: whether trials are valued by the mean log loss over the sets of ``primary``.
        sign: how a federation recognises that it is in this regime.
    """

    key: str
    title: str
    judged: Mapping[str, tuple[str, str, str]]
    setting: str
    task: str
    values: Mapping[str, Any]
    rates: tuple[float, ...]
    rounds: int
    arms: Mapping[str, Arm]
    primary: Endpoint
    second: Endpoint
    guard: Endpoint
    sign: str
    slack: float = 0.01
    proper: bool = False

    @property
    def tuned_by(self) -> Endpoint:
        """What a trial's value is."""
        return Endpoint("mean log loss", self.primary.sets, "loss", sign=-1) if self.proper else self.primary

    def length(self, arm: Arm) -> int:
        """Rounds of an arm."""
        return max(self.equal_passes(key) for key in self.judged or (METHOD,)) if arm.long else self.rounds

    def equal_passes(self, judged: str) -> int:
        """Rounds of FedAvg with as many passes as a judged arm."""
        return round(self.rounds * self.arms[judged].passes)


AVERAGES = {
    FEDAVG: Arm("fedavg", "FedAvg, weights by examples", long=True),
    EQUAL: Arm("fedavg:weighting=uniform", "FedAvg, equal weights", long=True),
}


def replayed(words: str, label: str = "regime-replayed", after: str = METHOD, **more: Any) -> dict[str, Arm]:
    """Fixed weights and the placebo of a method."""
    label += "," if ":" in label else ":"
    return {
        FIXED: Arm(f"{label}run={{run}}", f"{words} of its last round, held fixed", after=after, **more),
        PLACEBO: Arm(f"{label}run={{run}},deal={{seed}}", f"placebo: {words} at other names", after=after, **more),
    }


POOR = "+".join(f"site-{k}" for k in range(17, 21))
RADII = ("rho_max", (0.02, 0.05, 0.1))
SHARES = ("share", (0.3, 0.5, 0.7))


def quality(key: str, title: str, poor: str) -> Regime:
    sets = ("clean", poor)
    return Regime(
        key=key,
        title=title,
        judged={METHOD: ("fedism-plus", PLACEBO, FIXED)},
        setting="HAM10000, seven diagnoses; head 1,280-64-7 on a frozen EfficientNet-lite0 at 96 pixels; 20 sites, "
        f"Dirichlet(1) labels, four with {'noise (sd .3)' if poor == 'noise' else 'diagonal streaks of 13 pixels'}; "
        "2,600 pictures train",
        task="regime-quality:bench",
        values={"optimizer": "adam", "batch_size": 32, "epochs": 1, "logit_tau": 1.0, "task.poor": poor},
        rates=(3e-4, 1e-3, 3e-3, 1e-2),
        rounds=20,
        arms={
            **AVERAGES,
            METHOD: Arm("fedism-plus:state=L", "FedISM+ (L)", passes=3.3, own=RADII),
            "salt": Arm("fedavg:trainer=gsam", "flat training alone (GSAM, FedAvg's weights)", passes=2.0, own=RADII),
            **replayed("FedISM+'s weights"),
            "rival": Arm("qffl", "q-FFL", passes=1.33, own=("q", (0.1, 1.0, 5.0))),
            CEILING: Arm(f"regime-fixed:chosen={POOR}", "ceiling: poor sites weigh more", own=SHARES),
            "copies": Arm("fedavg", "ceiling: all sites train on spoilt copies", 2.0, over={"task.copies": True}),
        },
        primary=Endpoint(f"AUC on {poor} pictures", (poor,), "auc_ovr"),
        second=Endpoint("loss of the worse set", sets, "loss", "worst", -1),
        guard=Endpoint("AUC on clean pictures", ("clean",), "auc_ovr"),
        sign="sites where the shared model's loss is far above the others', while their labels are alike",
    )  # fmt: skip


def outlines(key: str, title: str, negative: bool, rounds: int) -> Regime:
    look = "; the pictures of vienna_dias (16 of 356) are negatives" if negative else " as they are, 890 pictures train"
    return Regime(
        key=key,
        title=title,
        judged={METHOD: ("fedce", PLACEBO, FIXED), "lwr": ("fedlwr", "lwr-placebo", "lwr-fixed")},
        setting=f"HAM10000, outline of the lesion at 48 x 36 pixels, U-Net 8-16-32 from scratch, four sources{look}",
        task="regime-outlines:bench",
        values={"optimizer": "adam", "batch_size": 8, "epochs": 1, "task.negative": negative},
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        rounds=rounds,
        arms={
            FEDAVG: AVERAGES[FEDAVG],
            EQUAL: AVERAGES[EQUAL],
            METHOD: Arm("fedce", "FedCE (sum)"),
            "lwr": Arm("fedlwr", "Fed-LWR", passes=1.67),
            **replayed("FedCE's weights"),
            "lwr-fixed": Arm(
                "regime-replayed:run={run}", "Fed-LWR's weights of its last round, held fixed", after="lwr"
            ),
            "lwr-placebo": Arm(
                "regime-replayed:run={run},deal={seed}", "placebo: Fed-LWR's weights at other names", after="lwr"
            ),
            "cosine": Arm("fedce:terms=cosine", "FedCE, cosines alone"),
            "error": Arm("fedce:terms=error", "FedCE, errors alone"),
            "rival": Arm("qffl", "q-FFL", passes=1.33, own=("q", (0.1, 1.0, 5.0))),
            "ditto": Arm("ditto", "Ditto, own models", passes=2.0, own=("lam", (0.1, 1.0, 10.0))),
            CEILING: Arm("regime-fixed:chosen=vienna_dias", "ceiling: vienna_dias weighs more", own=SHARES),
        },
        primary=Endpoint("Dice at the worst site", SITES, "dice", "worst"),
        second=Endpoint("loss at the worst site", SITES, "loss", "worst", -1),
        guard=Endpoint("mean Dice over the sites", SITES, "dice"),
        sign="one site's validation score far below the others', whose pictures differ in brightness or contrast",
    )


def domains(
    key: str, title: str, task: str, setting: str, rates: tuple[float, ...], rounds: int, **values: Any
) -> Regime:
    names = office_caltech.DOMAINS
    poor = "+".join(f"site-{k}" for k in range(11, 21))
    return Regime(
        key=key,
        title=title,
        judged={METHOD: ("fedheal", PLACEBO, FIXED)},
        setting=f"Office-Caltech, ten objects, {setting}; 20 sites, five a domain",
        task=task,
        values={"optimizer": "sgd", "momentum": 0.9, "batch_size": 16, "weight_decay": 1e-5, **values},
        rates=rates,
        rounds=rounds,
        arms={
            **{k: replace(arm, own=("weight_decay", (0.0, 1e-5, 1e-3))) for k, arm in AVERAGES.items()},
            METHOD: Arm("fedheal", "FedHEAL", own=("tau", (0.2, 0.4, 0.6))),
            "fphl": Arm("fedheal:parts=fphl", "FPHL alone", own=("tau", (0.2, 0.4, 0.6))),
            "fael": Arm("fedheal:parts=fael", "FAEL alone", own=("beta", (0.2, 0.4, 0.8))),
            **replayed("FedHEAL's weights"),
            "rival": Arm("qffl", "q-FFL", passes=1.33, own=("q", (0.1, 1.0, 5.0))),
            CEILING: Arm(
                f"regime-fixed:chosen={poor}", "ceiling: webcam and dslr weigh more", own=("share", (0.4, 0.5, 0.6))
            ),
        },
        primary=Endpoint("standard deviation over domains", names, "accuracy", "std", -1),
        second=Endpoint("loss of the worst domain", names, "loss", "worst", -1),
        guard=Endpoint("mean accuracy over domains", names, "accuracy"),
        sign="sites of few pictures whose looks differ, and a test accuracy that falls with their weight",
        proper=True,
    )


CLASSES = ham10000.DIAGNOSES
STEPS = ("gamma", (0.05, 0.2, 0.5))
GROUPS = Regime(
    key="U1",
    title="Groups are diagnoses",
    judged={METHOD: ("fedufo", PLACEBO, FIXED)},
    setting="HAM10000, seven diagnoses; linear head on a frozen EfficientNet-lite0; four sources, 2,039 pictures train",
    task="regime-groups:bench",
    values={"optimizer": "sgd", "momentum": 0.9, "batch_size": 32, "epochs": 1, "group_by": "label", "min_count": 1},
    rates=(3e-4, 1e-3, 3e-3, 1e-2),
    rounds=40,
    arms={
        **{k: replace(arm, own=("weight_decay", (0.0, 1e-3, 1e-2))) for k, arm in AVERAGES.items()},
        METHOD: Arm("fedufo:radius=none,level=multi", "FedUFO, sites and groups, no ball", passes=1.33, own=STEPS),
        "ball": Arm(
            "fedufo:level=multi", "FedUFO within its ball", passes=1.33, own=("radius", (1e-4, 0.05, 0.5)),
        ),
        "dro": Arm("fedufo:radius=none,level=attribute", "group DRO", passes=1.33, own=STEPS),
        **replayed("FedUFO's weights of groups", "regime-replayed-groups:level=multi", passes=1.33, own=STEPS),
        CEILING: Arm(
            "regime-replayed-groups:level=attribute", "ceiling: each class weighs the same", passes=1.33,
        ),
    },
    primary=Endpoint("recall of the worst class", CLASSES, "accuracy", "worst"),
    second=Endpoint("loss at the worst site", SITES, "loss", "worst", -1),
    guard=Endpoint("mean recall over the classes", CLASSES, "accuracy"),
    sign="a group of patients whose loss stays far above the others' at every site that has it",
    slack=0.0,
    proper=True,
)  # fmt: skip
REGIMES = (
    quality("Q1", "Some sites have noisy pictures", "noise"),
    quality("Q2", "Some sites have blurred pictures", "motion"),
    domains("D1", "Sites of four looks, network from scratch", "regime-domains:bench",
            "32 pixels, a CNN of three layers", (5e-3, 1e-2, 2e-2, 5e-2), 60, epochs=2),
    domains("D2", "Sites of four looks, pretrained encoder", "regime-domain-features:bench",
            "linear head on a frozen EfficientNet-lite0", (1e-3, 3e-3, 1e-2, 3e-2), 20, epochs=3),
    outlines("S1", "One site has another look, outlines", True, 30),
    outlines("S2", "Four sources as they are, outlines", False, 16),  # 1,800 steps; S1 has 1,350
    GROUPS,
)  # fmt: skip
BY_KEY = {regime.key: regime for regime in REGIMES}
