# SPDX-License-Identifier: Apache-2.0
"""A hospital that did not train: its table, and a model's figures on it as scikit-learn computes them."""

import csv
import json

import numpy as np
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

COLUMNS = ["patient_id", "age", "score", "sex", "outcome"]
ALONE = {"label": "outcome", "features": "age,score", "attribute_values": "sex=f|m", "group_by": "label+sex"}
OWN = ["--kind", "tabular", "--classes", "lived,died", *(w for k, v in ALONE.items() for w in ("--set", f"{k}={v}"))]


def write_hospital(path, n=240, seed=77, share=0.4, shift=0.0, women=0.5, twice=False):
    """``n`` rows of patients with age, score, sex and outcome; ``twice``: each patient has two of them."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(n):
        ill = rng.random() < share
        age, score = rng.normal(60 + 5 * ill + shift, 8), rng.normal(2 * ill + shift / 5, 1)
        sex = "f" if rng.random() < women else "m"
        gap = "" if rng.random() < 0.1 else f"{score:.3f}"
        rows.append([f"PAT-{k // 2 if twice else k}", f"{age:.1f}", gap, sex, "died" if ill else "lived"])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def cells(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def recomputed(y, p, groups=None):
    """Figures of risks ``p`` of the second class, from scikit-learn alone."""
    predicted = (p > 0.5).astype(int)
    logit = np.log(p) - np.log1p(-p)
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit[:, None], y)
    return {
        "accuracy": metrics.accuracy_score(y, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted),
        "macro_f1": metrics.f1_score(y, predicted, average="macro"),
        "auc_ovo": metrics.roc_auc_score(y, p),
        "auc_ovr": metrics.roc_auc_score(y, p),
        "loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y, p),
        "calibration": float(np.mean(p) - np.mean(y)),
        "intercept": float(line.intercept_[0]),
        "slope": float(line.coef_[0, 0]),
        "sensitivity": metrics.recall_score(y, predicted),
        "specificity": metrics.recall_score(y, predicted, pos_label=0),
        "groups": {
            g: metrics.accuracy_score(y[groups == g], predicted[groups == g]) for g in np.unique(groups)
        } if groups is not None else {},
    }  # fmt: skip


def same_figures(site, expected, near=1e-5):
    """Whether every figure of a site of ``evaluation.json`` is the recomputed one."""
    found = {name: one["value"] for name, one in site["metrics"].items()}
    view = site["calibration"]
    found |= {name: view[name]["value"] for name in ("brier", "calibration", "intercept", "slope")}
    found |= {name: view["rates"][name]["value"] for name in ("sensitivity", "specificity")}
    groups = {row["group"]: row["value"] for row in site["groups"]}
    assert groups.keys() == expected["groups"].keys()
    wanted = {**expected, **expected["groups"]}
    del wanted["groups"]
    off = {
        name: (value, wanted[name])
        for name, value in {**found, **groups}.items()
        if abs(value - wanted[name]) > (1e-3 if name in ("intercept", "slope") else near)
    }
    assert not off, off
    return True


def numbers_of(content, name):
    """Every number that stands under ``name`` anywhere in ``content``."""
    if isinstance(content, dict):
        own = [content[name]] if isinstance(content.get(name), (int, float)) else []
        return own + [n for value in content.values() for n in numbers_of(value, name)]
    return [n for value in content for n in numbers_of(value, name)] if isinstance(content, list) else []


def evaluation(folder):
    return json.loads((folder / "evaluation.json").read_text())
