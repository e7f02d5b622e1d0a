# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR (Yan et al., MICCAI 2024): segmentation across scanners, Dice at every site."""

from __future__ import annotations

from fairflare.papers.declaration import Block, Column, Data, Paper, Row, Table, figure, table

PROSTATE = Data(
    key="prostate",
    title="ProstateMRI",
    task="prostate:paper",
    needs=("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL"),
    stand_in="brain-seg:small",
    words="grey matter, white matter and ventricles of one template as six simulated scanners see it",
)
RIF = Data(
    key="rif",
    title="RIF (retinal fundus images)",
    task="fundus:paper",
    needs=("Fundus",),
    stand_in="fundus-phantom:small",
    words="drawn optic discs and cups as six simulated cameras see them",
)
PRINTED = (
    Column("site", "site", "sites", digits=2, scale=100),
    Column("mean", "Avg", "over-sites", {"which": "mean"}, digits=2, scale=100),
    Column("std", "Std", "over-sites", {"which": "std", "ddof": 0}, better="lower", digits=2, scale=100),
)
METRIC = "Dice (%) on each site's own test split; Std is the population standard deviation over sites (ddof 0)."
UNKNOWN = (
    "The paper prints no settings of the methods that it compares with; these are their defaults here, for q-FedAvg "
    "L = 0.005, which FedUFO's code has under Adam: 1 / lr is that of plain SGD, and with it the model hardly moves; "
    "CFFL removes sites, as published."
)
ONE_RUN = "The paper has a single run of each method."
METHODS = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("qfedavg", "q-FedAvg", "qfedavg:lipschitz=0.005"),
    Row("cffl", "CFFL", "cffl:remove=true"),
    Row("cgsv", "CGSV", "cgsv"),
    Row("fedci", "FedCI", "fedci"),
    Row("ditto", "Ditto", "ditto"),
    Row("fedce-sum", "FedCE (sum)", "fedce:combine=sum"),
    Row("fedce-multi", "FedCE (multi)", "fedce:combine=multi"),
    Row("fedlwr", "Fed-LWR", "fedlwr"),
)
ABLATION = (
    Row("fedavg", "FedAvg", "fedavg"),
    Row("v1", "Fed-LWR v1: cosine similarity", "fedlwr:similarity=cosine"),
    Row("v2", "Fed-LWR v2: last encoder layer", "fedlwr:scope=last_encoder"),
    Row("fedlwr", "Fed-LWR", "fedlwr"),
)
SHORT = (Row("fedavg", "FedAvg", "fedavg"), Row("fedce-sum", "FedCE (sum)", "fedce:combine=sum"), METHODS[-1])


def printed(number: str, words: str, data: Data) -> Table:
    """One of the two tables of results."""
    return Table(number, words, METHODS, (Block(data, PRINTED),), note=f"{METRIC} {ONE_RUN} {UNKNOWN}")


PAPER = Paper(
    key="fedlwr",
    words="Fed-LWR (Yan et al., A New Perspective to Boost Performance Fairness, MICCAI 2024)",
    exhibits=(
        table("fedlwr", "1", "Methods on prostate MRI", printed("1", "Methods on six scanners", PROSTATE)),
        table("fedlwr", "2", "Methods on retinal fundus images", printed("2", "Methods on the cameras", RIF)),
        table(
            "fedlwr",
            "3",
            "Fed-LWR's similarity and its layers",
            Table(
                "3",
                "Cosine in place of CKA, one layer in place of all",
                ABLATION,
                (Block(PROSTATE, PRINTED[1:]), Block(RIF, PRINTED[1:])),
                structure="",
                note=f"{METRIC} {ONE_RUN}",
            ),
        ),
        figure(
            "fedlwr",
            "1b",
            "How far each site's features are from the shared model's",
            Table(
                "1b",
                "Each site's share of 1 - CKA between local and anchor features, mean over layers, last round",
                (METHODS[-1],),
                (Block(PROSTATE, (Column("far", "site", "note", {"name": "layer_weights"}, better=""),)),),
                draw="bars",
                axes=("site", "share of 1 - CKA"),
            ),
        ),
        figure(
            "fedlwr",
            "2",
            "Dice over the rounds, mean and worst site",
            *(
                Table(
                    f"2-{which}",
                    f"Dice of the received model on the validation splits, {words}",
                    SHORT,
                    (Block(PROSTATE, (Column("round", "round", "rounds", {"which": which}),)),),
                    draw="rounds",
                    axes=("round", "Dice"),
                )
                for which, words in (("mean", "mean over sites"), ("worst", "worst site"))
            ),
        ),
    ),
)
