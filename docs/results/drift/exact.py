# SPDX-License-Identifier: Apache-2.0
"""Which part of what a hospital loses under FedAvg is client drift, which its level, which its own slopes?

    python docs/results/drift/exact.py FOLDER [--only heart,ist]   # goes on with what is missing
    python docs/results/drift/exact.py                             # exact.md from exact.csv

Written before the runs. The model is a logistic regression everywhere, so that FedAvg has an exact answer: the ridge
regression of the pooled patients, which the method ``glm`` computes. Per site and deal of the patients, on its test
patients, in Brier score:

    drift    FedAvg (tuned, same ridge)             minus  exact pooled fit
    level    exact pooled fit                       minus  exact fit with an intercept for each hospital
    slopes   exact fit with own intercepts          minus  own regression (penalty by the site's own cross-validation)
    form     own regression                         minus  own strong model (the better of regression and boosted trees)
    all      FedAvg                                 minus  own strong model: the sum of these four

Primary endpoint: drift, a mean over sites, with its 95 % interval; the other parts are read beside it, per site as well.
Intervals are those of ``drift_tables.interval``: Student's t over deals, widened because deals share patients.

Deals are those of ``drift_run.py``: 60, 10 and 30 per cent of each site's patients for training, validation and
testing, drawn anew by each deal. Everything trains on the training patients. Tuned on validation patients of deals that
are not reported, twelve candidates for each: the ridge of the exact fit, then FedAvg's learning rate and epochs per
round with this ridge as weight decay. The penalty of the own regression has six candidates at each site. The preset
as it is and the trivial answer (the share of events among a site's training patients) stand beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import drift_run
import drift_tables
import numpy as np
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from fairflare.engine.setup import tasks
from fairflare.studies.own_model import INNER, PENALTIES, SCORE, own_risks

HERE = Path(__file__).resolve().parent
VALUES, CHOSEN, PAGE = HERE / "exact.csv", HERE / "exact-chosen.csv", HERE / "exact.md"
DEALS, TUNING, FIRST_TUNING = 20, 2, 1000
TASKS = {"heart": "heart-dealt:full", "ist": "ist-dealt:countries"}
TITLES = {"heart": "Heart disease: four hospitals (`heart:full`)", "ist": "International Stroke Trial: 17 countries"}
RATES = {"heart": 0.005, "ist": 0.02}
"""The presets'."""
TIMES, EPOCHS = (0.1, 0.3, 1.0, 3.0), (1, 2, 4)
RIDGES = (0.0, *(float(f"{value:.3g}") for value in np.logspace(-4, -0.5, 11)))
ROUNDS = 15
"""Of the exact fit, which has settled after eight unless a ridge of 0 lets a coefficient run away."""
PARTS = {
    "drift": ("fedavg", "exact"),
    "level": ("exact", "exact+intercept"),
    "slopes": ("exact+intercept", "regression"),
    "form": ("regression", "own"),
    "all": ("fedavg", "own"),
}
MORE = {"preset minus tuned": ("preset", "fedavg"), "exact minus own": ("exact", "own"),
        "exact with own intercepts minus own": ("exact+intercept", "own"),
        "trivial minus own": ("trivial", "own")}  # fmt: skip
ARMS = ("trivial", "own", "regression", "preset", "fedavg", "exact", "exact+intercept")


def main() -> None:
    """Runs where a folder is given, then the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="heart,ist")
    options = parser.parse_args()
    if options.folder:
        torch.set_num_threads(1)
        tasks.ADDED.update({task.name: task for task in drift_run.DEALT.values()})
        for key in options.only.split(","):
            measure(key, options.folder / key)
    PAGE.write_text(written(), encoding="utf-8")


def measure(key: str, folder: Path) -> None:
    """Tune, run and keep one task's lines of both files."""
    ridge, losses = best(key, [glm(ridge) for ridge in RIDGES], folder)
    decay = ridge.partition("ridge=")[2]
    rates = [f"fedavg:train.weight_decay={decay},train.lr={RATES[key] * t:.6g},train.epochs={e}"
             for t, e in product(TIMES, EPOCHS)]  # fmt: skip
    fedavg, more = best(key, rates, folder)
    labels = {"preset": "fedavg", "fedavg": fedavg, "exact": ridge, "exact+intercept": ridge + ",intercept=site"}
    keep(
        CHOSEN, key, [[key, label, f"{loss:.6f}", label in labels.values()] for label, loss in (losses | more).items()]
    )
    lines = [line for deal in range(DEALS) for line in scored(key, deal, labels, folder)]
    keep(VALUES, key, lines)


def glm(ridge: float) -> str:
    return f"glm:train.rounds={ROUNDS},ridge={ridge:g}"


def runs(key: str, label: str, deals: Sequence[int], folder: Path) -> list[drift_run.study.Predicted]:
    """What the models of a method say of validation and test patients, per deal."""
    found = drift_run.arms([label], TASKS[key], deals, values={"group_by": "none"})
    return drift_run.study.together(found, folder, 1)


def best(key: str, labels: Sequence[str], folder: Path) -> tuple[str, dict[str, float]]:
    """The label of the least Brier score on validation patients, a mean over sites and tuning deals; and all."""
    deals = range(FIRST_TUNING, FIRST_TUNING + TUNING)
    losses = {
        label: float(np.mean([drift_run.study.loss(one) for one in runs(key, label, deals, folder / "tuning")]))
        for label in labels
    }
    return min(losses, key=lambda label: losses[label]), losses


def scored(key: str, deal: int, labels: Mapping[str, str], folder: Path) -> Iterator[list[object]]:
    """A line per site: task, deal, site, training and test patients, and the Brier score of every arm."""
    said = {arm: runs(key, label, [deal], folder / "runs")[0] for arm, label in labels.items()}
    alone = own_models(key, deal, folder / f"own-deal{deal}.npz")
    for site in sorted(name.partition("/")[0] for name in said["fedavg"] if name.endswith("/train/n")):
        y = said["fedavg"][f"{site}/test/y"]
        risks = {arm: expit(found[f"{site}/test/z"]) for arm, found in said.items()}
        risks |= {arm: alone[f"{site}/{arm}"] for arm in ("trivial", "own", "regression")}
        n_train = int(said["fedavg"][f"{site}/train/n"])
        yield [key, deal, site, n_train, len(y), *(f"{((risks[arm] - y) ** 2).mean():.6f}" for arm in ARMS)]


def own_models(key: str, deal: int, kept: Path) -> dict[str, np.ndarray]:
    """SITE/ARM -> risks of the site's test patients by models of its own training patients."""
    if not kept.is_file():
        name, _, preset = TASKS[key].partition(":")
        config = drift_run.arms(["fedavg"], TASKS[key], [deal], values={"group_by": "none"})[0][1]
        task = tasks.load(name, preset, **config.options)
        found = {}
        for site in task.sites():
            train, test = (task.site_data(site).splits[split] for split in ("train", "test"))
            x, new = (np.asarray(part.inputs, dtype=np.float64) for part in (train, test))
            y = train.labels.numpy().astype(np.float64)
            found[f"{site}/own"], kind = own_risks(x, y, new)
            found[f"{site}/regression"] = found[f"{site}/own"] if kind == "regression" else own_regression(x, y, new)
            found[f"{site}/trivial"] = np.full(len(new), y.mean())
        drift_run.study.write(kept, found)
    with np.load(kept) as file:
        return dict(file)


def own_regression(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The regression of ``own_risks`` where this prefers boosted trees."""
    inner = StratifiedKFold(INNER, shuffle=True, random_state=0)
    made = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, scoring=SCORE, cv=inner).fit(x, y)
    return np.asarray(made.predict_proba(new)[:, 1])


def keep(path: Path, key: str, lines: Sequence[Sequence[object]]) -> None:
    """These lines in place of the task's old ones."""
    heads = {VALUES: ["task", "deal", "site", "n_train", "n", *ARMS], CHOSEN: ["task", "candidate", "brier", "chosen"]}
    old = [list(row.values()) for row in drift_tables.read(path) if row["task"] != key]
    drift_tables.write(path, [heads[path], *sorted([*old, *lines], key=lambda row: list(TASKS).index(row[0]))])


def table(key: str) -> tuple[dict[str, dict[str, np.ndarray]], float]:
    """Arm -> site or "mean" -> (deals,) Brier scores, and test patients per training patient."""
    rows = [row for row in drift_tables.read(VALUES) if row["task"] == key]
    sites = list(dict.fromkeys(row["site"] for row in rows))
    found = {
        arm: {site: np.array([float(row[arm]) for row in rows if row["site"] == site]) for site in sites}
        for arm in ARMS
    }
    for of in found.values():
        of["mean"] = np.mean([of[site] for site in sites], axis=0)
    return found, sum(int(row["n"]) for row in rows) / sum(int(row["n_train"]) for row in rows)


def cell(found: Mapping[str, Mapping[str, np.ndarray]], share: float, pair: tuple[str, str], over: str) -> str:
    """The mean difference with its interval; + or - where that excludes zero (a lower score is better)."""
    mean, low, high = drift_tables.interval(found[pair[0]][over] - found[pair[1]][over], share)
    mark = " lost" if low > 0 else " gained" if high < 0 else ""
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]{mark}"


def written() -> str:
    """The page."""
    page = ["# FedAvg against the exact pooled fit: drift, level, slopes", (__doc__ or "").partition("\n\n")[2].strip()]
    page[1] = "```\n" + page[1].replace("Written before the runs.", "```\n\nWritten before the runs.", 1)
    page[1] = page[1].replace("\n    drift ", "\n```\n    drift ").replace("these four\n", "these four\n```\n")
    page += ["A positive part is a loss; \"lost\" and \"gained\" where the interval excludes zero."]  # fmt: skip
    for key in (key for key in TASKS if any(row["task"] == key for row in drift_tables.read(VALUES))):
        found, share = table(key)
        deals = len(found["own"]["mean"])
        chosen = [
            row["candidate"] for row in drift_tables.read(CHOSEN) if (row["task"], row["chosen"]) == (key, "True")
        ]
        page += [f"## {TITLES[key]}", f"{deals} deals. Chosen: {', '.join(f'`{one}`' for one in chosen)}."]
        page.append(drawn(["arm", "mean Brier score"], [[arm, f"{found[arm]['mean'].mean():.4f}"] for arm in ARMS]))
        total = (found["fedavg"]["mean"] - found["own"]["mean"]).mean()
        lines = []
        for name, pair in (PARTS | MORE).items():
            part = (found[pair[0]]["mean"] - found[pair[1]]["mean"]).mean()
            lines.append([name, cell(found, share, pair, "mean"), f"{part / total:.0%}" if name in PARTS else ""])
        page.append(drawn(["part", "mean over sites", "share of all"], lines))
        sites = [over for over in found["own"] if over != "mean"]
        rows = [[site, *(cell(found, share, pair, site) for pair in PARTS.values())] for site in sites]
        page.append(drawn(["site", *PARTS], rows))
    return "\n\n".join(page) + "\n"


def drawn(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = " | ".join(["---", *["--:"] * (len(heads) - 1)])
    return "\n".join(f"| {row} |" for row in (" | ".join(heads), rule, *(" | ".join(line) for line in lines)))


if __name__ == "__main__":
    main()
