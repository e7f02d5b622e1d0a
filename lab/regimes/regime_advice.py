# SPDX-License-Identifier: Apache-2.0
"""How often ``fairflare run --advise`` is right: random federations of tables, and the regimes that have run.

    python lab/regimes/regime_advice.py RUNS [--seeds 0,1,2] [--regimes U1,D2] [--until 17:05]
    python lab/regimes/regime_advice.py RUNS --collect

A random federation has 4 to 10 sites of 30 to 1,000 patients of a logistic truth with ten features. Intercepts and
slopes may differ by site, one site may have slopes of its own, one noisy features, and a group of 5 to 40 % of the
patients slopes of its own; what is so is drawn. Each arm trains a logistic regression in 30 rounds.

**An arm gains** in a random federation where the log loss of the site that is served worst (``groups``: of the group)
on fresh patients falls by at least 5 % of FedAvg's, and the mean over sites rises by at most 2 %. In a regime it gains
where the 95 % interval of its primary endpoint's difference to FedAvg lies above 0. **Advice is right** where the arm
that it names gains; "nothing" where no arm does. A regime counts once, with the advice that most of its seeds get.
The advice was written on seeds 100 to 119, before the results of seeds 0 to 19 were read, on which it is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import regime_list as regimes
import torch
from regime_run import RESULTS, Late, executed, keep, merged, tuned_file, write
from regime_tasks import Tables

from fairflare.report.advice import Signs, signs_of
from fairflare.report.audit_reader import read_trail
from fairflare.studies.study import config_of

ARMS = {"equal": "fedavg:weighting=uniform", "sites": "qffl:q=5", "own": "ditto"}
ARMS["groups"] = "fedufo:radius=none,level=attribute,gamma=0.2"
SEEDS, ROUNDS = range(20), 30
MORE = 0.02
VALUES = {"optimizer": "sgd", "lr": 0.05, "batch_size": 16, "epochs": 1, "group_by": "group", "min_count": 1}
Losses = dict[str, float]


def measured(path: Path, label: str, task: str, seed: int, until: str, **choices: Any) -> dict[str, Any]:
    """Losses of a run's sites and groups, and its signs where it measures them, kept in ``path``."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    if until and time.strftime("%H:%M") >= until:
        raise Late
    place, over = path.with_suffix(""), choices.pop("over", {})
    values = {"robust": "off", "min_sites": 1, **choices.pop("values")}
    lines = executed(config_of(label, task, seed, {**choices, "values": values}, draw=True, over=over), place)
    trail = read_trail(lines)
    last, sets = trail.evaluation["sites"], trail.scored[-1]["test_sets"]
    content = {
        "sites": {site: of.get("personal", of)["test"].get("loss") for site, of in last.items()},
        "groups": {name: of["metrics"].get("loss") for name, of in sets.items()},
        "signs": dataclasses.asdict(signs_of(place)) if label == "signs" else None,
    }
    keep(path, content)
    shutil.rmtree(place)
    print(time.strftime("%H:%M:%S"), path, flush=True)
    return content


def gain(here: dict[str, Losses], usual: dict[str, Losses], arm: str) -> float:
    """By which share of FedAvg's an arm's largest loss is smaller; -1 where the sites' mean pays for it."""
    what = "groups" if arm == "groups" else "sites"
    means = [sum(one["sites"].values()) / len(one["sites"]) for one in (here, usual)]
    paid = means[0] > (1 + MORE) * means[1]
    return -1.0 if paid else 1 - max(here[what].values()) / max(usual[what].values())


def federation(folder: Path, seed: int, until: str) -> dict[str, Any]:
    """Signs and gains of a random federation."""
    place = folder / "advice"
    runs = {
        name: measured(
            place / f"{name}-seed{seed}.json", label, f"{Tables.name}:bench", seed, until, rounds=ROUNDS, values=VALUES
        )
        for name, label in {"signs": "signs", **ARMS}.items()
    }
    return {**runs["signs"]["signs"], **{arm: gain(runs[arm], runs["signs"], arm) for arm in ARMS}}


def of_regime(folder: Path, key: str, seed: int, until: str) -> Signs:
    """Signs of a regime's federation under FedAvg, at the rate that its tuning chose, else the grid's second."""
    regime, tuned = regimes.BY_KEY[key], tuned_file(folder, regimes.BY_KEY[key])
    over = json.loads(tuned.read_text(encoding="utf-8"))["fedavg"] if tuned.is_file() else {"lr": regime.rates[1]}
    path = folder / "advice" / f"{key}-seed{seed}.json"
    found = measured(
        path, "signs", regime.task, seed, until, rounds=regime.rounds, values=dict(regime.values), over=over
    )
    return Signs(**found["signs"])


def main() -> None:
    """Run or collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--regimes", default="")
    parser.add_argument("--until", default="")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("FAIRFLARE_REGIMES", str(options.folder))
    heads, names = [field.name for field in dataclasses.fields(Signs)], list(ARMS)
    federations, of_regimes = [], []
    with contextlib.suppress(Late):
        for seed in map(int, filter(None, options.seeds.split(","))):
            row = federation(options.folder, seed, options.until)
            federations.append([seed, *(_shown(row[name]) for name in (*heads, *names))])
        for key in filter(None, options.regimes.split(",")):
            for seed in regimes.SEEDS:
                signs = dataclasses.asdict(of_regime(options.folder, key, seed, options.until))
                of_regimes.append([key, seed, *(_shown(signs[name]) for name in heads)])
    if options.collect:
        if federations:
            write(RESULTS / "advice.csv", ["seed", *heads, *names], federations)
        write(path := RESULTS / "signs.csv", ["regime", "seed", *heads], merged(path, 2, of_regimes))


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4f}"


if __name__ == "__main__":
    main()
