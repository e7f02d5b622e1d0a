# SPDX-License-Identifier: Apache-2.0
"""Writes and executes the two notebooks of this folder; `--check` only says whether their cells are those below."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
HOSPITAL = [
    """# A hospital's folder

Four hospitals' tables, a federation, what each hospital has of it, and a prediction for new patients. The data are
real: UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, CC BY 4.0), which comes with the package. 920 patients
are few, and one seed says little: read the steps, not the third decimal.""",
    """A folder with a CSV per hospital is all that is needed. Your own folder takes the place of the next cell.""",
    """from pathlib import Path

import pandas as pd

from fairflare.datasets.heart import FILES, patients

folder = Path("hospitals")
folder.mkdir(exist_ok=True)
features = ["age", "trestbps", "thalach", "oldpeak", "exang"]
for site in FILES:
    table = pd.DataFrame(patients(site))
    table["ill"] = (table["num"] > 0).astype(int)
    table["sex"] = table["sex"].map({0: "f", 1: "m"})
    if site == "VA":
        table, new = table[:-20], table[-20:]
    table[["sex", *features, "ill"]].to_csv(folder / f"{site}.csv", index=False)
{path.name: len(pd.read_csv(path)) for path in sorted(folder.iterdir())}""",
    """`Federation` takes what `fairflare run` takes, and refuses a mistake in one line.""",
    """from fairflare import Federation

settings = {"label": "ill", "features": features, "attribute_values": "sex=f|m", "group_by": "label+sex", "solo": True}
federation = Federation("fedism", datalists=folder, kind="tabular", classes=2, rounds=10, settings=settings)
federation.fit("run", progress=False)
federation""",
    """A row per hospital, on its own test patients:""",
    """federation.sites[["n_train", "n_test", "balanced_accuracy", "auc_ovo", "weight"]].round(3)""",
    """FedISM weighs each hospital anew in every round:""",
    """federation.weights.round(3).tail(3)""",
    """The report page is `run/report.html`; its numbers:""",
    """{key: federation.report["fairness"][key] for key in ("metric", "worst_site", "gap")}""",
    """What joining brings each hospital, beside a model that it has trained alone:""",
    """benefit = federation.benefit
benefit[(benefit["metric"] == "auc") & (benefit["group"] == "")].drop(columns="group").round(3)""",
    """federation.plot.benefit("auc")""",
    """New patients of one hospital, prepared as its own were:""",
    """new[["sex", *features]].to_csv("new_patients.csv", index=False)
federation.predict("new_patients.csv", site="VA").head()""",
]
METHODS = [
    """# Comparing methods

Three methods on the same data, the same first model and the same seeds, in Python. `fairflare compare` does more:
intervals, paired differences, a page ([what its numbers mean](../comparing.md)). The data are SUPPORT2, real patients
in four disease classes. Two seeds and few rounds show how it is done; they decide nothing.""",
    """import pandas as pd

from fairflare import Federation

methods = {"FedAvg": "fedavg", "FedISM": "fedism", "FedProx": "fedprox"}
runs = {
    (name, seed): Federation(method, "support2", rounds=5, seed=seed).fit(f"runs/{method}-{seed}", progress=False)
    for name, method in methods.items()
    for seed in (0, 1)
}
len(runs)""",
    """Every hospital's AUC on its own test patients, mean over the seeds:""",
    """auc = pd.concat({key: run.sites["auc"] for key, run in runs.items()}, names=["method", "seed"])
table = auc.groupby(["method", "site"]).mean().unstack()
table.round(3)""",
    """Mean over hospitals and the worst hospital:""",
    """by_run = auc.groupby(["method", "seed"]).agg(["mean", "min"]).rename(columns={"min": "worst"})
by_run.groupby("method").mean().round(3)""",
    """Differences to FedAvg, seed by seed, which is how they are to be compared:""",
    """worst = by_run["worst"].unstack("seed")
(worst - worst.loc["FedAvg"]).round(3)""",
    """A finished run is taken as it is when the cell runs again; other settings are refused in the same folder.""",
    """before = runs["FedISM", 0].model_sha256
again = Federation("fedism", "support2", rounds=5, seed=0).fit("runs/fedism-0", progress=False)
again.model_sha256 == before""",
]
NOTEBOOKS = {"a_hospitals_folder": HOSPITAL, "comparing_methods": METHODS}
CODE = (
    "from ",
    "import ",
    "settings",
    "federation",
    "{",
    "new[",
    "auc",
    "by_run",
    "worst",
    "before",
    "methods",
    "benefit",
)


def made(cells: list[str]) -> nbformat.NotebookNode:
    """A notebook without outputs; a cell that begins like code is code."""
    found = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, text in enumerate(cells):
        is_code = text.startswith(CODE)
        cell = nbformat.v4.new_code_cell(text) if is_code else nbformat.v4.new_markdown_cell(text)
        cell["id"] = f"cell-{number}"
        found.cells.append(cell)
    return found


def executed(notebook: nbformat.NotebookNode, timeout: int = 600) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def main() -> int:
    """Write both, or with ``--check`` compare their sources."""
    for name, cells in NOTEBOOKS.items():
        path, plain = HERE / f"{name}.ipynb", made(cells)
        if "--check" in sys.argv:
            kept = nbformat.read(path, as_version=4)
            if [cell.source for cell in kept.cells] != [cell.source for cell in plain.cells]:
                print(f"{path.name}: not what make.py says; run it")
                return 1
        else:
            os.environ.setdefault("PYTHONPATH", str(HERE.parents[1] / "custom"))
            nbformat.write(executed(plain), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
