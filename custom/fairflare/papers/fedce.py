# SPDX-License-Identifier: Apache-2.0
"""FedCE (Jiang et al., CVPR 2023): segmentation, Dice per client, and what each client contributes."""

from __future__ import annotations

from fairflare.papers.declaration import (
    Better,
    Column,
    Data,
    Exhibit,
    Row,
    Table,
    figure,
    on,
    panels,
    paper,
    printed,
    table,
)

RETINA = Data(
    key="retina",
    title="Retinal fundus images",
    task="fundus:paper",
    needs=("Fundus",),
    stand_in="fundus-phantom:small",
    words="drawn optic discs and cups as six simulated cameras see them",
    own=False,
)
PROSTATE = Data(
    key="prostate",
    title="Prostate MRI",
    task="prostate:paper-fedce",
    needs=("dataset_2D", "datalist_2D"),
    stand_in="brain-seg:small",
    words="grey matter, white matter and ventricles of one template as six simulated scanners see it",
    settings={"layout": "fed-ce"},
)
BOTH = (PROSTATE, RETINA)
PRINTED = printed("site", "over-sites", "Avg", 1)
METRIC = "Dice (%) on each client's own test split; Std is the sample standard deviation over clients (ddof 1)."
UNKNOWN = (
    "The paper prints no settings of the methods that it compares with; these are their defaults here, for q-FedAvg "
    "L = 0.005, which FedUFO's code has under Adam: 1 / lr is that of plain SGD, and with it the model hardly moves; "
    "CFFL removes sites, as published."
)
FEDAVG = Row("fedavg", "FedAvg", "fedavg")
SUM, MULTI = (Row(f"fedce-{how}", f"FedCE ({how})", f"fedce:combine={how}") for how in ("sum", "multi"))
FEDERATED = (
    FEDAVG,
    Row("qfedavg", "q-FedAvg", "qfedavg:lipschitz=0.005"),
    Row("cffl", "CFFL", "cffl:remove=true"),
    Row("cgsv", "CGSV", "cgsv"),
    Row("fedci", "FedCI", "fedci"),
    SUM,
    MULTI,
)
ALL = (Row("solo", "Standalone", "solo"), *FEDERATED)
ABLATION = (
    FEDAVG,
    Row("cosine", "Gradient space alone", "fedce:terms=cosine"),
    Row("error", "Data space alone", "fedce:terms=error"),
    SUM,
    MULTI,
)


def agreement(measure: str, **titles: str) -> tuple[Column, ...]:
    """Columns of some of Pearson x 100, Euclidean distance and cosine."""
    better: dict[str, Better] = {"euclid": "lower"}
    return tuple(
        Column(key, title, measure, {"which": key}, better.get(key, "higher"), 2) for key, title in titles.items()
    )


def over_rounds(number: str, title: str, words: str, which: str) -> Exhibit:
    column = Column("round", "round", "rounds", {"which": which})
    rows = (FEDAVG, SUM, MULTI)
    return figure(number, title, words, rows, on((column,), PROSTATE), draw="rounds", axes=("round", "Dice"))


def contributions(key: str, words: str, measure: str) -> Table:
    blocks = on((Column(key, key, measure, better=""),), PROSTATE)
    return Table(f"3-{key}", words, (SUM,), blocks, left_out="fedavg", draw="bars", axes=("client", "share"))


PAPER = paper(
    "fedce",
    "FedCE (Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution, CVPR 2023)",
    table("1", "Dice of every client", "Methods by client", ALL, on(PRINTED, *BOTH), note=f"{METRIC} {UNKNOWN}"),
    table(
        "2",
        "Performance fairness",
        "Agreement of the clients' Dice with that of their own models",
        FEDERATED,
        on(agreement("like-alone", pearson_x100="Pearson x 100", euclid="Euclid"), *BOTH),
        references=("solo",),
        note=UNKNOWN,
    ),
    table(
        "3",
        "Collaboration fairness",
        "Agreement of the last weights with leave-one-out shares of FedAvg",
        (FEDAVG, SUM, MULTI),
        on(agreement("like-left-out", pearson_x100="Pearson x 100", euclid="Euclid", cosine="Cosine"), PROSTATE),
        left_out="fedavg",
        note="A client's share is how much the mean Dice falls without it, over the sum of these drops.",
    ),
    table(
        "4",
        "Gradient space and data space",
        "FedCE's two terms, alone and together",
        ABLATION,
        on(PRINTED[1:], *BOTH),
        note=METRIC,
    ),
    table(
        "5",
        "Leaving each client out",
        "Drop of the mean Dice without a client, its share of the drops, and FedCE's last weights",
        (SUM,),
        on(
            (
                Column("drop", "drop", "drops", {"prefix": "drop, "}, better="", digits=4),
                Column("share", "share", "shares", {"prefix": "share, "}, better=""),
                Column("weight", "weight", "weights", {"prefix": "weight, "}, better=""),
            ),
            PROSTATE,
        ),
        left_out="fedavg",
    ),
    table(
        "6",
        "Dice of every client, with its spread over runs",
        "Clients by method",
        ALL,
        on(PRINTED[:1], *BOTH),
        note=f"{METRIC} The paper's spread is over three runs.",
    ),
    figure(
        "2",
        "How bright each client's images are",
        "Share of the training images' pixels at each intensity",
        (),
        on((), *BOTH),
        draw="density",
        axes=("intensity as the network takes it", "share of pixels"),
        stub="Client",
    ),
    panels(
        "3",
        "Leave-one-out shares and estimated contributions",
        contributions("shares", "Leave-one-out shares", "shares"),
        contributions("weights", "FedCE's weights", "weights"),
    ),
    figure(
        "4",
        "Smaller and larger differences between clients",
        "FedAvg and FedCE over the size of the shift between simulated scanners",
        tuple(
            Row(f"{row.key}-{v}", v, row.label, group=row.title, values={"shift": v}, only="stand-in")
            for row in (FEDAVG, SUM)
            for v in ("0", "0.5", "1")
        ),
        on(PRINTED[1:], PROSTATE),
        draw="curve",
        axes=("shift", "%"),
        stub="Shift",
        note=f"{METRIC} Made on the embedded task alone: the shift of real data cannot be set.",
    ),
    figure(
        "5",
        "The clients' weights over the rounds",
        "FedCE's weights",
        tuple(Row(f"c{k}", f"client {k}", "fedce:combine=sum", given={"index": k}) for k in range(1, 7)),
        on((Column("round", "round", "site-weights", better=""),), PROSTATE),
        draw="rounds",
        axes=("round", "weight"),
        stub="Client",
    ),
    over_rounds("6", "Mean Dice over the rounds", "Mean over clients", "mean"),
    figure(
        "7",
        "A free rider's score",
        "Free-rider score of every client, last round; one client's training images are one image",
        tuple(
            Row(f"rider-{k}", f"client {k} rides", "fedce", values={"free_rider": k}, only="stand-in")
            for k in ("1", "4", "6")
        ),
        on((Column("score", "client", "note", {"name": "free_rider_score"}, better=""),), PROSTATE),
        draw="bars",
        axes=("client", "score"),
        note="Made on the embedded task alone: a free rider has to be put into the data.",
    ),
    over_rounds("8", "The worst client's Dice over the rounds", "Worst client", "worst"),
    figure(
        "9",
        "Gradient space and data space by client",
        "Dice of every client with either term of FedCE",
        ABLATION,
        on(PRINTED[:1], PROSTATE),
        draw="bars",
        axes=("client", "Dice"),
        note=METRIC,
    ),
)
