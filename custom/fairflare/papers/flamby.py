# SPDX-License-Identifier: Apache-2.0
"""FLamby (Ogier du Terrail et al., NeurIPS 2022): heart disease at four hospitals, and survival in six regions.

Each arm is data: a METHOD with its settings, and what differs in its training. Everything else is the preset
``heart:flamby`` with ``reference=true``: 15 rounds of 100 local steps of plain SGD on batches of 4. Pooled and local
training take 50 epochs of Adam; the pooled one standardises training patients together. Survival is the preset
``tcga-brca:flamby`` with ``reference=true``: 5 rounds of 100 steps on batches of 8; pooled takes 30 epochs.
The exact Cox model, which FLamby has not, stands below.
"""

from __future__ import annotations

from dataclasses import replace

from fairflare.papers.declaration import Column, Data, Row, on, paper, table

HEART = Data(key="heart", title="Fed-Heart-Disease", task="heart:flamby", settings={"reference": "true"})
SEEDS = (42, 43, 44, 45, 46)
CENTRAL = {"train.optimizer": "adam", "train.local_steps": "none", "train.epochs": "50", "train.rounds": "1"}
ADAPTIVE = "server.v_start=zero,server.tau=1e-8"
SECOND = f"server.beta2=0.999,{ADAPTIVE}"
ROWS = (
    Row("pooled", "Pooled", "pooled", values={**CENTRAL, "scaling": "pooled"}),
    Row("local", "Local", "solo", values=CENTRAL),
    Row("fedavg", "FedAvg", "fedavg"),
    Row("fedprox", "FedProx", "fedprox:mu=0.01"),
    Row("scaffold", "SCAFFOLD", "scaffold:weighting=examples"),
    Row(
        "fedadam",
        "FedAdam",
        f"fedavg:server_optimizer=adam,server.lr=0.01,{SECOND}",
        values={"train.lr": "0.01"},
    ),
    Row(
        "fedyogi",
        "FedYogi",
        f"fedavg:server_optimizer=yogi,server.lr=0.01,{SECOND}",
        values={"train.lr": "0.003162"},
    ),
    Row(
        "fedadagrad",
        "FedAdagrad",
        f"fedavg:server_optimizer=adagrad,server.lr=0.316228,server.beta1=0.9,{ADAPTIVE}",
        values={"train.lr": "0.003162"},
    ),
)
BRCA = Data(
    key="brca",
    title="Fed-TCGA-BRCA",
    task="tcga-brca:flamby",
    needs=("tcga_brca/brca.csv", "tcga_brca/train_test_split.csv", "tcga_brca/centers.csv"),
    settings={"reference": "true"},
)
SLOW = {"train.lr": "0.01"}
SURVIVAL_ROWS = (
    Row("pooled", "Pooled", "pooled", values={**CENTRAL, "train.epochs": "30"}),
    Row("fedavg", "FedAvg", "fedavg"),
    Row("fedprox", "FedProx", "fedprox:mu=0.1"),
    Row("scaffold", "SCAFFOLD", "scaffold:weighting=examples", values=SLOW),
    Row("fedadam", "FedAdam", f"fedavg:server_optimizer=adam,server.lr=0.1,{SECOND}", values=SLOW),
    Row("fedyogi", "FedYogi", f"fedavg:server_optimizer=yogi,server.lr=0.1,{SECOND}", values=SLOW),
    Row(
        "fedadagrad",
        "FedAdagrad",
        f"fedavg:server_optimizer=adagrad,server.lr=1,server.beta1=0.9,{ADAPTIVE}",
        values=SLOW,
    ),
    Row("age-fedavg", "FedAvg, age in standard deviations", "fedavg", values={"scaling": "age"}, group="Not FLamby's"),
    Row(
        "cox",
        "exact Cox, stratified by region, ridge .01",
        "glm:ridge=0.01",
        values={"model": "regression", "scaling": "age", "train.rounds": "8", "secure_sum": "masks"},
        group="Not FLamby's",
    ),
)
ACCURACY = Column("site", "hospital", "sites", {"metric": "accuracy"})
PAPER = paper(
    "flamby",
    "FLamby (Ogier du Terrail et al., Datasets and Benchmarks for Cross-Silo FL, NeurIPS 2022)",
    replace(
        table(
            "heart",
            "Heart disease at four hospitals: accuracy on each hospital's test patients",
            "Accuracy of the final model on each hospital's own test patients",
            ROWS,
            on((ACCURACY,), HEART),
            seeds=SEEDS,
            note="A seed draws the initial model, as torch draws it, and the order of the patients.",
        ),
        own=True,
    ),
    replace(
        table(
            "tcga-brca",
            "Survival of breast cancer in six regions: C-index of all test patients",
            "C-index of the final model on the 222 test patients of all regions together",
            SURVIVAL_ROWS,
            on((Column("together", "C-index", "shared", {"which": "all regions"}),), BRCA),
            seeds=SEEDS,
            note="A seed draws the initial model, as torch does, and the order of the patients, which is not FLamby's.",
        ),
        own=True,
    ),
)
