# SPDX-License-Identifier: Apache-2.0
"""What the plateau bench compares, what it looks at first, and by which rule it says so: written before its runs.

**Rule.** All differences are paired by seed, which draws data, sites, first model and order. Told are the mean,
Student's 95 % interval and, over the comparisons that a regime names here, Holm's p of exact sign-flip tests
(``report.fairness``).

- *There is room* where the interval of the ceiling minus FedAvg lies above 0. Without room a regime says nothing.
- *Confirmed*: there is room, and the method is better than FedAvg at equal rounds, than FedAvg with as many passes and
  than its placebo: each interval lies above 0 and each of Holm's p is at most .05.
- *Contradicted*: there is room, and the upper end of one of these intervals lies below ``matters``: that part of the
  promise is shown to gain nothing that matters (one point of accuracy or Dice, .1 of Kendall's tau).
- *Not shown*: anything else, too few seeds among it: Holm's p of two or three comparisons can be .05 from 7 seeds on.

**Rounds.** All arms have the number from which on FedAvg's loss on shared validation images, but for its noise from
round to round, no longer fell in half as many rounds again, on seed 100, which is not reported (*quality*: as seen with
20 sites of 60 images; *contribution* and *layers*: a guess); the arm *passes* is FedAvg with as many forward and
backward passes as the method. An arm's value is the mean of its last five rounds.

**Tuning.** One learning rate for all arms, FedAvg's; the method's radius or ball and the ceiling's weight, each of one
to three values, on seed 100 alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SEEDS = tuple(range(10))
LAST = 5
CURVE = 10
ADDED = """**Added after those runs and before their own**: *quality shift at 20 sites* (two label distributions),
*domain skew under the paper's training* and, from the same runs, *the planted conflict*. The rule above holds. Seed
100 alone chose the weight of the ceiling at 20 sites, of three. Domain skew has the paper's SGD .001 with momentum .9,
10 local epochs and 200 rounds, and not a plateau that was looked for; its ceiling is FedAvg on images whose inversion
somebody undid. In *the planted conflict* the endpoint is the cosine between a site's update and each other's as they
are averaged (what FPHL drops is 0 in them), the mean over sites and over the last five rounds; the placebo drops what
is inconsistent in another site's history; a gain of .01 matters. Changed after seven seeds were seen: undone inversion,
the first ceiling there, has updates that point apart still more, so that it shows no room; the ceiling is now an
average of those entries alone whose sign is that of the updates' mean, and the method's own arms stand.

**Own models** (*own models under domain skew*, *under quality shift*): methods that leave each site a model of its own,
and MaxFL, with their defaults and FedAvg's learning rate. Nothing is tuned, and no mechanism is judged: each is held
against FedAvg and against training alone, on test images like the site's own, of the model that the site has after the
last round. *Better* and *worse* are said where the interval lies on one side of 0 and Holm's p over all of these
comparisons of the regime is at most .05.

**Other data** (*quality shift of scans*), declared before its runs: MedNIST, a real set of six kinds of scan at 28 x 28
pixels and a network of about 66,000 parameters. The first rule above holds; the ceiling's weight and the radius are
those of *quality*. On seed 100 alone: learning rate and batch, the steadiest of four trials of FedAvg; noise and blur
are the first that were tried (FedAvg loses 27 and 17 points). Its 30 rounds are not a plateau: in six more the loss
still fell by a twentieth. Seeds 0 to 6, as many as three comparisons need.

**A stronger shift** (*feature shift in late layers, two pixels*), declared before its runs, since the first one showed
no room: masks two pixels wider, not one, and 100 rounds, not 30, after which FedAvg's validation loss falls by 3 % in
50 more. The first rule above holds. On seed 100 alone: the width (three pixels made the last rounds swing more than
the ceiling gains) and the ceiling's weight and layers, of three (.5 and .8 in the last two layers, .8 in the last)."""
"""The rule of what was added, written before it was run."""


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: METHOD of ``fairflare compare``; "{seed}" is the run's seed, by which a placebo is dealt.
        words: what it is, in the page's table.
        times: rounds, as a multiple of the regime's.
        passes: forward and backward passes of a round, as a multiple of FedAvg's.
        over: further settings.
    """

    label: str
    words: str
    times: float = 1.0
    passes: float = 1.0
    over: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Regime:
    """A kind of federation.

    Attributes:
        method: key of the arm that the regime is about.
        metric: of the shared test sets; higher is better.
        endpoint: names of the sets whose mean is the primary endpoint, or "worst of" all of them.
        others: sets whose mean is told beside it: what it costs everyone else.
        comparisons: arms that the method is held against; Holm's p is over these.
        matters: the smallest gain that matters.
        chosen: sites whose summed weight in the last round is told.
        sign: how a federation recognises that it is in this regime.
        rows: key of the regime of whose runs this one is another reading; empty: it has its own.
        baselines: arms that ``ADDED`` holds against FedAvg and training alone; no mechanism is judged then.
        curve: a curve is kept at every so many rounds.
        ceiling: key of the arm that shows the room.
    """

    key: str
    title: str
    setting: str
    task: str
    values: Mapping[str, Any]
    rounds: int
    arms: Mapping[str, Arm]
    method: str
    endpoint: tuple[str, ...]
    others: tuple[str, ...]
    comparisons: tuple[str, ...]
    sign: str
    metric: str = "accuracy"
    worst: bool = False
    matters: float = 0.01
    chosen: tuple[str, ...] = field(default=())
    rows: str = ""
    baselines: tuple[str, ...] = ()
    curve: int = CURVE
    ceiling: str = "ceiling"


POOR = ("site-9", "site-10")
SMALL = {"optimizer": "adam", "batch_size": 60}
QUALITY = Regime(
    key="quality",
    title="Quality shift",
    setting="10 sites of 120 handwritten digits with the same labels; images of one site are noisy (sd .4), of one "
    "blurred by motion",
    task="plateau-quality:bench",
    values={**SMALL, "lr": 6e-3, "epochs": 2, "task.noise": 0.4},
    rounds=30,
    arms={
        "fedavg": Arm("fedavg", "FedAvg"),
        "passes": Arm("fedavg", "FedAvg, as many passes as FedISM+", times=3.3),
        "method": Arm("fedism-plus:state=L,rho_max=0.1", "FedISM+ (L)", passes=3.3),
        "ceiling": Arm(
            "plateau-fixed:trainer=gsam,rho_max=0.1,chosen=9+10,share=0.5",
            "ceiling: flat training, the spoilt sites weigh .5 together", passes=2.0,
        ),
        "placebo": Arm(
            "plateau-shuffled-ism:state=L,rho_max=0.1,deal={seed}",
            "placebo: FedISM+, each weight at another site", passes=3.3,
        ),
    },
    method="method",
    endpoint=("noise", "blur"),
    others=("clean",),
    comparisons=("fedavg", "passes", "placebo"),
    chosen=POOR,
    sign="sites where the shared model's loss is far above the others', while their labels are alike",
)  # fmt: skip
LOOKS = Regime(
    key="looks",
    title="Domain skew, with a planted conflict",
    setting="4 sites of 240 handwritten digits, one of each look: MNIST, optdigits (coarse, fills the image), and both "
    "with inverted contrast",
    task="plateau-looks:bench",
    values={"optimizer": "adam", "batch_size": 60, "lr": 6e-3, "epochs": 2},
    rounds=60,
    arms={
        "fedavg": Arm("fedavg", "FedAvg; FedHEAL has its passes"),
        "method": Arm("fedheal", "FedHEAL"),
        "ceiling": Arm("plateau-fixed:chosen=1+3,share=0.7", "ceiling: the two sites of MNIST weigh .7 together"),
        "placebo": Arm(
            "plateau-shuffled-heal:deal={seed}", "placebo: FedHEAL, updates under other sites' names in each round"
        ),
    },
    method="method",
    endpoint=("MNIST", "optdigits", "MNIST inverted", "optdigits inverted"),
    others=("MNIST", "optdigits", "MNIST inverted", "optdigits inverted"),
    worst=True,
    comparisons=("fedavg", "placebo"),
    chosen=("site-1", "site-3"),
    sign="sites whose updates point away from one another (negative cosines) while each of them alone fits its data",
)
GROUPED = {"group_by": "kind", "min_count": 1}
SUBGROUPS = Regime(
    key="subgroups",
    title="Subpopulations",
    setting="5 sites of 160 digits, high or low; a tenth of all images bears a mark, 0 to 20 % at a site, and for them "
    "the opposite holds of six of the ten digits",
    task="plateau-subgroups:bench",
    values={"optimizer": "adam", "batch_size": 40, "lr": 5e-3, "epochs": 2, **GROUPED},
    rounds=25,
    arms={
        "fedavg": Arm("fedavg", "FedAvg"),
        "passes": Arm("fedavg", "FedAvg, as many passes as FedUFO", times=1.32),
        "method": Arm("fedufo:radius=none,level=multi", "FedUFO (sites and groups)", passes=1.33),
        "dro": Arm("fedufo:radius=none,level=attribute", "group DRO (FedUFO's groups alone, no ball)", passes=1.33),
        "ceiling": Arm("plateau-ufo:level=attribute,small=0.95", "ceiling: marked images count 19 times", passes=1.33),
        "placebo": Arm(
            "plateau-ufo:radius=none,level=multi,deal={seed}", "placebo: losses shuffled", passes=1.33
        ),
    },
    method="method",
    endpoint=("majority", "subgroup"),
    others=("majority",),
    worst=True,
    comparisons=("fedavg", "passes", "placebo"),
    chosen=("site-4", "site-5"),
    sign="a group of patients whose loss stays far above the others' at every site that has it",
)  # fmt: skip
CONTRIBUTION = "contribution"
SITES = tuple(f"site-{k}" for k in range(1, 7))


def coalitions() -> dict[str, Arm]:
    """Plain averaging with equal weights of each of the 63 coalitions."""
    found = {}
    for team in range(1, 2 ** len(SITES)):
        names = [site for k, site in enumerate(SITES) if team >> k & 1]
        team_key = "coalition-" + "".join(name[-1] for name in names)
        over = {"selector": "list", "select.sites": ",".join(names), "min_sites": "1"}
        found[team_key] = Arm("fedavg:weighting=uniform", "a coalition", over=over)
    return found


WORTH = Regime(
    key=CONTRIBUTION,
    title="Contribution",
    setting="6 sites of 120 digits: whole; a third of site 1's; site 1's again; 20 % and 40 % wrong labels; one image "
    "120 times",
    task="plateau-contribution:bench",
    values={"optimizer": "adam", "batch_size": 48, "lr": 8e-3, "epochs": 3},
    rounds=10,
    arms={
        "method": Arm("fedce", "FedCE (sum)"),
        "multi": Arm("fedce:combine=multi", "FedCE (multi)"),
        "cgsv": Arm("cgsv", "CGSV"),
        "shapfed": Arm("shapfed", "ShapFed"),
        **coalitions(),
    },
    method="method",
    endpoint=("test a", "test b"),
    others=(),
    comparisons=("placebo", "examples", "cgsv"),
    matters=0.1,
    sign="sites whose removal changes the accuracy of all by unlike amounts; nothing that one round's updates show",
)
"""Of each method Kendall's tau-b of its last shares with exact Shapley values of accuracy on both test sets; the
placebo's is 0, the mean over all ways to shuffle shares over sites; the ceiling's that of Shapley values on one test
set with those on the other. There is room where it is above that of n_k; no arm has other passes."""


def layers(shift: str, start: str) -> Regime:
    return Regime(
        key=f"layers-{shift}",
        title=f"Feature shift in {shift} layers",
        setting="6 sites of 24 digits over photographs, whose ink is segmented; two sites have "
        + {"early": "inverted and faded images", "late": "masks that are a pixel wider"}[shift],
        task="plateau-layers:bench",
        values={"optimizer": "adam", "batch_size": 12, "lr": 3e-3, "epochs": 2, "task.shift": shift},
        rounds=30,
        arms={
            "fedavg": Arm("fedavg", "FedAvg"),
            "passes": Arm("fedavg", "FedAvg, as many passes as Fed-LWR", times=1.7),
            "method": Arm("fedlwr", "Fed-LWR", passes=1.7),
            "ceiling": Arm(f"plateau-fixed:chosen=5+6,share=0.5,layers={start}", "ceiling: they weigh .5 there"),
            "placebo": Arm("plateau-shuffled-lwr:deal={seed}", "placebo: layers' weights shuffled", passes=1.7),
        },
        method="method",
        metric="dice",
        endpoint=("shifted",),
        others=("plain",),
        comparisons=("fedavg", "passes", "placebo"),
        chosen=("site-5", "site-6"),
        sign="CKA between a site's model and the average that is low in some layers and high in others",
    )  # fmt: skip


def layers_wide() -> Regime:
    """The shift in late layers again, made stronger, as no room was shown."""
    late = layers("late", "")
    ceiling = Arm("plateau-fixed:chosen=5+6,share=0.8,layers=conv4+head", "ceiling: they weigh .8 in the last layers")
    return replace(
        late,
        key="layers-late-wide",
        title="Feature shift in late layers, two pixels",
        setting=late.setting.replace("a pixel wider", "two pixels wider"),
        task="plateau-layers-wide:bench",
        rounds=100,
        arms={**late.arms, "ceiling": ceiling},
    )


def quality_20(key: str, title: str, labels: str, **values: Any) -> Regime:
    poor = "17+18+19+20"
    return replace(
        QUALITY,
        key=key,
        title=title,
        setting=f"20 sites of 120 handwritten digits with {labels} labels; images of two sites are noisy (sd .4), of "
        "two blurred by motion",
        task="plateau-quality-20:bench",
        values={**QUALITY.values, **values},
        arms={
            **QUALITY.arms,
            "ceiling": replace(
                QUALITY.arms["ceiling"],
                label=f"plateau-fixed:trainer=gsam,rho_max=0.1,chosen={poor},share=0.5",
                words="ceiling: flat training, the spoilt sites weigh .5 together",
            ),
        },
        chosen=tuple(f"site-{k}" for k in poor.split("+")),
    )


SCANS = replace(
    quality_20("quality-scans", "Quality shift of scans", ""),
    setting="20 sites of 60 scans (MedNIST, six classes nearly alike in number); images of two sites are noisy (sd "
    ".6), of two blurred by motion",
    task="plateau-scans:bench",
    values={"optimizer": "adam", "batch_size": 20, "lr": 1e-3, "epochs": 2},
)


def told(settings: str) -> str:
    return f"plateau-heal:{settings}"


LOOKS_SGD = replace(
    LOOKS,
    key="looks-sgd",
    title="Domain skew under the paper's training",
    setting=f"{LOOKS.setting}; SGD .001 with momentum .9, 10 local epochs",
    task="plateau-looks-own:bench",
    values={
        **{"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10},
    },
    rounds=200,
    chosen=(),
    curve=40,
    arms={
        "fedavg": Arm(told("parts=fphl,tau=0"), "FedAvg; all others have its passes"),
        "method": Arm(told("parts=both"), "FedHEAL"),
        "fphl": Arm(told("parts=fphl"), "FPHL alone"),
        "fael": Arm(told("parts=fael"), "FAEL alone"),
        "ceiling": Arm(told("parts=fphl,tau=0"), "ceiling: FedAvg, inversion undone", over={"task.inverted": "false"}),
        "placebo": Arm(told("deal={seed}"), "placebo: FedHEAL, updates under other sites' names in each round"),
        "dealt": Arm(told("parts=fphl,deal={seed}"), "placebo: FPHL, updates under other sites' names in each round"),
        "agreed": Arm("plateau-agreed:parts=fphl,tau=0", "ceiling of the conflict: only entries of the mean's sign"),
    },
)
CONFLICT = replace(
    LOOKS_SGD,
    key="looks-conflict",
    title="The planted conflict",
    setting="The same runs; what FPHL does to the conflict of the sites' updates",
    rows="looks-sgd",
    arms={key: LOOKS_SGD.arms[key] for key in ("fedavg", "fphl", "fael", "method", "ceiling", "agreed", "dealt")},
    method="fphl",
    endpoint=("updates",),
    metric="cosine",
    worst=False,
    ceiling="agreed",
    comparisons=("fedavg", "dealt"),
    chosen=(),
)
DEAREST = "FedAvg, twice the rounds"
OWN = {
    "fedavg": Arm("fedavg", "FedAvg, one model"),
    "passes": Arm("fedavg", DEAREST, times=2.0),
    "solo": Arm("solo", "training alone"),
    "maxfl": Arm("maxfl", "MaxFL, one model", passes=1.17),
    "fedper": Arm("fedper", "FedPer"),
    "ditto": Arm("ditto", "Ditto", passes=2.0),
    "apfl": Arm("apfl", "APFL", passes=2.0),
}
FOUR = ("maxfl", "fedper", "ditto", "apfl")


def own(regime: Regime, title: str, endpoint: tuple[str, ...], others: tuple[str, ...], **more: Any) -> Regime:
    """A regime's federation with own models; sets are the sites' own tests."""
    arms = {**OWN, **more.pop("arms", {})}
    found = replace(regime, title=title, arms=arms, endpoint=endpoint, others=others, chosen=(), comparisons=(), **more)
    return replace(found, method="fedavg", curve=found.rounds)


LOOKS_OWN = own(
    LOOKS,
    "Own models under domain skew",
    tuple(f"own site-{k}" for k in range(1, 5)),
    tuple(f"own site-{k}" for k in range(1, 5)),
    key="looks-own",
    task="plateau-looks-own:bench",
    arms={
        "fedrep": Arm("fedrep", "FedRep", passes=2.0),
        "pfedme": Arm("pfedme", "pFedMe", passes=5.0),
        "fedamp": Arm("fedamp", "FedAMP"),
        "ifca": Arm("ifca", "IFCA, two clusters", passes=1.33),
        "ceiling": Arm("fedavg", "ceiling: FedAvg, inversion undone", over={"task.inverted": "false"}),
    },
    baselines=(*FOUR, "fedrep", "pfedme", "fedamp", "ifca"),
)
QUALITY_OWN = own(
    QUALITY,
    "Own models under quality shift",
    tuple(f"own {site}" for site in POOR),
    tuple(f"own site-{k}" for k in range(1, 9)),
    key="quality-own",
    task="plateau-quality-own:bench",
    arms={"ceiling": QUALITY.arms["ceiling"]},
    baselines=FOUR,
)
FIRST = (QUALITY, LOOKS, SUBGROUPS, WORTH, layers("early", "conv1+conv2"), layers("late", "conv4+head"))
"""Those that the rule in this module's first lines was written for."""
REGIMES = (
    *FIRST,
    layers_wide(),
    quality_20("quality-20", "Quality shift at 20 sites", "the same"),
    quality_20("quality-20-skew", "Quality shift at 20 sites, skewed labels", "Dirichlet(1)", **{"task.alpha": 1.0}),
    SCANS,
    LOOKS_SGD,
    CONFLICT,
    LOOKS_OWN,
    QUALITY_OWN,
)
