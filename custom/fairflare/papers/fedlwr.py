# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR (Yan et al., MICCAI 2024): segmentation across scanners, Dice at every site."""

from __future__ import annotations

from fairflare.papers.declaration import Column, Data, Exhibit, Row, Table, figure, on, panels, paper, printed, table
from fairflare.papers.fedce import CFFL, CGSV, MULTI, QFEDAVG, SUM, UNKNOWN

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
    words="drawn optic discs and cups as four simulated cameras see them",
    other={"n_sites": "4"},
)
PRINTED = printed("site", "over-sites", "Avg", 0)
METRIC = (
    "Dice (%) on each site's own test split; Std is the population standard deviation over sites (ddof 0). The paper "
    "has a single run of each method. As in the authors' code and not in the text, CKA is the unbiased one on "
    "mini-batches (similarity=paper is the text's), and Adam's beta2 is 0.99 and its state is kept over rounds."
)
FEDAVG = Row("fedavg", "FedAvg", "fedavg:weighting=uniform")
"""Eq. 1 weighs sites equally."""
FEDLWR = Row("fedlwr", "Fed-LWR", "fedlwr")
METHODS = (
    *(Row("solo", "Solo", "solo"), FEDAVG, QFEDAVG, CFFL, CGSV),
    *(Row("ditto", "Ditto", "ditto"), SUM, MULTI, FEDLWR),
)
ABLATION = (
    FEDAVG,
    Row("v1", "Fed-LWR-v1 (cosine)", "fedlwr:similarity=cosine"),
    Row("v2", "Fed-LWR-v2 (last encoder layer)", "fedlwr:scope=last_encoder"),
    FEDLWR,
)


def results(number: str, title: str, words: str, data: Data) -> Exhibit:
    """One of the two tables of results."""
    return table(number, title, words, METHODS, on(PRINTED, data), note=f"{METRIC} {UNKNOWN}")


def over_rounds(which: str, words: str) -> Table:
    title = f"Dice of the received model on the validation splits, {words}"
    blocks = on((Column("round", "round", "rounds", {"which": which}),), PROSTATE)
    note = "The paper draws the test set; here test images are read once, at the end. FedCE is its (Sum.) version."
    return Table(f"2-{which}", title, (FEDAVG, SUM, FEDLWR), blocks, draw="rounds", axes=("round", "Dice"), note=note)


PAPER = paper(
    "fedlwr",
    "Fed-LWR (Yan et al., A New Perspective to Boost Performance Fairness, MICCAI 2024)",
    results("1", "Methods on prostate MRI", "Methods on six sites", PROSTATE),
    results("2", "Methods on retinal fundus images", "Methods on four cameras", RIF),
    table(
        "3",
        "Fed-LWR's similarity and its layers",
        "Cosine in place of CKA, one layer in place of all",
        ABLATION,
        on(PRINTED, PROSTATE),
        note=METRIC,
    ),
    figure(
        "1b",
        "How alike two clients' features are, layer by layer",
        "CKA between the local models of two pairs of clients",
        (FEDLWR,),
        on((), PROSTATE),
        draw="layers",
        axes=("layer", "CKA"),
        stub="Pair",
        structure="On whose data and in which round is not in the paper's text: the first client's, after the last.",
    ),
    panels(
        "2",
        "Dice over the rounds, mean and standard deviation over sites",
        over_rounds("mean", "mean over sites"),
        over_rounds("std", "standard deviation over sites (ddof 0)"),
    ),
)
