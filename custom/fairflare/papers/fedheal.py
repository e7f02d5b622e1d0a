# SPDX-License-Identifier: Apache-2.0
"""FedHEAL (Chen et al., CVPR 2024): digits and objects in four looks each, every host method under every rule."""

from __future__ import annotations

from fairflare.papers.declaration import Block, Column, Data, Paper, Row, Table, figure, table

DIGITS = Data(
    key="digits",
    title="Digits (MNIST, USPS, SVHN, SYN)",
    task="digits5:paper",
    needs=("MNIST", "usps.bz2", "train_32x32.mat", "syn"),
    stand_in="digits:small",
    words="eight sites with handwriting, coarse handwriting, handwriting over photographs and printed digits",
)
OFFICE = Data(
    key="office",
    title="Office-Caltech",
    task="office-caltech:paper",
    needs=("office_caltech_10",),
    stand_in="digits:small",
    words="the same four looks of digits, since no embedded task has photographs of objects",
)
PRINTED = (
    Column("domain", "domain", "domains", digits=2, scale=100),
    Column("mean", "Mean", "over-domains", {"which": "mean"}, digits=2, scale=100),
    Column("std", "Std", "over-domains", {"which": "std", "ddof": 1}, better="lower", digits=2, scale=100),
)
SHORT = PRINTED[1:]
METRIC = (
    "Top-1 accuracy (%) on each domain's test set, mean of the last five rounds where it is shared and of the final "
    "model where it lies at the sites; Std is the sample standard "
    "deviation over domains (ddof 1)."
)
TAUS, BETAS = ("0.1", "0.2", "0.3", "0.4", "0.5"), ("0", "0.2", "0.4", "0.6", "0.8", "1")
HOSTS = (("fedavg", "FedAvg"),)
PARTS = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("fphl", "FedAvg + FPHL", "fedheal:parts=fphl"),
    Row("fael", "FedAvg + FAEL", "fedheal:parts=fael"),
    Row("both", "FedAvg + FPHL + FAEL", "fedheal:tau=0.3,beta=0.4", on={"office": "fedheal:tau=0.4,beta=0.4"}),
)


PAPER = Paper(
    key="fedheal",
    words="FedHEAL (Chen et al., Fair Federated Learning under Domain Skew, CVPR 2024)",
    exhibits=(
        table(
            "fedheal",
            "5",
            "FedHEAL's two parts, alone and together",
            Table(
                "5",
                "FPHL drops inconsistent updates, FAEL weighs sites by their distance from the model",
                PARTS,
                (Block(DIGITS, PRINTED), Block(OFFICE, PRINTED)),
                structure="",
                note=METRIC,
            ),
        ),
        figure(
            "fedheal",
            "6",
            "The two hyper-parameters of FedHEAL",
            Table(
                "tau",
                "The threshold tau of FPHL",
                tuple(Row(f"tau-{v}", v, f"fedheal:parts=fphl,tau={v}") for v in TAUS),
                (Block(DIGITS, SHORT),),
                draw="curve",
                axes=("tau", "accuracy (%)"),
                stub="tau",
                note=METRIC,
            ),
            Table(
                "beta",
                "The step beta of FAEL",
                tuple(Row(f"beta-{v}", v, f"fedheal:parts=fael,beta={v}") for v in BETAS),
                (Block(DIGITS, SHORT),),
                draw="curve",
                axes=("beta", "accuracy (%)"),
                stub="beta",
                note=METRIC,
            ),
        ),
    ),
)
