# SPDX-License-Identifier: Apache-2.0
"""Tables of made-up patients of three hospitals with every kind of outcome: an amount, a count, labels, grades."""

import numpy as np
import pandas as pd

SITES = ("north", "south", "east")
LABELS = ("edema", "effusion", "mass")
GRADES = ("none", "mild", "moderate", "severe")
OUTCOMES = ("stay", "years", "volume", *LABELS, "findings", "grade")
FEATURES = "age,lab1,lab2,lab3"


def patients(site, n=150):
    """The rows of one hospital; a fifth do not say edema, and east never says mass."""
    k = SITES.index(site)
    rng = np.random.default_rng(k)
    x, years = rng.normal(size=(n, 4)), rng.uniform(0.5, 2, n).round(2)
    stay = rng.poisson(years * np.exp(1.5 + 0.4 * x[:, 0] - 0.3 * x[:, 1] + 0.2 * k))
    labels = 2 * x[:, :3] + rng.logistic(size=(n, 3)) > 0.5
    grade = np.digitize(1.5 * x[:, 2] + rng.logistic(size=n), [-1, 0.5, 2])
    found = pd.DataFrame({"age": (60 + 10 * x[:, 0]).round(1), **{f"lab{j}": x[:, j].round(3) for j in (1, 2, 3)}})
    found["sex"] = rng.choice(["female", "male"], n)
    found["stay"], found["years"] = stay, years
    found["volume"] = (50 + 20 * x[:, 1] + 8 * rng.normal(size=n) + 5 * k).round(2)
    for j, name in enumerate(LABELS):
        found[name] = labels[:, j].astype(int).astype(str)
    found.loc[rng.random(n) < 0.2, "edema"] = ""
    if site == "east":
        found["mass"] = ""
    found["findings"] = ["|".join(name for name, one in zip(LABELS, row) if one) or "clear" for row in labels]
    found["grade"] = np.array(GRADES)[grade]
    return found


def write(root, **changed):
    """<root>/<site>.csv; ``changed`` are columns in place of those of the first site."""
    root.mkdir(parents=True, exist_ok=True)
    for site in SITES:
        table = patients(site)
        if site == SITES[0]:
            table = table.assign(**changed)
        table.to_csv(root / f"{site}.csv", index=False)
    return root
