# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR (Yan et al., MICCAI 2024): segmentation across scanners, Dice at every site."""

from __future__ import annotations

from fairflare.papers.declaration import Column, Data, Exhibit, Row, Table, figure, on, panels, paper, printed, table
from fairflare.papers.fedce import FEDAVG, FEDERATED, MULTI, SUM, UNKNOWN

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
PRINTED = printed("site", "over-sites", "Avg", 0)
METRIC = (
    "Dice (%) on each site's own test split; Std is the population standard deviation over sites (ddof 0). The paper "
    "has a single run of each method."
)
FEDLWR = Row("fedlwr", "Fed-LWR", "fedlwr")
METHODS = (*FEDERATED[:5], Row("ditto", "Ditto", "ditto"), SUM, MULTI, FEDLWR)
ABLATION = (
    FEDAVG,
    Row("v1", "Fed-LWR v1: cosine similarity", "fedlwr:similarity=cosine"),
    Row("v2", "Fed-LWR v2: last encoder layer", "fedlwr:scope=last_encoder"),
    FEDLWR,
)


def results(number: str, title: str, words: str, data: Data) -> Exhibit:
    """One of the two tables of results."""
    return table(number, title, words, METHODS, on(PRINTED, data), note=f"{METRIC} {UNKNOWN}")


def over_rounds(which: str, words: str) -> Table:
    title = f"Dice of the received model on the validation splits, {words}"
    blocks = on((Column("round", "round", "rounds", {"which": which}),), PROSTATE)
    return Table(f"2-{which}", title, (FEDAVG, SUM, FEDLWR), blocks, draw="rounds", axes=("round", "Dice"))


PAPER = paper(
    "fedlwr",
    "Fed-LWR (Yan et al., A New Perspective to Boost Performance Fairness, MICCAI 2024)",
    results("1", "Methods on prostate MRI", "Methods on six scanners", PROSTATE),
    results("2", "Methods on retinal fundus images", "Methods on the cameras", RIF),
    table(
        "3",
        "Fed-LWR's similarity and its layers",
        "Cosine in place of CKA, one layer in place of all",
        ABLATION,
        on(PRINTED[1:], PROSTATE, RIF),
        structure="",
        note=METRIC,
    ),
    figure(
        "1b",
        "How far each site's features are from the shared model's",
        "Each site's share of 1 - CKA between local and anchor features, mean over layers, last round",
        (FEDLWR,),
        on((Column("far", "site", "note", {"name": "layer_weights"}, better=""),), PROSTATE),
        draw="bars",
        axes=("site", "share of 1 - CKA"),
    ),
    panels(
        "2",
        "Dice over the rounds, mean and worst site",
        over_rounds("mean", "mean over sites"),
        over_rounds("worst", "worst site"),
    ),
)
