# SPDX-License-Identifier: Apache-2.0
"""FedCE (Jiang et al., CVPR 2023): segmentation, Dice per client, and what each client contributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

SIX = tuple(f"site-{k}" for k in range(1, 7))
"""Folders of the six sources, which are the user's own collection: the paper names no file layout."""
RETINA = Data(
    key="retina",
    title="Retinal fundus images",
    task="fundus:paper",
    needs=tuple(f"Fundus/{site}" for site in SIX),
    stand_in="fundus-phantom:small",
    words="drawn optic discs and cups as six simulated cameras see them",
    settings={
        **{"layout": "sites", "site_names": ",".join(SIX), "size": "256"},
        **{"train.weight_decay": "0", "val_fraction": "0.25", "test_fraction": "0.25"},
    },
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
BOTH = (RETINA, PROSTATE)
PRINTED = printed("site", "over-sites", "Avg.", 1)
METRIC = "Dice (%) on each client's own test split; Std is the sample standard deviation over clients (ddof 1)."
UNKNOWN = (
    "The paper prints no settings of the methods that it compares with; these are their defaults here, for q-FedAvg "
    "L = 0.005, which FedUFO's code has under Adam: 1 / lr is that of plain SGD, and with it the model hardly moves; "
    "CFFL removes sites, as published."
)
FEDAVG = Row("fedavg", "FedAvg", "fedavg")
SUM = Row("fedce-sum", "FedCE (Sum.)", "fedce:combine=sum")
MULTI = Row("fedce-multi", "FedCE (Multi.)", "fedce:combine=multi")
QFEDAVG = Row("qfedavg", "q-FedAvg", "qfedavg:lipschitz=0.005")
CFFL, CGSV = Row("cffl", "CFFL", "cffl:remove=true"), Row("cgsv", "CGSV", "cgsv")
FEDERATED = (FEDAVG, QFEDAVG, CFFL, Row("fedci", "FedCI", "fedci"), CGSV, MULTI, SUM)
ALL = (Row("solo", "Standalone", "solo"), *FEDERATED)
ABLATION = (
    Row("cosine", "G(cos)", "fedce:terms=cosine"),
    Row("error", "G(err)", "fedce:terms=error"),
    MULTI,
    SUM,
)
LEFT_OUT = "fedce:combine=sum"
DROPS = "A client's share is how much the mean Dice falls without it, over the sum of these drops."
WHICH = "With which method the paper leaves clients out is not in its text: FedCE (Sum.)."


def agreement(measure: str, *keys: str) -> tuple[Column, ...]:
    """Columns of some of Pearson x 100 with its p-value, Euclidean distance and cosine."""
    titles: dict[str, tuple[str, Better, int]] = {
        "pearson_x100": ("Pearson x 100", "higher", 2),
        "p": ("p", "", 4),
        "euclid": ("Euclid", "lower", 2),
        "cosine": ("Cosine", "higher", 2),
    }
    return tuple(
        Column(key, title, measure, {"which": key}, better, digits)
        for key, (title, better, digits) in titles.items()
        if key in keys
    )


def leave_one_out(number: str, data: Data, *structures: tuple[str, str, str]) -> Exhibit:
    """Dice, its change, and shares of drops and of samples without each client and with all."""
    dice = tuple(Column(k, title, "without", {"metric": m}, "", 2, 100, ("", "No")) for k, title, m in structures)
    change = tuple(
        Column(f"d{k}", f"d{title}", "without", {"metric": m, "change": True}, "", 2, 100) for k, title, m in structures
    )
    columns = (
        *dice,
        *change,
        Column("share", "Performance contribution, %", "shares", better="", digits=2, scale=100),
        Column("n", "Training samples", "examples", better="", digits=0),
        Column("n-share", "Sample contribution, %", "examples", {"share": True}, "", 2, 100),
    )
    words = "Without each client in turn, and with all (No)"
    more: dict[str, Any] = {"left_out": LEFT_OUT, "transposed": True, "stub": "", "structure": WHICH}
    note = f"{DROPS} The mean is over all six test splits, the left-out client's too; the paper does not say which."
    return table(number, f"Leaving each client out, {data.title}", words, (SUM,), on(columns, data), note=note, **more)


RIDERS = tuple(str(k) for k in range(1, 7))
PLANTED = "Made on the embedded task alone: a free rider has to be put into the data."


def rider_curves(rider: str) -> Table:
    """Every client's cosine similarity over the rounds while one rides."""
    rows = tuple(
        Row(f"client-{k}", f"client {k}", "fedce", given={"site": k}, values={"free_rider": rider}, only="stand-in")
        for k in range(1, 7)
    )
    column = Column("round", "round", "note-rounds", {"name": "novelty", "of_one": True}, "")
    axes = ("round", "cosine similarity")
    return Table(
        f"7-{rider}", f"Client {rider} rides", rows, on((column,), PROSTATE), draw="rounds", axes=axes, note=PLANTED
    )


def segmented(number: str, data: Data) -> Exhibit:
    title = f"Example segmentations, {data.title}"
    return figure(
        number,
        title,
        f"A picture to look at: the first test image of each client. {title}",
        ALL[1:],
        on((), data),
        draw="pictures",
        stub="Client",
    )


PAPER = paper(
    "fedce",
    "FedCE (Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution, CVPR 2023)",
    table("1", "Dice of every client", "Methods by client", ALL, on(PRINTED, *BOTH), note=f"{METRIC} {UNKNOWN}"),
    table(
        "2",
        "Performance fairness",
        "Agreement of the clients' Dice with that of their own models",
        FEDERATED,
        on(agreement("like-alone", "pearson_x100", "p", "euclid"), *BOTH),
        references=("solo",),
        note=f"By the definition in the paper's text; its printed rows do not follow from its Table 1. {UNKNOWN}",
    ),
    table(
        "3",
        "Collaboration fairness",
        "Agreement of the last weights with leave-one-out shares",
        FEDERATED,
        on(agreement("like-left-out", "pearson_x100", "p", "euclid", "cosine"), *BOTH),
        left_out=LEFT_OUT,
        note=f"{DROPS} {UNKNOWN}",
        structure=WHICH,
    ),
    leave_one_out("4", RETINA, ("disc", "Dice, Disc", "dice_disc"), ("cup", "Dice, Cup", "dice_cup")),
    leave_one_out("5", PROSTATE, ("dice", "Dice", "dice")),
    table(
        "6",
        "Dice of every client, with its spread over runs",
        "Methods by client over three seeds",
        ALL,
        on(PRINTED, *BOTH),
        note=f"{METRIC} The paper prints no spread on Avg. and Std.",
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
    figure(
        "3",
        "Mean validation Dice over the rounds",
        "Mean over clients, smoothed by Savitzky and Golay's filter",
        FEDERATED,
        on((Column("round", "round", "rounds", {"which": "mean"}),), *BOTH),
        draw="rounds",
        axes=("round", "Dice"),
        smooth=7,
        structure="The paper's window and which task it draws are lost from its text: here seven rounds, both tasks.",
    ),
    figure(
        "4",
        "Free riders found",
        "Free-rider score of every client at six rounds; in each row another client's training images are one image",
        tuple(
            Row(f"rider-{k}", f"client {k} rides", "fedce", values={"free_rider": k}, only="stand-in") for k in RIDERS
        ),
        on((Column("score", "client", "note-rounds", {"name": "free_rider_score"}, ""),), PROSTATE),
        draw="heat",
        axes=("client", "score"),
        note=PLANTED,
        structure="Of the six rounds the text names the tenth alone; the data are not named but in its appendix.",
    ),
    figure(
        "5",
        "Weights with and without client 5",
        "Relative weights of the other clients in the last round",
        tuple(
            Row(key, words, LEFT_OUT, given={"whole": whole})
            for key, words, whole in (("with", "all six train", True), ("without", "client 5 has left", False))
        ),
        on((Column("weight", "client", "relative-weights", better="", digits=2, scale=100),), RETINA),
        left_out=LEFT_OUT,
        left_sites=(5,),
        draw="bars",
        axes=("client", "relative weight, %"),
        note="The paper writes the differences on its bars; here they follow from the two rows.",
    ),
    figure(
        "6",
        "FedCE's two terms, alone and together",
        "Mean Dice",
        ABLATION,
        on((PRINTED[1],), *BOTH),
        draw="bars",
        axes=("", "Dice"),
        structure="The metric of the paper's drawing is lost from its text: mean Dice.",
    ),
    panels("7", "Free riders by cosine similarity alone", *(rider_curves(rider) for rider in RIDERS)),
    segmented("8", RETINA),
    segmented("9", PROSTATE),
    replace(
        figure(
            "shift",
            "Smaller and larger differences between clients, which the paper does not vary",
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
        own=True,
    ),
)
