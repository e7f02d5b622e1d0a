# SPDX-License-Identifier: Apache-2.0
"""Which part of what a hospital loses under FedAvg is client drift, which its level, which its own slopes?

    python benchmarks/drift/exact.py FOLDER [--only heart,ist]   # goes on with what is missing
    python benchmarks/drift/exact.py                             # exact.md from exact.csv
    python benchmarks/drift/exact.py FOLDER --check              # one deal of each task as runs of the package

Written before the runs. The model is a logistic regression everywhere, so that FedAvg has an exact answer: the ridge
regression of the pooled patients, which the method ``glm`` computes. Per site and deal of the patients, on its test
patients, in Brier score:

    drift    FedAvg (tuned, same ridge)             minus  exact pooled fit
    level    exact pooled fit                       minus  exact fit with an intercept for each hospital
    slopes   exact fit with own intercepts          minus  own regression (penalty by the site's own cross-validation)
    form     own regression                         minus  own strong model (the better of regression and boosted trees)
    all      FedAvg                                 minus  own strong model: the sum of these four

Primary endpoint: drift, a mean over sites, with its 95 % interval; the other parts are read beside it, and per site.
Intervals are those of ``drift_tables.interval``: Student's t over deals, widened because deals share patients.

Deals are those of ``docs/results/drift``: 60, 10 and 30 per cent of each site's patients for training, validation and
testing, drawn anew by each deal. Everything trains on the training patients. Tuned on validation patients of deals that
are not reported, twelve candidates for each: the ridge of the exact fit, then FedAvg's learning rate and epochs per
round with this ridge as weight decay; where the best rate is the largest, one more beyond it. The penalty of the own
regression has six candidates at each site. The preset as it is and the trivial answer (the share of events among a
site's training patients) stand beside.

Changed after the heart runs had begun, for want of computing time: FedAvg is not run as runs of the package, but all
deals at once with the same initial models, batches and arithmetic, and the exact fit by ``functional.likelihood``.
``--check`` holds both against runs of the package. The candidate beyond the largest rate was added then, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from fairflare.core.seeds import derive
from fairflare.data.tensors import batches_of
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import site_of_client
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.intervals import Array, Owners
from fairflare.functional.likelihood import aliased, bernoulli, newton_step, own_intercept, profiled, sums
from fairflare.trainers.base import eager

INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
SCORE = "neg_brier_score"
REGRESSION, TREES = "regression", "trees"
GROWN = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10, "l2_regularization": 1.0}


def own_risks(x: Array, y: Array, new: Array, patients: Owners | None = None) -> tuple[Array, str]:
    """Risks (M,) of the rows ``new`` (M, F) by the own model of the rows (x, y), and its kind; see ``own_model``."""
    from threadpoolctl import threadpool_limits

    model, kind = own_model(x, y, patients)
    with threadpool_limits(1):
        return np.asarray(model.predict_proba(new)[:, 1]), kind


def own_model(x: Array, y: Array, patients: Owners | None = None) -> tuple[Any, str]:
    """The better of two models of the rows (x, y), and which it is.

    Args:
        x: (N, F) finite.
        y: (N,) 0 or 1, two or more of each.
        patients: (N,) whose rows lie in one part of the cross-validation; None: each row is another patient.

    Returns:
        A fitted classifier of scikit-learn, and "regression" or "trees". Classes of fewer than three patients give a
        regression without cross-validation.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold, cross_val_score
    from threadpoolctl import threadpool_limits

    owner = np.arange(len(y)) if patients is None else patients
    folds = min(INNER, *(len(np.unique(owner[y == k])) for k in (0, 1)))
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of a solver that stops before it has converged
        if folds < 3:
            return LogisticRegression(C=0.1).fit(x, y), REGRESSION
        dealing = StratifiedKFold if patients is None else StratifiedGroupKFold
        inner = list(dealing(folds, shuffle=True, random_state=0).split(x, y, patients))
        ridge = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, scoring=SCORE, cv=inner).fit(x, y)
        trees = HistGradientBoostingClassifier(**GROWN, random_state=0)
        if cross_val_score(trees, x, y, scoring=SCORE, cv=inner).mean() > ridge.best_score_:
            return trees.fit(x, y), TREES
        return ridge.best_estimator_, REGRESSION


HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "docs" / "results" / "drift"))
import drift_run  # noqa: E402
import drift_tables  # noqa: E402

VALUES, CHOSEN, PAGE = HERE / "exact.csv", HERE / "exact-chosen.csv", HERE / "exact.md"
DEALS, TUNING, FIRST_TUNING = 20, 2, 1000
TASKS = {"heart": "heart-dealt:full", "ist": "ist-dealt:countries"}
TITLES = {"heart": "Heart disease: four hospitals (`heart:full`)", "ist": "International Stroke Trial: 17 countries"}
TIMES, FURTHER, EPOCHS = (0.1, 0.3, 1.0, 3.0), 10.0, (1, 2, 4)
"""Learning rates, in units of the preset's."""
RIDGES = (0.0, *(float(f"{value:.3g}") for value in np.logspace(-4, -0.5, 11)))
STEPS = 15
"""Of the exact fit, which has settled after eight unless a ridge of 0 lets a coefficient run away."""
PARTS = {
    "drift": ("fedavg", "exact"),
    "level": ("exact", "exact+intercept"),
    "slopes": ("exact+intercept", "regression"),
    "form": ("regression", "own"),
    "all": ("fedavg", "own"),
}
MORE = {
    "preset minus tuned": ("preset", "fedavg"),
    "exact minus own": ("exact", "own"),
    "exact with own intercepts minus own": ("exact+intercept", "own"),
    "trivial minus own": ("trivial", "own"),
}
ARMS = ("trivial", "own", "regression", "preset", "fedavg", "exact", "exact+intercept")


@dataclass(frozen=True)
class Deals:
    """Several deals of a task.

    Attributes:
        sites: client -> site.
        splits: of each deal, site -> split -> features and outcomes.
        models: (R, p + 1) initial weights and, at the end, biases.
        seeds: of the runs.
        training: of the preset.
    """

    sites: Mapping[str, str]
    splits: Sequence[Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]]
    models: torch.Tensor
    seeds: Sequence[int]
    training: dict[str, Any]

    def rest(self, site: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        """(R, n, p + 1) features with a one at the end, and (R, n) outcomes, of a site in all deals."""
        x, y = (torch.stack(each) for each in zip(*(of[site][split] for of in self.splits), strict=True))
        return torch.cat((x, torch.ones_like(x[..., :1])), dim=2), y


def dealt(key: str, numbers: Sequence[int]) -> Deals:
    """These deals, as runs with these seeds have them."""
    made = drift_run.arms(["fedavg"], TASKS[key], numbers, values=drift_run.VALUES)
    parts = [build_parts(config) for _, config in made]
    splits = [{s: _split(one.task.site_data(s)) for s in one.task.sites()} for one in parts]
    start = [torch.cat([one.model["head.weight"].reshape(-1), one.model["head.bias"]]) for one in parts]
    config = made[0][1]
    return Deals(
        site_of_client(config, parts[0].task), splits, torch.stack(start), numbers, dataclasses.asdict(config.training)
    )


def _split(data: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: (data.splits[name].inputs, data.splits[name].targets.float()) for name in ("train", "val", "test")}


def main() -> None:
    """Runs where a folder is given, then the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="heart,ist")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    tasks.ADDED.update({task.name: task for task in drift_run.DEALT.values()})
    torch.set_num_threads(1)
    for key in options.only.split(",") if options.folder else ():
        (checked if options.check else measure)(key, options.folder / key)
    PAGE.write_text(written(), encoding="utf-8")


def measure(key: str, folder: Path) -> None:
    """Tune, run and keep one task's lines of both files."""
    tuning = dealt(key, range(FIRST_TUNING, FIRST_TUNING + TUNING))
    losses = {f"ridge={ridge:g}": loss(tuning, exact(tuning, ridge)) for ridge in RIDGES}
    ridge = min(losses, key=lambda label: losses[label])
    tried = {}
    for times, epochs in product(TIMES, EPOCHS):
        tried[times, epochs] = loss(tuning, fedavg(tuning, **settings(tuning, ridge, times, epochs)))
        print(key, times, epochs, f"{tried[times, epochs]:.6f}", flush=True)
    if (best := min(tried, key=lambda at: tried[at]))[0] == max(TIMES):
        tried[FURTHER, best[1]] = loss(tuning, fedavg(tuning, **settings(tuning, ridge, FURTHER, best[1])))
        best = min(tried, key=lambda at: tried[at])
    losses |= {f"lr={tuning.training.lr * at[0]:g},epochs={at[1]}": value for at, value in tried.items()}
    chosen = {ridge, f"lr={tuning.training.lr * best[0]:g},epochs={best[1]}"}
    keep(CHOSEN, key, [[key, label, f"{value:.6f}", label in chosen] for label, value in losses.items()])
    deals = dealt(key, range(DEALS))
    preset = fedavg(deals, deals.training.lr, deals.training.epochs, 0.0)
    arms = {"preset": preset, "fedavg": fedavg(deals, **settings(deals, ridge, *best))}
    arms |= {"exact": exact(deals, value_of(ridge)), "exact+intercept": exact(deals, value_of(ridge), own=True)}
    keep(VALUES, key, [line for deal in range(DEALS) for line in scored(key, deals, deal, arms, folder)])


def settings(deals: Deals, ridge: str, times: float, epochs: int) -> dict[str, Any]:
    return {"lr": deals.training.lr * times, "epochs": epochs, "decay": value_of(ridge)}


def value_of(ridge: str) -> float:
    return float(ridge.partition("=")[2])


def loss(deals: Deals, models: Sequence[Mapping[str, torch.Tensor]]) -> float:
    """Brier score on validation patients, a mean over sites and deals."""
    found = []
    for site in deals.sites.values():
        x, y = deals.rest(site, "val")
        found += [float(((z - t) ** 2).mean()) for z, t in zip(said(x, site, models), y, strict=True) if len(t)]
    return float(np.mean(found))


def said(x: torch.Tensor, site: str, models: Sequence[Mapping[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Per deal the risks (n,) of patients x (R, n, p + 1) by the model of their site (p + 1,)."""
    return [(each.double() @ model[site]).sigmoid() for each, model in zip(x, models, strict=True)]


def fedavg(deals: Deals, lr: float, epochs: int, decay: float) -> list[dict[str, torch.Tensor]]:
    """Per deal, site -> the final model: every site's epochs of mini-batches, then the mean by examples, each round."""
    data = {client: deals.rest(site, "train") for client, site in deals.sites.items()}
    total = sum(y.shape[1] for _, y in data.values())
    shared, own = deals.models.clone(), deals.training
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[own["optimizer"]]
    more = {"momentum": own["momentum"]} if own["optimizer"] == "sgd" else {"betas": (0.9, own["adam_beta2"])}
    for number in range(1, int(own["rounds"]) + 1):
        combined = torch.zeros_like(shared)
        for client, (x, y) in data.items():
            local = shared.clone().requires_grad_()
            steps = eager(optimizer)([local], lr=lr, weight_decay=decay, fused=True, **more)
            for rows in orders(deals.seeds, client, number, epochs, y.shape[1], own["batch_size"]):
                batch = x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))
                with torch.no_grad():
                    error = torch.bmm(batch, local[..., None])[..., 0].sigmoid() - y.gather(1, rows)
                    local.grad = torch.bmm(error[:, None] / rows.shape[1], batch)[:, 0]
                steps.step()
            combined += local.detach() * (y.shape[1] / total)
        shared = combined
    return [dict.fromkeys(deals.sites.values(), model.double()) for model in shared]


def orders(seeds: Sequence[int], client: str, number: int, epochs: int, n: int, size: int) -> Iterator[torch.Tensor]:
    """(R, batch) the rows of each batch of a client's round, as ``TensorData.training`` draws them."""
    for epoch in range(epochs):
        drawn = []
        for seed in seeds:
            of_round = derive(seed, "train", client, number)
            generator = torch.Generator().manual_seed(derive(of_round, "epoch", epoch))
            drawn.append(torch.randperm(n, generator=generator))
        places = batches_of(torch.arange(n), size)
        yield from (torch.stack(drawn)[:, place] for place in places)


def exact(deals: Deals, ridge: float, own: bool = False) -> list[dict[str, torch.Tensor]]:
    """Per deal, site -> the pooled ridge regression by Newton's steps on sums; own: with an intercept of each site."""
    return [_exact(splits, ridge, own) for splits in deals.splits]


def _exact(splits: Mapping[str, Any], ridge: float, own: bool) -> dict[str, torch.Tensor]:
    data = {site: tuple(each.double() for each in of["train"]) for site, of in splits.items()}
    p = next(iter(data.values()))[0].shape[1]
    n, at = sum(len(y) for _, y in data.values()), torch.zeros(p + 1, dtype=torch.float64)
    levels: dict[str, float] = {}
    penalty = torch.cat(
        (torch.full((p,), ridge, dtype=torch.float64), torch.zeros(0 if own else 1, dtype=torch.float64))
    )
    for _ in range(STEPS):
        found = []
        for site, (x, y) in data.items():
            if own:
                level = own_intercept(bernoulli, x @ at[:p], y)
                assert level is not None, f"{site}: outcomes that are all alike"
                levels[site] = level
                found.append(profiled(bernoulli, x, y, at[:p], level))
            else:
                found.append(sums(bernoulli, torch.cat((x, torch.ones_like(x[:, :1])), 1), y, at))
        free = len(penalty)
        score = torch.stack([one.score for one in found]).sum(0) / n - penalty * at[:free]
        information = torch.stack([one.information for one in found]).sum(0) / n + penalty.diag()
        at[:free] += newton_step(score, information, aliased(information, first=None if own else p))
    levels |= {site: own_intercept(bernoulli, x @ at[:p], y) or 0.0 for site, (x, y) in data.items() if own}
    return {site: torch.cat((at[:p], torch.tensor([levels.get(site, float(at[p]))]).double())) for site in data}


def checked(key: str, folder: Path) -> None:
    """One deal as runs of the package: how far logits of test patients are apart."""
    deals = dealt(key, [0])
    rate, ridge = float(deals.training.lr) * 0.3, 0.005
    glm = f"glm:train.rounds={STEPS},ridge={ridge}"
    pairs: dict[str, Callable[[], list[dict[str, torch.Tensor]]]] = {
        f"fedavg:train.lr={rate:g},train.epochs=2,train.weight_decay={ridge}": lambda: fedavg(deals, rate, 2, ridge),
        glm: lambda: exact(deals, ridge),
        f"{glm},intercept=site": lambda: exact(deals, ridge, own=True),
    }
    for label, made in pairs.items():
        runs = drift_run.arms([label], TASKS[key], [0], values=drift_run.VALUES)
        run, (models,) = drift_run.study.together(runs, folder / "check", 1)[0], made()
        apart = 0.0
        for site in deals.sites.values():
            mine = deals.rest(site, "test")[0][0].double() @ models[site]
            apart = max(apart, float(np.abs(mine.numpy() - run[f"{site}/test/z"]).max()))
        print(key, label, f"largest difference of a logit: {apart:.1e}", flush=True)


def scored(key: str, deals: Deals, deal: int, arms: Mapping[str, Any], folder: Path) -> Iterator[list[object]]:
    """A line per site: task, deal, site, training and test patients, and the Brier score of every arm."""
    alone = own_models(deals, deal, folder / f"own-deal{deal}.npz")
    for site in sorted(deals.sites.values()):
        (x, y), n_train = deals.rest(site, "test"), len(deals.splits[deal][site]["train"][1])
        risks = {
            arm: said(x[deal : deal + 1], site, models[deal : deal + 1])[0].numpy() for arm, models in arms.items()
        }
        risks |= {arm: alone[f"{site}/{arm}"] for arm in ("trivial", "own", "regression")}
        truth = y[deal].numpy()
        brier = (f"{((risks[arm] - truth) ** 2).mean():.6f}" for arm in ARMS)
        yield [key, deal, site, n_train, len(truth), *brier]


def own_models(deals: Deals, deal: int, kept: Path) -> dict[str, np.ndarray]:
    """SITE/ARM -> risks of the site's test patients by models of its own training patients."""
    if not kept.is_file():
        found = {}
        for site, splits in deals.splits[deal].items():
            (x, y), (new, _) = ((a.double().numpy(), b.double().numpy()) for a, b in (splits["train"], splits["test"]))
            found[f"{site}/own"], kind = own_risks(x, y, new)
            found[f"{site}/regression"] = found[f"{site}/own"] if kind == "regression" else own_regression(x, y, new)
            found[f"{site}/trivial"] = np.full(len(new), y.mean())
        drift_run.study.write(kept, found)
        print(kept.name, flush=True)
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


def differences() -> list[dict[str, str]]:
    """A line per task, difference and site, or "mean" of sites, as ``drift_tables.differences`` has them."""
    rows = []
    for key in (key for key in TASKS if any(row["task"] == key for row in drift_tables.read(VALUES))):
        found, share = table(key)
        for (arm, versus), over in product({**PARTS, **MORE}.values(), found["own"]):
            told = drift_tables.interval(found[arm][over] - found[versus][over], share)
            numbers = (f"{value:.5f}" for value in (found[arm][over].mean(), *told))
            verdict = drift_tables.verdict(told[1], told[2], higher=False)
            named = (key, arm, versus, over, "brier", *numbers, verdict)
            rows.append(dict(zip(drift_tables.DIFFERENCE, named, strict=False)))
    return rows


MARKS = {"worse": " lost", "better": " gained", drift_tables.CANNOT: ""}
LIMITS = """A positive part is a loss; "lost" and "gained" where the interval excludes zero, a part's share where that
of the whole does.

Limits: *drift* is all by which FedAvg's last model is behind the exact fit: its sites' steps apart, noise of its last
batches, and rounds that are too few; the numbers of rounds are the presets'. Two tuning deals choose. Own models have
the patients of the training part alone, as all others. With `--check` no logit of a run differs by more than 1.1e-6.
Not measured: other tables, networks, weights by anything but the number of patients."""


def cell(row: Mapping[str, str]) -> str:
    """The mean difference with its interval, and what it says."""
    mean, low, high = (float(row[name]) for name in ("mean", "low", "high"))
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]{MARKS[row['verdict']]}"


def written() -> str:
    """The page."""
    usage, words = (__doc__ or "").split("Written before the runs.")
    title, commands = usage.strip().split("\n\n")
    head, parts, rest = words.strip().split("\n\n", 2)
    page = [f"# {title}", f"```\n{textwrap.dedent('    ' + commands.strip())}\n```", f"Written before the runs. {head}"]
    page += [f"```\n{textwrap.dedent('    ' + parts.strip())}\n```", rest.replace("``", "`").strip(), LIMITS]
    rows = differences()
    for key in (key for key in TASKS if any(row["task"] == key for row in rows)):
        index = {(row["arm"], row["versus"], row["over"]): row for row in rows if row["task"] == key}
        (found, _), total = table(key), index[(*PARTS["all"], "mean")]
        chosen = [
            row["candidate"] for row in drift_tables.read(CHOSEN) if (row["task"], row["chosen"]) == (key, "True")
        ]
        page += [f"## {TITLES[key]}", f"{DEALS} deals. Chosen: {', '.join(f'`{one}`' for one in chosen)}."]
        page.append(drawn(["arm", "mean Brier score"], [[arm, f"{found[arm]['mean'].mean():.4f}"] for arm in ARMS]))
        lines = []
        for name, pair in {**PARTS, **MORE}.items():
            row = index[(*pair, "mean")]
            told = name in PARTS and total["verdict"] != drift_tables.CANNOT
            share = f"{float(row['mean']) / float(total['mean']):.0%}" if told else ""
            lines.append([name, cell(row), share])
        page.append(drawn(["part", "mean over sites", "share of all"], lines))
        sites = [over for over in found["own"] if over != "mean"]
        page.append(
            drawn(
                ["site", *PARTS], [[site, *(cell(index[(*pair, site)]) for pair in PARTS.values())] for site in sites]
            )
        )
    return "\n\n".join(page) + "\n"


def drawn(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = " | ".join(["---", *["--:"] * (len(heads) - 1)])
    return "\n".join(f"| {row} |" for row in (" | ".join(heads), rule, *(" | ".join(line) for line in lines)))


if __name__ == "__main__":
    main()
