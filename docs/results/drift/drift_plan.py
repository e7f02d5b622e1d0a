# SPDX-License-Identifier: Apache-2.0
"""The plan of the measurements of client drift, written before their runs: tasks, deals, endpoints, arms and grids.

Question: which part of the harm of FedAvg comes from averaging models of unlike hospitals, and which from the local
training between two averages, which pulls each model towards its own hospital (client drift)? One full-batch SGD step
per round has no drift: averaging it by examples is gradient descent on all sites' mean loss.

Primary endpoint: the Brier score at the worst site. Beside it the benefit of joining, per site: Brier score minus that
of the site's own model ("solo"). All else is secondary.

Every deal shares each site's patients out anew: 60 % for training, 10 % for validation, 30 % for testing (SUPPORT2: 68,
12, 20, as its preset has it). Intervals are Student's t over deals, widened because deals share patients (Nadeau and
Bengio, Machine Learning 52, 2003).

Every arm whose learning rate is chosen has three candidates and one beyond the best where that is the first or the
last. The least Brier score on validation patients decides, a mean over sites and over deals that are not reported. The
preset's own settings are one arm more, for which nothing is chosen.

Changed after the results of heart and SUPPORT2 and before those of the trial, for want of computing time: six more
arms are left out on the trial (``NOT_AFFORDED``; "kept" always was), and so is the task ``heart:flamby``.

The natural split of ``heart:full``, which the study and the demo use, is run once for each arm with what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

FLAT = "train.optimizer=sgd,train.momentum=0"
WHOLE = f"{FLAT},train.batch_size=65536"
"""One step a round: a site's whole training split is one batch."""
ONE_STEP = 250
"""Rounds of the arms with one step a round."""
NEAR, FAR = (0.3, 1.0, 3.0), {0.3: 0.1, 3.0: 10.0}
"""Candidates of the learning rate, times the arm's central one; the further one beside the first and the last."""
FIRST_TUNING = 1000
"""Tuning deals count from here; reported ones from 0."""


@dataclass(frozen=True)
class Arm:
    """One line of a table.

    Attributes:
        key: its name in the files.
        title: its name in the tables.
        method: METHOD of ``fairflare compare``, with settings; the learning rate is added.
        rate: the central learning rate: "preset", "local" or "whole", see ``Measured``; empty: nothing is chosen.
        one_step: one step in each of ``ONE_STEP`` rounds; else the preset's rounds.
        of: key of the arm whose runs it takes; nothing is trained.
        after: what is done with them: "intercept", a site's own fitted to its training patients, or "shares", those of
            its classes are put back.
    """

    key: str
    title: str
    method: str = ""
    rate: str = ""
    one_step: bool = False
    of: str = ""
    after: str = ""


@dataclass(frozen=True)
class Measured:
    """One task.

    Attributes:
        key: of the task in the files.
        task: T:PRESET that is dealt.
        rounds: the preset's.
        rates: the preset's learning rate, and the central ones of SGD by mini-batches and of whole batches.
        deals: reported.
        tuning: deals to choose with.
        without: keys of arms that are not run.
    """

    key: str
    task: str
    rounds: int
    rates: dict[str, float]
    deals: int
    tuning: int
    without: tuple[str, ...] = ()


ARMS = (
    Arm("trivial", "Trivial answer"),
    Arm("solo", "Solo, the preset's training", "solo", "preset"),
    Arm("solo-whole", "Solo, one full-batch SGD step per round", f"solo:{WHOLE}", "whole", one_step=True),
    Arm("pooled", "Pooled", "pooled", "preset"),
    Arm("preset", "FedAvg, the preset as it is", "fedavg"),
    Arm("fedavg", "FedAvg, the preset's training, rate chosen", "fedavg", "preset"),
    Arm("kept", "FedAvg, optimizer state kept", "fedavg:train.keep_optimizer=true", "preset"),
    Arm("sgd", "FedAvg, plain SGD", f"fedavg:{FLAT}", "local"),
    Arm("sgd-4", "FedAvg, plain SGD, four epochs per round", f"fedavg:{FLAT},train.epochs=4", "local"),
    Arm("sgd-1", "FedAvg, one mini-batch SGD step per round", f"fedavg:{FLAT},train.local_steps=1", "local", True),
    Arm("whole", "FedAvg, one full-batch SGD step per round", f"fedavg:{WHOLE}", "whole", True),
    Arm("scaffold", "SCAFFOLD, plain SGD", f"scaffold:weighting=examples,{FLAT}", "local"),
    Arm("adjusted", "FedAvg, logit-adjusted loss", "fedavg:logit_tau=1", "preset"),
    Arm("whole-adjusted", "FedAvg, one full-batch step, logit-adjusted loss", f"fedavg:logit_tau=1,{WHOLE}",
        "whole", True),
    Arm("fedavg+intercept", "FedAvg, the preset's training, then intercepts", of="fedavg", after="intercept"),
    Arm("whole+intercept", "FedAvg, one full-batch step, then intercepts", of="whole", after="intercept"),
    Arm("adjusted+shares", "FedAvg, logit-adjusted loss, own shares added again", of="adjusted", after="shares"),
    Arm("whole-adjusted+shares", "FedAvg, one full-batch step, logit-adjusted loss, own shares added again",
        of="whole-adjusted", after="shares"),
)  # fmt: skip
NOT_AFFORDED = (
    "kept", "sgd-4", "sgd-1", "adjusted", "whole-adjusted", "adjusted+shares", "whole-adjusted+shares"
)  # fmt: skip
"""Of the 17 countries, whose runs take longest."""
TASKS = (
    Measured("heart", "heart:full", 40, {"preset": 0.005, "local": 0.05, "whole": 1.0}, 20, 2),
    Measured("support2", "support2:default", 20, {"preset": 0.003, "local": 0.1, "whole": 1.0}, 10, 1),
    Measured("ist", "ist:countries", 30, {"preset": 0.02, "local": 0.2, "whole": 1.0}, 6, 1, NOT_AFFORDED),
)
NATURAL = Measured("heart-natural", "heart:full", 40, TASKS[0].rates, 1, 0)
"""The split of the study and of the demo, seed 0, with what was chosen for ``heart``."""
VERSUS = ("solo", "solo-whole", "fedavg", "whole")


def arms(task: Measured) -> tuple[Arm, ...]:
    """Its arms, in the tables' order."""
    return tuple(arm for arm in ARMS if arm.key not in task.without)


def candidates(arm: Arm, task: Measured, times: tuple[float, ...] = NEAR) -> list[str]:
    """METHOD labels, one for each of ``times`` the central rate; one alone where nothing is chosen."""
    return [labelled(arm, f"train.lr={task.rates[arm.rate] * t:.6g}") for t in times] if arm.rate else [labelled(arm)]


def labelled(arm: Arm, *more: str) -> str:
    """METHOD of an arm with further settings."""
    name, _, own = arm.method.partition(":")
    parts = [own, *([f"train.rounds={ONE_STEP}"] if arm.one_step else []), *more]
    settings = ",".join(part for part in parts if part)
    return f"{name}:{settings}" if settings else name
