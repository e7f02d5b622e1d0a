# SPDX-License-Identifier: Apache-2.0
"""FLamby (Ogier du Terrail et al., NeurIPS 2022): eight ways of training on heart disease at four hospitals.

Each arm is data: a METHOD with its settings, and what differs in its training. Everything else is the preset
``heart:flamby`` with ``reference=true``: 15 rounds of 100 local steps of plain SGD on batches of 4. Pooled and local
training take 50 epochs of Adam; the pooled one standardises training patients together.
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
            published="flamby_heart",
        ),
        own=True,
    ),
)
